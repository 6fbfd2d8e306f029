"""Time that a process waits in one of its jobs, as another of its jobs sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace import library

if TYPE_CHECKING:
    from headrace.session import Session


def count_waits(session: Session, other: Session) -> None:
    """From now on what is waited in ``session`` counts as waits in ``other``, too, by which ranks are found that
    are slow or stand still. Before anything is waited for in ``session``. Either may be closed first.
    """
    error = library.ErrorText()
    status = library.load().hr_session_count_waits(session.handle, other.handle, error)
    library.check(status, error)
