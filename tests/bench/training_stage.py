"""A cluster with services on whose nodes ranks train, and what their figures come to."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from contenders import HERE, PYTHON, BenchError
from figures import ALONE, figures, rate_for, sent_seconds, wrong
from support.cluster import Cluster, Services
from support.places import Program
from support.service import Service, client_environment
from training_breakdown import breakdowns

PYTORCH_PORT = 29500
SILENCE_SECONDS_MAX = 240
MEASURED_FIRST = {"warm_up": 2, "steps": 8, "rounds": 1, "ways": (ALONE,)}


@dataclasses.dataclass(frozen=True)
class Case:
    """One training to measure."""

    model: str
    nodes: int
    rate_mbit: float | None  # None: so that the ratio comes out
    ratio: float  # of communication to computation
    batch: int
    warm_up: int
    steps: int
    rounds: int
    ways: tuple[str, ...]
    trace: bool = False

    @property
    def title(self) -> str:
        return f"{self.model}, {self.nodes} nodes, links of {self.rate_mbit:g} Mbit/s"

    def options(self) -> list[str]:
        named = {
            "model": self.model, "batch": self.batch, "warm-up": self.warm_up,
            "steps": self.steps, "rounds": self.rounds,
        }  # fmt: skip
        words = [word for name, value in named.items() for word in (f"--{name}", str(value))]
        return [*words, *(["--trace"] if self.trace else []), "--ways", *self.ways]


def _start(case: Case, cluster: Cluster, service: Service, rank: int, build: Path) -> Program:
    folder = Path(cluster.directory)
    with open(folder / f"training.{rank}.log", "w") as log:
        return cluster[rank].start(
            [PYTHON, "-B", str(HERE / "training_rank.py"), *case.options(),
             "--result", str(folder / f"training.{rank}.json"), "--ctl", str(build / "headracectl")],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            # As torchrun sets it, and where the service is.
            env=client_environment(
                RANK=str(rank), WORLD_SIZE=str(case.nodes), LOCAL_RANK="0", LOCAL_WORLD_SIZE="1",
                MASTER_ADDR=cluster[0].address, MASTER_PORT=str(PYTORCH_PORT),
                GLOO_SOCKET_IFNAME="eth0", OMP_NUM_THREADS="1",
                HEADRACE_LIBRARY=str(build / "libheadrace.so"),
                HEADRACE_SOCKET=service.socket, HEADRACE_BOARD=service.board,
            ),
        )  # fmt: skip


def _await(programs: list[Program], logs: list[Path], said: Callable[[str], None]) -> None:
    """Until all have ended. Raises with the last words of the first that ended badly, or falls silent."""
    heard, heard_at = 0, time.monotonic()
    while True:
        lines = logs[0].read_text().splitlines()
        for line in lines[heard:]:
            said(line)
        if len(lines) > heard:
            heard, heard_at = len(lines), time.monotonic()
        states = [program.poll() for program in programs]
        bad = [rank for rank, state in enumerate(states) if state not in (None, 0)]
        if bad or time.monotonic() - heard_at > SILENCE_SECONDS_MAX:
            rank = bad[0] if bad else 0
            how = f"ended with {states[rank]}" if bad else f"said nothing for {SILENCE_SECONDS_MAX} s"
            raise BenchError(f"rank {rank} {how}:\n{logs[rank].read_text()[-2000:]}")
        if None not in states:
            return
        time.sleep(0.2)


def _run_ranks(
    case: Case, cluster: Cluster, services: Services, build: Path, said: Callable[[str], None]
) -> list[dict]:
    """A rank on each node; what each measured, in their order."""
    with contextlib.ExitStack() as ends:
        programs = []
        for rank in range(case.nodes):
            programs.append(_start(case, cluster, services[rank], rank, build))
            ends.callback(programs[-1].end)
        folder = Path(cluster.directory)
        _await(programs, [folder / f"training.{rank}.log" for rank in range(case.nodes)], said)
        return [
            json.loads((folder / f"training.{rank}.json").read_text()) for rank in range(case.nodes)
        ]


def _with_rate(case: Case, run: Callable[[Case], list[dict]]) -> Case:
    """The rate at which all gradients take as long as computing does, or ``ratio`` times that, while
    all nodes compute on the cores that they share."""
    ranks = run(dataclasses.replace(case, **MEASURED_FIRST))
    (alone,) = figures(ranks)
    seconds = alone.iteration_s * case.ratio
    return dataclasses.replace(case, rate_mbit=rate_for(ranks[0]["bytes"], case.nodes, seconds))


def measure_case(case: Case, build: Path, said: Callable[[str], None]) -> dict:
    """All ways by turns."""
    with Cluster(nodes=case.nodes, rate_mbit=case.rate_mbit) as cluster:
        services = Services(cluster, build=build)

        def run(case: Case) -> list[dict]:
            title = f"{case.model}, {case.nodes} nodes"
            return _run_ranks(case, cluster, services, build, lambda text: said(f"{title}: {text}"))

        if case.rate_mbit is None:
            case = _with_rate(case, run)
            for node in cluster.nodes:
                node.set_rate(case.rate_mbit)
        ranks = run(case)
    found = figures(ranks)
    problem = wrong(found)
    if problem:
        raise BenchError(f"{case.title}: {problem}")
    size = ranks[0]["bytes"]
    return {
        "title": case.title,
        **dataclasses.asdict(case),
        "bytes": size,
        "tensors": ranks[0]["tensors"],
        "communication_s": sent_seconds(size, case.nodes, case.rate_mbit),
        "figures": found,
        "breakdowns": breakdowns(ranks, case) if case.trace else [],
    }
