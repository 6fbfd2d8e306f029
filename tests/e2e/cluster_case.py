"""What the tests of several nodes share: a cluster with services for each class, and jobs in it."""

from __future__ import annotations

import os
import sys
import time
import unittest
from collections.abc import Callable, Sequence
from typing import Any

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from support.cluster import Cluster, Services
from support.patience import PATIENCE_S
from support.ranks import Rank, RankError, Ranks
from support.service import Service

DETECTION_S = 1.0  # as support/cluster/services.py sets it


def await_true(condition: Callable[[], bool], limit_s: float = PATIENCE_S) -> bool:
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


class ClusterCase(unittest.TestCase):
    """One cluster for the class; a class that breaks its nodes takes one for each test."""

    nodes = 2
    options: dict[str, Any] = {}  # of the cluster
    flags: tuple[str, ...] = ()
    servers = 0
    fresh = False  # a cluster for each test

    @classmethod
    def setUpClass(cls) -> None:
        if not cls.fresh:
            cls.begin(cls.addClassCleanup)

    def setUp(self) -> None:
        if self.fresh:
            self.begin(self.addCleanup)

    @classmethod
    def begin(cls, cleanup: Callable[..., object]) -> None:
        cls.cluster = Cluster(nodes=cls.nodes, **cls.options)
        cleanup(cls.cluster.close)
        cls.services = Services(cls.cluster, *cls.flags, servers=cls.servers)

    def job(self, counts: Sequence[int], name: str = "", **options: Any) -> Ranks:
        """A job with so many ranks on each node; ends with the test."""
        name = name or self.id().split(".")[-1][-60:]
        ranks = self.services.ranks(counts, job=name, **options)
        self.addCleanup(ranks.__exit__)
        return ranks

    def exercise(self, ranks: Ranks, kind: str, dtype: str = "float32", **options: Any) -> None:
        """The collective gives what numpy gives, on every rank."""
        wrong = ranks.each("exercise", kind=kind, dtype=dtype, **options)
        self.assertEqual(wrong, [0] * len(ranks), f"wrong elements: {kind} {dtype} {options}")

    def expect(self, rank: Rank, codes: str | Sequence[str], *words: str) -> str:
        """The rank's answer is an error with one of these codes, naming all the words."""
        with self.assertRaises(RankError) as caught:
            rank.receive()
        text = str(caught.exception)
        self.assertIn(caught.exception.code, [codes] if isinstance(codes, str) else codes, text)
        for word in words:
            self.assertIn(word, text)
        return text

    def tearDown(self) -> None:
        # What a failed test has to say stands in the logs as well, and the logs are about to go.
        outcome = getattr(self, "_outcome", None)
        result = getattr(outcome, "result", None)
        if result is None or all(test is not self for test, _ in result.failures + result.errors):
            return
        for node in self.cluster.nodes:
            if node.service is not None:
                lines = node.service.log().splitlines()
                text = "\n".join(line for line in lines if not line.endswith("# default"))
                print(f"== log of node {node.name}\n{text}", file=sys.stderr)


# The heap and the pools of UCX settle at what was under way at one time; the segments of a failed job
# are twice that.
GROWTH_MAX_KIB = int(os.environ.get("HEADRACE_TEST_GROWTH_KIB", str(64 << 10)))


def holdings(service: Service) -> dict[str, int]:
    """What a service holds of its clients and peers."""
    return {
        "descriptors": service.descriptors(),
        "mappings": len(service.mappings()),
        "resident_kib": service.status_field("VmRSS"),
    }


def holds_no_more(service: Service, before: dict[str, int]) -> bool:
    """Whether it holds what it held before, or less; memory may grow by a little."""
    allowed = {**before, "resident_kib": before["resident_kib"] + GROWTH_MAX_KIB}
    return all(now <= allowed[key] for key, now in holdings(service).items())
