"""The published profiles, those that no paper's figures stand beside too, under every policy at one point."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from model_profile import PUBLISHED_PROFILES, read_model
from planner import Planner
from report import table

STARTUP_S = 1.3186e-3  # US-Byte's, 8 ranks
RATIO = 1.0  # communication / computation


def part(planner: Planner, _out: Path, _options: argparse.Namespace) -> tuple[dict, str, list[Path]]:
    """The figures, their text and no picture."""
    figures, rows, policies = [], [], []
    for path in sorted(PUBLISHED_PROFILES.glob("*.json")):
        text = planner.run(
            "simulate", str(path), "--startup-us", repr(STARTUP_S * 1e6), "--ratio", repr(RATIO),
            "--json", "--brief",
        )  # fmt: skip
        found = {row["policy"]: row for row in json.loads(text)}
        policies = list(found)
        model = read_model(str(path))
        rows.append(
            [model.name, str(len(model.tensors)), f"{model.bytes / 1e6:.1f}", f"{model.compute_s * 1e3:.1f}"]
            + [f"{row['speedup_over_wfbp']:.3f}" for row in found.values()]
        )
        figures += [
            {"model": model.name, "policy": policy, "iteration_s": row["iteration_s"],
             "speedup_over_wfbp": row["speedup_over_wfbp"], "lower_bound_s": row["lower_bound_s"]}
            for policy, row in found.items()
        ]  # fmt: skip
    text = (
        "PUBLISHED PROFILES. Published: times, or what they are scaled to; each file says whose. Assumed: backward as\n"
        f"twice forward, a startup of {STARTUP_S * 1e6:.0f} us, and as much communication as computation. Simulated:\n"
        "speed-ups over wfbp.\n\n" + table(["model", "tensors", "MB", "computes, ms", *policies], rows)
    )
    return {"figures": figures}, text, []
