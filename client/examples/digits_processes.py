"""Processes that the quickstart starts, watches and ends, and the progress they show."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

PYTHON = "/usr/bin/python3"
START_SECONDS_MAX = 15
STOP_SECONDS_MAX = 15
SILENCE_SECONDS_MAX = 180
BAR_WIDTH = 30
PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None)
_processes: list[Process] = []


class Failure(Exception):
    """Why the quickstart ends early; the text is for people."""

    def __init__(self, text: str, status: int = 1):
        super().__init__(text)
        self.status = status


def _die_with_parent() -> None:
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class Process:
    """One process with its output in a file. Its own session: ctrl-C is ours to pass on."""

    def __init__(
        self, name: str, command: list[str], folder: Path, environment: dict[str, str]
    ):
        self.name = name
        self.output = folder / f"{name}.log"
        threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        with open(self.output, "w") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **threads, **environment},
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        _processes.append(self)

    def status(self) -> int | None:
        """The exit status, None while it runs."""
        return self._process.poll()

    def tail(self) -> str:
        """The last words."""
        return (
            self.output.read_text(errors="replace").strip()[-2000:]
            or "it printed nothing"
        )

    def terminate(self) -> int:
        """Asks it to end; its exit status."""
        self._process.terminate()
        try:
            return self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            raise Failure(
                f"{self.name} did not end within {STOP_SECONDS_MAX} s of SIGTERM"
            ) from None

    def kill(self) -> None:
        """Ends it if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def await_listening(self, path: Path) -> None:
        """Returns when it accepts connections on a unix socket."""
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline:
            if self.status() is not None:
                raise Failure(f"{self.name} ended with {self.status()}: {self.tail()}")
            with socket.socket(socket.AF_UNIX) as probe:
                if probe.connect_ex(str(path)) == 0:
                    return
            time.sleep(0.05)
        raise Failure(
            f"{self.name} does not listen on {path} after {START_SECONDS_MAX} s"
        )


def stop_all() -> None:
    """Ends whatever of ours still runs: ranks are killed, the service drains first."""
    for process in reversed(_processes):
        try:
            if process.name == "headraced" and process.status() is None:
                process.terminate()
        finally:
            process.kill()


class Progress:
    """A bar that redraws itself on a terminal; elsewhere a plain line for every tenth of the way."""

    def __init__(self, title: str):
        self._title = title
        self._terminal = sys.stdout.isatty()
        self._shown = -1

    def show(self, step: int, steps: int, loss: str) -> None:
        tenth = 10 * step // steps
        text = f"{self._title:<11} step {step} of {steps}, loss {loss}"
        if self._terminal:
            done = BAR_WIDTH * step // steps
            bar = "#" * done + "." * (BAR_WIDTH - done)
            print(
                f"\r\033[K[{bar}] {text}", end="\n" if step == steps else "", flush=True
            )
        elif tenth > self._shown:
            print(text, flush=True)
        self._shown = tenth


def _check_alive(ranks: list[Process], title: str) -> bool:
    """Whether any still runs. The first that ended badly ends the training."""
    for process in ranks:
        status = process.status()
        if status is not None and status != 0:
            how = (
                f"by {signal.Signals(-status).name}" if status < 0 else f"with {status}"
            )
            raise Failure(f"{title}: {process.name} ended {how}: {process.tail()}")
    return any(process.status() is None for process in ranks)


def train(
    title: str, program: list[str], ranks: int, folder: Path, environment: dict
) -> None:
    """Runs one training to its end. Each rank leaves result.R.json and result.R.npy in `folder`."""
    processes = []
    for rank in range(ranks):
        own = {"RANK": str(rank), "WORLD_SIZE": str(ranks), **environment}
        command = [PYTHON, *program, "--result", str(folder / f"result.{rank}.json")]
        processes.append(Process(f"rank {rank}", command, folder, own))
    progress, latest, heard_at = Progress(title), "", time.monotonic()
    running = True
    while running:
        running = _check_alive(processes, title)
        found = re.findall(
            r"^step (\d+) of (\d+), loss (\S+)$",
            processes[0].output.read_text(),
            re.MULTILINE,
        )
        if found and found[-1] != latest:
            latest, heard_at = found[-1], time.monotonic()
            progress.show(int(latest[0]), int(latest[1]), latest[2])
        if time.monotonic() - heard_at > SILENCE_SECONDS_MAX:
            raise Failure(
                f"{title}: no progress for {SILENCE_SECONDS_MAX} s: {processes[0].tail()}"
            )
        if running:
            time.sleep(0.1)
