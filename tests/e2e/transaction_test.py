"""No iteration is applied by some and not by others, whenever a rank dies in it."""

from __future__ import annotations

import collections
import os
import sys
import tempfile
import unittest
from typing import Any

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from support.elastic import ElasticCase
from support.service import Service

POINTS = ("forward", "backward", "step", "voted", "applying", "applied")
STEPS = 24


class Transaction(ElasticCase):
    def setUp(self) -> None:
        self.service = Service()
        self.addCleanup(self.service.close)
        self.service.start()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.log = folder.name

    def applied(self, world: int, lost: list[int], **asked: Any) -> tuple[dict[int, set[str]], list[str]]:
        """By step, the digests of what any rank has applied, also one that died; parameters at the end."""
        self.trained = {"trainer": "transaction_train.py"}
        said = self.train(
            [self.service] * world, "train", log=self.log, steps=asked.pop("steps", STEPS), **asked
        ).ends(lost)
        found: dict[int, set[str]] = collections.defaultdict(set)
        self.last = {}
        for member in range(world):
            with open(os.path.join(self.log, str(member)), encoding="utf-8") as file:
                rows = [line.split() for line in file]
            for step, digest in rows:
                found[int(step)].add(digest)
            self.last[member] = int(rows[-1][0])
        return found, [each["digest"] for each in said.values()]

    def test_whenever_a_rank_dies_what_it_has_applied_the_others_have(self) -> None:
        world = 2 + len(POINTS)
        kill = [[2 + index, 3 * (index + 1), when] for index, when in enumerate(POINTS)]
        found, digests = self.applied(world, [who for who, _, _ in kill], kill=kill, transaction=True)
        self.assertEqual(sorted(found), list(range(STEPS)))
        self.assertEqual([step for step, each in found.items() if len(each) != 1], [])
        self.assertEqual(digests[0], digests[1])
        # It died where it was told to: in the midst of its updates, or before them.
        wanted = {who: step - (when not in ("applying", "applied")) for who, step, when in kill}
        self.assertEqual({who: self.last[who] for who in wanted}, wanted)

    def test_averages_of_which_one_rank_only_heard_are_not_used(self) -> None:
        asked = {"unheard": [1, 4], "steps": 8}
        found, digests = self.applied(3, [1], transaction=True, **asked)
        self.assertEqual(self.last[1], 3, "it had all averages of step 4, and did not know that the others had")
        self.assertEqual([step for step, each in found.items() if len(each) != 1], [])
        self.assertEqual(digests[0], digests[1])

    def test_without_it_one_rank_uses_them_and_dies(self) -> None:
        """So the test before can fail."""
        found, digests = self.applied(3, [1], transaction=False, unheard=[1, 4], steps=8)
        self.assertEqual(self.last[1], 4)
        self.assertEqual([step for step, each in found.items() if len(each) != 1], [4])
        self.assertEqual(digests[0], digests[1])


if __name__ == "__main__":
    unittest.main(verbosity=2)
