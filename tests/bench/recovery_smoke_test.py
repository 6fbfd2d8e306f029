"""Runs tests/bench/recovery in its smallest form and looks at the fields of its JSON; at no time.

usage: recovery_smoke_test.py BUILD
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
# One of each kind, without those that take long.
WAYS = ("shrink", "spare", "elastic_run", "evict", "hang", "leader", "join")
READY = ("nothing", "reconnect", "shrink", "transaction")


def main() -> None:
    build = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "recovery.json"
        command = [sys.executable, "-B", str(HERE / "recovery"), "--build", build]
        command += ["--json", str(written), "--ranks", "2", "--tuned", "--ways", *WAYS]
        command += ["--rounds", "1", "--seconds", "0.005", "--ready", "20"]
        subprocess.run(command, check=True)
        said = json.loads(written.read_text())
    assert [row["way"] for row in said["figures"]] == list(WAYS), said["figures"]
    for row in said["figures"]:
        assert row["ranks"] == 2 and row["median_s"] > 0 and len(row["seconds"]) == 1, row
        if row["way"] == "leader":
            assert row["detected_s"] >= 0 and row["decided_s"] >= 0, row
        if row["way"] == "join":
            assert row["joined_s"] > 0 and row["plain_s"] >= 0.005, row
    assert [(row["nodes"], row["way"]) for row in said["ready"]] == [(n, way) for n in (1, 2) for way in READY], said
    for row in said["ready"]:
        assert row["iteration_ms"] >= 5 and row["over_nothing"] > 0 and row["quick_over_nothing"] > 0, row


if __name__ == "__main__":
    main()
