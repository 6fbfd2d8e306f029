"""A service and the ranks of a job on it, for the scripts of this folder; all end with the block."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support.places import HERE, Program  # noqa: E402
from support.service import Service  # noqa: E402

LIMIT_S = 240.0


def programs() -> Path:
    return Path(os.environ["HEADRACE_BUILD"])


def service(*flags: str, **options: object) -> Service:
    """With the GPUs of the driver that HEADRACE_CUDA_LIBRARY names; not to start without them."""
    library = os.environ.get("HEADRACE_CUDA_LIBRARY", "libcuda.so.1")
    return Service("--gpu", "on", "--cuda-library", library, *flags, **options)


def play(commands: Sequence[Sequence[str]], environments: Sequence[Mapping[str, str]]) -> list[str]:
    """Runs one program for each rank at once; what each printed. Raises SystemExit with what a failed
    one said."""
    started: list[Program] = []
    try:
        for command, environment in zip(commands, environments):
            started.append(
                HERE.start(
                    list(command), env={**os.environ, **environment}, text=True,
                    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                )
            )  # fmt: skip
        deadline = time.monotonic() + LIMIT_S
        printed = [each.communicate(timeout=deadline - time.monotonic())[0] for each in started]
    except subprocess.TimeoutExpired:
        raise SystemExit(f"the ranks did not end within {LIMIT_S:.0f} s") from None
    finally:
        for each in started:
            each.end()
    for rank, (each, text) in enumerate(zip(started, printed)):
        if each.returncode not in (0, 77):
            raise SystemExit(f"rank {rank} ended with {each.returncode}:\n{text}")
    return printed
