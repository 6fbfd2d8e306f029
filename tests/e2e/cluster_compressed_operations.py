"""One rank of a job whose all_reduces cross between nodes encoded, as torchrun starts it.

usage: cluster_compressed_operations.py FOLDER   leaves FOLDER/sums.RANK; fails if a sum is wrong
"""

from __future__ import annotations

import os
import sys

import headrace
import numpy

COUNT = 100_000
# The least and the most that an element of a sum may err.
ERRORS = {
    "none": (0, 1e-6), "bf16": (1e-3, 0.1), "fp16": (1e-4, 0.02), "int8-stochastic": (1e-2, 0.3),
    "int4-stochastic": (0.1, 4), "lossless": (0, 1e-6),
}  # fmt: skip


def values(rank: int) -> numpy.ndarray:
    return numpy.random.default_rng(rank).standard_normal(COUNT, numpy.float32)


def main() -> None:
    sums = {}
    with headrace.init() as session:
        exact = sum(values(rank).astype(numpy.float64) for rank in range(session.world_size))
        for codec, (least, most) in ERRORS.items():
            headrace.compress_all_reduces(session, codec)
            sums[codec] = values(session.rank)
            session.all_reduce(sums[codec])
            error = float(numpy.abs(sums[codec] - exact).max())
            assert least <= error <= most, f"{codec} errs by {error}"
        largest = values(session.rank)
        session.all_reduce(largest, op="max")
        assert (largest == numpy.max([values(rank) for rank in range(session.world_size)], axis=0)).all()
    assert sums["lossless"].tobytes() == sums["none"].tobytes()
    numpy.concatenate(list(sums.values())).tofile(os.path.join(sys.argv[1], f"sums.{session.rank}"))


if __name__ == "__main__":
    main()
