"""One rank of the jobs of faults.py, with a tensor on its GPU.

usage: fault_rank.py ROLE; RANK, WORLD_SIZE, HEADRACE_JOB and the rest by environment, GPU_ORDINAL for the
GPU. Prints lines, their parts divided by tabs, and goes on when it reads one.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable

COUNT = 1 << 18  # elements of a tensor
CHURNED_MIB = 64


def say(*parts: object) -> None:
    print(*(str(part).replace("\n", " ").replace("\t", " ") for part in parts), sep="\t", flush=True)


class TorchTensor:
    """A tensor of torch's allocator that a session shares in place; on the CPU of a rehearsal by a copy."""

    def __init__(self, session: object, rank: int, world: int) -> None:
        import torch
        from torch_device import REHEARSAL, device, synchronize

        self.session, self.on = session, device()
        self.own = torch.arange(COUNT, device=self.on, dtype=torch.float32) % 1021
        self.tensor = self.own + rank
        self.expected = self.own * world + sum(range(world))
        self.shared = self.tensor if REHEARSAL else session.share(self.tensor, "tensor")
        self._rank, self._synchronize = rank, synchronize
        synchronize()

    def sum(self) -> None:
        """Raises SystemExit where it is not the sum."""
        import torch

        self.tensor.copy_(self.own + self._rank)
        self._synchronize()
        self.session.all_reduce(self.shared)
        if not torch.equal(self.tensor, self.expected):
            raise SystemExit("not the sum")

    def require_usable(self) -> None:
        """Torch can still compute with it."""
        self.tensor.copy_(self.own)
        if float((self.tensor - self.own).abs().max()) != 0.0:
            raise SystemExit("the tensor does not have what was written")


def wait_for_a_lost_one(session: object, rank: int, in_stream: bool) -> None:
    """Rank 1 never posts its second sum. Rank 0 waits for it on the host, or has its stream wait."""
    import headrace
    import torch
    from torch_device import REHEARSAL

    tensor = TorchTensor(session, rank, session.world_size)
    tensor.sum()
    say("ready")
    if rank == 1:
        sys.stdin.readline()
        return
    try:
        if in_stream and not REHEARSAL:
            stream = torch.cuda.current_stream()
            operation = session.all_reduce(tensor.shared, stream=stream, async_op=True)
            operation.wait_on(stream)
            say("posted")
            torch.cuda.synchronize()
        else:
            operation = session.all_reduce(tensor.shared, async_op=True)
            say("posted")
        operation.wait()
    except headrace.Error as error:
        say("error", time.monotonic(), type(error).__name__, error.code, error)
    else:
        raise SystemExit("the sum ended well without rank 1")
    tensor.require_usable()
    say("usable")


def sum_until_told(session: object, rank: int) -> None:
    """Sums, and compares each; both ranks end after the same one, some time after a line has come to each."""
    import torch

    tensor, told = TorchTensor(session, rank, session.world_size), threading.Event()
    threading.Thread(target=lambda: sys.stdin.readline() and told.set(), daemon=True).start()
    sums = 0
    while True:
        tensor.sum()
        sums += 1
        if sums == 1:
            say("summing")
        flag = torch.tensor([float(told.is_set())])
        session.all_reduce(flag)
        if flag.item() == session.world_size:
            break
    say("summed", sums)


def break_context(session: object, rank: int) -> None:
    """Rank 1 has a kernel of its own fail, after which CUDA refuses everything in its process."""
    import headrace
    import torch
    from torch_device import REHEARSAL

    tensor = TorchTensor(session, rank, session.world_size)
    tensor.sum()
    say("ready")
    if rank == 0:
        try:
            session.all_reduce(tensor.shared)
        except headrace.Error as error:
            say("error", time.monotonic(), type(error).__name__, error.code, error)
            tensor.require_usable()
            return
        raise SystemExit("the sum ended well without rank 1")
    sys.stdin.readline()
    if REHEARSAL:
        say("broken", time.monotonic(), "the CPU has no context to break")
        raise RuntimeError("in the place of a broken context")
    try:
        bad = torch.zeros(4, device=tensor.on)[torch.full((1,), 1 << 20, device=tensor.on)]
        torch.cuda.synchronize()
    except RuntimeError as error:  # torch.AcceleratorError since torch 2.9
        say("broken", time.monotonic(), error)
        raise  # as a training would end, with whatever interpreter and torch do at exit
    raise SystemExit(f"the index was taken: {bad}")


def post_in_a_capture(session: object, rank: int) -> None:
    import headrace
    import torch

    tensor = TorchTensor(session, rank, session.world_size)
    tensor.sum()
    other, graph, refused = torch.zeros(8, device=tensor.on), torch.cuda.CUDAGraph(), ""
    try:
        with torch.cuda.graph(graph):
            other += 1
            try:
                session.all_reduce(tensor.shared, stream=torch.cuda.current_stream(), async_op=True)
            except headrace.Error as error:
                refused = f"{type(error).__name__} ({error.code}): {error}"
    except RuntimeError as error:
        raise SystemExit(f"the capture is spoilt by a post that is answered {refused!r}: {error}") from None
    if "captured" not in refused:
        raise SystemExit(f"a post within a capture is not refused by name: {refused or 'it was taken'}")
    graph.replay()
    torch.cuda.synchronize()
    if other.tolist() != [1.0] * 8:
        raise SystemExit(f"the captured graph gives {other.tolist()}")
    tensor.sum()
    say("refused", refused)


def share_much(session: object, rank: int) -> None:
    """Memory of CUDA's driver, without torch, whose start would take longer than all else."""
    from gpu_memory import LegacyMemory

    count = (CHURNED_MIB << 20) // ctypes.sizeof(ctypes.c_float)
    memory = LegacyMemory(int(os.environ["GPU_ORDINAL"]), count, 0)
    memory.write((ctypes.c_float * count)())
    session.all_reduce(session.share(memory, "much"))
    say("summed")
    sys.stdin.readline()


ROLES: dict[str, Callable[[object, int], None]] = {
    "host": lambda session, rank: wait_for_a_lost_one(session, rank, False),
    "stream": lambda session, rank: wait_for_a_lost_one(session, rank, True),
    "sum": sum_until_told,
    "break": break_context,
    "capture": post_in_a_capture,
    "much": share_much,
}


def main() -> int:
    import headrace

    with headrace.init() as session:
        ROLES[sys.argv[1]](session, int(os.environ["RANK"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
