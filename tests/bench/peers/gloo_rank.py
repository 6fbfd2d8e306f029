"""Peer: one rank of gloo through PyTorch, all_reduce in place. Serves the driver like rounds.h.

usage: gloo_rank.py FOLDER RANK RANKS
"""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist


def checked_all_reduce(count: int, rank: int, ranks: int) -> str | None:
    """One all-reduce outside the measurement, with every element checked."""
    elements = (torch.arange(count) % 7 + 1).to(torch.float32)
    data = elements * (rank + 1)
    dist.all_reduce(data)
    right = torch.equal(data, elements * (ranks * (ranks + 1) // 2))
    return None if right else "a sum is wrong"


def measure(size: int, repetitions: int, rank: int, ranks: int) -> str:
    count = size // 4
    failure = checked_all_reduce(count, rank, ranks)
    data = torch.zeros(count, dtype=torch.float32)
    dist.all_reduce(data)
    times = [time.monotonic_ns()]
    for _ in range(repetitions):
        dist.all_reduce(data)
        times.append(time.monotonic_ns())
    failure = failure or checked_all_reduce(count, rank, ranks)
    return f"error {failure}" if failure else " ".join(["ok", *map(str, times)])


def main() -> None:
    folder, rank, ranks = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    with (
        open(folder / f"command.{rank}") as commands,
        open(folder / f"result.{rank}", "w") as results,
    ):
        for command in commands:
            size, repetitions = map(int, command.split())
            print(measure(size, repetitions, rank, ranks), file=results, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
