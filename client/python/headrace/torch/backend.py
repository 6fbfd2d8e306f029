"""``torch.distributed.init_process_group("headrace")``: a script changes one word."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from headrace.torch.jobs import agree_on_name
from headrace.torch.process_group import ProcessGroup

NAME = "headrace"


def register() -> None:
    """Makes the backend known to torch.distributed; once."""
    if hasattr(dist.Backend, NAME.upper()):
        return
    options: dict[str, Any] = {"extended_api": True}
    if not torch.__version__.startswith("1."):
        options["devices"] = ["cpu"]
    dist.Backend.register_backend(NAME, _create, **options)


def _create(options: Any, backend_options: Any = None) -> ProcessGroup:
    """Called by torch on every rank of a new group, with c10d's DistributedBackendOptions."""
    if backend_options is not None:
        raise ValueError(
            "the backend headrace takes no options: its service is configured"
        )
    rank, size = options.group_rank, options.group_size
    name = agree_on_name(options.store, rank, options.global_ranks_in_group)
    return ProcessGroup(name, rank, size, options.timeout)
