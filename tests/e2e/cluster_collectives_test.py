"""Every collective between nodes: what numpy gives, the same bits on all ranks and in all runs."""

from __future__ import annotations

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster_case import ClusterCase
from support.ranks import Ranks
from support.reference import DTYPES, REDUCTIONS
from support.unittests import run_tests

BLOCK = 64 << 10  # bytes; small, so that tensors take several blocks


class Spread:
    """The tests; each class below runs them on another spread of ranks over nodes."""

    spread: tuple[int, ...]
    flags = ("--block-bytes", str(BLOCK))

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.world = sum(cls.spread)
        cls.ranks: Ranks = cls.services.ranks(cls.spread, job="collectives")
        cls.addClassCleanup(cls.ranks.__exit__)

    def counts(self) -> list[int]:
        """Less than an element for each node, a part of a block, and several blocks and a bit; all
        multiples of the world size."""
        return [self.world, 33 * self.world, 35_003 * self.world]

    def test_all_reduce_in_every_type_and_way(self) -> None:
        for dtype in DTYPES:
            # Averages of whole numbers are refused: the next test.
            for op in REDUCTIONS if "float" in dtype else set(REDUCTIONS) - {"average"}:
                for seed, count in enumerate(self.counts()):
                    self.exercise(self.ranks, "all_reduce", dtype, op=op, count=count, seed=seed)

    def test_averages_of_whole_numbers_are_refused_with_a_remedy(self) -> None:
        ranks = self.job(self.spread, name="averages")
        ranks.each("tensor", name="w", count=100, dtype="int32")
        ranks.each("post", kind="all_reduce", name="w", op="average")
        for member in ranks.members:
            member.send("wait")
        for member in ranks.members:
            self.expect(member, "invalid argument", "int32", "post a sum and divide it")

    def test_all_reduce_of_counts_that_divide_by_nothing(self) -> None:
        for seed, count in enumerate((1, 2, 3, 7, 8191, 16385, 49999)):
            self.exercise(self.ranks, "all_reduce", "float32", count=count, seed=seed)

    def test_reduce_scatter(self) -> None:
        ways = (("float32", "sum"), ("bfloat16", "average"), ("uint8", "max"), ("int64", "product"))
        for dtype, op in ways:
            for seed, count in enumerate(self.counts()):
                self.exercise(self.ranks, "reduce_scatter", dtype, op=op, count=count, seed=seed)

    def test_all_gather(self) -> None:
        for dtype in ("float64", "float16", "uint8"):
            for seed, count in enumerate(self.counts()):
                self.exercise(self.ranks, "all_gather", dtype, count=count, seed=seed)

    def test_broadcast_from_every_rank(self) -> None:
        for root in range(self.world):
            for count in self.counts():
                self.exercise(self.ranks, "broadcast", "int32", root=root, count=count, seed=root)

    def test_a_barrier_waits_for_the_last_rank(self) -> None:
        *early, last = self.ranks.members
        for member in early:
            member.call("post", kind="barrier")
        for member in early:
            member.call("settle")
            self.assertFalse(member.call("done"))
        last.call("post", kind="barrier")
        self.ranks.each("wait")

    def test_all_ranks_and_all_runs_get_the_same_bits(self) -> None:
        count = 35_003
        runs = []
        for ranks in (self.ranks, self.job(self.spread, name="again")):
            ranks.each("tensor", name="w", count=count)
            for member in ranks.members:
                member.call("noise", name="w", seed=member.rank)
            ranks.each("post", kind="all_reduce", name="w", op="average")
            ranks.each("wait")
            runs.append(ranks.each("digest", name="w"))
        self.assertEqual(len(set(runs[0])), 1)
        self.assertEqual(runs[0], runs[1])

    def test_many_operations_in_flight_end_in_any_order(self) -> None:
        for index in range(40):
            self.ranks.each("tensor", name=str(index), count=1000 + 997 * index)
            self.ranks.each("fill", name=str(index), value=float(index))
        for index in range(40):
            for member in self.ranks.members:
                member.send("post", kind="all_reduce", name=str(index), key=str(index))
        for _ in range(40):
            for member in self.ranks.members:
                member.receive()
        for index in reversed(range(40)):
            self.ranks.each("wait", key=str(index))
            for values in self.ranks.each("values", name=str(index)):
                self.assertEqual(values, [float(index * self.world)] * 4)


class TwoNodesOfTwoAndOneRank(Spread, ClusterCase):
    nodes, spread = 2, (2, 1)


class ThreeNodesOfThreeOneAndTwoRanks(Spread, ClusterCase):
    nodes, spread = 3, (3, 1, 2)


class TwoServicesOnLoopback(Spread, ClusterCase):
    nodes, spread = 2, (1, 2)
    options = {"loopback": True}


class ThreeServicesOnLoopback(Spread, ClusterCase):
    nodes, spread = 3, (1, 1, 1)
    options = {"loopback": True}


class OneAlgorithm:
    """A way of summing a block that is used whatever its size."""

    nodes = 3
    options = {"loopback": True}
    algorithm: str

    @classmethod
    def setUpClass(cls) -> None:
        cls.flags = ("--block-bytes", str(BLOCK), "--network-algorithm", cls.algorithm)
        super().setUpClass()

    def test_gives_what_numpy_gives_and_the_same_bits_on_all_ranks(self) -> None:
        ranks = self.job((1, 2, 1))
        for seed, count in enumerate((1, 5, 4096, 49_999)):
            for dtype, op in (("float32", "sum"), ("bfloat16", "average"), ("int32", "max")):
                self.exercise(ranks, "all_reduce", dtype, op=op, count=count, seed=seed)
        ranks.each("tensor", name="w", count=49_999)
        for member in ranks.members:
            member.call("noise", name="w", seed=member.rank)
        ranks.each("post", kind="all_reduce", name="w")
        ranks.each("wait")
        self.assertEqual(len(set(ranks.each("digest", name="w"))), 1)


class DirectExchange(OneAlgorithm, ClusterCase):
    algorithm = "direct-exchange"


class RecursiveDoubling(OneAlgorithm, ClusterCase):
    algorithm = "recursive-doubling"


class DirectScatter(OneAlgorithm, ClusterCase):
    algorithm = "direct-scatter"


class Ring(OneAlgorithm, ClusterCase):
    algorithm = "ring"


if __name__ == "__main__":
    run_tests()
