"""Two ranks whose collectives of torch.distributed are the backend headrace's, of tensors on their GPUs: each
gives what it should, and DDP ends with the bits that it ends with over NCCL (with a GPU each) or gloo.

usage: backend.py default|expandable: with torch's blocks of cudaMalloc, which go by legacy handles, or with
its expandable segments, which go by file descriptors.
"""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ranks import gpus_count, play_sharers
from support.ports import free_port
from tensors import EXPANDABLE

if TYPE_CHECKING:
    import torch

RANKS = 2
COUNTS = (12, 300_002)  # elements: of torch's small blocks, of its large ones
STEPS = 5
Case = tuple[str, "torch.Tensor", "torch.Tensor"]  # what it is, what came of it, what should have


def base(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """What a rank has at first; sums of it are exact in each type."""
    import torch

    return (torch.arange(count) % 41).mul(rank + 1).to(dtype)


def reductions(rank: int, count: int, on: torch.device) -> Iterator[Case]:
    import torch
    import torch.distributed as dist

    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.int8):
        own, whole = base(rank, count, dtype).to(on), base(RANKS, count, dtype)
        dist.all_reduce(own)
        yield f"all_reduce of {dtype}", own, whole  # (1 + 2) times the same, as rank 2 would have it
    own = base(rank, 2 * count, torch.float32).to(on)[::2]
    dist.all_reduce(own, op=dist.ReduceOp.MAX)
    yield "all_reduce of every other element", own, base(1, 2 * count, torch.float32)[::2]
    own = base(rank, count, torch.float32).to(on)
    dist.reduce(own, 1)
    yield "reduce", own, base(2 * rank, count, torch.float32)
    whole = base(2, RANKS * count, torch.float32)
    output, inputs = torch.zeros(count, device=on), base(rank, RANKS * count, torch.float32).to(on)
    dist.reduce_scatter(output, list(inputs.split(count)))
    yield "reduce_scatter", output, whole.split(count)[rank]
    yield "what was scattered", inputs, base(rank, RANKS * count, torch.float32)
    sizes = [count - 1, count + 1]
    output = torch.zeros(sizes[rank], device=on)
    dist.reduce_scatter(output, list(inputs.split(sizes)))
    yield "reduce_scatter of unequal parts", output, whole.split(sizes)[rank]
    yield "what was scattered in unequal parts", inputs, base(rank, RANKS * count, torch.float32)


def copies(rank: int, count: int, on: torch.device) -> Iterator[Case]:
    import torch
    import torch.distributed as dist

    def own(length: int) -> torch.Tensor:
        return base(rank, length, torch.float32).to(on)

    def of(other: int, length: int) -> torch.Tensor:
        return base(other, length, torch.float32)

    tensor = own(count)
    dist.broadcast(tensor, 1)
    yield "broadcast", tensor, of(1, count)
    parts = [torch.zeros(count, device=on) for _ in range(RANKS)]
    dist.all_gather(parts, own(count))
    yield "all_gather", torch.cat(parts), torch.cat([of(0, count), of(1, count)])
    whole = torch.zeros(RANKS * count, device=on)
    dist.all_gather_into_tensor(whole, own(count))
    yield "all_gather into one tensor", whole, torch.cat([of(0, count), of(1, count)])
    parts = [torch.zeros(count + other, device=on) for other in range(RANKS)]
    dist.all_gather(parts, own(count + rank))
    yield "all_gather of unequal parts", torch.cat(parts), torch.cat([of(0, count), of(1, count + 1)])
    sizes = ([count - 1, count + 1], [count + 2, count - 2])  # by sender
    output = torch.zeros(sum(sent[rank] for sent in sizes), device=on)
    dist.all_to_all_single(output, own(sum(sizes[rank])), [sent[rank] for sent in sizes], sizes[rank])
    wanted = [of(other, sum(sizes[other])).split(sizes[other])[rank] for other in range(RANKS)]
    yield "all_to_all of unequal parts", output, torch.cat(wanted)
    parts = [torch.zeros(count, device=on) for _ in range(RANKS)] if rank == 0 else None
    dist.gather(own(count), parts, 0)
    if parts:
        yield "gather", torch.cat(parts), torch.cat([of(0, count), of(1, count)])
    output = torch.zeros(count, device=on)
    dist.scatter(output, list(own(RANKS * count).split(count)) if rank == 0 else None, 0)
    yield "scatter", output, of(0, RANKS * count).split(count)[rank]
    tensor = own(count)
    if rank == 0:
        dist.send(tensor, 1, tag=3)
    else:
        dist.recv(tensor, None, tag=3)
    yield "send and receive", tensor, of(0, count)
    works = [dist.all_reduce(own(count), async_op=True) for _ in range(3)]
    for work in works:
        yield "a future", work.get_future().wait()[0], of(2, count)
    dist.barrier()


def trained(on: torch.device, group: object) -> list[torch.Tensor]:
    """The parameters after some steps of DDP over that group."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 8)]
    model = torch.nn.Sequential(*layers).to(on)
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.02, process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for step in range(STEPS):
        chance = torch.Generator().manual_seed(RANKS * step + dist.get_rank())
        optimizer.zero_grad()
        ddp(torch.randn(16, 64, generator=chance).to(on)).square().mean().backward()
        optimizer.step()
    return [parameter.detach().cpu() for parameter in model.parameters()]


@contextlib.contextmanager
def gpu_in_use(is_rehearsal: bool) -> Iterator[None]:
    """torch's own; in a rehearsal torch computes on the CPU, and the double is taken for its GPU."""
    import headrace.torch  # noqa: F401 - registers the backend
    import torch.distributed as dist

    if not is_rehearsal:
        yield
        dist.barrier()
        return
    from support.doubled_gpu import DoubledGpu, as_torchs_gpu

    with as_torchs_gpu(DoubledGpu()):
        yield
        dist.barrier()
        dist.distributed_c10d._get_default_group().poster.gpus.clear()


def run_rank() -> int:
    import headrace.torch  # noqa: F401 - registers the backend
    import torch
    import torch.distributed as dist
    from torch_device import REHEARSAL, device, synchronize

    rank, on, checked = int(os.environ["RANK"]), device(), 0
    dist.init_process_group("headrace")
    other = "nccl" if os.environ["BACKEND_BESIDE"] == "nccl" else "gloo"
    beside = dist.new_group(backend=other)
    told: list[warnings.WarningMessage]
    with gpu_in_use(REHEARSAL), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for count in COUNTS:
            for cases in (reductions, copies):
                for name, found, expected in cases(rank, count, on):
                    synchronize()
                    if not torch.equal(found.cpu(), expected):
                        raise SystemExit(f"{name} of {count} elements gives {found}, not {expected}")
                    checked += 1
        ours = trained(on, None)
        synchronize()
    theirs = trained(on, beside)
    if not all(torch.equal(mine, its) for mine, its in zip(ours, theirs, strict=True)):
        raise SystemExit(f"DDP ends with other bits than over {other}")
    copied = [str(each.message) for each in told if str(each.message).startswith("headrace: ")]
    if copied and not REHEARSAL:  # where tensors are the CPU's, none can be shared
        raise SystemExit("\n".join(copied))
    print(f"{checked} results of collectives: right; DDP: the bits of {other}")
    dist.barrier()
    return 0


def main() -> int:
    if "RANK" in os.environ:
        return run_rank()
    more = EXPANDABLE if sys.argv[1] == "expandable" else {}
    beside = "nccl" if gpus_count() >= RANKS and "GPU_REHEARSAL" not in os.environ else "gloo"
    meeting = {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "GLOO_SOCKET_IFNAME": "lo",
        "LOCAL_WORLD_SIZE": str(RANKS), "BACKEND_BESIDE": beside,
    }  # fmt: skip
    play_sharers(__file__, RANKS, {**more, **meeting})
    return 0


if __name__ == "__main__":
    sys.exit(main())
