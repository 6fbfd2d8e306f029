"""Playing profiles through services on the nodes of a cluster: the cases, and how one is measured.

A case is a profile, a number of nodes and a ratio of communication to computation. Links have the rate
at which this machine carries all of them at once, so that they are the limit and not the processor;
computing, which is slept, takes so long that the ratio comes out.
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from contenders import BenchError
from far import DEVICE, FarLinks
from model_profile import Model
from support.cluster import Cluster, Services

# What each link can have so that two cores serve all of them, by nodes.
RATES_MBIT = {2: 1000.0, 4: 400.0, 8: 150.0}
# The payload's share of a link's rate; the rest are the headers of TCP, IP, Ethernet and UCX.
PAYLOAD = 0.935
# A job that has not ended after so many of its longest iterations does not move.
ITERATIONS_MAX = 200


@dataclasses.dataclass(frozen=True)
class Case:
    model: Model
    nodes: int
    ratio: float
    rate_mbit: float
    jitter: float = 0.0
    delay_us: float = 0.0  # of the links, one way
    flags: tuple[str, ...] = ()  # of the services
    servers: int = 0  # nodes without ranks that sum for the others
    ranks_per_node: int = 1

    @property
    def communication_s(self) -> float:
        """The time of all gradients at once: what the busiest link carries one way, at its rate. A node sends
        servers all it has and gets it back; a server gets its share of every node's."""  # fmt: skip
        shares = max(1.0, self.nodes / self.servers) if self.servers else 2 * (self.nodes - 1) / self.nodes
        sent = shares * self.model.bytes
        return sent * 8 / (self.rate_mbit * 1e6 * PAYLOAD)

    @property
    def scale(self) -> float:
        """What the profile's times are multiplied by."""
        return self.communication_s / self.ratio / self.model.compute_s

    @property
    def title(self) -> str:
        varying = f", times vary by {100 * self.jitter:g} %" if self.jitter else ""
        far = f", links of {self.delay_us:g} us" if self.delay_us else ""
        ranks = f" of {self.ranks_per_node} ranks" if self.ranks_per_node > 1 else ""
        some = f" and {self.servers} server{'s' if self.servers > 1 else ''}" if self.servers else ""
        return f"{self.model.name}, {self.nodes} nodes{ranks}{some}, ratio {self.ratio:g}{far}{varying}"

    @property
    def seconds_max(self) -> float:
        return 60 + ITERATIONS_MAX * (1 + 1 / self.ratio) * self.communication_s


def rate_of(nodes: int, chosen: float | None) -> float:
    if chosen is not None:
        return chosen
    known = [rate for count, rate in sorted(RATES_MBIT.items()) if count >= nodes]
    return known[0] if known else min(RATES_MBIT.values()) * 8 / nodes


class RunningCase:
    """The cluster and services of a case; they stay while its policies take turns."""

    def __init__(self, case: Case, build: Path):
        self.case = case
        self.build = build
        self._far: FarLinks | None = None
        self.cluster = Cluster(
            nodes=case.nodes + case.servers,
            rate_mbit=None if case.delay_us else case.rate_mbit,
        )
        flags = list(case.flags)
        try:
            if case.delay_us:
                self._far = FarLinks(self.cluster, case.rate_mbit, case.delay_us, build)
                flags += ["--rails", DEVICE]
            self.services = Services(self.cluster, *flags, servers=case.servers, build=build)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> RunningCase:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def close(self) -> None:
        self.cluster.close()
        if self._far is not None:
            self._far.close()

    def play(self, policy: str, job: str, iterations: int, seed: int) -> list[dict]:
        """One job, its ranks on each node; what each rank's replay says, in the order of ranks."""
        programs = []
        try:
            for rank in range(self.case.nodes * self.case.ranks_per_node):
                programs.append(
                    self.cluster[rank // self.case.ranks_per_node].start(
                        self._command(policy, job, rank, iterations, seed),
                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE, text=True,
                    )
                )  # fmt: skip
            deadline = time.monotonic() + self.case.seconds_max
            said = [
                program.communicate(timeout=max(0.1, deadline - time.monotonic()))
                for program in programs
            ]
        except subprocess.TimeoutExpired as error:
            raise BenchError(
                f"{self.case.title}: {policy}: no end after {self.case.seconds_max:.0f} s:\n"
                + self.services[0].log()[-2000:]
            ) from error
        finally:
            for program in programs:
                program.end()
        failed = [
            f"rank {rank}: {error.strip()}"
            for rank, (program, (_, error)) in enumerate(zip(programs, said, strict=True))
            if program.returncode != 0
        ]
        if failed:
            raise BenchError(f"{self.case.title}: {policy}: " + "\n".join(failed))
        return [json.loads(text) for text, _ in said]

    def _command(self, policy: str, job: str, rank: int, iterations: int, seed: int) -> list[str]:
        case = self.case
        return [
            str(self.build / "headracectl"),
            "--socket", self.services[rank // case.ranks_per_node].socket, "--json",
            "replay", str(case.model.path), "--policy", policy, "--iterations", str(iterations),
            "--scale", repr(case.scale), "--jitter", str(case.jitter), "--seed", str(seed),
            "--job", job, "--rank", str(rank),
            "--world-size", str(case.nodes * case.ranks_per_node),
            "--rendezvous", self.services.rendezvous,
            "--architecture", "parameter-server" if case.servers else "all-reduce",
        ]  # fmt: skip


def slowest(ranks: list[dict]) -> list[float]:
    """The time of each iteration on the rank for which it was longest."""
    return [max(times) for times in zip(*(rank["iterations_s"] for rank in ranks), strict=True)]


def cost_line(rank: dict) -> dict | None:
    """The figures of the lane between nodes: one rank has them."""
    known = [lane for lane in rank["lanes"] if lane["bytes_per_s"] is not None]
    return known[-1] if known else None


def figure(policy: str, rounds: list[list[dict]]) -> dict:
    """What all rounds of one policy come to. Rank 0 speaks for what is the job's."""
    times = sorted(second for ranks in rounds for second in slowest(ranks))
    firsts = [ranks[0] for ranks in rounds]
    quarters = statistics.quantiles(times, n=4) if len(times) > 1 else [times[0]] * 3

    def median(name: str) -> float | None:
        values = [first[name] for first in firsts if first[name] is not None]
        return statistics.median(values) if values else None

    return {
        "policy": policy,
        "samples": len(times),
        "measured_s": statistics.median(times),
        "spread": (quarters[2] - quarters[0]) / statistics.median(times),
        "rounds_s": [statistics.median(slowest(ranks)) for ranks in rounds],
        "predicted_s": median("predicted_s"),
        "lower_bound_s": median("lower_bound_s"),
        "hidden_share": median("hidden_share"),
        "waited_s": median("waited_s"),
        "moving_s": median("moving_s"),
        "blocks": median("blocks"),
        "plan_versions": [first["plan_version"] for first in firsts],
        "cost_lines": [cost_line(first) for first in firsts],
        "values_checked": min(rank["values_checked"] for ranks in rounds for rank in ranks),
    }


def measure_case(
    case: Case,
    policies: list[str],
    iterations: int,
    rounds: int,
    build: Path,
    said: Callable[[str], None],
) -> dict:
    """All policies take turns on the same services and links; each round begins with another."""
    played: dict[str, list[list[dict]]] = {policy: [] for policy in policies}
    loads = dict.fromkeys(policies, 0.0)
    with RunningCase(case, build) as stage:
        for index in range(rounds):
            turn = index % len(policies)
            for policy in policies[turn:] + policies[:turn]:
                said(f"{case.title}: {policy}, round {index + 1} of {rounds}")
                ranks = stage.play(policy, f"{policy}-{index + 1}", iterations, seed=index + 1)
                wrong = {rank["policy"] for rank in ranks} - {policy}
                if wrong:
                    raise BenchError(f"{case.title}: {policy} was asked for and {wrong} was played")
                played[policy].append(ranks)
                loads[policy] = max(loads[policy], os.getloadavg()[0])
    return {
        "title": case.title,
        "profile": case.model.name,
        "bytes": case.model.bytes,
        "nodes": case.nodes,
        "servers": case.servers,
        "ranks_per_node": case.ranks_per_node,
        "ratio": case.ratio,
        "jitter": case.jitter,
        "delay_us": case.delay_us,
        "rate_mbit": case.rate_mbit,
        "scale": case.scale,
        "communication_s": case.communication_s,
        "computation_s": case.scale * case.model.compute_s,
        "figures": [
            figure(policy, played[policy]) | {"load": loads[policy]} for policy in policies
        ],
    }
