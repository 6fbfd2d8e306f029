"""One rank of tests/bench/mixed: carries out a trace again and again, by turns in a job of each order."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import headrace
from headrace import arena

# What goes first, with the class that its job asks for.
ORDERS = {"stream": "same", "same": "same", "above": "above"}
ELEMENT = 2  # bytes of float16, as which everything is posted


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--size-scale", type=float, required=True, help="of all bytes")
    parser.add_argument("--time-scale", type=float, required=True, help="of all computing")
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True, help="no round begins after that")
    parser.add_argument("--result", type=Path, required=True)
    return parser.parse_args()


class Trace:
    """A trace in a job of its own: each named step has a registered tensor, which is used in place.

    As one ``stream``: what the rank posts begins when what it posted before has ended, but for receives.
    """

    def __init__(
        self, session: headrace.Session, program: list[dict[str, Any]], arguments: argparse.Namespace, stream: bool
    ) -> None:
        self.session = session
        self.stream = stream
        # Posts take a rank of Python as long in each order, beside what it computes.
        self.poster = ThreadPoolExecutor(1)
        self.time_scale = arguments.time_scale
        self.program = program
        world = session.world_size
        posts = [step for step in program if "post" in step]
        scale = arguments.size_scale / ELEMENT / world
        counts = {step["name"]: max(1, int(step["bytes"] * scale)) * world for step in posts}
        # What each rank sends lies beside what it receives.
        twice = {step["name"] for step in posts if step["post"] in ("all_to_all", "gather", "scatter")}
        specs = [((count * (2 if name in twice else 1),), "float16", name) for name, count in counts.items()]
        specs.append(((1,), "int32", "goes_on"))
        memory = session.arena(arena.bytes_for(specs))
        *tensors, self.goes_on = memory.tensors(specs)
        self.tensors = dict(zip(counts, tensors, strict=True))
        self.counts = counts

    def post(self, step: dict[str, Any]) -> Callable[[], Any]:
        """Returns what waits for its end."""
        if self.stream and step["post"] != "receive":
            return self.poster.submit(lambda: self.post_now(step).wait()).result
        posted = self.poster.submit(self.post_now, step)
        return lambda: posted.result().wait()

    def post_now(self, step: dict[str, Any]) -> headrace.Operation:
        session, kind, x = self.session, step["post"], self.tensors[step["name"]]
        if kind in ("send", "receive"):
            call = session.send if kind == "send" else session.receive
            return call(x, step["rank"], step["tag"], async_op=True)
        root = {"root": step.get("root", 0)} if kind in ("reduce", "broadcast", "gather", "scatter") else {}
        if kind in ("all_to_all", "gather", "scatter"):
            world = session.world_size
            part = self.counts[step["name"]] // world
            ranges = [x.range(index * part, part) for index in range(2 * world)]
            if kind == "all_to_all":
                return session.all_to_all(ranges[:world], ranges[world:], async_op=True)
            parts = ranges[:world] if session.rank == root["root"] else None
            return getattr(session, kind)(ranges[world], parts, async_op=True, **root)
        return getattr(session, kind)(x, async_op=True, **root)

    def iterate(self) -> tuple[float, float]:
        """Seconds of one iteration, and those of them in which the rank waited."""
        waits: dict[str, Callable[[], Any]] = {}
        self.session.barrier()
        began = time.monotonic()
        waited = 0.0
        for step in self.program:
            if "compute_s" in step:
                time.sleep(step["compute_s"] * self.time_scale)
            elif "post" in step:
                waits[step["name"]] = self.post(step)
            else:
                before = time.monotonic()
                waits.pop(step["wait"])()
                waited += time.monotonic() - before
        if waits:
            raise SystemExit(f"the trace never waits for {', '.join(waits)}")
        return time.monotonic() - began, waited

    def move_all(self) -> float:
        """Seconds of all transfers of an iteration, with nothing computed and nothing waited for in between."""
        self.session.barrier()
        began = time.monotonic()
        for wait in [self.post(step) for step in self.program if "post" in step]:
            wait()
        return time.monotonic() - began

    def agree(self, goes_on: bool) -> bool:
        """What rank 0 says."""
        self.goes_on.numpy()[0] = goes_on
        self.session.broadcast(self.goes_on)
        return bool(self.goes_on.numpy()[0])


def main() -> None:
    arguments = parse()
    began = time.monotonic()
    trace = json.loads(arguments.trace.read_text())
    programs = trace["programs"]
    sessions = [headrace.init(job=f"{trace['name']}-{each}", sends_class=ORDERS[each]) for each in ORDERS]
    traces = {
        each: Trace(session, programs[session.rank % len(programs)], arguments, each == "stream")
        for each, session in zip(ORDERS, sessions, strict=True)
    }
    moved: list[float] = []
    iterations: dict[str, list[tuple[float, float]]] = {each: [] for each in ORDERS}
    for each in ORDERS:
        traces[each].iterate()  # links are measured, memory is touched
    for turn in range(arguments.rounds):
        if turn > 0 and not traces["above"].agree(time.monotonic() - began < arguments.seconds):
            break
        for each in ORDERS if turn % 2 == 0 else reversed(ORDERS):
            iterations[each].append(traces[each].iterate())
        moved.append(traces["above"].move_all())
    arguments.result.write_text(json.dumps({"iterations": iterations, "moved": moved}))
    for session in sessions:
        session.barrier()
        session.close()


if __name__ == "__main__":
    main()
