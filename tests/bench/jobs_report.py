"""What several jobs got of a lane, for a person, and the goals that is held against."""

from __future__ import annotations

from report import table
from turns import recovered

WITHIN = 0.05


def _rate(bytes_s: float | None) -> str:
    return "-" if bytes_s is None else f"{bytes_s / 1e6:.1f}"


def shares_text(cases: list[dict]) -> str:
    rows = []
    for case in cases:
        for row in case["jobs"]:
            of_ideal = row["of_ideal"]
            rows.append(
                [
                    f"{case['title']}, {case['where']}", row["job"], _rate(row["bytes_s"]),
                    f"{100 * row['share']:.1f} %", _rate(row["alone_bytes_s"]),
                    _rate(row["ideal_bytes_s"]), "-" if of_ideal is None else f"{of_ideal:.3f}",
                ]
            )  # fmt: skip
    heads = ["case", "job", "MB/s", "share", "alone MB/s", "ideal MB/s", "of ideal"]
    return table(heads, rows)


def turns_text(result: dict) -> str:
    lines = [
        f"{result['title']}, {result['policy']}, two jobs at once, {result['rate_mbit']:g} Mbit/s: "
        f"communication {result['communication_s']:.3f} s, computation "
        f"{result['computation_s']:.3f} s"
    ]
    rows = []
    for job in result["iteration_s"]["beside"]:
        times = [result["iteration_s"][way][job] for way in ("alone", "beside", "with turns")]
        part = recovered(result, job)
        rows.append(
            [job, *(f"{1e3 * time:.1f}" for time in times), f"{times[1] / times[0]:.3f}",
             f"{times[2] / times[0]:.3f}", "-" if part is None else f"{100 * part:.0f} %"]
        )  # fmt: skip
    heads = [
        "job", "alone ms (bound)", "beside ms", "with turns ms", "beside x bound",
        "with turns x bound", "recovered",
    ]  # fmt: skip
    return "\n".join([*lines, table(heads, rows), *result["events"]["with turns"]])


def goals(cases: list[dict]) -> list[dict]:
    """Every job that has an ideal is within 5 % of it; one that should not be slowed may be faster."""
    found = []
    for case in cases:
        for row in case["jobs"]:
            if row["of_ideal"] is None:
                continue
            least_only = case["key"] in ("hang", "flood", "priority")
            met = row["of_ideal"] >= 1 - WITHIN and (least_only or row["of_ideal"] <= 1 + WITHIN)
            goal = f">= {1 - WITHIN:g}" if least_only else f"1 +- {WITHIN:g}"
            what = f"{case['title']}, {case['where']}: job {row['job']}"
            found.append({"what": what, "value": row["of_ideal"], "goal": goal, "met": met})
    return found


def goals_text(reached: list[dict]) -> str:
    rows = [
        [row["what"], f"{row['value']:.3f}", row["goal"], "met" if row["met"] else "NOT MET"]
        for row in reached
    ]
    met = sum(row["met"] for row in reached)
    return table(["what", "of ideal", "goal", ""], rows) + f"\n{met} of {len(reached)} met"
