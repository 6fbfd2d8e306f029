"""One rank of a backend of torch.distributed: every operation of it, in turn with the other backends.

usage: torch_rank.py FOLDER BACKEND RANK RANKS [shared]

With "shared", tensors lie in memory that the backend headrace shares with the service.
A command is an operation, a size in bytes and how often. The answer is as rounds.h has it, or "absent" and the
reason where the backend has no such operation.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

ONE_WAY = 20  # messages in a row

Memory = Callable[[], contextlib.AbstractContextManager]  # within which tensors are made


@dataclass
class Loop:
    """An operation on tensors of its own."""

    fill: Callable[[int], object]  # inputs become shares multiplied by a number, 0 or 1; outputs become zeros
    run: Callable[[], object]
    right: Callable[[], bool]  # whether outputs are what fill(1) and run() make of them


def share(rank: int, count: int) -> torch.Tensor:
    """What a rank brings: small whole numbers, of which every order of summing gives the same."""
    return ((torch.arange(count) % 7 + 1) * (rank + 1)).to(torch.float32)


def total(ranks: int, count: int) -> torch.Tensor:
    return share(ranks * (ranks + 1) // 2 - 1, count)


def shares(ranks: int, count: int) -> torch.Tensor:
    return torch.cat([share(rank, count) for rank in range(ranks)])


def all_reduce(rank: int, ranks: int, count: int) -> Loop:
    data, own = torch.empty(count), share(rank, count)
    return Loop(
        lambda times: data.copy_(own * times),
        lambda: dist.all_reduce(data),
        lambda: torch.equal(data, total(ranks, count)),
    )


def reduce(rank: int, ranks: int, count: int) -> Loop:
    data, own = torch.empty(count), share(rank, count)
    return Loop(
        lambda times: data.copy_(own * times),
        lambda: dist.reduce(data, 0),
        lambda: rank != 0 or torch.equal(data, total(ranks, count)),
    )


def broadcast(rank: int, ranks: int, count: int) -> Loop:
    data, own = torch.empty(count), share(rank, count)
    return Loop(
        lambda times: data.copy_(own * times),
        lambda: dist.broadcast(data, 0),
        lambda: torch.equal(data, share(0, count)),
    )


def all_gather_into_tensor(rank: int, ranks: int, count: int) -> Loop:
    whole, own = torch.empty(count), torch.empty(count // ranks)

    def fill(times: int) -> None:
        whole.zero_()
        own.copy_(share(rank, count // ranks) * times)

    return Loop(
        fill,
        lambda: dist.all_gather_into_tensor(whole, own),
        lambda: torch.equal(whole, shares(ranks, count // ranks)),
    )


def all_gather(rank: int, ranks: int, count: int) -> Loop:
    parts, own = [torch.empty(count // ranks) for _ in range(ranks)], torch.empty(count // ranks)

    def fill(times: int) -> None:
        for part in parts:
            part.zero_()
        own.copy_(share(rank, count // ranks) * times)

    return Loop(
        fill,
        lambda: dist.all_gather(parts, own),
        lambda: torch.equal(torch.cat(parts), shares(ranks, count // ranks)),
    )


def reduce_scatter_tensor(rank: int, ranks: int, count: int) -> Loop:
    whole, result = torch.empty(count), torch.empty(count // ranks)

    def fill(times: int) -> None:
        result.zero_()
        whole.copy_(share(rank, count) * times)

    return Loop(
        fill,
        lambda: dist.reduce_scatter_tensor(result, whole),
        lambda: torch.equal(result, total(ranks, count).view(ranks, -1)[rank]),
    )


def reduce_scatter(rank: int, ranks: int, count: int) -> Loop:
    whole, result = torch.empty(count), torch.empty(count // ranks)
    parts = [part.clone() for part in whole.view(ranks, -1)]

    def fill(times: int) -> None:
        result.zero_()
        for part, numbers in zip(parts, share(rank, count).view(ranks, -1), strict=True):
            part.copy_(numbers * times)

    return Loop(
        fill,
        lambda: dist.reduce_scatter(result, parts),
        lambda: torch.equal(result, total(ranks, count).view(ranks, -1)[rank]),
    )


def gather(rank: int, ranks: int, count: int) -> Loop:
    own = torch.empty(count // ranks)
    parts = [torch.empty(count // ranks) for _ in range(ranks)] if rank == 0 else None

    def fill(times: int) -> None:
        for part in parts or []:
            part.zero_()
        own.copy_(share(rank, count // ranks) * times)

    return Loop(
        fill,
        lambda: dist.gather(own, parts, dst=0),
        lambda: rank != 0 or torch.equal(torch.cat(parts or []), shares(ranks, count // ranks)),
    )


def scatter(rank: int, ranks: int, count: int) -> Loop:
    result = torch.empty(count // ranks)
    parts = [torch.empty(count // ranks) for _ in range(ranks)] if rank == 0 else None

    def fill(times: int) -> None:
        result.zero_()
        for number, part in enumerate(parts or []):
            part.copy_(share(number, count // ranks) * times)

    return Loop(
        fill,
        lambda: dist.scatter(result, parts, src=0),
        lambda: torch.equal(result, share(rank, count // ranks)),
    )


def all_to_all_single(rank: int, ranks: int, count: int) -> Loop:
    whole, result = torch.empty(count), torch.empty(count)

    def sent(source: int, target: int) -> torch.Tensor:
        return share(source * ranks + target, count // ranks)

    def fill(times: int) -> None:
        result.zero_()
        whole.copy_(torch.cat([sent(rank, target) for target in range(ranks)]) * times)

    return Loop(
        fill,
        lambda: dist.all_to_all_single(result, whole),
        lambda: torch.equal(result, torch.cat([sent(source, rank) for source in range(ranks)])),
    )


def between_neighbours(
    rank: int, count: int, run: Callable[[torch.Tensor, torch.Tensor], None], returns: bool
) -> Loop:
    """``run(data, back)`` sends the data of even ranks to ``back`` of their neighbours, and where it ``returns`` on to
    their own."""
    data, back, first = torch.empty(count), torch.empty(count), rank % 2 == 0
    expected = share(rank if first else rank - 1, count)
    arrives = returns or not first

    def fill(times: int) -> None:
        back.zero_()
        data.copy_(share(rank, count) * times)

    return Loop(fill, lambda: run(data, back), lambda: not arrives or torch.equal(back, expected))


def send_recv(rank: int, ranks: int, count: int) -> Loop:
    """There and back between neighbours: what an even rank has sent it gets again."""

    def run(data: torch.Tensor, back: torch.Tensor) -> None:
        if rank % 2 == 0:
            dist.send(data, rank + 1)
            dist.recv(back, rank + 1)
        else:
            dist.recv(back, rank - 1)
            dist.send(back, rank - 1)

    return between_neighbours(rank, count, run, returns=True)


def send_one_way(rank: int, ranks: int, count: int) -> Loop:
    """Each even rank sends to its neighbour again and again, and waits for the end of each send."""

    def run(data: torch.Tensor, back: torch.Tensor) -> None:
        for _ in range(ONE_WAY):
            if rank % 2 == 0:
                dist.send(data, rank + 1)
            else:
                dist.recv(back, rank - 1)

    return between_neighbours(rank, count, run, returns=False)


OPERATIONS = {
    each.__name__: each
    for each in (all_reduce, broadcast, all_gather_into_tensor, all_gather, reduce_scatter_tensor, reduce_scatter,
                 reduce, gather, scatter, all_to_all_single, send_recv, send_one_way)
}  # fmt: skip


def checked(loop: Loop) -> str | None:
    """One operation outside the measurement, with every element checked."""
    loop.fill(1)
    loop.run()
    return None if loop.right() else "a result is wrong"


def measure(name: str, size: int, repetitions: int, rank: int, ranks: int, memory: Memory) -> str:
    # At least an element for each rank, the same number for all.
    with memory():
        loop = OPERATIONS[name](rank, ranks, max(1, size // 4 // ranks) * ranks)
    try:
        failure = checked(loop)
    except Exception as error:  # noqa: BLE001 - backends have no common error for what they lack
        return f"absent {type(error).__name__}: {str(error).strip().splitlines()[0]}"
    loop.fill(0)
    loop.run()
    times = [time.monotonic_ns()]
    for _ in range(repetitions):
        loop.run()
        times.append(time.monotonic_ns())
    failure = failure or checked(loop)
    return f"error {failure}" if failure else " ".join(["ok", *map(str, times)])


def start(backend: str, folder: Path, rank: int, ranks: int) -> None:
    if backend == "headrace":
        import headrace.torch  # noqa: F401 - registers the backend
    elif backend == "commux":
        import commux

        commux.register()
    store = dist.FileStore(str(folder / "store"), ranks)
    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks)


def main() -> None:
    folder, backend, rank, ranks = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(1)
    start(backend, folder, rank, ranks)
    memory: Memory = contextlib.nullcontext
    if sys.argv[5:] == ["shared"]:
        import headrace.torch

        memory = headrace.torch.shared_memory
    with open(folder / f"command.{rank}") as commands, open(folder / f"result.{rank}", "w") as results:
        for command in commands:
            name, size, repetitions = command.split()
            print(measure(name, int(size), int(repetitions), rank, ranks, memory), file=results, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
