"""Runs tests/bench/run in its smallest form and looks at the fields of its JSON; at no time.

usage: smoke_test.py BUILD
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True

import posting
import report
import rounds

FIGURE_FIELDS = {
    "contender",
    "ranks",
    "bytes",
    "samples",
    "p50_us",
    "p99_us",
    "mean_us",
    "least_us",
}


def check_figures() -> None:
    """Percentiles by hand, and ratios that point the right way."""
    figure = rounds.figure_of(
        "ideal", 2, 4096, [1000 * value for value in range(200, 0, -1)]
    )
    assert (figure.p50_us, figure.p99_us, figure.least_us) == (100.5, 198.0, 1.0), (
        figure
    )
    assert rounds.figure_of("ideal", 2, 4096, [7000]).p99_us == 7.0

    def figures(headrace_us: float) -> list[rounds.Figure]:
        times = {"ideal": 10, "headrace": headrace_us, "openmpi": 60}
        return [
            rounds.figure_of(name, 2, 64 << 20, [int(us * 1e3)])
            for name, us in times.items()
        ]

    good, bad = report.ratios(figures(12)), report.ratios(figures(20))
    assert [(row["ratio"], row["met"]) for row in good] == [(1.2, True), (5.0, True)], (
        good
    )
    assert [(row["ratio"], row["met"]) for row in bad] == [
        (2.0, False),
        (3.0, False),
    ], bad


def check_call_counting() -> None:
    """Only calls of the posting thread between its marks count, and each of them once."""
    trace = """\
7 write(1, "", 0) = 0
7 getppid() = 1
7 clock_gettime(CLOCK_THREAD_CPUTIME_ID, {}) = 0
7 write(5, "", 8 <unfinished ...>
9 futex(0x1, FUTEX_WAIT) = 0
7 <... write resumed>) = 8
7 getppid() = 1
7 close(3) = 0
"""
    assert posting.system_calls_between_marks(trace) == (1, 1)


def check_run(build: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.json"
        command = [str(HERE / "run"), "--smoke", "--build", build, "--json", str(path)]
        done = subprocess.run(command, capture_output=True, text=True)
        # A wrong sum on any rank ends the run with a failure.
        assert done.returncode == 0, done.stderr
        result = json.loads(path.read_text())
    assert {"cpu", "cores", "kernel"} <= result["machine"].keys(), result["machine"]
    expected = {"ideal", "headrace", "openmpi", "gloo"} - result["missing"].keys()
    figures = result["all_reduce_float32_sum"]
    measured = {(row["contender"], row["ranks"], row["bytes"]) for row in figures}
    sizes = list(rounds.SMOKE_REPETITIONS)
    assert measured == {
        (name, n, size) for name in expected for n in (2, 4) for size in sizes
    }, measured
    for row in figures:
        assert set(row) == FIGURE_FIELDS, row
        assert (
            row["samples"]
            == rounds.SMOKE_ROUNDS * rounds.SMOKE_REPETITIONS[row["bytes"]]
        ), row
        assert 0 < row["least_us"] <= row["p50_us"] <= row["p99_us"], row
    for kind in ("awake", "default"):
        assert result["service"]["posting"][kind]["cpu_ns_p50"] > 0, result["service"]
    for kind in ("empty", "attached"):
        idle = result["service"]["idle"][kind]
        assert idle["wakeups"] >= 0 and idle["beside_segments_mib"] > 0, idle
    # Four clients of 64 MiB each: the service has their segments mapped and has touched them.
    assert result["service"]["idle"]["attached"]["segments_mib"] >= 4 * 64, result[
        "service"
    ]["idle"]
    for name, reason in result["missing"].items():
        print(f"not measured: {name}: {reason}")


if __name__ == "__main__":
    check_figures()
    check_call_counting()
    check_run(sys.argv[1])
