"""The service as the benchmarks run it, and what it costs while it has nothing to do."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from contenders import BenchError, Contender

START_SECONDS_MAX = 10


class Service:
    """A headraced of our own, with socket and board in a folder of its own. One thread uses it."""

    def __init__(self, build: Path, *flags: str):
        self._folder = Path(tempfile.mkdtemp(prefix="headrace-bench-service-"))
        self.socket = self._folder / "headrace.sock"
        self._log = open(self._folder / "log", "w+")
        paths = ["--socket", str(self.socket), "--board", str(self._folder / "board")]
        try:
            self._process = subprocess.Popen(
                [str(build / "headraced"), *paths, *flags],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
            )
        except OSError as error:
            self._log.close()
            shutil.rmtree(self._folder, ignore_errors=True)
            raise BenchError(
                f"headraced: start {build / 'headraced'}: {error.strerror}"
            ) from error
        try:
            self._await_socket()
        except BenchError:
            self.stop()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *unused: object) -> None:
        self.stop()

    def _await_socket(self) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                text = (self._folder / "log").read_text(errors="replace")
                raise BenchError(
                    f"headraced ended with {self._process.returncode}: {text[-2000:]}"
                )
            with socket.socket(socket.AF_UNIX) as probe:
                try:
                    probe.connect(str(self.socket))
                    return
                except OSError:
                    time.sleep(0.02)
        raise BenchError(
            f"headraced does not listen on {self.socket} after {START_SECONDS_MAX} s"
        )


def start_ranks(build: Path, service: Service, ranks: int) -> Contender:
    contender = Contender("headrace", ranks, members=ranks)
    for rank in range(ranks):
        program = str(build / "bench_headrace")
        contender.start(
            [program, str(contender.folder), str(service.socket), str(rank), str(ranks)]
        )
    return contender


def _cpu_ns_and_switches(pid: int) -> tuple[int, int]:
    """CPU time and context switches of all threads of a process since they started."""
    cpu_ns = switches = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        cpu_ns += int((task / "schedstat").read_text().split()[0])
        counts = re.findall(r"ctxt_switches:\s+(\d+)", (task / "status").read_text())
        switches += sum(map(int, counts))
    return cpu_ns, switches


def idle_cost(pid: int, seconds: float) -> dict[str, float]:
    """What a process uses of the CPU, and how often one of its threads wakes."""
    cpu_before, switches_before = _cpu_ns_and_switches(pid)
    start = time.monotonic()
    time.sleep(seconds)
    cpu_after, switches_after = _cpu_ns_and_switches(pid)
    elapsed = time.monotonic() - start
    return {
        "seconds": elapsed,
        "cpu_percent": (cpu_after - cpu_before) / elapsed / 1e7,
        "wakeups": switches_after - switches_before,
    }


def resident_mib(pid: int) -> dict[str, float]:
    """Resident memory, the clients' segments (shared memory) apart from everything else."""
    status = Path(f"/proc/{pid}/status").read_text()
    kib = {
        name: int(value) for name, value in re.findall(r"(Rss\w+):\s+(\d+) kB", status)
    }
    return {
        "beside_segments_mib": (kib["RssAnon"] + kib["RssFile"]) / 1024,
        "segments_mib": kib["RssShmem"] / 1024,
    }
