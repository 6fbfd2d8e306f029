"""A real service and forked rank processes, for tests of the Python package.

ctest sets HEADRACE_BUILD (where the service is), HEADRACE_LIBRARY and PYTHONPATH.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import select
import signal
import sys
import time
import traceback
import unittest
from collections.abc import Callable
from typing import Any

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
from support.service import Service

__all__ = ["Rank", "Service", "ServiceCase", "run_ranks", "start_rank"]


_PR_SET_PDEATHSIG = 1


class ServiceCase(unittest.TestCase):
    """Tests that share one service."""

    service: Service

    @classmethod
    def make_service(cls) -> Service:
        return Service()

    @classmethod
    def setUpClass(cls) -> None:
        cls.service = cls.make_service()
        cls.addClassCleanup(cls.service.close)
        cls.service.start()


class Rank:
    """A forked process that runs one function; its result or exception comes back through a pipe. It ends with
    this process at the latest."""

    def __init__(self, function: Callable, *arguments: Any) -> None:
        read, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            os.close(read)
            self._run(write, function, arguments)
        os.close(write)
        self._pipe = read
        self._status: int | None = None

    @staticmethod
    def _run(write: int, function: Callable, arguments: tuple) -> None:
        try:
            answer = (True, function(*arguments))
        except BaseException:  # noqa: BLE001 - whatever it is, the parent shows it
            answer = (False, traceback.format_exc())
        with os.fdopen(write, "wb") as pipe:
            pickle.dump(answer, pipe)
        os._exit(0)

    def kill(self) -> None:
        """kill -9."""
        os.kill(self.pid, signal.SIGKILL)

    def result(self, timeout: float = 60) -> Any:
        """What the function returned. AssertionError with its traceback when it raised."""
        deadline = time.monotonic() + timeout
        data = b""
        while True:
            ready, _, _ = select.select(
                [self._pipe], [], [], deadline - time.monotonic()
            )
            if not ready:
                self.kill()
                self.end()
                raise AssertionError(
                    f"rank (pid {self.pid}) did not end in {timeout} s"
                )
            part = os.read(self._pipe, 1 << 16)
            if not part:
                break
            data += part
        self.end()
        if not data:
            raise AssertionError(f"rank (pid {self.pid}) died: status {self._status}")
        fine, answer = pickle.loads(data)
        if not fine:
            raise AssertionError(f"rank (pid {self.pid}) raised:\n{answer}")
        return answer

    def end(self) -> None:
        """Reaps the process; it has ended or is about to."""
        if self._status is None:
            _, self._status = os.waitpid(self.pid, 0)
            os.close(self._pipe)


def run_ranks(
    service: Service, count: int, function: Callable, *arguments: Any, job: str = "test"
) -> list:
    """Runs ``function(session, *arguments)`` in ``count`` rank processes; their results by rank."""
    ranks = [
        start_rank(service, r, count, function, *arguments, job=job)
        for r in range(count)
    ]
    results, failures = [], []
    for rank in ranks:
        try:
            results.append(rank.result())
        except AssertionError as failure:
            failures.append(str(failure))
    if failures:
        raise AssertionError("\n".join(failures) + "\nservice:\n" + service.log())
    return results


def start_rank(
    service: Service,
    rank: int,
    count: int,
    function: Callable,
    *arguments: Any,
    job: str = "test",
    timeout: float | None = None,
) -> Rank:
    """Starts one rank process that attaches and runs ``function(session, *arguments)``."""

    def attached() -> Any:
        import headrace

        with headrace.init(job, rank, count, service.socket, timeout) as session:
            return function(session, *arguments)

    return Rank(attached)
