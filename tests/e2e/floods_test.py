"""Neither local clients nor HTTP clients that flood one service end or slow a job of two nodes, or
keep others from attaching, whether that service leads the job or not. Prints what was measured. The job's rate
is measured in turns, beside those who flood and beside as many processes that compute and ask nothing of a service:
both see what else the machine does, and take the same share of its cores.

The bounds are generous, for machines that are busy with other tests. By hand, on an idle one:

    HEADRACE_TEST_FLOOD_RATE=0.9 HEADRACE_TEST_FLOOD_ATTACH_S=1.0 python3 tests/e2e/floods_test.py
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import unittest
from collections.abc import Iterator, Sequence

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, ".."))
from support.cluster import Cluster, Services
from support.ranks import Rank, Ranks
from support.service import build_directory
from support.unittests import run_tests

ITERATIONS = int(os.environ.get("HEADRACE_TEST_FLOOD_ITERATIONS", "200"))
TURNS = 5  # in which these are made, with and without a flood
PAUSE_S = 0.01  # in which a model would compute
STANDS_S = 0.1  # until what was sent before is done with
ELEMENTS = 1 << 18
SENDERS = 4
HTTP_CONNECTIONS = 16
TENSORS = 1 << 16  # of one call
ATTACH_MAX_S = float(os.environ.get("HEADRACE_TEST_FLOOD_ATTACH_S", "2.0"))
RATE_MIN = float(os.environ.get("HEADRACE_TEST_FLOOD_RATE", "0.6"))
COMPUTES = ["/usr/bin/python3", "-c", "while True: pass"]
NOBODY = 65534


def flooder(*arguments: str) -> list[str]:
    """A command that sends what nobody asked for."""
    return ["/usr/bin/python3", "-B", os.path.join(HERE, "flooder.py"), *arguments]


@contextlib.contextmanager
def flooders(commands: Sequence[list[str]]) -> Iterator[list[int]]:
    """So many processes of another user, which are gone afterwards; their pids."""
    user = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    with contextlib.ExitStack() as ends:
        processes = []
        for command in commands:
            process = subprocess.Popen(command, **user)
            processes.append(process)
            ends.callback(process.wait)
            ends.callback(process.kill)
        time.sleep(1.0)  # they are at it
        yield [process.pid for process in processes]
        for process in processes:
            if process.poll() is not None:
                raise AssertionError(f"{process.args} ended: {process.returncode}")


@contextlib.contextmanager
def standing(pids: Sequence[int]) -> Iterator[None]:
    """Processes that do nothing for the ``with`` block."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(STANDS_S)
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


class Floods(unittest.TestCase):
    def setUp(self) -> None:
        cluster = Cluster(nodes=2, loopback=True)
        self.addCleanup(cluster.close)
        # A detection time of three seconds, as it is by default.
        self.services = Services(
            cluster, "--http-address", "127.0.0.1:0", "--detection-ms", "3000"
        )
        for index in (0, 1):  # others may reach the socket, as in /run/headrace
            folder = os.path.dirname(self.services[index].socket)
            os.chmod(folder, 0o755)
            os.chmod(os.path.dirname(folder), 0o755)
        self.ranks: Ranks = self.services.ranks([1, 1], job="train")
        self.addCleanup(self.ranks.__exit__)
        self.ranks.each("tensor", name="gradient", count=ELEMENTS)
        self.take()  # connections are made

    def take(self) -> float:
        """Seconds of one turn."""
        return max(self.ranks.each("train", name="gradient", iterations=ITERATIONS // TURNS, pause=PAUSE_S))

    def rates(self, flood: Sequence[int]) -> tuple[float, float]:
        """Iterations a second of the job, beside as many processes that compute and beside the flood of these."""
        quiet_s = flooded_s = 0.0
        with flooders([COMPUTES] * len(flood)) as computing:
            for _ in range(TURNS):
                with standing(flood):
                    quiet_s += self.take()
                with standing(computing):
                    flooded_s += self.take()
        iterations = TURNS * (ITERATIONS // TURNS)
        return iterations / quiet_s, iterations / flooded_s

    def attach_s(self, node: int) -> float:
        """Seconds that a new client on that node needs to attach, process start left out."""
        newcomer = Rank(self.services[node], 0, 1, job=f"new{time.monotonic_ns()}", attach=False)
        try:
            newcomer.call("settle", seconds=0.0)
            begin = time.monotonic()
            newcomer.attach()
            return time.monotonic() - begin
        finally:
            newcomer.close()

    def suffer(self, name: str, node: int, commands: Sequence[list[str]], *others: int) -> None:
        """``others`` are processes that flood already."""
        with flooders(commands) as pids:
            slowest = max(self.attach_s(node) for _ in range(3))
            quiet, flooded = self.rates([*pids, *others])
            print(
                f"{name} at the {'leader' if node == 0 else 'follower'}: {quiet:.1f} "
                f"iterations/s without, {flooded:.1f} with ({flooded / quiet:.2f}); "
                f"a newcomer attaches within {slowest:.3f} s",
                file=sys.stderr,
            )
            probed = self.services[node].ctl("doctor", "--probe")
        self.assertGreater(flooded / quiet, RATE_MIN)
        self.assertLess(slowest, ATTACH_MAX_S)
        self.assertEqual(probed[0], 0, probed[1])

    def hostile(self, node: int, what: str) -> list[str]:
        """A command of the hostile client, whose jobs meet where the suffering one does."""
        program = os.path.join(build_directory(), "hostile_client")
        return [program, self.services[node].socket, what, self.services.rendezvous]

    def test_of_messages_that_nobody_asked_for(self) -> None:
        for node in (0, 1):
            flood = flooder("resolve", self.services[node].socket)
            self.suffer("resolve", node, [flood] * SENDERS)
            self.services[node].await_event("", code="exhausted")

    def test_of_http_requests(self) -> None:
        for node in (0, 1):
            port = str(self.services[node].http_port())
            self.suffer("http", node, [flooder("http", port, str(HTTP_CONNECTIONS))])

    def test_of_questions_who_is_left_of_a_job(self) -> None:
        for node in (0, 1):
            self.suffer("joinQuorum", node, [self.hostile(node, "quorums")] * SENDERS)

    def test_of_ranks_that_come_and_go(self) -> None:
        for node in (0, 1):
            self.suffer("attach and leave", node, [self.hostile(node, "visits")] * SENDERS)

    def test_of_tensors_registered_again_and_again(self) -> None:
        for node in (0, 1):
            loud = Rank(self.services[node], 0, 1, job="loud")
            self.addCleanup(loud.close)
            enough = os.path.join(self.services[node].directory, "enough")
            loud.send("register_again_and_again", name="w", count=TENSORS, until=enough)
            self.suffer("tensors", node, [], loud.process.program_pid)
            with open(enough, "w", encoding="utf-8"):
                pass
            self.assertGreater(loud.receive(), 0)
            loud.close()


if __name__ == "__main__":
    run_tests()
