"""What the least world of a job means to a session, and what its user is told of it, once."""

from __future__ import annotations

import functools
import math
import os
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.session import Session


WITH_SHRINK_S = 30  # as HEADRACE_SHRINK has it


def seconds_to_come_back(from_environment: int, given: float | None, least: int | None) -> int:
    """For how long to wait for a service that went away: as given, else as the environment says. Where both are
    silent a job that may shrink waits, too, as long as one of which the environment says that it may.
    """
    if given is not None:
        return math.ceil(max(0.0, given))
    return WITH_SHRINK_S if least and not os.environ.get("HEADRACE_RECONNECT") else from_environment


def warned_of_halves(session: Session) -> Session:
    """The session. Warns on the rank that begins as rank 0 of a job of several nodes, where the least world lets two
    halves of it both go on. Within a node nobody is cut off.
    """
    least, world = session.shrink_min_world, session.world_size
    if session.rank == 0 and not session.joins and session.rendezvous and 0 < 2 * least <= world:
        _warn(least, world)
    return session


@functools.cache  # once, however many process groups there are
def _warn(least: int, world: int) -> None:
    warnings.warn(
        f"headrace: the job may go on with {least} of {world} ranks: two halves that cannot reach each other would "
        f"both go on, each by itself; HEADRACE_SHRINK={world // 2 + 1} or more keeps one of them from it",
        stacklevel=4,
    )
