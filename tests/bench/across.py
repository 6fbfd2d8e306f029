"""Contenders whose ranks are on several nodes: each has a cluster of its own, with equal links.

So nothing of one contender is on another's links, and all processes on a cluster's nodes are the
contender's: their CPU time and the bytes on their links are its own.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from contenders import HERE, PYTHON, BenchError, Contender
from support.cluster import Cluster, Services
from support.places import HERE as THIS_MACHINE

INTERFACE = "eth0"
COST_RUNS = 2


@dataclasses.dataclass(frozen=True)
class Layout:
    """What stands where. ``rates_mbit``: one for each rail, None for as fast as it goes."""

    nodes: int
    ranks_per_node: int = 1
    rates_mbit: tuple[float | None, ...] = (1000.0,)
    servers: int = 0

    @property
    def ranks(self) -> int:
        return self.nodes * self.ranks_per_node

    def node_of(self, rank: int) -> int:
        return rank // self.ranks_per_node

    def cluster(self) -> Cluster:
        return Cluster(nodes=self.nodes + self.servers, rails=self.rates_mbit)


def cpu_s(pids: list[int]) -> float:
    """CPU time of all threads of these processes so far."""
    total = 0
    for pid in pids:
        try:
            for task in Path(f"/proc/{pid}/task").iterdir():
                total += int((task / "schedstat").read_text().split()[0])
        except OSError:
            pass  # it ended meanwhile
    return total / 1e9


class ContenderAcross(Contender):
    """A contender on a cluster of its own; both end with ``stop``."""

    def __init__(self, name: str, layout: Layout):
        super().__init__(name, layout.ranks, members=layout.ranks)
        self.layout = layout
        try:
            self.cluster = layout.cluster()
        except BaseException:
            super().stop()
            raise

    def stop(self) -> None:
        super().stop()
        self.cluster.close()

    def cost(self, size: int, repetitions: int) -> dict[str, float]:
        """CPU seconds of all its processes, and bytes that a node has sent on its links, for one
        operation of that size. The difference of runs of different length, so that what stands
        around the measured operations does not count; of each the least of several, since what a
        busy machine does besides only adds."""
        few, many = (
            [min(values) for values in zip(*(self._spent(size, count) for _ in range(COST_RUNS)), strict=True)]
            for count in (1, 1 + repetitions)
        )
        gigabytes = size * repetitions / 1e9
        return {
            "bytes": size,
            "cpu_s_per_gb": (many[0] - few[0]) / gigabytes,
            "sent_bytes_per_node": (many[1] - few[1]) / repetitions / self.layout.nodes,
        }

    def _spent(self, size: int, repetitions: int) -> tuple[float, int]:
        before = self._total()
        self.measure(size, repetitions)
        after = self._total()
        return after[0] - before[0], after[1] - before[1]

    def _total(self) -> tuple[float, int]:
        nodes = self.cluster.nodes
        rails = range(len(self.layout.rates_mbit))
        sent = sum(node.bytes_sent(rail) for node in nodes[: self.layout.nodes] for rail in rails)
        return cpu_s([pid for node in nodes for pid in node.pids()]), sent


def start_gloo(build: Path, layout: Layout) -> Contender:
    del build
    contender = ContenderAcross("gloo", layout)
    for rank in range(layout.ranks):
        contender.start(
            [PYTHON, str(HERE / "peers" / "gloo_rank.py"), str(contender.folder),
             str(rank), str(layout.ranks)],
            place=contender.cluster[layout.node_of(rank)],
            GLOO_SOCKET_IFNAME=INTERFACE,
        )  # fmt: skip
    return contender


def start_openmpi(build: Path, layout: Layout) -> Contender:
    contender = ContenderAcross("openmpi", layout)
    cluster = contender.cluster
    names = [node.name for node in cluster.nodes[: layout.nodes]]
    # mpirun stands at the switch and has no ranks itself; its agent enters the nodes.
    options = ["--allow-run-as-root", "--oversubscribe", "--map-by", "slot"]
    options += ["--mca", "plm_rsh_agent", str(HERE / "peers" / "enter_node")]
    options += ["--mca", "plm_rsh_no_tree_spawn", "1"]
    # The nodes share this machine's cores, which Open MPI cannot know: a rank that polls without
    # yielding would keep the other from sending.
    options += ["--mca", "mpi_yield_when_idle", "1"]
    options += ["--host", ",".join(f"{name}:{layout.ranks_per_node}" for name in names)]
    contender.start(
        [*cluster.switch.enter(), "mpirun", *options, "-np", str(layout.ranks),
         str(build / "bench_openmpi"), str(contender.folder)],
        place=THIS_MACHINE,
        HEADRACE_BENCH_NODES=" ".join(
            f"{node.name}={node.namespaces.pid}" for node in cluster.nodes
        ),
    )  # fmt: skip
    return contender


def start_headrace(build: Path, layout: Layout, *flags: str, name: str = "headrace") -> Contender:
    contender = ContenderAcross(name, layout)
    try:
        if len(layout.rates_mbit) > 1:
            flags += ("--rails", ",".join(contender.cluster[0].interfaces))
        services = Services(contender.cluster, *flags, servers=layout.servers, build=build)
        for rank in range(layout.ranks):
            node = contender.cluster[layout.node_of(rank)]
            contender.start(
                [str(build / "bench_headrace"), str(contender.folder), node.service.socket,
                 str(rank), str(layout.ranks)],
                place=node,
                HEADRACE_RENDEZVOUS=services.rendezvous,
            )  # fmt: skip
    except BaseException:
        contender.stop()
        raise
    return contender


STARTERS = {"headrace": start_headrace, "gloo": start_gloo, "openmpi": start_openmpi}


def start(name: str, build: Path, layout: Layout) -> Contender:
    """Raises BenchError when the program is not there."""
    if name == "openmpi" and not os.path.exists(build / "bench_openmpi"):
        raise BenchError("openmpi: not built: Open MPI is not installed")
    return STARTERS[name](build, layout)
