"""How operations ended that only a stream waited for."""

from __future__ import annotations

import collections
import contextlib

from headrace.errors import Error
from headrace.operation import Operation

OPEN_MAX = 4096  # the channel holds 1024; the rest has ended and waits to be looked at


class Outcomes:
    """Operations whose end a GPU's stream awaits in the host's place. Thread-safe by its owner.

    A failure lets the stream go on, so it is raised by the next check() after it is known: gradients,
    and what was updated from them, are undefined from the failed iteration on.
    """

    def __init__(self) -> None:
        self._open: collections.deque[Operation] = collections.deque(maxlen=OPEN_MAX)

    def add(self, operation: Operation) -> None:
        """In the order of their posts."""
        self._open.append(operation)

    def check(self) -> None:
        """Raises what the oldest that has failed ended with. Waits for nothing."""
        # Those of one rank end about in the order in which they were posted.
        while self._open and self._open[0].done():
            self._open.popleft().wait()

    def forget(self) -> None:
        """Waits for all, however they end: the caller knows of a failure and begins anew."""
        while self._open:
            with contextlib.suppress(Error):
                self._open.popleft().wait()

    def finish(self) -> None:
        """Waits for all, and raises the first failure: before the last results are used."""
        while self._open:
            self._open.popleft().wait()
