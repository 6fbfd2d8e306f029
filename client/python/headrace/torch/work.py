"""A collective of the backend that was posted, and its end."""

from __future__ import annotations

import collections
import functools
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from headrace.errors import Timeout
from headrace.operation import Operation

_Base = dist._Work if hasattr(dist, "_Work") else dist.Work
# How long the thread that completes futures is deaf to the end of its group.
_LOOK_S = 0.1
_SMALL_MAX = 4096  # bytes of results that a work keeps


class Work(_Base):
    """Some operations, and what is done with their results when all have ended.

    ``finish`` runs once, in whichever thread finds the end: results are in the caller's tensors when
    wait() returns, is_completed() says so, or the future is done.
    """

    def __init__(
        self,
        operations: Sequence[Operation],
        result: Sequence[torch.Tensor],
        finish: Callable[[], None] | None = None,
        completer: Completer | None = None,
        source: int | Callable[[], int] = -1,
    ) -> None:
        super().__init__()
        self._open = list(operations)
        self._result: list[torch.Tensor] | None = list(result)  # see result()
        self._references: list[weakref.ref] = []  # to its tensors, once it has let go of them
        self._finish = finish
        self._completer = completer
        self._source = source
        self._error: Exception | None = None
        self._settled = False
        self._is_old = False
        self._future: torch.futures.Future | None = None  # until it is done
        self._lock = threading.Lock()

    def wait(self, timeout: timedelta | float | None = None) -> bool:
        """Returns True when the results are there; raises what the first failed operation said.

        ``timeout`` None or 0: that of the process group, which every operation has.
        """
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        if not self.settle(seconds if seconds and seconds > 0 else None):
            raise Timeout(
                f"the operation is still open after {seconds:g} s", "timeout", 8
            )
        self._release_result()
        if self._error is not None:
            raise self._error
        return True

    @classmethod
    def of_all(
        cls, works: Sequence[Work], result: Sequence[torch.Tensor], completer: Completer
    ) -> Work:
        """One that ends when all of them have."""
        return cls([_Part(work) for work in works], result, None, completer)

    def settle(self, limit_s: float | None) -> bool:
        """Whether all has ended, for good or ill, within that time."""
        if self._settled:
            return True
        deadline = None if limit_s is None else time.monotonic() + limit_s
        # Without the lock, so that other threads wait for as long as they want to.
        left = limit_s
        for operation in tuple(self._open):
            if not self._end(operation, left):
                return False
            if deadline is not None:
                left = seconds_left(deadline)
        if not self._lock.acquire(timeout=-1 if left is None else left):
            return False  # another thread is about to put the results in their places
        try:
            self._open.clear()
            if not self._settled:
                self._settle()
        finally:
            self._lock.release()
        return True

    def _end(self, operation: Operation, limit_s: float | None) -> bool:
        try:
            operation.wait(limit_s)
        except Timeout:
            if not operation.done():
                return False
            self._note_end(operation)  # which may have come since
        except Exception as error:  # noqa: BLE001 - the first is raised by wait()
            self._error = self._error or error
        return True

    def _note_end(self, operation: Operation) -> None:
        try:
            operation.wait(0)
        except Timeout as error:
            # Those who look for it in torch's texts look for this word.
            text = f"{error} (the timeout of the process group)"
            self._error = self._error or Timeout(text, error.code, error.number)
        except Exception as error:  # noqa: BLE001 - the first is raised by wait()
            self._error = self._error or error

    def _settle(self) -> None:
        # With the lock. Whoever looks without it sees the end when the results are in their places.
        if self._error is None:
            try:
                if self._finish is not None:
                    self._finish()
                if callable(self._source):
                    self._source = self._source()
            except Exception as error:  # noqa: BLE001 - raised by wait()
                self._error = error
        self._finish = None
        self._settled = True
        if self._is_old:
            self._drop_result()

    def _drop_result(self) -> None:
        # Another thread that finds no result finds the references, too.
        result = self._result
        if result is not None:
            self._references = [weakref.ref(tensor) for tensor in result]
            self._result = None

    def abandon(self, error: Exception) -> None:
        """Ends it with an error, whatever becomes of its operations."""
        with self._lock:
            self._open.clear()
            if not self._settled:
                self._error = self._error or error
                self._settle()

    def is_completed(self) -> bool:
        """Whether it has ended; the results are there then, or the error."""
        return self.settle(0)

    def is_success(self) -> bool:
        """Whether it has ended without an error."""
        return self.settle(0) and self._error is None

    def exception(self) -> Exception | None:
        """The error it ended with, if it has."""
        return self._error if self.settle(0) else None

    def result(self) -> list[torch.Tensor]:
        """The tensors with the results. After wait(), when its future is done, and when it has ended and dozens of
        later collectives were posted, those of them that somebody else has still: it keeps none, so that their
        memory may be used again. wait() leaves small ones for a while, which torch asks for then and has nowhere else.
        """
        result = self._result
        if result is not None:
            return result
        found = [reference() for reference in self._references]
        return [tensor for tensor in found if tensor is not None]

    def _release_result(self) -> None:
        result = self._result
        if result is None:
            return
        size = 0
        for tensor in result:
            size += tensor.numel() * tensor.element_size()
        if size > _SMALL_MAX:
            self._drop_result()

    def source_rank(self) -> int:
        """The rank that sent, of a recv; -1 for a receive from any rank until it has ended."""
        return -1 if callable(self._source) else self._source

    _source_rank = source_rank

    def synchronize(self) -> None:
        """wait(): there is nothing else to be in step with on the CPU."""
        self.wait()

    def get_future(self) -> torch.futures.Future:
        """A future with the list of results, or the error; its callbacks run in the group's thread."""
        with self._lock:
            if self._future is not None:
                return self._future
            started = torch.futures.Future()
            # Raised in a callback, an exception reaches C++ with its text.
            future = started.then(functools.partial(self._value, self.result()))
            ended = self._settled or self._completer is None
            if not ended:
                self._future = future
        if ended:
            started.set_result(None)  # runs _value(), which takes the lock
        else:
            self._completer.complete(self, started)
        return future

    def look(self) -> bool:
        """Whether it has ended, without waiting: what it was copied into is free then."""
        if self._settled:
            return True
        return all(operation.done() for operation in tuple(self._open)) and self.settle(0)

    def forget_results(self) -> None:
        """Keeps the tensors no longer than it is open."""
        if self._result is None:
            return
        with self._lock:
            self._is_old = True
            if self._settled:
                self._drop_result()

    def let_go_of_future(self) -> None:
        """When it is done: its value is with who has asked for it."""
        with self._lock:
            self._future = None
            self._drop_result()

    def _value(
        self, result: list[torch.Tensor], started: torch.futures.Future
    ) -> list[torch.Tensor]:
        started.value()
        self.wait()
        return result


def seconds_left(deadline: float | None) -> float | None:
    """Seconds until then, at least 0; None: no limit."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())


class _Part:
    """A Work in the place of an Operation."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def wait(self, limit_s: float | None) -> None:
        """As Operation.wait."""
        if not self._work.settle(limit_s):
            raise Timeout("the work is still open", "timeout", 8)
        self._work.wait()

    def done(self) -> bool:
        """As Operation.done."""
        return self._work.is_completed()


class Completer:
    """Threads that end the work somebody wants a future of, each in its own time.

    DistributedDataParallel goes on when the future says so. Work that waits for another rank, such as a
    receive, keeps no other waiting: each has a thread until it has ended, and until the callbacks of its
    future have run, one of which may wait for another future. Threads serve further work afterwards; there
    are as many as futures were open at a time, and no more operations than the channel holds can be. Other
    work has no part in it: who waits for it waits in a thread of its own.
    """

    def __init__(self, name: str, threads_max: int | None = None) -> None:
        """``threads_max``: for work that ends in the order in which it is given. None: as above."""
        self._name = name
        self._threads_max = threads_max
        self._closed = False
        self._changed = threading.Condition()  # guards the rest
        self._work: collections.deque[tuple[Work, torch.futures.Future]] = (
            collections.deque()
        )
        self._threads: set[threading.Thread] = set()
        self._free = 0  # of the threads: without work, some of which may stand in the deque

    def complete(self, work: Work, started: torch.futures.Future) -> None:
        """Sets ``started`` as soon as the work has ended."""
        with self._changed:
            self._work.append((work, started))
            if self._free >= len(self._work) or len(self._threads) == self._threads_max:
                self._changed.notify()
                return
            self._free += 1
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._threads.add(thread)
            thread.start()

    def close(self) -> None:
        """Ends the threads, and what they wait for with an error. The session may be closed then."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            others = self._threads - {threading.current_thread()}
        for thread in others:
            thread.join()

    def _next(self) -> tuple[Work, torch.futures.Future] | None:
        """What this thread is to wait for from now on; None: nothing more comes."""
        with self._changed:
            while not self._work:
                if self._closed:
                    return None
                self._changed.wait()
            self._free -= 1
            return self._work.popleft()

    def _run(self) -> None:
        while (each := self._next()) is not None:
            work, started = each
            del each
            # The more wait, the more seldom each looks.
            while not work.settle(_LOOK_S * (1 + len(self._threads) // 16)):
                if self._closed:
                    work.abandon(RuntimeError("the process group was shut down"))
            started.set_result(None)
            work.let_go_of_future()
            del work, started  # which have results, and the next may be long in coming
            with self._changed:
                self._free += 1
