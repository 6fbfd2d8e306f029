"""Where the iterations of a real training go, beside what its plan predicted. Pure arithmetic.

All times are means over ranks and iterations, which add up; of a way with plans, over the turns under the
one that was in force in the end. One iteration goes from the begin of a
backward pass to the begin of the next one. On each rank it consists of

    computing    both passes, without what is below; the way without communication says how long it
                 takes while nothing moves, and the rest of it is contention
    updates      the optimizer, within the forward pass
    posting      handing gradients over, within the backward pass
    elsewhere    between the passes: data, loss, the loop
    waiting      the forward pass stood still for gradients. What of it is due to what is found by
                 simulating the plan's blocks with the plan's cost line on the recorded iterations, first
                 with the rank's own times, then with every block released by its last rank.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable
from typing import Any

from figures import ALONE, turns_under_one_plan
from report import table

PARTS = ("backward", "forward", "updates", "posting", "elsewhere", "waiting")


def _inside(spans: list, begin: float, end: float) -> float:
    return sum(last - first for _, first, last in spans if first >= begin and last <= end)


def parts_of(this: dict, then: dict) -> dict[str, float]:
    """Seconds of the iteration that goes from one recorded iteration's backward pass to the next's."""
    backward = this["backward_begin"], this["backward_end"]
    forward = then["forward_begin"], then["forward_end"]
    posting = _inside(this["posts"], *backward)
    waiting = _inside(then["waits"], *forward)
    # The optimizer's own step stands between the passes, a scheduled one's within the forward pass.
    within = _inside(then["updates"], *forward)
    between = _inside(this["updates"], this["backward_end"], then["forward_begin"])
    whole = then["backward_begin"] - this["backward_begin"]
    parts = {
        "backward": backward[1] - backward[0] - posting,
        "forward": forward[1] - forward[0] - waiting - within,
        "updates": within + between,
        "posting": posting,
        "waiting": waiting,
    }
    return {**parts, "elsewhere": whole - sum(parts.values()), "whole": whole}


def pairs_of(
    trace: list[dict], warm_up: int, steps: int, turns: Iterable[int]
) -> list[tuple[dict, dict]]:
    """Iterations of these turns, from 0, each with the one after it. A turn's first has nothing to wait for."""
    pairs = []
    for number in turns:
        first = warm_up + 1 + number * (steps + 1)
        turn = trace[first : first + steps + 1]
        pairs += list(itertools.pairwise(turn))
    return pairs


def _ends(plan: dict, releases: list[float]) -> list[tuple[int, float]]:
    """When each block is over, with the lowest tensor in it, on one lane with the plan's cost line."""
    startup_s = plan["predicted_startup_ns"] / 1e9
    rate = plan["predicted_bytes_per_s"]
    now, ends = 0.0, []
    for block in plan["blocks"]:
        now = max(now, releases[block["first_tensor"]])
        now += startup_s + (block["bytes"] / rate if rate else 0)
        ends.append((block["first_tensor"], now))
    if plan["barrier"]:
        return [(0, now)]
    return ends


def _waiting(this: dict, then: dict, ends: list[tuple[int, float]]) -> float:
    """How long this rank's forward pass stands still when blocks end then."""
    ready: dict[int, float] = {}
    for tensor, end in ends:
        ready[tensor] = max(ready.get(tensor, 0.0), end)
    waits = [w for w in then["waits"] if then["forward_begin"] <= w[1] <= then["forward_end"]]
    now, stood = then["forward_begin"], 0.0
    last = now
    for tensor, begin, end in waits:
        now += begin - last  # what was computed since
        stood += max(0.0, ready.get(tensor, 0.0) - now)
        now = max(now, ready.get(tensor, 0.0))
        last = end
    return stood


def releases_of(iteration: dict) -> list[float]:
    """When each tensor had been posted, in forward order."""
    return [end for _, _, end in sorted(iteration["posts"])]


def turns_of_last_plan(way: dict) -> list[int]:
    """Turns, from 0, that began and ended under the plan that was in force in the end."""
    version = way["plan"]["version"]
    return [turn for turn in turns_under_one_plan(way) if way["plans"][turn + 1]["version"] == version]


def breakdown(ways: list[dict], alone: list[dict], case: Any) -> dict[str, Any]:
    """The parts of one way's iterations, as each rank traced them."""
    plan = ways[0]["plan"]
    pairs = [pairs_of(way["trace"], case.warm_up, case.steps, turns_of_last_plan(ways[0])) for way in ways]
    still = [
        parts_of(*pair)
        for way in alone
        for pair in pairs_of(way["trace"], case.warm_up, case.steps, range(case.rounds))
    ]
    seen = [parts_of(*pair) for rank in pairs for pair in rank]

    def mean(of: list[dict], *names: str) -> float:
        return statistics.fmean(sum(each[name] for name in names) for each in of)

    own, late = [], []
    for ranks in zip(*pairs, strict=True):
        releases = [releases_of(this) for this, _ in ranks]
        last = [max(times) for times in zip(*releases, strict=True)]
        for (this, then), mine in zip(ranks, releases, strict=True):
            own.append(_waiting(this, then, _ends(plan, mine)))
            late.append(_waiting(this, then, _ends(plan, last)))
    own_s, late_s = statistics.fmean(own), statistics.fmean(late)
    computing_s = mean(still, "backward", "forward")
    passes_s = (plan["predicted_backward_ns"] + plan["predicted_forward_ns"]) / 1e9
    predicted_s = plan["predicted_ns"] / 1e9
    return {
        "way": ways[0]["way"],
        "iterations": len(seen),
        "predicted_s": predicted_s,
        "measured_s": mean(seen, "whole"),
        "computing_s": computing_s,
        "contention_s": mean(seen, "backward", "forward") - computing_s,
        "updates_s": mean(seen, "updates"),
        "posting_s": mean(seen, "posting"),
        "elsewhere_s": mean(seen, "elsewhere"),
        "waiting_s": mean(seen, "waiting"),
        # What the plan's own times hold beside computing, and the waiting that it expects.
        "planned_beside_s": passes_s - computing_s,
        "planned_waiting_s": predicted_s - passes_s,
        "varying_s": own_s - (predicted_s - passes_s),
        "lateness_s": late_s - own_s,
        "rest_s": mean(seen, "waiting") - late_s,
    }


def breakdowns(ranks: list[dict], case: Any) -> list[dict[str, Any]]:
    """The parts for every way that has a plan under which a turn began and ended."""
    by_way = [list(each) for each in zip(*(rank["ways"] for rank in ranks), strict=True)]
    alone = next(each for each in by_way if each[0]["way"] == ALONE)
    return [
        breakdown(each, alone, case)
        for each in by_way
        if each[0]["plan"] is not None and turns_of_last_plan(each[0])
    ]


ROWS = (
    ("predicted by the plan", "predicted_s"),
    ("  computing while nothing moves", "computing_s"),
    ("  contention, updates, posting in its times", "planned_beside_s"),
    ("  waiting", "planned_waiting_s"),
    ("measured", "measured_s"),
    ("  computing while nothing moves", "computing_s"),
    ("  contention", "contention_s"),
    ("  updates", "updates_s"),
    ("  posting", "posting_s"),
    ("  elsewhere in the loop", "elsewhere_s"),
    ("  waiting", "waiting_s"),
    ("    expected by the plan", "planned_waiting_s"),
    ("    times vary", "varying_s"),
    ("    ranks are late", "lateness_s"),
    ("    the rest: lanes and the service", "rest_s"),
)


def text(found: list[dict[str, Any]]) -> str:
    """One column for each way, in ms; the last row says by how much the prediction was exceeded."""
    rows = [
        [name, *(f"{each[field] * 1e3:.1f}" for each in found)] for name, field in ROWS
    ]
    rows.append(
        ["measured over predicted",
         *(f"{each['measured_s'] / each['predicted_s']:.3f}" for each in found)]
    )  # fmt: skip
    return table(["means in ms", *(each["way"] for each in found)], rows)
