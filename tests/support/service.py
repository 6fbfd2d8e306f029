"""A real headraced in a directory of its own, for tests and benchmarks."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
START_LIMIT_S = 60.0


def build_directory() -> str:
    """Where the programs are: HEADRACE_BUILD, else build/release."""
    return os.environ.get("HEADRACE_BUILD", os.path.join(ROOT, "build", "release"))


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


class Service:
    """Starts the service; ends it, and removes its directory, with the ``with`` block."""

    def __init__(self, *flags: str, directory: str | None = None) -> None:
        self._own_directory = directory is None
        self.directory = directory or tempfile.mkdtemp(prefix="headrace-test-")
        self.socket = os.path.join(self.directory, "socket")
        self.board = os.path.join(self.directory, "board")
        self.log_path = os.path.join(self.directory, "log")
        self.flags = flags
        self.process: subprocess.Popen[bytes] | None = None

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
        return self.process.pid

    def command(self) -> list[str]:
        program = os.path.join(build_directory(), "headraced")
        places = ["--socket", self.socket, "--board", self.board]
        return [program, *places, *self.flags]

    def start(self) -> None:
        """Starts it and returns once it listens."""
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline = time.monotonic() + START_LIMIT_S
        while self.ctl("status")[0] != 0:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"headraced did not start:\n{self.log()}")
            time.sleep(0.02)

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(timeout=30)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(timeout=30)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.kill()
        if self._own_directory:
            shutil.rmtree(self.directory, ignore_errors=True)

    def log(self) -> str:
        with open(self.log_path, encoding="utf-8", errors="replace") as log:
            return log.read()

    def ctl(self, *arguments: str) -> tuple[int, str]:
        """Runs headracectl on this service: exit code and what it printed."""
        program = os.path.join(build_directory(), "headracectl")
        places = ["--socket", self.socket, "--board", self.board]
        done = subprocess.run(
            [program, *places, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.returncode, done.stdout + done.stderr

    def ctl_json(self, *arguments: str) -> object:
        return json.loads(self.ctl(*arguments, "--json")[1])

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
