"""The programs that tests/bench/run measures: how each is started, commanded and ended.

All serve the same protocol over FIFOs (peers/rounds.h) and sleep while another is measured.
"""

from __future__ import annotations

import itertools
import os
import select
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.directory import OwnDirectory
from support.places import HERE as THIS_MACHINE
from support.places import Program
from support.service import Place, Service

PYTHON = "/usr/bin/python3"
REPLY_SECONDS_MAX = 300


class BenchError(Exception):
    """A contender that did not do what it was asked; the text names it and the cause."""


class AbsentError(BenchError):
    """What was asked for is not in this contender; all of its processes said so, and it goes on."""


class Contender:
    """The processes of one contender with one number of ranks. One thread uses it.

    `commands` are the command lines to start, given the folder of the FIFOs. `members` is how many
    of its processes serve commands (all ranks, or the one process of the ideal).
    """

    def __init__(
        self,
        name: str,
        ranks: int,
        members: int,
        environment: dict[str, str] | None = None,
    ):
        self.name = name
        self.ranks = ranks
        self._members = members
        self._environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            **(environment or {}),
        }
        self._own = OwnDirectory(f"headrace-bench-{name.replace(' ', '-')}-")
        self._folder = Path(self._own.path)
        self._log = open(self._folder / "log", "w+")  # noqa: SIM115 - stop() closes it
        self._processes: list[Program] = []
        self._commands: list[int] = []
        self._results: list[int] = []
        for member in range(members):
            for kind, ends in (("command", self._commands), ("result", self._results)):
                path = self._folder / f"{kind}.{member}"
                os.mkfifo(path)
                # Opened for both directions, so that this does not wait for the other end.
                ends.append(os.open(path, os.O_RDWR | os.O_CLOEXEC))

    @property
    def folder(self) -> Path:
        return self._folder

    def start(
        self, command: list[str], place: Place = THIS_MACHINE, **environment: str
    ) -> Program:
        """Starts one of its processes, with more environment. One that cannot be started ends, and
        the next `measure` says why."""
        process = place.start(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env={**self._environment, **environment},
        )
        self._processes.append(process)
        return process

    def measure(self, size: int, repetitions: int, operation: str = "") -> list[int]:
        """Nanoseconds of each of `repetitions` operations of `size` bytes; `operation` where the
        contender has several.

        An operation takes from the moment the one before had ended on all ranks to the moment it has
        ended on all ranks. Raises AbsentError when no process has such an operation.
        """
        for command in self._commands:
            os.write(command, f"{operation} {size} {repetitions}\n".lstrip().encode())
        replies = [self._reply(member) for member in range(self._members)]
        absent = [text for word, text in replies if word == "absent"]
        if len(absent) == len(replies):
            raise AbsentError(absent[0])
        for member, (word, text) in enumerate(replies):
            if word != "ok":
                what = f"{operation} of {size} bytes, process {member}".lstrip()
                raise BenchError(f"{self.name}: {what}: {text}")
        per_member = [[int(each) for each in text.split()] for _, text in replies]
        ended = [max(times) for times in zip(*per_member, strict=True)]
        return [after - before for before, after in itertools.pairwise(ended)]

    def stop(self) -> None:
        """Ends the processes by pid and removes the folder. Safe to call in any state."""
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
        for process in self._processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.end()
        for end in self._commands + self._results:
            os.close(end)
        self._log.close()
        self._own.close()

    def _reply(self, member: int) -> tuple[str, str]:
        """A process's answer: its first word, and the rest."""
        result, pieces, deadline = (
            self._results[member],
            [],
            time.monotonic() + REPLY_SECONDS_MAX,
        )
        while not pieces or not pieces[-1].endswith(b"\n"):
            if select.select([result], [], [], 0.5)[0]:
                pieces.append(os.read(result, 1 << 20))
                continue
            dead = [
                process for process in self._processes if process.poll() is not None
            ]
            if dead:
                raise BenchError(
                    f"{self.name}: a process ended with {dead[0].returncode}: {self._tail()}"
                )
            if time.monotonic() > deadline:
                raise BenchError(
                    f"{self.name}: no answer after {REPLY_SECONDS_MAX} s: {self._tail()}"
                )
        word, _, text = b"".join(pieces).decode().strip().partition(" ")
        return word, text

    def _tail(self) -> str:
        self._log.flush()
        text = (self._folder / "log").read_text(errors="replace").strip()
        return text[-2000:] or "it printed nothing"


def start_ranks(build: Path, service: Service, ranks: int) -> Contender:
    contender = Contender("headrace", ranks, members=ranks)
    for rank in range(ranks):
        program = str(build / "bench_headrace")
        contender.start(
            [program, str(contender.folder), service.socket, str(rank), str(ranks)]
        )
    return contender


def start_ideal(build: Path, ranks: int) -> Contender:
    contender = Contender("ideal", ranks, members=1)
    contender.start([str(build / "bench_ideal"), str(contender.folder), str(ranks)])
    return contender


def start_gloo(build: Path, ranks: int) -> Contender:
    del build
    contender = Contender("gloo", ranks, members=ranks)
    for rank in range(ranks):
        program = str(HERE / "peers" / "gloo_rank.py")
        contender.start([PYTHON, program, str(contender.folder), str(rank), str(ranks)])
    return contender


def start_openmpi(build: Path, ranks: int) -> Contender:
    contender = Contender("openmpi", ranks, members=ranks)
    # "isolated" starts no remote daemons, so that no ssh need be installed. The rest is Open MPI's
    # own choice: it binds two ranks to cores, and yields when ranks outnumber cores.
    options = ["--allow-run-as-root", "--oversubscribe", "--mca", "plm", "isolated"]
    program = [str(build / "bench_openmpi"), str(contender.folder)]
    contender.start(["mpirun", *options, "-np", str(ranks), *program])
    return contender


PEERS = {"ideal": start_ideal, "openmpi": start_openmpi, "gloo": start_gloo}
