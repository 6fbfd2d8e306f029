"""What goes over the links: one crossing for each node and not for each rank, shares that fit the
rails, and a node's own bytes to parameter servers."""

from __future__ import annotations

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster_case import ClusterCase
from support.ranks import Ranks
from support.unittests import run_tests

SIZE = 16 << 20
COUNT = SIZE // 4
# Headers of all layers, acknowledgements of what comes the other way, heartbeats.
MORE = 1.08


class Crossings(ClusterCase):
    def sent(self, ranks: Ranks, kind: str, **options: object) -> list[list[float]]:
        """How many times the operation's size every node sends, on each rail."""
        rails = range(len(self.cluster[0].addresses))
        self.exercise(ranks, kind, count=COUNT, **options)  # measures the links, opens connections
        before = [[node.bytes_sent(rail) for rail in rails] for node in self.cluster.nodes]
        self.exercise(ranks, kind, count=COUNT, **options)
        return [
            [(node.bytes_sent(rail) - before[index][rail]) / SIZE for rail in rails]
            for index, node in enumerate(self.cluster.nodes)
        ]

    def between(self, least: float, value: float, most: float) -> None:
        self.assertGreaterEqual(value, least)
        self.assertLessEqual(value, most)


class TwoNodesOfTwoRanks(Crossings):
    nodes = 2

    def test_all_reduce_crosses_once_for_each_node(self) -> None:
        for (times,) in self.sent(self.job((2, 2)), "all_reduce"):
            self.between(1.0, times, MORE)

    def test_broadcast_crosses_once_and_in_one_direction(self) -> None:
        (root,), (other,) = self.sent(self.job((2, 2)), "broadcast", root=1)
        self.between(1.0, root, MORE)
        self.between(0.0, other, MORE - 1)

    def test_a_job_of_one_node_crosses_nothing(self) -> None:
        (first,), (second,) = self.sent(self.job((2, 0)), "all_reduce")
        self.between(0.0, first, 0.001)
        self.between(0.0, second, 0.001)


class FourNodes(Crossings):
    nodes = 4

    def test_all_reduce_crosses_no_more_than_a_ring_does(self) -> None:
        for (times,) in self.sent(self.job((1, 1, 1, 1)), "all_reduce"):
            self.between(1.5, times, 1.5 * MORE)


class TwoRails(Crossings):
    nodes = 2
    options = {"rails": [250, 100]}  # less than the cores can do
    flags = ("--rails", "eth0,eth1")

    def test_carry_shares_that_fit_their_rates(self) -> None:
        for fast, slow in self.sent(self.job((1, 1)), "all_reduce"):
            self.between(1.0, fast + slow, MORE)
            # 0.29 by the links' rates; a busy machine measures both lower and nearer to each other. What
            # share follows from what was measured is asserted in virtual time (ExchangeShares).
            self.between(0.15, slow / (fast + slow), 0.45)

    def test_give_right_sums_of_any_size(self) -> None:
        ranks = self.job((1, 2))
        for seed, count in enumerate((1, 3, 5000, 1_000_003)):
            self.exercise(ranks, "all_reduce", count=count, seed=seed)
            self.exercise(ranks, "broadcast", count=count, root=1, seed=seed)


class Servers(Crossings):
    nodes = 4
    servers = 2
    flags = ("--architecture", "parameter-server")

    def test_get_everything_once_and_send_it_back_once(self) -> None:
        counted = self.sent(self.job((2, 1)), "all_reduce")
        for (times,) in counted:  # two nodes send all they have; two servers half to each of two
            self.between(1.0, times, MORE)

    def test_sum_in_every_type_and_way(self) -> None:
        ranks = self.job((2, 1))
        for dtype, op in (("float32", "sum"), ("bfloat16", "average"), ("uint8", "max")):
            for seed, count in enumerate((1, 300, 1_500_000)):
                self.exercise(ranks, "all_reduce", dtype, op=op, count=count, seed=seed)

    def test_do_not_stand_in_the_way_of_the_other_collectives(self) -> None:
        ranks = self.job((2, 1))
        self.exercise(ranks, "broadcast", count=300_000, root=2)
        self.exercise(ranks, "all_gather", count=300_000)
        self.exercise(ranks, "reduce_scatter", count=300_000)


del Crossings, ClusterCase  # they have no tests of their own

if __name__ == "__main__":
    run_tests()
