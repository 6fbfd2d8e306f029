"""One rank of tests/bench/mixed: carries out a trace, iteration by iteration."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import headrace
from headrace import arena

WARM_UP = 2
ELEMENT = 2  # bytes of float16, as which everything is posted


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--size-scale", type=float, required=True)
    parser.add_argument("--time-scale", type=float, required=True)
    parser.add_argument("--iterations", type=int, required=True)
    parser.add_argument("--sends-class", required=True)
    parser.add_argument("--result", type=Path, required=True)
    return parser.parse_args()


class Trace:
    """A trace with its memory: each named step has a registered tensor, which is used in place."""

    def __init__(self, session: headrace.Session, program: list[dict[str, Any]], arguments: argparse.Namespace) -> None:
        self.session = session
        self.time_scale = arguments.time_scale
        self.program = program
        world = session.world_size
        posts = [step for step in program if "post" in step]
        scale = arguments.size_scale / ELEMENT / world
        counts = {step["name"]: max(1, int(step["bytes"] * scale)) * world for step in posts}
        # What is sent to all lies beside what is received from all.
        twice = {step["name"] for step in posts if step["post"] == "all_to_all"}
        specs = [((count * (2 if name in twice else 1),), "float16", name) for name, count in counts.items()]
        memory = session.arena(arena.bytes_for(specs))
        self.tensors = dict(zip(counts, memory.tensors(specs), strict=True))
        self.counts = counts

    def post(self, step: dict[str, Any]) -> headrace.Operation:
        session, kind, x = self.session, step["post"], self.tensors[step["name"]]
        if kind in ("send", "receive"):
            call = session.send if kind == "send" else session.receive
            return call(x, step["rank"], step["tag"], async_op=True)
        if kind == "all_to_all":
            part = self.counts[step["name"]] // session.world_size
            ranges = [x.range(index * part, part) for index in range(2 * session.world_size)]
            return session.all_to_all(ranges[: session.world_size], ranges[session.world_size :], async_op=True)
        return getattr(session, kind)(x, async_op=True)

    def iterate(self) -> tuple[float, float]:
        """Seconds of one iteration, and those of them in which the rank waited."""
        open_operations: dict[str, headrace.Operation] = {}
        self.session.barrier()
        began = time.monotonic()
        waited = 0.0
        for step in self.program:
            if "compute_s" in step:
                time.sleep(step["compute_s"] * self.time_scale)
            elif "post" in step:
                open_operations[step["name"]] = self.post(step)
            else:
                before = time.monotonic()
                open_operations.pop(step["wait"]).wait()
                waited += time.monotonic() - before
        if open_operations:
            raise SystemExit(f"the trace never waits for {', '.join(open_operations)}")
        return time.monotonic() - began, waited


def main() -> None:
    arguments = parse()
    trace = json.loads(arguments.trace.read_text())
    session = headrace.init(job=f"{trace['name']}-{arguments.sends_class}", sends_class=arguments.sends_class)
    programs = trace["programs"]
    mixed = Trace(session, programs[session.rank % len(programs)], arguments)
    measured = [mixed.iterate() for _ in range(WARM_UP + arguments.iterations)][WARM_UP:]
    arguments.result.write_text(json.dumps(measured))
    session.barrier()
    session.close()


if __name__ == "__main__":
    main()
