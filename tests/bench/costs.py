"""What a process costs while it has nothing to do."""

from __future__ import annotations

import re
import time
from pathlib import Path


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
