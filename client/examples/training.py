"""What resnet.py and gpt.py share: one training loop, three ways to average gradients.

--ddp gloo is what every PyTorch has; --ddp headrace changes that one word; without --ddp gradients move
by the plan of ScheduledOptimizer, and hide behind the next forward pass too. Every rank has its own
samples; losses are rank 0's.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import headrace
import headrace.torch
import torch
import torch.distributed
from torch.nn.parallel import DistributedDataParallel

WARM_UP = 8  # iterations that no figure is taken from: plans are made in them


def parse(description: str, steps: int) -> argparse.ArgumentParser:
    """The options of every training program here."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--ddp", choices=("gloo", "headrace"), help="through DDP")
    parser.add_argument(
        "--policy", help="how the plan is made: one of those that headracectl policy --help lists"
    )
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--batch", type=int, default=8, help="samples of each rank")
    parser.add_argument("--every", type=int, default=20, help="steps between losses")
    parser.add_argument("--json", type=Path, help="file for each iteration's figures")
    return parser


@dataclasses.dataclass
class Ranks:
    """This process among the others, and how they average gradients."""

    rank: int
    ranks: int
    way: str
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    waited: Callable[[], float]  # seconds so far
    finish: Callable[[], None]  # parameters are final then
    begun: int = 0  # iterations of the job, where this process has come to one that runs

    def resized(self, resize: headrace.torch.Resize) -> None:
        """With HEADRACE_SHRINK: others are lost, or have come."""
        self.rank, self.ranks = resize.rank, resize.world_size


class Waiting:
    """How long backward() stands after the last gradient was there: what DDP waits."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.seconds = 0.0
        self._last = 0.0
        for parameter in model.parameters():
            parameter.register_hook(self._produced)

    def _produced(self, _: torch.Tensor) -> None:
        self._last = time.perf_counter()

    def backward_ended(self) -> None:
        self.seconds += time.perf_counter() - self._last


def join(
    arguments: argparse.Namespace,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    ends: contextlib.ExitStack,
) -> tuple[Ranks, Callable[[], None]]:
    """The model and its optimizer, ready to train together; what is to be called after backward()."""
    if arguments.ddp is None:
        session = ends.enter_context(headrace.init())
        way = f"scheduled, {arguments.policy or 'by default'}"
        ranks = Ranks(
            session.rank, session.world_size, way, model, optimizer,
            lambda: session.waited_seconds, lambda: ranks.optimizer.synchronize(),
        )  # fmt: skip
        ranks.optimizer = headrace.torch.ScheduledOptimizer(
            optimizer, model, session, arguments.policy, resized=ranks.resized
        )
        ranks.begun = ranks.optimizer.iterations
        return ranks, lambda: None
    torch.distributed.init_process_group(arguments.ddp)
    ends.callback(torch.distributed.destroy_process_group)
    waiting = Waiting(model)
    return Ranks(
        torch.distributed.get_rank(), torch.distributed.get_world_size(),
        f"DDP, {arguments.ddp}", DistributedDataParallel(model), optimizer,
        lambda: waiting.seconds, torch.distributed.barrier,
    ), waiting.backward_ended  # fmt: skip


def fit(
    arguments: argparse.Namespace,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    batch_of: Callable[[torch.Generator], tuple[torch.Tensor, torch.Tensor]],
    loss_of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> None:
    """Trains, and tells on rank 0 what it cost."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    losses, seconds, waits = [], [], []
    with contextlib.ExitStack() as ends:
        ranks, after_backward = join(arguments, model, optimizer, ends)
        samples = torch.Generator().manual_seed(1000 * arguments.seed + ranks.rank)
        before, waited = time.perf_counter(), ranks.waited()
        for step in range(1 + ranks.begun, arguments.steps + 1):
            inputs, targets = batch_of(samples)
            ranks.optimizer.zero_grad()
            loss = loss_of(ranks.model(inputs), targets)
            loss.backward()
            after_backward()
            ranks.optimizer.step()
            losses.append(loss.item())
            now, waited_now = time.perf_counter(), ranks.waited()
            seconds.append(now - before)
            waits.append(waited_now - waited)
            before, waited = now, waited_now
            if ranks.rank == 0 and (step % arguments.every == 0 or step == 1):
                print(f"step {step:4}  loss {losses[-1]:.4f}", flush=True)
        ranks.finish()
        if ranks.rank == 0:
            report(arguments, ranks, model, losses, seconds, waits)


def report(
    arguments: argparse.Namespace,
    ranks: Ranks,
    model: torch.nn.Module,
    losses: list[float],
    seconds: list[float],
    waits: list[float],
) -> None:
    """One line for people, and all figures as JSON."""
    settled = slice(min(WARM_UP, len(seconds) - 1), None)
    iteration, wait = (statistics.median(v[settled]) for v in (seconds, waits))
    parameters = [p.detach() for p in model.parameters()]
    count = sum(p.numel() for p in parameters)
    print(
        f"{ranks.way}: {ranks.ranks} ranks, {count / 1e6:.2f} million parameters, an iteration "
        f"{iteration * 1e3:.1f} ms, of which {wait * 1e3:.1f} ms waiting, loss {losses[-1]:.4f}",
        flush=True,
    )
    if arguments.json is None:
        return
    flat = torch.cat([p.reshape(-1) for p in parameters])
    result = {
        "way": ranks.way,
        "policy": arguments.policy,
        "ddp": arguments.ddp,
        "ranks": ranks.ranks,
        "seed": arguments.seed,
        "torch": torch.__version__,
        "parameters": count,
        "hash": hashlib.sha256(flat.numpy().tobytes()).hexdigest(),
        "warm_up": WARM_UP,
        "iteration_s": seconds,
        "waited_s": waits,
        "losses": losses,
    }
    arguments.json.write_text(json.dumps(result))
