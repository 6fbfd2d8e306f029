"""`python3 -m headrace run -- COMMAND`: a service that lives as long as a command."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, ".."), os.path.join(HERE, "..", "..", "client", "python")]
import headrace.__main__ as command
from headrace import report
from support.ports import free_port
from support.service import build_directory, client_environment, service_directory
from support.unittests import run_tests
from torchrun import STREAMS

# Two ranks, as torchrun would start them; the first prints where the service is.
AVERAGES = """
import multiprocessing, os, numpy, headrace
def rank(number):
    with headrace.init(job="run", rank=number, world_size=2) as session:
        array = numpy.full(4, number, dtype="float32")
        session.all_reduce(array)
        assert array.tolist() == [1.0] * 4, array
if __name__ == "__main__":
    ranks = [multiprocessing.Process(target=rank, args=(number,)) for number in range(2)]
    for each in ranks: each.start()
    for each in ranks: each.join()
    print(os.environ["HEADRACE_SOCKET"], [each.exitcode for each in ranks])
"""
# What a trainer has who changed one word: the backend.
TRAIN_PY = """
import torch
import torch.distributed as dist
import headrace.torch
dist.init_process_group("headrace")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.full((2, 8), dist.get_rank() + 1.0)).sum().backward()
    optimizer.step()
total = torch.full((1,), dist.get_rank() + 1.0)
dist.all_reduce(total)
print("rank", dist.get_rank(), "of", dist.get_world_size(), total.item(), model.module.bias.tolist(), flush=True)
"""
LIMIT_S = 240  # a busy machine takes a minute to import torch
SEEN_S = 5.0  # that a job stays for the report, which looks twice a second

# A model that trains by a plan, two ranks; prints how many iterations each made. So many that a plan made
# from measured times is in force on any machine.
TRAINS = """
import multiprocessing, sys, time, torch, headrace, headrace.torch
def rank(number, made):
    torch.manual_seed(1)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(*[torch.nn.Linear(128, 128) for _ in range(4)])
    with headrace.init(job="train", rank=number, world_size=2) as session:
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        optimizer = headrace.torch.ScheduledOptimizer(optimizer, model, session)
        deadline, going = time.monotonic() + 2, torch.ones(1)
        while going.item() > 0:
            optimizer.zero_grad()
            model(torch.randn(8, 128)).square().mean().backward()
            optimizer.step()
            made.value += 1
            # All ranks stop after the same iteration.
            going[0] = float(made.value < 80 or time.monotonic() < deadline)
            session.all_reduce(going, op="min")
        optimizer.synchronize()
        time.sleep(SEEN_S)
if __name__ == "__main__":
    made = [multiprocessing.Value("i", 0) for _ in range(2)]
    ranks = [multiprocessing.Process(target=rank, args=each) for each in enumerate(made)]
    for each in ranks: each.start()
    for each in ranks: each.join()
    print(*[each.value for each in made], *[each.exitcode for each in ranks])
"""


class Runs(unittest.TestCase):
    """How the command is started and looked at."""

    def run_with(self, *arguments: str, folder: str | None = None, **changes: str) -> subprocess.Popen[str]:
        environment = {
            **client_environment(),
            "HEADRACE_HEADRACED": os.path.join(service_directory(), "headraced"),
            "PATH": f"{build_directory()}:{os.environ['PATH']}",
            **changes,
        }
        process = subprocess.Popen(
            [sys.executable, "-B", "-m", "headrace", *arguments],
            cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def finished(
        self, *arguments: str, folder: str | None = None, **changes: str
    ) -> tuple[int, str, str]:
        process = self.run_with(*arguments, folder=folder, **changes)
        out, err = process.communicate(timeout=LIMIT_S)
        return process.returncode, out, err

    def services_at(self, folder: str) -> list[int]:
        """Pids of programs whose environment names that folder."""
        found = []
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            try:
                with open(f"/proc/{entry}/environ", "rb") as file:
                    if folder.encode() in file.read():
                        found.append(int(entry))
            except OSError:
                continue
        return found

    def start_sleeper(self) -> tuple[subprocess.Popen[str], str]:
        process = self.run_with("run", "--", "/bin/sh", "-c", "echo $HEADRACE_SOCKET; exec sleep 600")
        assert process.stdout is not None
        folder = os.path.dirname(process.stdout.readline().strip())
        self.addCleanup(self.end_all_at, folder)  # a sleeper that is left holds the output open
        return process, folder

    def end_all_at(self, folder: str) -> None:
        for pid in self.services_at(folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def await_none(self, folder: str) -> None:
        deadline = time.monotonic() + LIMIT_S
        while self.services_at(folder) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertEqual(self.services_at(folder), [])


class Run(Runs):
    """The service beside the command."""

    def test_ranks_find_the_service_and_nothing_is_left(self) -> None:
        code, out, err = self.finished("run", "--", sys.executable, "-c", AVERAGES)
        self.assertEqual((code, err), (0, ""))
        path, _, codes = out.strip().partition(" ")
        self.assertEqual(codes, "[0, 0]")
        self.assertFalse(os.path.exists(os.path.dirname(path)))
        self.assertEqual(self.services_at(os.path.dirname(path)), [])

    @unittest.skipUnless(importlib.util.find_spec("torch"), "no torch (package python3-torch)")
    def test_torchrun_finds_the_service(self) -> None:
        """`headrace run -- torchrun --nproc_per_node 2 train.py`, word for word."""
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "train.py"), "w") as script:
                script.write(TRAIN_PY)
            # Debian's package has no program of that name; the module is what it would run. Other tests use
            # torchrun's usual port.
            streams = " ".join([*STREAMS, "--log_dir", os.path.join(folder, "logs")])
            torchrun = os.path.join(folder, "torchrun")
            with open(torchrun, "w") as script:
                script.write(f"#!/bin/sh\nexec {sys.executable} -B -m torch.distributed.run {streams} "
                             f'--master_port {free_port()} "$@"\n')  # fmt: skip
            os.chmod(torchrun, 0o755)
            code, out, err = self.finished(
                "run", "--", "torchrun", "--nproc_per_node", "2", "train.py", folder=folder,
                PATH=f"{folder}:{os.environ['PATH']}", OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo",
            )  # fmt: skip
        self.assertEqual(code, 0, err)
        told = sorted(re.findall(r"rank (\d) of 2 3\.0 (\[.*\])", out))
        self.assertEqual([rank for rank, _ in told], ["0", "1"], out + err)
        self.assertEqual(told[0][1], told[1][1])

    def test_the_commands_end_is_its_own(self) -> None:
        self.assertEqual(self.finished("run", "--", "/bin/sh", "-c", "exit 7")[0], 7)
        self.assertEqual(self.finished("run", "--", "/bin/sh", "-c", "kill -KILL $$")[0], 128 + signal.SIGKILL)

    def test_options_before_the_dashes_are_the_services(self) -> None:
        script = f'{os.path.join(build_directory(), "headracectl")} --json status'
        code, _, err = self.finished("run", "--lane-threads", "1", "--", "/bin/sh", "-c", script)
        self.assertEqual((code, err), (0, ""))
        code, _, err = self.finished("run", "--lane-treads", "1", "--", "/bin/true")
        self.assertEqual(code, 3)
        self.assertIn("--lane-treads", err)

    def test_what_cannot_be_meant_is_told(self) -> None:
        for arguments in ((), ("run",), ("run", "--"), ("walk", "--", "/bin/true")):
            code, _, err = self.finished(*arguments)
            self.assertEqual(code, 2, arguments)
            self.assertIn("python3 -m headrace run", err)
        code, _, err = self.finished("run", "--", "/no/such/program")
        self.assertEqual(code, 2)
        self.assertIn("/no/such/program", err)
        code, _, err = self.finished("run", "--", "/bin/true", HEADRACE_HEADRACED="/no/headraced")
        self.assertEqual(code, 3)
        self.assertIn("HEADRACE_HEADRACED=/no/headraced", err)

    def test_a_signal_is_the_commands(self) -> None:
        process, folder = self.start_sleeper()
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(LIMIT_S), 128 + signal.SIGTERM)
        self.await_none(folder)
        self.assertFalse(os.path.exists(folder))

    def program_at(self, folder: str, name: str) -> int:
        """The pid of the one program of that name; one that is just being started has none yet."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            found = []
            for pid in self.services_at(folder):
                with contextlib.suppress(OSError):
                    if os.path.basename(os.readlink(f"/proc/{pid}/exe")) == name:
                        found.append(pid)
            if len(found) == 1:
                return found[0]
            self.assertLess(time.monotonic(), deadline, f"{name} at {folder}: {found}")
            time.sleep(0.05)

    def service_at(self, folder: str) -> int:
        return self.program_at(folder, "headraced")

    def test_a_killed_run_leaves_no_service_and_no_folder(self) -> None:
        process, folder = self.start_sleeper()
        service = self.service_at(folder)
        self.program_at(folder, "sleep")
        process.kill()
        process.wait(LIMIT_S)
        deadline = time.monotonic() + LIMIT_S
        while (os.path.exists(f"/proc/{service}") or os.path.exists(folder)) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertFalse(os.path.exists(f"/proc/{service}"))
        self.assertFalse(os.path.exists(folder))

    def test_the_service_s_log_is_no_file(self) -> None:
        process, folder = self.start_sleeper()
        self.assertEqual({name.split(".")[0] for name in os.listdir(folder)}, {"board", "socket"})
        process.send_signal(signal.SIGTERM)
        process.wait(LIMIT_S)

    def test_the_command_ends_with_the_service(self) -> None:
        process, folder = self.start_sleeper()
        os.kill(self.service_at(folder), signal.SIGKILL)
        self.assertEqual(process.wait(LIMIT_S), 4)
        self.await_none(folder)


class Report(Runs):
    """`--report`."""

    def report(self, script: str) -> tuple[str, str]:
        code, out, err = self.finished("run", "--report", "--", sys.executable, "-c", script)
        self.assertEqual(code, 0, err)
        return out, err

    def figure(self, report: str, pattern: str) -> float:
        found = re.search(pattern, report)
        self.assertIsNotNone(found, f"{pattern}\n{report}")
        assert found is not None
        return float(found.group(1))

    @unittest.skipUnless(importlib.util.find_spec("torch"), "no torch (package python3-torch)")
    def test_training_by_a_plan_shows_what_was_waited_hidden_and_promised(self) -> None:
        out, report = self.report(TRAINS.replace("SEEN_S", str(SEEN_S)))
        made, _, *codes = out.split()
        self.assertEqual(codes, ["0", "0"], report)
        self.assertIn("job train: 2 ranks", report)
        counted = self.figure(report, r"(\d+) iterations by \w+")
        # An iteration is counted when the next one has begun, so the last few may not be.
        self.assertLessEqual(counted, int(made))
        self.assertGreaterEqual(counted, int(made) - 5)
        moved = self.figure(report, r"gradients moved for +([0-9.]+) s")
        waited = self.figure(report, r"ranks waited for it +([0-9.]+) s")
        hidden = self.figure(report, r"hidden +([0-9.]+) s")
        self.assertGreater(moved, 0)
        self.assertAlmostEqual(hidden, max(0, moved - waited), delta=0.002)
        took = self.figure(report, r"an iteration took +([0-9.]+) ms")
        self.assertLess(took, 10_000)
        promised = self.figure(report, r"its plan promised +([0-9.]+) ms")
        bound = self.figure(report, r"no plan is below ([0-9.]+) ms")
        self.assertLessEqual(bound, promised + 0.1)

    def test_a_job_without_a_plan_is_told_so(self) -> None:
        script = AVERAGES.replace("assert array", f"import time; time.sleep({SEEN_S}); assert array")
        _, report = self.report(script)
        self.assertRegex(report, r"job run: 2 ranks\n  1 operation .*, 0\.0 MB")
        self.assertNotIn("hidden", report)

    def test_a_command_without_jobs_is_told_so(self) -> None:
        _, report = self.report("pass")
        self.assertNotRegex(report, r"job \S+: \d")

    def test_the_report_leaves_nothing_running(self) -> None:
        process = self.run_with("run", "--report", "--", "/bin/sh", "-c", "echo $HEADRACE_SOCKET; exec sleep 600")
        assert process.stdout is not None
        folder = os.path.dirname(process.stdout.readline().strip())
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(LIMIT_S), 128 + signal.SIGTERM)
        self.await_none(folder)


class Lines(unittest.TestCase):
    """What a job's entry comes to."""

    JOB = {
        "id": 1, "name": "j", "state": "running", "world_size": 4, "failure": "", "policy": "exact",
        "operations_ended": 3,
        "bytes_moved": 5_000_000, "iterations": None,
    }  # fmt: skip
    ITERATIONS = {
        "count": 10, "total_ns": 2_000_000_000, "waited_ns": 250_000_000, "moving_ns": 1_000_000_000,
        "measured_ns": 210_000_000, "elsewhere_ns": 10_000_000, "predicted_ns": 190_000_000,
        "lower_bound_ns": 180_000_000,
    }  # fmt: skip

    def lines(self, **changes: object) -> str:
        return "\n".join(report.of_job({**self.JOB, "iterations": {**self.ITERATIONS, **changes}}))

    def test_shares_and_promise(self) -> None:
        text = self.lines()
        for part in ("10 iterations by exact", "hidden                     0.750 s, 75.0 %", "200.0 ms", "190.0 ms",
                     "no plan is below 180.0 ms"):  # fmt: skip
            self.assertIn(part, text)

    def test_who_waited_longer_than_anything_moved_has_hidden_nothing(self) -> None:
        self.assertIn("0.000 s, 0.0 %", self.lines(waited_ns=3_000_000_000))

    def test_a_plan_that_promised_nothing(self) -> None:
        self.assertNotIn("190.0 ms", self.lines(predicted_ns=None, lower_bound_ns=None))
        self.assertNotIn("took", self.lines(measured_ns=None, elsewhere_ns=None))

    def test_an_older_headracectl_is_no_reason_to_guess(self) -> None:
        job = {key: value for key, value in self.JOB.items() if key != "iterations"}
        self.assertIn("older release", report.of_job(job)[-1])

    def test_a_failed_job_says_why(self) -> None:
        job = {**self.JOB, "state": "failed", "failure": "rank 1 is gone"}
        self.assertIn("rank 1 is gone", report.of_job(job)[0])

    def test_ranks_that_leave_in_order_are_no_failure(self) -> None:
        job = {**self.JOB, "failure": "rank 1 (pid 7) left the job after operation 3"}
        self.assertNotIn("fail", "\n".join(report.of_job(job)))


class Log(unittest.TestCase):
    """The service's log while it is followed."""

    def test_only_the_last_is_kept(self) -> None:
        script = "import sys; [print('line', n) for n in range(200_000)]; print('the end')"
        with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
            log = command._Log()
            log.follow(process)
            process.wait(LIMIT_S)
            self.assertTrue(log.end().endswith("line 199999\nthe end"))
            self.assertLessEqual(sum(map(len, log._kept)), command._LOG_BYTES_MAX)


if __name__ == "__main__":
    run_tests()
