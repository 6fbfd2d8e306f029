"""Runs tests/bench/jobs in its smallest form and looks at the fields of its JSON; at no time.

usage: jobs_smoke_test.py BUILD
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True

import jobs_report
import turns
from neighbours import CASES, job_row, middle_round
from replay_smoke_test import TINY


def case_of(key: str) -> object:
    return next(case for case in CASES if case.key == key)


def check_ideals() -> None:
    """By hand: a share of all, a part of what it gets alone, and a rate."""
    row = job_row(case_of("weight"), "a", 60.0, {"a": 60.0, "b": 20.0}, None)
    assert row["ideal_bytes_s"] == 60.0 and row["of_ideal"] == 1.0 and row["share"] == 0.75, row
    row = job_row(case_of("flood"), "a", 40.0, {"a": 40.0, "flood": 60.0}, 100.0)
    assert row["ideal_bytes_s"] == 50.0 and row["of_ideal"] == 0.8, row
    row = job_row(case_of("limit"), "a", 25e6, {"a": 25e6, "b": 75e6}, None)
    assert row["of_ideal"] == 1.0, row
    row = job_row(case_of("hang"), "hung", 0.0, {"a": 1.0, "hung": 0.0}, None)
    assert row["ideal_bytes_s"] is None and row["of_ideal"] is None, row
    rounds = [[{"of_ideal": None}, {"of_ideal": part}] for part in (0.9, 1.2, 1.0)]
    assert middle_round(rounds)[1]["of_ideal"] == 1.0


def check_goals() -> None:
    """Too little is never met; more than the ideal only where nobody is deprived by it."""

    def met(key: str, of_ideal: float) -> bool:
        jobs = [{"job": "a", "of_ideal": of_ideal}]
        return jobs_report.goals([{"key": key, "title": key, "where": "x", "jobs": jobs}])[0]["met"]

    assert met("equal", 0.96) and not met("equal", 0.94) and not met("equal", 1.06)
    assert met("hang", 1.2) and not met("hang", 0.94)


def check_turns() -> None:
    """The later iterations count, and what is recovered is a part of what was lost."""
    assert turns.middle_of_later([9.0] * 10 + [1.0] * 8 + [5.0] * 2) == 1.0
    assert turns.middle_of_later([3.0]) == 3.0
    times = {"alone": {"a": 1.0}, "beside": {"a": 1.4}, "with turns": {"a": 1.1}}
    assert abs(turns.recovered({"iteration_s": times}, "a") - 0.75) < 1e-9
    times["beside"]["a"] = 0.9
    assert turns.recovered({"iteration_s": times}, "a") is None


def run(build: str, folder: str, *flags: str) -> tuple[int, str, dict]:
    path = Path(folder) / "jobs.json"
    command = [str(HERE / "jobs"), "--build", build, "--json", str(path), "--quiet"]
    command += ["--seconds", "0.3", "--settle", "0.1", "--rounds", "2", *flags]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode in (0, 77), done.stderr + done.stdout
    return done.returncode, done.stdout, json.loads(path.read_text()) if path.exists() else {}


def check_shares(result: dict, place: str, cases: list[str]) -> None:
    assert [row["key"] for row in result["shares"]] == cases, result["shares"]
    for row in result["shares"]:
        jobs = {job["job"]: job for job in row["jobs"]}
        assert len(jobs) == 2 and place in row["where"], row
        for name, job in jobs.items():
            ideals = case_of(row["key"]).ideals
            # Who hangs moves nothing, and so does who is below a class that always has work.
            assert job["bytes_s"] > 0 or name not in ideals, job
            assert (job["of_ideal"] is not None) == (name in ideals), job
    assert all(goal["value"] > 0 for goal in result["goals"])


def check_runs(build: str) -> str:
    """Why nodes were skipped, if they were."""
    with tempfile.TemporaryDirectory() as folder:
        every = ["equal", "weight", "hang", "flood", "limit", "priority"]
        code, _, result = run(build, folder, "--places", "node", "--profiles", "--cases", *every)
        assert code == 0
        check_shares(result, "in one node", every)
        profile = Path(folder) / "tiny.json"
        profile.write_text(json.dumps(TINY))
        code, text, result = run(
            build, folder, "--places", "nodes", "--cases", "equal", "--rate-mbit", "400",
            "--profiles", str(profile), "--iterations", "6", "--policies", "exact",
        )  # fmt: skip
        if code == 77:
            return text.strip()
    check_shares(result, "two nodes", ["equal"])
    (played,) = result["turns"]
    for way in ("alone", "beside", "with turns"):
        assert set(played["iteration_s"][way]) == {"a", "b"}, played
        assert all(time > 0 for time in played["iteration_s"][way].values()), played
        assert all(len(times) == 6 for times in played["iterations_s"][way].values()), played
    return ""


if __name__ == "__main__":
    check_ideals()
    check_goals()
    check_turns()
    reason = check_runs(sys.argv[1])
    if reason:
        print(reason)
        sys.exit(77)
