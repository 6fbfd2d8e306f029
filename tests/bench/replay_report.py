"""What played profiles look like to a person, and the goals they are held against."""

from __future__ import annotations

from report import table

WITHIN = 1.05  # of the prediction, and of the lower bound
OVER_WFBP = 1.3  # at ratio 1
SPLITTERS = ("us-byte", "bytescheduler")


def _ratio(over: float | None, under: float | None) -> float | None:
    return over / under if over is not None and under else None


def _text(value: float | None, pattern: str = "{:.3f}") -> str:
    return "-" if value is None else pattern.format(value)


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.1f}"


def exact_of(case: dict) -> dict | None:
    return next((row for row in case["figures"] if row["policy"] == "exact"), None)


def speed_up(case: dict, row: dict, what: str) -> float | None:
    """How much longer the policy takes than exact does."""
    exact = exact_of(case)
    return _ratio(row[what], exact[what]) if exact else None


def case_text(case: dict) -> str:
    lines = [
        f"{case['title']}: {case['bytes'] / 1e6:.1f} MB; links of {case['rate_mbit']:g} Mbit/s, "
        f"times x {case['scale']:.4g}: communication {case['communication_s']:.3f} s, "
        f"computation {case['computation_s']:.3f} s"
    ]
    known = [line for row in case["figures"] for line in row["cost_lines"] if line]
    if known:
        startups = [line["startup_ns"] / 1e3 for line in known]
        rates = [line["bytes_per_s"] / 1e6 for line in known]
        lines.append(
            f"cost lines of {len(known)} jobs: startup {min(startups):.0f} to {max(startups):.0f} us, "
            f"{min(rates):.1f} to {max(rates):.1f} MB/s sent by a node"
        )
    rows = []
    for row in case["figures"]:
        rows.append(
            [
                row["policy"],
                f"{row['blocks']:g}" if row["blocks"] is not None else "-",
                _milliseconds(row["measured_s"]),
                f"{100 * row['spread']:.1f} %",
                _milliseconds(row["predicted_s"]),
                _text(_ratio(row["measured_s"], row["predicted_s"])),
                _milliseconds(row["lower_bound_s"]),
                _text(_ratio(row["measured_s"], row["lower_bound_s"])),
                _text(speed_up(case, row, "measured_s")),
                _text(speed_up(case, row, "predicted_s")),
                _text(row["hidden_share"], "{:.1%}"),
            ]
        )
    heads = [
        "policy", "blocks", "measured ms", "spread", "predicted ms", "x predicted", "bound ms",
        "x bound", "exact x faster", "promised", "hidden",
    ]  # fmt: skip
    return "\n".join(lines) + "\n" + table(heads, rows)


def _goal(case: dict, what: str, value: float | None, goal: str, met: bool) -> dict:
    return {"case": case["title"], "what": what, "value": value, "goal": goal, "met": met}


def _prediction_goals(case: dict) -> list[dict]:
    found = []
    for row in case["figures"]:
        ratio = _ratio(row["measured_s"], row["predicted_s"])
        if ratio is not None:
            met = 2 - WITHIN <= ratio <= WITHIN
            found.append(_goal(case, f"{row['policy']}: measured / predicted", ratio, "1 +- 0.05", met))
    return found


def _exact_goals(case: dict, exact: dict) -> list[dict]:
    found = []
    ratio = _ratio(exact["measured_s"], exact["lower_bound_s"])
    if ratio is not None:
        found.append(_goal(case, "exact: measured / bound", ratio, f"<= {WITHIN:g}", ratio <= WITHIN))
    for row in case["figures"]:
        faster = row["measured_s"] / exact["measured_s"]
        promised = _ratio(row["predicted_s"], exact["predicted_s"])
        if row["policy"] == "wfbp" and case["ratio"] == 1:
            met = faster >= OVER_WFBP
            found.append(_goal(case, "wfbp / exact", faster, f">= {OVER_WFBP:g}", met))
        if row["policy"] in SPLITTERS and promised is not None:
            met = faster >= promised / WITHIN
            goal = f">= {promised:.3f} promised, less 5 %"
            found.append(_goal(case, f"{row['policy']} / exact", faster, goal, met))
    return found


def _noise_goals(case: dict, exact: dict) -> list[dict]:
    """Never slower than another policy by more than both spread."""
    found = []
    for row in case["figures"]:
        if row is exact:
            continue
        noise = max(row["spread"], exact["spread"])
        ratio = exact["measured_s"] / row["measured_s"]
        met = ratio <= 1 + noise
        if not met or (case["jitter"] and row["policy"] == "wfbp"):
            goal = f"<= {1 + noise:.3f}, the noise"
            found.append(_goal(case, f"exact / {row['policy']}", ratio, goal, met))
    return found


def goals(cases: list[dict]) -> list[dict]:
    """The goals that were set before anything was measured, where their figures are there. A plan
    knows the times' middle and not what they vary by: with jitter only the last one holds."""
    found = []
    for case in cases:
        exact = exact_of(case)
        if not case["jitter"]:
            found += _prediction_goals(case)
            found += _exact_goals(case, exact) if exact else []
        found += _noise_goals(case, exact) if exact else []
    return found


def goals_text(reached: list[dict]) -> str:
    rows = [
        [row["case"], row["what"], f"{row['value']:.3f}", row["goal"], "met" if row["met"] else "NOT MET"]
        for row in reached
    ]
    met = sum(row["met"] for row in reached)
    return table(["case", "what", "measured", "goal", ""], rows) + f"\n{met} of {len(reached)} met"
