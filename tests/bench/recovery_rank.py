"""One rank of what tests/bench/recovery measures; a small model, trained at a given pace.

usage: recovery_rank.py headrace|elastic|turns|gloo SECONDS FOLDER STEPS

Appends a line to FOLDER/PID for each iteration that has ended: when (seconds of CLOCK_MONOTONIC), its number, and of
how many ranks it was. ``elastic`` is DDP by elastic_run(). ``gloo`` is DDP under torchrun, which saves a checkpoint
after each iteration and goes on from it. RECOVERY_STATE_MIB: the size of parameters and optimizer state (3), of which
RECOVERY_EMBEDDING_MIB (0) are an embedding's, which is one parameter.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

STATE_MIB = int(os.environ.get("RECOVERY_STATE_MIB", "3"))
EMBEDDING_MIB = int(os.environ.get("RECOVERY_EMBEDDING_MIB", "0"))
WIDTH = 256 if STATE_MIB < 64 else 1024
_NUMBER = 3 * 4  # bytes: AdamW keeps two numbers for each of a parameter
LAYERS = (STATE_MIB - EMBEDDING_MIB) * 2**20 // (_NUMBER * WIDTH**2)
ROWS = EMBEDDING_MIB * 2**20 // (_NUMBER * WIDTH)

# What `turns` compares: arguments of headrace.init(), and whether an iteration is a transaction.
TURNS: dict[str, tuple[dict[str, Any], bool]] = {
    "nothing": ({}, False),
    "reconnect": ({"reconnect": 30}, False),
    "shrink": ({"shrink": 1, "reconnect": 30}, False),
    "transaction": ({"shrink": 1, "reconnect": 30}, True),
}


def build() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    layers: list[torch.nn.Module] = [torch.nn.Embedding(ROWS, WIDTH)] if ROWS else []
    model = torch.nn.Sequential(*layers, *[torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])
    return model, torch.optim.AdamW(model.parameters(), 1e-3)


class Run:
    """The model, and what is written of its iterations."""

    def __init__(self, seconds: float, folder: Path, steps: int) -> None:
        torch.set_num_threads(1)
        self.model, self.adam = build()
        self.seconds = seconds
        self.folder = folder
        self.steps = steps
        self._record = open(folder / str(os.getpid()), "a", buffering=1, encoding="utf-8")  # noqa: SIM115

    def iterate(self, model: torch.nn.Module, step: Callable[[], None]) -> None:
        # Computing that takes no core from the others.
        time.sleep(self.seconds)
        inputs = torch.randint(ROWS, (8,)) if ROWS else torch.randn(8, WIDTH)
        model(inputs).square().mean().backward()
        step()

    def note(self, number: int, world: int) -> None:
        self._record.write(f"{time.monotonic():.6f} {number} {world}\n")


def with_headrace(run: Run) -> None:
    import headrace
    import headrace.torch

    session = headrace.init()
    optimizer = headrace.torch.ScheduledOptimizer(run.adam, run.model, session)

    def step() -> None:
        optimizer.step()
        optimizer.synchronize()  # so that the iteration has ended, as DDP's has

    for number in range(optimizer.iterations, run.steps):
        optimizer.zero_grad()
        run.iterate(run.model, step)
        run.note(number, session.world_size)
    optimizer.close()
    session.close()


def by_elastic_run(run: Run) -> None:
    import headrace.torch

    def wrap(module: torch.nn.Module, group: object) -> torch.nn.Module:
        return torch.nn.parallel.DistributedDataParallel(module, process_group=group)

    def train_step(state: headrace.torch.ElasticState) -> None:
        state.optimizer.zero_grad()
        run.iterate(state.model, state.optimizer.step)
        run.note(state.step, state.world_size)

    state = headrace.torch.ElasticState(run.model, run.adam, wrap)
    headrace.torch.elastic_run(train_step, state, run.steps)
    state.close()


def by_turns(run: Run) -> None:
    """A job of each of TURNS, of the same ranks, with a model of its own; they take turns at iterations."""
    import headrace
    import headrace.torch

    kinds = []
    for name, (settings, transaction) in TURNS.items():
        session = headrace.init(job=f"turns-{name}", **settings)
        model, adam = build()
        optimizer = headrace.torch.ScheduledOptimizer(adam, model, session, transaction=transaction)
        kinds.append((session, model, optimizer))
    for number in range(run.steps):
        session, model, optimizer = kinds[number % len(kinds)]
        optimizer.zero_grad()
        run.iterate(model, optimizer.step)
        optimizer.synchronize()
        run.note(number, session.world_size)
    for session, _, optimizer in kinds:
        optimizer.close()
        session.close()


def with_gloo(run: Run) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo")
    path = run.folder / "checkpoint"
    first = 0
    if path.exists():
        saved = torch.load(path)
        first = saved["number"] + 1
        run.model.load_state_dict(saved["model"])
        run.adam.load_state_dict(saved["adam"])
    model = torch.nn.parallel.DistributedDataParallel(run.model)
    for number in range(first, run.steps):
        run.adam.zero_grad()
        run.iterate(model, run.adam.step)
        if dist.get_rank() == 0:
            state = {
                "number": number,
                "model": run.model.state_dict(),
                "adam": run.adam.state_dict(),
            }
            torch.save(state, path.with_suffix(".new"))
            path.with_suffix(".new").rename(path)
        run.note(number, dist.get_world_size())
    dist.destroy_process_group()


def main() -> None:
    way, seconds, folder, steps = sys.argv[1:]
    warnings.simplefilter("ignore")
    run = Run(float(seconds), Path(folder), int(steps))
    if way == "gloo":
        with_gloo(run)
    elif way == "turns":
        by_turns(run)
    elif way == "elastic":
        by_elastic_run(run)
    else:
        with_headrace(run)


if __name__ == "__main__":
    main()
