"""What the ranks of tests/bench/ddp and tests/bench/fsdp have in common: the ways, by turns."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

WARM_UP = 4  # iterations of each turn that do not count


class Training:
    """A model, its optimizer, and iterations of it. ``batch``: shape of the inputs, which each rank draws by itself;
    ``size``: bytes of all parameters.
    """

    def __init__(self, model: torch.nn.Module, optimizer: Any, batch: tuple[int, int], size: int) -> None:
        self.model = model
        self.bytes = size
        self.optimizer = optimizer
        self.batch = batch
        self.inputs = torch.Generator().manual_seed(dist.get_rank())

    def iterate(self) -> float:
        """One iteration; returns its loss."""
        x = torch.randn(self.batch, generator=self.inputs)
        self.optimizer.zero_grad()
        loss = (self.model(x) - x.sin()).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def parser(*sizes: str) -> argparse.ArgumentParser:
    """Of the options that every rank gets, and of numbers of the model."""
    made = argparse.ArgumentParser()
    made.add_argument("--ways", nargs="+", required=True)
    for name in (*sizes, "steps", "rounds"):
        made.add_argument(f"--{name}", type=int, required=True)
    made.add_argument("--result", type=Path, required=True)
    return made


def _timed(count: int, iterate: Callable[[], float]) -> tuple[list[float], list[float]]:
    seconds, losses = [], []
    for _ in range(count):
        begin = time.monotonic()
        losses.append(iterate())
        seconds.append(time.monotonic() - begin)
    return seconds, losses


def run_by_turns(arguments: argparse.Namespace, trainings: dict[str, Training]) -> None:
    """Trains in each way, and writes what it took."""
    seconds: dict[str, list[float]] = {way: [] for way in trainings}
    turns: dict[str, list[float]] = {way: [] for way in trainings}
    losses: dict[str, list[float]] = {way: [] for way in trainings}
    ways = list(trainings)
    for number in range(arguments.rounds):
        first = number % len(ways)
        for way in ways[first:] + ways[:first]:
            dist.barrier()
            # The first have no order to go by: a plan is made once several were alike.
            warm_up = WARM_UP if number else 3 * WARM_UP
            took, lost = _timed(arguments.steps + warm_up, trainings[way].iterate)
            losses[way] += lost
            seconds[way] += took[warm_up:]
            turns[way].append(statistics.median(took[warm_up:]))
    result = {"bytes": next(iter(trainings.values())).bytes, "seconds": seconds, "turns": turns, "losses": losses}
    arguments.result.write_text(json.dumps(result))
    dist.barrier()
