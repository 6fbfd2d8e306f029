"""Runs tests/bench/recovery in its smallest form and looks at the fields of its JSON; at no time.

usage: recovery_smoke_test.py BUILD
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> None:
    build = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "recovery.json"
        command = [sys.executable, "-B", str(HERE / "recovery"), "--build", build]
        command += ["--json", str(written), "--ranks", "2", "--ways", "shrink", "spare"]
        command += ["--rounds", "1", "--seconds", "0.005", "--ready", "20", "--votes", "20"]
        subprocess.run(command, check=True)
        said = json.loads(written.read_text())
    assert [row["way"] for row in said["figures"]] == ["shrink", "spare"], said["figures"]
    for row in said["figures"]:
        assert row["ranks"] == 2 and row["median_s"] > 0 and len(row["seconds"]) == 1, row
    assert {row["way"] for row in said["ready"]} == {"nothing", "reconnect", "shrink"}, said["ready"]
    for row in said["ready"]:
        assert row["iteration_ms"] >= 5 and row["over_nothing"] > 0, row
    (row,) = said["votes"]
    assert row["voted_ms"] >= 5 and row["plain_ms"] >= 5, row


if __name__ == "__main__":
    main()
