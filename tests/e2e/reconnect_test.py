"""A service goes away under its clients and comes again: killed, drained, or on one of two nodes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import unittest
from collections.abc import Sequence

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from gpu_machine import DOUBLE, NCCL, lanes, machine
from support.cluster import Cluster, Services
from support.patience import await_equal, until
from support.ranks import Rank, RankError, Ranks
from support.service import Service, rank_environment

COUNT = 4096
LIMIT_S = 60.0  # of a reconnect that is to succeed, on a machine that is busy
ROUNDS = 20
GROWTH_MAX_KIB = int(os.environ.get("HEADRACE_TEST_GROWTH_KIB", str(16 << 10)))
TRAINER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "reconnect_train.py")
LOST = ("unavailable", "peer lost")
AS_ROOT = unittest.skipUnless(os.getuid() == 0, "needs root, to be two users")
NOBODY = 65534


class ReconnectCase(unittest.TestCase):
    def require_sums(self, ranks: Ranks, step: float) -> None:
        """The tensor that was there from the beginning is summed over all ranks."""
        for member in ranks.members:
            member.call("fill", name="w", value=member.rank + step)
        ranks.each("post", kind="all_reduce", name="w")
        ranks.each("wait")
        world = len(ranks)
        wanted = sum(range(world)) + world * step
        self.assertEqual(ranks.each("values", name="w"), [[wanted] * 4] * world)

    def require_error(self, member: Rank, codes: tuple[str, ...], *words: str) -> None:
        """The answer to the last command is an error of these codes that names the words."""
        with self.assertRaises(RankError) as caught:
            member.receive()
        text = str(caught.exception)
        self.assertIn(caught.exception.code, codes, text)
        for word in words:
            self.assertIn(word, text)

    def require_lost(self, ranks: Ranks) -> None:
        """What each rank posts, now or before, ends with a named error."""
        for member in ranks.members:
            try:
                member.call("post", kind="all_reduce", name="w")
            except RankError as error:
                self.assertIn(error.code, LOST, str(error))
                continue
            member.send("wait")
            self.require_error(member, LOST)


class OneNode(ReconnectCase):
    def setUp(self) -> None:
        self.service = Service()
        self.addCleanup(self.service.close)
        self.service.start()

    def ranks(self, world: int = 2, job: str = "again", **options: object) -> Ranks:
        ranks = Ranks(self.service, world, job=job, **options)
        self.addCleanup(ranks.__exit__)
        ranks.each("tensor", name="w", count=COUNT)
        return ranks

    def epochs(self) -> list[int]:
        jobs = self.service.ctl_json("jobs")["jobs"]
        # People are shown how often it came back.
        self.assertEqual([job["restarts"] for job in jobs], [job["epoch"] - 1 for job in jobs])
        return [job["epoch"] for job in jobs]

    def test_a_killed_service_is_come_back_to(self) -> None:
        ranks = self.ranks()
        self.require_sums(ranks, 1.0)
        ranks[0].call("post", kind="all_reduce", name="w", key="before")
        self.service.kill()
        ranks[0].send("wait", key="before")
        self.require_error(ranks[0], ("unavailable",), self.service.socket, "Session.reconnect()")
        for member in ranks.members:  # before there is a service to come to
            member.send("reconnect", timeout=LIMIT_S)
        self.service.start()
        self.assertEqual([member.receive() for member in ranks.members], [self.service.pid] * 2)
        self.require_sums(ranks, 2.0)
        self.assertEqual(self.epochs(), [2])
        ranks[0].send("wait", key="before")
        self.require_error(ranks[0], ("unavailable",), "went away")

    @AS_ROOT
    def test_another_user_who_takes_the_jobs_name_meanwhile_ends_nothing(self) -> None:
        os.chmod(self.service.directory, 0o755)
        ranks = self.ranks()
        self.require_sums(ranks, 1.0)
        self.service.kill()
        self.require_lost(ranks)
        self.service.start()
        squatter = Rank(self.service, 0, 1, job="again", user="nobody")
        self.addCleanup(squatter.close)
        ranks.each("reconnect", timeout=LIMIT_S)
        self.require_sums(ranks, 2.0)
        squatter.call("tensor", name="w", count=COUNT)
        squatter.call("post", kind="all_reduce", name="w")
        squatter.call("wait")
        jobs = self.service.ctl_json("jobs")["jobs"]
        self.assertEqual(
            sorted((job["name"], job["owner_uid"], job["epoch"]) for job in jobs),
            [("again", 0, 2), ("again", NOBODY, 1)],
        )
        # Whoever may change both says which is meant, and sees which is which.
        for command in (["pause", "again"], ["jobs", "again"], ["trace", "again", "-o", "-"]):
            code, said = self.service.ctl(*command)
            self.assertEqual(code, 1, said)
            self.assertIn("--uid", said)
            self.assertIn(str(NOBODY), said)
        code, said = self.service.ctl("pause", "again", "--uid", str(NOBODY))
        self.assertEqual(code, 0, said)
        self.require_sums(ranks, 3.0)
        ours = self.service.ctl_json("jobs", "--uid", "0")["jobs"]
        self.assertEqual([job["owner_uid"] for job in ours], [0])

    def test_a_drained_service_is_come_back_to(self) -> None:
        ranks = self.ranks()
        self.require_sums(ranks, 1.0)
        self.assertEqual(self.service.stop(), 0)
        ranks[0].send("post", kind="all_reduce", name="w")
        self.require_error(ranks[0], ("unavailable",), "is stopping, as it was asked to")
        self.require_lost(ranks)
        self.service.start()
        ranks.each("reconnect", timeout=LIMIT_S)
        self.require_sums(ranks, 2.0)

    def test_a_service_that_never_returns_is_named(self) -> None:
        ranks = self.ranks(world=1)
        self.service.kill()
        begin = time.monotonic()
        ranks[0].send("reconnect", timeout=1.0)
        self.require_error(
            ranks[0], ("timeout",), "rank 0 of job again", "1000 ms", self.service.socket, "start"
        )
        self.assertGreater(time.monotonic() - begin, 0.4, "it was not waited for")
        self.require_lost(ranks)
        self.service.start()
        ranks.each("reconnect", timeout=LIMIT_S)  # the session is not given up by that
        self.require_sums(ranks, 2.0)

    def test_a_rank_that_does_not_come_is_named(self) -> None:
        ranks = self.ranks()
        self.service.kill()
        self.service.start()
        ranks[0].send("reconnect", timeout=4.0)
        self.require_error(ranks[0], ("timeout",), "rank 1")
        ranks.each("reconnect", timeout=LIMIT_S)
        self.require_sums(ranks, 2.0)

    def test_closing_after_a_reconnect_that_failed_says_nothing_more(self) -> None:
        ranks = self.ranks()
        self.service.kill()
        self.service.start()
        ranks[0].send("reconnect", timeout=4.0)
        self.require_error(ranks[0], ("timeout",), "rank 1")
        ranks[0].call("leave")

    def test_ranks_that_go_on_are_no_job_with_ranks_that_begin(self) -> None:
        ranks = self.ranks()
        self.service.kill()
        self.service.start()
        fresh = Rank(self.service, 0, 2, job="again")
        self.addCleanup(fresh.close)
        ranks[1].send("reconnect", timeout=LIMIT_S)
        self.require_error(ranks[1], ("mismatch",), "rank 1", "goes on", "rank 0", "begins")

    def test_a_service_that_is_well_is_not_left(self) -> None:
        ranks = self.ranks()
        ranks[0].send("reconnect", timeout=LIMIT_S)
        self.require_error(ranks[0], ("invalid argument",), "nothing is lost")
        self.require_sums(ranks, 1.0)

    def test_nothing_grows_over_many_restarts(self) -> None:
        ranks = self.ranks()
        before: list[dict[str, int]] = []
        for step in range(ROUNDS):
            self.require_sums(ranks, float(step))
            ranks[step % 2].call("post", kind="all_reduce", name="w")
            self.service.kill()
            self.service.start()
            ranks.each("reconnect", timeout=LIMIT_S)
            if step == 0:
                time.sleep(1)  # what it had of the former service goes in its own time
                before = ranks.each("held")
        self.require_sums(ranks, 100.0)
        self.assertEqual(self.epochs(), [ROUNDS + 1])
        residents = [each.pop("resident_kib") for each in before]
        await_equal(lambda: [{**each, "resident_kib": 0} for each in ranks.each("held")],
                    [{**each, "resident_kib": 0} for each in before])  # fmt: skip
        for resident, now in zip(residents, ranks.each("held"), strict=True):
            self.assertLess(now["resident_kib"] - resident, GROWTH_MAX_KIB)


class OnGpus(ReconnectCase):
    """On the driver's double: memory of GPUs is handed in again, and streams go on."""

    def test_memory_of_gpus_is_handed_in_again(self) -> None:
        service = Service("--cuda-library", DOUBLE, environment=machine())
        self.addCleanup(service.close)
        service.start()
        ranks = Ranks(service, 2, job="again", environment=machine())
        self.addCleanup(ranks.__exit__)
        for member in ranks.members:
            member.call("tensor", name="w", count=COUNT, device=member.rank)
        for step in range(3):
            self.require_sums(ranks, float(step))
            ranks[0].call("post", kind="all_reduce", name="w", stream=0)
            service.kill()
            service.start()
            ranks.each("reconnect", timeout=LIMIT_S)
        for member in ranks.members:
            member.call("fill", name="w", value=member.rank + 5.0)
        ranks.each("post", kind="all_reduce", name="w", stream=0)
        ranks.each("wait")
        self.assertEqual(ranks.each("values", name="w"), [[11.0] * 4] * 2)


class Trainers:
    """The ranks of a torch run, one for each service; all are ended with the test."""

    def __init__(
        self,
        services: Sequence[Service],
        job: str,
        rendezvous: str,
        stops: Sequence[int],
        **environment: str,
    ) -> None:
        self.programs = [
            service.place.start(
                ["/usr/bin/python3", "-B", TRAINER, *map(str, stops)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=rank_environment(
                    service.socket, job, rendezvous, rank, len(services), LIMIT_S, **environment
                ),
            )
            for rank, service in enumerate(services)
        ]

    def close(self) -> None:
        for program in self.programs:
            program.end()
            program.stdin.close()
            program.stdout.close()

    def await_stop(self) -> str:
        """Until rank 0 stands at one; what it said."""
        return self.programs[0].stdout.readline().strip()

    def go_on(self) -> None:
        self.programs[0].stdin.write("\n")
        self.programs[0].stdin.flush()

    def ends(self) -> list[list[str]]:
        """The last lines that each rank printed."""
        said = [program.stdout.read().split("\n")[-3:-1] for program in self.programs]
        for program in self.programs:
            program.wait(timeout=LIMIT_S)
        return said


class TwoNodes(ReconnectCase):
    """The rank on the node whose service lives comes back, too: its job has failed."""

    def setUp(self) -> None:
        self.cluster = Cluster(nodes=2, loopback=True)
        self.addCleanup(self.cluster.close)
        self.services = Services(self.cluster, "--rails", "lo")

    def begin(self) -> None:
        self.members = self.services.ranks([1, 2], job="spread")
        self.addCleanup(self.members.__exit__)
        self.members.each("tensor", name="w", count=COUNT)

    def restart(self, node: int) -> None:
        self.require_sums(self.members, 1.0)
        living = self.services[1 - node].pid
        mapped = len(self.services[1 - node].mappings())
        self.services[node].kill()
        self.require_lost(self.members)
        for member in self.members.members:
            member.send("reconnect", timeout=LIMIT_S)
        self.services.start(node)
        pids = {member.receive() for member in self.members.members}
        self.assertEqual(pids, {self.services[node].pid, living})
        self.require_sums(self.members, 2.0)
        # What the service that lives had of the old sessions is gone.
        await_equal(lambda: len(self.services[1 - node].mappings()), mapped)
        for service in (self.services[0], self.services[1]):
            await_equal(lambda service=service: len(service.ctl_json("jobs")["jobs"]), 1)

    def test_the_job_goes_on_when_a_nodes_service_was_killed(self) -> None:
        self.begin()
        self.restart(1)
        epochs = [
            job["epoch"]
            for service in (self.services[0], self.services[1])
            for job in service.ctl_json("jobs")["jobs"]
        ]
        self.assertEqual(epochs, [2, 2])

    def test_the_job_goes_on_when_the_leaders_service_was_killed(self) -> None:
        self.begin()
        self.restart(0)
        self.restart(1)  # and once more, elsewhere

    def beside(self) -> Ranks:
        """A job that keeps the services' connection up while another one's ranks are away."""
        ranks = self.services.ranks([1, 1], job="beside")
        self.addCleanup(ranks.__exit__)
        ranks.each("tensor", name="w", count=COUNT)
        self.require_sums(ranks, 1.0)
        return ranks

    def kill_beside(self, first: int) -> None:
        """Both jobs lose the service of node b; the ranks of ``beside`` come back at once, then those
        of the other job, ``first`` of them before the rest."""
        beside = self.beside()
        self.begin()
        self.require_sums(self.members, 1.0)
        self.services[1].kill()
        self.require_lost(beside)
        self.require_lost(self.members)
        self.services.start(1)
        for member in beside.members:
            member.send("reconnect", timeout=LIMIT_S)
        for member in beside.members:
            member.receive()
        self.require_sums(beside, 2.0)
        order = [self.members[first], *(m for m in self.members.members if m.rank != first)]
        for member in order:
            member.send("reconnect", timeout=LIMIT_S)
            time.sleep(0.3)  # so that they are seated in this order
        for member in order:
            member.receive()
        self.require_sums(self.members, 2.0)
        self.require_sums(beside, 3.0)

    def test_a_job_is_come_back_to_beside_another_that_keeps_the_link_up(self) -> None:
        self.kill_beside(first=0)

    def test_it_is_the_same_when_the_other_nodes_ranks_come_first(self) -> None:
        self.kill_beside(first=2)

    def epochs_of(self, job: str, service: Service) -> list[int]:
        return [each["epoch"] for each in service.ctl_json("jobs")["jobs"] if each["name"] == job]

    def test_a_fresh_rank_beside_one_that_goes_on_is_told_at_once(self) -> None:
        beside = self.services.ranks([1, 1], job="beside")
        self.addCleanup(beside.__exit__)
        beside.each("tensor", name="w", count=COUNT)
        old = self.services.ranks([1, 1], job="mixed")
        self.addCleanup(old.__exit__)
        old.each("tensor", name="w", count=COUNT)
        self.require_sums(old, 1.0)
        self.services[1].kill()
        self.services.start(1)
        self.require_lost_rank(old[0])
        self.require_lost(beside)
        for member in beside.members:
            member.send("reconnect", timeout=LIMIT_S)
        for member in beside.members:
            member.receive()
        begin = time.monotonic()
        old[0].send("reconnect", timeout=LIMIT_S)
        until(lambda: self.epochs_of("mixed", self.services[0]) == [2], "the rank has come back, before the fresh one")
        fresh = Rank(
            self.services[1],
            1,
            2,
            job="mixed",
            environment={"HEADRACE_RENDEZVOUS": self.services.rendezvous},
        )
        self.addCleanup(fresh.close)
        fresh.call("tensor", name="w", count=COUNT)
        with self.assertRaises(RankError) as caught:
            fresh.call("post", kind="all_reduce", name="w")
            fresh.call("wait")
        self.assertEqual(caught.exception.code, "mismatch", str(caught.exception))
        self.require_error(old[0], ("mismatch",))
        self.assertLess(time.monotonic() - begin, LIMIT_S / 2)
        self.require_sums(beside, 1.0)

    def test_a_rank_whose_peer_died_is_told_at_once_what_to_do(self) -> None:
        self.begin()
        self.require_sums(self.members, 1.0)
        dead = self.members[2].pid
        self.members[2].kill()
        for member in self.members.members[:2]:
            self.require_lost_rank(member)
        begin = time.monotonic()
        for member in self.members.members[:2]:
            member.send("reconnect", timeout=10 * LIMIT_S)
        for member in self.members.members[:2]:
            self.require_error(
                member, ("mismatch",), "rank 2", str(dead), "exited or was killed", "start them again"
            )
        self.assertLess(time.monotonic() - begin, LIMIT_S)
        for member in self.members.members:
            member.close()
        self.begin()  # the same job begins anew
        self.require_sums(self.members, 2.0)

    def test_training_ends_at_once_when_a_ranks_process_died(self) -> None:
        services = [self.services[0], self.services[1]]
        trainers = Trainers(services, "bereaved", self.services.rendezvous, [4])
        self.addCleanup(trainers.close)
        self.assertEqual(trainers.await_stop(), "at 4")
        begin = time.monotonic()
        trainers.programs[1].end()
        trainers.go_on()
        self.assertEqual(trainers.programs[0].wait(timeout=LIMIT_S / 2), 1)
        self.assertLess(time.monotonic() - begin, LIMIT_S / 2)

    @AS_ROOT
    def test_training_comes_to_the_same_numbers_though_another_user_took_its_name(self) -> None:
        undisturbed = self.train("calm", [])
        services = [self.services[0], self.services[1]]
        trainers = Trainers(services, "coveted", self.services.rendezvous, [4])
        self.addCleanup(trainers.close)
        self.assertEqual(trainers.await_stop(), "at 4")
        self.services[0].kill()  # it leads
        services[0] = self.services.start(0)
        for service in services:
            folder = os.path.dirname(service.socket)
            os.chmod(folder, 0o755)
            os.chmod(os.path.dirname(folder), 0o755)
        # On the leader's node and on the other, before any rank is back.
        for rank, service in enumerate(reversed(services)):
            squatter = Rank(
                service,
                rank,
                2,
                job="coveted",
                user="nobody",
                environment={"HEADRACE_RENDEZVOUS": self.services.rendezvous},
            )
            self.addCleanup(squatter.close)
        trainers.go_on()
        after = trainers.ends()
        for rank, (whole, cut) in enumerate(zip(undisturbed, after, strict=True)):
            self.assertEqual(cut[0], "came back 1", f"rank {rank}")
            self.assertEqual(cut[1], whole[1], f"rank {rank}: numbers differ")

    def test_a_drain_moves_the_training_to_the_next_service(self) -> None:
        undisturbed = self.train("calm", [])
        services = [self.services[0], self.services[1]]
        for node in (1, 0):  # one of the nodes, and the one whose service leads
            with self.subTest(node=node):
                trainers = Trainers(services, f"moved{node}", self.services.rendezvous, [4])
                self.addCleanup(trainers.close)
                self.assertEqual(trainers.await_stop(), "at 4")
                drained = self.services[node]
                code, said = drained.ctl("drain", "--background")
                self.assertEqual(code, 0, said)
                trainers.go_on()
                self.assertEqual(drained.process.wait(timeout=LIMIT_S), 0)
                log = drained.log()
                self.assertTrue(log.rstrip().endswith("stopped"), log)
                services[node] = self.services.start(node)
                after = trainers.ends()
                for rank, (whole, cut) in enumerate(zip(undisturbed, after, strict=True)):
                    self.assertEqual(cut[0], "came back 1", f"rank {rank}")
                    self.assertEqual(cut[1], whole[1], f"rank {rank}: numbers differ")

    def test_a_drain_ends_what_cannot_reconnect_after_its_deadline(self) -> None:
        self.begin()
        self.require_sums(self.members, 1.0)
        drained = self.services[1]
        begin = time.monotonic()
        code, said = drained.ctl("drain", "--deadline", "2")
        self.assertEqual(code, 0, said)
        self.assertIn("job spread", said)
        self.assertGreater(time.monotonic() - begin, 2.0, "it was not waited for")
        self.assertEqual(drained.process.wait(timeout=LIMIT_S), 0)
        self.require_lost(self.members)

    def require_lost_rank(self, member: Rank) -> None:
        with self.assertRaises(RankError) as caught:
            member.call("post", kind="all_reduce", name="w")
            member.call("wait")
        self.assertIn(caught.exception.code, LOST, str(caught.exception))

    def train(self, job: str, stops: Sequence[int], **environment: str) -> list[list[str]]:
        """At each stop another node's service is killed, and started anew."""
        services = [self.services[0], self.services[1]]
        trainers = Trainers(services, job, self.services.rendezvous, stops, **environment)
        self.addCleanup(trainers.close)
        for count, step in enumerate(stops):
            self.assertEqual(trainers.await_stop(), f"at {step}")
            self.services[count % 2].kill()
            trainers.go_on()
            self.services.start(count % 2)
        return trainers.ends()

    def test_training_by_a_plan_ends_with_the_same_numbers(self) -> None:
        self.require_same(self.train("calm", []), self.train("restless", [4, 9, 10]))

    def test_what_encodings_left_out_outlives_services(self) -> None:
        """Neither given twice nor lost, in whatever state an iteration was: the same numbers."""
        calm = self.train("exact", [], TRAIN_IN="none")
        for codec in ("int8", "int4", "int8-stochastic", "powersgd:2"):
            with self.subTest(codec):
                undisturbed = self.train(f"calm.{codec}", [], TRAIN_IN=codec)
                self.assertNotEqual(undisturbed[0][1], calm[0][1], "nothing was encoded")
                disturbed = self.train(f"restless.{codec}", [4, 9, 10], TRAIN_IN=codec)
                self.require_same(undisturbed, disturbed)

    def require_same(self, undisturbed: list[list[str]], disturbed: list[list[str]]) -> None:
        # A rank that learns of the loss at 9 after the one at 10 comes back once for both.
        often = ("came back 2", "came back 3")
        for rank, (before, after) in enumerate(zip(undisturbed, disturbed, strict=True)):
            self.assertEqual(before[0], "came back 0", f"rank {rank}")
            self.assertIn(after[0], often, f"rank {rank}")
            self.assertEqual(after[1], before[1], f"rank {rank}: losses or parameters differ")

    def test_gradients_of_gpus_end_with_the_same_numbers_as_the_hosts(self) -> None:
        undisturbed = self.train("host", [])
        for way in ("staged", "nccl"):
            with self.subTest(way):
                gpus = ("--cuda-library", DOUBLE, "--nccl-library", NCCL, "--gpu-network", way)
                hosts = [{**machine(), "NCCL_HOSTID": f"host-{name}"} for name in "ab"]
                self.services = Services(
                    self.cluster, "--rails", "lo", *gpus, environments=hosts
                )
                disturbed = self.train(way, [4, 9, 10], TRAIN_ON_GPU="0", **machine())
                self.require_same(undisturbed, disturbed)
                shown = lanes(self.services[0])
                self.assertGreater(shown["nvlink0"]["stages_ended"], 0)
                self.assertEqual("NCCL" in shown["ucx0"]["transport"], way == "nccl")


if __name__ == "__main__":
    unittest.main(verbosity=2)
