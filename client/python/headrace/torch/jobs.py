"""The job behind a process group: its name, and this rank's session in it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist

import headrace.library
from headrace.session import Session, init

_GROUP_NAME_MAX = 40  # as people read it beside other columns
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
