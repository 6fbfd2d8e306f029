"""What goes wrong where GPUs are shared: ranks and services that are killed, a context that is broken, a post
within a capture, jobs that come and go. Errors come by name and soon, and others are not hurt.

Each case has a service of its own; one that fails hides no other.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from cases import Skip, run_each
from fault_rank import CHURNED_MIB
from prompted import Prompted
from ranks import cuda_library, gpu_of, service
from support.service import Service
from torch_device import REHEARSAL
from trained import figure

RANKS = 2
WAITS = {"host": "on the host", "stream": "in a stream"}  # by role
SOON_MS = 1000
FAR_TOO_LATE_MS = 10 * SOON_MS  # the goal is a figure, since machines are shared; this is a fault
JOBS = 3 if REHEARSAL else 10
QUIET_S = 10.0  # in which a service gives back what an ended job had
SLACK_MIB = CHURNED_MIB / 2  # of what CUDA keeps for itself


@contextlib.contextmanager
def job(started: Service, name: str, role: str) -> Iterator[list[Prompted]]:
    script = str(Path(__file__).parent / "fault_rank.py")
    with contextlib.ExitStack() as ends:
        yield [
            ends.enter_context(
                Prompted(
                    f"rank {rank} of {name}", [sys.executable, "-B", script, role],
                    {"RANK": str(rank), "WORLD_SIZE": str(RANKS), "GPU_ORDINAL": str(gpu_of(rank)),
                     "HEADRACE_JOB": name, "HEADRACE_SOCKET": started.socket},
                )
            )
            for rank in range(RANKS)
        ]  # fmt: skip


def expect_error(rank: Prompted, since: float, what: str, kind: str) -> None:
    """The rank's error is of this kind; prints how long after that moment it came."""
    moment, found, code, text = rank.expect("error")
    took_ms = 1e3 * (float(moment) - since)
    figure(what, took_ms, "ms", f"< {SOON_MS}")
    print(f"{what}: {found} ({code}): {text}")
    if found != kind:
        raise SystemExit(f"{what}: {found} ({code}), not {kind}: {text}")
    if took_ms > FAR_TOO_LATE_MS:
        raise SystemExit(f"{what}: the error came after {took_ms:.0f} ms")


def require_streams(role: str) -> None:
    if REHEARSAL and role == "stream":
        raise Skip("torch has no streams on the CPU")


def killed_rank(role: str) -> None:
    require_streams(role)
    with service() as started, job(started, "killed", role) as (waiting, lost):
        lost.expect("ready")
        waiting.expect("posted")
        time.sleep(0.2)  # so that it waits
        since = lost.kill()
        expect_error(waiting, since, f"a rank is killed, the other waits {WAITS[role]}", "PeerLost")
        waiting.expect("usable")
        waiting.finish()


def killed_service(role: str) -> None:
    require_streams(role)
    with service() as started, job(started, "outlives", role) as (waiting, other):
        other.expect("ready")
        waiting.expect("posted")
        time.sleep(0.2)
        since = time.monotonic()
        started.kill()
        expect_error(waiting, since, f"the service is killed, a rank waits {WAITS[role]}", "Unavailable")
        waiting.expect("usable")
        waiting.finish()


def sums_of(started: Service, name: str, during: Callable[[], None] = lambda: None) -> int:
    """How many sums a job of two ranks has made and compared while something else happened."""
    with job(started, name, "sum") as ranks:
        for rank in ranks:
            rank.expect("summing")
        during()
        for rank in ranks:
            rank.tell("enough")
        counts = [int(rank.expect("summed")[0]) for rank in ranks]
        for rank in ranks:
            rank.finish()
    return min(counts)


def broken_context() -> None:
    with service() as started:

        def during() -> None:
            with job(started, "broken", "break") as (waiting, broken):
                broken.expect("ready")
                waiting.expect("ready")
                broken.tell("break")
                moment, text = broken.expect("broken")
                print(f"a context is broken: {text}")
                expect_error(waiting, float(moment), "a rank's context is broken, the other waits", "PeerLost")
                waiting.finish()
                broken.fail()

        print(f"a job beside a broken context: {sums_of(started, 'beside', during)} sums, all right")
        print(f"a job after it: {sums_of(started, 'after')} sums, all right")
        if started.process.poll() is not None:
            raise SystemExit("the service has ended")


def capture() -> None:
    if REHEARSAL:
        raise Skip("only a GPU captures")
    with service() as started, job(started, "capture", "capture") as ranks:
        for rank in ranks:
            words = rank.expect("refused")[0]
            rank.finish()
        print(f"a post within a capture: {words}")


def listed_mib(pid: int) -> int | None:
    """What nvidia-smi says that a process has; None where it does not list it, as in a container."""
    query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    try:
        lines = subprocess.run(query, capture_output=True, text=True, timeout=30).stdout.splitlines()
    except (OSError, subprocess.TimeoutExpired):
        return None
    for line in lines:
        listed, _, used = line.partition(",")
        if listed.strip() == str(pid) and used.strip().isdigit():
            return int(used)
    return None


def free_mib() -> float:
    """Of the first GPU, which rank 0 is on. Asked in another process, since ranks are forked from this one."""
    command = [sys.executable, "-B", str(Path(__file__).parent / "driver.py"), cuda_library(), "free"]
    asked = subprocess.run(command, capture_output=True, text=True)
    if asked.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: {asked.stdout}{asked.stderr}")
    return int(asked.stdout) / (1 << 20)


def one_job(started: Service, number: int) -> None:
    """Two ranks that share memory and go, those of every other job by SIGKILL."""
    with job(started, f"job{number}", "much") as ranks:
        for rank in ranks:
            rank.expect("summed")
        for rank in ranks:
            if number % 2:
                rank.kill()
            else:
                rank.tell("enough")
                rank.finish()


def settled_mib(enough_mib: float) -> float:
    """The GPU's free memory, once so much is free or QUIET_S have passed."""
    deadline = time.monotonic() + QUIET_S
    while (free := free_mib()) < enough_mib and time.monotonic() < deadline:
        time.sleep(0.2)
    return free


def jobs_that_come_and_go() -> None:
    with service() as started:
        before = free_mib()
        one_job(started, 0)
        first, listed = settled_mib(before), listed_mib(started.pid)
        for number in range(1, JOBS):
            one_job(started, number)
        last = settled_mib(first)
        what = f"{RANKS} ranks with {CHURNED_MIB} MiB each"
        figure(f"GPU memory that {JOBS - 1} more jobs of {what} leave", first - last, "MiB", f"< {SLACK_MIB:.0f}")
        if listed is None:
            print("skipped\tthe service's memory by nvidia-smi: it does not list the service")
        else:
            more = (listed_mib(started.pid) or 0) - listed
            figure("the same by nvidia-smi, of the service", more, "MiB", f"< {SLACK_MIB:.0f}")
        if first - last >= SLACK_MIB:
            raise SystemExit(f"free were {first:.0f} MiB after one job, {last:.0f} MiB after {JOBS}")


CASES: dict[str, Callable[[], None]] = {
    "a killed rank": lambda: killed_rank("host"),
    "a killed rank, a stream waits": lambda: killed_rank("stream"),
    "a killed service": lambda: killed_service("host"),
    "a killed service, a stream waits": lambda: killed_service("stream"),
    "a broken context": broken_context,
    "a capture": capture,
    "jobs that come and go": jobs_that_come_and_go,
}


def main() -> int:
    return run_each(CASES)


if __name__ == "__main__":
    sys.exit(main())
