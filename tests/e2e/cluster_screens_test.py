"""What the screens of each node say of a job of two nodes: that it runs, who is slow, how it ended."""

from __future__ import annotations

import os
import signal
import sys
import time
import urllib.request
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, ".."))
from cluster_case import ClusterCase, await_true
from support.patience import await_equal, until
from support.service import Service
from support.unittests import run_tests

GRADIENTS = [1 << 16] * 4
PAUSE_S = 0.1


def job_on(service: Service, name: str) -> dict[str, Any]:
    """As the service's board has it; empty: it has not."""
    found = [job for job in service.ctl_json("jobs")["jobs"] if job["name"] == name]
    return found[0] if found else {}


def queue_on(service: Service, name: str) -> list[dict[str, Any]]:
    return service.ctl_json("queue", "--job", name)["queue"]


def busy_ns(service: Service, lane: str) -> int:
    lanes = service.ctl_json("lanes")["lanes"]
    return next(each["busy_ns"] for each in lanes if each["lane"] == lane)


class Screens(ClusterCase):
    options = {"loopback": True}

    def stop_rank(self, rank: Any) -> None:
        os.kill(rank.process.program_pid, signal.SIGSTOP)
        self.addCleanup(os.kill, rank.process.program_pid, signal.SIGCONT)

    def test_a_job_of_two_nodes_runs_on_both(self) -> None:
        ranks = self.job([1, 1], name="pair")
        self.exercise(ranks, "all_reduce", count=1000)
        keys = ("state", "ranks_attached", "world_size")
        for node in range(2):
            await_equal(
                lambda node=node: [job_on(self.services[node], "pair").get(key) for key in keys],
                ["running", 1, 2],
            )
            self.assertIn("1 here of 2", self.services[node].ctl("jobs")[1])
            self.assertEqual(self.services[node].ctl_json("status")["jobs_gathering"], 0)

    def test_half_a_job_gathers(self) -> None:
        ranks = self.job([1, 1], name="half", attach=False)
        ranks[0].attach()
        here = self.services[0]
        self.assertTrue(await_true(lambda: job_on(here, "half").get("state") == "gathering"))

    def test_a_straggler_on_another_node_is_named_first_and_no_rank_of_this_one(self) -> None:
        ranks = self.job([1, 1], name="slow")
        ranks.each("gradients", counts=GRADIENTS, policy="wfbp")
        ranks.each("iterations", count=3)
        self.stop_rank(ranks[1])
        ranks[0].send("iterations", count=1)
        here = self.services[0]

        def settled() -> list[dict[str, Any]] | None:
            """The rows once all that can be is on its way: lanes are asked for whom they wait now and then."""
            rows = queue_on(here, "slow")
            reasons = [row["wait_reason"] for row in rows]
            return rows if reasons[:1] == ["peer"] and "in_flight" in reasons[1:] else None

        rows = until(settled, "the peer stands first")
        self.assertEqual(rows[0]["peer"], self.cluster[1].name)
        reasons = {row["wait_reason"] for row in rows[1:]}
        self.assertFalse(reasons & {"no_credit", "rank_not_ready", "rank_not_attached"}, rows)
        for row in rows:
            if row["wait_reason"] in ("peer", "in_flight", "iteration"):
                self.assertIn(f"peer {self.cluster[1].name}", row["why"], row)
        self.assertIn(f"peer {self.cluster[1].name} slow", here.ctl("queue", "-H")[1].splitlines()[0])
        # On its own node it is the rank that is named.
        self.assertTrue(
            await_true(
                lambda: {row["wait_reason"] for row in queue_on(self.services[1], "slow")} <= {"rank_not_ready"}
            ),
            queue_on(self.services[1], "slow"),
        )

    def test_a_lane_on_which_nothing_flows_is_not_busy(self) -> None:
        ranks = self.job([1, 1], name="idle")
        ranks.each("tensor", name="w", count=1 << 20)
        ranks.each("train", name="w", iterations=3, pause=0.0)
        self.stop_rank(ranks[1])
        ranks[0].call("post", kind="all_reduce", name="w")
        here = self.services[0]
        lane = next(e["lane"] for e in here.ctl_json("lanes")["lanes"] if e["lane"].startswith("ucx"))
        self.assertTrue(
            await_true(lambda: any(row["wait_reason"] == "peer" for row in queue_on(here, "idle")))
        )
        before, began = busy_ns(here, lane), time.monotonic()
        ranks[0].call("settle", seconds=1.5)
        waited_ns = (time.monotonic() - began) * 1e9
        self.assertLess(busy_ns(here, lane) - before, waited_ns / 2)
        os.kill(ranks[1].process.program_pid, signal.SIGCONT)
        ranks[1].call("post", kind="all_reduce", name="w")
        ranks[0].call("wait")
        self.assertLess(busy_ns(here, lane) - before, waited_ns / 2, "nor when the stage has ended")

    def test_a_job_that_failed_is_known_by_when_and_why(self) -> None:
        ranks = self.job([1, 1], name="broken")
        self.exercise(ranks, "all_reduce", count=1000)
        ranks[0].call("tensor", name="w", count=1000)
        ranks[0].call("post", kind="all_reduce", name="w")
        ranks[1].kill()
        here = self.services[0]
        ranks[0].send("wait")
        # The client puts its own number of the operation in front.
        told = self.expect(ranks[0], "peer lost", f"node {self.cluster[1].name}").split(": ", 1)[1]
        ranks[0].close()
        self.assertTrue(await_true(lambda: not job_on(here, "broken")))
        code, text = here.ctl("jobs", "broken")
        self.assertEqual(code, 1, text)
        self.assertIn("headracectl flight broken", text)
        ended = here.ctl_json("jobs", "broken")["ended"]
        self.assertEqual(ended["code"], "peer lost")
        self.assertIn(ended["cause"], told)
        self.assertIn(ended["cause"], text)
        [job] = here.ctl_json("flight", "broken", "--failed")["jobs"]
        self.assertEqual([block["cause"] for block in job["blocks"]], [told], "whole, as the rank had it")
        self.assertIn(told, here.ctl("flight", "broken", "--failed")[1])

    def test_gradients_that_wait_are_open(self) -> None:
        ranks = self.job([1, 1], name="open")
        ranks.each("gradients", counts=GRADIENTS)
        ranks.each("iterations", count=1)
        ranks[0].send("iterations", count=1)
        here = self.services[0]
        self.assertTrue(
            await_true(lambda: job_on(here, "open").get("operations_open") == len(GRADIENTS)),
            job_on(here, "open"),
        )
        ranks[1].call("iterations", count=1)
        ranks[0].receive()
        # The board shows a moment later that they have ended.
        await_equal(lambda: job_on(here, "open")["operations_open"], 0)

    def test_time_elsewhere_has_a_row_of_its_own(self) -> None:
        ranks = self.job([1, 1], name="elsewhere")
        ranks.each("gradients", counts=GRADIENTS)

        def measured() -> dict[str, Any] | None:
            ranks.each("iterations", count=10, pause=PAUSE_S)
            [job] = self.services[0].ctl_json("plan", "elsewhere")["jobs"]
            return job["plan"] if job["plan"] and job["plan"]["elsewhere_ns"] else None

        plan = until(measured, "iterations were measured")
        self.assertGreater(plan["elsewhere_ns"], PAUSE_S * 1e9 / 2)
        self.assertGreaterEqual(plan["measured_ns"], plan["elsewhere_ns"])
        self.assertIn("elsewhere", self.services[0].ctl("plan", "elsewhere")[1])


class Peers(ClusterCase):
    options = {"loopback": True}

    @classmethod
    def begin(cls, cleanup: Any) -> None:
        cls.flags = ("--http-address", "127.0.0.1:0")
        super().begin(cleanup)

    def metrics(self, node: int) -> list[str]:
        port = self.services[node].http_port()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as page:
            return page.read().decode().splitlines()

    def knows_no_peer(self, node: int) -> bool:
        checks = self.services[node].ctl_json("doctor")["checks"]
        return [each["check"] for each in checks].count("peers") == 1

    def test_doctor_tries_a_peer_before_the_first_job(self) -> None:
        here, there = self.services[0], self.services.address(1)
        # The connection of another test's job closes in its own time.
        for node in range(2):
            self.assertTrue(await_true(lambda node=node: self.knows_no_peer(node)), "left of another job")
        code, text = here.ctl("doctor", "--peer", there)
        self.assertEqual(code, 0, text)
        checks = here.ctl_json("doctor", "--peer", there)["checks"]
        self.assertEqual(
            [(each["check"], each["result"]) for each in checks],
            [(f"peer {step}", "ok") for step in ("name", "port", "certificates", "version")],
        )
        self.assertIn(f"node {self.cluster[1].name}", checks[-1]["found"])
        for node in range(2):
            self.assertTrue(await_true(lambda node=node: self.knows_no_peer(node)), "left of it on one side")

    def test_doctor_names_the_step_that_fails(self) -> None:
        here = self.services[0]
        for address, failed in (
            ("no-such-host.invalid:7733", "peer name"),
            ("127.0.0.1:1", "peer port"),
        ):
            checks = here.ctl_json("doctor", "--peer", address)["checks"]
            self.assertEqual((checks[-1]["check"], checks[-1]["result"]), (failed, "problem"), checks)
            self.assertTrue(checks[-1]["remedy"])
            self.assertEqual(here.ctl("doctor", "--peer", address)[0], 1)

    def test_a_peer_is_up_while_it_is_connected(self) -> None:
        name = self.cluster[1].name
        ranks = self.job([1, 1], name="pair")
        self.exercise(ranks, "all_reduce", count=1000)
        up = f'headrace_peer_up{{peer="{name}"}} 1'
        self.assertTrue(await_true(lambda: up in self.metrics(0)), self.metrics(0))


if __name__ == "__main__":
    run_tests()
