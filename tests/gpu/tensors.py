"""Two ranks that share tensors of torch's own allocator with the service, in place: sums are right on both,
posted by the host and in the order of a stream.

usage: tensors.py default|expandable: with torch's blocks of cudaMalloc, which go by legacy handles, or with
its expandable segments, which go by file descriptors.
"""

from __future__ import annotations

import os
import sys

from ranks import play_sharers

RANKS = 2
SIZES = (1000, 300_001, 8 << 20)  # elements: of torch's small blocks, of its large ones, over several
# Before torch 2.10 PYTORCH_CUDA_ALLOC_CONF, since then this; both are set.
EXPANDABLE = dict.fromkeys(("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"), "expandable_segments:True")


def run_rank() -> int:
    import headrace
    import torch
    from torch_device import REHEARSAL, device, synchronize

    rank = int(os.environ["RANK"])
    on = device()
    with headrace.init() as session:
        for count in SIZES:
            before = torch.arange(count, device=on, dtype=torch.float32) % 1021
            tensor = before + rank
            expected = before * RANKS + sum(range(RANKS))
            # On the CPU nothing is shared in place: the tensor goes by a copy.
            shared = tensor if REHEARSAL else session.share(tensor, f"tensor{count}")
            synchronize()
            session.all_reduce(shared)
            require(tensor, expected, count, "by the host")
            if REHEARSAL:
                continue
            tensor.copy_(before + rank)
            session.all_reduce(shared, stream=torch.cuda.current_stream())
            synchronize()
            require(tensor, expected, count, "in a stream's order")
    print(f"{len(SIZES)} sizes of torch's tensors, shared in place: right")
    return 0


def require(tensor: object, expected: object, count: int, how: str) -> None:
    if not bool((tensor == expected).all()):
        raise SystemExit(f"a tensor of {count} elements, posted {how}, is not the sum")


def main() -> int:
    if "RANK" in os.environ:
        return run_rank()
    play_sharers(__file__, RANKS, EXPANDABLE if sys.argv[1] == "expandable" else None)
    return 0


if __name__ == "__main__":
    sys.exit(main())
