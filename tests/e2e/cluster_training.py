"""One rank of a training by DistributedDataParallel with Headrace's hook, as torchrun starts it.

usage: cluster_training.py FOLDER     leaves FOLDER/parameters.RANK
"""

from __future__ import annotations

import os
import sys

import headrace
import headrace.torch
import torch
import torch.distributed as dist

STEPS = 8


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)  # DDP gives everybody rank 0's parameters
    model = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(
            torch.nn.Linear(16, 300), torch.nn.ReLU(), torch.nn.Linear(300, 300), torch.nn.ReLU(),
            torch.nn.Linear(300, 4),
        )
    )  # fmt: skip
    # Nothing is said about job, ranks and where the nodes meet: torchrun has set it.
    with headrace.init() as session:
        assert (session.rank, session.world_size) == (rank, world_size)
        model.register_comm_hook(session, headrace.torch.ddp_hook)
        random = torch.Generator().manual_seed(1)
        inputs = torch.randn(STEPS, world_size, 8, 16, generator=random)
        targets = torch.randint(0, 4, (STEPS, world_size, 8), generator=random)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        for step in range(STEPS):
            optimizer.zero_grad()
            output = model(inputs[step, rank])
            torch.nn.functional.cross_entropy(output, targets[step, rank]).backward()
            optimizer.step()
        assert session.counters()["posted"] >= STEPS
    flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    flat.numpy().tofile(os.path.join(sys.argv[1], f"parameters.{rank}"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
