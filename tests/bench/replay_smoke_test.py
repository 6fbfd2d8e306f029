"""Runs tests/bench/replay on a tiny profile and looks at the fields of its JSON; at no time.

usage: replay_smoke_test.py BUILD
"""

import json
import subprocess
import sys
import tempfile
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True

import replay_report
from model_profile import Model, ProfileError, Tensor, read_model
from replaying import Case, figure
from support.policies import POLICIES as EVERY_POLICY

TINY = {
    "format": "headrace-profile/1",
    "model": "tiny",
    "dtype": "float32",
    "tensors": [
        {"name": f"layer{i}", "elements": 20_000 * (i + 1), "backward_s": 0.01, "forward_s": 0.005}
        for i in range(6)
    ],
}
POLICIES = ["exact", "wfbp"]


def check_point() -> None:
    """A published point keeps the ratio of computing, startups and bytes."""
    loader = SourceFileLoader("headline", str(HERE / "headline"))
    headline = module_from_spec(spec_from_loader("headline", loader))
    loader.exec_module(headline)
    line = headline.Line(4, 2e-3, 1e-9)
    with tempfile.TemporaryDirectory() as folder:
        case = headline.point("resnet50", line, 0.5, 400.0, Path(folder))
    whole = headline.published_model("resnet50")
    factor = 0.5 / whole.compute_s
    assert abs(case.scale / factor - 1) < 0.01, case.scale
    assert abs(case.communication_s / (1e-9 * whole.bytes * factor) - 1) < 0.01, case
    assert abs(case.delay_us * 2e-6 / (2e-3 * factor) - 1) < 1e-9, case


def check_case() -> None:
    """By hand: a node of four sends one and a half times the gradients, at 93.5 % of the rate."""
    tensors = (Tensor(2_500_000, backward_s=1.5, forward_s=0.5),)
    model = Model("tiny", Path("tiny.json"), 4, tensors)
    case = Case(model, nodes=4, ratio=2.0, rate_mbit=1000.0)
    assert abs(case.communication_s - 15e6 * 8 / 935e6) < 1e-9
    assert abs(case.scale * model.compute_s * 2 - case.communication_s) < 1e-9
    # One server gets what four nodes have; of eight servers each node's own link has the most.
    for servers, times in ((1, 4), (8, 1)):
        case = Case(model, nodes=4, ratio=1.0, rate_mbit=1000.0, servers=servers)
        assert abs(case.communication_s - times * 10e6 * 8 / 935e6) < 1e-9, case
        assert f"{servers} server" in case.title, case.title
    assert read_model("resnet50").bytes == 25_557_032 * 4


def check_profiles() -> None:
    """A file that is no profile is refused by name, line or field, and with what helps."""
    good = '{"name": "a", "elements": 4, "backward_s": 0.5, "forward_s": 0}'
    recorder = "headrace.profile"
    for text, *wanted in (
        ("", "line 1", recorder),
        ('{"tensors": [\n  {"elements" 4}]}', "line 2", "column", recorder),
        ("[]", "line 1", recorder),
        ("{}", "tensors", recorder),
        ('{"tensors": []}', "tensors", recorder),
        ('{"tensors": [4]}', "tensors[0]", recorder),
        ('{"dtype": "int9", "tensors": [' + good + "]}", "dtype", "int9", "float32"),
        ('{"dtype": [], "tensors": [' + good + "]}", "dtype", "float32"),
        ('{"tensors": [' + good + ', {"backward_s": 1, "forward_s": 1}]}', "tensors[1].elements", recorder),
        ('{"tensors": [' + good.replace("4", "0") + "]}", "tensors[0].elements", "0", "1 or more"),
        ('{"tensors": [' + good.replace("4", "2.5") + "]}", "tensors[0].elements", "2.5"),
        ('{"tensors": [' + good.replace("4", "true") + "]}", "tensors[0].elements", "True"),
        ('{"tensors": [' + good.replace("0.5", "-1") + "]}", "tensors[0].backward_s", "-1", "0 or more"),
        ('{"tensors": [' + good.replace("0.5", "NaN") + "]}", "tensors[0].backward_s", "nan"),
        ('{"tensors": [' + good.replace("0}", '"1"}') + "]}", "tensors[0].forward_s", "'1'"),
    ):
        refused(text, *wanted)
    # Each error has its line, however the file is laid out.
    row = good.replace("{", "{\n  ").replace(", ", ",\n  ")
    lines = '{"dtype": "float32",\n"tensors": [\n' + row + ",\n" + row + "\n]}"
    last = lines.rindex
    for text, *wanted in (
        (lines.replace("float32", "int9"), "line 1:", "dtype"),
        (lines[: last("4")] + "0" + lines[last("4") + 1 :], "line 10:", "tensors[1].elements"),
        (lines[: last("0")] + "-3" + lines[last("0") + 1 :], "line 12:", "tensors[1].forward_s", "-3"),
        (lines.replace('"elements"', '"size"', 1), "line 3:", "tensors[0].elements", "missing"),
        ('{"tensors":\n[\n4]}', "line 3:", "tensors[0]"),
        ('{"model": {"tensors": [0]},\n\n"tensors": []}', "line 3:", "tensors"),
    ):
        refused(text, *wanted)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        path.write_text('{"tensors": [' + good + "]}")
        assert read_model(str(path)) == Model("model", path, 4, (Tensor(4, 0.5, 0),))
        path.unlink()
        for name, known in (("resnet5", "resnet50"), (str(path), "")):
            try:
                read_model(name)
            except ProfileError as error:
                assert name in str(error) and known in str(error), error
            else:
                raise AssertionError(f"taken: {name}")


def refused(text: str, *wanted: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        path.write_text(text)
        try:
            read_model(str(path))
        except ProfileError as error:
            for piece in (str(path), *wanted):
                assert piece in str(error), (piece, str(error))
            return
    raise AssertionError(f"taken: {text}")


def rank(times: list[float], **more: object) -> dict:
    return {
        "iterations_s": times, "predicted_s": 1.0, "lower_bound_s": 0.9, "hidden_share": 0.5,
        "waited_s": 0.1, "moving_s": 0.5, "blocks": 3, "plan_version": 2, "values_checked": 4,
        "lanes": [], **more,
    }  # fmt: skip


def check_figure() -> None:
    """The slowest rank counts in each iteration, and all rounds are one heap."""
    first = [rank([1.0, 2.0, 3.0]), rank([2.0, 1.0, 4.0])]
    second = [rank([5.0, 5.0, 5.0]), rank([1.0, 1.0, 1.0])]
    found = figure("exact", [first, second])
    assert found["samples"] == 6 and found["measured_s"] == 4.5, found
    assert found["rounds_s"] == [2.0, 5.0], found
    assert found["predicted_s"] == 1.0 and found["blocks"] == 3, found


def row(policy: str, measured: float, predicted: float, spread: float = 0.01) -> dict:
    return {
        "policy": policy, "measured_s": measured, "predicted_s": predicted, "spread": spread,
        "lower_bound_s": 1.0, "hidden_share": None, "blocks": 3, "cost_lines": [],
    }  # fmt: skip


def check_goals() -> None:
    """Ratios that point the right way."""
    case = {
        "title": "t", "ratio": 1.0, "jitter": 0.0, "bytes": 1, "rate_mbit": 1.0, "scale": 1.0,
        "communication_s": 1.0, "computation_s": 1.0,
    }  # fmt: skip
    good = [row("exact", 1.02, 1.0), row("wfbp", 1.4, 1.4), row("us-byte", 1.3, 1.3)]
    found = replay_report.goals([{**case, "figures": good}])
    assert len(found) == 6 and all(goal["met"] for goal in found), found
    bad = [row("exact", 1.2, 1.0), row("wfbp", 1.1, 1.4), row("us-byte", 1.21, 1.3)]
    missed = {goal["what"] for goal in replay_report.goals([{**case, "figures": bad}]) if not goal["met"]}
    assert missed == {
        "exact: measured / predicted", "exact: measured / bound", "wfbp: measured / predicted",
        "us-byte: measured / predicted", "wfbp / exact", "us-byte / exact", "exact / wfbp",
    }, missed  # fmt: skip
    varying = replay_report.goals([{**case, "jitter": 0.2, "figures": bad}])
    assert [goal["what"] for goal in varying] == ["exact / wfbp"] and not varying[0]["met"]


def check_run(build: str, *flags: str, policies: list[str] = POLICIES, iterations: int = 3) -> str:
    """Why it was skipped, if it was."""
    with tempfile.TemporaryDirectory() as folder:
        profile, path = Path(folder) / "tiny.json", Path(folder) / "replay.json"
        profile.write_text(json.dumps(TINY))
        command = [str(HERE / "replay"), "--build", build, "--json", str(path), "--nodes", "2"]
        command += ["--profiles", str(profile), "--ratios", "1", "--policies", *policies]
        command += ["--iterations", str(iterations), "--rounds", "1", "--rate-mbit", "400", "--quiet", *flags]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 77:
            return done.stdout.strip()
        assert done.returncode == 0, done.stderr + done.stdout
        result = json.loads(path.read_text())
    jitters = [0.0] if "--jitter" in flags else [0.0, 0.2]
    found = [(case["profile"], case["nodes"], case["servers"], case["jitter"]) for case in result["cases"]]
    assert found == [("tiny", 2, int("--servers" in flags), jitter) for jitter in jitters], result["cases"]
    for case in result["cases"]:
        assert [found["policy"] for found in case["figures"]] == policies, case
        for found in case["figures"]:
            assert found["samples"] == iterations and found["values_checked"] > 0, found
            assert found["measured_s"] > 0 and found["lower_bound_s"] > 0, found
            assert found["blocks"] >= 1 and min(found["plan_versions"]) >= 2, found
        assert case["title"] in done.stdout
    return ""


if __name__ == "__main__":
    check_case()
    check_profiles()
    check_point()
    check_figure()
    check_goals()
    reason = check_run(sys.argv[1])
    if not reason:
        reason = check_run(sys.argv[1], "--delay-us", "500")
    if not reason:
        reason = check_run(sys.argv[1], "--servers", "1", "--jitter", "0")
    once = ("--jitter", "0", "--rate-mbit", "1000")
    if not reason:
        reason = check_run(sys.argv[1], *once, policies=list(EVERY_POLICY), iterations=1)
    if not reason:  # reduce-scatters and all-gathers in the node and between nodes
        reason = check_run(sys.argv[1], *once, "--ranks-per-node", "2", policies=["dear"], iterations=1)
    if reason:
        print(reason)
        sys.exit(77)
