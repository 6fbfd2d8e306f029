"""The same service with and without somebody who watches it, and one built before there was anything to
watch: who they are, and how they are measured by turns.

A way is a build and the service's flags. All ways of a place run at once, each with its own service,
ranks and links; only one is measured at a time and the others sleep. Watchers are there only while their
way is measured. What is compared is one round's median over the plain way's of the same round, so that
what the machine does besides hits both.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shutil
import statistics
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from across import ContenderAcross, Layout, start_headrace
from contenders import HERE, PYTHON, BenchError, Contender, Service, start_ranks
from support.places import Program

KIB, MIB = 1 << 10, 1 << 20
PLAIN = "plain"
RANKS = 2


@dataclasses.dataclass
class Way:
    """One way on one place, started."""

    name: str
    build: Path
    contender: Contender
    services: list[Service]  # one a node
    address: str | None = None  # of HTTP, the same in every node; None: nobody watches

    @contextlib.contextmanager
    def watched(self, seconds: float) -> Iterator[None]:
        """Somebody watches each of its services meanwhile, if that is its way."""
        watchers: list[Program] = []
        try:
            for service in self.services if self.address else ():
                watchers.append(
                    service.place.start(
                        [PYTHON, "-B", str(HERE / "peers" / "watcher.py"),
                         str(self.build / "headracectl"), service.socket, service.board,
                         str(self.address), repr(seconds)],
                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE, text=True,
                    )
                )  # fmt: skip
            for watcher in watchers:
                if watcher.stdout.readline() != "ready\n":
                    raise BenchError(f"{self.name}: nobody can watch: {watcher.stderr.read()[-500:]}")
            yield
        finally:
            for watcher in watchers:
                watcher.end()
                watcher.stdout.close()
                watcher.stderr.close()


def flags_of(address: str | None) -> list[str]:
    """Everything on that there is to see."""
    if address is None:
        return []
    return ["--http-address", address, "--late-ms", "1000", "--interleave"]


def start_in_node(
    name: str, build: Path, address: str | None, stack: contextlib.ExitStack, *flags: str
) -> Way:
    service = stack.enter_context(Service(*flags_of(address), *flags, build=build))
    contender = start_ranks(build, service, RANKS)
    stack.callback(contender.stop)
    return Way(name, build, contender, [service], address)


def start_between_nodes(
    name: str, build: Path, address: str | None, stack: contextlib.ExitStack, layout: Layout, *flags: str
) -> Way:
    contender = start_headrace(build, layout, *flags_of(address), *flags, name=name)
    stack.callback(contender.stop)
    assert isinstance(contender, ContenderAcross)
    services = [node.service for node in contender.cluster.nodes if node.service is not None]
    return Way(name, build, contender, services, address)


def measure(
    ways: list[Way], repetitions: dict[int, int], rounds: int, seconds: float, said: Callable[[str], None]
) -> list[dict]:
    """For each way and size: the median of all, and of each round over the plain way's."""
    medians: dict[tuple[str, int], list[float]] = {}
    for index in range(rounds):
        said(f"round {index + 1} of {rounds}")
        turn = index % len(ways)
        for size, count in repetitions.items():
            for way in ways[turn:] + ways[:turn]:
                with way.watched(seconds):
                    times = way.contender.measure(size, count)
                medians.setdefault((way.name, size), []).append(statistics.median(times))
    return [
        figure(way.name, size, medians[way.name, size], medians[PLAIN, size])
        for size in repetitions
        for way in ways
    ]


def figure(name: str, size: int, own_ns: list[float], plain_ns: list[float]) -> dict:
    ratios = [own / plain for own, plain in zip(own_ns, plain_ns, strict=True)]
    quarters = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else [ratios[0]] * 3
    return {
        "way": name, "bytes": size, "rounds": len(own_ns), "p50_us": statistics.median(own_ns) / 1e3,
        "over_plain": statistics.median(ratios), "spread": quarters[2] - quarters[0],
    }  # fmt: skip


def data_thread(pid: int) -> int:
    """The thread that reads rings and schedules."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        if (task / "comm").read_text().strip() == "hr-data":
            return int(task.name)
    raise BenchError(f"process {pid} has no data thread")


class CountedService(Service):
    """Runs under callgrind, which counts instructions and says at the end how many there were."""

    def command(self) -> list[str]:
        return [
            "valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", *super().command()
        ]  # fmt: skip

    def instructions(self) -> int:
        """Instructions of all its threads since its start; ends it."""
        self.stop()
        found = re.search(r"Collected : (\d+)", self.log())
        if found is None:
            raise BenchError(f"callgrind counted nothing: {self.log()[-500:]}")
        return int(found.group(1))


def instructions_per_operation(build: Path, address: str | None, size: int, count: int) -> float | None:
    """Instructions of the whole service in user space; None where valgrind is missing. The difference of runs of
    different length, so that start and end do not count."""
    if not shutil.which("valgrind"):
        return None
    totals = []
    for operations in (count // 10 or 1, count + (count // 10 or 1)):
        with CountedService(*flags_of(address), build=build) as service:
            contender = start_ranks(build, service, RANKS)
            try:
                contender.measure(size, operations)
            finally:
                contender.stop()
            totals.append(service.instructions())
    return (totals[1] - totals[0]) / count


def cost_per_operation(way: Way, size: int, count: int) -> dict:
    """CPU time of the data thread of the way's first service for one operation, counted as above."""
    thread = data_thread(way.services[0].pid)
    clock = Path(f"/proc/{way.services[0].pid}/task/{thread}/schedstat")

    def spent(operations: int) -> int:
        before = int(clock.read_text().split()[0])
        way.contender.measure(size, operations)
        return int(clock.read_text().split()[0]) - before

    with way.watched(1.0):
        few, many = spent(count // 10 or 1), spent(count + (count // 10 or 1))
    return {
        "way": way.name, "bytes": size, "operations": count, "data_thread_ns": (many - few) / count,
    }  # fmt: skip


def sizes_kept(way: Way, folder: str) -> dict:
    """Bytes of what the service keeps for people: its board, and a trace of the job."""
    trace = os.path.join(folder, f"{way.name}.json")
    code, text = way.services[0].ctl("trace", "bench", "-o", trace)
    if code != 0:
        raise BenchError(f"{way.name}: headracectl trace: {text.strip()}")
    return {
        "way": way.name,
        "board_bytes": os.path.getsize(way.services[0].board),
        "trace_bytes": os.path.getsize(trace),
    }
