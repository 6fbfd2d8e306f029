"""Runs tests/bench/watching in its smallest form and looks at the fields of its JSON; at no time.

usage: watching_smoke_test.py BUILD
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True

import watched
import watching_report

MIB = 1 << 20


def check_figures() -> None:
    """Each round is compared with the plain way's of the same round."""
    row = watched.figure("watched", MIB, [1010.0, 2020.0, 4040.0], [1000.0, 2000.0, 4000.0])
    assert abs(row["over_plain"] - 1.01) < 1e-9 and row["spread"] < 1e-9, row
    assert row["p50_us"] == 2.02 and row["rounds"] == 3, row
    assert watched.figure("plain", MIB, [5.0], [5.0])["over_plain"] == 1.0


def check_goals() -> None:
    """Against the older build where there is one, else against the plain way."""

    def part(**over_plain: float) -> dict:
        figures = [
            {"way": way, "bytes": MIB, "over_plain": ratio} for way, ratio in over_plain.items()
        ]
        kept = {
            "before": [{"way": "plain", "board_bytes": 100}],
            "after": [{"way": "plain", "board_bytes": 100}],
        }
        return {"place": "here", "figures": figures, "kept": kept}

    time, board = watching_report.goals([part(plain=1.0, watched=1.005)])
    assert time["met"] and board["met"], (time, board)
    time, _ = watching_report.goals([part(plain=1.0, watched=1.005, before=0.99)])
    assert not time["met"] and abs(time["value"] - 1.005 / 0.99) < 1e-9, time


def check_part(part: dict, ways: set[str]) -> None:
    assert {row["way"] for row in part["figures"]} == ways, part["figures"]
    for row in part["figures"]:
        assert row["p50_us"] > 0 and row["over_plain"] > 0 and row["rounds"] == 2, row
    assert {row["way"] for row in part["costs"]} == ways, part["costs"]
    for row in part["kept"]["after"]:
        assert row["trace_bytes"] > 0, row
    boards = {row["board_bytes"] for when in ("before", "after") for row in part["kept"][when]}
    assert len(boards) == 1, boards


def check_run(build: str) -> str:
    """Why nodes were skipped, if they were."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "watching.json"
        command = [str(HERE / "watching"), "--smoke", "--quiet", "--build", build, "--json", str(path)]
        # The build beside itself: there is no older one here.
        done = subprocess.run([*command, "--against", build], capture_output=True, text=True)
        assert done.returncode in (0, 77), done.stderr + done.stdout
        parts = json.loads(path.read_text())["parts"]
    check_part(parts[0], {"plain", "watched", "before"})
    if done.returncode == 77:
        return done.stdout.strip().splitlines()[-1]
    check_part(parts[1], {"plain", "watched", "before"})
    return ""


if __name__ == "__main__":
    check_figures()
    check_goals()
    reason = check_run(sys.argv[1])
    if reason:
        print(reason)
        sys.exit(77)
