"""One rank of several nodes, as torchrun starts it: DDP over the backend, with and without planned buckets.

usage: cluster_ddp.py STEP     STEP: how far the group comes towards a plan, as headrace.torch has it
"""

from __future__ import annotations

import sys

import headrace.torch
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS = 11


def train(group: dist.ProcessGroup, rank: int, dtype: torch.dtype) -> torch.Tensor:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(14)]).to(dtype)
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.2, process_group=group)
    optimizer = torch.optim.SGD(ddp.parameters(), 0.1, momentum=0.9)
    random = torch.Generator().manual_seed(rank)
    for _ in range(STEPS):
        optimizer.zero_grad()
        ddp(torch.randn(4, 256, generator=random).to(dtype)).pow(2).mean().backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("headrace")
    rank = dist.get_rank()
    for dtype in (torch.float32, torch.bfloat16):
        groups = [
            dist.new_group(pg_options=headrace.torch.GroupOptions(plan_ddp=plans)) for plans in (False, True)
        ]
        plain, planned = (train(group, rank, dtype) for group in groups)
        assert groups[0]._ddp is None
        assert groups[1]._ddp.step.name == sys.argv[1], groups[1]._ddp.step
        assert torch.equal(plain, planned), f"{(plain != planned).sum()} parameters differ"
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
