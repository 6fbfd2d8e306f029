"""Nodes that cannot take part in a job: everybody who waits hears of it, and doctor on both sides."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from support.cluster import Cluster, Services
from support.patience import until
from support.ranks import Rank, RankError
from support.service import Service, build_directory, client_environment

LONG_S = 60.0  # what a rank that was not told would wait at least
TOO_LONG_S = 100000  # of a time-out, which the service refuses
SOON_S = 20.0  # on a machine that is busy
LATE_S = 2 * SOON_S  # a rank that waits is told what for
WAIT = (
    "import headrace, sys, numpy\n"
    "session = headrace.init(job='late', rank=0, world_size=2, timeout=float(sys.argv[1]),\n"
    "                        rendezvous=sys.argv[2] if len(sys.argv) > 2 else None)\n"
    "session.all_reduce(numpy.zeros(4, dtype='float32'))\n"
)


def findings(service: Service, check: str) -> list[str]:
    """What doctor has found of these checks."""
    found = service.ctl_json("doctor")["checks"]
    return [each["found"] for each in found if each["check"].startswith(check)]


def peer_left(service: Service) -> str:
    """What doctor has found of the other node, once the services have parted."""
    deadline = time.monotonic() + SOON_S
    while True:
        (said,) = findings(service, "peer ")
        if not said.startswith("connected") or time.monotonic() > deadline:
            return said


class Refusals(unittest.TestCase):
    def begin(self, *flags: str) -> None:
        self.cluster = Cluster(nodes=2, loopback=True)
        self.addCleanup(self.cluster.close)
        self.services = Services(self.cluster, "--rails", "lo", *flags)

    def rank(self, node: int, rank: int, world: int) -> Rank:
        member = Rank(
            self.services[node],
            rank,
            world,
            job="torn",
            environment={"HEADRACE_RENDEZVOUS": self.services.rendezvous},
        )
        self.addCleanup(member.close)
        member.call("tensor", name="w", count=16)
        return member

    def failure(self, member: Rank) -> RankError:
        with self.assertRaises(RankError) as caught:
            member.call("post", kind="all_reduce", name="w")
            member.call("wait")
        return caught.exception

    def test_sizes_that_differ_reach_both_nodes_and_their_doctors(self) -> None:
        self.begin()
        first = self.rank(0, 0, 2)
        begin = time.monotonic()
        other = self.rank(1, 1, 4)
        for member in (first, other):
            error = self.failure(member)
            self.assertEqual(error.code, "mismatch", str(error))
            for word in ("job torn", "node a they say 2", "node b 4", "WORLD_SIZE"):
                self.assertIn(word, str(error))
        self.assertLess(time.monotonic() - begin, LONG_S)
        for member in (first, other):
            member.close()
        for service in (self.services[0], self.services[1]):
            self.assertIn("WORLD_SIZE", peer_left(service))

    def refuse_one(self, node: int) -> str:
        """A rank 1 that the service of that node, where no rank of its job is, does not take."""
        arguments = f"job='torn', rank=1, world_size=2, timeout={TOO_LONG_S}"
        done = subprocess.run(
            ["/usr/bin/python3", "-c", f"import headrace\nheadrace.init({arguments})"],
            env=client_environment(
                HEADRACE_SOCKET=self.services[node].socket,
                HEADRACE_RENDEZVOUS=self.services.rendezvous,
            ),
            capture_output=True,
            text=True,
            timeout=LONG_S,
        )
        self.assertEqual(done.returncode, 1, done.stderr)
        return done.stderr.strip().splitlines()[-1].rpartition("attach: ")[2]

    def test_a_nodes_first_rank_that_is_refused_reaches_those_who_wait_elsewhere(self) -> None:
        self.begin()
        waits = self.rank(0, 0, 2)
        waits.call("post", kind="all_reduce", name="w")
        begin = time.monotonic()
        why = self.refuse_one(1)
        with self.assertRaises(RankError) as caught:
            waits.call("wait")
        self.assertLess(time.monotonic() - begin, LONG_S)
        self.assertIn(f"{why} (on node b)", str(caught.exception))
        for service in (self.services[0], self.services[1]):
            self.assertIn(why, peer_left(service))

    def test_who_comes_after_it_is_told_of_it(self) -> None:
        self.begin("--late-ms", "300")
        why = self.refuse_one(1)
        waits = self.rank(0, 0, 2)
        deadline = time.monotonic() + SOON_S
        shown = ""
        while why not in shown and time.monotonic() < deadline:
            shown = str([job["failure"] for job in self.services[0].ctl_json("jobs")["jobs"]])
        self.assertIn("rank 1 (pid", shown)
        self.assertIn(why, shown)
        comes = self.rank(1, 1, 2)
        for member in (waits, comes):
            member.call("post", kind="all_reduce", name="w")
        for member in (waits, comes):
            member.call("wait")

    def test_another_authority_is_named_to_those_who_wait_and_by_doctor(self) -> None:
        directory = tempfile.TemporaryDirectory(prefix="headrace-refusals-")
        self.addCleanup(directory.cleanup)
        certificates = []
        for name in ("a", "b"):  # an authority each
            own = os.path.join(directory.name, name)
            ctl = os.path.join(build_directory(), "headracectl")
            for arguments in (f"authority --out {own}", f"node {name} --authority {own} --out {own}"):
                command = [ctl, "certs", *arguments.split()]
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            certificates.append(own)
        self.cluster = Cluster(nodes=2, loopback=True)
        self.addCleanup(self.cluster.close)
        self.services = Services(self.cluster, "--rails", "lo", "--late-ms", f"{LATE_S * 1000:.0f}")
        for index, own in enumerate(certificates):
            name = "ab"[index]
            self.services.start(
                index,
                *("--tls-authority", os.path.join(own, "authority.crt")),
                *("--tls-certificate", os.path.join(own, f"{name}.crt")),
                *("--tls-key", os.path.join(own, f"{name}.key")),
            )
        begin = time.monotonic()
        trainer = subprocess.Popen(
            ["/usr/bin/python3", "-c", WAIT, str(LONG_S)],
            env=client_environment(
                HEADRACE_SOCKET=self.services[0].socket,
                HEADRACE_RENDEZVOUS=self.services.rendezvous,
            ),
            stderr=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(trainer.communicate)
        self.addCleanup(trainer.kill)
        waits = self.rank(0, 0, 2)
        other = self.rank(1, 1, 2)
        error = self.failure(other)
        self.assertEqual(error.code, "permission denied", str(error))
        # Who waits is told of it long before it would be told of a rank that is only missing.
        assert trainer.stderr is not None
        said = trainer.stderr.readline()
        # It may be said before the leader has heard of rank 0.
        self.assertRegex(said, r"rank 1 is missing|ranks 0, 1 are missing")
        self.assertIn("authority", said)
        self.assertLess(time.monotonic() - begin, LATE_S / 2)
        self.assertIn("authority", str(error))
        deadline = time.monotonic() + SOON_S
        shown = ""
        while "authority" not in shown and time.monotonic() < deadline:
            shown = str([job["failure"] for job in self.services[0].ctl_json("jobs")["jobs"]])
        self.assertIn("rank 1", shown)
        self.assertIn("authority", shown)
        until(lambda: "authority" in findings(self.services[0], "peer ")[0], "node a's doctor names it")
        said = until(
            lambda: found if "authority" in (found := findings(self.services[1], "peer ")[0]) else "",
            "node b's doctor names it",
        )
        # It is that node which refuses: the other was never asked.
        self.assertNotIn("refuses this one", said + str(error))
        waits.close()


class Rendezvous(unittest.TestCase):
    """A leader that does not answer."""

    def setUp(self) -> None:
        # Long enough for a connection to be refused on a busy machine, and less than ranks wait.
        self.service = Service("--node-address", "127.0.0.1:0", "--late-ms", "2000")
        self.addCleanup(self.service.close)
        self.service.start()

    def run_rank(self, *arguments: str, **environment: str) -> str:
        done = subprocess.run(
            ["/usr/bin/python3", "-c", WAIT, "4", *arguments],
            env=client_environment(HEADRACE_SOCKET=self.service.socket, **environment),
            capture_output=True,
            text=True,
            timeout=LONG_S,
        )
        self.assertEqual(done.returncode, 1, done.stderr)
        return done.stderr

    def require(self, said: str, *words: str) -> None:
        warning, _, error = said.partition("Traceback")
        self.assertEqual(warning.count("headrace: rank 0: "), 1, said)
        for text in (warning, error):
            for word in words:
                self.assertIn(word, text)
            for raw in ("params.", "sockfd", "::", "kj"):
                self.assertNotIn(raw, text.replace("headrace::", ""), said)

    def test_it_is_named_with_where_it_is_from(self) -> None:
        for arguments, environment, source in (
            (("127.0.0.1:9",), {}, "the argument rendezvous"),
            ((), {"HEADRACE_RENDEZVOUS": "127.0.0.1:9"}, "HEADRACE_RENDEZVOUS"),
        ):
            with self.subTest(source):
                said = self.run_rank(*arguments, **environment)
                self.require(
                    said, "127.0.0.1:9", "Connection refused", f"from {source}", "headraced runs there"
                )

    def test_the_port_of_master_addr_is_named(self) -> None:
        said = self.run_rank(MASTER_ADDR="127.0.0.9", WORLD_SIZE="2", LOCAL_WORLD_SIZE="1")
        self.require(said, "127.0.0.9:7733", "from MASTER_ADDR", "set HEADRACE_RENDEZVOUS")

    def test_a_name_that_nobody_knows_is_said_in_plain_words(self) -> None:
        said = self.run_rank("nowhere.invalid:7733")
        self.require(said, "nowhere.invalid:7733", "the name cannot be resolved")


if __name__ == "__main__":
    unittest.main(verbosity=2)
