"""Runs tests/bench/headline at one point, as short as it goes, and looks at its JSON; at no time.

usage: headline_smoke_test.py BUILD
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
POLICIES = ["exact", "wfbp"]
ITERATIONS = 2


def check_run(build: str) -> str:
    """Why it was skipped, if it was."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "headline.json"
        command = [str(HERE / "headline"), "--build", build, "--json", str(path), "--quiet"]
        command += ["--models", "resnet50", "--nodes", "2", "--seconds", "0.1"]
        command += ["--iterations", str(ITERATIONS), "--policies", *POLICIES]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 77:
            return done.stdout.strip()
        assert done.returncode == 0, done.stderr + done.stdout
        (point,) = json.loads(path.read_text())["points"]
    assert point["profile"] == "resnet50" and point["nodes"] == 2 and point["delay_us"] > 0, point
    assert abs(point["computation_s"] - 0.1) < 0.01, point
    assert [found["policy"] for found in point["figures"]] == POLICIES, point
    for found in point["figures"]:
        assert found["samples"] == ITERATIONS and found["values_checked"] > 0, found
        assert found["measured_s"] > 0 and found["predicted_s"] >= found["lower_bound_s"] > 0, found
    exact, wfbp = point["figures"]
    assert exact["blocks"] < wfbp["blocks"] == 161, point["figures"]
    assert "resnet50, 2 nodes" in done.stdout and "wfbp" in done.stdout, done.stdout
    return ""


if __name__ == "__main__":
    reason = check_run(sys.argv[1])
    if reason:
        print(reason)
        sys.exit(77)
