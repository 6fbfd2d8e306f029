"""One rank of tests/bench/operations: measures each operation at each size, and what the lanes' lines are."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import headrace
from headrace import arena

ELEMENT = 4  # bytes of float32
LINE_ROUNDS = 8  # all-reduces of each size, from which lanes have their lines


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", required=True, help="bytes")
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--ctl", required=True, help="headracectl")
    parser.add_argument("--result", type=Path, required=True)
    return parser.parse_args()


class Operations:
    """All operations on registered memory, with the bytes that headrace-plan operations means."""

    def __init__(self, session: headrace.Session, size: int) -> None:
        self.session, self.world = session, session.world_size
        self.part = size // ELEMENT // self.world
        self.count = self.part * self.world
        specs = [((self.count,), "float32", "own"), ((self.count * self.world,), "float32", "of_all")]
        self.own, self.of_all = session.arena(arena.bytes_for(specs)).tensors(specs)

    def calls(self) -> dict[str, Callable[[], Any]]:
        """The first rank and the last are as far from each other as ranks are."""
        session, own, first, last = self.session, self.own, 0, self.world - 1
        mine = own.range(0, self.count)
        parts = [self.of_all.range(rank * self.count, self.count) for rank in range(self.world)]
        is_first = session.rank == first

        def send() -> None:
            if is_first:
                session.send(own, last)
            elif session.rank == last:
                session.receive(own, first)

        def all_to_all() -> None:
            sent = [own.range(rank * self.part, self.part) for rank in range(self.world)]
            received = [self.of_all.range(rank * self.part, self.part) for rank in range(self.world)]
            session.all_to_all(received, sent)

        return {
            "send": send,
            "all_to_all": all_to_all,
            "reduce": lambda: session.reduce(own, root=first),
            "gather": lambda: session.gather(mine, parts if is_first else None, root=first),
            "scatter": lambda: session.scatter(mine, parts if is_first else None, root=first),
            "reduce_scatter": lambda: session.reduce_scatter(own),
            "all_gather": lambda: session.all_gather(own),
            "all_reduce": lambda: session.all_reduce(own),
            "broadcast": lambda: session.broadcast(own, root=first),
        }


def lines(ctl: str) -> list[dict[str, Any]]:
    command = [ctl, "--socket", os.environ["HEADRACE_SOCKET"], "--json", "lanes"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["lanes"]


def main() -> None:
    arguments = parse()
    session = headrace.init(job="operations")
    sizes = [Operations(session, size) for size in arguments.sizes]
    for _ in range(LINE_ROUNDS):
        for each in sizes:
            session.all_reduce(each.own)
    session.barrier()
    found: dict[str, Any] = {"lanes": lines(arguments.ctl) if session.rank == 0 else []}
    session.barrier()
    seconds: dict[str, dict[int, list[float]]] = {}
    for size, each in zip(arguments.sizes, sizes, strict=True):
        for name, call in each.calls().items():
            call()  # touches its memory
            measured = seconds.setdefault(name, {})[size] = []
            for _ in range(arguments.rounds):
                session.barrier()
                began = time.perf_counter()
                call()
                measured.append(time.perf_counter() - began)
    found["seconds"] = seconds
    arguments.result.write_text(json.dumps(found))
    session.barrier()
    session.close()


if __name__ == "__main__":
    main()
