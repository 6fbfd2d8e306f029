"""Runs tests/bench/training in its smallest form and looks at the fields of its JSON; at no time.

usage: training_smoke_test.py BUILD
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "digits"), str(HERE.parents[1] / "client" / "examples")]
sys.dont_write_bytecode = True

import training_breakdown
import training_report
from figures import ACCELERATED, ALONE, BY_NAME, GLOO, figures, rate_for, sent_seconds, wrong
from figures import WAYS as DEFAULT_WAYS
from support.policies import POLICIES

WAYS = [ALONE, GLOO, "exact"]
WARM_UP = 9  # iterations, by which the policy's own plan has followed the one for recording


def check_rate() -> None:
    """By hand: a node of four sends one and a half times the gradients, at 93.5 % of the rate."""
    assert abs(sent_seconds(10_000_000, 4, 1000.0) - 15e6 * 8 / 935e6) < 1e-9
    assert abs(sent_seconds(10_000_000, 2, 1000.0) - 10e6 * 8 / 935e6) < 1e-9
    rate = rate_for(10_000_000, 4, 0.5)
    assert rate == 260 and abs(sent_seconds(10_000_000, 4, rate) - 0.5) < 0.01, rate


def way(name: str, times: list[list[float]], losses: list[float], **more: object) -> dict:
    """What a rank writes of one way, which has one plan, if any, from the warm-up on."""
    promised = more.get("plan") and {"version": 2, "predicted_ns": more["plan"]["predicted_ns"]}
    waits = [[0.25] * len(turn) for turn in times]
    return {
        "way": name, "seconds": times, "waits": waits, "losses": losses, "hash": "a", "plan": None,
        "plans": [promised] * (len(times) + 1), **more,
    }  # fmt: skip


def plan(policy: str) -> dict:
    return {
        "policy": policy, "version": 2, "predicted_ns": 10**9, "lower_bound_ns": 8 * 10**8, "block_count": 3,
    }  # fmt: skip


def check_breakdown() -> None:
    """By hand: two iterations of one rank, whose parts add up, and what a rank that is late costs it."""
    this = {
        "forward_begin": 0.0, "forward_end": 1.0, "backward_begin": 1.0, "backward_end": 3.0,
        "posts": [[1, 1.75, 2.0], [0, 2.75, 3.0]], "waits": [], "updates": [],
    }  # fmt: skip
    then = {
        "forward_begin": 3.5, "forward_end": 5.0, "backward_begin": 5.5, "backward_end": 7.5,
        "posts": [], "waits": [[0, 3.5, 4.0], [1, 4.5, 4.5]], "updates": [[0, 4.0, 4.25]],
    }  # fmt: skip
    parts = training_breakdown.parts_of(this, then)
    assert parts == {
        "backward": 1.5, "forward": 0.75, "updates": 0.25, "posting": 0.5, "waiting": 0.5,
        "elsewhere": 1.0, "whole": 4.5,
    }, parts  # fmt: skip
    planned = {
        "predicted_startup_ns": 250_000_000, "predicted_bytes_per_s": 0, "barrier": False,
        "blocks": [{"first_tensor": 1, "bytes": 4}, {"first_tensor": 0, "bytes": 4}],
    }  # fmt: skip

    def waiting(releases: list[float]) -> float:
        return training_breakdown._waiting(this, then, training_breakdown._ends(planned, releases))

    own = training_breakdown.releases_of(this)
    assert own == [3.0, 2.0], own
    assert waiting(own) == 0.0 and waiting([4.0, 2.0]) == 0.75
    assert training_breakdown.pairs_of([0, 1, 2, 3, 4, 5, 6], 1, 1, [0, 1]) == [(2, 3), (4, 5)]
    assert training_breakdown.pairs_of([0, 1, 2, 3, 4, 5, 6], 1, 1, [1]) == [(4, 5)]


def check_figures() -> None:
    """All iterations of all ranks are one heap; losses are rank 0's, held against DDP's."""
    exact = {"plan": plan("exact")}
    ranks = [
        {"ways": [way(GLOO, [[3.0]], [1.0, 0.5]), way("exact", [[1.0, 2.0], [9.0]], [1.0, 0.75], **exact)]},
        {"ways": [way(GLOO, [[5.0]], [9.0, 9.0]), way("exact", [[4.0, 5.0], [6.0]], [9.0, 9.0], **exact)]},
    ]  # fmt: skip
    gloo, found = figures(ranks)
    assert gloo.iteration_s == 4.0 and gloo.loss_distance == 0.0, gloo
    assert found.samples == 6 and found.iteration_s == 4.5 and found.rounds_s == [3.0, 7.5], found
    assert found.loss_distance == 0.25 and found.hidden(1.0) == 0.75 and found.hidden(0.2) == 0.0
    assert wrong([gloo, found]) == ""
    ranks[1]["ways"][0]["hash"] = "b"
    assert "differ" in wrong(figures(ranks))
    ranks[1]["ways"][0].update(hash="a")
    ranks[0]["ways"][1]["plan"] = plan("wfbp")
    assert "wfbp" in wrong(figures(ranks))


def check_plans_that_switch() -> None:
    """A turn in which the plan was switched is held against no prediction."""
    plans = [{"version": version, "predicted_ns": ns * 10**9} for version, ns in ((2, 1), (2, 1), (3, 4), (3, 4))]
    auto = way("auto", [[1.0], [7.0], [5.0]], [1.0], plan={**plan("auto"), "version": 3}, plans=plans)
    (found,) = figures([{"ways": [auto]}])
    assert found.turns == 3 and found.turns_under_one_plan == 2, found
    assert found.mean_s == 3.0 and found.predicted_s == 2.5, found
    assert found.iteration_s == 5.0, found
    assert training_breakdown.turns_of_last_plan(auto) == [2]
    auto["plans"] = [{**each, "version": number} for number, each in enumerate(plans)]
    (found,) = figures([{"ways": [auto]}])
    assert found.turns_under_one_plan == 0 and found.mean_s is None and found.predicted_s is None, found
    assert training_breakdown.turns_of_last_plan(auto) == []
    (row,) = training_report.auto_goals([{"title": "t", "figures": [found]}])
    assert row["value"] is None and not row["met"], row
    assert "NOT MET" in training_report.auto_goals_text([row])
    case = {"title": "t", "tensors": 1, "bytes": 4, "batch": 1, "communication_s": 1.0, "figures": [found]}
    assert "0 of 3" in training_report.case_text(case)


def check_ways() -> None:
    """Every policy can be asked for, and its plans are known to be its own."""
    assert set(POLICIES) <= {*DEFAULT_WAYS, *BY_NAME}
    assert DEFAULT_WAYS[0] == ALONE and not set(DEFAULT_WAYS) & set(BY_NAME)

    def ends_with(name: str, policy: str) -> str:
        return wrong(figures([{"ways": [way(name, [[1.0]], [1.0], plan=plan(policy))]}]))

    for policy in POLICIES:
        assert ends_with(policy, policy) == "", policy
        assert "bsp" in ends_with(policy, "bsp") or policy == "bsp", policy
    assert ends_with("exact+int8", "exact") == "" and ends_with("exact+int8", "auto") != ""
    # One line after DDP names no policy.
    assert ends_with(ACCELERATED, "auto") == "" and ends_with(ACCELERATED, "exact") != ""


def check_goals() -> None:
    """Ratios that point the right way, and what the bound allows."""
    exact = way("exact", [[1.0]], [1.0], plan=plan("exact"))
    peer = way("bytescheduler", [[1.2]], [1.0], plan=plan("bytescheduler"))
    wfbp = way("wfbp", [[1.6]], [1.0], plan=plan("wfbp"))
    ranks = [{"ways": [way(GLOO, [[9.0]], [1.0]), wfbp, peer, exact]}]
    case = {"title": "t", "figures": figures(ranks)}
    over_wfbp, over_peer = training_report.goals([case])
    assert over_wfbp["over"] == "wfbp" and over_wfbp["value"] == 1.6 and over_wfbp["met"], over_wfbp
    assert over_wfbp["bound"] == 2.0, over_wfbp
    assert over_peer["value"] == 1.2 and not over_peer["met"], over_peer
    assert "NOT MET" in training_report.goals_text([over_peer])
    assert "forbids" in training_report.goals_text([{**over_peer, "bound": 1.25}])


def check_auto_goals() -> None:
    """Medians against each policy's, and each mean against its plan's."""
    auto = way("auto", [[1.1] * 9 + [3.1]], [1.0], plan=plan("auto"))
    peer = way("wfbp", [[1.0]], [1.0], plan=plan("wfbp"))
    case = {"title": "t", "figures": figures([{"ways": [way(GLOO, [[9.0]], [1.0]), auto, peer]}])}
    promised = [row for row in training_report.auto_goals([case]) if "predicted" in row["what"]]
    (beside,) = (row for row in training_report.auto_goals([case]) if row not in promised)
    assert len(promised) == 2 and beside["what"] == "auto / wfbp", beside
    assert abs(beside["value"] - 1.1) < 1e-9 and not beside["met"], beside
    assert abs(promised[0]["value"] - 1.3) < 1e-9 and not promised[0]["met"], promised
    assert promised[1]["value"] == 1.0 and promised[1]["met"], promised
    assert "NOT MET" in training_report.auto_goals_text([beside])


def check_json_path(build: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for path, why in ((f"{folder}/none/training.json", "there is no folder"), (folder, "is a folder")):
            command = [str(HERE / "training"), "--build", build, "--json", path]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 2 and why in done.stderr, done
            assert not done.stdout, done


def check_run(build: str) -> str:
    """Why it was skipped, if it was."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "training.json"
        command = [str(HERE / "training"), "--build", build, "--json", str(path), "--quiet"]
        command += ["--model", "resnet", "--nodes", "2", "--batch", "2", "--ways", *WAYS]
        command += ["--warm-up", str(WARM_UP), "--steps", "2", "--rounds", "2"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 77:
            return done.stdout.strip()
        assert done.returncode == 0, done.stderr + done.stdout
        result = json.loads(path.read_text())
    (case,) = result["cases"]
    assert case["nodes"] == 2 and case["tensors"] == 47 and case["rate_mbit"] >= 10, case
    alone, gloo, exact = case["figures"]
    assert [each["way"] for each in case["figures"]] == WAYS
    for each in case["figures"]:
        assert each["samples"] == 8 and each["iteration_s"] > 0, each
        assert len(each["losses"]) == WARM_UP + 1 + 2 * 3, each
    assert gloo["same_bits"] and exact["same_bits"] and not alone["same_bits"]
    # Sums of two numbers are the same in any order.
    assert exact["losses"] == gloo["losses"] and exact["loss_distance"] == 0.0, (gloo, exact)
    assert exact["plan"]["policy"] == "exact" and exact["plan"]["lower_bound_ns"] > 0, exact
    assert exact["turns"] == 2 and 0 <= exact["turns_under_one_plan"] <= 2, exact
    assert case["title"] in done.stdout and "DDP" in done.stdout
    return ""


if __name__ == "__main__":
    check_rate()
    check_breakdown()
    check_figures()
    check_plans_that_switch()
    check_ways()
    check_goals()
    check_auto_goals()
    check_json_path(sys.argv[1])
    reason = check_run(sys.argv[1])
    if reason:
        print(reason)
        sys.exit(77)
