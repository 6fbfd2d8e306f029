"""One rank of a training of client/examples/digits.py: what came out, and what it cost.

By --way gradients go through Headrace, through DDP over gloo, or nowhere: one process trains alone. Data,
model and loop are the example's. Rank, world size and where ranks meet come from the environment, as
torchrun sets it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "client" / "examples"))

import digits  # before torch: says what to install where a module is missing
import headrace
import headrace.torch
import numpy as np
import torch
import torch.distributed
from torch.nn.parallel import DistributedDataParallel


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--way", choices=WAYS, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--parts", type=int, required=True, help="cut global batches for so many ranks")
    parser.add_argument("--result", type=Path, required=True, help="JSON to write; parameters beside it")
    return parser.parse_args()


class LastGradient:
    """The moment at which backward has produced its last gradients, those of the first layer."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.at = 0.0
        for parameter in list(model.parameters())[:2]:
            parameter.register_hook(self._produced)

    def _produced(self, gradient: torch.Tensor) -> None:
        self.at = time.monotonic()


def nothing() -> None:
    """Where one process has nobody to wait for, and where DDP has waited within backward."""


def train(
    arguments: argparse.Namespace,
    model: torch.nn.Module,
    rank: int,
    ranks: int,
    zero_grad: Callable[[], None],
    average: Callable[[], None] = nothing,
    barrier: Callable[[], None] = nothing,
) -> None:
    """Trains and writes the result: how good the model is, its parameters and their hash, the seconds.

    Those waited go from the last gradient of each backward until all were averaged, which includes
    waiting for slower ranks.
    """
    samples = digits.Digits(arguments.parts)
    last_gradient, waited = LastGradient(model), 0.0

    def average_and_measure() -> None:
        nonlocal waited
        average()
        waited += time.monotonic() - last_gradient.at

    barrier()
    start = time.monotonic()
    digits.train(model, samples, arguments.epochs, rank, ranks, zero_grad, average_and_measure)
    barrier()
    seconds = time.monotonic() - start
    loss, accuracy = digits.evaluate(model, samples)
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()]).numpy()
    np.save(arguments.result.with_suffix(".npy"), flat)
    result = {
        "loss": loss,
        "accuracy": accuracy,
        "seconds": seconds,
        "waited_seconds": waited,
        "hash": hashlib.sha256(flat.tobytes()).hexdigest(),
    }
    arguments.result.write_text(json.dumps(result))


def through_headrace(arguments: argparse.Namespace, model: torch.nn.Module) -> None:
    with headrace.init() as session:
        headrace.torch.broadcast_parameters(session, model)
        arena = headrace.torch.GradientArena(session, model.named_parameters())
        train(
            arguments, model, session.rank, session.world_size,
            arena.zero_grad, arena.wait, session.barrier,
        )  # fmt: skip
        session.barrier()


def through_ddp(arguments: argparse.Namespace, model: torch.nn.Module) -> None:
    torch.distributed.init_process_group("gloo")
    trained = DistributedDataParallel(model, gradient_as_bucket_view=True)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    train(arguments, trained, rank, ranks, trained.zero_grad, barrier=torch.distributed.barrier)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def alone(arguments: argparse.Namespace, model: torch.nn.Module) -> None:
    train(arguments, model, 0, 1, model.zero_grad)


WAYS = {"headrace": through_headrace, "ddp": through_ddp, "alone": alone}


def main() -> None:
    arguments = parse()
    torch.set_num_threads(1)  # ranks share the cores
    WAYS[arguments.way](arguments, digits.make_model())


if __name__ == "__main__":
    main()
