#!/usr/bin/env python3
"""Averages numpy arrays over four ranks: one by one, without a copy, and many at a time.

With a service running (build/release/headraced --socket /tmp/headrace.sock):

    PYTHONPATH=client/python HEADRACE_SOCKET=/tmp/headrace.sock \\
        python3 client/examples/numpy_example.py

The program forks four ranks. Rank 0 prints

    one-off array      [1.5 1.5 1.5 1.5]
    registered tensor  [1.5 1.5 1.5 1.5], copied 0 bytes
    200 in flight      all right, waited 3.1 ms

and the program exits with 0 if every rank got the right results.
"""

import os
import sys

try:
    import headrace
    import numpy
except ImportError as error:
    raise SystemExit(
        f"this example needs python3-numpy, and client/python in PYTHONPATH: {error}"
    ) from error

RANKS = 4


def average(session: headrace.Session) -> None:
    """What each rank does."""
    say = print if session.rank == 0 else lambda *_: None

    # A one-off array is copied into shared memory and back.
    array = numpy.full(4, session.rank, numpy.float32)
    session.all_reduce(array, op="average")
    assert (array == 1.5).all()
    say("one-off array     ", array)

    # A registered tensor is memory of the service's: it is summed where it lies.
    copied = session.counters()["copied_bytes"]
    tensor = session.arena(4096).tensor(4, "float32", name="gradient")
    view = tensor.numpy()
    view[:] = session.rank
    session.all_reduce(tensor, op="average")
    assert (view == 1.5).all()
    copied = session.counters()["copied_bytes"] - copied
    say(f"registered tensor  {view}, copied {copied} bytes")

    # Any number may be in flight; results are there after wait().
    waited = session.waited_seconds
    operations = [
        session.all_reduce(numpy.full(1000, i, numpy.float64), async_op=True)
        for i in range(200)
    ]
    for i, operation in enumerate(operations):
        assert (operation.wait() == RANKS * i).all()
    waited = session.waited_seconds - waited
    say(f"200 in flight      all right, waited {waited * 1e3:.1f} ms")


def main() -> int:
    """Forks the ranks; a real program would be started once per rank, by torchrun."""
    job = f"numpy-example-{os.getpid()}"
    children = []
    for rank in range(RANKS):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                with headrace.init(job, rank, RANKS) as session:
                    average(session)
                status = 0
            except headrace.Error as error:
                print(f"rank {rank}: {error} ({error.code})")
            finally:
                sys.stdout.flush()  # a pipe's is full of what was said
                os._exit(status)
        children.append(child)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    return 0 if not any(statuses) else 1


if __name__ == "__main__":
    raise SystemExit(main())
