"""A service that is stopped: every wait ends soon after the time that was granted, with its cause."""

from __future__ import annotations

import os
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from support.patience import PATIENCE_S, SOON_S, await_equal
from support.ranks import Rank, RankError, Ranks
from support.service import Service

TIMEOUT_S = 2.0
# 1 s for an answer, and two looks, which are a quarter of a second apart.
GRANTED_S = TIMEOUT_S + 1.0 + 0.5
BOUND_S = GRANTED_S + SOON_S


class StoppedService(unittest.TestCase):
    def setUp(self) -> None:
        self.service = Service()
        self.addCleanup(self.service.close)
        self.service.start()
        self.addCleanup(self.service.resume)

    def ranks(self, world: int) -> Ranks:
        ranks = Ranks(self.service, world, timeout=TIMEOUT_S)
        self.addCleanup(ranks.__exit__)
        ranks.each("tensor", name="w", count=1000)
        return ranks

    def expect_lost(self, rank: Rank) -> str:
        with self.assertRaises(RankError) as caught:
            rank.receive(60)
        self.assertEqual(caught.exception.code, "unavailable", str(caught.exception))
        text = str(caught.exception)
        self.assertIn(f"(pid {self.service.pid})", text)
        self.assertIn("headracectl doctor", text)
        return text

    def test_a_wait_ends_after_the_timeout_and_the_session_is_lost(self) -> None:
        ranks = self.ranks(2)
        self.service.suspend()
        begin = time.monotonic()
        ranks.each("post", kind="all_reduce", name="w")
        for rank in ranks.members:
            rank.send("wait")
        for rank in ranks.members:
            self.expect_lost(rank)
            took = time.monotonic() - begin
            self.assertGreaterEqual(took, TIMEOUT_S)
            self.assertLess(took, BOUND_S)
        print(f"waited {took:.2f} s with a timeout of {TIMEOUT_S} s", file=sys.stderr)
        # Whatever comes next fails for the same cause, and nothing of it waits for its timeout; the memory is there.
        begin = time.monotonic()
        for rank in ranks.members:
            rank.send("post", kind="barrier")
            self.expect_lost(rank)
            rank.send("tensor", name="v", count=10)
            self.expect_lost(rank)
            rank.call("fill", name="w", value=7.0)
        self.assertLess(time.monotonic() - begin, TIMEOUT_S)
        # The service goes on: it ends what was posted, finds the leases ended, and takes others.
        self.service.resume()
        await_equal(self.service.mappings, [])
        for rank in ranks.members:
            rank.send("wait")
            self.expect_lost(rank)
            rank.send("reconnect", timeout=PATIENCE_S)
        for rank in ranks.members:
            rank.receive(60)
        ranks.each("fill", name="w", value=2.0)
        ranks.each("post", kind="all_reduce", name="w")
        ranks.each("wait")
        self.assertEqual(ranks[0].call("values", name="w"), [4.0] * 4)

    def test_a_paused_job_is_waited_for(self) -> None:
        ranks = self.ranks(2)
        self.assertEqual(self.service.ctl("pause", "test")[0], 0)
        ranks.each("post", kind="barrier")
        for rank in ranks.members:
            rank.send("wait")
        time.sleep(GRANTED_S + TIMEOUT_S)
        self.assertEqual(self.service.ctl("resume", "test")[0], 0)
        for rank in ranks.members:
            rank.receive()


if __name__ == "__main__":
    unittest.main()
