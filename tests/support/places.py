"""Where a program runs: here, or inside a node of a cluster (cluster/node.py).

Programs end with the process that started them, also when that one is killed: by the kernel's word
to the child when its parent is gone. The parent is the *thread* that started it, so that programs are
started by threads that live long enough.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from typing import Any

ENTER_LIMIT_S = 10.0
END_LIMIT_S = 30.0


class Program(subprocess.Popen):
    """A started program. Signals go to the program, even where another process stands between."""

    def __init__(self, command: list[str], entered: bool = False, **options: Any) -> None:
        """``entered``: the command is one that runs the program as its only child, and ends as it
        ends."""
        super().__init__(command, **options)
        self.program_pid = self._only_child() if entered else self.pid

    def send_signal(self, sig: int) -> None:
        if self.poll() is not None:
            return
        # It may have ended, and the process between be about to.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.program_pid, sig)
        if sig == signal.SIGCONT:
            os.kill(self.pid, sig)  # nsenter stops when its child does, and must be woken with it

    def end(self) -> None:
        """Ends it now and for certain; safe in any state, a stopped program's included."""
        deadline = time.monotonic() + END_LIMIT_S
        while self.poll() is None:
            self.kill()
            try:
                self.wait(timeout=0.1)
            except subprocess.TimeoutExpired:
                os.kill(self.pid, signal.SIGCONT)  # as in send_signal
                if time.monotonic() > deadline:
                    raise

    def _only_child(self) -> int:
        """The child's pid; this process's own when it ended without one, with its reason on stderr."""
        deadline = time.monotonic() + ENTER_LIMIT_S
        while self.poll() is None and time.monotonic() < deadline:
            children = children_of(self.pid)
            if children:
                return children[0]
            time.sleep(0.001)
        return self.pid


def children_of(pid: int) -> list[int]:
    """The pids of a process's children, started by its main thread."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as children:
            return [int(child) for child in children.read().split()]
    except OSError:
        return []


# Runs after the kernel was asked to end it with its parent, which may have ended before.
_UNLESS_ORPHANED = 'test "$PPID" = "$0" && exec "$@"'


class Here:
    """The machine as it is."""

    def start(self, command: list[str], **options: Any) -> Program:
        """Starts it with the options of subprocess.Popen."""
        checked = ["sh", "-c", _UNLESS_ORPHANED, str(os.getpid()), *command]
        return Program(["setpriv", "--pdeathsig", "KILL", "--", *checked], **options)


HERE = Here()
