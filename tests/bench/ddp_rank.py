"""One rank of tests/bench/ddp: trains the same model of DistributedDataParallel in several ways by turns."""

from __future__ import annotations

import argparse

import headrace.torch
import torch
import torch.distributed as dist
import wrapped_rank
from torch.nn.parallel import DistributedDataParallel


def training(way: str, arguments: argparse.Namespace, group: dist.ProcessGroup) -> wrapped_rank.Training:
    torch.manual_seed(1)  # the same on all ranks
    width = arguments.width
    layers = (torch.nn.Linear(width, width) for _ in range(arguments.layers))
    model = torch.nn.Sequential(*(each for layer in layers for each in (layer, torch.nn.Tanh())))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    if way != "alone":
        model = DistributedDataParallel(model, process_group=group, bucket_cap_mb=arguments.cap / 1024)
    if way == "accelerated":
        optimizer = headrace.torch.accelerate(model, optimizer)
    size = sum(p.numel() * 4 for p in model.parameters())
    return wrapped_rank.Training(model, optimizer, (arguments.batch, width), size)


def group_of(way: str) -> dist.ProcessGroup:
    if way == "gloo":
        return dist.new_group(backend="gloo")
    return dist.new_group(pg_options=headrace.torch.GroupOptions(plan_ddp=way == "planned"))


def main() -> None:
    arguments = wrapped_rank.parser("width", "layers", "batch", "cap").parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("headrace")
    groups = {way: group_of(way) for way in arguments.ways}
    trainings = {way: training(way, arguments, group) for way, group in groups.items()}
    wrapped_rank.run_by_turns(arguments, trainings)
    if "planned" in groups and (step := groups["planned"]._ddp.step.name) != "PLANNED":
        raise SystemExit(f"DDP's buckets did not get a plan ({step}): the model needs more than 1 MiB")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
