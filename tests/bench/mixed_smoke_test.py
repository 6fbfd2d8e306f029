"""Runs tests/bench/mixed in its smallest form and looks at the fields of its JSON; at no time.

Also: the traces are what tests/bench/mixed_traces.py writes today.

usage: mixed_smoke_test.py BUILD
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import mixed_traces


def main(build: str) -> int:
    for trace in (mixed_traces.fsdp(), mixed_traces.pipeline(), mixed_traces.experts()):
        committed = json.loads((mixed_traces.TRACES / f"{trace['name']}.json").read_text())
        assert committed["programs"] == trace["programs"], f"{trace['name']}: run mixed_traces.py, and read the diff"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mixed.json"
        command = [str(HERE / "mixed"), "--smoke", "--quiet", "--build", build, "--json", str(path)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 77:
            print(done.stdout.strip().splitlines()[-1])
            return 77
        assert done.returncode == 0, done.stderr + done.stdout
        figures = json.loads(path.read_text())["figures"]
    assert [figure["trace"] for figure in figures] == ["fsdp", "pipeline", "experts"], figures
    for figure in figures:
        # Ranks sleep for what they would compute.
        assert all(seconds >= figure["computing_s"] for seconds in figure["seconds"].values()), figure
        assert all(0 < waited < figure["seconds"][each] for each, waited in figure["waited_s"].items()), figure
        assert figure["ideal_s"] == max(figure["computing_s"], figure["transfers_s"]) > 0, figure
        assert figure["rounds"] == 1, figure
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
