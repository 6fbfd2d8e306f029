"""Two ranks whose memory is cuMemAlloc's, imported by legacy handles: sums of several sizes and offsets
are right on both. No torch takes part, so that what fails here is ours."""

from __future__ import annotations

import ctypes
import os
import sys

from ranks import play_sharers

RANKS = 2
# Elements and bytes before them: within one of CUDA's blocks of 2 MiB, over several, and not at a block's
# beginning, which a handle cannot name.
CASES = ((1000, 0), (1000, 512), (300_001, 4096), (1 << 20, 1 << 20))


def value_of(rank: int, index: int) -> int:
    """Small integers, whose sum is exact."""
    return (index * 7 + rank * 13) % 1021


def run_rank() -> int:
    import headrace
    from gpu_memory import LegacyMemory

    rank = int(os.environ["RANK"])
    ordinal = int(os.environ["GPU_ORDINAL"])
    with headrace.init() as session:
        for count, offset in CASES:
            memory = LegacyMemory(ordinal, count, offset)
            memory.write((ctypes.c_float * count)(*(value_of(rank, i) for i in range(count))))
            session.all_reduce(session.share(memory, f"legacy{count}+{offset}"))
            for index, value in enumerate(memory.read()):
                expected = sum(value_of(each, index) for each in range(RANKS))
                if value != expected:
                    raise SystemExit(f"element {index} of {count} at {offset} is {value}, not {expected}")
    print(f"{len(CASES)} sums in legacy memory: right")
    return 0


def main() -> int:
    if "RANK" in os.environ:
        return run_rank()
    play_sharers(__file__, RANKS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
