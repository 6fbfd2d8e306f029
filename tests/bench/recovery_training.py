"""Processes of a training run that tests/bench/recovery disturbs, and when their iterations ended."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from contenders import PYTHON, BenchError
from support.service import Service, client_environment

RANK = Path(__file__).resolve().parent / "recovery_rank.py"
LIMIT_S = 180.0
BEFORE = 10  # iterations that all ranks have ended when one is killed
STEPS_MAX = 1_000_000


class Training:
    """The processes of one run, and what they have written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs: list[subprocess.Popen] = []

    def start(self, command: list[str], environment: dict[str, str]) -> subprocess.Popen:
        # What torch warns of is no figure.
        program = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.programs.append(program)
        return program

    def iterations(self) -> dict[int, list[tuple[float, int, int]]]:
        """By process: when each iteration ended, its number, and of how many ranks it was."""
        found = {}
        for path in self.folder.iterdir():
            if path.name.isdigit():
                whole = [line for line in path.read_text().splitlines(True) if line.endswith("\n")]
                rows = [line.split() for line in whole]
                found[int(path.name)] = [(float(a), int(b), int(c)) for a, b, c in rows]
        return found

    def wait(self, what: str, come: object) -> None:
        until = time.monotonic() + LIMIT_S
        while not come():
            if time.monotonic() > until:
                raise BenchError(f"{what}: not within {LIMIT_S:.0f} s")
            time.sleep(0.005)

    def await_begun(self, ranks: int) -> list[int]:
        """Until so many processes have iterations behind them; their ids."""

        def begun() -> list[int]:
            return [pid for pid, rows in self.iterations().items() if len(rows) >= BEFORE]

        self.wait("the first iterations", lambda: len(begun()) >= ranks)
        return sorted(begun())

    def recovery(self, victim: int, world: int) -> float:
        """Kills that process; seconds until all of the new world have ended an iteration."""
        killed_s = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        return self.await_world(killed_s, world, [victim])

    def await_world(self, fault_s: float, world: int, lost: Sequence[int]) -> float:
        """Seconds from the fault until all of the new world, none of ``lost``, have ended an iteration."""

        def first() -> list[float]:
            new = {}
            for pid, rows in self.iterations().items():
                after = [at for at, _, size in rows if at > fault_s and size == world]
                if pid not in lost and after:
                    new[pid] = after
            if len(new) < world:
                return []
            # The iteration that was under way may have ended before it was known.
            return [max(min(times) for times in new.values())]

        self.wait("an iteration after the fault", first)
        return first()[0] - fault_s

    def close(self) -> None:
        for program in self.programs:
            program.terminate()
        for program in self.programs:
            try:
                program.wait(timeout=20)
            except subprocess.TimeoutExpired:
                program.kill()
                program.wait()


@contextmanager
def training() -> Iterator[Training]:
    with tempfile.TemporaryDirectory() as folder:
        run = Training(Path(folder))
        try:
            yield run
        finally:
            run.close()


def start_of(
    run: Training,
    service: Service,
    rank: int,
    world: int,
    seconds: float,
    extra: dict[str, str],
    steps: int,
    way: str = "headrace",
) -> tuple[list[str], dict[str, Any]]:
    """Command and environment of one rank."""
    environment = client_environment(
        HEADRACE_SOCKET=service.socket,
        HEADRACE_JOB="recovery",
        RANK=str(rank),
        WORLD_SIZE=str(world),
        OMP_NUM_THREADS="1",
        **extra,
    )
    command = [PYTHON, "-B", str(RANK), way, str(seconds), str(run.folder), str(steps)]
    return command, environment


def begin(
    run: Training,
    service: Service,
    ranks: int,
    seconds: float,
    extra: dict[str, str],
    steps: int,
    way: str = "headrace",
) -> None:
    for rank in range(ranks):
        run.start(*start_of(run, service, rank, ranks, seconds, extra, steps, way))
