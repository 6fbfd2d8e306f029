"""What the cluster promises, without a headraced: it is gone however it ends, and its faults are real."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import unittest

TESTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, TESTS)
from support.cluster import Cluster, SkipReason
from support.unittests import run_tests

SOON_S = 30.0
# A cluster with a program in each node, in a process of its own that then does as it is told. Says what
# there is. In namespaces the program has a child of its own, which ends with the node; on loopback it
# would outlive an owner that is killed, since only programs themselves end with whoever started them.
OWNER = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from support.cluster import Cluster
with Cluster(nodes=2, loopback=sys.argv[2] == "loopback") as cluster:
    program = ["sleep", "1000"] if cluster.loopback else ["sh", "-c", "sleep 1000 & sleep 1000"]
    for node in cluster.nodes:
        node.start(program)
    while True:
        pids = [pid for node in cluster.nodes for pid in node.pids()]
        if len(pids) == len(cluster.nodes) * (1 if cluster.loopback else 3):
            break
        time.sleep(0.02)
    inside = cluster.nodes[0].pids()[0]
    print(cluster.directory, os.readlink(f"/proc/{inside}/ns/net"), *pids, flush=True)
    if sys.argv[3] == "exception":
        raise ValueError("as told")
    if sys.argv[3] == "wait":
        time.sleep(1000)
"""


def network_namespaces() -> set[str]:
    """Those of all processes on this machine."""
    found = set()
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit():
                found.add(os.readlink(f"/proc/{entry}/ns/net"))
        except OSError:
            pass  # it ended meanwhile
    return found


def running(pid: int) -> bool:
    """Whether the process does anything yet: one that nobody has asked after does not."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def soon(condition) -> bool:
    deadline = time.monotonic() + SOON_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


class TheEnd(unittest.TestCase):
    """Nothing is left, whatever ends the process that owns the cluster."""

    form = "namespaces"

    def check_end(self, how: str, sig: signal.Signals | None = None) -> None:
        if self.form == "namespaces":
            Cluster(nodes=1).close()  # raises the reason where it cannot be had
        owner = subprocess.Popen(
            ["/usr/bin/python3", "-B", "-c", OWNER, TESTS, self.form, how],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.addCleanup(owner.stdout.close)
        self.addCleanup(owner.kill)
        directory, namespace, *pids = owner.stdout.readline().split()
        self.assertGreaterEqual(len(pids), 2)
        if self.form == "namespaces":
            self.assertEqual(len(pids), 6)  # a shell and two sleepers in each node
            self.assertNotEqual(namespace, os.readlink("/proc/self/ns/net"))
        if sig is not None:
            self.assertTrue(os.path.exists(directory))
            owner.send_signal(sig)
        owner.wait(timeout=30)
        self.assertTrue(soon(lambda: not os.path.exists(directory)), directory)
        for pid in pids:
            self.assertTrue(soon(lambda pid=pid: not running(int(pid))), pid)
        if self.form == "namespaces":
            self.assertTrue(soon(lambda: namespace not in network_namespaces()))

    def test_of_the_block_leaves_nothing(self) -> None:
        self.check_end("return")

    def test_by_an_exception_leaves_nothing(self) -> None:
        self.check_end("exception")

    def test_by_sigterm_leaves_nothing(self) -> None:
        self.check_end("wait", signal.SIGTERM)

    def test_by_sigkill_leaves_nothing(self) -> None:
        self.check_end("wait", signal.SIGKILL)


class TheEndOnLoopback(TheEnd):
    form = "loopback"


class Links(unittest.TestCase):
    def setUp(self) -> None:
        self.cluster = Cluster(nodes=2, rails=[1000, 400])
        self.addCleanup(self.cluster.close)

    def discipline(self, place, device: str) -> str:
        done = subprocess.run(
            [*place.enter(), "tc", "-statistics", "qdisc", "show", "dev", device],
            capture_output=True, text=True, check=True, timeout=30,
        )  # fmt: skip
        return done.stdout

    def talk(self, rail: int = 0, size: int = 1 << 20, limit_s: float = 30) -> bool:
        """Sends bytes over TCP from node a to node b; whether all arrived."""
        listen = (
            "import socket, sys\n"
            f"server = socket.create_server(('{self.cluster[1].addresses[rail]}', 7000))\n"
            "print('listens', flush=True)\n"
            "end, _ = server.accept()\n"
            "size = 0\n"
            "while part := end.recv(1 << 16): size += len(part)\n"
            "print(size, flush=True)\n"
        )
        send = (
            "import socket\n"
            f"end = socket.create_connection(('{self.cluster[1].addresses[rail]}', 7000), {limit_s})\n"
            f"end.sendall(bytes({size}))\n"
        )
        python = ["/usr/bin/python3", "-c"]
        receiver = self.cluster[1].start([*python, listen], stdout=subprocess.PIPE, text=True)
        try:
            self.assertEqual(receiver.stdout.readline(), "listens\n")
            sender = self.cluster[0].start([*python, send], stderr=subprocess.DEVNULL)
            try:
                if sender.wait(timeout=limit_s) != 0:
                    return False
            except subprocess.TimeoutExpired:
                return False
            finally:
                sender.end()
            return receiver.stdout.readline() == f"{size}\n"
        finally:
            receiver.end()
            receiver.stdout.close()

    def test_have_their_rates_at_both_ends(self) -> None:
        for node in self.cluster.nodes:
            for link, rate in zip(node.links, ("1Gbit", "400Mbit"), strict=True):
                for place, device in ((link.node, link.interface), (link.switch, link.port)):
                    text = self.discipline(place, device)
                    self.assertRegex(text, rf"qdisc tbf .* root .* rate {rate} burst \S+ lat 20ms")

    def test_take_another_rate_while_up(self) -> None:
        node = self.cluster[0]
        node.set_rate(100)
        self.assertIn("rate 100Mbit", self.discipline(node.links[0].node, "eth0"))
        self.assertIn("rate 400Mbit", self.discipline(node.links[1].node, "eth1"))
        node.set_rate(None)
        self.assertIn("noqueue", self.discipline(node.links[0].node, "eth0"))
        self.assertTrue(self.talk())

    def test_carry_bytes_through_the_rate_and_count_them(self) -> None:
        size = 1 << 20
        for rail in range(2):
            sent, received = self.cluster[0].bytes_sent(rail), self.cluster[1].bytes_received(rail)
            other = self.cluster[0].bytes_sent(1 - rail)
            self.assertTrue(self.talk(rail, size))
            for counted in (
                self.cluster[0].bytes_sent(rail) - sent,
                self.cluster[1].bytes_received(rail) - received,
            ):
                self.assertGreater(counted, size)
                self.assertLess(counted, 1.1 * size)
            self.assertLess(self.cluster[0].bytes_sent(1 - rail) - other, 4096)
            text = self.discipline(self.cluster[0].links[rail].node, f"eth{rail}")
            passed = re.search(r"Sent (\d+) bytes", text)
            self.assertGreater(int(passed.group(1)), size)

    def test_that_are_cut_drop_what_goes_in_that_direction(self) -> None:
        receiver = self.cluster[1]
        for cut in ({"sending": False}, {"receiving": False}):
            receiver.cut(**cut, rail=0)
            before = receiver.bytes_received()
            self.assertFalse(self.talk(limit_s=4))
            arrived = receiver.bytes_received() > before
            self.assertEqual(arrived, "receiving" in cut)
            self.assertTrue(self.talk(rail=1))
            receiver.mend()
            self.assertIn("1Gbit", self.discipline(receiver.links[0].switch, "b0"))
            self.assertTrue(self.talk())

    def test_that_are_unplugged_have_no_carrier(self) -> None:
        receiver = self.cluster[1]
        receiver.unplug(rail=0)
        state = receiver.start(
            ["ip", "-brief", "link", "show", "eth0"], stdout=subprocess.PIPE, text=True
        )
        self.assertIn("NO-CARRIER", state.communicate(timeout=30)[0])
        self.assertFalse(self.talk(limit_s=4))
        receiver.plug()
        self.assertTrue(self.talk())
        self.assertIn("1Gbit", self.discipline(receiver.links[0].node, "eth0"))


class Nodes(unittest.TestCase):
    form: dict[str, bool] = {}

    def setUp(self) -> None:
        self.cluster = Cluster(nodes=2, **self.form)
        self.addCleanup(self.cluster.close)

    def output(self, node: int, *command: str) -> str:
        done = self.cluster[node].start([*command], stdout=subprocess.PIPE, text=True)
        return done.communicate(timeout=30)[0]

    def test_run_programs_with_environment_and_give_back_their_status(self) -> None:
        node = self.cluster[0]
        self.assertEqual(
            node.start(["sh", "-c", "exit $STATUS"], env={**os.environ, "STATUS": "7"}).wait(30), 7
        )
        sleeper = node.start(["sleep", "1000"])
        sleeper.terminate()
        self.assertEqual(sleeper.wait(30), -signal.SIGTERM)
        self.assertEqual(self.output(0, "pwd").strip(), os.getcwd())

    def test_that_are_killed_lose_all_programs_and_no_others(self) -> None:
        sleepers = [node.start(["sleep", "1000"]) for node in self.cluster.nodes]
        self.cluster[0].kill()
        self.assertEqual(sleepers[0].wait(30), -signal.SIGKILL)
        self.assertEqual(self.cluster[0].pids(), [])
        self.assertIsNone(sleepers[1].poll())

    def test_that_are_paused_stand_still_until_they_are_resumed(self) -> None:
        node = self.cluster[0]
        sleeper = node.start(["sleep", "1000"])

        def state() -> str:
            with open(f"/proc/{sleeper.program_pid}/stat", encoding="utf-8") as stat:
                return stat.read().rpartition(")")[2].split()[0]

        node.pause()
        self.assertTrue(soon(lambda: state() == "T"))
        node.resume()
        self.assertTrue(soon(lambda: state() == "S"))
        node.pause()
        sleeper.end()
        self.assertEqual(sleeper.returncode, -signal.SIGKILL)


class NodesOnLoopback(Nodes):
    form = {"loopback": True}

    def test_have_no_links_to_break(self) -> None:
        node = self.cluster[0]
        for fault in (node.cut, node.mend, node.unplug, node.plug, node.bytes_sent):
            with self.assertRaises(SkipReason) as caught:
                fault()
            self.assertIn("namespaces", str(caught.exception))


class NodesInNamespaces(Nodes):
    def test_have_names_that_the_others_know(self) -> None:
        self.assertEqual(self.output(0, "hostname").strip(), "a")
        self.assertIn(self.cluster[1].address, self.output(0, "getent", "hosts", "b"))

    def test_see_their_own_interfaces_only(self) -> None:
        self.assertEqual(self.output(0, "ls", "/sys/class/net").split(), ["eth0", "lo"])

    def test_do_not_meet_those_of_another_cluster(self) -> None:
        listen = "import socket, time; s = socket.create_server(('', 7000)); print(1, flush=True); "
        with Cluster(nodes=2) as other:
            self.assertEqual(other[0].address, self.cluster[0].address)
            for cluster in (self.cluster, other):
                server = cluster[0].start(
                    ["/usr/bin/python3", "-c", listen + "time.sleep(1000)"],
                    stdout=subprocess.PIPE, text=True,
                )  # fmt: skip
                self.assertEqual(server.stdout.readline(), "1\n")
                server.stdout.close()

    def test_add_nothing_to_the_network_of_this_machine(self) -> None:
        def interfaces() -> set[str]:
            with open("/proc/net/dev", encoding="ascii") as table:
                return {line.partition(":")[0].strip() for line in table if ":" in line}

        before = interfaces()
        with Cluster(nodes=2, rails=[None, None]):
            self.assertEqual(interfaces() - before, set())


del Nodes  # its two forms have its tests

if __name__ == "__main__":
    run_tests()
