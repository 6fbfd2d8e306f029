"""Runs tests/bench/torch in its smallest form and looks at the fields of its JSON; at no time.

usage: torch_smoke_test.py BUILD
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True

import torch_report
import torch_turns
from contenders import PYTHON


def check_slower() -> None:
    """A row that is slower is found, marked, and counted; one that cannot be compared is not."""

    def figure(backend: str, operation: str, us: float) -> torch_turns.Figure:
        return torch_turns.Figure(backend, 1, 2, operation, 4096, 3, us, us)

    figures = [
        figure("headrace", "gather", 30), figure("gloo", "gather", 20),
        figure("headrace", "scatter", 10), figure("gloo", "scatter", 20), figure("headrace", "reduce", 99),
    ]  # fmt: skip
    (row,) = torch_report.slower(figures)
    assert (row["operation"], row["ratio"]) == ("gather", 1.5), row
    shown = torch_report.figures_table(figures).splitlines()
    assert [line.split()[0] for line in shown if "SLOWER" in line] == ["gather"], shown
    assert "1 of 2 rows" in torch_report.summary(figures)


def check_refusals(build: str) -> None:
    """An operation that no backend has, and a Python without torch, are told by name."""
    for arguments, code, told in (
        (["--sizes", "5K"], 2, 'no size "5K"'),
        (["--python", "/no/python"], 1, "/no/python"),
    ):
        done = subprocess.run([str(HERE / "torch"), "--build", build, *arguments], capture_output=True, text=True)
        assert done.returncode == code and told in done.stderr, (done.returncode, done.stderr)


def check_run(build: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "torch.json"
        command = [str(HERE / "torch"), "--smoke", "--build", build, "--json", str(path)]
        done = subprocess.run(command, capture_output=True, text=True)
        # A wrong result on any rank ends the run with a failure.
        assert done.returncode == 0, done.stderr
        result = json.loads(path.read_text())
    assert {"cpu", "cores", "kernel"} <= result["machine"].keys(), result["machine"]
    assert result["unfinished"] == [], result["unfinished"]
    assert "headrace" not in result["absent"] and "headrace" not in result["missing"], result
    for backend in {"headrace", "gloo", "commux"} - result["missing"].keys():
        rows = [row for row in result["figures"] if row["backend"] == backend]
        operations = set(torch_turns.OPERATIONS) - result["absent"].get(backend, {}).keys()
        measured = {(row["nodes"], row["ranks"], row["operation"], row["bytes"]) for row in rows}
        assert measured == {
            (nodes, ranks, operation, size)
            for nodes in (1, 2) for ranks in (2, 4) for operation in operations
            for size in torch_turns.SMOKE_REPETITIONS
        }, (backend, measured)  # fmt: skip
        for row in rows:
            assert row["samples"] == torch_turns.SMOKE_REPETITIONS[row["bytes"]], row
            assert 0 < row["least_us"] <= row["p50_us"], row
    for name, reason in result["missing"].items():
        print(f"not measured: {name}: {reason}")


if __name__ == "__main__":
    if subprocess.run([PYTHON, "-c", "import torch"], capture_output=True).returncode != 0:
        print(f"skipped: {PYTHON} has no torch (package python3-torch)")
        sys.exit(77)
    check_slower()
    check_refusals(sys.argv[1])
    check_run(sys.argv[1])
