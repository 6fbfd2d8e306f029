"""Runs tests/bench/operations in its smallest form and looks at the fields of its JSON; at no time.

usage: operations_smoke_test.py BUILD
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
KINDS = {"send", "all_to_all", "reduce", "gather", "scatter", "reduce_scatter", "all_gather", "all_reduce", "broadcast"}


def main(build: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "operations.json"
        command = [str(HERE / "operations"), "--smoke", "--build", build, "--json", str(path)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 77:
            print(done.stdout.strip().splitlines()[-1])
            return 77
        assert done.returncode == 0, done.stderr + done.stdout
        figures = json.loads(path.read_text())["figures"]
    assert [figure["layout"] for figure in figures] == ["1x2", "2x1", "2x2"], figures
    for figure in figures:
        rows = figure["rows"]
        assert {row["operation"] for row in rows} == KINDS, rows
        assert all(row["measured_s"] > 0 and row["service"]["seconds"] >= 0 for row in rows), rows
        # Lines of both lanes were there, where both are in use.
        assert ("--ns-per-byte" in figure["lines"]) == (figure["layout"] != "1x2"), figure
        assert ("--in-node-ns-per-byte" in figure["lines"]) == (figure["layout"] != "2x1"), figure
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
