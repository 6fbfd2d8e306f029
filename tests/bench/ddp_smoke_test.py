"""Runs tests/bench/ddp in its smallest form and looks at the fields of its JSON; at no time.

usage: ddp_smoke_test.py BUILD
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main(build: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ddp.json"
        command = [str(HERE / "ddp"), "--smoke", "--build", build, "--json", str(path)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 77:
            print(done.stdout.strip())
            return 77
        assert done.returncode == 0, done.stderr + done.stdout
        rows = json.loads(path.read_text())["figures"]
    assert [row["nodes"] for row in rows] == [1, 2], rows
    for row in rows:
        assert set(row["seconds"]) == {"gloo", "operations", "planned", "accelerated"}, row
        assert all(seconds > 0 for seconds in row["seconds"].values()), row
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
