"""How much slower a trainer's matrix product gets while the service sums other ranks' gradients on the
same GPU. Whether processes share the GPU (MPS) or take turns is said with the figure."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

import torch
from ranks import programs, service
from support.places import HERE, Program
from torch_device import REHEARSAL, device

SIZE, REPEATS, ROUNDS = (64, 2, 3) if REHEARSAL else (4096, 20, 9)
RANKS, BYTES = 2, (1 << 20 if REHEARSAL else 256 << 20)
FOR_EVER = 1 << 30


def product_ms(a: torch.Tensor, b: torch.Tensor) -> float:
    """The time of one product; the median of some rounds."""
    if REHEARSAL:
        begin_s = time.perf_counter()
        torch.mm(a, b)
        return 1e3 * (time.perf_counter() - begin_s)
    times = []
    for _ in range(ROUNDS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(REPEATS):
            torch.mm(a, b)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / REPEATS)
    return statistics.median(times)


def start_load(socket: str) -> list[Program]:
    return [
        HERE.start(
            [str(programs() / "path_bench"), socket, str(rank), str(RANKS), str(BYTES), str(FOR_EVER)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )
        for rank in range(RANKS)
    ]  # fmt: skip


def bytes_moved(started: object) -> int:
    jobs = started.ctl_json("jobs")
    rows = jobs["jobs"] if isinstance(jobs, dict) else jobs
    return sum(row["bytes_moved"] for row in rows)


def main() -> int:
    dtype = torch.float32 if REHEARSAL else torch.float16
    a, b = (torch.randn(SIZE, SIZE, device=device(), dtype=dtype) for _ in range(2))
    product_ms(a, b)
    alone = product_ms(a, b)
    with service() as started:
        load = start_load(started.socket)
        try:
            deadline = time.monotonic() + 60
            while bytes_moved(started) == 0:
                if time.monotonic() > deadline or any(each.poll() is not None for each in load):
                    raise SystemExit("the load moved nothing in 60 s")
                time.sleep(0.1)
            before, begin = bytes_moved(started), time.monotonic()
            beside = product_ms(a, b)
            rate = (bytes_moved(started) - before) / (time.monotonic() - begin)
        finally:
            for each in load:
                each.end()
    pipes = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
    mps = "with MPS" if os.path.exists(os.path.join(pipes, "control")) else "without MPS"
    what = f"product of {SIZE}x{SIZE} fp16"
    print(f"figure\t{what}, alone\t{alone:.6g}\tms\t")
    print(f"figure\t{what}, beside sums, {mps}\t{beside:.6g}\tms\t")
    print(f"figure\tslowdown {mps}, while the service moves {rate / 1e9:.1f} GB/s\t{beside / alone:.4g}\t\t")
    return 0


if __name__ == "__main__":
    sys.exit(main())
