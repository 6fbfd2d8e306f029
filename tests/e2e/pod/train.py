"""What the trainer's container runs: two ranks fit a line together, each with samples of its own.

usage: train.py STEPS [reconnect]

Prints "step N" as it goes and "fitted A B" at the end. With ``reconnect`` a service that goes away is
waited for, and training goes on from the next step; it ends after STEPS steps, and not before the
service has gone once or LIMIT_S seconds have passed.
"""

from __future__ import annotations

import os
import sys
import time

import headrace
import numpy

RANKS = 2
JOB = "line-0"
SLOPE, BASE = 3.0, -1.0
RATE, SAMPLES = 0.5, 64
PACE_S = 0.002
WAIT_S = float(os.environ.get("WAIT_S", "30"))
LIMIT_S = 60.0


class Gradients:
    """The two numbers' gradients, in memory of the service's; the third is for the step."""

    def __init__(self, rank: int) -> None:
        self.session = headrace.init(job=JOB, rank=rank, world_size=RANKS, reconnect=WAIT_S)
        self.tensor = self.session.arena(4096).tensor(3, "float64", name="line")

    def average(self, values: numpy.ndarray) -> numpy.ndarray:
        view = self.tensor.numpy()
        view[:] = values
        self.session.all_reduce(self.tensor, op="average")
        return view.copy()

    def come_back(self, line: numpy.ndarray, step: int) -> tuple[numpy.ndarray, int]:
        """Where rank 0 is: a rank whose last sum had ended is a step ahead of one whose had not."""
        self.session.reconnect()
        view = self.tensor.numpy()
        view[:] = [*line, step]
        self.session.broadcast(self.tensor)
        return view[:2].copy(), round(view[2])


def connect(rank: int) -> Gradients:
    """The trainer may be there before the service."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            return Gradients(rank)
        except headrace.Unavailable:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def train(rank: int, steps: int, reconnects: bool) -> None:
    samples = numpy.random.default_rng(rank)
    line, step, losses = numpy.zeros(2), 0, 0
    gradients = connect(rank)
    begin = time.monotonic()
    late = 0.0  # of the ranks' averages: all end after the same step
    while step < steps or (reconnects and losses == 0 and late < LIMIT_S):
        x = samples.uniform(-1, 1, SAMPLES)
        missed = line[0] * x + line[1] - (SLOPE * x + BASE)
        mine = numpy.array([(missed * x).mean(), missed.mean(), time.monotonic() - begin])
        try:
            *slopes, late = gradients.average(mine)
        except headrace.Unavailable as error:
            if not reconnects:
                raise
            if rank == 0:
                print(f"lost at step {step}: {error}", flush=True)
            losses += 1
            line, step = gradients.come_back(line, step)
            continue
        line -= RATE * numpy.array(slopes)
        step += 1
        if rank == 0:
            print(f"step {step}", flush=True)
        time.sleep(PACE_S)
    if rank == 0:
        print(f"fitted {line[0]:.3f} {line[1]:.3f}", flush=True)
    gradients.session.close()


def main() -> int:
    steps, reconnects = int(sys.argv[1]), sys.argv[2:] == ["reconnect"]
    children = []
    for rank in range(RANKS):
        child = os.fork()
        if child == 0:
            try:
                train(rank, steps, reconnects)
            except BaseException as error:  # noqa: BLE001 - the parent shows it
                print(f"rank {rank}: {type(error).__name__}: {error}", flush=True)
                os._exit(1)
            os._exit(0)
        children.append(child)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


if __name__ == "__main__":
    sys.exit(main())
