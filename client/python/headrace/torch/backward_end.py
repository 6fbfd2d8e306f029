"""Futures of DDP's small all-reduces, which nobody needs before backward has ended."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Sequence

import torch
import torch.autograd
import torch.autograd.graph

from headrace.torch.work import Completer, Work

# From whose Python the engine is called that calls DDP's reducer, which is C++.
_BACKWARD = {torch.autograd.__file__, torch.autograd.graph.__file__}
_SMALL_MAX = 1 << 20  # bytes: to copy so many takes about as long as to wake a thread
_LATE_S = 0.25


def is_in_backward(caller: str) -> bool:
    """Whether DDP's reducer has called during backward what was called from that file, and nothing in Python, such as
    a communication hook, which might wait for the future at once.
    """
    return caller in _BACKWARD


def is_small(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether a thread that copies the results beside backward would gain nothing."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors) <= _SMALL_MAX


class AtEndOfBackward:
    """Completes futures when backward has ended, in its thread: others would only take the processor from it. In the
    place of a Completer, for what DDP's reducer asks for during backward. Thread-safe.

    The reducer waits for all of them then. In the first pass of a static graph it waits earlier: what is still open
    after a quarter of a second is left to ``completer``.
    """

    def __init__(self, completer: Completer) -> None:
        self._completer = completer
        self._lock = threading.Lock()  # guards the rest
        self._number = 0
        self._open: dict[int, tuple[Work, torch.futures.Future, float]] = {}  # and since when
        self._timer: threading.Timer | None = None

    def complete(self, work: Work, started: torch.futures.Future) -> None:
        """As Completer.complete."""
        with self._lock:
            self._number += 1
            number = self._number
            self._open[number] = (work, started, time.monotonic())
            if self._timer is None:
                self._look_later()
        # One for each: when backward is left by an exception they are forgotten.
        torch.autograd.Variable._execution_engine.queue_callback(functools.partial(self._end, number))

    def _end(self, number: int) -> None:
        with self._lock:
            found = self._open.pop(number, None)
        if found is None:
            return
        work, started, _ = found
        work.settle(None)
        started.set_result(None)
        work.let_go_of_future()

    def _look_later(self) -> None:
        self._timer = threading.Timer(_LATE_S, self._look)
        self._timer.daemon = True
        self._timer.start()

    def _look(self) -> None:
        late = time.monotonic() - _LATE_S
        with self._lock:
            numbers = [number for number, (*_, since) in self._open.items() if since <= late]
            found = [self._open.pop(number) for number in numbers]
            self._timer = None
            if self._open:
                self._look_later()
        for work, started, _ in found:
            self._completer.complete(work, started)
