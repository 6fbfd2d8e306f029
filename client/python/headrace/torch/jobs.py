"""The jobs behind a process group: one of its own, and one for each pair of ranks that needs it."""

from __future__ import annotations

import hashlib
import os
import secrets
import threading
from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist

import headrace.library
from headrace.session import Session, init

# A leader takes part in 256 jobs of several nodes at one time.
PAIRS_MAX = 200
_NAME_MAX = 63  # bytes of a job's name, as the C header has it
_GROUP_NAME_MAX = 40  # leaves room for the names of pairs
_JOB_MAX = 20


def agree_on_name(store: dist.Store, rank: int, ranks: Sequence[int]) -> str:
    """A job name that all ranks of a new group use, and no group before or after it.

    The first rank chooses it and tells the others through the group's store, where every rank counts how
    many groups have used this store before: torchrun's outlives them all.
    """
    number = store.add(f"headrace/{rank}", 1)
    if rank == 0:
        store.set(f"headrace/name{number}", _choose_name(ranks))
    return store.get(f"headrace/name{number}").decode()


def _choose_name(ranks: Sequence[int]) -> str:
    options = headrace.library.Options()
    headrace.library.fill(options, headrace.library.ErrorText())
    name = (options.job.decode() or "torch")[:_JOB_MAX]
    name += "." + secrets.token_hex(4)
    spelled = "." + _spell(ranks) if ranks else ""
    return name + (spelled if len(name + spelled) <= _GROUP_NAME_MAX else "")


def _spell(ranks: Sequence[int]) -> str:
    """ "0-3,6" of 0, 1, 2, 3, 6."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(
        str(first) if first == last else f"{first}-{last}" for first, last in runs
    )


def attach(name: str, rank: int, world_size: int, timeout: timedelta) -> Session:
    """A session in such a job. HEADRACE_TIMEOUT_MS outdoes the process group's timeout."""
    seconds = timeout.total_seconds()
    if os.environ.get("HEADRACE_TIMEOUT_MS"):
        seconds = None
    return init(job=name, rank=rank, world_size=world_size, timeout=seconds)


class Pairs:
    """Jobs of two ranks, for what only two ranks know of; opened when first needed.

    What one rank sends to another under one tag is a job in which only the sender broadcasts; so
    messages keep their order, and those of other tags and of the other direction do not stand in
    their way. Exchanges, to which both post in the same order, have a job of their own.
    """

    def __init__(self, group: str, rank: int, timeout: timedelta) -> None:
        self._group = group
        self._rank = rank
        self._timeout = timeout
        self._open: dict[str, Session] = {}
        self._lock = threading.Lock()

    def to(self, other: int, tag: int) -> Session:
        """The session in which this rank, 0 of it, broadcasts to ``other``."""
        return self._attach(f"{self._rank}>{other}#{tag}", 0)

    def from_(self, other: int, tag: int) -> Session:
        """The session in which ``other``, 0 of it, broadcasts to this rank."""
        return self._attach(f"{other}>{self._rank}#{tag}", 1)

    def exchange(self, other: int) -> Session:
        """The session in which the lower of both ranks is 0."""
        low, high = sorted((self._rank, other))
        return self._attach(f"{low}x{high}", int(self._rank == high))

    def _attach(self, pair: str, rank: int) -> Session:
        with self._lock:
            if pair not in self._open:
                if len(self._open) == PAIRS_MAX:
                    raise RuntimeError(
                        f"this rank exchanges messages with others in {PAIRS_MAX} ways (ranks, "
                        "directions, tags): the most one process group can have"
                    )
                self._open[pair] = attach(self._name(pair), rank, 2, self._timeout)
            return self._open[pair]

    def _name(self, pair: str) -> str:
        name = f"{self._group}.{pair}"
        if len(name) > _NAME_MAX:  # of large tags
            digest = hashlib.sha256(pair.encode()).hexdigest()
            name = f"{self._group}.{digest}"[:_NAME_MAX]
        return name

    def close(self) -> None:
        """Leaves all of them."""
        with self._lock:
            for session in self._open.values():
                session.close()
            self._open.clear()
