"""The faults of tests/bench/recovery beyond a killed rank of one node; each returns seconds.

``seconds``: from the fault to the first iteration that all ranks of the new world have ended. Its parts, by the
events of a service that goes on: ``detected_s`` until the job has failed, ``decided_s`` from there until it is decided
who is left, in which the grace time is, and ``rest_s``.
"""

from __future__ import annotations

import itertools
import os
import signal
import statistics
import subprocess
import time

from contenders import BenchError
from recovery_training import STEPS_MAX, Training, begin, start_of, training
from support.cluster import Cluster, Services
from support.service import Service

NODE_FAULTS = ("node", "leader", "node-silent")
FAULTS = ("elastic_run", "evict", "hang", *NODE_FAULTS, "join", "elastic_join")
HANG_S = 2  # for which a rank may stand still
JOIN_AFTER_S = 1.0  # so long the iterations go on beside the one that joins


def grace(tuned: bool) -> dict[str, str]:
    return {"HEADRACE_SHRINK": "1", **({"HEADRACE_SHRINK_GRACE_MS": "500"} if tuned else {})}


def parts(service: Service, fault_unix_s: float, seconds: float) -> dict[str, float | None]:
    """What the service says of when it noticed, and when it was decided who is left."""
    failed = decided = None
    for event in service.ctl_json("events")["events"]:
        at_s = event["at_unix_ns"] / 1e9 - fault_unix_s
        if at_s < 0:
            continue
        if " goes on with " in event["text"]:
            decided = decided or at_s
        elif event["code"] != "ok" and "stands still" not in event["text"]:
            failed = failed or at_s
    said: dict[str, float | None] = {"seconds": seconds, "detected_s": failed, "decided_s": None, "rest_s": None}
    if failed is not None and decided is not None:
        said.update(decided_s=decided - failed, rest_s=seconds - decided)
    return said


def begin_over(
    cluster: Cluster,
    nodes: Services,
    run: Training,
    ranks: int,
    seconds: float,
    extra: dict[str, str],
    steps: int,
    way: str = "headrace",
) -> list[list[subprocess.Popen]]:
    """Starts as many ranks on each node as on every other; their processes by node, which end with the cluster."""
    programs: list[list[subprocess.Popen]] = [[] for _ in range(len(cluster))]
    for rank in range(ranks):
        at = rank * len(cluster) // ranks
        meeting = {**extra, "HEADRACE_RENDEZVOUS": nodes.rendezvous}
        command, environment = start_of(run, nodes[at], rank, ranks, seconds, meeting, steps, way)
        programs[at].append(cluster[at].start(command, env=environment))
    return programs


def over_nodes(fault: str, ranks: int, seconds: float, tuned: bool) -> dict[str, float | None]:
    """Half of the ranks on each of two nodes, of which one is lost."""
    cluster = Cluster(nodes=2, loopback=True)
    try:
        with training() as run:
            nodes = Services(cluster, "--rails", "lo", "--detection-ms", "500" if tuned else "3000")
            half = ranks // 2
            programs = begin_over(cluster, nodes, run, 2 * half, seconds, grace(tuned), STEPS_MAX)
            run.await_begun(2 * half)
            victim = 0 if fault == "leader" else 1
            fault_s, fault_unix_s = time.monotonic(), time.time()
            if fault == "node-silent":
                cluster[victim].pause()
            else:
                cluster[victim].kill()
            took_s = run.await_world(fault_s, half, [program.pid for program in programs[victim]])
            return parts(nodes[1 - victim], fault_unix_s, took_s)
    finally:
        cluster.close()


def over_one_node(fault: str, ranks: int, seconds: float, tuned: bool) -> dict[str, float | None]:
    """One rank of a node is killed, evicted, or stands still."""
    extra = grace(tuned)
    if fault == "hang":
        extra["HEADRACE_SLOW"] = f"{HANG_S}:evict"
    with Service() as service, training() as run:
        way = "elastic" if fault == "elastic_run" else "headrace"
        begin(run, service, ranks, seconds, extra, STEPS_MAX, way)
        run.await_begun(ranks)
        if fault == "hang":
            time.sleep(HANG_S + 1)  # what comes before does not count
        victim = run.programs[-1].pid
        fault_s, fault_unix_s = time.monotonic(), time.time()
        if fault == "evict":
            code, text = service.ctl("evict", "recovery", str(ranks - 1))
            if code != 0:
                raise BenchError(text)
        else:
            os.kill(victim, signal.SIGSTOP if fault == "hang" else signal.SIGKILL)
        took_s = run.await_world(fault_s, ranks - 1, [victim])
        if fault == "hang":
            os.kill(victim, signal.SIGKILL)
        return parts(service, fault_unix_s, took_s)


def over_join(ranks: int, seconds: float, tuned: bool, way: str) -> dict[str, float | None]:
    """The longest iteration of the others while one joins; ``plain_s`` is their median before."""
    with Service() as service, training() as run:
        begin(run, service, ranks, seconds, grace(tuned), STEPS_MAX, way)
        old = run.await_begun(ranks)
        started_s = time.monotonic()
        joiner = {**grace(tuned), "HEADRACE_ROLE": "join"}
        begin(run, service, 1, seconds, joiner, STEPS_MAX, way)
        joined_s = run.await_world(started_s, ranks + 1, [])
        time.sleep(JOIN_AFTER_S)
        last_s = joined_s + started_s + JOIN_AFTER_S
        before, after = [], []
        for pid, rows in run.iterations().items():
            if pid not in old:
                continue
            for (begin_s, _, _), (end_s, _, _) in itertools.pairwise(rows):
                if begin_s < last_s:
                    (before if end_s < started_s else after).append(end_s - begin_s)
        return {"seconds": max(after), "joined_s": joined_s, "plain_s": statistics.median(before)}


def over_fault(fault: str, ranks: int, seconds: float, tuned: bool) -> dict[str, float | None]:
    """Raises BenchError where it does not come about."""
    if fault in NODE_FAULTS:
        return over_nodes(fault, ranks, seconds, tuned)
    if fault in ("join", "elastic_join"):
        return over_join(ranks, seconds, tuned, "elastic" if fault == "elastic_join" else "headrace")
    return over_one_node(fault, ranks, seconds, tuned)
