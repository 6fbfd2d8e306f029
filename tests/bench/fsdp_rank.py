"""One rank of tests/bench/fsdp: trains the same model of fully_shard() in several ways by turns."""

from __future__ import annotations

import argparse

import headrace.torch
import torch
import torch.distributed as dist
import wrapped_rank
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard


class Block(torch.nn.Module):
    """What is gathered and freed as one: a transformer's feed-forward layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.wide = torch.nn.Linear(width, 4 * width)
        self.narrow = torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.narrow(torch.nn.functional.gelu(self.wide(self.norm(x))))


def training(way: str, arguments: argparse.Namespace, meshes: dict[str, DeviceMesh]) -> wrapped_rank.Training:
    torch.manual_seed(1)  # the same on all ranks
    model = torch.nn.Sequential(*(Block(arguments.width) for _ in range(arguments.blocks)))
    size = sum(p.numel() * 4 for p in model.parameters())  # before each rank has its part
    if way != "alone":
        mesh = meshes["gloo" if way == "gloo" else "headrace"]
        for block in model:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    if way == "accelerated":
        optimizer = headrace.torch.accelerate(model, optimizer)
    return wrapped_rank.Training(model, optimizer, (arguments.batch, arguments.width), size)


def main() -> None:
    arguments = wrapped_rank.parser("width", "blocks", "batch").parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("headrace")
    gloo = dist.new_group(backend="gloo")
    world = list(range(dist.get_world_size()))
    meshes = {
        "gloo": DeviceMesh.from_group(gloo, "cpu", mesh=torch.tensor(world)),
        "headrace": DeviceMesh.from_group(dist.group.WORLD, "cpu", mesh=torch.tensor(world)),
    }
    wrapped_rank.run_by_turns(arguments, {way: training(way, arguments, meshes) for way in arguments.ways})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
