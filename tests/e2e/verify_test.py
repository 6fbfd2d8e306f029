"""``verify``: what ranks have got is compared, within a node and among nodes, and a rank that writes
to a gradient while it is summed ends its job by name instead of training on with other weights."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster_case import ClusterCase, await_true
from support.patience import await_equal
from support.ranks import Rank, RankError, Ranks
from support.unittests import run_tests

LARGE = 8 << 20  # elements: 32 MiB, of which some are written between their sum and the look at it


class Verify(ClusterCase):
    flags = ("--verify=2",)

    def verified(self, node: int) -> int:
        return self.services[node].ctl_json("status")["counters"]["blocks_verified"]

    def spoil(self, ranks: Ranks) -> list[str]:
        """The last rank writes to its tensor while it is summed, again and again; what all are told.

        One time may be too early or too late to change what was summed already, and among nodes nothing
        waits for the comparison: the operation after may be the one that ends."""
        ranks.each("tensor", name="w", count=LARGE)
        last = ranks[len(ranks) - 1]
        texts: dict[int, str] = {}

        def fails() -> bool:
            for member in ranks.members:
                if member.rank not in texts:
                    self.begin_operation(member, spoils=member is last, texts=texts)
            for member in ranks.members:
                if member.rank not in texts:
                    self.note(member.receive, member.rank, texts)
            return len(texts) == len(ranks)

        self.assertTrue(await_true(fails), texts)
        return [texts[rank] for rank in range(len(ranks))]

    def begin_operation(self, member: Rank, spoils: bool, texts: dict[int, str]) -> None:
        def begin() -> None:
            member.call("post", kind="all_reduce", name="w")
            if spoils:
                member.send("spoil", name="w")
            else:
                member.send("wait")

        self.note(begin, member.rank, texts)

    def note(self, call: Callable[[], object], rank: int, texts: dict[int, str]) -> None:
        try:
            call()
        except RankError as error:
            self.assertEqual(error.code, "corrupt", error)
            texts[rank] = str(error)

    def test_ranks_that_keep_to_the_rules_train_on(self) -> None:
        ranks = self.job((1, 2))
        for node in range(2):  # those of the test before are gone
            await_equal(lambda n=node: len(self.services[n].ctl_json("jobs")["jobs"]), 1)
        before = [self.verified(node) for node in range(2)]
        for count in (1000, 3_000_000, 1000, 3_000_000):
            self.exercise(ranks, "all_reduce", count=count)
        # The second and the fourth operation have 12 MB each: three blocks of 4 MiB.
        wanted = [count + 2 * 3 for count in before]
        await_equal(lambda: [self.verified(node) for node in range(2)], wanted)

    def test_within_a_node_the_rank_is_named(self) -> None:
        ranks = self.job((2,))
        for text in self.spoil(ranks):
            self.assertRegex(
                text,
                rf"verify: .*rank 1 \(pid {ranks[1].pid}\).* block \d+ of operation \d+ "
                rf".*rank 0 \(pid {ranks[0].pid}\)",
            )

    def test_among_nodes_the_nodes_and_the_block_are_named(self) -> None:
        ranks = self.job((1, 1))
        for text in self.spoil(ranks):
            self.assertRegex(text, r"verify: block \d+ of operation \d+\b")
            self.assertRegex(text, r"[0-9a-f]{16} on [ab]; [0-9a-f]{16} on [ab]\.")


if __name__ == "__main__":
    run_tests()
