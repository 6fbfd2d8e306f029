"""When things go wrong: each ends in a named error within a second (support/patience.py), and everyone else goes on."""

from __future__ import annotations

import os
import struct
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from support.patience import SOON_S, await_equal
from support.ranks import Rank, RankError, Ranks
from support.service import Service

TIMEOUT_S = 2.0  # of operations that are to pass it
# Of operations during which the service stands still for a little longer. Clients give it up when it has not answered
# for a quarter more.
OUTLIVED_S = 8.0
RECORDS_AT = 53248  # offset of the ring in a channel; ipc/PROTOCOL.md
RECORD_SIZE = 64
COMMIT_AT = 56


def record(sequence: int, **fields: int) -> str:
    """A record as hex; by default an all_reduce of 4 float32 of segment 0."""
    values = {
        "kind": 1, "dtype": 1, "reduction": 1, "flags": 0, "tensor": 0xFFFFFFFF, "segment": 0,
        "root": 0, "offset": 0, "count": 4, "timeout_ms": 0,
    } | fields  # fmt: skip
    return struct.pack(
        "<4B3I2Q2I3Q", values["kind"], values["dtype"], values["reduction"], values["flags"],
        values["tensor"], values["segment"], values["root"], values["offset"], values["count"],
        values["timeout_ms"], 0, 0, 0, sequence,
    ).hex()  # fmt: skip


class ServiceCase(unittest.TestCase):
    """One service for the class; every test ends with proof that it still serves."""

    flags: tuple[str, ...] = ()

    @classmethod
    def setUpClass(cls) -> None:
        cls.service = Service(*cls.flags)
        cls.addClassCleanup(cls.service.close)
        cls.service.start()

    def ranks(self, world: int, job: str | None = None, **options: object) -> Ranks:
        ranks = Ranks(self.service, world, job=job or self.id().split(".")[-1][:60], **options)
        self.addCleanup(ranks.__exit__)
        return ranks

    def expect(self, rank: Rank, code: str, *words: str) -> None:
        """The rank's answer to a wait is this error, naming all the words, and came soon."""
        with self.assertRaises(RankError) as caught:
            rank.receive()
        self.assertEqual(caught.exception.code, code, str(caught.exception))
        for word in words:
            self.assertIn(word, str(caught.exception))

    def assert_serves(self) -> None:
        with Ranks(self.service, 2, job=f"after-{time.monotonic_ns()}") as after:
            after.each("tensor", name="w", count=100)
            after.each("fill", name="w", value=2.0)
            after.each("post", kind="all_reduce", name="w")
            after.each("wait")
            self.assertEqual(after[0].call("values", name="w"), [4.0] * 4)

    def assert_nothing_left(self) -> None:
        await_equal(self.service.mappings, [])
        await_equal(lambda: self.service.ctl_json("queue")["queue"], [])


class RankDeath(ServiceCase):
    def check_death(self, after_end: bool) -> None:
        ranks = self.ranks(3)
        bystanders = self.ranks(2, job="bystander-" + self.id().split(".")[-1][:40])
        for group in (ranks, bystanders):
            group.each("tensor", name="w", count=1 << 16)
        victim = ranks[2]
        survivors = ranks.members[:2]
        if after_end:
            ranks.each("post", kind="all_reduce", name="w")
            ranks.each("wait")
        for survivor in survivors:
            survivor.call("post", kind="all_reduce", name="w")
        for survivor in survivors:
            survivor.send("wait")
        begin = time.monotonic()
        victim.kill()
        for survivor in survivors:
            self.expect(survivor, "peer lost", "rank 2", f"pid {victim.pid}")
        self.assertLess(time.monotonic() - begin, SOON_S)
        # Later posts of the same job learn the same cause; the other job does not notice.
        survivors[0].call("post", kind="barrier")
        survivors[0].send("wait")
        self.expect(survivors[0], "peer lost", f"pid {victim.pid}")
        bystanders.each("post", kind="all_reduce", name="w")
        bystanders.each("wait")

    def test_before_it_posts(self) -> None:
        self.check_death(after_end=False)

    def test_after_an_operation_ended(self) -> None:
        self.check_death(after_end=True)

    def test_while_its_operation_moves(self) -> None:
        ranks = self.ranks(2)
        names = ("0", "1", "2")
        for name in names:
            ranks.each("tensor", name=name, count=16 << 20)  # 64 MiB, some tens of milliseconds
        for name in names:
            ranks[0].call("post", kind="all_reduce", name=name, key=name)
        for name in names:
            ranks[1].send("post", kind="all_reduce", name=name, key=name)
        ranks[0].send("wait", key="2")
        begin = time.monotonic()
        ranks[1].kill()
        try:
            ranks[0].receive()  # all three had been moved before the kernel ended it
        except RankError as error:
            self.assertEqual(error.code, "peer lost")
            self.assertIn("rank 1", str(error))
        self.assertLess(time.monotonic() - begin, SOON_S)

    def tearDown(self) -> None:
        self.doCleanups()
        self.assert_serves()
        self.assert_nothing_left()


class Misuse(ServiceCase):
    def tearDown(self) -> None:
        self.doCleanups()
        self.assert_serves()
        self.assert_nothing_left()

    def test_a_rank_connects_twice(self) -> None:
        ranks = self.ranks(2, job="twice")
        with self.assertRaises(RankError) as caught:
            Rank(self.service, 1, 2, job="twice")
        self.assertEqual(caught.exception.code, "already exists")
        self.assertIn(str(ranks[1].pid), str(caught.exception))
        ranks.each("post", kind="barrier")
        ranks.each("wait")

    def test_world_sizes_differ(self) -> None:
        ranks = self.ranks(2, job="worlds")
        with self.assertRaises(RankError) as caught:
            Rank(self.service, 2, 3, job="worlds")
        self.assertIn("3", str(caught.exception))
        self.assertIn("2", str(caught.exception))
        ranks.each("post", kind="barrier")
        ranks.each("wait")

    @unittest.skipUnless(os.getuid() == 0, "needs root, to be two users")
    def test_a_job_of_another_uid(self) -> None:
        os.chmod(self.service.directory, 0o755)
        ranks = self.ranks(2, job="owned")
        stranger = Rank(self.service, 1, 2, job="owned", user="nobody")
        self.addCleanup(stranger.close)
        stranger.call("post", kind="barrier")
        ranks.each("post", kind="barrier")
        ranks.each("wait")

        def owners() -> list[tuple[int, int]]:
            jobs = self.service.ctl_json("jobs", "owned")["jobs"]
            return sorted((job["owner_uid"], job["ranks_attached"]) for job in jobs)

        await_equal(owners, [(0, 2), (65534, 1)])
        stranger.kill()
        ranks.each("post", kind="barrier")
        ranks.each("wait")

    def check_mismatch(self, posts: list[dict], *words: str) -> None:
        ranks = self.ranks(2)
        ranks.each("tensor", name="w", count=64)
        ranks.each("tensor", name="half", count=32)
        ranks.each("tensor", name="double", count=64, dtype="float64")
        for member, post in zip(ranks.members, posts, strict=True):
            member.call("post", **post)
            member.send("wait")
        for member in ranks.members:
            self.expect(member, "mismatch", "rank 0", "rank 1", *words)
        # Only that operation ended.
        ranks.each("post", kind="all_reduce", name="w")
        ranks.each("wait")

    def test_kinds_differ(self) -> None:
        self.check_mismatch(
            [{"kind": "all_reduce", "name": "w"}, {"kind": "broadcast", "name": "w"}],
            "all_reduce", "broadcast",
        )  # fmt: skip

    def test_sizes_differ(self) -> None:
        self.check_mismatch(
            [{"kind": "all_reduce", "name": "w"}, {"kind": "all_reduce", "name": "half"}],
            "64", "32",
        )  # fmt: skip

    def test_dtypes_differ(self) -> None:
        self.check_mismatch(
            [{"kind": "all_reduce", "name": "w"}, {"kind": "all_reduce", "name": "double"}],
            "float32", "float64",
        )  # fmt: skip

    def test_an_operation_past_its_timeout(self) -> None:
        ranks = self.ranks(3, timeout=TIMEOUT_S)
        ranks.each("tensor", name="weight", count=64)
        begin = time.monotonic()
        for member in ranks.members[:2]:
            member.call("post", kind="all_reduce", name="weight")
            member.send("wait")
        for member in ranks.members[:2]:
            self.expect(member, "timeout", "rank 2", f"pid {ranks[2].pid}", "weight")
        took = time.monotonic() - begin
        self.assertGreaterEqual(took, TIMEOUT_S)
        self.assertLess(took, TIMEOUT_S + SOON_S)  # and not after the minute that operations have by default
        # The latecomer learns it too, and then all are in step again.
        ranks[2].call("post", kind="all_reduce", name="weight")
        ranks[2].send("wait")
        self.expect(ranks[2], "timeout", "rank 2")
        ranks.each("post", kind="all_reduce", name="weight")
        ranks.each("wait")

    def check_bad_record(self, words: list[str], **fields: int) -> None:
        ranks = self.ranks(2)
        ranks.each("tensor", name="w", count=64)
        ranks[0].call("post", kind="all_reduce", name="w")
        ranks[0].send("wait")
        ranks[1].call("scribble", offset=RECORDS_AT + RECORD_SIZE, data=record(1, **fields))
        ranks[1].call("ring")
        self.expect(ranks[0], "invalid argument", "rank 1", *words)

    def test_a_tensor_id_unknown(self) -> None:
        ranks = self.ranks(2)
        ranks.each("tensor", name="w", count=64)
        ranks[0].call("post", kind="all_reduce", name="w")
        ranks[0].send("wait")
        ranks[1].call(
            "scribble", offset=RECORDS_AT + RECORD_SIZE, data=record(1, tensor=12345)
        )
        ranks[1].call("ring")
        self.expect(ranks[0], "not found", "rank 1", "tensor 12345")

    def test_a_range_out_of_bounds(self) -> None:
        self.check_bad_record(["beyond the end"], count=1 << 40)

    def test_an_offset_out_of_bounds(self) -> None:
        self.check_bad_record(["beyond the end"], offset=1 << 62, count=1)

    def test_a_kind_nobody_knows(self) -> None:
        self.check_bad_record(["kind", "77"], kind=77)

    def test_a_ring_full_of_garbage(self) -> None:
        ranks = self.ranks(2)
        ranks.each("tensor", name="w", count=64)
        ranks[0].call("post", kind="all_reduce", name="w")
        ranks[0].send("wait")
        begin = time.monotonic()
        garbage = bytes(range(1, 256)) * 257
        ranks[1].call("scribble", offset=RECORDS_AT, data=garbage[: 1024 * 64].hex())
        ranks[1].call("ring")
        self.expect(ranks[0], "corrupt", "rank 1", f"pid {ranks[1].pid}")
        self.assertLess(time.monotonic() - begin, SOON_S)


class ServiceDeath(unittest.TestCase):
    def test_a_service_that_is_absent(self) -> None:
        with Service() as service:
            service.kill()
            rank = Rank(service, 0, 1, attach=False)
            self.addCleanup(rank.close)
            rank.call("held")  # its Python has started
            begin = time.monotonic()
            with self.assertRaises(RankError) as caught:
                rank.attach()
            self.assertEqual(caught.exception.code, "unavailable")
            self.assertIn(service.socket, str(caught.exception))
            self.assertLess(time.monotonic() - begin, SOON_S)

    def test_a_service_killed_while_ranks_wait(self) -> None:
        with Service() as service, Ranks(service, 3) as ranks:
            ranks.each("tensor", name="w", count=64)
            for member in ranks.members[:2]:
                member.call("post", kind="all_reduce", name="w")
                member.send("wait")
            begin = time.monotonic()
            pid = service.pid
            service.kill()
            for member in ranks.members[:2]:
                with self.assertRaises(RankError) as caught:
                    member.receive()
                self.assertEqual(caught.exception.code, "unavailable")
                self.assertIn(str(pid), str(caught.exception))
            self.assertLess(time.monotonic() - begin, SOON_S)
            # Each process hears of it by itself: until then a post is taken, but not very many are.
            with self.assertRaises(RankError) as caught:
                while time.monotonic() - begin < 2 * SOON_S:
                    ranks[2].call("post", kind="all_reduce", name="w")
                    time.sleep(0.02)
            self.assertEqual(caught.exception.code, "unavailable")

    def test_a_stopped_service_still_answers_the_operator(self) -> None:
        with Service() as service, Ranks(service, 3) as ranks:
            ranks.each("tensor", name="conv1.weight", count=64)
            for member in ranks.members[:2]:
                member.call("post", kind="all_reduce", name="conv1.weight")
            await_equal(lambda: [row["ranks_missing"] for row in service.ctl_json("queue")["queue"]], [[2]])
            service.suspend()
            try:
                code, text = service.ctl("queue")
                self.assertEqual(code, 1, text)  # a stopped service is a finding
                self.assertRegex(text, r"rank 2 of job \S+ ")
                self.assertIn("conv1.weight", text)
                code, text = service.ctl("status")
                self.assertEqual(code, 1, text)  # a stopped service is a finding
                self.assertIn("stopped", text)
            finally:
                service.resume()
            ranks[2].call("post", kind="all_reduce", name="conv1.weight")
            for member in ranks.members:
                member.call("wait")

    def test_operations_outlive_a_stop_that_is_longer_than_their_timeout(self) -> None:
        names = [f"w{index}" for index in range(100)]  # more than the service reads in one turn
        timeout_ms = str(int(1000 * OUTLIVED_S))
        with Service("--operation-timeout-ms", timeout_ms) as service, Ranks(service, 2) as ranks:
            for name in names:
                ranks.each("tensor", name=name, count=16)
            self.post_all(ranks[0], names)
            # What it has not read before the stop has all its time afterwards, whatever the stop was.
            await_equal(lambda: len(service.ctl_json("queue")["queue"]), len(names))
            service.suspend()
            try:
                time.sleep(OUTLIVED_S + 0.4)
                self.post_all(ranks[1], names)
            finally:
                service.resume()
            for name in names:
                ranks.each("wait", key=name)
            service.await_event("the service stood still for")
            # Others expire as ever.
            ranks[0].call("post", kind="all_reduce", name="w0")
            ranks[0].send("wait")
            with self.assertRaises(RankError) as caught:
                ranks[0].receive()
            self.assertEqual(caught.exception.code, "timeout")

    def post_all(self, rank: Rank, names: list[str]) -> None:
        """One operation for each name; they are on their way together."""
        for name in names:
            rank.send("post", kind="all_reduce", name=name, key=name)
        for _ in names:
            rank.receive()


if __name__ == "__main__":
    unittest.main()
