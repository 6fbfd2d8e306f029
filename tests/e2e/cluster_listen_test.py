"""A service listens where node_address says, and nowhere else; nodes meet all the same."""

from __future__ import annotations

import contextlib
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster_case import ClusterCase
from support.service import Service
from support.unittests import run_tests

LISTENS = "0A"  # as the kernel's table of sockets has it


def listening(service: Service) -> dict[str, set[str]]:
    """The TCP addresses that the service listens at, by family, without ports."""
    sockets = set()
    for entry in os.listdir(f"/proc/{service.pid}/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            sockets.add(os.readlink(f"/proc/{service.pid}/fd/{entry}"))
    found: dict[str, set[str]] = {}
    for family in ("tcp", "tcp6"):
        with open(f"/proc/{service.pid}/net/{family}", encoding="ascii") as table:
            for line in table:
                fields = line.split()
                if fields[3] == LISTENS and f"socket:[{fields[9]}]" in sockets:
                    found.setdefault(family, set()).add(address_of(fields[1].partition(":")[0]))
    return found


def address_of(text: str) -> str:
    """0100007F is 127.0.0.1; what is longer stays as it is."""
    if len(text) != 8:
        return text
    return ".".join(str(int(text[i : i + 2], 16)) for i in (6, 4, 2, 0))


class OnLoopback(unittest.TestCase):
    def test_an_address_of_loopback_is_all_that_is_listened_at(self) -> None:
        with Service("--node-name", "a", "--node-address", "127.0.0.1:0") as service:
            self.assertEqual(listening(service), {"tcp": {"127.0.0.1"}})

    def test_every_interface_is_every_interface(self) -> None:
        with Service("--node-name", "a", "--node-address", "*:0", "--plain-text") as service:
            found = listening(service)
        everywhere = {"0.0.0.0", "0" * 32}  # of IPv4, and of IPv6, which takes both
        self.assertTrue((found.get("tcp", set()) | found.get("tcp6", set())) & everywhere, found)


class OfSeveralInterfaces(ClusterCase):
    """Nodes with another interface, which nobody has named to the service."""

    nodes = 2

    @classmethod
    def begin(cls, cleanup) -> None:  # type: ignore[override]
        from support.cluster import Cluster, Services

        cls.cluster = Cluster(nodes=cls.nodes)
        cleanup(cls.cluster.close)
        for index, node in enumerate(cls.cluster.nodes):
            add = f"ip link add other0 type dummy && ip addr add 10.99.0.{index + 1}/24 dev other0"
            done = node.start(["sh", "-c", f"{add} && ip link set other0 up"])
            if done.wait(30) != 0:
                raise unittest.SkipTest("this machine has no dummy interfaces")
        cls.services = Services(cls.cluster, *cls.flags)

    def test_nodes_meet_and_listen_at_their_addresses_alone(self) -> None:
        self.exercise(self.job((1, 1)), "all_reduce", count=100_000)
        for node, service in zip(self.cluster.nodes, self.services, strict=False):
            self.assertEqual(listening(service), {"tcp": {node.address}})


del ClusterCase

if __name__ == "__main__":
    run_tests()
