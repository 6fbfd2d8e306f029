"""Doubled GPUs for end-to-end tests, and what a service shows of them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from support.patience import await_equal
from support.service import Service, build_directory

DOUBLE = os.path.join(build_directory(), "tests", "support", "cuda_double", "libcuda.so.1")
NCCL = os.path.join(build_directory(), "tests", "support", "nccl_double", "libnccl.so.2")
COUNT = 300_000  # elements; more than one block between nodes


def machine(**settings: str) -> dict[str, str]:
    """The environment in which all programs of a test see the same doubled GPUs, and no others."""
    environment = {
        "HEADRACE_CUDA_LIBRARY": DOUBLE,
        "HEADRACE_CUDA_DOUBLE_MACHINE": f"e2e-{os.getpid()}",
        "HEADRACE_CUDA_DOUBLE_DEVICES": "2",
        "HEADRACE_CUDA_DOUBLE_MULTIPROCESSORS": "132",
    }
    for name, value in settings.items():
        environment[f"HEADRACE_CUDA_DOUBLE_{name}"] = value
    return environment


def await_true(condition: Callable[[], bool], limit_s: float) -> float | None:
    """How long it took, or None when it does not become true."""
    begin = time.monotonic()
    while not condition():
        if time.monotonic() - begin > limit_s:
            return None
        time.sleep(0.01)
    return time.monotonic() - begin


def held(service: Service) -> list[int]:
    """Bytes of clients that the service holds on each GPU."""
    status: Any = service.ctl_json("status")
    return [gpu["held_bytes"] for gpu in status["gpus"]]


def held_by_job(service: Service, name: str) -> dict[int, int]:
    jobs: Any = service.ctl_json("jobs")
    for job in jobs["jobs"]:
        if job["name"] == name:
            return {gpu["gpu"]: gpu["held_bytes"] for gpu in job["gpus"]}
    return {}


def await_stages(service: Service, lane: str, count: int) -> None:
    """Returns when the board shows so many stages of the lane, a moment after the last has ended."""
    await_equal(lambda: lanes(service)[lane]["stages_ended"], count)


def lanes(service: Service) -> dict[str, dict[str, Any]]:
    shown: Any = service.ctl_json("lanes")
    return {lane["lane"]: lane for lane in shown["lanes"]}
