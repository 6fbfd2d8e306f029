"""A log that nobody reads stops its own thread and nobody else."""

from __future__ import annotations

import http.client
import os
import re
import subprocess
import sys
import time
import unittest
from typing import Any

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from support.patience import PATIENCE_S, SOON_S, until
from support.ports import free_port
from support.ranks import Ranks
from support.service import START_LIMIT_S, Service

QUEUE_BYTES = 4096
DETECTION_MS = 3000  # a service that is silent for so long is lost


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

    def read(self, until: str, limit_s: float = PATIENCE_S) -> str:
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


def come_and_go(services: Service | list[Service], world: int, job: str, **options: Any) -> float:
    """Ranks attach, register, sum and leave; how long the first two took."""
    with Ranks(services, world, job=job, attach=False, **options) as ranks:
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


class UnreadLog(unittest.TestCase):
    def setUp(self) -> None:
        self.service = PipedService(
            "--log-queue-bytes", str(QUEUE_BYTES), "--http-address", "127.0.0.1:0"
        )
        self.addCleanup(self.service.close)
        self.service.start()
        self.port = int(re.search(r"\(port (\d+)\)", self.service.read("for everyone"))[1])
        self.assertGreater(self.service.fill(), 1000)

    def dropped(self) -> int:
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        line.request("GET", "/metrics")
        text = line.getresponse().read().decode()
        return int(re.search(r"^headrace_log_dropped_total (\d+)$", text, re.M)[1])

    def test_clients_attach_and_register_and_what_is_dropped_is_counted(self) -> None:
        took = come_and_go(self.service, 2, "first")
        self.assertLess(took, SOON_S)  # who waits for the log waits until somebody reads it
        for index in range(15):
            if self.dropped() > 0:
                break
            come_and_go(self.service, 2, f"again{index}-{'x' * 50}")
        self.assertGreater(self.dropped(), 0)

        # A line more may be dropped in between: of who left last, for example.
        def told() -> int:
            """How many, once doctor and metrics agree."""
            dropped = self.dropped()
            doctor = self.service.ctl("doctor")[1]
            return dropped if re.search(rf"log +warning +{dropped} lines\b", doctor) else 0

        self.service.await_job_gone()
        dropped = until(told, "doctor has the number that the metrics have")
        # The events are all there, on the board.
        for value in ("job first", "rank 0 of 2"):
            self.assertIn(value, self.service.ctl("events")[1])
        # Once somebody reads again the newest lines are there, after a word on the others.
        text = self.service.read("lines of the log were dropped")
        self.assertIn(f"{dropped} lines of the log were dropped", text)

    def test_sigterm_ends_it(self) -> None:
        begin = time.monotonic()
        self.assertEqual(self.service.stop(), 0)
        self.assertLess(time.monotonic() - begin, 2 + SOON_S)  # it waits for the log for two seconds


class UnreadLogsOfTwoNodes(unittest.TestCase):
    def setUp(self) -> None:
        self.services: list[PipedService] = []
        ports = [free_port(), free_port()]
        self.environment = {"HEADRACE_RENDEZVOUS": f"127.0.0.1:{ports[0]}"}
        for name, port in zip("ab", ports, strict=True):
            service = PipedService(
                "--log-queue-bytes", str(QUEUE_BYTES), "--node-name", name, "--rails", "lo",
                "--node-address", f"127.0.0.1:{port}", "--detection-ms", str(DETECTION_MS),
            )  # fmt: skip
            self.addCleanup(service.close)
            service.start()
            self.assertGreater(service.fill(), 1000)
            self.services.append(service)

    def test_the_services_go_on_hearing_each_other(self) -> None:
        with Ranks(self.services, 2, job="spread", environment=self.environment) as ranks:
            ranks.each("tensor", name="w", count=1000)
            for service in self.services:
                for index in range(15):
                    if re.search(r"log +warning +\d+ lines\b", service.ctl("doctor")[1]):
                        break
                    come_and_go(service, 2, f"again{index}-{'x' * 50}")
                else:
                    self.fail(f"no line was dropped: {service.ctl('doctor')[1]}")
            time.sleep(3 * DETECTION_MS / 1000)
            ranks.each("post", kind="barrier")
            ranks.each("wait")
            for service in self.services:
                self.assertNotIn("does not answer", service.ctl("events")[1])


if __name__ == "__main__":
    unittest.main()
