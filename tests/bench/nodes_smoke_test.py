"""Runs tests/bench/nodes in its smallest form and looks at the fields of its JSON; at no time.

usage: nodes_smoke_test.py BUILD
"""

import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True

import nodes_report
import parts
from across import Layout


def part(key: str, times_us: dict[tuple[str, int], float], **more: object) -> dict:
    figures = [
        {"contender": name, "bytes": size, "p50_us": us} for (name, size), us in times_us.items()
    ]
    return {
        "key": key, "title": key, "all_reduce_float32_sum": figures, "costs": {}, **more,
    }  # fmt: skip


def check_ideal() -> None:
    """By hand: at 800 Mbit/s a megabyte takes 10 ms."""
    wires = parts.Wires(9e8, 8e8, latency_s=50e-6, ucx_bytes_s=None)
    assert abs(wires.ideal_s(Layout(2), 1_000_000) - 0.010) < 1e-9
    assert abs(wires.ideal_s(Layout(4), 1_000_000) - 0.015) < 1e-9
    assert abs(wires.ideal_s(Layout(4, servers=4), 1_000_000) - 0.010) < 1e-9
    assert abs(wires.ideal_s(Layout(4, servers=2), 1_000_000) - 0.020) < 1e-9
    assert wires.ideal_s(Layout(2), 100) == 50e-6


def check_goals() -> None:
    """Ratios that point the right way."""
    large, small = 64 << 20, 4 << 10
    ideal = {"ideal_us": {str(large): 97.5, str(small): 10.0}}
    times = {("headrace", large): 100.0, ("headrace", small): 20.0, ("gloo", small): 250.0}
    good = nodes_report.goals([part("two", times, **ideal)])
    assert [(row["value"], row["met"]) for row in good] == [(0.975, True), (0.08, True)], good
    times = {("headrace", large): 110.0, ("headrace", small): 50.0, ("gloo", small): 250.0}
    bad = nodes_report.goals([part("two", times, **ideal)])
    assert [row["met"] for row in bad] == [False, False], bad
    servers = {("headrace", large): 100.0, ("headrace without servers", large): 140.0}
    faster = nodes_report.goals([part("servers", servers, **ideal)])
    assert [(row["value"], row["met"]) for row in faster] == [(1.4, True)], faster
    crossing = {"headrace": {"bytes": 1000, "sent_bytes_per_node": 2000.0, "cpu_s_per_gb": 1}}
    twice = part("ranks", times, **ideal)
    twice["costs"] = crossing
    assert [row["met"] for row in nodes_report.goals([twice])] == [False]


def check_run(build: str) -> str:
    """Why it was skipped, if it was."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "nodes.json"
        command = [str(HERE / "nodes"), "--smoke", "--build", build, "--json", str(path)]
        command += ["--parts", "two", "ranks", "rails", "servers"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 77:
            return done.stdout.strip()
        assert done.returncode == 0, done.stderr + done.stdout
        result = json.loads(path.read_text())
    measured = {row["key"]: row for row in result["parts"]}
    assert set(measured) == {"two", "ranks", "rails", "servers"}
    for row in measured.values():
        assert row["links"]["one_way_bits_s"] > 1e6 and row["links"]["latency_s"] > 0, row["links"]
        names = {figure["contender"] for figure in row["all_reduce_float32_sum"]}
        wanted = next(part.contenders for part in parts.PARTS if part.key == row["key"])
        assert names == set(wanted) - row["missing"].keys(), names
        for figure in row["all_reduce_float32_sum"]:
            assert 0 < figure["least_us"] <= figure["p50_us"], figure
    for cost in measured["two"]["costs"].values():
        # Two nodes: what is summed goes over each link once at least, whatever the way.
        # A difference of two short runs, so that noise may be more than it.
        assert math.isfinite(cost["cpu_s_per_gb"]), cost
        assert 1.0 <= cost["sent_bytes_per_node"] / cost["bytes"] < 2.5, cost
    return ""


if __name__ == "__main__":
    check_ideal()
    check_goals()
    reason = check_run(sys.argv[1])
    if reason:
        print(reason)
        sys.exit(77)
