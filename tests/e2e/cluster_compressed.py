"""One rank of a job whose gradients cross between nodes encoded, as torchrun starts it.

usage: cluster_compressed.py FOLDER [CODEC [served]]   leaves FOLDER/sums.RANK; fails if a sum or a residual is wrong

With "served" servers keep a part of what encodings leave out.
"""

from __future__ import annotations

import os
import sys
import time

import headrace
import numpy

EXACT_IN_A_ROW = 5
ITERATIONS = 24
PATIENCE_S = 60.0
WEIGHTS = (64, 128)  # 32 KiB: encoded
BIASES = (8192,)  # as large, and of one dimension: not


def gradients(rank: int) -> tuple[numpy.ndarray, numpy.ndarray]:
    random = numpy.random.default_rng(rank)
    return random.standard_normal(WEIGHTS, numpy.float32), random.standard_normal(BIASES, numpy.float32)


def main() -> None:
    codec = sys.argv[2] if len(sys.argv) > 2 else "int4"
    served = sys.argv[3:] == ["served"]
    with headrace.init() as session:
        specs = [(WEIGHTS, "float32", "layer.weight"), (BIASES, "float32", "layer.bias")]
        # A block for each: of less than 16 KiB, which auto may cut, none is encoded.
        layout = session.layout(specs, op="sum", policy="wfbp", compress=codec)
        mine = gradients(session.rank)
        everybody = [gradients(rank) for rank in range(session.world_size)]
        exact = [sum(each[i].astype(numpy.float64) for each in everybody) for i in range(2)]
        def iterate() -> float:
            """The largest error of a weight's sum."""
            layout.begin_backward()
            for i in (1, 0):
                layout.numpy(i)[...] = mine[i]
                layout.post(i)
            layout.wait_all()
            layout.end_forward()
            numpy.testing.assert_allclose(layout.numpy(1), exact[1], atol=1e-5)
            return float(numpy.abs(layout.numpy(0) - exact[0]).max())

        applied = numpy.zeros(WEIGHTS)
        worst = 0.0
        for _ in range(ITERATIONS):
            worst = max(worst, iterate())
            applied += layout.numpy(0)
        assert worst > 1e-2, f"weights were encoded: they err by {worst}"
        # One rank of each node keeps what its node's encodings left out.
        assert (layout.residuals is None) == (os.environ["LOCAL_RANK"] != "0")
        left_out = numpy.zeros(WEIGHTS, numpy.float32)
        if layout.residuals is not None:
            left_out[...] = numpy.frombuffer(layout.residuals, numpy.float32, left_out.size).reshape(WEIGHTS)
            biases = numpy.frombuffer(layout.residuals, numpy.float32, offset=left_out.nbytes)
            assert not biases.any(), "nothing is left out of what is not encoded"
        session.all_reduce(left_out)
        kept = numpy.abs(applied + left_out - ITERATIONS * exact[0]).max()
        assert (kept > 1e-2) if served else (kept < 1e-3), f"{kept} of a weight's sums are kept elsewhere"
        layout.numpy(0).tofile(os.path.join(sys.argv[1], f"sums.{session.rank}"))
        # Now somebody asks that nothing be compressed any more: all ranks see it in the same iteration.
        deadline = time.monotonic() + PATIENCE_S
        exact_in_a_row = 0
        iterations = ITERATIONS
        while exact_in_a_row < EXACT_IN_A_ROW:
            exact_in_a_row = exact_in_a_row + 1 if iterate() <= 1e-5 else 0
            applied += layout.numpy(0)
            iterations += 1
            assert time.monotonic() < deadline, "sums stay encoded"
            time.sleep(0.02)  # tables that change all the time cannot be read
        # What was left out came back, wherever it was kept.
        numpy.testing.assert_allclose(applied, iterations * exact[0], atol=5e-3)


if __name__ == "__main__":
    main()
