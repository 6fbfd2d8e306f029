"""What the tests of headrace.torch share: groups of ranks, and which torch this is."""

from __future__ import annotations

import os
import platform
import sys
import unittest
from collections.abc import Callable
from typing import Any

from ranks import Rank, Service
from support.ports import free_port

try:
    import torch
    import torch.distributed as dist
except ImportError as error:
    raise unittest.SkipTest("torch is not installed") from error

# Before anything forks: the threads of a pool do not survive it, and ranks share the cores.
torch.set_num_threads(1)

MODERN = not torch.__version__.startswith("1.")
if MODERN:
    # Optimizers, DDP and FSDP import it when they are made; once here, and not in every rank.
    import torch._dynamo


def start_group(
    service: Service | None,
    count: int,
    function: Callable,
    *arguments: Any,
    backend: str = "headrace",
) -> list[Rank]:
    """Ranks that run ``function(rank, *arguments)`` in a default process group."""
    port = free_port()

    def run(rank: int) -> Any:
        import headrace.torch  # noqa: F401 - registers the backend

        os.environ.update(
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
            GLOO_SOCKET_IFNAME="lo",
            RANK=str(rank),
            WORLD_SIZE=str(count),
            LOCAL_WORLD_SIZE=str(count),
        )
        if service is not None:
            os.environ["HEADRACE_SOCKET"] = service.socket
        dist.init_process_group(backend, rank=rank, world_size=count)
        result = function(rank, *arguments)
        dist.barrier()
        dist.destroy_process_group()
        return result

    return [Rank(run, rank) for rank in range(count)]


def run_group(
    service: Service | None,
    count: int,
    function: Callable,
    *arguments: Any,
    backend: str = "headrace",
) -> list:
    """Their results, by rank."""
    ranks = start_group(service, count, function, *arguments, backend=backend)
    results, failures = [], []
    for rank in ranks:
        try:
            results.append(rank.result(timeout=120))
        except AssertionError as failure:
            failures.append(str(failure))
    if failures:
        log = service.log()[-3000:] if service is not None else "none"
        raise AssertionError("\n".join(failures) + "\nservice:\n" + log)
    return results


def main() -> None:
    """Runs the tests of the calling file, after it has said by what."""
    print(
        f"torch {torch.__version__}, Python {platform.python_version()}, {sys.executable}",
        file=sys.stderr,
    )
    unittest.main()
