"""What tests/bench/nodes measures: the parts, and how one is measured."""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
from collections.abc import Callable
from pathlib import Path

import links
import rounds
from across import Layout, start, start_headrace
from contenders import BenchError, Contender
from rounds import KIB, MIB

PEERS = ("headrace", "gloo", "openmpi")
ROUNDS = 2


@dataclasses.dataclass(frozen=True)
class Part:
    """One layout, the sizes with repetitions in each of ROUNDS rounds, and who is measured."""

    key: str
    title: str
    layout: Layout
    repetitions: dict[int, int]
    contenders: tuple[str, ...] = PEERS
    # Size and operations over which CPU time and bytes on the links are counted; none: not here.
    cost: tuple[int, int] | None = None
    ucx_bandwidth: bool = False


SMALL, LARGE = 4 * KIB, 64 * MIB
PARTS = (
    Part(
        "two", "2 nodes at 1 Gbit/s", Layout(2), {SMALL: 200, 1 * MIB: 20, LARGE: 3},
        cost=(16 * MIB, 12),
    ),
    Part("four", "4 nodes at 1 Gbit/s", Layout(4), {SMALL: 100, LARGE: 2}),
    Part(
        "unlimited", "2 nodes, links without a limit", Layout(2, rates_mbit=(None,)),
        {SMALL: 200, 1 * MIB: 40, LARGE: 3}, cost=(16 * MIB, 20), ucx_bandwidth=True,
    ),
    Part(
        "ranks", "2 nodes of 2 ranks at 1 Gbit/s", Layout(2, ranks_per_node=2),
        {SMALL: 100, LARGE: 2}, cost=(16 * MIB, 8),
    ),
    Part(
        "rails", "2 nodes with rails of 1 and 0.4 Gbit/s", Layout(2, rates_mbit=(1000.0, 400.0)),
        {LARGE: 3}, contenders=("headrace",),
    ),
    Part(  # eight nodes: at a rate that two cores can serve on all of their links at once
        "servers", "4 nodes at 0.2 Gbit/s, and 4 servers",
        Layout(4, servers=4, rates_mbit=(200.0,)), {16 * MIB: 2},
        contenders=("headrace", "headrace without servers"),
    ),
)  # fmt: skip


def start_contender(name: str, part: Part, build: Path) -> Contender:
    if name == "headrace" and part.layout.servers:
        return start_headrace(build, part.layout, "--architecture", "parameter-server")
    if name == "headrace without servers":
        return start_headrace(build, dataclasses.replace(part.layout, servers=0), name=name)
    return start(name, build, part.layout)


@dataclasses.dataclass(frozen=True)
class Wires:
    """What the links of a part carry without any of the contenders."""

    one_way_bits_s: float  # one TCP flow between two nodes
    each_way_bits_s: float  # what every node sends and receives while all do, over all rails
    latency_s: float  # of 4 KiB one way, by UCX over TCP
    ucx_bytes_s: float | None

    def ideal_s(self, layout: Layout, size: int) -> float:
        """The least time an all-reduce can take: every byte that has to leave a node at the rate of
        its links, and one message's time where there are hardly any bytes."""
        if layout.servers:  # each node sends all of it; a server gets its share from every node
            sent = size * max(1.0, layout.nodes / layout.servers)
        else:
            sent = 2 * (layout.nodes - 1) / layout.nodes * size
        return max(sent * 8 / self.each_way_bits_s, self.latency_s)


def measure_wires(part: Part, seconds: int, repeats: int) -> Wires:
    layout = part.layout
    with layout.cluster() as cluster:
        one_way, each_way = [], []
        for _ in range(repeats):
            one_way.append(links.tcp_one_way(cluster, seconds))
            rails = len(layout.rates_mbit)
            each_way.append(links.tcp_all_ways(cluster, layout.nodes, rails, seconds))
        bandwidth = links.ucx(cluster, "ucp_am_bw", LARGE, 8, repeats) if part.ucx_bandwidth else None
        return Wires(
            statistics.median(one_way),
            statistics.median(each_way),
            links.ucx(cluster, "ucp_am_lat", SMALL, 1000, repeats),
            bandwidth,
        )


def measure_part(
    part: Part,
    names: list[str],
    build: Path,
    smoke: bool,
    said: Callable[[str], None],
) -> dict:
    """The part's links, and every contender of `names` that is in it, by turns."""
    repetitions = {SMALL: 5, 1 * MIB: 2} if smoke else part.repetitions
    said(f"{part.title}: the links")
    wires = measure_wires(part, seconds=1, repeats=1 if smoke else ROUNDS)
    missing: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        running = []
        for name in part.contenders:
            if name.split()[0] not in names:
                continue
            try:
                running.append(start_contender(name, part, build))
                stack.callback(running[-1].stop)
            except BenchError as error:
                missing[name] = str(error)
        figures = (
            rounds.measure(
                running, repetitions, 1 if smoke else ROUNDS, lambda text: said(f"{part.title}: {text}")
            )
            if running
            else []
        )
        costs = {}
        if part.cost:
            size, count = (1 * MIB, 2) if smoke else part.cost
            for contender in running:
                said(f"{part.title}: what {contender.name} costs")
                costs[contender.name] = contender.cost(size, count)
    return {
        "key": part.key,
        "title": part.title,
        "layout": dataclasses.asdict(part.layout),
        "links": dataclasses.asdict(wires),
        "ideal_us": {
            str(size): wires.ideal_s(part.layout, size) * 1e6 for size in repetitions
        },
        "missing": missing,
        "all_reduce_float32_sum": [dataclasses.asdict(figure) for figure in figures],
        "costs": costs,
    }
