"""``torch.distributed.init_process_group("headrace")``: a script changes one word."""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist

from headrace.torch.compression import GroupOptions, codec_of_group
from headrace.torch.group_names import GroupNames
from headrace.torch.jobs import agree_on_name
from headrace.torch.planned_ddp import PlannedWork
from headrace.torch.process_group import ProcessGroup
from headrace.torch.stream_work import StreamWork
from headrace.torch.tracing import keep_untraced
from headrace.torch.work import Work

NAME = "headrace"


def register() -> None:
    """Makes the backend known to torch.distributed; once."""
    if hasattr(dist.Backend, NAME.upper()):
        return
    options: dict[str, Any] = {"extended_api": True}
    if not torch.__version__.startswith("1."):
        options["devices"] = ["cpu", "cuda"]
    dist.Backend.register_backend(NAME, _create, **options)


def _refuse_to_replace_others() -> None:
    """torch takes a process group in Python for the whole group, and leaves other backends out silently.

    What was asked for is known to its function that makes groups, and not told to backends.
    """
    frame = sys._getframe(1)
    while frame is not None and "backend_config" not in frame.f_locals:
        frame = frame.f_back
    if frame is None:  # torch 1.13 has one backend a group
        return
    by_device = frame.f_locals["backend_config"].get_device_backend_map()
    others = sorted({str(name) for name in by_device.values()} - {NAME})
    if others:
        wanted = ",".join(f"{device}:{name}" for device, name in by_device.items())
        raise ValueError(
            f'the backend headrace is the whole process group, so "{wanted}" would leave out '
            f'{", ".join(others)}: give "{NAME}" alone, and the other backend a group of its own '
            f'(torch.distributed.new_group(backend="{others[0]}"))'
        )


def _create(options: Any, backend_options: Any = None) -> ProcessGroup:
    """Called by torch on every rank of a new group, with c10d's DistributedBackendOptions."""
    if backend_options is None:
        backend_options = GroupOptions()
    if not isinstance(backend_options, GroupOptions):
        raise ValueError(
            f"the backend headrace takes headrace.torch.GroupOptions as pg_options, and this is a "
            f"{type(backend_options).__name__}: its service is configured"
        )
    codec = codec_of_group(backend_options)
    _refuse_to_replace_others()
    keep_untraced(ProcessGroup, GroupNames, Work, PlannedWork, StreamWork)
    rank, size = options.group_rank, options.group_size
    if getattr(options, "enable_reconfigure", False):  # torch 2.14
        return ProcessGroup(
            options.group_id, rank, size, options.timeout, starts=False, codec=codec
        )
    name = agree_on_name(options.store, rank, options.global_ranks_in_group)
    # A plan would not know the codec of all_reduces.
    store = options.store if backend_options.plan_ddp and codec == "none" and size > 1 else None
    return ProcessGroup(name, rank, size, options.timeout, codec=codec, store=store)
