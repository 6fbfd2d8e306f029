"""A collective on memory of a GPU that was posted: streams wait for its end, and the host goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch

from headrace.errors import Timeout
from headrace.torch import devices
from headrace.torch.posting import StreamOperation
from headrace.torch.work import Work, seconds_left


class StreamWork(Work):
    """Some operations on a GPU, and what is done with their results, in the order of streams.

    wait() has the current stream wait, and returns; with a timeout the host waits. A failure is raised by
    wait() where it is known by then, else by a later collective of the group.
    """

    def __init__(
        self,
        operations: Sequence[StreamOperation],
        result: Sequence[torch.Tensor],
        finish: Callable[[], None] | None = None,
        source: int | Callable[[], int] = -1,
    ) -> None:
        super().__init__(operations, result, finish, None, source)
        self._operations = list(operations)
        self._device = operations[0].device
        self._event = None  # after which the results are in the tensors

    @classmethod
    def of_works(
        cls, works: Sequence[StreamWork], result: Sequence[torch.Tensor]
    ) -> StreamWork:
        """One that ends when all of them have."""
        operations = [each for work in works for each in work._operations]

        def finish() -> None:
            for work in works:
                work.wait()

        return cls(operations, result, finish)

    def wait(self, timeout: timedelta | float | None = None) -> bool:
        """Has the current stream wait, and returns True. With a timeout in seconds the host waits.

        Raises what an operation failed with that is known to have ended.
        """
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        if seconds and seconds > 0 and not self.settle(seconds):
            raise Timeout(
                f"the operation is still open after {seconds:g} s", "timeout", 8
            )
        with self._lock:
            self._take_in_stream()
        self._release_result()
        if self._error is not None:
            raise self._error
        return True

    def settle(self, limit_s: float | None) -> bool:
        """Whether all has ended within that time, which the host waits for."""
        deadline = None if limit_s is None else time.monotonic() + limit_s
        for operation in self._operations:
            if not self._end(operation, seconds_left(deadline)):
                return False
        left = seconds_left(deadline)
        if not self._lock.acquire(timeout=-1 if left is None else left):
            return False
        try:
            self._take_in_stream()
        finally:
            self._lock.release()
        return True

    def look(self) -> bool:
        """As of other work. When it has ended, the current stream has the results from here on."""
        return self.settle(0)

    def source_rank(self) -> int:
        """The rank that sent, of a recv; the host waits for a receive from any rank."""
        if callable(self._source):
            self.settle(None)
            if callable(self._source):
                self._source = self._source()
        return self._source

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future:
        """A future of the results in a stream beside the current one: who takes its value comes after them."""
        with devices.on_stream(devices.new_stream(self._device)):
            with self._lock:
                result = self.result()
                self._take_in_stream()
            if self._error is None:
                return devices.finished_future(self._device, result)
            future: torch.futures.Future = torch.futures.Future()
            future.set_exception(self._error)
            return future

    def _take_in_stream(self) -> None:
        if self._event is not None:
            devices.wait_event(self._device, self._event)
            return
        stream = devices.current_stream(self._device)
        for operation in self._operations:
            if operation.done():
                self._end(operation, None)  # for its error, if it has one
            else:
                operation.wait_on(stream)
        for operation in self._operations:
            operation.release_memory()
            if self._error is None:
                operation.take_results()
        self._keep_results(stream)
        self._open.clear()
        source, self._source = self._source, -1  # known when the host has waited
        self._settle()
        self._source = source
        self._event = devices.record_event(self._device)

    def _keep_results(self, stream: int) -> None:
        # They are written in this stream, and whoever drops them knows only of the one in which he works.
        if any(operation.stream != stream for operation in self._operations):
            for tensor in self.result():
                if not tensor.is_sparse:  # such a one is made anew, in this stream
                    devices.keep_for_stream(tensor)
