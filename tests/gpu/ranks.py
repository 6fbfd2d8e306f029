"""A service and the ranks of a job on it, for the scripts of this folder; all end with the block."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support.places import HERE, Program
from support.service import Service

LIMIT_S = 120.0  # of the ranks of one run


def programs() -> Path:
    return Path(os.environ["HEADRACE_BUILD"])


def cuda_library() -> str:
    """CUDA's driver: a file, or a name that the loader finds."""
    return os.environ.get("HEADRACE_CUDA_LIBRARY", "libcuda.so.1")


@functools.cache
def gpus_count() -> int:
    """How many GPUs the driver shows. Asked in another process, since ranks are forked from this one."""
    asked = subprocess.run(
        [sys.executable, "-B", str(Path(__file__).parent / "driver.py"), cuda_library()],
        capture_output=True, text=True,
    )  # fmt: skip
    if asked.returncode != 0:
        raise SystemExit(f"no GPU: {asked.stdout.strip() or asked.stderr.strip()}")
    return len(json.loads(asked.stdout))


def gpu_of(rank: int) -> int:
    """Ranks have a GPU each where there are enough of them."""
    return rank % gpus_count()


class ToldService(Service):
    """Shows its log when what runs on it fails: the machine may be gone when somebody asks."""

    def __exit__(self, failure: type[BaseException] | None, *more: object) -> None:
        if failure is not None:
            print(f"the service's log:\n{self.log()}", file=sys.stderr)
        super().__exit__(failure, *more)


def service(*flags: str, **options: object) -> Service:
    """With the GPUs of the driver that HEADRACE_CUDA_LIBRARY names; not to start without them."""
    return ToldService("--gpu", "on", "--cuda-library", cuda_library(), *flags, **options)


def play_sharers(script: str, ranks: int, allocator: Mapping[str, str] | None = None) -> None:
    """Runs a script once for each rank of a job on one service, on a GPU each where there are enough;
    prints what the first of them printed. ``allocator`` is more of their environment."""
    with service() as started:
        environments = [
            {**(allocator or {}), "RANK": str(rank), "WORLD_SIZE": str(ranks),
             "GPU_ORDINAL": str(gpu_of(rank)), "HEADRACE_JOB": Path(script).stem,
             "HEADRACE_SOCKET": started.socket}
            for rank in range(ranks)
        ]  # fmt: skip
        print(play([[sys.executable, "-B", script]] * ranks, environments)[0], end="")


def play(
    commands: Sequence[Sequence[str]],
    environments: Sequence[Mapping[str, str]],
    limit_s: float = LIMIT_S,
) -> list[str]:
    """Runs one program for each rank at once; what each printed. Raises SystemExit with what a failed
    one said."""
    started: list[Program] = []
    try:
        for command, environment in zip(commands, environments, strict=True):
            started.append(
                HERE.start(
                    list(command), env={**os.environ, **environment}, text=True,
                    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                )
            )  # fmt: skip
        deadline = time.monotonic() + limit_s
        printed = [each.communicate(timeout=deadline - time.monotonic())[0] for each in started]
    except subprocess.TimeoutExpired:
        for each in started:
            each.end()
        said = "\n".join(f"rank {rank}:\n{each.communicate()[0]}" for rank, each in enumerate(started))
        raise SystemExit(f"the ranks did not end within {limit_s:.0f} s\n{said}") from None
    finally:
        for each in started:
            each.end()
    for rank, (each, text) in enumerate(zip(started, printed, strict=True)):
        if each.returncode not in (0, 77):
            raise SystemExit(f"rank {rank} ended with {each.returncode}:\n{text}")
    return printed
