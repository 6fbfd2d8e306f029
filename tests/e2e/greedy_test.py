"""A user who takes what he can get of a service: others register, attach and find room beside him."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from support.patience import until
from support.ranks import Rank, Ranks
from support.service import Service, build_directory
from support.unittests import run_tests

GREEDY_UID = 65534
OTHER_UID = 65533
SPARSE_BYTES = 2 << 30
MEMORY_BYTES = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE")
LARGE_RANKS = 8
# All of them together a quarter of the machine's memory.
LARGE_BYTES = min(12 << 30, MEMORY_BYTES // 4 // LARGE_RANKS)
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
        line = process.stdout.readline()
        self.assertNotEqual(line, "", "the hostile client ended")
        return line

    def resident_bytes(self) -> int:
        with open(f"/proc/{self.service.pid}/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.service.pid}/fd"))

    def test_memory_that_its_owner_has_not_is_not_the_services(self) -> None:
        before = self.resident_bytes()
        answer = self.run_greedy("sparse", SPARSE_BYTES)
        self.assertIn("invalid argument", answer)
        self.assertIn("fallocate", answer)
        self.assertLess(self.resident_bytes() - before, 32 << 20)
        with Ranks(self.service, 1, job="honest") as ranks:
            ranks[0].call("tensor", name="w", count=1024)

    def test_memory_beyond_a_users_share_is_refused_by_default(self) -> None:
        answer = self.run_greedy("sparse", MEMORY_BYTES - MEMORY_BYTES // 8 & ~4095)
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
        self.service.await_event("", code="exhausted")
        Rank(self.service, 0, 1, job="honest").close()

    def test_unfinished_messages_hold_few_descriptors_and_not_for_long(self) -> None:
        before = self.descriptors()
        self.run_greedy("descriptors", 20)
        until(lambda: 20 <= self.descriptors() - before <= 20 * 3, "they are kept")
        Rank(self.service, 0, 1, job="honest").close()
        until(lambda: self.descriptors() <= before, "they are cut")
        self.service.await_event("", code="exhausted")

    def memory_of(self, uid: int) -> int:
        """Bytes that the user's ranks have handed over, or are handing over."""
        users = self.service.ctl_json("users")["users"]
        return sum(user["memory_bytes"] for user in users if user["uid"] == uid)

    def test_eight_ranks_register_their_memory_at_once_and_a_small_one_does_not_wait(self) -> None:
        """As a model's gradients on a node of eight GPUs, all of it populated."""
        # They use a service with the default quotas, as another user than root.
        large = Ranks(self.service, LARGE_RANKS, job="large", user=pwd.getpwuid(GREEDY_UID).pw_name)
        self.addCleanup(large.__exit__)
        small = Rank(self.service, 0, 1, job="small")
        self.addCleanup(small.close)
        begun = time.monotonic()
        for member in large.members:
            member.send("tensor", name="w", count=LARGE_BYTES // 8 - 1024, dtype="float64")
        until(lambda: self.memory_of(GREEDY_UID) >= LARGE_BYTES // 2, "one is being registered")
        small_begun = time.monotonic()
        small.call("tensor", name="w", count=1024)
        small_s = time.monotonic() - small_begun
        for member in large.members:
            member.receive()
        large_s = time.monotonic() - begun
        print(
            f"{LARGE_RANKS} ranks register {LARGE_BYTES >> 20} MiB each in {large_s:.3f} s; "
            f"a small segment beside them takes {small_s:.3f} s",
            file=sys.stderr,
        )
        least = LARGE_RANKS * (LARGE_BYTES - 65536)
        until(lambda: self.memory_of(GREEDY_UID) >= least, "all is registered")
        self.assertLess(small_s, 0.5 * large_s)
        # It is the memory that they write to, up to its end.
        for member in large.members:
            member.call("set_last", name="w", value=member.rank + 1.0)
        large.each("post", kind="all_reduce", name="w")
        large.each("wait")
        last = large.each("last", name="w")
        self.assertEqual(last, [sum(range(LARGE_RANKS + 1))] * LARGE_RANKS)


if __name__ == "__main__":
    run_tests()
