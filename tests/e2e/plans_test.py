"""Jobs whose gradients move by a plan, with real processes on two nodes: what is lost, and who says so.

The ranks are `headracectl replay`, one a process, with real gradient sizes.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from tests.support.cluster.cluster import Cluster
from tests.support.cluster.services import Services
from tests.support.patience import PATIENCE_S, SOON_S, await_equal, until
from tests.support.service import build_directory
from tests.support.unittests import run_tests

# Gradients of half a gigabyte: whoever is killed is killed in an iteration.
MODEL = os.environ.get("HEADRACE_TEST_MODEL", "vgg16")
PROFILES = pathlib.Path(__file__).resolve().parents[2] / "client/profiles"
GROWTH_MAX_KIB = max(8 << 10, int(os.environ.get("HEADRACE_TEST_GROWTH_KIB", "0")))


def await_value(ask, limit_s: float = PATIENCE_S):
    """What `ask` answers as soon as it is not None, or fails."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        value = ask()
        if value is not None:
            return value
        time.sleep(0.01)
    raise AssertionError(f"nothing came of {ask} in {limit_s} s")


class Plans(unittest.TestCase):
    """Two nodes without links of their own, so that it runs without root."""

    def setUp(self) -> None:
        self.cluster = Cluster(nodes=2, loopback=True)
        self.addCleanup(self.cluster.close)
        self.services = Services(self.cluster)

    def start(
        self,
        job: str,
        iterations: int = 100_000,
        scale: float = 0.02,
        nodes: tuple[int, int] = (0, 1),
        model: str = MODEL,
    ):
        """Two ranks, on those nodes."""
        apart = ["--rendezvous", self.services.rendezvous] if nodes[0] != nodes[1] else []
        ranks = []
        for rank, node in enumerate(nodes):
            service = self.services[node]
            command = [
                os.path.join(build_directory(), "headracectl"), "--socket", service.socket,
                "--board", service.board, "replay", str(PROFILES / f"{model}.json"), "--policy", "exact",
                "--iterations", str(iterations), "--scale", str(scale), "--job", job,
                "--rank", str(rank), "--world-size", "2", *apart, "--json",
            ]  # fmt: skip
            ranks.append(
                self.cluster[node].start(
                    command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
                )
            )
        return ranks

    def plan(self, node: int, job: str, policy: str | None = None):
        """The plan in force there, once it has one (by that policy)."""

        def ask():
            code, text = self.services[node].ctl("plan", job, "--json")
            jobs = json.loads(text)["jobs"] if code == 0 else []
            found = [each["plan"] for each in jobs if each["plan"]]
            return found[0] if found and policy in (None, found[0]["policy"]) else None

        return await_value(ask)

    def equal_plans(self, job: str, policy: str):
        """Both nodes' plans by that policy, of one version: a next one may come at any time."""

        def both():
            plans = [self.plan(node, job, policy) for node in range(2)]
            return plans if plans[0]["version"] == plans[1]["version"] else None

        return until(both, f"one plan by {policy} on both nodes")

    def test_a_rank_that_is_killed_in_an_iteration_is_named_with_it(self) -> None:
        ranks = self.start("lost")
        self.plan(0, "lost", "exact")
        begin = time.monotonic()
        os.kill(ranks[1].program_pid, signal.SIGKILL)
        output = ranks[0].communicate(timeout=PATIENCE_S)[0]
        self.assertLess(time.monotonic() - begin, SOON_S, output)  # and not when operations expire
        self.assertNotEqual(ranks[0].returncode, 0)
        self.assertRegex(output, rf"rank 1 \(pid {ranks[1].program_pid}\) on node b\b")
        self.assertRegex(output, r"iteration \d+")

    def test_a_service_that_is_killed_ends_the_job_on_the_other_node(self) -> None:
        ranks = self.start("gone")
        self.plan(0, "gone", "exact")
        self.services[1].kill()
        output = ranks[0].communicate(timeout=PATIENCE_S)[0]
        self.assertNotEqual(ranks[0].returncode, 0)
        self.assertIn("node b", output)

    def test_another_policy_reaches_every_node_of_a_job_that_trains(self) -> None:
        ranks = self.start("policies", model="resnet50")
        first = self.equal_plans("policies", "exact")
        self.assertEqual(first[0]["hash"], first[1]["hash"])
        code, text = self.services[1].ctl("policy", "policies", "bytescheduler")
        self.assertEqual(code, 0, text)
        then = self.equal_plans("policies", "bytescheduler")
        self.assertEqual(then[0]["from_iteration"], then[1]["from_iteration"])
        self.assertEqual(then[0]["hash"], then[1]["hash"])
        self.assertTrue(all(rank.poll() is None for rank in ranks))

    def test_the_queue_names_the_gradient_that_a_rank_holds_back(self) -> None:
        ranks = self.start("slow", nodes=(0, 0))
        # Until its warm-up is over, the replay also waits for operations of its own.
        await_value(lambda: self.plan(0, "slow", "exact")["iteration"] > 30 or None)
        os.kill(ranks[1].program_pid, signal.SIGSTOP)
        self.addCleanup(os.kill, ranks[1].program_pid, signal.SIGCONT)

        def ask():
            rows = self.services[0].ctl_json("queue")["queue"]
            late = "rank 1 of job slow not ready"
            waits = [row for row in rows if row["tensor"] and late in row["why"]]
            return waits[0] if waits else None

        row = await_value(ask)
        self.assertRegex(row["tensor"], "features|classifier|conv|bn|downsample|fc")

    def test_rounds_of_training_leave_nothing_behind(self) -> None:
        held: list[tuple[int, int]] = []
        for number in range(12):
            # A fifth of the bytes, and far more than may be left.
            ranks = self.start(f"round{number}", iterations=2, scale=0.001, model="resnet50")
            for rank in ranks:
                output = rank.communicate(timeout=PATIENCE_S)[0]
                self.assertEqual(rank.returncode, 0, output)
            for service in (self.services[0], self.services[1]):
                await_value(lambda s=service: True if not s.ctl_json("jobs")["jobs"] else None)
                await_equal(lambda s=service: s.ctl_json("queue")["queue"], [])
            held.append((self.services[0].descriptors(), self.services[0].status_field("VmRSS")))
        # Pools of UCX grow in the first rounds.
        (descriptors, resident), (_, last_resident) = held[5], held[-1]
        # A rank's socket is closed a moment after its job has left the board.
        await_value(lambda: self.services[0].descriptors() <= descriptors or None)
        self.assertLess(last_resident, resident + GROWTH_MAX_KIB, held)


if __name__ == "__main__":
    run_tests()
