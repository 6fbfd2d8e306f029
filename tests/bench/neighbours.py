"""Several jobs on one service, or on one pair of nodes: who is beside whom, and what each gets.

A case is a few jobs under load (bench_load), what an operator has said of them, and what each of them
should get: a share of what moves, or a part of what it gets alone. Bytes are counted by the service, on
its board, over a time in the middle in which all jobs run.
"""

from __future__ import annotations

import dataclasses
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from contenders import BenchError, Service
from support.cluster import Cluster, Services
from support.places import HERE as THIS_MACHINE
from support.places import Program

MIB = 1 << 20
RANKS = 2
START_SECONDS_MAX = 60.0


@dataclasses.dataclass(frozen=True)
class Load:
    """A job under load. ``steering``: what headracectl is told of it, as (verb, value)."""

    job: str
    bytes: int = 4 * MIB
    depth: int = 4
    hangs_after: int = 0  # operations, after which its rank 1 posts nothing more
    steering: tuple[tuple[str, str], ...] = ()


@dataclasses.dataclass(frozen=True)
class Ideal:
    """What a job should get: exactly one of these."""

    share: float | None = None  # of what all jobs move
    of_alone: float | None = None  # of what it gets alone
    bytes_s: float | None = None


@dataclasses.dataclass(frozen=True)
class Neighbours:
    key: str
    title: str
    loads: tuple[Load, ...]
    ideals: dict[str, Ideal]

    @property
    def needs_alone(self) -> bool:
        return any(ideal.of_alone is not None for ideal in self.ideals.values())


HALF, WHOLE = Ideal(share=0.5), Ideal(of_alone=1.0)
FLOOD = Load("flood", bytes=64 * MIB, depth=8)
# More than processors' caches hold, also when it is alone: caches are not shared by weight, and a job
# whose buffers fit into one loses it to whoever else moves, with or without a service.
LARGE = Load("a", bytes=32 * MIB)
CASES = (
    Neighbours("equal", "two equal jobs", (Load("a"), Load("b")), {"a": HALF, "b": HALF}),
    Neighbours(
        "weight", "weights 3 and 1", (Load("a", steering=(("weight", "3"),)), Load("b")),
        {"a": Ideal(share=0.75), "b": Ideal(share=0.25)},
    ),
    Neighbours(
        "sizes", "large operations beside small ones", (Load("a", bytes=MIB, depth=16), Load("b", bytes=16 * MIB)),
        {"a": HALF, "b": HALF},
    ),
    Neighbours(
        "hang", "beside a job that hangs", (LARGE, Load("hung", hangs_after=5)), {"a": WHOLE}
    ),
    Neighbours(
        "flood", "beside a job that floods", (LARGE, FLOOD), {"a": Ideal(of_alone=0.5)}
    ),
    Neighbours(
        "limit", "limited to 200 Mbit/s", (Load("a", steering=(("limit", "200Mbit"),)), Load("b")),
        {"a": Ideal(bytes_s=200e6 / 8)},
    ),
    Neighbours(
        "priority", "above a job of a lower class",
        (Load("a", depth=8, steering=(("priority", "1"),)), Load("b")), {"a": WHOLE},
    ),
)  # fmt: skip


class Placement:
    """Services for jobs, here or on two nodes; all ends with the ``with`` block."""

    name = ""

    def __init__(self, build: Path) -> None:
        self.build = build
        self._programs: dict[str, list[Program]] = {}

    @property
    def service(self) -> Service:
        """That on which bytes are counted, and which is told what operators say."""
        raise NotImplementedError

    def _start_rank(self, load: Load, rank: int, command: list[str]) -> Program:
        raise NotImplementedError

    def __enter__(self) -> Placement:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def close(self) -> None:
        for job in list(self._programs):
            self.end(job)

    def start(self, load: Load) -> None:
        """Returns when the job moves bytes, and operators' words are in force."""
        for rank in range(RANKS):
            stop = [str(load.hangs_after)] if load.hangs_after and rank == 1 else []
            command = [load.job, str(rank), str(RANKS), str(load.bytes), str(load.depth), *stop]
            self._programs.setdefault(load.job, []).append(self._start_rank(load, rank, command))
        self._await_bytes(load.job)
        for verb, value in load.steering:
            code, text = self.service.ctl(verb, load.job, value)
            if code != 0:
                raise BenchError(f"headracectl {verb} {load.job} {value}: {text.strip()}")

    def _await_bytes(self, job: str) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while self.bytes_moved().get(job, 0) == 0:
            self._check(job)
            if time.monotonic() > deadline:
                raise BenchError(f"job {job} moved nothing in {START_SECONDS_MAX:.0f} s")
            time.sleep(0.05)

    def _check(self, job: str) -> None:
        for program in self._programs[job]:
            if program.poll() is not None:
                text = program.stderr.read() if program.stderr else ""
                raise BenchError(f"a rank of job {job} ended with {program.returncode}: {text[-500:]}")

    def end(self, job: str) -> None:
        for program in self._programs.pop(job):
            program.end()
            if program.stderr:
                program.stderr.close()
        deadline = time.monotonic() + START_SECONDS_MAX
        while job in self.bytes_moved():
            if time.monotonic() > deadline:
                raise BenchError(f"job {job} does not end")
            time.sleep(0.05)

    def bytes_moved(self) -> dict[str, int]:
        """By job, as the board has it."""
        jobs = self.service.ctl_json("jobs")
        rows = jobs["jobs"] if isinstance(jobs, dict) else jobs
        return {row["name"]: row["bytes_moved"] for row in rows}

    def rates(self, jobs: Sequence[str], seconds: float) -> dict[str, float]:
        """Bytes a second that each job moves, over so long."""
        begin, before = time.monotonic(), self.bytes_moved()
        time.sleep(seconds)
        end, after = time.monotonic(), self.bytes_moved()
        for job in jobs:
            self._check(job)
        return {job: (after[job] - before[job]) / (end - begin) for job in jobs}


_PIPES = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}


class InNode(Placement):
    name = "in one node"

    def __init__(self, build: Path) -> None:
        super().__init__(build)
        self._service = Service(build=build)
        self._service.__enter__()

    @property
    def service(self) -> Service:
        return self._service

    def _start_rank(self, load: Load, rank: int, command: list[str]) -> Program:
        del load, rank
        program = [str(self.build / "bench_load"), self.service.socket, *command]
        return THIS_MACHINE.start(program, **_PIPES)

    def close(self) -> None:
        super().close()
        self._service.close()


class BetweenNodes(Placement):
    """Rank i of every job is on node i."""

    def __init__(self, build: Path, rate_mbit: float) -> None:
        super().__init__(build)
        self.name = f"two nodes, {rate_mbit:g} Mbit/s"
        self._cluster = Cluster(nodes=RANKS, rate_mbit=rate_mbit)
        try:
            self._services = Services(self._cluster, build=build)
        except BaseException:
            self._cluster.close()
            raise

    @property
    def service(self) -> Service:
        return self._services[0]

    def _start_rank(self, load: Load, rank: int, command: list[str]) -> Program:
        del load
        node = self._cluster[rank]
        environment = {"HEADRACE_RENDEZVOUS": self._services.rendezvous}
        program = ["env", *(f"{name}={value}" for name, value in environment.items())]
        program += [str(self.build / "bench_load"), node.service.socket, *command]
        return node.start(program, **_PIPES)

    def close(self) -> None:
        super().close()
        self._cluster.close()


def measure_case(
    placement: Placement, case: Neighbours, seconds: float, settle: float, rounds: int
) -> dict:
    """What each job got, beside what it should.

    Jobs that should get a part of what they get alone run all the time, and the others come and go in
    rounds: rates of one and the same process are compared, from times next to each other, and the
    middle one of the rounds' ratios counts.
    """
    stays = [load for load in case.loads if case.needs_alone and load.job in case.ideals]
    comes = [load for load in case.loads if load not in stays]
    for load in stays:
        placement.start(load)
    found = []
    for _ in range(rounds if stays else 1):
        alone: dict[str, float] = {}
        if stays:
            time.sleep(settle)
            alone = placement.rates([load.job for load in stays], seconds)
        for load in comes:
            placement.start(load)
        time.sleep(settle)
        rates = placement.rates([load.job for load in case.loads], seconds)
        for load in comes:
            placement.end(load.job)
        found.append([job_row(case, job, rate, rates, alone.get(job)) for job, rate in rates.items()])
    for load in stays:
        placement.end(load.job)
    return {
        "key": case.key, "title": case.title, "where": placement.name,
        "jobs": middle_round(found), "rounds": found,
    }  # fmt: skip


def middle_round(rounds: Sequence[list[dict]]) -> list[dict]:
    """The round in which the first job that has an ideal came to the median part of it."""

    def part(rows: list[dict]) -> float:
        return next(row["of_ideal"] for row in rows if row["of_ideal"] is not None)

    return sorted(rounds, key=part)[len(rounds) // 2]


def job_row(
    case: Neighbours, job: str, rate: float, rates: dict[str, float], alone: float | None
) -> dict:
    ideal = case.ideals.get(job)
    wanted = None
    if ideal is not None and ideal.share is not None:
        wanted = ideal.share * sum(rates.values())
    elif ideal is not None and ideal.of_alone is not None and alone is not None:
        wanted = ideal.of_alone * alone
    elif ideal is not None:
        wanted = ideal.bytes_s
    return {
        "job": job, "bytes_s": rate, "share": rate / (sum(rates.values()) or 1.0),
        "alone_bytes_s": alone, "ideal_bytes_s": wanted,
        "of_ideal": rate / wanted if wanted else None,
    }  # fmt: skip
