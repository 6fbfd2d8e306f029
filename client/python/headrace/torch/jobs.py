"""The job behind a process group: its name, and this rank's session in it."""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from headrace import library
from headrace.session import Session, init

_GROUP_NAME_MAX = 40  # as people read it beside other columns
_JOB_MAX = 20
_numbers = itertools.count(1)  # of the sessions of next_session()


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
    options = library.Options()
    library.fill(options, library.ErrorText())
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


def next_session() -> Session:
    """A session for an optimizer that was given none. The first has the job of the environment, every
    further one of this process a job beside it: "JOB.2" and so on. All ranks make them in one order.
    """
    number = next(_numbers)
    if number == 1:
        return init()
    options, error = library.Options(), library.ErrorText()
    library.check(library.fill(options, error), error)
    suffix = f".{number}".encode()
    room = library.Options.job.size - 1 - len(suffix)
    return init(job=(options.job[:room] + suffix).decode(errors="replace"))


def attach_beside(group: dist.ProcessGroup) -> Session:
    """A session in a new job with the ranks of a process group of any backend. All of them call it."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    ranks = [dist.get_global_rank(group, each) for each in range(size)]
    name = [_choose_name(ranks) if rank == 0 else ""]
    dist.broadcast_object_list(name, src=ranks[0], group=group)
    timeout = getattr(group, "timeout", None)
    if not isinstance(timeout, timedelta):  # of another backend
        timeout = dist.default_pg_timeout
    return attach(name[0], rank, size, timeout)


def attach(name: str, rank: int, world_size: int, timeout: timedelta) -> Session:
    """A session in such a job. HEADRACE_TIMEOUT_MS outdoes the process group's timeout."""
    seconds = timeout.total_seconds()
    if os.environ.get("HEADRACE_TIMEOUT_MS"):
        seconds = None
    # Slow ranks of a group are named where it has all ranks: those of a smaller one wait for others in
    # other groups, which its service does not know. Groups do not go on without a rank.
    whole = os.environ.get("WORLD_SIZE") == str(world_size)
    return init(
        job=name,
        rank=rank,
        world_size=world_size,
        timeout=seconds,
        role="rank",
        slow=None if whole else 0,
        slow_evict=False,
    )


def node_of(path: str) -> str:
    """Names a service by its socket: containers of one pod see it under different paths."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    try:
        found = os.stat(path)
    except OSError:
        return f"{boot}:{path}"  # attaching says what is wrong
    return f"{boot}:{found.st_dev}:{found.st_ino}"
