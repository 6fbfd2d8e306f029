"""Runs tests/bench/compression in its smallest form and looks at the fields of its JSON; at no time.

usage: compression_smoke_test.py BUILD
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
BOUNDS = {"none": 1e-6, "bf16": 0.01, "fp16": 0.002, "int8": 0.02, "int4": 0.3}


def main(build: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "compression.json"
        command = [str(HERE / "compression"), "--smoke", "--quiet", "--build", build, "--json", str(path)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 77:
            print(done.stdout.strip().splitlines()[-1])
            return 77
        assert done.returncode == 0, done.stderr + done.stdout
        figures = json.loads(path.read_text())["figures"]
    assert {figure["codec"] for figure in figures} == set(BOUNDS), figures
    for figure in figures:
        assert figure["seconds"] > 0 and figure["over_none"] > 0, figure
        assert figure["error"] <= BOUNDS[figure["codec"]], figure
        assert figure["codec"] == "none" or figure["error"] > 1e-5, figure
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
