"""``verify``: what ranks have got is compared, within a node and among nodes, and a rank that writes
to a gradient while it is summed ends its job by name instead of training on with other weights."""

from __future__ import annotations

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster_case import ClusterCase, await_true  # noqa: E402
from support.ranks import RankError, Ranks  # noqa: E402
from support.unittests import run_tests  # noqa: E402

LARGE = 8 << 20  # elements: 32 MiB, of which some are written between their sum and the look at it


class Verify(ClusterCase):
    flags = ("--verify=2",)

    def verified(self, node: int) -> int:
        return self.services[node].ctl_json("status")["counters"]["blocks_verified"]

    def spoil(self, ranks: Ranks) -> None:
        """The last rank writes to its tensor while every second operation is on its way."""
        ranks.each("tensor", name="w", count=LARGE)
        self.exercise(ranks, "all_reduce", count=100)
        ranks.each("post", kind="all_reduce", name="w")
        ranks[len(ranks) - 1].send("spoil", name="w")

    def test_ranks_that_keep_to_the_rules_train_on(self) -> None:
        before = [self.verified(node) for node in range(2)]
        ranks = self.job((1, 2))
        for count in (1000, 3_000_000, 1000, 3_000_000):
            self.exercise(ranks, "all_reduce", count=count)
        for node in range(2):
            # Of the second and the fourth operation, 12 MB each: three blocks of 4 MiB.
            self.assertEqual(self.verified(node) - before[node], 2 * 3)

    def test_within_a_node_the_rank_is_named(self) -> None:
        ranks = self.job((2,))
        self.spoil(ranks)
        ranks[0].send("wait")
        for member in ranks.members:
            words = f"verify: what rank 1 (pid {ranks[1].pid}) has got in block 1 of operation 2"
            self.expect(member, "corrupt", words, f"is not what rank 0 (pid {ranks[0].pid})")

    def test_among_nodes_the_nodes_and_the_block_are_named(self) -> None:
        ranks = self.job((1, 1))
        self.spoil(ranks)
        ranks[0].send("wait")
        texts = [self.until_it_fails(ranks, rank) for rank in range(2)]
        for text in texts:
            self.assertRegex(text, r"verify: block \d of operation 2 has not the same result on all")
            self.assertRegex(text, r"[0-9a-f]{16} on [ab]; [0-9a-f]{16} on [ab]\.")

    def until_it_fails(self, ranks: Ranks, rank: int) -> str:
        """Nothing waits for the comparison: the operation itself may have ended well."""
        caught: list[RankError] = []

        def fails() -> bool:
            try:
                ranks[rank].receive()
                ranks[rank].call("post", kind="barrier")
                ranks[rank].send("wait")
            except RankError as error:
                caught.append(error)
            return bool(caught)

        self.assertTrue(await_true(fails))
        self.assertEqual(caught[0].code, "corrupt")
        return str(caught[0])


if __name__ == "__main__":
    run_tests()
