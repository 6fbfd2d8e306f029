"""Nothing leaks: descriptors, mappings and memory return to what they were, however clients end."""

from __future__ import annotations

import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from support.patience import await_equal
from support.ranks import Rank
from support.service import Service

ROUNDS = int(os.environ.get("HEADRACE_TEST_ROUNDS", "1000"))
WARM_UP_ROUNDS = 50
ROUNDS_LIMIT_S = 280
# The heap may settle; a session that leaked would cost its channel and segment, 170 KiB each.
GROWTH_MAX_KIB = int(os.environ.get("HEADRACE_TEST_GROWTH_KIB", "4096"))


class Lifetime(unittest.TestCase):
    def check_rounds(self, how: str) -> None:
        with Service("--log-level", "error") as service:
            driver = Rank(service, 0, 1, attach=False)
            try:
                driver.call("rounds", job="warm", count=WARM_UP_ROUNDS, how=how)
                before = self.settled(service)
                driver.send("rounds", job="round", count=ROUNDS, how=how)
                driver.receive(limit_s=ROUNDS_LIMIT_S)
                after = self.settled(service)
            finally:
                driver.close()
            self.assertEqual(after["mappings"], 0)
            await_equal(service.descriptors, before["descriptors"])
            self.assertLess(after["resident_kib"] - before["resident_kib"], GROWTH_MAX_KIB)
            self.assertEqual(service.ctl_json("jobs")["jobs"], [])
            self.assertEqual(service.stop(), 0)

    def settled(self, service: Service) -> dict[str, int]:
        """What the service holds once it has nothing of a client any more."""
        await_equal(service.mappings, [])

        def users() -> int:
            rows = service.ctl_json("users")["users"]
            return sum(row["sessions"] + row["connections"] for row in rows)

        # The descriptors of a connection are closed by control, a little after its mappings.
        await_equal(users, 0)
        return {
            "descriptors": service.descriptors(),
            "mappings": len(service.mappings()),
            "resident_kib": service.status_field("VmRSS"),
        }

    def test_clients_that_leave(self) -> None:
        self.check_rounds("leave")

    def test_clients_that_are_killed_with_an_operation_open(self) -> None:
        self.check_rounds("kill")


if __name__ == "__main__":
    unittest.main()
