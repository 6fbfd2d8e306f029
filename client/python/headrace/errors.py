"""What can go wrong, as exceptions with the service's own words."""

from __future__ import annotations


class Error(Exception):
    """An operation or call that failed. The text names the cause.

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
    """An operation, or the wait for it, outlived its time."""


class Mismatch(Error):
    """Ranks posted different operations; the text names both sides."""


class PeerLost(Error):
    """A rank this operation needs is gone; the text names it."""


_CLASSES = {6: Unavailable, 8: Timeout, 9: Mismatch, 10: PeerLost}


def make(text: str, code: str, number: int) -> Error:
    """The exception for a status."""
    return _CLASSES.get(number, Error)(text, code, number)
