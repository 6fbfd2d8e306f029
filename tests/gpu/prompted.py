"""A program that runs until it is told to go on: its lines are awaited, and lines are sent to it."""

from __future__ import annotations

import os
import queue
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence

from ranks import HERE  # which knows where tests/support is

LINE_LIMIT_S = 60.0  # torch's start included
END_LIMIT_S = 5.0


class Prompted:
    """Ends with the block, in any state. Starts at once; threads read what it prints."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.name = name
        self.program = HERE.start(
            list(command), env={**os.environ, **environment}, text=True, errors="replace",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._said: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Prompted:
        return self

    def __exit__(self, *_: object) -> None:
        self.program.end()
        self._reader.join(END_LIMIT_S)  # one that it started may still hold its output

    def expect(self, word: str, limit_s: float = LINE_LIMIT_S) -> list[str]:
        """The rest of the next line that begins with this word, by tabs. Raises SystemExit with all that it
        has said where none comes."""
        deadline = time.monotonic() + limit_s
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise SystemExit(f"{self.name} does not say {word!r} within {limit_s:.0f} s:\n{self.text()}") from None
            if line is None:
                status = self.program.wait()
                raise SystemExit(f"{self.name} ended with {status} before {word!r}:\n{self.text()}")
            first, *rest = line.split("\t")
            if first == word:
                return rest

    def tell(self, line: str) -> None:
        try:
            self.program.stdin.write(line + "\n")
            self.program.stdin.flush()
        except BrokenPipeError:
            raise SystemExit(f"{self.name} had ended before it was told {line!r}:\n{self.text()}") from None

    def kill(self) -> float:
        """SIGKILL; when that was."""
        moment = time.monotonic()
        self.program.kill()
        return moment

    def finish(self, limit_s: float = LINE_LIMIT_S) -> None:
        """Waits for its end. Raises SystemExit where that is no good one."""
        if (status := self._status(limit_s)) != 0:
            raise SystemExit(f"{self.name} ended with {status}:\n{self.text()}")

    def fail(self, limit_s: float = LINE_LIMIT_S) -> None:
        """Waits for its end. Raises SystemExit where that is a good one."""
        if self._status(limit_s) == 0:
            raise SystemExit(f"{self.name} ended well:\n{self.text()}")

    def _status(self, limit_s: float) -> int:
        try:
            return self.program.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise SystemExit(f"{self.name} does not end within {limit_s:.0f} s:\n{self.text()}") from None

    def text(self) -> str:
        return "".join(self._said)

    def _read(self) -> None:
        for line in self.program.stdout:
            self._said.append(line)
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)
