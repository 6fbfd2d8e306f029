"""A user who takes what he can get of a service: others register, attach and find room beside him."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import unittest
from collections.abc import Callable

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from support.ranks import Rank, Ranks
from support.service import Service, build_directory
from support.unittests import run_tests

GREEDY_UID = 65534
OTHER_UID = 65533
PATIENCE_S = 30.0
SPARSE_BYTES = 2 << 30
LARGE_BYTES = 512 << 20
LARGE_COUNT = 6
AS_ROOT = unittest.skipUnless(os.getuid() == 0, "needs root, to be several users")


@AS_ROOT
class Greedy(unittest.TestCase):
    """One uid against the service, and what root and another uid get meanwhile."""

    def setUp(self) -> None:
        self.service = Service()
        self.addCleanup(self.service.close)
        self.service.start()
        os.chmod(self.service.directory, 0o755)

    def run_greedy(self, *what: object, uid: int = GREEDY_UID) -> str:
        """Starts the hostile client, which holds what it got; its first line."""
        program = os.path.join(build_directory(), "hostile_client")
        process = subprocess.Popen(
            [program, self.service.socket, *map(str, what)],
            user=uid,
            group=uid,
            extra_groups=[],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(process.communicate)
        assert process.stdout is not None
        self.output = process.stdout
        line = process.stdout.readline()
        self.assertNotEqual(line, "", "the hostile client ended")
        return line

    def resident_bytes(self) -> int:
        with open(f"/proc/{self.service.pid}/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.service.pid}/fd"))

    def await_true(self, what: str, check: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not check():
            self.assertLess(time.monotonic(), deadline, what)
            time.sleep(0.05)

    def codes_of_events(self) -> list[str]:
        return [event["code"] for event in self.service.ctl_json("events")["events"]]

    def test_memory_that_its_owner_has_not_is_not_the_services(self) -> None:
        before = self.resident_bytes()
        answer = self.run_greedy("sparse", SPARSE_BYTES)
        self.assertIn("invalid argument", answer)
        self.assertIn("fallocate", answer)
        self.assertLess(self.resident_bytes() - before, 32 << 20)
        with Ranks(self.service, 1, job="honest") as ranks:
            ranks[0].call("tensor", name="w", count=1024)

    def test_memory_beyond_a_users_share_is_refused_by_default(self) -> None:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE")
        answer = self.run_greedy("sparse", memory - memory // 8 & ~4095)
        self.assertIn("exhausted", answer)
        self.assertIn("memory_per_uid", answer)

    def test_another_user_finds_a_seat(self) -> None:
        taken = []
        for uid in (GREEDY_UID, OTHER_UID):
            number, refusal = self.run_greedy("seats", uid=uid).split(" ", 1)
            taken.append(int(number))
            self.assertIn("exhausted", refusal)
            self.assertIn("sessions_per_uid", refusal)
        self.assertEqual(taken, [28, 14])
        Rank(self.service, 0, 1, job="root").close()

    def test_half_messages_hold_no_memory(self) -> None:
        before = self.resident_bytes()
        self.run_greedy("half", 24)
        self.assertLess(self.resident_bytes() - before, 48 << 20)
        self.assertIn("exhausted", self.codes_of_events())
        Rank(self.service, 0, 1, job="honest").close()

    def test_unfinished_messages_hold_few_descriptors_and_not_for_long(self) -> None:
        before = self.descriptors()
        self.run_greedy("descriptors", 20)
        self.await_true("they were kept", lambda: 20 <= self.descriptors() - before <= 20 * 3)
        Rank(self.service, 0, 1, job="honest").close()
        self.await_true("nothing was cut", lambda: self.descriptors() <= before)
        self.assertIn("exhausted", self.codes_of_events())

    def test_a_small_segment_does_not_wait_for_large_ones(self) -> None:
        with Ranks(self.service, 1, job="small") as small:
            self.assertEqual(self.run_greedy("large", LARGE_BYTES, LARGE_COUNT), "registering\n")
            begun = time.monotonic()
            small[0].call("tensor", name="w", count=1024)
            small_s = time.monotonic() - begun
            self.assertEqual(self.output.readline(), "registered\n")
            large_s = time.monotonic() - begun
        print(f"small {small_s:.3f} s beside large ones of {large_s:.3f} s")
        self.assertLess(small_s, 0.5 * large_s)


if __name__ == "__main__":
    run_tests()
