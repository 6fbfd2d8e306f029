"""One rank of tests/bench/compression: a session and a layout for each codec, measured by turns."""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import subprocess
import time
from pathlib import Path

import headrace
import numpy

WARM_UP = 3  # PowerSGD begins with the third


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=float, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--codecs", nargs="+", required=True)
    parser.add_argument("--contenders", nargs="*", default=[])
    parser.add_argument("--ctl", required=True, help="headracectl")
    parser.add_argument("--result", type=Path, required=True)
    return parser.parse_args()


def service_pid() -> int:
    """The one service of this node, which has a list of processes of its own."""
    found = [path.parent for path in Path("/proc").glob("[0-9]*/comm") if path.read_text() == "headraced\n"]
    (process,) = found
    return int(process.name)


def cpu_seconds(pid: int) -> float:
    """Processor time that the process has had so far, with all of its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def gradient(rank: int, count: int) -> numpy.ndarray:
    return numpy.random.default_rng(rank).standard_normal(count, dtype=numpy.float32)


def asked(ctl: str, *words: str) -> dict:
    """What headracectl has of the one job that is asked for."""
    said = subprocess.run([ctl, *words, "--json"], capture_output=True, text=True, check=True).stdout
    return json.loads(said)["jobs"][0]


def last_plan(ctl: str, job: str) -> dict | None:
    """How long the job's last plan says that its blocks are under way, and the first iteration under it; None where no
    plan was made from measured times.
    """
    plan = asked(ctl, "plan", job)["plan"]
    if plan["version"] < 2:
        return None
    ends = max(block["predicted_end_ns"] for block in plan["blocks"])
    begins = min(block["predicted_begin_ns"] for block in plan["blocks"])
    return {
        "predicted_s": (ends - begins) / 1e9,
        "from_iteration": plan["from_iteration"],
        "blocks": len(plan["blocks"]),
    }


def moved_blocks(ctl: str, job: str) -> list[dict]:
    """When each of the job's newest blocks was ready on this node and when it had ended, in the machine's time."""
    return [
        {
            "iteration": block["iteration"],
            "ready_ns": block["first_post_unix_ns"] + block["ready_ns"],
            "end_ns": block["first_post_unix_ns"] + block["ended_after_ns"],
        }
        for block in asked(ctl, "flight", job, "-n", "1000")["blocks"]
        if block["iteration"] != 0 and block["ready_ns"] is not None
    ]


class Contender:
    """The gradient by what PyTorch has. Sums in this process, so its processor time is what counts."""

    job = None

    def __init__(self, name: str, session: headrace.Session, count: int) -> None:
        # Only where one is wanted: torch takes a while.
        import compression_contenders

        self._session = session
        self._way = compression_contenders.make(name, gradient(session.rank, count))
        self.pid = os.getpid()

    @property
    def values(self) -> numpy.ndarray:
        return self._way.values

    def iterate(self) -> float:
        """Seconds until the sum is there."""
        return self._way.iterate()

    def error(self) -> float:
        """As Way has it."""
        return error_of(self.values, self._session.world_size)


def error_of(values: numpy.ndarray, world_size: int, count: int | None = None) -> float:
    """The largest of an element, as a share of the largest sum."""
    count = count or len(values)
    exact = sum(gradient(rank, count).astype(numpy.float64) for rank in range(world_size))[: len(values)]
    return float(numpy.abs(values - exact).max() / numpy.abs(exact).max())


class Way:
    """The gradient by one codec."""

    def __init__(self, codec: str, count: int) -> None:
        self.pid = service_pid()
        self.job = f"compression-{codec}"
        self.session = headrace.init(job=self.job)
        side = math.isqrt(count)
        # Where it can be one, a square matrix, which only powersgd looks at.
        shape = (side, side) if side * side == count else (count,)
        self.layout = self.session.layout([(shape, "float32", "gradient")], op="sum", compress={"*": codec})
        self.values = self.layout.numpy(0).reshape(-1)
        self.mine = gradient(self.session.rank, count)

    def iterate(self) -> float:
        """Seconds from the post to the sum."""
        self.values[:] = self.mine
        self.session.barrier()
        began = time.monotonic()
        self.layout.begin_backward()
        self.layout.post(0)
        self.layout.wait(0)
        seconds = time.monotonic() - began
        self.layout.end_forward()
        return seconds

    def error(self) -> float:
        """As error_of has it."""
        return error_of(self.values, self.session.world_size)


def main() -> None:
    arguments = parse()
    count = int(arguments.mib * (1 << 20)) // 4
    ways = {codec: Way(codec, count) for codec in arguments.codecs}
    session = next(iter(ways.values())).session
    contenders = {name: Contender(name, session, count) for name in arguments.contenders}
    ways.update(contenders)
    measured: dict = {codec: {"seconds": [], "cpu_s": 0.0} for codec in ways}
    for turn in range(WARM_UP + arguments.rounds):
        for codec, way in ways.items():
            before = cpu_seconds(way.pid)
            seconds = way.iterate()
            if turn >= WARM_UP:
                measured[codec]["seconds"].append(seconds)
                measured[codec]["cpu_s"] += cpu_seconds(way.pid) - before
    for codec, way in ways.items():
        measured[codec]["hash"] = hashlib.sha256(way.values.tobytes()).hexdigest()[:16]
        measured[codec]["error"] = way.error()
        if way.job:
            measured[codec]["plan"] = last_plan(arguments.ctl, way.job)
            measured[codec]["blocks"] = moved_blocks(arguments.ctl, way.job)
    arguments.result.write_text(json.dumps({"codecs": measured}))
    sessions = [way.session for way in ways.values() if way.job]
    for each in sessions:
        each.barrier()
    for each in sessions:
        each.close()


if __name__ == "__main__":
    main()
