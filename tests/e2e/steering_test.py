"""People steer running jobs, on one node and on two; quotas hold for every uid."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from support.cluster import Cluster, Services
from support.directory import OwnDirectory
from support.patience import await_equal
from support.places import HERE, Program
from support.ranks import Rank, RankError, Ranks
from support.service import Service, build_directory
from support.unittests import run_tests

TIMEOUT_S = 3.0  # of operations in the jobs that are paused
LATE_MS = 200  # until people are told whom everybody waits for
PAUSE_S = 4.0  # longer than that
PATIENCE_S = 60.0
AS_ROOT = unittest.skipUnless(os.getuid() == 0, "needs root, to be two users")


class SteeringCase(unittest.TestCase):
    """What the tests on one node and on two have in common."""

    def steer(self, service: Service, *command: str) -> None:
        code, text = service.ctl(*command)
        self.assertEqual(code, 0, text)

    def row(self, service: Service, job: str) -> dict:
        """The job's row of `headracectl jobs`."""
        rows = service.ctl_json("jobs")["jobs"]
        return next(row for row in rows if row["name"] == job)

    def await_row(self, service: Service, job: str, **wanted: object) -> None:
        """Waits until the job's row has all of these values."""
        deadline = time.monotonic() + PATIENCE_S
        while any(self.row(service, job)[key] != value for key, value in wanted.items()):
            if time.monotonic() > deadline:
                self.fail(f"{wanted} did not come about: {self.row(service, job)}")
            time.sleep(0.02)

    def await_event(self, service: Service, text: str) -> None:
        service.await_log(re.escape(text))

    def add_up(self, ranks: Ranks) -> None:
        """One sum over all ranks comes out right."""
        ranks.each("fill", name="w", value=2.0)
        ranks.each("post", kind="all_reduce", name="w")
        ranks.each("wait")
        self.assertEqual(ranks[0].call("values", name="w"), [2.0 * len(ranks)] * 4)

    def expect(self, rank: Rank, *words: str, code: str = "cancelled") -> None:
        """The rank's answer is this error, naming all the words."""
        with self.assertRaises(RankError) as caught:
            rank.receive()
        self.assertEqual(caught.exception.code, code, str(caught.exception))
        for word in words:
            self.assertIn(word, str(caught.exception))

    def expect_all(self, ranks: Ranks, *words: str) -> None:
        """An operation of every rank ends with that error, whether it can be posted or not."""
        for rank in ranks.members:
            try:
                rank.call("post", kind="all_reduce", name="w")
            except RankError as error:
                self.assertEqual(error.code, "cancelled", str(error))
                for word in words:
                    self.assertIn(word, str(error))
                continue
            rank.send("wait")
            self.expect(rank, *words)

    def check_pause(self, ranks: Ranks, job: str, pausing: Service, resuming: Service) -> None:
        """A pause that is longer than operations may take harms none of them."""
        self.add_up(ranks)
        self.steer(pausing, "pause", job)
        for service in (pausing, resuming):
            self.await_row(service, job, paused=True)
        ranks.each("fill", name="w", value=3.0)
        ranks.each("post", kind="all_reduce", name="w")
        time.sleep(PAUSE_S)
        self.assertEqual(ranks.each("done"), [False] * len(ranks))
        reasons = [row["why"] for row in pausing.ctl_json("queue")["queue"] if row["job"] == job]
        self.assertTrue(any("paused" in reason for reason in reasons), reasons)
        self.steer(resuming, "resume", job)
        ranks.each("wait")
        self.assertEqual(ranks[0].call("values", name="w"), [3.0 * len(ranks)] * 4)
        self.add_up(ranks)

    def check_numbers(self, job: str, asking: Service, *showing: Service) -> None:
        """What is asked for stands on every board."""
        self.steer(asking, "weight", job, "3")
        self.steer(asking, "priority", job, "2")
        self.steer(asking, "limit", job, "8Gbit")
        self.steer(asking, "sends", job, "--class", "same")
        sends = {"class": "same", "sent": 0, "received": 0, "bytes": 0, "waiting": 0}
        for service in showing:
            self.await_row(
                service, job, weight=3, priority=2, limit_bytes_per_s=1_000_000_000, sends=sends
            )


class OnOneNode(SteeringCase):
    """A service and jobs on it."""

    @classmethod
    def setUpClass(cls) -> None:
        cls.service = Service()
        cls.addClassCleanup(cls.service.close)
        cls.service.start()
        os.chmod(cls.service.directory, 0o755)

    def job(self, name: str, world: int = 2, **options: object) -> Ranks:
        ranks = Ranks(self.service, world, job=name, **options)
        self.addCleanup(ranks.__exit__)
        ranks.each("tensor", name="w", count=4096)
        return ranks

    def test_a_pause_is_not_held_against_anybody(self) -> None:
        self.check_pause(self.job("paused", timeout=TIMEOUT_S), "paused", self.service, self.service)

    def test_weight_priority_and_limit_stand_on_the_board(self) -> None:
        ranks = self.job("numbers")
        self.check_numbers("numbers", self.service, self.service)
        self.add_up(ranks)
        self.await_event(self.service, f"job numbers: uid {os.getuid()} asks for weight 3")

    def test_a_cancelled_job_ends_with_an_error_that_says_so(self) -> None:
        ranks = self.job("cancelled")
        ranks[0].call("post", kind="all_reduce", name="w")
        ranks[0].send("wait")
        self.steer(self.service, "cancel", "cancelled", "--yes")
        cause = f"cancelled by uid {os.getuid()}"
        self.expect(ranks[0], cause)
        self.expect_all(ranks, cause)

    def test_a_drained_job_ends_after_what_is_posted(self) -> None:
        ranks = self.job("drained")
        self.add_up(ranks)
        self.steer(self.service, "drain", "drained")
        self.expect_all(ranks, "drained", f"uid {os.getuid()}")

    def test_what_cannot_be_meant_is_refused_by_name(self) -> None:
        self.job("refused")
        for command, text, expected in (
            (["weight", "refused", "1001"], "1 to 1000", 2),
            (["priority", "refused", "16"], "0 to 15", 2),
            (["pause", "nowhere"], "no job nowhere has ranks on this node", 1),
        ):
            code, said = self.service.ctl(*command)
            self.assertEqual(code, expected, said)
            self.assertIn(text, said)

    @AS_ROOT
    def test_the_job_of_another_uid_is_left_alone(self) -> None:
        ranks = self.job("owned")
        program = os.path.join(build_directory(), "headracectl")
        with self.service.place.start(
            [program, "--socket", self.service.socket, "pause", "owned"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            user="nobody",
        ) as process:
            said = process.communicate(timeout=60)[0]
        self.assertEqual(process.returncode, 1, said)
        for value in ("job owned", "uid 0"):
            self.assertIn(value, said)
        self.await_event(self.service, "job owned: refused uid")
        self.assertFalse(self.row(self.service, "owned")["paused"])
        self.add_up(ranks)


class AsUser:
    """Where programs run: here, as another user."""

    def __init__(self, user: str) -> None:
        self.user = user

    def start(self, command: list[str], **options: object) -> Program:
        options.setdefault("user", self.user)
        return HERE.start(command, **options)


@AS_ROOT
class OfUsersWithoutRights(SteeringCase):
    """The service is nobody's, the job daemon's: root's rights play no part."""

    @classmethod
    def setUpClass(cls) -> None:
        own = OwnDirectory("headrace-test-")
        cls.addClassCleanup(own.close)
        shutil.chown(own.path, user="nobody")
        os.chmod(own.path, 0o755)
        cls.service = Service(directory=own.path, place=AsUser("nobody"))
        cls.addClassCleanup(cls.service.close)
        cls.service.start()

    def steer_as(self, user: str, *command: str) -> tuple[int, str]:
        program = os.path.join(build_directory(), "headracectl")
        with HERE.start(
            [program, "--socket", self.service.socket, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            user=user,
        ) as process:
            said = process.communicate(timeout=60)[0]
        return process.returncode, said

    def test_owner_service_and_root_steer_and_nobody_else(self) -> None:
        with Ranks(self.service, 2, job="owned", user="daemon") as ranks:
            ranks.each("tensor", name="w", count=4096)
            for limit, user in enumerate(("daemon", "nobody", "root"), start=2):
                code, said = self.steer_as(user, "limit", "owned", f"{limit}Gbit")
                self.assertEqual(code, 0, f"{user}: {said}")
                self.add_up(ranks)
                self.await_row(self.service, "owned", limit_bytes_per_s=limit * 125_000_000)
            code, said = self.steer_as("bin", "limit", "owned", "9Gbit")
            self.assertEqual(code, 1, said)
            self.assertIn(f"uid {pwd.getpwnam('bin').pw_uid}", said)
            self.add_up(ranks)
            self.assertEqual(self.row(self.service, "owned")["limit_bytes_per_s"], 500_000_000)

    def test_an_owner_does_not_put_a_job_before_those_of_others(self) -> None:
        with Ranks(self.service, 2, job="greedy", user="daemon") as ranks:
            ranks.each("tensor", name="w", count=4096)
            for setting in (("weight", "greedy", "2"), ("priority", "greedy", "1")):
                code, said = self.steer_as("daemon", *setting)
                self.assertEqual(code, 1, said)
                self.assertIn(f"uid {pwd.getpwnam('daemon').pw_uid}", said)
                self.assertIn("root", said)
            for user in ("nobody", "root"):
                code, said = self.steer_as(user, "priority", "greedy", "3")
                self.assertEqual(code, 0, said)
            self.add_up(ranks)
            self.await_row(self.service, "greedy", weight=1, priority=3)
            # Down again it may, by itself.
            code, said = self.steer_as("daemon", "priority", "greedy", "0")
            self.assertEqual(code, 0, said)
            self.add_up(ranks)
            self.await_row(self.service, "greedy", priority=0)


class OnTwoNodes(SteeringCase):
    """Two nodes without links of their own, so that it runs without root."""

    @classmethod
    def setUpClass(cls) -> None:
        cls.cluster = Cluster(nodes=2, loopback=True)
        cls.addClassCleanup(cls.cluster.close)
        cls.services = Services(cls.cluster, "--late-ms", str(LATE_MS))

    def job(self, name: str, counts: tuple[int, int] = (1, 1), **options: object) -> Ranks:
        ranks = self.services.ranks(counts, job=name, **options)
        self.addCleanup(ranks.__exit__)
        ranks.each("tensor", name="w", count=4096)
        return ranks

    def test_a_pause_on_one_node_holds_on_both(self) -> None:
        ranks = self.job("paused", timeout=TIMEOUT_S)
        self.check_pause(ranks, "paused", self.services[1], self.services[0])

    def test_weight_priority_and_limit_stand_on_both_boards(self) -> None:
        ranks = self.job("numbers")
        self.add_up(ranks)
        self.check_numbers("numbers", self.services[1], self.services[0], self.services[1])
        self.add_up(ranks)

    def test_a_job_cancelled_on_one_node_ends_on_both(self) -> None:
        ranks = self.job("cancelled")
        self.add_up(ranks)
        ranks[0].call("post", kind="all_reduce", name="w")
        ranks[0].send("wait")
        self.steer(self.services[1], "cancel", "cancelled", "--yes")
        cause = f"cancelled by uid {os.getuid()} on node"
        self.expect(ranks[0], cause)
        # What node a sent before it heard is enough for node b to end a sum well, until b has heard.
        for service in (self.services[0], self.services[1]):
            self.await_row(service, "cancelled", state="failed")
        self.expect_all(ranks, cause)

    def test_a_job_whose_nodes_have_not_met_can_be_cancelled(self) -> None:
        ranks = self.job("forming", world=3)
        ranks.each("post", kind="all_reduce", name="w")
        for rank in ranks.members:
            rank.send("wait")
        self.steer(self.services[1], "cancel", "forming", "--yes")
        for rank in ranks.members:
            self.expect(rank, f"cancelled by uid {os.getuid()}")

    def test_a_drained_job_ends_on_both_nodes(self) -> None:
        ranks = self.job("emptied")
        self.add_up(ranks)
        self.steer(self.services[0], "drain", "emptied")
        # What is posted before a node has heard of it waits for the other rank's.
        for node in (0, 1):
            self.await_row(self.services[node], "emptied", state="failed")
        self.expect_all(ranks, "drained")

    def test_every_node_names_the_rank_that_all_wait_for(self) -> None:
        ranks = self.job("late", (1, 2))
        self.add_up(ranks)
        for rank in ranks.members[:2]:
            rank.call("post", kind="all_reduce", name="w")
        name = self.cluster[1].name
        self.await_event(self.services[1], "job late: rank 2")
        self.await_event(self.services[0], f"job late: reported by node {name}: rank 2")


class Quotas(SteeringCase):
    """What a uid may have; root is one like the others."""

    def start(self, *flags: str) -> Service:
        service = Service(*flags)
        self.addCleanup(service.close)
        service.start()
        os.chmod(service.directory, 0o755)
        return service

    def test_a_session_too_many_is_refused_until_one_ends(self) -> None:
        service = self.start("--sessions-per-uid", "2")
        with Ranks(service, 2, job="full"):
            with self.assertRaises(RankError) as caught:
                Rank(service, 0, 1, job="more")
            self.assertEqual(caught.exception.code, "exhausted", str(caught.exception))
            uid = os.getuid()
            self.assertIn(f"uid {uid} has 2 sessions", str(caught.exception))
            self.assertIn("sessions_per_uid", str(caught.exception))
            if uid == 0:
                Rank(service, 0, 1, job="other", user="nobody").close()
        # What counts is what the user holds, which is a little longer than the job is shown.
        await_equal(lambda: sum(user["sessions"] for user in service.ctl_json("users")["users"]), 0)
        Rank(service, 0, 1, job="next").close()

    def test_memory_beyond_the_quota_is_refused(self) -> None:
        service = self.start("--memory-per-uid", str(4 << 20))
        with Ranks(service, 1, job="full") as ranks:
            ranks[0].call("tensor", name="w", count=1024)
            with self.assertRaises(RankError) as caught:
                ranks[0].call("tensor", name="large", count=1 << 20)
            self.assertEqual(caught.exception.code, "exhausted", str(caught.exception))
            self.assertIn("memory_per_uid", str(caught.exception))
            ranks[0].call("tensor", name="v", count=1024)


if __name__ == "__main__":
    run_tests()
