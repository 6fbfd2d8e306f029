"""When a node, a link, a service or a rank goes: every waiting rank on every node learns the cause
within a second of detection (support/patience.py), another job on the same nodes goes on, and nothing is left behind.

The job that suffers has ranks on nodes a, b and c, and what breaks is on node c; the bystander has
ranks on a and b.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster_case import (
    DETECTION_S,
    ClusterCase,
    await_true,
    holdings,
    holds_no_more,
)
from support.patience import SOON_S
from support.ranks import Rank, RankError
from support.unittests import run_tests

LARGE = 16 << 20  # elements: 64 MiB
SLOW_MBIT = 20  # at this rate of node c's link they take half a minute: none has moved when something breaks


class FailureCase(ClusterCase):
    nodes = 3
    options = {"rate_mbit": 1000}
    fresh = True
    known_s = 0.0  # from a fault until it is known

    def setUp(self) -> None:
        super().setUp()
        self.warm_up()
        self.before = [holdings(self.services[index]) for index in range(2)]
        self.bystander = self.job((1, 1), name="bystander")
        self.bystander.each("tensor", name="w", count=1000)
        self.move_bystander()
        self.ranks = self.job((1, 2, 1), name="suffers")
        self.survivors = self.ranks.members[:3]
        self.victim = self.ranks[3]
        self.ranks.each("tensor", name="weight", count=LARGE)
        self.exercise(self.ranks, "all_reduce", count=1000)

    def warm_up(self) -> None:
        """What services keep from their first job on is no leak."""
        with self.services.ranks((1, 2, 1), job="warm") as ranks:
            self.exercise(ranks, "all_reduce", count=1000)
            ranks.each("leave")
        for index in range(3):
            service = self.services[index]
            self.assertTrue(await_true(lambda service=service: not service.mappings()))
            self.assertTrue(await_true(lambda service=service: not service.ctl_json("jobs")["jobs"]))

    def move_bystander(self) -> None:
        self.bystander.each("fill", name="w", value=2.0)
        self.bystander.each("post", kind="all_reduce", name="w")
        self.bystander.each("wait")
        self.assertEqual(self.bystander[0].call("values", name="w"), [4.0] * 4)

    def wait_all(self, members: list[Rank], moving: bool = False) -> None:
        """The ranks wait for an operation: one that the last rank does not post, or one on its way."""
        if moving:
            self.cluster[2].set_rate(SLOW_MBIT)
        for member in self.ranks.members if moving else members:
            member.call("post", kind="all_reduce", name="weight")
        if moving:
            sent = self.cluster[0].bytes_sent()
            self.assertTrue(await_true(lambda: self.cluster[0].bytes_sent() - sent > 1 << 20))
        for member in members:
            member.send("wait")

    def expect_all(self, begin: float, limit_s: float, *words: str, code="peer lost") -> None:
        """All surviving ranks learn it in that time, and each in the same words as the others."""
        texts = [self.expect(member, code, *words) for member in self.survivors]
        self.assertLess(time.monotonic() - begin, limit_s, texts)

    def check(
        self,
        fault: Callable[[], object],
        *words: str,
        moving: bool = False,
        code: str = "peer lost",
    ) -> None:
        self.wait_all(self.survivors, moving)
        begin = time.monotonic()
        fault()
        self.expect_all(begin, self.known_s + SOON_S, *words, code=code)
        self.move_bystander()
        # What is posted later learns the same cause, at once.
        begin = time.monotonic()
        self.survivors[0].call("post", kind="barrier")
        self.survivors[0].send("wait")
        self.expect(self.survivors[0], code, *words)
        self.assertLess(time.monotonic() - begin, SOON_S)

    def check_nothing_left(self) -> None:
        """Nodes a and b hold what they held before, and serve a new job."""
        for group in (self.ranks, self.bystander):
            group.__exit__()
        for index, before in enumerate(self.before):
            service = self.services[index]
            back = await_true(lambda s=service, b=before: holds_no_more(s, b))
            self.assertTrue(back, f"{holdings(service)}, before: {before}")
            self.assertEqual(service.ctl_json("queue")["queue"], [])
        with self.services.ranks((2, 1), job="afterwards") as ranks:
            self.exercise(ranks, "all_reduce", count=100_000)


class AtOnce(FailureCase):
    """What ends connections is known at once: the time of silence is longer than it may take."""

    flags = ("--detection-ms", str(int(4000 * SOON_S)))

    def test_a_node_that_is_killed(self) -> None:
        self.check(self.cluster[2].kill, "node c")
        self.check_nothing_left()

    def test_a_node_that_is_killed_while_a_block_moves(self) -> None:
        self.check(self.cluster[2].kill, "node c", moving=True)
        self.check_nothing_left()

    def test_the_node_where_the_job_meets(self) -> None:
        self.survivors = self.ranks.members[1:]
        self.wait_all(self.survivors)
        begin = time.monotonic()
        self.cluster[0].kill()
        self.expect_all(begin, SOON_S, "node a")

    def test_a_service_that_is_killed(self) -> None:
        self.check(lambda: self.services[2].kill(), "node c")
        # Its own rank has learnt it from its socket.
        with self.assertRaises(RankError) as caught:
            self.victim.call("post", kind="barrier")
            self.victim.call("wait")
        self.assertEqual(caught.exception.code, "unavailable")
        self.check_nothing_left()

    def test_a_service_that_is_killed_and_started_again_takes_part_in_new_jobs(self) -> None:
        self.check(lambda: self.services[2].kill(), "node c")
        self.services.start(2)
        with self.services.ranks((1, 1, 2), job="again") as ranks:
            self.exercise(ranks, "all_reduce", count=100_000)
        self.check_nothing_left()

    def test_a_service_that_is_ended_in_order(self) -> None:
        self.wait_all(self.survivors)
        self.services[2].process.terminate()
        for member in self.survivors:
            self.expect(member, ("peer lost", "unavailable"), "node c")
        self.move_bystander()

    def test_a_rank_that_is_killed(self) -> None:
        self.check(self.victim.kill, "rank 3", f"pid {self.victim.pid}", "node c")
        self.check_nothing_left()

    def test_a_rank_that_is_killed_while_a_block_moves(self) -> None:
        self.check(
            self.victim.kill, "rank 3", f"pid {self.victim.pid}", "node c", moving=True
        )  # fmt: skip
        self.check_nothing_left()

    def test_a_rank_that_leaves_in_order_fails_only_what_it_did_not_post(self) -> None:
        for member in self.ranks.members:
            member.call("post", kind="barrier", key="all")
        self.ranks.each("wait", key="all")
        self.victim.call("leave")
        self.survivors[0].call("post", kind="barrier")
        self.survivors[0].send("wait")
        self.expect(self.survivors[0], "peer lost", "rank 3", "node c", "left")
        self.move_bystander()

    def test_a_rank_that_never_comes_is_named_to_the_operator(self) -> None:
        partial = self.job((1,), name="partial", world=3)
        partial[0].call("post", kind="barrier")

        def jobs() -> str:
            return self.services[0].ctl("jobs")[1]

        self.assertTrue(await_true(lambda: "ranks 1, 2 are missing" in jobs()), jobs())


class BySilence(FailureCase):
    """What ends no connection is known when nothing was heard for the detection time, long before operations expire."""

    known_s = DETECTION_S

    def test_a_node_that_loses_its_power(self) -> None:
        self.check(lambda: self.cluster[2].kill(silently=True), "node c")
        self.check_nothing_left()

    def test_a_node_that_stands_still(self) -> None:
        self.check(self.cluster[2].pause, "node c")
        self.cluster[2].resume()
        self.check_nothing_left()

    def test_a_link_that_is_cut(self) -> None:
        self.check(self.cluster[2].cut, "node c")
        self.check_nothing_left()

    def test_a_link_that_is_cut_while_a_block_moves(self) -> None:
        self.check(self.cluster[2].cut, "node c", moving=True)
        self.check_nothing_left()

    def test_a_link_that_is_unplugged_while_a_block_moves(self) -> None:
        self.check(self.cluster[2].unplug, "node c", moving=True)
        self.check_nothing_left()

    def test_a_link_that_loses_what_the_node_sends(self) -> None:
        self.check(lambda: self.cluster[2].cut(receiving=False), "node c", moving=True)
        self.check_nothing_left()

    def test_a_link_that_loses_what_the_node_should_get(self) -> None:
        self.check(lambda: self.cluster[2].cut(sending=False), "node c", moving=True)
        self.check_nothing_left()

    def test_a_link_that_is_cut_tells_the_ranks_behind_it_as_well(self) -> None:
        self.survivors = self.ranks.members
        self.victim.call("post", kind="barrier")
        self.ranks[0].call("post", kind="barrier")
        for member in self.ranks.members[1:3]:
            member.call("post", kind="barrier")
        self.ranks.each("wait")
        for member in (self.ranks[0], self.victim):
            member.call("post", kind="all_reduce", name="weight")
            member.send("wait")
        self.cluster[2].cut()
        begin = time.monotonic()
        for member in (self.ranks[0], self.victim):
            self.expect(member, "peer lost", "node")
        self.assertLess(time.monotonic() - begin, DETECTION_S + SOON_S)

    def test_a_link_that_is_slow_breaks_nothing(self) -> None:
        self.ranks.each("fill", name="weight", value=1.0)
        self.wait_all(self.ranks.members, moving=True)
        time.sleep(1.5 * DETECTION_S)
        self.cluster[2].set_rate(1000)
        for member in self.ranks.members:
            member.receive()
        self.assertEqual(self.ranks[0].call("values", name="weight"), [4.0] * 4)


del ClusterCase, FailureCase  # they have no tests of their own

if __name__ == "__main__":
    run_tests()
