"""What ranks tell each other and the training script when a job goes on with other ranks."""

from __future__ import annotations

import dataclasses
import enum


@dataclasses.dataclass(frozen=True)
class Resize:
    """The job has gone on with other ranks; what a data sampler needs to divide the data anew.

    Ranks are named by what they were when the job began, except ``rank``; those that joined later have
    numbers that no other has had.
    """

    rank: int  # this process's from now on
    world_size: int  # from now on
    members: tuple[int, ...]  # of each rank of now, the one that it had at first
    lost: tuple[int, ...]
    iteration: int  # counted from 1, that is under way: the first whose averages may be of others
    joined: tuple[int, ...] = ()  # they contribute from the next iteration that begins


class Lack(enum.IntEnum):
    """What a rank that waits for averages needs where the others have gone on without it."""

    STATE = 0  # it has called step(): what the updates make
    AVERAGES = 1  # its step() is still to come
    NOTHING = 2  # it gives the iteration up
