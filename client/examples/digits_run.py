"""Starts the service, trains on the digits through it and without it, and compares. See quickstart.

Everything started is ended by its pid and the temporary folder is removed, whatever happens.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import tempfile
from pathlib import Path

from digits_processes import Failure, Process, stop_all, train
from digits_results import Result, conclude, print_table, read_result

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--no-compare", action="store_true")
    return parser.parse_args()


@contextlib.contextmanager
def service(build: Path, folder: Path):
    """headraced with socket and board in `folder`; yields the socket's path; drains at the end.

    After a failure it is left to stop_all, which ends the ranks first.
    """
    socket = folder / "headrace.sock"
    paths = ["--socket", str(socket), "--board", str(folder / "board")]
    process = Process("headraced", [str(build / "headraced"), *paths], folder, {})
    process.await_listening(socket)
    yield socket
    status = process.terminate()
    if status != 0:
        raise Failure(
            f"headraced ended with {status} when it was asked to stop: {process.tail()}"
        )


def through_headrace(arguments: argparse.Namespace, folder: Path) -> Result:
    with service(arguments.build, folder) as socket:
        environment = {
            "PYTHONPATH": str(ROOT / "client" / "python"),
            "HEADRACE_LIBRARY": str(arguments.build / "libheadrace.so"),
            "HEADRACE_SOCKET": str(socket),
            "HEADRACE_JOB": "digits",
        }
        program = [str(HERE / "digits.py"), "--epochs", str(arguments.epochs)]
        train("headrace", program, arguments.ranks, folder, environment)
    return read_result("headrace", arguments.ranks, folder)


def through_gloo(arguments: argparse.Namespace, folder: Path) -> Result:
    # Ranks meet over the loopback interface, so that no name of this machine need resolve.
    environment = {"DIGITS_STORE": str(folder / "store"), "GLOO_SOCKET_IFNAME": "lo"}
    program = [str(HERE / "digits_compare.py"), "--epochs", str(arguments.epochs)]
    train("DDP, gloo", program, arguments.ranks, folder, environment)
    return read_result("DDP, gloo", arguments.ranks, folder)


def in_one_process(arguments: argparse.Namespace, folder: Path) -> Result:
    program = [str(HERE / "digits_compare.py"), "--epochs", str(arguments.epochs)]
    program += ["--parts", str(arguments.ranks)]
    train("one process", program, 1, folder, {"WORLD_SIZE": "0"})
    return read_result("one process", 1, folder)


def run(arguments: argparse.Namespace) -> int:
    ways = [through_headrace]
    if not arguments.no_compare:
        ways += [through_gloo, in_one_process]
    with tempfile.TemporaryDirectory(prefix="headrace-quickstart-") as folder:
        try:
            results = []
            for way in ways:
                own = Path(folder) / way.__name__
                own.mkdir()
                results.append(way(arguments, own))
            print_table(results)
            return conclude(results)
        finally:
            stop_all()


def main() -> int:
    def interrupted(number: int, unused: object) -> None:
        # Once is enough: what follows ends everything, and must not be disturbed.
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(each, signal.SIG_IGN)
        raise Failure(f"interrupted by {signal.Signals(number).name}", 128 + number)

    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, interrupted)
    try:
        return run(parse())
    except Failure as failure:
        print(f"\nquickstart: {failure}", file=sys.stderr)
        return failure.status


if __name__ == "__main__":
    sys.exit(main())
