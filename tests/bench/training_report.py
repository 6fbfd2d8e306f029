"""What trainings look like to a person, and the aims they are held against."""

from __future__ import annotations

from figures import ALONE, GLOO, Figure
from report import table

# How many times as fast as these exact should be, where the bound allows it: what US-Byte's authors
# published for their policy, at most, over the two that they compared it with.
AIMS = {"wfbp": 1.56, "bytescheduler": 1.26}
AUTO = "auto"
WITHIN = 0.05  # of a plan's promise


def by_way(case: dict) -> dict[str, Figure]:
    return {each.way: each for each in case["figures"]}


def faster(case: dict, than: str, each: Figure) -> float | None:
    """How many times as fast as another way."""
    other = by_way(case).get(than)
    return other.iteration_s / each.iteration_s if other else None


def bound_s(case: dict) -> float | None:
    """No plan is faster: what the service says of the job under exact."""
    exact = by_way(case).get("exact")
    return exact.planned_s("lower_bound_ns") if exact else None


def _text(value: float | None, pattern: str = "{:.2f}") -> str:
    return "-" if value is None else pattern.format(value)


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.1f}"


def _heading(case: dict) -> list[str]:
    lines = [
        f"{case['title']}: {case['tensors']} tensors, {case['bytes'] / 1e6:.1f} MB; a rank a node, "
        f"{case['batch']} samples each; all nodes share this machine's cores"
    ]
    alone = by_way(case).get(ALONE)
    if alone:
        computing, sending = alone.iteration_s, case["communication_s"]
        lines.append(
            f"computing takes {_milliseconds(computing)} ms (all ranks at it, nothing sent), "
            f"all gradients on the link {_milliseconds(sending)} ms: ratio {sending / computing:.2f}"
        )
    return lines


def case_text(case: dict) -> str:
    rows = []
    for each in case["figures"]:
        rows.append(
            [
                each.way,
                _milliseconds(each.iteration_s),
                f"{100 * each.spread:.0f} %",
                _milliseconds(each.waited_s),
                _text(each.hidden(case["communication_s"]), "{:.0%}"),
                _text(faster(case, GLOO, each)),
                _text(faster(case, "bytescheduler", each)),
                _milliseconds(each.mean_s),
                _milliseconds(each.predicted_s),
                f"{each.turns_under_one_plan} of {each.turns}" if each.plan else "-",
                _milliseconds(each.planned_s("lower_bound_ns")),
                str(each.plan["block_count"]) if each.plan else "-",
                f"{each.losses[-1]:.4f}",
                _text(each.loss_distance, "{:.1e}"),
            ]
        )
    heads = [
        "way", "iteration ms", "spread", "waiting ms", "hidden", "x DDP", "x bytescheduler",
        "mean ms", "predicted ms", "turns", "bound ms", "blocks", "loss", "loss off DDP by",
    ]  # fmt: skip
    steps = len(case["figures"][0].losses)
    notes = [
        f"medians of {case['figures'][0].samples} iterations of all ranks; spread: between quartiles; "
        "mean, predicted: over turns under one plan;",
        f"loss: rank 0's after {steps} iterations;",
        "off DDP by: the largest difference of all iterations",
    ]
    return "\n".join([*_heading(case), table(heads, rows), *notes])


def goals(cases: list[dict]) -> list[dict]:
    """The aims, beside what the bound allows with the peer's measured time."""
    found = []
    for case in cases:
        ways, bound = by_way(case), bound_s(case)
        for name, aim in AIMS.items():
            if bound is None or name not in ways:
                continue
            value = faster(case, name, ways["exact"])
            allowed = ways[name].iteration_s / bound
            found.append(
                {"case": case["title"], "over": name, "value": value, "aim": aim,
                 "bound": allowed, "met": value >= aim}
            )  # fmt: skip
    return found


def goals_text(reached: list[dict]) -> str:
    def judged(row: dict) -> str:
        if row["met"]:
            return "met"
        return "NOT MET" if row["bound"] >= row["aim"] else "not met; the bound forbids it"

    rows = [
        [row["case"], f"exact over {row['over']}", f"{row['value']:.2f}", f">= {row['aim']:g}",
         f"{row['bound']:.2f}", judged(row)]
        for row in reached
    ]  # fmt: skip
    return table(["case", "what", "measured", "aim", "bound allows", ""], rows)


def auto_goals(cases: list[dict]) -> list[dict]:
    """`auto` beside every other policy, where it takes part: it is not slower than any by more than the
    larger spread of the two; and what plans promised, a mean, against the mean of what turns under one
    plan took."""
    found = []
    for case in cases:
        ways = by_way(case)
        for each in ways.values():
            if each.plan is None or AUTO not in ways:
                continue
            # Where plans switched in every turn, no mean belongs to one prediction.
            off = each.mean_s / each.predicted_s if each.predicted_s else None
            met = off is not None and abs(off - 1) <= WITHIN
            found.append({"case": case["title"], "what": f"{each.way}: measured mean / predicted",
                          "value": off, "goal": f"1 +- {WITHIN:g}", "met": met})  # fmt: skip
            if each.way == AUTO:
                continue
            slower = ways[AUTO].iteration_s / each.iteration_s
            most = 1 + max(each.spread, ways[AUTO].spread)
            found.append({"case": case["title"], "what": f"{AUTO} / {each.way}", "value": slower,
                          "goal": f"<= {most:.3f}, the noise", "met": slower <= most})  # fmt: skip
    return found


def auto_goals_text(reached: list[dict]) -> str:
    rows = [
        [row["case"], row["what"], _text(row["value"], "{:.3f}"), row["goal"], "met" if row["met"] else "NOT MET"]
        for row in reached
    ]
    return table(["case", "what", "measured", "goal", ""], rows)
