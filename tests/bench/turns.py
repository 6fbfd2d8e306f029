"""Two jobs that train over one link at the same time: their iterations with and without interleaving,
and the bound, which is each of them alone.

Each job is a replay (replaying.py) with a rank on each of two nodes; both are played at once on the same
services. What counts is the middle of the later iterations, when plans are in force and shifts are made.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path

from contenders import BenchError
from replaying import Case, slowest
from support.cluster import Cluster, Services
from support.places import Program

# The share of the iterations that counts: before it shifts are made; after it the other job may have
# ended.
FROM, TO = 0.5, 0.9


@dataclasses.dataclass(frozen=True)
class Turns:
    case: Case
    iterations: int
    policy: str = "exact"
    jobs: tuple[str, ...] = ("a", "b")


def _command(turns: Turns, build: Path, services: Services, job: str, rank: int, seed: int) -> list[str]:
    case = turns.case
    return [
        str(build / "headracectl"), "--socket", services[rank].socket, "--json",
        "replay", str(case.model.path), "--policy", turns.policy,
        "--iterations", str(turns.iterations), "--scale", repr(case.scale),
        "--jitter", str(case.jitter), "--seed", str(seed), "--job", job, "--rank", str(rank),
        "--world-size", str(case.nodes), "--rendezvous", services.rendezvous,
    ]  # fmt: skip


def _play(turns: Turns, build: Path, jobs: Sequence[str], *flags: str) -> dict:
    """The iterations of each of the jobs, all at once on services with these flags."""
    case = turns.case
    with Cluster(nodes=case.nodes, rate_mbit=case.rate_mbit) as cluster:
        services = Services(cluster, *flags, build=build)
        programs: dict[tuple[str, int], Program] = {}
        try:
            for seed, job in enumerate(jobs, start=1):
                for rank, node in enumerate(cluster.nodes):
                    programs[job, rank] = node.start(
                        _command(turns, build, services, job, rank, seed),
                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE, text=True,
                    )  # fmt: skip
            said = {}
            for key, program in programs.items():
                try:
                    said[key] = program.communicate(timeout=case.seconds_max + 60)
                except subprocess.TimeoutExpired as error:
                    raise BenchError(f"job {key[0]}, rank {key[1]}: no end") from error
                if program.returncode != 0:
                    raise BenchError(f"job {key[0]}, rank {key[1]}: {said[key][1].strip()}")
        finally:
            for program in programs.values():
                program.end()
        events = services[0].ctl_json("events")
    rows = events["events"] if isinstance(events, dict) else events
    return {
        "jobs": {
            job: slowest([json.loads(said[job, rank][0]) for rank in range(case.nodes)])
            for job in jobs
        },
        "events": [
            row["text"] for row in rows if "takes turns" in row["text"] or "no more" in row["text"]
        ],
    }


def middle_of_later(iterations_s: list[float]) -> float:
    begin = int(FROM * len(iterations_s))
    later = iterations_s[begin : max(begin + 1, int(TO * len(iterations_s)))]
    return statistics.median(later)


def measure(turns: Turns, build: Path) -> dict:
    """Seconds of an iteration of each job: alone, beside the other, and beside it with turns."""
    ways = {
        "alone": [_play(turns, build, [job]) for job in turns.jobs],
        "beside": [_play(turns, build, turns.jobs)],
        "with turns": [_play(turns, build, turns.jobs, "--interleave")],
    }
    result: dict = {
        "title": turns.case.title, "rate_mbit": turns.case.rate_mbit, "policy": turns.policy,
        "communication_s": turns.case.communication_s,
        "computation_s": turns.case.scale * turns.case.model.compute_s,
        "iteration_s": {}, "events": {}, "iterations_s": {},
    }  # fmt: skip
    for way, played in ways.items():
        every = {job: times for one in played for job, times in one["jobs"].items()}
        result["iterations_s"][way] = every
        result["iteration_s"][way] = {job: middle_of_later(times) for job, times in every.items()}
        result["events"][way] = [text for one in played for text in one["events"]]
    return result


def recovered(result: dict, job: str) -> float | None:
    """The part of the other job's cost that taking turns gives back."""
    times = {way: result["iteration_s"][way][job] for way in ("alone", "beside", "with turns")}
    cost = times["beside"] - times["alone"]
    return (times["beside"] - times["with turns"]) / cost if cost > 0 else None
