"""What tests/bench/torch measures: backends of torch.distributed by turns, operation by operation."""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from contenders import HERE, AbsentError, BenchError, Contender
from rounds import KIB, MIB
from support.cluster import Cluster, Services
from support.service import client_environment

BACKENDS = ("headrace", "gloo", "commux")
NEEDED = ("headrace", "gloo")  # a failure of another contender is its own, and the run goes on
# As peers/torch_rank.py has them.
OPERATIONS = (
    "all_reduce", "broadcast", "all_gather_into_tensor", "all_gather", "reduce_scatter_tensor", "reduce_scatter",
    "reduce", "gather", "scatter", "all_to_all_single", "send_recv", "send_one_way",
)  # fmt: skip
REPETITIONS = {4 * KIB: 60, 64 * KIB: 40, 1 * MIB: 16, 16 * MIB: 4, 64 * MIB: 2}
SMOKE_REPETITIONS = {4 * KIB: 3, 1 * MIB: 2}


@dataclasses.dataclass(frozen=True)
class Case:
    """Ranks on nodes of this machine: services on loopback, with equally many ranks each."""

    nodes: int
    ranks: int

    def node_of(self, rank: int) -> int:
        return rank * self.nodes // self.ranks


@dataclasses.dataclass(frozen=True)
class Figure:
    """One backend at one operation. Times in microseconds; what a size counts is in the README."""

    backend: str
    nodes: int
    ranks: int
    operation: str
    bytes: int
    samples: int
    p50_us: float
    least_us: float


@dataclasses.dataclass
class Outcome:
    """What came of a run."""

    figures: list[Figure] = dataclasses.field(default_factory=list)
    missing: dict[str, str] = dataclasses.field(default_factory=dict)  # backends, and why
    absent: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)  # operations of a backend, and why
    unfinished: list[str] = dataclasses.field(default_factory=list)  # what the time did not suffice for


def why_missing(python: str, backend: str) -> str | None:
    """Why a backend cannot be measured with that Python; None: it can."""
    if backend in NEEDED:
        return None
    done = subprocess.run([python, "-c", f"import torch, {backend}"], capture_output=True, text=True, timeout=120)
    if done.returncode == 0:
        return None
    return (done.stderr.strip().splitlines() or [f"`import {backend}` ended with {done.returncode}"])[-1]


@contextlib.contextmanager
def started(build: Path, python: str, backend: str, case: Case, shared: bool) -> Iterator[Contender]:
    """A backend's ranks. Those of headrace have a service on each node, the others need none."""
    where = ["shared"] if shared and backend == "headrace" else []
    with contextlib.ExitStack() as stack:
        services = None
        if backend == "headrace":
            cluster = stack.enter_context(Cluster(nodes=case.nodes, loopback=True))
            services = Services(cluster, build=build)
        contender = Contender(backend, case.ranks, members=case.ranks)
        stack.callback(contender.stop)
        for rank in range(case.ranks):
            environment = {"GLOO_SOCKET_IFNAME": "lo"}
            if services is not None:
                environment = client_environment(
                    HEADRACE_LIBRARY=str(build / "libheadrace.so"),
                    HEADRACE_SOCKET=services[case.node_of(rank)].socket,
                    HEADRACE_JOB="bench",
                    HEADRACE_RENDEZVOUS=services.rendezvous if case.nodes > 1 else "",
                )
            program = str(HERE / "peers" / "torch_rank.py")
            contender.start(
                [python, "-B", program, str(contender.folder), backend, str(rank), str(case.ranks), *where],
                **environment,
            )
        yield contender


class Turns:
    """Backends take turns at every operation and size; each round begins with another."""

    def __init__(
        self,
        build: Path,
        python: str,
        repetitions: dict[int, int],
        operations: list[str],
        said: Callable[[str], None],
        shared: bool = False,
    ) -> None:
        """``shared``: the tensors of headrace lie in memory that it shares with the service."""
        self._shared = shared
        self._build = build
        self._python = python
        self._repetitions = repetitions
        self._operations = operations
        self._said = said
        self.outcome = Outcome()

    def measure(self, case: Case, backends: list[str], rounds: int, deadline: float) -> None:
        """One case, until the deadline on the monotonic clock: the operation under way then is the last."""
        times: dict[tuple[str, str, int], list[int]] = {}
        with contextlib.ExitStack() as stack:
            running = [
                stack.enter_context(started(self._build, self._python, backend, case, self._shared))
                for backend in backends
                if backend not in self.outcome.missing
            ]
            for index in range(rounds):
                self._said(f"{case.nodes} nodes, {case.ranks} ranks: round {index + 1} of {rounds}")
                self._round(case, running, index, deadline, times)
        for (backend, operation, size), samples in times.items():
            figure = Figure(
                backend, case.nodes, case.ranks, operation, size, len(samples),
                statistics.median(samples) / 1e3, min(samples) / 1e3,
            )  # fmt: skip
            self.outcome.figures.append(figure)

    def _round(
        self, case: Case, running: list[Contender], index: int, deadline: float, times: dict[tuple, list[int]]
    ) -> None:
        for operation in self._operations:
            for size, count in self._repetitions.items():
                if time.monotonic() > deadline:
                    what = f"{operation} and what follows it, {case.nodes} nodes, {case.ranks} ranks, round {index + 1}"
                    self.outcome.unfinished.append(what)
                    return
                turn = index % len(running)
                for contender in running[turn:] + running[:turn]:
                    self._once(contender, operation, size, count, times)

    def _once(self, contender: Contender, operation: str, size: int, count: int, times: dict[tuple, list[int]]) -> None:
        name = contender.name
        if name in self.outcome.missing or operation in self.outcome.absent.get(name, {}):
            return
        try:
            measured = contender.measure(size, count, operation)
        except AbsentError as error:
            self.outcome.absent.setdefault(name, {})[operation] = str(error)
        except BenchError as error:
            if name in NEEDED:
                raise
            self.outcome.missing[name] = str(error)
        else:
            times.setdefault((name, operation, size), []).extend(measured)
