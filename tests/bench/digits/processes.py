"""Processes that the quickstart starts and watches, and the progress they show."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from nodes import ROOT, Failure, Place

PYTHON = "/usr/bin/python3"
SILENCE_SECONDS_MAX = 180
BAR_WIDTH = 30


class Process:
    """One process with its output in a file; it ends with its node, if not before."""

    def __init__(self, name: str, command: list[str], folder: Path, place: Place):
        self.name = name
        self.output = folder / f"{name}.log"
        same = {
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT / "client" / "python"),
        }
        with open(self.output, "w") as output:
            self._program = place.node.start(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **same, **place.environment},
            )

    def status(self) -> int | None:
        """The exit status, None while it runs."""
        return self._program.poll()

    def tail(self) -> str:
        """The last words."""
        return (
            self.output.read_text(errors="replace").strip()[-2000:]
            or "it printed nothing"
        )


class Progress:
    """A bar that redraws itself on a terminal; elsewhere a plain line for every tenth of the way."""

    def __init__(self, title: str):
        self._title = title
        self._terminal = sys.stdout.isatty()
        self._shown = -1

    def show(self, step: int, steps: int, words: str) -> None:
        tenth = 10 * step // steps
        text = f"{self._title:<11} step {step} of {steps}, {words}"
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


def train(title: str, program: list[str], places: list[Place], folder: Path) -> None:
    """Runs one training to its end, a rank at each place.

    Rank R leaves result.R.json in `folder`, and what else the program writes beside it.
    """
    processes = []
    for rank, place in enumerate(places):
        command = [PYTHON, *program, "--result", str(folder / f"result.{rank}.json")]
        name = f"rank {rank} on node {place.node.name}"
        processes.append(Process(name, command, folder, place))
    progress, latest, heard_at = Progress(title), "", time.monotonic()
    running = True
    while running:
        running = _check_alive(processes, title)
        found = re.findall(
            r"^step (\d+) of (\d+), (.+)$",
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
