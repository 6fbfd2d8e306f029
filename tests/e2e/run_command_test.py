"""`python3 -m headrace run -- COMMAND`: a service that lives as long as a command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from support.service import build_directory, client_environment
from support.unittests import run_tests

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
LIMIT_S = 60


class Run(unittest.TestCase):
    def run_with(self, *arguments: str, **changes: str) -> subprocess.Popen[str]:
        environment = {
            **client_environment(),
            "HEADRACE_HEADRACED": os.path.join(build_directory(), "headraced"),
            **changes,
        }
        process = subprocess.Popen(
            [sys.executable, "-B", "-m", "headrace", *arguments],
            env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def finished(self, *arguments: str, **changes: str) -> tuple[int, str, str]:
        process = self.run_with(*arguments, **changes)
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

    def test_ranks_find_the_service_and_nothing_is_left(self) -> None:
        code, out, err = self.finished("run", "--", sys.executable, "-c", AVERAGES)
        self.assertEqual((code, err), (0, ""))
        path, _, codes = out.strip().partition(" ")
        self.assertEqual(codes, "[0, 0]")
        self.assertFalse(os.path.exists(os.path.dirname(path)))
        self.assertEqual(self.services_at(os.path.dirname(path)), [])

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

    def start_sleeper(self) -> tuple[subprocess.Popen[str], str]:
        process = self.run_with("run", "--", "/bin/sh", "-c", "echo $HEADRACE_SOCKET; exec sleep 600")
        assert process.stdout is not None
        return process, os.path.dirname(process.stdout.readline().strip())

    def await_none(self, folder: str) -> None:
        deadline = time.monotonic() + LIMIT_S
        while self.services_at(folder) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertEqual(self.services_at(folder), [])

    def test_a_signal_is_the_commands(self) -> None:
        process, folder = self.start_sleeper()
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(LIMIT_S), 128 + signal.SIGTERM)
        self.await_none(folder)
        self.assertFalse(os.path.exists(folder))

    def test_the_command_ends_with_the_service(self) -> None:
        process, folder = self.start_sleeper()
        (service,) = [
            pid for pid in self.services_at(folder)
            if os.path.basename(os.readlink(f"/proc/{pid}/exe")) == "headraced"
        ]  # fmt: skip
        os.kill(service, signal.SIGKILL)
        self.assertEqual(process.wait(LIMIT_S), 4)
        self.await_none(folder)


if __name__ == "__main__":
    run_tests()
