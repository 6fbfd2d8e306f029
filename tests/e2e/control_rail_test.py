"""The network in which services speak to each other is cut, or their connection is reset: they go on over another
one, and the job notices nothing."""

from __future__ import annotations

import os
import re
import sys
import time
from typing import Any

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from cluster_case import DETECTION_S, await_true
from join_test import HELD, JoinCase
from support.cluster import Cluster, Services
from support.elastic import LIMIT_S
from support.patience import SOON_S
from support.unittests import run_tests

STEPS = 24
WENT_ON = re.compile(r"(?P<why>.*); it goes on at (?P<address>.+) after (?P<s>[0-9.]+) s, and no message was lost")


class ControlRail(JoinCase):
    trained: dict[str, Any] = {"first": 0, "steps": STEPS, "pause": 0.2}

    def setUp(self) -> None:
        super().setUp()
        # The ranks name an address in the first network; lanes use the others.
        self.cluster = Cluster(nodes=2, rails=[None, None, None])
        self.addCleanup(self.cluster.close)
        self.services = Services(
            self.cluster, "--rails", "eth1,eth2", "--node-address", "*:7733", "--http-address", "127.0.0.1:7780"
        )

    def train_on_both(self, job: str, **asked: Any) -> Any:
        places = [self.services[0], self.services[1]]
        return self.train(places, job, rendezvous=self.services.rendezvous, min_world=2, **asked)

    def resumed(self, node: int) -> list[re.Match[str]]:
        """What that node's service says of connections to the other that another one took the place of."""
        other = f"node {'ba'[node]} "
        texts = [event["text"] for event in self.services[node].ctl_json("events")["events"]]
        return [found for found in map(WENT_ON.fullmatch, texts) if found and other in found["why"]]

    def metric(self, page: str, name: str, peer: str) -> float | None:
        found = re.search(rf'^{name}{{peer="{peer}"}} (\S+)$', page, re.MULTILINE)
        return float(found[1]) if found else None

    def check_metrics(self, node: int, peer: str, lasted_s: float) -> None:
        """While the services are connected: the series end with the last job of the two."""
        page = ""

        def shown() -> bool:
            nonlocal page
            program = self.cluster[node].start(
                ["/usr/bin/python3", "-c", "import urllib.request as r;"
                 "print(r.urlopen('http://127.0.0.1:7780/metrics').read().decode())"],
                stdout=-1, text=True,
            )  # fmt: skip
            page, _ = program.communicate(timeout=LIMIT_S)
            return self.metric(page, "headrace_peer_resumes_total", peer) == 1

        self.assertTrue(await_true(shown), page)
        self.assertAlmostEqual(
            self.metric(page, "headrace_peer_unlinked_seconds_total", peer), lasted_s, delta=0.001
        )

    def job(self) -> dict[str, Any]:
        (job,) = self.services[0].ctl_json("jobs")["jobs"]
        return job

    def check_that_it_goes_on(self, harm: Any, most_s: float) -> list[re.Match[str]]:
        """The job is harmed in mid-training, and ends with the same bits as an undisturbed one."""
        alone = self.train_on_both("undisturbed", pause=0.0).ends()
        run = self.train_on_both("train", hold=[HELD, self.path("go")])
        self.assertTrue(await_true(lambda: all(os.path.exists(self.path(f"go{rank}")) for rank in (0, 1)), LIMIT_S))
        before = self.job()
        self.go_on()
        harm()
        found = await_true(lambda: self.resumed(0) and self.resumed(1), LIMIT_S)
        self.assertTrue(found, [self.services[node].ctl("events")[1] for node in (0, 1)])
        after = self.job()
        self.assertEqual((after["epoch"], after["recoveries"]["count"]), (before["epoch"], 0))
        for node, peer in ((0, "b"), (1, "a")):
            (went_on,) = self.resumed(node)
            print(f"  node {node}: {went_on.group()}")
            self.assertLess(float(went_on["s"]), most_s)
            self.check_metrics(node, peer, float(went_on["s"]))
        said = run.ends()
        for rank in (0, 1):
            self.assertEqual(said[rank]["resizes"], [])
            self.assertEqual(said[rank]["losses"], alone[rank]["losses"])
            self.assertEqual(said[rank]["digest"], alone[rank]["digest"])
        self.assertEqual([len(self.resumed(node)) for node in (0, 1)], [1, 1])
        # A job that begins now meets there, too.
        again = self.train_on_both("later", pause=0.0).ends()
        self.assertEqual(again[0]["digest"], alone[0]["digest"])
        return [self.resumed(node)[0] for node in (0, 1)]

    def test_a_job_goes_on_when_the_network_of_the_rendezvous_is_cut(self) -> None:
        found = self.check_that_it_goes_on(lambda: self.cluster[1].cut(rail=0), DETECTION_S)
        # The rendezvous is still where nothing arrives.
        self.assertIn("node a did not answer for 0.", found[1]["why"])
        self.assertRegex(found[1]["address"], r"^10\.77\.0\.1:7733 \(10\.77\.[12]\.1:7733\)$")

    def test_a_job_goes_on_when_its_connection_is_reset(self) -> None:
        def reset() -> None:
            killed = self.cluster[0].start(["ss", "-K", "-t", "state", "established", "sport", "=", ":7733"], stdout=-1)
            shown, _ = killed.communicate(timeout=LIMIT_S)
            self.assertIn(b":7733", shown)

        self.check_that_it_goes_on(reset, DETECTION_S / 2)

    def test_a_service_that_is_killed_is_named_as_soon_as_before(self) -> None:
        run = self.train_on_both("train", hold=[HELD, self.path("go")])
        self.assertTrue(await_true(lambda: all(os.path.exists(self.path(f"go{rank}")) for rank in (0, 1)), LIMIT_S))
        begin = time.monotonic()
        self.services[1].kill()

        def named() -> bool:
            texts = [event["text"] for event in self.services[0].ctl_json("events")["events"]]
            return any("the connection to node b broke" in text for text in texts)

        self.assertTrue(await_true(named), self.services[0].ctl("events"))
        took_s = time.monotonic() - begin
        print(f"  named after {took_s:.2f} s")
        self.assertLess(took_s, SOON_S)
        self.assertEqual(self.resumed(0), [])
        run.close()


del JoinCase  # it has no tests of its own

if __name__ == "__main__":
    run_tests()
