"""The network of the rendezvous is cut, and stays so: the services find each other on their rails."""

from __future__ import annotations

import os
import sys
from typing import Any

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from cluster_case import await_true
from join_test import HELD, JoinCase
from support.cluster import Cluster, Services
from support.elastic import LIMIT_S
from support.unittests import run_tests

STEPS = 24


class ControlRail(JoinCase):
    trained: dict[str, Any] = {"first": 0, "steps": STEPS, "pause": 0.2}

    def setUp(self) -> None:
        super().setUp()
        # The ranks name an address in the first network; lanes use the others.
        self.cluster = Cluster(nodes=2, rails=[None, None, None])
        self.addCleanup(self.cluster.close)
        self.services = Services(self.cluster, "--rails", "eth1,eth2", "--node-address", "*:7733")

    def train_on_both(self, job: str, **asked: Any) -> Any:
        places = [self.services[0], self.services[1]]
        return self.train(places, job, rendezvous=self.services.rendezvous, min_world=2, **asked)

    def test_a_job_goes_on_with_all_ranks(self) -> None:
        alone = self.train_on_both("undisturbed", pause=0.0).ends()
        run = self.train_on_both("train", hold=[HELD, self.path("go")])
        self.assertTrue(await_true(lambda: all(os.path.exists(self.path(f"go{rank}")) for rank in (0, 1)), LIMIT_S))
        self.cluster[1].cut(rail=0)
        self.go_on()
        said = run.ends()
        for rank in (0, 1):
            self.assertEqual(said[rank]["resizes"], [])
            self.assertEqual(said[rank]["losses"], alone[rank]["losses"])
            self.assertEqual(said[rank]["digest"], alone[rank]["digest"])
        # A job that begins now meets there, too: the rendezvous is still where nothing arrives.
        again = self.train_on_both("later", pause=0.0).ends()
        self.assertEqual(again[0]["digest"], alone[0]["digest"])


del JoinCase  # it has no tests of its own

if __name__ == "__main__":
    run_tests()
