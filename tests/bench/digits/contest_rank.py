"""One rank of the quickstart's comparison: a ResNet on the digits, trained in several ways by turns.

Rank, world size and where ranks meet come from the environment, as torchrun sets it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "client" / "examples"))

import digits
import resnet
import torch
import torch.distributed
from moments import record
from torch.nn import functional
from ways import Batch, Task, make_way, outcome, take_turns

BLOCKS = 2  # in each of three stages


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, required=True, help="channels of stage 1")
    parser.add_argument("--batch", type=int, required=True, help="samples of each rank")
    parser.add_argument("--warm-up", type=int, required=True, help="iterations")
    parser.add_argument("--iterations", type=int, required=True, help="in each round")
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--ways", nargs="+", required=True)
    parser.add_argument(
        "--picture", action="store_true", help="note one iteration's moments"
    )
    parser.add_argument("--ctl", required=True, help="headracectl")
    parser.add_argument("--result", type=Path, required=True, help="JSON to write")
    return parser.parse_args()


def make_task(width: int, batch: int, rank: int) -> Task:
    images, labels = digits.Digits().train

    def batches() -> Iterator[Batch]:
        samples = torch.Generator().manual_seed(digits.SEED + rank)
        while True:
            chosen = torch.randint(len(labels), (batch,), generator=samples)
            yield images[chosen], labels[chosen]

    torch.manual_seed(digits.SEED)
    return Task(
        resnet.make_model(width, BLOCKS),
        lambda parameters: torch.optim.SGD(parameters, 0.01, momentum=0.9),
        batches,
        functional.cross_entropy,
    )


def main() -> None:
    arguments = parse()
    torch.set_num_threads(1)  # ranks share the cores
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    task = make_task(arguments.width, arguments.batch, rank)
    ways = [make_way(name, task, "digits-resnet") for name in arguments.ways]
    turns = len(ways) * (1 + arguments.rounds)
    begun = 0

    def said(text: str) -> None:
        nonlocal begun
        begun += 1
        if rank == 0:
            print(f"step {begun} of {turns}, {text}", flush=True)

    take_turns(
        ways, arguments.warm_up, arguments.iterations, arguments.rounds, arguments.ctl, said,
    )  # fmt: skip
    result = outcome(task, ways, arguments.ctl)
    if arguments.picture:
        result["moments"] = record(ways[-1], arguments.ctl)
    arguments.result.write_text(json.dumps(result))
    torch.distributed.barrier()
    for way in ways:
        way.close()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
