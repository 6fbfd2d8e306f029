"""A real headraced in a directory of its own, for tests and benchmarks."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from typing import Protocol

from .directory import OwnDirectory
from .patience import await_equal, until
from .places import HERE, Program

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
START_LIMIT_S = 60.0


def build_directory() -> str:
    """Where the programs are: HEADRACE_BUILD, else build/release."""
    return os.environ.get("HEADRACE_BUILD", os.path.join(ROOT, "build", "release"))


def service_directory() -> str:
    """Where headraced is: HEADRACE_SERVICE_BUILD, which clients that no sanitizer can be loaded into have beside
    HEADRACE_BUILD, else where all programs are."""
    return os.environ.get("HEADRACE_SERVICE_BUILD", build_directory())


def client_environment(**more: str) -> dict[str, str]:
    """The environment in which a Python client finds the package and the library."""
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.path.join(ROOT, "client", "python")
    environment["HEADRACE_LIBRARY"] = os.path.join(build_directory(), "libheadrace.so")
    if "HEADRACE_TEST_PRELOAD" in environment:  # a sanitizer's run time
        environment["LD_PRELOAD"] = environment["HEADRACE_TEST_PRELOAD"]
        environment["ASAN_OPTIONS"] = "detect_leaks=0"  # Python keeps memory until its end
    environment.update(more)
    return environment


def rank_environment(
    socket: str,
    job: str,
    rendezvous: str,
    rank: int,
    world_size: int,
    reconnect_s: float,
    **more: str,
) -> dict[str, str]:
    """The environment of a job's rank that reconnects, of a client of the service at that socket."""
    return client_environment(
        HEADRACE_SOCKET=socket,
        HEADRACE_JOB=job,
        HEADRACE_RENDEZVOUS=rendezvous,
        HEADRACE_RECONNECT=str(int(reconnect_s)),
        RANK=str(rank),
        WORLD_SIZE=str(world_size),
        **more,
    )


class Place(Protocol):
    """Where programs can be started; places.py, cluster/node.py."""

    def start(self, command: list[str], **options: object) -> Program: ...


class StartError(RuntimeError):
    """The service did not start; the text has its log."""


class Service:
    """Starts the service; ends it, and removes its directory, with the ``with`` block.

    ``directory`` is one that exists and stays; ``environment`` is added to this process's.
    """

    def __init__(
        self,
        *flags: str,
        directory: str | None = None,
        build: str | os.PathLike[str] | None = None,
        place: Place = HERE,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._own = OwnDirectory("headrace-test-") if directory is None else None
        self.directory = self._own.path if self._own else str(directory)
        self.socket = os.path.join(self.directory, "socket")
        self.board = os.path.join(self.directory, "board")
        self.log_path = os.path.join(self.directory, "log")
        self.flags = flags
        self.place = place
        self.process: Program | None = None
        self._build = os.fspath(build or build_directory())
        self._service_build = os.fspath(build or service_directory())
        # Doubles of libraries are of the build of whom they are loaded into.
        own = {name: self._of_the_service(value) for name, value in (environment or {}).items()}
        self._environment = {**os.environ, **own}

    def __enter__(self) -> Service:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.program_pid

    def command(self) -> list[str]:
        program = os.path.join(self._service_build, "headraced")
        places = ["--socket", self.socket, "--board", self.board]
        return [program, *places, *map(self._of_the_service, self.flags)]

    def _of_the_service(self, value: str | os.PathLike[str]) -> str:
        """The value, with the service's build in the place of the clients' at its beginning."""
        value = os.fspath(value)
        inside = value.startswith(self._build + os.sep)
        return self._service_build + value[len(self._build) :] if inside else value

    def start(self) -> None:
        """Starts it and returns once it listens."""
        with open(self.log_path, "ab") as log:
            self.process = self.place.start(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
            )
        deadline = time.monotonic() + START_LIMIT_S
        while not (self._accepts() and self.ctl("status")[0] == 0):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise StartError(f"headraced did not start:\n{self.log()}")
            time.sleep(0.02)

    def _accepts(self) -> bool:
        """Whether it takes connections: the board is there earlier."""
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(self.socket)
            except OSError:
                return False
        return True

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(timeout=30)

    def kill(self) -> None:
        assert self.process is not None
        self.process.end()

    def close(self) -> None:
        if self.process is not None:
            self.process.end()
        if self._own is not None:
            self._own.close()

    def log(self) -> str:
        with open(self.log_path, encoding="utf-8", errors="replace") as log:
            return log.read()

    def await_log(self, pattern: str, count: int = 1) -> list[str]:
        """The lines of the log in which the pattern is found, as soon as there are so many: a thread of
        its own writes them."""

        def found() -> list[str]:
            return [line for line in self.log().splitlines() if re.search(pattern, line)]

        try:
            return until(lambda: lines if len(lines := found()) >= count else [], f"{pattern} in the log")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log()}") from None

    def http_port(self) -> int:
        """The port of --http-address."""
        match = re.search(r"\(port (\d+)\)", self.await_log(r"http_address \S+ \(port \d+\)")[-1])
        assert match is not None
        return int(match[1])

    def await_event(self, text: str, **fields: object) -> None:
        """Returns when an event has the text, and these fields."""

        def shown() -> bool:
            events = self.ctl_json("events")["events"]  # type: ignore[index]
            return any(
                text in event["text"] and all(event[key] == value for key, value in fields.items())
                for event in events
            )

        until(shown, f"an event with {text!r} {fields}")

    def suspend(self) -> None:
        """SIGSTOP; returns when every thread stands: the first to take the signal stops the others."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        until(lambda: all(state == "T" for state in self._thread_states()), "the service stands still")

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def _thread_states(self) -> list[str]:
        tasks = f"/proc/{self.pid}/task"
        states = []
        for task in os.listdir(tasks):
            with open(f"{tasks}/{task}/stat", encoding="utf-8") as stat:
                states.append(stat.read().rpartition(")")[2].split()[0])
        return states

    def await_job_gone(self, name: str = "") -> None:
        """Returns when the board shows no job of that name, or with it in its name; none at all by default."""

        def left() -> list[str]:
            jobs = self.ctl_json("jobs")["jobs"]  # type: ignore[index]
            return [job["name"] for job in jobs if name in job["name"]]

        await_equal(left, [])

    def ctl(self, *arguments: str) -> tuple[int, str]:
        """Runs headracectl on this service: exit code and what it printed."""
        code, output, errors = self._run_ctl(*arguments)
        return code, output + errors

    def ctl_json(self, *arguments: str) -> object:
        # What it complains of stands on stderr, beside the answer.
        return json.loads(self._run_ctl(*arguments, "--json")[1])

    def _run_ctl(self, *arguments: str) -> tuple[int, str, str]:
        program = os.path.join(self._build, "headracectl")
        places = ["--socket", self.socket, "--board", self.board]
        with self.place.start(
            [program, *places, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                output, errors = process.communicate(timeout=60)
            except BaseException:
                process.end()
                raise
        return process.returncode, output, errors

    # What the kernel says of the process.

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def mappings(self) -> list[str]:
        """The mappings of shared memory that clients handed over."""
        with open(f"/proc/{self.pid}/maps", encoding="utf-8") as maps:
            return [line for line in maps if "/memfd:" in line]

    def status_field(self, name: str) -> int:
        with open(f"/proc/{self.pid}/status", encoding="utf-8") as status:
            for line in status:
                if line.startswith(name + ":"):
                    return int(line.split()[1])
        raise KeyError(name)

    def switches(self) -> int:
        """How often threads of the service gave up a core of their own will: each wakeup once."""
        total = 0
        for task in os.listdir(f"/proc/{self.pid}/task"):
            with open(f"/proc/{self.pid}/task/{task}/status", encoding="utf-8") as status:
                for line in status:
                    if line.startswith("voluntary_ctxt_switches"):
                        total += int(line.split()[1])
        return total

    def idle_switches(self) -> int:
        """The same, once the service has slept for half a second."""

        def sleeps() -> bool:
            before = self.switches()
            time.sleep(0.5)
            return self.switches() == before

        until(sleeps, "the service sleeps for half a second")
        return self.switches()
