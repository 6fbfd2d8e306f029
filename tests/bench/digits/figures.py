"""What trainings that took turns come to. Pure arithmetic, without torch."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from support.policies import POLICIES as ALL_POLICIES

ALONE = "no communication"
GLOO = "DDP, gloo"
GLOO_1_MB = "DDP, gloo, 1 MB"
# Those that take part unless others are asked for.
POLICIES = ("wfbp", "bytescheduler", "us-byte", "exact", "auto")
WAYS = (ALONE, GLOO, GLOO_1_MB, *POLICIES)
# Asked for by name only: the other policies, one line after DDP, and a policy with the codec in which
# gradients cross between nodes.
ACCELERATED = "DDP, accelerated"
COMPRESSED = tuple(f"exact+{codec}" for codec in ("bf16", "fp16", "int8", "int4"))
BY_NAME = (*(each for each in ALL_POLICIES if each not in POLICIES), ACCELERATED, *COMPRESSED)
DEFAULT_POLICY = "auto"  # the service's, where nobody names one

# The payload's share of a link's rate; the rest are the headers of TCP, IP and Ethernet.
PAYLOAD = 0.935


def sent_seconds(size: int, nodes: int, rate_mbit: float) -> float:
    """How long a node's link is busy with gradients of so many bytes, at least."""
    return 2 * (nodes - 1) / nodes * size * 8 / (rate_mbit * 1e6 * PAYLOAD)


def rate_for(size: int, nodes: int, seconds: float) -> float:
    """The rate in Mbit/s, in round numbers, at which that takes so long."""
    rate = sent_seconds(size, nodes, 1.0) / seconds
    return max(10.0, round(rate, -1))


@dataclasses.dataclass(frozen=True)
class Figure:
    """One way of training. Times are medians of all iterations of all ranks that count, but for `mean_s`.

    A plan's prediction is held only against the turns during all of which that plan was in force.
    """

    way: str
    samples: int
    iteration_s: float
    mean_s: float | None  # over the turns under one plan; of a way without plans, over all
    predicted_s: float | None  # the mean of these turns' predictions
    turns: int
    turns_under_one_plan: int
    spread: float  # between the quartiles, as a share of the median
    rounds_s: list[float]
    waited_s: float
    losses: list[float]  # rank 0's
    loss_distance: float | None  # the largest between these and the baseline's
    same_bits: bool  # of the parameters, on all ranks
    plan: dict[str, Any] | None  # as headracectl says it, of rank 0's node

    def hidden(self, sent_s: float) -> float | None:
        """Share of the time that all gradients need on the link, in which ranks did not wait."""
        return None if self.way == ALONE else max(0.0, 1 - self.waited_s / sent_s)

    def planned_s(self, name: str) -> float | None:
        """One of the plan's times."""
        return self.plan[name] / 1e9 if self.plan else None


def turns_under_one_plan(way: dict[str, Any]) -> list[int]:
    """Turns, from 0, that began and ended under the same plan. None of a way without plans."""
    plans = way["plans"]
    return [
        turn
        for turn, (before, after) in enumerate(itertools.pairwise(plans))
        if before and after and before["version"] == after["version"]
    ]


def figure(ranks: Sequence[dict[str, Any]], baseline: dict[str, Any] | None) -> Figure:
    """The figures of one way, as each rank measured it. ``baseline``: rank 0's of the way to compare losses with."""
    first = ranks[0]
    times = [s for rank in ranks for turn in rank["seconds"] for s in turn]
    waits = [s for rank in ranks for turn in rank["waits"] for s in turn]
    middle = statistics.median(times)
    quarters = statistics.quantiles(times, n=4) if len(times) > 1 else [middle] * 3
    held = turns_under_one_plan(first)
    counted = held if first["plan"] else range(len(first["seconds"]))
    held_times = [s for rank in ranks for turn in counted for s in rank["seconds"][turn]]
    promised = [first["plans"][turn + 1]["predicted_ns"] / 1e9 for turn in held]
    distance = None
    if baseline is not None and first["way"] != ALONE:
        pairs = zip(first["losses"], baseline["losses"], strict=True)
        distance = max(abs(ours - theirs) for ours, theirs in pairs)
    return Figure(
        way=first["way"],
        samples=len(times),
        iteration_s=middle,
        mean_s=statistics.fmean(held_times) if held_times else None,
        predicted_s=statistics.fmean(promised) if promised else None,
        turns=len(first["seconds"]),
        turns_under_one_plan=len(held),
        spread=(quarters[2] - quarters[0]) / middle,
        rounds_s=[
            statistics.median(s for rank in ranks for s in rank["seconds"][index])
            for index in range(len(first["seconds"]))
        ],
        waited_s=statistics.median(waits),
        losses=first["losses"],
        loss_distance=distance,
        same_bits=len({rank["hash"] for rank in ranks}) == 1,
        plan=first["plan"],
    )


def figures(ranks: Sequence[dict[str, Any]]) -> list[Figure]:
    """The figures of all ways that these ranks have taken turns among."""
    by_way = list(zip(*(rank["ways"] for rank in ranks), strict=True))
    baseline = next((way[0] for way in by_way if way[0]["way"] == GLOO), None)
    return [figure(way, baseline) for way in by_way]


def policy_of(way: str) -> str:
    """The policy that a plan of this way has."""
    return DEFAULT_POLICY if way == ACCELERATED else way.partition("+")[0]


def wrong(figures: Sequence[Figure]) -> str:
    """What cannot be, in words; empty where all is as it must be."""
    for each in figures:
        if each.way != ALONE and not each.same_bits:
            return f"{each.way}: the parameters of the ranks differ"
        if each.plan is not None and each.plan["policy"] != policy_of(each.way):
            return f"{each.way}: in the end its plan is one of {each.plan['policy']}"
    return ""


def print_rows(rows: Sequence[Sequence[str]]) -> None:
    """Prints rows of equal length, the first of which is the header."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for index, row in enumerate(rows):
        cells = [row[0].ljust(widths[0])]
        cells += [
            cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)
        ]
        print("  ".join(cells))
        if index == 0:
            print("  ".join("-" * width for width in widths))
