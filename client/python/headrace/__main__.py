"""Runs a command with a service of its own: no root, no unit, nothing to end afterwards.

usage: python3 -m headrace run [--report] [SERVICE-OPTION...] -- COMMAND...

The service lives as long as the command, with its socket and board in a folder that goes with it; what the
command starts finds it by HEADRACE_SOCKET, and headracectl there by HEADRACE_BOARD as well. Options before
the -- are headraced's (`headraced --help`), for example --operation-timeout-ms 30000. With --report it prints
on stderr, once the command has ended, what ranks waited for gradients and what was hidden, job by job,
beside what the plan promised.

headraced is the program that HEADRACE_HEADRACED names, else the wheel's, else the one in PATH; --report also
needs headracectl, beside it or in PATH. When this program is killed, the service ends and the folder goes.

Exit status: the command's, 128 and its number when a signal ended it; 2 for a wrong argument; 3 when the service
did not start; 4 when it ended before the command, which is then ended too.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping

from headrace import programs
from headrace.report import Watch

USAGE, NO_SERVICE, SERVICE_GONE = 2, 3, 4
_START_LIMIT_S = 30.0
_STOP_LIMIT_S = 30.0
_LOOK_S = 0.05
_PR_SET_PDEATHSIG = 1
_LOG_BYTES_MAX = 1 << 16  # of the service's log are kept ...
_TOLD_BYTES = 4000  # ... and shown when it fails
# Waits for the end of its standard input, which comes when the last process that holds the other end has
# ended. In the background of a shell that ends at once, so that it is nobody's child.
_REMOVE_LATER = 'exec 3<&0; (cat <&3; rm -rf -- "$1") >/dev/null 2>&1 &'


class _Failed(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def _find_service() -> str:
    named = os.environ.get("HEADRACE_HEADRACED")
    if named:
        found = shutil.which(named)
        if found is None:
            raise _Failed(
                NO_SERVICE,
                f"no program HEADRACE_HEADRACED={named}: name a headraced, or unset it for the one in PATH",
            )
        return found
    try:
        return programs.find("headraced")
    except programs.NotFoundError as error:
        raise _Failed(
            NO_SERVICE, f"{error}, or name one by HEADRACE_HEADRACED"
        ) from error


def _find_ctl(service: str) -> str:
    beside = os.path.join(os.path.dirname(os.path.realpath(service)), "headracectl")
    if os.access(beside, os.X_OK):
        return beside
    try:
        return programs.find("headracectl")
    except programs.NotFoundError as error:
        raise _Failed(NO_SERVICE, f"--report: {error}") from error


def _ends_with(parent: int) -> Callable[[], None]:
    """What a child does before it becomes its program, so that the parent's end, kill -9 too, ends it."""

    def before_start() -> None:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it ended before the kernel was asked
            os._exit(1)

    return before_start


def _accepts(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
        probe.connect(path)
        return True
    return False


class _Log:
    """The last of what a process prints; a pipe, so that no file grows."""

    def __init__(self) -> None:
        self._kept: collections.deque[bytes] = collections.deque()
        self._size = 0
        self._thread: threading.Thread | None = None

    def follow(self, process: subprocess.Popen) -> None:
        """Reads until the process has closed its end."""
        self._thread = threading.Thread(target=self._read, args=(process,), daemon=True)
        self._thread.start()

    def _read(self, process: subprocess.Popen) -> None:
        assert process.stdout is not None
        descriptor = process.stdout.fileno()
        while piece := os.read(descriptor, 1 << 12):
            self._kept.append(piece)
            self._size += len(piece)
            while self._size > _LOG_BYTES_MAX:
                self._size -= len(self._kept.popleft())

    def end(self) -> str:
        """The last lines, once the process has ended."""
        if self._thread is not None:
            self._thread.join(_STOP_LIMIT_S)
        text = b"".join(self._kept)[-_TOLD_BYTES:]
        return text.decode(errors="replace").strip()


@contextlib.contextmanager
def _folder() -> Iterator[tuple[str, int]]:
    """A folder that goes with the block, or with the last process that has the descriptor."""
    folder = tempfile.mkdtemp(prefix="headrace-")
    read, write = os.pipe()
    try:
        # Without a shell the folder stays behind when this program is killed.
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            subprocess.run(
                ["/bin/sh", "-c", _REMOVE_LATER, "sh", folder],
                stdin=read,
                start_new_session=True,
                check=True,
            )
        os.close(read)
        yield folder, write
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(write)


def _listening(
    process: subprocess.Popen, program: str, where: Mapping[str, str], log: _Log
) -> None:
    """Returns when the service takes connections."""
    deadline = time.monotonic() + _START_LIMIT_S
    while not _accepts(where["HEADRACE_SOCKET"]):
        if process.poll() is not None:
            raise _Failed(NO_SERVICE, f"{program} did not start:\n{log.end()}")
        if time.monotonic() > deadline:
            process.kill()
            raise _Failed(
                NO_SERVICE,
                f"{program} took no connection within {_START_LIMIT_S:g} s:\n{log.end()}",
            )
        time.sleep(_LOOK_S)


@contextlib.contextmanager
def _service(
    program: str, options: list[str]
) -> Iterator[tuple[subprocess.Popen, dict[str, str]]]:
    """A service that listens, and what its clients' environment has more."""
    with _folder() as (folder, lifeline):
        where = {
            "HEADRACE_SOCKET": os.path.join(folder, "socket"),
            "HEADRACE_BOARD": os.path.join(folder, "board"),
        }
        log = _Log()
        process = subprocess.Popen(
            [program, *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **where},
            preexec_fn=_ends_with(os.getpid()),
            pass_fds=(lifeline,),
            # Ctrl-C is for the command; the service ends after it.
            start_new_session=True,
        )
        log.follow(process)
        try:
            _listening(process, program, where, log)
            yield process, where
            if process.poll() is not None:
                raise _Failed(
                    SERVICE_GONE,
                    f"the service ended before the command:\n{log.end()}",
                )
        finally:
            process.terminate()
            try:
                process.wait(_STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _run(service: subprocess.Popen, command: list[str], where: dict[str, str]) -> int:
    """The command's exit status; what asks this program to end is handed on to it."""
    asked: list[int] = []  # also before the command can be asked
    started: list[subprocess.Popen] = []

    def hand_on(number: int, _: object) -> None:
        asked.append(number)
        for each in started:
            each.send_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, hand_on)
    try:
        process = subprocess.Popen(command, env={**os.environ, **where})
    except OSError as error:
        raise _Failed(USAGE, f"cannot start {command[0]}: {error.strerror}") from error
    started.append(process)
    # From a terminal, the command has got Ctrl-C already; twice does no harm.
    for number in tuple(asked):
        process.send_signal(number)
    while True:
        try:
            status = process.wait(_LOOK_S)
            return 128 - status if status < 0 else status
        except subprocess.TimeoutExpired:
            if service.poll() is not None:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_STOP_LIMIT_S)
                process.kill()
                process.wait()
                return SERVICE_GONE


def _run_all(options: list[str], command: list[str], report: bool) -> int:
    program = _find_service()
    ctl = _find_ctl(program) if report else ""
    with _service(program, options) as (service, where):
        if not report:
            return _run(service, command, where)
        watch = Watch(ctl, {**os.environ, **where}, _ends_with(os.getpid()))
        try:
            return _run(service, command, where)
        finally:
            watch.close()
            print(watch.text(), file=sys.stderr, flush=True)


def main(arguments: list[str] | None = None) -> int:
    """See the module's words."""
    given = sys.argv[1:] if arguments is None else arguments
    place = given.index("--") if "--" in given else len(given)
    options, command = given[:place], given[place + 1 :]
    if {"-h", "--help"} & set(options):
        print(__doc__.strip())
        return 0
    if not options or options[0] != "run" or not command:
        usage = __doc__.split("\n\n")[1]
        print(
            f"headrace: give `run`, options of the service, --, and a command\n{usage}",
            file=sys.stderr,
        )
        return USAGE
    # The folder goes also when this program is asked to end before the command has begun.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    report = "--report" in options[1:]
    try:
        others = [option for option in options[1:] if option != "--report"]
        return _run_all(others, command, report)
    except _Failed as failure:
        print(f"headrace run: {failure}", file=sys.stderr)
        return failure.status


if __name__ == "__main__":
    sys.exit(main())
