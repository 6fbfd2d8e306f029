"""Errors of the library and the service as exceptions, with the service's text."""

from __future__ import annotations

import re


class Error(RuntimeError):
    """An operation or call failed. The text names the cause. A RuntimeError, as torch's backends raise.

    ``code`` is the status's name as logs and tables spell it ("peer lost"), ``number`` its number
    in the C header. After an operation's error the session stays usable, unless the service is gone
    or the job has failed.
    """

    def __init__(self, text: str, code: str, number: int) -> None:
        super().__init__(text)
        self.code = code
        self.number = number

    def __reduce__(self) -> tuple:
        return type(self), (str(self), self.code, self.number)


class Unavailable(Error):
    """The service is absent or went away: start it, and reconnect() or open a new session."""


class Timeout(Error):
    """An operation, or the wait for it, timed out."""


class Mismatch(Error):
    """Ranks posted different operations; the text names both sides."""


class PeerLost(Error):
    """A rank this operation needs is gone; the text names it."""


class Cancelled(Error):
    """Somebody ended the job on purpose; the text says who."""


# What a program may want to treat in a way of its own. The others are mistakes and limits, which
# Error.code tells apart.
_CLASSES = {6: Unavailable, 8: Timeout, 9: Mismatch, 10: PeerLost, 13: Cancelled}

# The library's texts name calls of C where they advise one.
_CALLS = {
    "hr_counters": "Session.counters()",
    "hr_layout_begin_backward": "Layout.begin_backward()",
    "hr_layout_options": "the options of Session.layout()",
    "hr_layout_options_init": "Session.layout()",
    "hr_layout_wait": "Layout.wait()",
    "hr_options": "the options of headrace.init()",
    "hr_options_init": "headrace.init()",
    "hr_session_reconnect": "Session.reconnect()",
    "hr_session_shrink": "Session.reconnect()",
    "hr_wait": "Operation.wait()",
}
_CALL = re.compile(r"\bhr_\w+")
# Both ways to get a service, which the library does not know of.
_START = (
    "start headraced",
    "run the command by `python3 -m headrace run -- COMMAND`, or start the node's service "
    "(`systemctl enable --now headraced`, of the package headrace)",
)


def make(text: str, code: str, number: int) -> Error:
    """The exception for a status, with Python's names of calls in its text."""
    text = _CALL.sub(lambda call: _CALLS.get(call[0], call[0]), text).replace(*_START)
    return _CLASSES.get(number, Error)(text, code, number)
