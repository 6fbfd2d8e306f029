"""Sends and receives between ranks of two nodes with services of their own."""

from __future__ import annotations

import os
import sys
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster_case import ClusterCase, await_true
from support.patience import await_equal
from support.ranks import RankError
from support.unittests import run_tests

COUNT = 3_000_000  # elements: several blocks


class Messages(ClusterCase):
    options = {"loopback": True}

    def pair(self, name: str) -> Any:
        ranks = self.job([1, 1], name=name)
        ranks.each("tensor", name="x", count=COUNT)
        # The nodes have met then.
        ranks.each("post", kind="barrier")
        ranks.each("wait")
        return ranks

    def queue_on(self, node: int, job: str) -> list[dict[str, Any]]:
        return self.services[node].ctl_json("queue", "--job", job)["queue"]

    def jobs_on(self, node: int) -> list[str]:
        return [row["name"] for row in self.services[node].ctl_json("jobs")["jobs"]]

    def test_large_ones_cross_in_both_directions_at_once(self) -> None:
        ranks = self.pair("both")
        ranks.each("tensor", name="y", count=COUNT)
        for rank in (0, 1):
            ranks[rank].call("noise", name="x", seed=rank + 1)
            ranks[rank].call("post", kind="receive", name="y", key="in", source=1 - rank)
        for rank in (0, 1):
            ranks[rank].call("post", kind="send", name="x", key="out", to=1 - rank)
        for key in ("in", "out"):
            ranks.each("wait", key=key)
        for rank in (0, 1):
            self.assertEqual(ranks[rank].call("digest", name="x"), ranks[1 - rank].call("digest", name="y"))

    def test_a_send_that_waits_is_shown_on_both_nodes_with_tag_ranks_and_node(self) -> None:
        ranks = self.pair("shown")
        ranks[0].call("post", kind="send", name="x", to=1, tag=77)
        keys = ("source", "target", "tag", "wait_reason")
        for node in (0, 1):
            await_equal(
                lambda node=node: [tuple(row[key] for key in keys) for row in self.queue_on(node, "shown")],
                [(0, 1, 77, "no_receive")],
            )
            other = self.cluster.nodes[1 - node].name
            self.assertIn(f"node {other}", self.services[node].ctl("queue")[1])
        ranks[1].call("post", kind="receive", name="x", source=0, tag=77)
        ranks.each("wait")

    def test_a_short_send_ends_before_its_receive_and_is_received_after_its_rank_has_left(self) -> None:
        ranks = self.pair("short")
        ranks.each("tensor", name="y", count=100)
        ranks[0].call("fill", name="y", value=5)
        ranks[0].call("post", kind="send", name="y", to=1)
        ranks[0].call("wait")
        self.assertTrue(await_true(lambda: [row["wait_reason"] for row in self.queue_on(1, "short")] == ["no_receive"]))
        self.assertEqual(self.queue_on(0, "short"), [])
        ranks[0].call("leave")
        ranks[1].call("post", kind="receive", name="y", source=0)
        ranks[1].call("wait")
        self.assertEqual(ranks[1].call("values", name="y"), [5.0] * 4)
        self.assertTrue(await_true(lambda: self.jobs_on(0) == []))

    def test_sizes_that_differ_end_both_by_name(self) -> None:
        ranks = self.pair("differ")
        ranks[1].call("tensor", name="small", count=10)
        ranks[0].call("post", kind="send", name="x", to=1)
        ranks[1].call("post", kind="receive", name="small", source=0)
        for member in ranks.members:
            member.send("wait")
        for member in ranks.members:
            self.expect(member, "mismatch", f"send of {COUNT} float32", "receive of 10 float32")
        # The job goes on.
        ranks.each("post", kind="all_reduce", name="x")
        ranks.each("wait")

    def test_a_rank_that_dies_ends_what_waits_for_it_on_the_other_node(self) -> None:
        for when in ("before", "while"):
            with self.subTest(when):
                ranks = self.pair(f"dies-{when}")
                ranks[0].call("post", kind="send", name="x", to=1)
                if when == "while":
                    ranks[1].call("post", kind="receive", name="x", source=0)
                ranks[1].kill()
                ranks[0].send("wait")
                try:
                    ranks[0].receive()  # all of it may have left
                    self.assertEqual(when, "while")
                except RankError as error:
                    self.assertIn("rank 1", str(error))
                for node in (0, 1):
                    self.assertTrue(await_true(lambda n=node, job=f"dies-{when}": not self.queue_on(n, job)))

    def test_a_receive_that_timed_out_leaves_the_message_to_the_next(self) -> None:
        # What follows the one that no send comes for has as long, on a machine that is busy.
        ranks = self.job([1, 1], name="late", timeout=5.0)
        ranks.each("tensor", name="x", count=100)
        ranks[0].call("fill", name="x", value=5)
        ranks[1].call("post", kind="receive", name="x", source=0)
        ranks[1].send("wait")
        self.expect(ranks[1], "timeout", "rank 0", "has not posted its send")
        ranks[0].call("post", kind="send", name="x", to=1)
        ranks[1].call("post", kind="receive", name="x", source=0)
        ranks.each("wait")
        self.assertEqual(ranks[1].call("values", name="x"), [5.0] * 4)


if __name__ == "__main__":
    run_tests()
