"""Runs a command with a service of its own: no root, no unit, nothing to end afterwards.

usage: python3 -m headrace run [SERVICE-OPTION...] -- COMMAND...

The service lives as long as the command, with its socket and board in a folder that goes with it; what the
command starts finds it by HEADRACE_SOCKET, and headracectl there by HEADRACE_BOARD as well. Options before
the -- are headraced's (`headraced --help`), for example --operation-timeout-ms 30000.

headraced is the program that HEADRACE_HEADRACED names, else the one in PATH.

Exit status: the command's, 128 and its number when a signal ended it; 2 for a wrong argument; 3 when the service
did not start; 4 when it ended before the command, which is then ended too.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

USAGE, NO_SERVICE, SERVICE_GONE = 2, 3, 4
_START_LIMIT_S = 30.0
_STOP_LIMIT_S = 30.0
_LOOK_S = 0.05
_PR_SET_PDEATHSIG = 1
_TOLD_BYTES = 4000  # of the service's log, when it fails


class _Failed(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def _find_service() -> str:
    named = os.environ.get("HEADRACE_HEADRACED")
    found = shutil.which(named or "headraced")
    if found is None:
        where = f"HEADRACE_HEADRACED={named}" if named else "headraced in PATH"
        raise _Failed(
            NO_SERVICE,
            f"no program {where}: install the package headrace, or name a build's headraced by "
            "HEADRACE_HEADRACED",
        )
    return found


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _accepts(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
        probe.connect(path)
        return True
    return False


def _end_of(log: str) -> str:
    with open(log, encoding="utf-8", errors="replace") as file:
        return file.read()[-_TOLD_BYTES:].strip()


@contextlib.contextmanager
def _service(options: list[str]) -> Iterator[tuple[subprocess.Popen, dict[str, str]]]:
    """A service that listens, and what its clients' environment has more."""
    program = _find_service()
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        where = {
            "HEADRACE_SOCKET": os.path.join(folder, "socket"),
            "HEADRACE_BOARD": os.path.join(folder, "board"),
        }
        log = os.path.join(folder, "log")
        with open(log, "wb") as file:
            process = subprocess.Popen(
                [program, *options],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env={**os.environ, **where},
                preexec_fn=_end_with_parent,
                # Ctrl-C is for the command; the service ends after it.
                start_new_session=True,
            )
        try:
            deadline = time.monotonic() + _START_LIMIT_S
            while not _accepts(where["HEADRACE_SOCKET"]):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise _Failed(
                        NO_SERVICE, f"{program} did not start:\n{_end_of(log)}"
                    )
                time.sleep(_LOOK_S)
            yield process, where
            if process.poll() is not None:
                raise _Failed(
                    SERVICE_GONE,
                    f"the service ended before the command:\n{_end_of(log)}",
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
    try:
        process = subprocess.Popen(command, env={**os.environ, **where})
    except OSError as error:
        raise _Failed(USAGE, f"cannot start {command[0]}: {error.strerror}") from error
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # From a terminal, the command has got Ctrl-C already; twice does no harm.
        signal.signal(number, lambda each, _: process.send_signal(each))
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
    try:
        with _service(options[1:]) as (service, where):
            return _run(service, command, where)
    except _Failed as failure:
        print(f"headrace run: {failure}", file=sys.stderr)
        return failure.status


if __name__ == "__main__":
    sys.exit(main())
