"""How long tests wait for what must come about, and how soon that must come which is promised at once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")

# For whatever must come about, on a machine that is busy. Only a test that fails takes so long.
PATIENCE_S = 60.0
# For what waits for no time-out: less than any time-out that could have ended it, and more than a machine
# takes that is busy with other tests. "Within a second", as the service promises, is to be seen by hand on an
# idle one:   HEADRACE_TEST_SOON_S=1 python3 tests/e2e/failures_test.py
SOON_S = float(os.environ.get("HEADRACE_TEST_SOON_S", "5.0"))
LOOK_S = 0.02


def until(ask: Callable[[], Answer], what: str, limit_s: float = PATIENCE_S) -> Answer:
    """What ``ask`` answers, as soon as that is true. AssertionError with ``what`` and its last answer."""
    deadline = time.monotonic() + limit_s
    while not (answer := ask()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {limit_s} s; the last answer is {answer!r}")
        time.sleep(LOOK_S)
    return answer


def await_equal(ask: Callable[[], Answer], wanted: Answer, limit_s: float = PATIENCE_S) -> None:
    """Returns as soon as ``ask`` answers that. AssertionError with its last answer."""
    deadline = time.monotonic() + limit_s
    while (answer := ask()) != wanted:
        if time.monotonic() > deadline:
            raise AssertionError(f"{answer!r} did not become {wanted!r} within {limit_s} s")
        time.sleep(LOOK_S)
