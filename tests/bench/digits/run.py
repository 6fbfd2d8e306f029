"""Trains on the digits through Headrace and without it, on nodes of this machine, and compares.

client/examples/quickstart builds and starts this. Everything started is ended by its pid, and nothing is left,
whatever happens.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from pathlib import Path

from contest import measure, print_contest, save_picture
from nodes import ROOT, Failure, Nodes, Place
from processes import train
from results import Result, conclude, print_table, read_result

HERE = Path(__file__).resolve().parent
PROGRAMS = ("headraced", "headracectl", "libheadrace.so")
RANKS_MAX = 16
RATE_MAX_MBIT = 999_999


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--nodes", type=int, help="default: 2, with one rank 1")
    parser.add_argument(
        "--rate", type=int, default=1000, help="Mbit/s of each link; 0: no limit"
    )
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--no-compare", action="store_true")
    arguments = parser.parse_args()
    if not 1 <= arguments.ranks <= RANKS_MAX:
        parser.error(f"--ranks {arguments.ranks}: 1 to {RANKS_MAX} are possible")
    if arguments.nodes is None:
        arguments.nodes = min(2, arguments.ranks)
    if not 1 <= arguments.nodes <= arguments.ranks:
        parser.error(
            f"--nodes {arguments.nodes}: with {arguments.ranks} ranks, 1 to {arguments.ranks}"
            " are possible, so that each node has a rank"
        )
    if not 0 <= arguments.rate <= RATE_MAX_MBIT:
        parser.error(
            f"--rate {arguments.rate}: 0 to {RATE_MAX_MBIT} Mbit/s are possible"
        )
    return arguments


def rank_program(way: str, arguments: argparse.Namespace) -> list[str]:
    """The command of a rank; global batches are cut alike whatever the number of ranks."""
    options = ["--way", way, "--epochs", str(arguments.epochs), "--parts", str(arguments.ranks)]
    return [str(HERE / "rank.py"), *options]


def over_nodes(
    title: str,
    way: str,
    places: list[Place],
    arguments: argparse.Namespace,
    nodes: Nodes,
    folder: Path,
) -> Result:
    """One training whose ranks are on the nodes, with what it sent between them."""
    before = nodes.bytes_sent()
    train(title, rank_program(way, arguments), places, folder)
    sent = [end - start for start, end in zip(before, nodes.bytes_sent(), strict=True)]
    return read_result(
        title, arguments.ranks, folder, str(nodes.count), nodes.link, sent
    )


def through_headrace(
    arguments: argparse.Namespace, nodes: Nodes, folder: Path
) -> Result:
    with nodes.services(arguments.build) as rendezvous:
        places = nodes.places(arguments.ranks)
        for place in places:
            place.environment.update(
                HEADRACE_LIBRARY=str(arguments.build / "libheadrace.so"),
                HEADRACE_SOCKET=place.node.service.socket,
                HEADRACE_RENDEZVOUS=rendezvous,
                HEADRACE_JOB="digits",
            )
        return over_nodes("headrace", "headrace", places, arguments, nodes, folder)


def through_gloo(arguments: argparse.Namespace, nodes: Nodes, folder: Path) -> Result:
    places = nodes.places(arguments.ranks)
    for place in places:
        # The nodes' link, or loopback: no name of this machine need resolve.
        place.environment["GLOO_SOCKET_IFNAME"] = place.node.interfaces[0]
    return over_nodes("DDP, gloo", "ddp", places, arguments, nodes, folder)


def in_one_process(arguments: argparse.Namespace, nodes: Nodes, folder: Path) -> Result:
    alone = Place(nodes.first, {})
    train("one process", rank_program("alone", arguments), [alone], folder)
    return read_result("one process", 1, folder)


def compare_ways(nodes: Nodes, build: Path) -> None:
    """Ends with what plans are worth, where there are links that can be slow."""
    if not nodes.linked:
        print(
            "\nNo comparison of plans: it needs two nodes, and links, which need root."
        )
        return
    contest = measure(nodes, build)
    print_contest(contest)
    print(f"One iteration under exact, as measured: {save_picture(contest)}")


def run(arguments: argparse.Namespace) -> int:
    for program in PROGRAMS:
        if not (arguments.build / program).exists():
            raise Failure(
                f"{arguments.build} has no {program}: build it, or name another --build"
            )
    ways = [through_headrace]
    if not arguments.no_compare:
        ways += [through_gloo, in_one_process]
    with Nodes(arguments.nodes, arguments.rate) as nodes:
        results = []
        for way in ways:
            own = nodes.directory / way.__name__
            own.mkdir()
            results.append(way(arguments, nodes, own))
        print_table(results)
        status = conclude(results)
        if status == 0 and not arguments.no_compare:
            compare_ways(nodes, arguments.build)
        return status


def main() -> int:
    def interrupted(number: int, unused: object) -> None:
        # Once is enough: what follows ends everything, and must not be disturbed.
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(each, signal.SIG_IGN)
        raise Failure(f"interrupted by {signal.Signals(number).name}", 128 + number)

    arguments = parse()
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, interrupted)
    try:
        return run(arguments)
    except Failure as failure:
        print(f"\nquickstart: {failure}", file=sys.stderr)
        return failure.status
    except (RuntimeError, subprocess.SubprocessError) as error:  # of the nodes
        print(f"\nquickstart: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
