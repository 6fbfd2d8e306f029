"""Who is not of the cluster is refused by name, and who speaks nonsense disturbs nobody."""

from __future__ import annotations

import contextlib
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from certified_case import CertifiedCase
from cluster_case import ClusterCase, await_true, holdings, holds_no_more
from support.cluster.services import PORT
from support.ranks import RankError
from support.service import Service
from support.unittests import run_tests

# Connects, sends bytes that are nothing, and waits for the other side to hang up or for a while.
GARBAGE = """
import random, socket, sys
random.seed(int(sys.argv[3]))
for size in (1, 7, 100, 4096, 1 << 20):
    end = socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)
    end.settimeout(1)
    try:
        end.sendall(random.randbytes(size))
        while end.recv(1 << 16): pass
    except OSError:
        pass
    end.close()
"""
LOOPBACK = "0100007F"  # as the kernel's table of sockets has it


class Certified(CertifiedCase):
    """Services that know each other by certificates of one authority."""

    def check_refused(self, index: int, *words: str) -> None:
        """That node's rank is told why it cannot take part; a job of the others goes on."""
        others = [i for i in range(2) if i != index]
        refused = self.ranks(0, index, job="refused")
        with self.assertRaises(RankError) as caught:
            refused[1].call("post", kind="barrier")
            refused[1].call("wait", timeout=20)
        for word in words:
            self.assertIn(word, str(caught.exception))
        good = self.ranks(*others, job="good")
        self.exercise(good, "all_reduce", count=100_000)

    def test_nodes_with_certificates_of_one_authority_work_together(self) -> None:
        for index in range(3):
            self.start(index, "ours")
        self.exercise(self.ranks(0, 1, 2, job="good"), "all_reduce", count=100_000)

    def test_a_node_with_a_certificate_of_another_authority_is_refused(self) -> None:
        self.start(0, "ours")
        self.start(1, "ours")
        self.start(2, "theirs")
        self.check_refused(2, self.cluster[0].address, "certificate")

    def test_a_node_that_speaks_plain_text_is_refused(self) -> None:
        self.start(0, "ours")
        self.start(1, "ours")
        self.start(2, None)
        self.check_refused(2, self.cluster[0].address, "TLS")

    def test_a_node_that_wants_certificates_refuses_one_without(self) -> None:
        self.start(0, None)
        self.start(1, None)
        self.start(2, "ours")
        self.check_refused(2, self.cluster[0].address, "TLS")

    def test_a_node_under_another_name_than_its_certificate_is_refused(self) -> None:
        self.start(0, "ours")
        self.start(1, "ours")
        with self.assertRaises(RuntimeError) as caught:
            self.start(2, "ours", name="b")
        self.assertIn("node c", str(caught.exception))

    def test_the_log_of_plain_text_says_so(self) -> None:
        self.start(0, None).await_log("plain text")


class Nonsense(ClusterCase):
    """Garbage on every port that a service listens on."""

    nodes = 2

    def listening(self, service: Service) -> set[int]:
        """The TCP ports that the service listens on for other hosts."""
        sockets = set()
        for entry in os.listdir(f"/proc/{service.pid}/fd"):
            with contextlib.suppress(OSError):  # closed meanwhile
                sockets.add(os.readlink(f"/proc/{service.pid}/fd/{entry}"))
        ports = set()
        with open(f"/proc/{service.pid}/net/tcp", encoding="ascii") as table:
            for line in table:
                fields = line.split()
                host, _, port = fields[1].partition(":")
                if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets and host != LOOPBACK:
                    ports.add(int(port, 16))
        return ports

    def check_garbage(self, port: int) -> None:
        service = self.services[0]
        with self.services.ranks((1, 1), job=f"warm-{port}") as warm:
            self.exercise(warm, "all_reduce", count=1000)
            warm.each("leave")
        self.assertTrue(await_true(lambda: not service.mappings()))
        before = holdings(service)
        ranks = self.job((2, 1), name=f"garbage-{port}")
        self.exercise(ranks, "all_reduce", count=100_000)
        strangers = [
            self.cluster[1].start(
                ["/usr/bin/python3", "-c", GARBAGE, self.cluster[0].address, str(port), str(seed)]
            )
            for seed in range(3)
        ]
        while any(stranger.poll() is None for stranger in strangers):
            self.exercise(ranks, "all_reduce", count=10_000)
        for stranger in strangers:
            self.assertEqual(stranger.wait(30), 0)
        self.exercise(ranks, "all_reduce", count=100_000)
        with self.services.ranks((1, 1), job=f"new-{port}") as new:
            self.exercise(new, "all_reduce", count=100_000)
        ranks.__exit__()
        self.assertTrue(
            await_true(lambda: holds_no_more(service, before)),
            f"{holdings(service)}, before: {before}",
        )

    def test_on_the_port_of_the_services_disturbs_nobody(self) -> None:
        self.assertIn(PORT, self.listening(self.services[0]))
        self.check_garbage(PORT)

    def test_on_the_ports_of_the_bytes_disturbs_nobody(self) -> None:
        with self.services.ranks((1, 1), job="opens") as ranks:
            self.exercise(ranks, "all_reduce", count=1000)
        others = self.listening(self.services[0]) - {PORT}
        self.assertTrue(others)
        for port in sorted(others):
            self.check_garbage(port)


class Listed(ClusterCase):
    """Services that speak only with those they were told of."""

    nodes = 3
    flags = ("--peers", f"a=10.77.0.1:{PORT},b=10.77.0.2:{PORT}")

    def test_nodes_on_the_list_work_together(self) -> None:
        self.exercise(self.job((1, 1)), "all_reduce", count=100_000)

    def test_jobs_that_name_no_place_meet_at_the_first_of_the_list(self) -> None:
        ranks = self.job((1, 1), environment={"HEADRACE_RENDEZVOUS": ""})
        self.exercise(ranks, "all_reduce", count=100_000)

    def test_a_node_that_is_not_on_it_is_refused_by_name(self) -> None:
        ranks = self.job((1, 0, 1))
        with self.assertRaises(RankError) as caught:
            ranks[1].call("post", kind="barrier")
            ranks[1].call("wait", timeout=20)
        self.assertRegex(str(caught.exception), r"\bnode c\b.*\bpeers\b")


del ClusterCase

if __name__ == "__main__":
    run_tests()
