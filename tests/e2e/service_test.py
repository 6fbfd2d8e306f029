"""The service as its operator starts, restarts and ends it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from support.patience import SOON_S, until
from support.ranks import RankError, Ranks
from support.service import Service, build_directory


class StartAndStop(unittest.TestCase):
    def test_sigterm_ends_it_with_0_and_removes_its_files(self) -> None:
        with Service() as service:
            self.assertEqual(service.stop(), 0)
            self.assertEqual(os.listdir(service.directory), ["log"])

    def test_sigterm_finishes_what_is_posted_and_refuses_what_is_new(self) -> None:
        with Service("--drain-timeout-ms", "60000") as service, Ranks(service, 2) as ranks:
            ranks.each("tensor", name="w", count=1000)
            ranks.each("fill", name="w", value=3.0)
            ranks[0].call("post", kind="all_reduce", name="w")
            until(lambda: service.ctl_json("queue")["queue"], "an open operation")
            assert service.process is not None
            service.process.terminate()
            until(lambda: "drain" in service.ctl("status")[1], "it drains")
            ranks[0].call("post", kind="barrier", key="new")
            with self.assertRaises(RankError) as caught:
                ranks[0].call("wait", key="new")
            self.assertEqual(caught.exception.code, "unavailable")
            ranks[1].call("post", kind="all_reduce", name="w")
            for member in ranks.members:
                member.call("wait")
            self.assertEqual(ranks[0].call("values", name="w"), [6.0] * 4)
            self.assertEqual(service.process.wait(timeout=30), 0)

    def test_sigterm_ends_within_its_bound_when_ranks_do_not_come(self) -> None:
        with Service("--drain-timeout-ms", "300") as service, Ranks(service, 2) as ranks:
            ranks[0].call("post", kind="barrier")
            ranks[0].send("wait")
            until(lambda: service.ctl_json("queue")["queue"], "an open operation")
            begin = time.monotonic()
            self.assertEqual(service.stop(), 0, service.log())
            self.assertLess(time.monotonic() - begin, 0.3 + SOON_S)  # the operation's own bound is a minute
            with self.assertRaises(RankError) as caught:
                ranks[0].receive()
            self.assertEqual(caught.exception.code, "unavailable")

    def test_a_second_start_says_who_holds_the_socket(self) -> None:
        with Service() as service:
            second = subprocess.run(
                service.command(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                timeout=30,
            )  # fmt: skip
            self.assertEqual(second.returncode, 1)
            self.assertIn(str(service.pid), second.stderr)
            self.assertIn("headraced", second.stderr)
            self.assertEqual(service.ctl("status")[0], 0)

    def test_both_programs_tell_their_version_without_a_service(self) -> None:
        told = {}
        for program in ("headraced", "headracectl"):
            path = os.path.join(build_directory(), program)
            done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30)
            self.assertEqual((done.returncode, done.stderr), (0, ""), program)
            name, told[program] = done.stdout.split()[:2]
            self.assertEqual(name, program)
        self.assertRegex(told["headraced"], r"^\d+\.\d+\.\d+$")
        self.assertEqual(told["headraced"], told["headracectl"])

    def test_what_a_killed_service_left_is_taken_over(self) -> None:
        with Service() as service:
            service.kill()
            self.assertTrue(os.path.exists(service.socket))
            self.assertEqual(service.ctl("status")[0], 1)
            service.start()
            with Ranks(service, 2) as ranks:
                ranks.each("post", kind="barrier")
                ranks.each("wait")
            self.assertEqual(service.stop(), 0)

    @unittest.skipIf("HEADRACE_SERVICE_BUILD" in os.environ, "the thread sanitizer wakes a thread of its own")
    def test_an_idle_service_does_not_wake(self) -> None:
        with Service() as service, Ranks(service, 2) as ranks:
            ranks.each("post", kind="barrier")
            ranks.each("wait")
            before = service.idle_switches()
            time.sleep(2)
            self.assertEqual(service.switches(), before)


class Collectives(unittest.TestCase):
    """Real processes, real memory: what each kind leaves where."""

    WORLD = 4
    COUNT = 4 * 1000

    @classmethod
    def setUpClass(cls) -> None:
        cls.service = Service()
        cls.addClassCleanup(cls.service.close)
        cls.service.start()
        cls.ranks = Ranks(cls.service, cls.WORLD)
        cls.addClassCleanup(cls.ranks.__exit__)
        cls.ranks.each("tensor", name="w", count=cls.COUNT)

    def move(self, kind: str, **options: object) -> None:
        for member in self.ranks.members:
            member.call("fill", name="w", value=10.0 * (member.rank + 1))
        self.ranks.each("post", kind=kind, name="w", **options)
        self.ranks.each("wait")

    def part(self, rank: int, part: int) -> float:
        values = self.ranks[rank].call("values", name="w", count=self.COUNT)
        size = self.COUNT // self.WORLD
        own = set(values[part * size : (part + 1) * size])
        self.assertEqual(len(own), 1)
        return own.pop()

    def test_all_reduce(self) -> None:
        for op, expected in {"sum": 100, "average": 25, "min": 10, "max": 40}.items():
            self.move("all_reduce", op=op)
            for rank in range(self.WORLD):
                self.assertEqual({self.part(rank, part) for part in range(4)}, {expected})

    def test_broadcast(self) -> None:
        self.move("broadcast", root=2)
        for rank in range(self.WORLD):
            self.assertEqual(self.part(rank, 0), 30)

    def test_reduce_scatter(self) -> None:
        self.move("reduce_scatter")
        for rank in range(self.WORLD):
            expected = [10.0 * (rank + 1)] * self.WORLD
            expected[rank] = 100
            self.assertEqual([self.part(rank, part) for part in range(4)], expected)

    def test_all_gather(self) -> None:
        self.move("all_gather")
        for rank in range(self.WORLD):
            self.assertEqual([self.part(rank, part) for part in range(4)], [10, 20, 30, 40])

    def test_all_ranks_and_all_runs_get_the_same_bits(self) -> None:
        runs = []
        for _ in range(2):
            for member in self.ranks.members:
                member.call("noise", name="w", seed=member.rank)
            self.ranks.each("post", kind="all_reduce", name="w", op="average")
            self.ranks.each("wait")
            runs.append(self.ranks.each("digest", name="w"))
        self.assertEqual(len(set(runs[0])), 1)
        self.assertEqual(runs[0], runs[1])

    def test_many_operations_in_flight(self) -> None:
        for index in range(3000):  # nearly three times round the ring
            for member in self.ranks.members:
                member.send("post", kind="barrier", key=str(index % 7))
            for member in self.ranks.members:
                member.receive()
        self.ranks.each("wait", key="0")


if __name__ == "__main__":
    unittest.main()
