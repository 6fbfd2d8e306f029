"""Ten faults in a row under one training run of the GPT example, which reaches the loss of an undisturbed one."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import join_test
from support.places import Program
from support.service import ROOT, Service, rank_environment
from support.unittests import run_tests

GPT = os.path.join(ROOT, "client", "examples", "gpt.py")
RANKS = 3
STEPS = 420
FIRST, EVERY = 30, 30  # the step of the first fault, and steps between two
SHORT = ["--layers", "1", "--width", "32", "--heads", "2", "--context", "16", "--every", "1", "--batch", "8"]
# A service that is killed and started again, a rank whose place a spare takes, one that is lost for good.
FAULTS = ["service", "spare", "spare", "service", "spare", "service", "spare", "lost", "service", "service"]
LIMIT_S = 240.0


class TenFaults(join_test.JoinCase):
    def setUp(self) -> None:
        super().setUp()
        self.service = Service()
        self.addCleanup(self.service.close)
        self.service.start()

    def start(self, job: str, rank: int, role: str = "rank") -> Program:
        name = self.path(f"{job}{rank}{role}")
        with open(name, "wb") as output:
            program = self.service.place.start(
                ["/usr/bin/python3", "-B", GPT, *SHORT, "--steps", str(STEPS), "--json", self.path(f"{job}.json")],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=rank_environment(
                    self.service.socket,
                    job,
                    "",
                    rank,
                    RANKS,
                    LIMIT_S,
                    HEADRACE_SHRINK="1",
                    HEADRACE_ROLE=role,
                    OMP_NUM_THREADS="1",
                    PYTHONUNBUFFERED="1",
                ),
            )
        self.addCleanup(program.end)
        return program

    def steps(self, job: str) -> int:
        """That rank 0 has printed."""
        with open(self.path(f"{job}0rank"), encoding="utf-8") as file:
            return sum(line.startswith("step ") for line in file)

    def wait_for_steps(self, job: str, count: int) -> None:
        until = time.monotonic() + LIMIT_S
        while self.steps(job) < count:
            self.assertLess(time.monotonic(), until, f"{self.steps(job)} steps\n{self.service.log()[-2000:]}")
            time.sleep(0.01)

    def world(self) -> int:
        """The number of the job's ranks now; 0: there is no job."""
        jobs = self.service.ctl_json("jobs")["jobs"]
        return jobs[0]["world_size"] if jobs else 0

    def losses(self, job: str) -> list[float]:
        with open(self.path(f"{job}.json"), encoding="utf-8") as file:
            losses: list[float] = json.load(file)["losses"]
        self.assertEqual(len(losses), STEPS, "rank 0 has made every step, and each once")
        return losses

    def end(self, programs: list[Program]) -> None:
        for program in programs:
            self.assertEqual(program.wait(timeout=LIMIT_S), 0)

    def test_ten_faults_in_a_row_cost_no_loss(self) -> None:
        undisturbed = [self.start("calm", rank) for rank in range(RANKS)]
        self.end(undisturbed)
        ranks = [self.start("rough", rank) for rank in range(RANKS)]
        victims, world = ranks[1:], RANKS
        for index, fault in enumerate(FAULTS):
            self.wait_for_steps("rough", FIRST + index * EVERY)
            if fault == "service":
                self.service.kill()
                self.service.start()
                continue
            if fault == "spare":
                # It comes while the others stand still, and the next one only when this has a place.
                os.kill(ranks[0].program_pid, signal.SIGSTOP)
                victims.append(self.start("rough", index, "spare"))
                self.await_processes(self.service, world, 1)
                os.kill(ranks[0].program_pid, signal.SIGCONT)
            victim = victims.pop(0)
            victim.kill()
            victim.wait()
            world -= fault == "lost"
            self.wait_for_steps("rough", self.steps("rough") + 5)
            self.assertEqual(self.world(), world, f"fault {index}, {fault}")
        self.wait_for_steps("rough", STEPS)
        self.end([ranks[0], *victims])
        rough, calm = self.losses("rough"), self.losses("calm")
        self.assertLess(statistics.mean(calm[-50:]), calm[0] - 1, "it learns")
        off = statistics.mean(rough[-50:]) / statistics.mean(calm[-50:]) - 1
        print(f"loss {statistics.mean(rough[-50:]):.4f}, undisturbed {statistics.mean(calm[-50:]):.4f}")
        self.assertLess(abs(off), 0.03)


if __name__ == "__main__":
    run_tests()
