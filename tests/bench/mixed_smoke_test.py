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


def of_every_kind() -> dict:
    """A trace that posts each operation that traces may have."""
    kinds = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "reduce", "broadcast", "gather", "scatter")
    programs = []
    for own in range(2):
        steps = [mixed_traces.compute(0.001)]
        steps += [mixed_traces.post(kind, kind, 1 << 16) for kind in kinds]
        steps.append(mixed_traces.post("receive" if own else "send", "message", 1 << 16, rank=1 - own, tag=1))
        programs.append(steps + [mixed_traces.wait(name) for name in (*kinds, "message")])
    return {"format": "headrace-trace/1", "name": "every", "world_size": 2, "programs": programs}


def main(build: str) -> int:
    for trace in (mixed_traces.fsdp(), mixed_traces.pipeline(), mixed_traces.experts()):
        committed = json.loads((mixed_traces.TRACES / f"{trace['name']}.json").read_text())
        assert committed["programs"] == trace["programs"], f"{trace['name']}: run mixed_traces.py, and read the diff"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mixed.json"
        every = Path(folder) / "every.json"
        every.write_text(json.dumps(of_every_kind()))
        command = [str(HERE / "mixed"), "--smoke", "--quiet", "--build", build, "--json", str(path)]
        command += ["--traces", "fsdp", "pipeline", "experts", str(every)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 77:
            print(done.stdout.strip().splitlines()[-1])
            return 77
        assert done.returncode == 0, done.stderr + done.stdout
        figures = json.loads(path.read_text())["figures"]
    assert [figure["trace"] for figure in figures] == ["fsdp", "pipeline", "experts", "every"], figures
    for figure in figures:
        # Ranks sleep for what they would compute.
        assert all(seconds >= figure["computing_s"] for seconds in figure["seconds"].values()), figure
        assert all(0 < waited < figure["seconds"][each] for each, waited in figure["waited_s"].items()), figure
        assert figure["ideal_s"] == max(figure["computing_s"], figure["transfers_s"]) > 0, figure
        assert figure["rounds"] == 1, figure
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
