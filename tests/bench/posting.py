"""What posting an operation costs its caller, from the program bench_posting."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from contenders import BenchError, Service

# So long does the service look for work before it sleeps, in the measurement of a service that is
# awake: longer than any pause between two posts.
AWAKE_SPIN_US = 20000
SECONDS_MAX = 120


def _run(command: list[str]) -> dict:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            text=True,
            timeout=SECONDS_MAX,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BenchError(f"posting: {error}") from error
    if done.returncode != 0:
        raise BenchError(
            f"posting: {command[0]} ended with {done.returncode}: {done.stderr[-2000:]}"
        )
    return json.loads(done.stdout)


def system_calls_between_marks(trace: str) -> tuple[int, int]:
    """(system calls between the marks, number of batches) of a trace of bench_posting.

    Only of the posting thread, which is the one that makes the marks.
    """
    lines = [line.split(maxsplit=1) for line in trace.splitlines() if line.strip()]
    markers = {thread for thread, call in lines if call.startswith("getppid(")}
    calls = batches = 0
    inside = False
    for thread, call in lines:
        if thread not in markers:
            continue
        if call.startswith("getppid("):
            batches += not inside
            inside = not inside
        # The line that finishes a call which was interrupted in the trace is no further call, and
        # reading the thread's CPU clock is the measurement, not the post.
        elif inside and re.match(r"(?!clock_gettime)\w+\(", call):
            calls += 1
    return calls, batches


def _system_calls_per_post(build: Path, service: Service) -> float | None:
    if not shutil.which("strace"):
        return None
    with tempfile.TemporaryDirectory(prefix="headrace-bench-strace-") as folder:
        trace = Path(folder) / "trace"
        program = [str(build / "bench_posting"), service.socket, "20"]
        result = _run(["strace", "-f", "-o", str(trace), *program])
        calls, batches = system_calls_between_marks(trace.read_text())
    if batches != 20:
        raise BenchError(
            f"posting: strace shows {batches} batches where 20 were posted"
        )
    return calls / result["posts"]


def posting_cost(build: Path, batches: int) -> dict:
    """Posting while the service is awake, and with the service as it is by default."""
    program = str(build / "bench_posting")
    with Service("--spin-us", str(AWAKE_SPIN_US), build=build) as service:
        awake = _run([program, service.socket, str(batches)])
        awake["system_calls_per_post"] = _system_calls_per_post(build, service)
    with Service(build=build) as service:
        default = _run([program, service.socket, str(batches)])
        default["system_calls_per_post"] = _system_calls_per_post(build, service)
    return {"awake": awake, "default": default}
