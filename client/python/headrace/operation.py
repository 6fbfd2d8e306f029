"""A posted collective and its end."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from headrace import library
from headrace.region import stream_handle

if TYPE_CHECKING:
    from headrace.session import Session


class Operation:
    """One posted collective. It ends exactly once, with success or an error.

    While it is open its memory belongs to the service: neither read nor write it. Thread-safe.
    """

    def __init__(
        self,
        session: Session,
        number: int,
        result: Any,
        copied: bool,
        kept: Any = None,
    ) -> None:
        self._session = session
        self._number = number
        # Both keep memory alive; the first is what the caller gets from wait().
        self._result = result
        self._copied = copied
        self._settled = False
        self._kept = kept

    @property
    def number(self) -> int:
        """Its place among this rank's operations, from 1."""
        return self._number

    def done(self) -> bool:
        """Whether it has ended, without waiting. wait() says how it ended."""
        session = self._session
        error = session.call.error
        ended = ctypes.c_int()
        library.check(
            library.load().hr_test(
                session.handle, self._number, ctypes.byref(ended), error
            ),
            error,
        )
        return bool(ended.value)

    def wait(self, timeout: float | None = None) -> Any:
        """Waits until it has ended and returns the memory it was posted on.

        ``timeout`` in seconds, None: no limit beyond the operation's own. Raises Timeout when that
        passed first (it can be waited for again), or what the operation failed with.
        """
        limit = -1 if timeout is None else max(0, int(timeout * 1e9))
        session = self._session
        error = session.call.error
        status = library.load().hr_wait(session.handle, self._number, limit, error)
        if status == 0:
            self._settled = True
            return self._result
        failure = library.failure(status, error)  # before done() writes there
        self._settled = self.done()
        raise failure

    @property
    def source(self) -> int:
        """The rank whose send a receive has taken; the receive must have ended well.

        Raises Busy while it is open; NotFound when a thousand later operations were posted.
        """
        error = library.ErrorText()
        source = ctypes.c_uint32()
        status = library.load().hr_recv_source(
            self._session.handle, self._number, ctypes.byref(source), error
        )
        library.check(status, error)
        return source.value

    def wait_on(self, stream: Any) -> Any:
        """Makes a stream of the GPU wait, and returns the memory at once: work that is put into ``stream``
        from now on finds the result there.

        ``stream`` is a number, or torch's or cupy's. After a failure the stream continues, with the memory in
        an undefined state; wait() raises the error.
        """
        handle = stream_handle(stream)
        error = library.ErrorText()
        status = library.load().hr_stream_wait(
            self._session.handle, self._number, handle, error
        )
        library.check(status, error)
        tensor = getattr(self._result, "tensor", self._result)  # of a Range
        if hasattr(tensor, "last_stream"):
            tensor.last_stream = handle
        return self._result

    def __del__(self) -> None:
        # Nobody can ask for the result any more: its staging memory may be used again.
        if self._copied and not self._settled and not self._session.closed:
            library.load().hr_discard(self._session.handle, self._number)

    def __repr__(self) -> str:
        return f"<headrace.Operation {self._number} of rank {self._session.rank}>"
