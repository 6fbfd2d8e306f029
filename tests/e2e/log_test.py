"""A log that nobody reads stops its own thread and nobody else."""

from __future__ import annotations

import http.client
import os
import re
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from support.ranks import Ranks
from support.service import START_LIMIT_S, Service

SOON_S = float(os.environ.get("HEADRACE_TEST_SOON_S", "1.0"))
QUEUE_BYTES = 4096


class PipedService(Service):
    """A service whose stderr is a pipe, which the test reads, or fills and leaves alone."""

    def start(self) -> None:
        self.reader, writer = os.pipe()
        try:
            self.process = self.place.start(
                self.command(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=writer
            )
            # A description of its own, so that the service's end stays a blocking one.
            self.filler = os.open(f"/proc/self/fd/{writer}", os.O_WRONLY | os.O_NONBLOCK)
        finally:
            os.close(writer)
        deadline = time.monotonic() + START_LIMIT_S
        while not (self._accepts() and self.ctl("status")[0] == 0):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("headraced did not start")
            time.sleep(0.02)

    def close(self) -> None:
        super().close()
        os.close(self.reader)
        os.close(self.filler)

    def fill(self) -> int:
        """Fills the pipe; how many bytes went in."""
        total = 0
        for size in (4096, 1):
            try:
                while True:
                    total += os.write(self.filler, b"\n" * size)
            except BlockingIOError:
                pass
        return total

    def read(self, until: str, limit_s: float = 10.0) -> str:
        """What the service wrote, until it has written that."""
        os.set_blocking(self.reader, False)
        text = ""
        deadline = time.monotonic() + limit_s
        while until not in text and time.monotonic() < deadline:
            try:
                text += os.read(self.reader, 1 << 20).decode()
            except BlockingIOError:
                time.sleep(0.01)
        return text


class UnreadLog(unittest.TestCase):
    def setUp(self) -> None:
        self.service = PipedService(
            "--log-queue-bytes", str(QUEUE_BYTES), "--http-address", "127.0.0.1:0"
        )
        self.addCleanup(self.service.close)
        self.service.start()
        said = self.service.read("http_address")
        self.port = int(re.search(r"http_address \S+ \(port (\d+)\)", said + self.service.read(")"))[1])
        self.assertGreater(self.service.fill(), 1000)

    def dropped(self) -> int:
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        line.request("GET", "/metrics")
        text = line.getresponse().read().decode()
        return int(re.search(r"^headrace_log_dropped_total (\d+)$", text, re.M)[1])

    def come_and_go(self, job: str) -> float:
        """Ranks attach, register, sum and leave; how long the first two took."""
        with Ranks(self.service, 2, job=job, attach=False) as ranks:
            ranks.each("held")  # their Python has started
            begin = time.monotonic()
            for rank in ranks.members:
                rank.attach()
            ranks.each("tensor", name="w", count=1000)
            took = time.monotonic() - begin
            ranks.each("post", kind="barrier")
            ranks.each("wait")
            ranks.each("leave")
        return took

    def test_clients_attach_and_register_and_what_is_dropped_is_counted(self) -> None:
        took = self.come_and_go("first")
        self.assertLess(took, SOON_S)
        for index in range(15):
            if self.dropped() > 0:
                break
            self.come_and_go(f"again{index}-{'x' * 50}")
        dropped = self.dropped()
        self.assertGreater(dropped, 0)
        _, doctor = self.service.ctl("doctor")
        self.assertRegex(doctor, rf"log +warning +{dropped} lines\b", doctor)
        # The events are all there, on the board.
        for value in ("job first", "rank 0 of 2"):
            self.assertIn(value, self.service.ctl("events")[1])
        # Once somebody reads again the newest lines are there, after a word on the others.
        text = self.service.read("lines of the log were dropped")
        self.assertIn(f"{dropped} lines of the log were dropped", text)

    def test_sigterm_ends_it(self) -> None:
        begin = time.monotonic()
        self.assertEqual(self.service.stop(), 0)
        self.assertLess(time.monotonic() - begin, 2 + SOON_S)


if __name__ == "__main__":
    unittest.main()
