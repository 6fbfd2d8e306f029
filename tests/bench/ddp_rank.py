"""One rank of tests/bench/ddp: trains the same model of DistributedDataParallel in several ways by turns."""

from __future__ import annotations

import argparse

import headrace.torch
import torch
import torch.distributed as dist
import wrapped_rank
from torch.nn.parallel import DistributedDataParallel


class Training:
    """A model, its optimizer, and iterations of it."""

    def __init__(self, way: str, arguments: argparse.Namespace, group: dist.ProcessGroup) -> None:
        torch.manual_seed(1)  # the same on all ranks
        width = arguments.width
        layers = (torch.nn.Linear(width, width) for _ in range(arguments.layers))
        self.model = torch.nn.Sequential(*(each for layer in layers for each in (layer, torch.nn.Tanh())))
        self.bytes = sum(p.numel() * 4 for p in self.model.parameters())
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1, momentum=0.9)
        if way != "alone":
            self.model = DistributedDataParallel(
                self.model, process_group=group, bucket_cap_mb=arguments.cap / 1024
            )
        if way == "accelerated":
            self.optimizer = headrace.torch.accelerate(self.model, self.optimizer)
        self.inputs = torch.Generator().manual_seed(dist.get_rank())
        self.batch = (arguments.batch, width)

    def iterate(self) -> float:
        x = torch.randn(self.batch, generator=self.inputs)
        self.optimizer.zero_grad()
        loss = (self.model(x) - x.sin()).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def group_of(way: str) -> dist.ProcessGroup:
    if way == "gloo":
        return dist.new_group(backend="gloo")
    return dist.new_group(pg_options=headrace.torch.GroupOptions(plan_ddp=way == "planned"))


def main() -> None:
    arguments = wrapped_rank.parser("width", "layers", "batch", "cap").parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("headrace")
    groups = {way: group_of(way) for way in arguments.ways}
    wrapped_rank.run_by_turns(
        arguments, {way: Training(way, arguments, group) for way, group in groups.items()}
    )
    if "planned" in groups and (step := groups["planned"]._ddp.step.name) != "PLANNED":
        raise SystemExit(f"DDP's buckets did not get a plan ({step}): the model needs more than 1 MiB")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
