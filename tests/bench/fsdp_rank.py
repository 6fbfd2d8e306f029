"""One rank of tests/bench/fsdp: trains the same model of fully_shard() in several ways by turns."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import headrace.torch
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

WAYS = ("gloo", "headrace", "accelerated")
WARM_UP = 4  # iterations of each turn that do not count: the first have no order to go by


class Block(torch.nn.Module):
    """What is gathered and freed as one: a transformer's feed-forward layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.wide = torch.nn.Linear(width, 4 * width)
        self.narrow = torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.narrow(torch.nn.functional.gelu(self.wide(self.norm(x))))


class Training:
    """A model, its optimizer, and iterations of it."""

    def __init__(self, way: str, arguments: argparse.Namespace, meshes: dict[str, DeviceMesh]) -> None:
        torch.manual_seed(1)  # the same on all ranks
        self.model = torch.nn.Sequential(*(Block(arguments.width) for _ in range(arguments.blocks)))
        self.bytes = sum(p.numel() * 4 for p in self.model.parameters())
        if way != "alone":
            mesh = meshes["gloo" if way == "gloo" else "headrace"]
            for block in self.model:
                fully_shard(block, mesh=mesh)
            fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-3)
        if way == "accelerated":
            self.optimizer = headrace.torch.accelerate(self.model, self.optimizer)
        self.inputs = torch.Generator().manual_seed(dist.get_rank())
        self.batch = (arguments.batch, arguments.width)

    def iterate(self) -> float:
        x = torch.randn(self.batch, generator=self.inputs)
        self.optimizer.zero_grad()
        loss = (self.model(x) - x.sin()).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def timed(count: int, iterate: Callable[[], float]) -> tuple[list[float], list[float]]:
    seconds, losses = [], []
    for _ in range(count):
        begin = time.monotonic()
        losses.append(iterate())
        seconds.append(time.monotonic() - begin)
    return seconds, losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ways", nargs="+", required=True)
    parser.add_argument("--width", type=int, required=True)
    parser.add_argument("--blocks", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--result", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("headrace")
    gloo = dist.new_group(backend="gloo")
    world = list(range(dist.get_world_size()))
    meshes = {
        "gloo": DeviceMesh.from_group(gloo, "cpu", mesh=torch.tensor(world)),
        "headrace": DeviceMesh.from_group(dist.group.WORLD, "cpu", mesh=torch.tensor(world)),
    }
    trainings = {way: Training(way, arguments, meshes) for way in arguments.ways}
    seconds: dict[str, list[float]] = {way: [] for way in trainings}
    turns: dict[str, list[float]] = {way: [] for way in trainings}
    losses: dict[str, list[float]] = {way: [] for way in trainings}
    ways = list(trainings)
    for number in range(arguments.rounds):
        first = number % len(ways)
        for way in ways[first:] + ways[:first]:
            dist.barrier()
            took, lost = timed(arguments.steps + WARM_UP, trainings[way].iterate)
            losses[way] += lost
            seconds[way] += took[WARM_UP:]
            turns[way].append(statistics.median(took[WARM_UP:]))
    result = {"bytes": next(iter(trainings.values())).bytes, "seconds": seconds, "turns": turns, "losses": losses}
    arguments.result.write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
