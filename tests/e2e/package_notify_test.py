"""What the service tells systemd: that it is ready, that it does its work, that it is stopping.

usage: package_notify_test.py; HEADRACE_BUILD names the build tree.
"""

from __future__ import annotations

import os
import socket
import sys
import time
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
sys.dont_write_bytecode = True

from support.frozen_thread import CannotFreeze, FrozenThread
from support.service import Service

LIMIT_S = 60.0
PATIENCE_S = 0.4


class NotifyTest(unittest.TestCase):
    def setUp(self) -> None:
        # An abstract socket, which leaves nothing behind.
        name = f"headrace-supervisor-{os.getpid()}-{self.id()}"
        self.supervisor = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(self.supervisor.close)
        self.supervisor.bind("\0" + name)
        self.supervisor.settimeout(LIMIT_S)
        self.environment = {"NOTIFY_SOCKET": "@" + name}

    def start(self, **environment: str) -> Service:
        return self.enterContext(Service(environment={**self.environment, **environment}))

    def told(self) -> str:
        return self.supervisor.recv(4096).decode()

    def told_meanwhile(self, seconds: float) -> list[str]:
        """All that comes within that time, and what had come before."""
        deadline, heard = time.monotonic() + seconds, []
        while (left := deadline - time.monotonic()) > 0:
            self.supervisor.settimeout(left)
            try:
                heard.append(self.told())
            except TimeoutError:
                break
        self.supervisor.settimeout(LIMIT_S)
        return heard

    def test_it_tells_that_it_is_ready_and_that_it_stops(self) -> None:
        service = self.start()
        self.assertEqual(self.told(), "READY=1")
        self.assertEqual(service.stop(), 0)
        self.assertEqual(self.told(), "STOPPING=1")
        self.assertEqual(self.told_meanwhile(0.1), [])  # nobody asked for the watchdog's word

    def test_it_feeds_the_watchdog_while_the_data_path_answers(self) -> None:
        self.start(WATCHDOG_USEC=str(int(PATIENCE_S * 1e6)))
        heard = [self.told() for _ in range(5)]
        self.assertEqual(sorted(heard), ["READY=1", *["WATCHDOG=1"] * 4])

    def test_a_hung_data_path_starves_the_watchdog(self) -> None:
        service = self.start(WATCHDOG_USEC=str(int(PATIENCE_S * 1e6)))
        while self.told() != "WATCHDOG=1":
            pass
        try:
            with FrozenThread(service.pid, "hr-data"):
                self.told_meanwhile(1.5)  # what had been answered before
                self.assertEqual(self.told_meanwhile(4 * PATIENCE_S), [])
        except CannotFreeze as error:
            self.skipTest(str(error))
        self.assertEqual(self.told(), "WATCHDOG=1")

    def test_the_watchdog_of_another_process_is_not_fed(self) -> None:
        self.start(WATCHDOG_USEC="400000", WATCHDOG_PID="1")
        self.assertEqual(self.told(), "READY=1")
        self.assertEqual(self.told_meanwhile(1.0), [])

    def test_a_patience_that_is_none_is_named_and_left(self) -> None:
        service = self.start(WATCHDOG_USEC="soon")
        self.assertEqual(self.told(), "READY=1")
        service.await_log('WATCHDOG_USEC is "soon"')


if __name__ == "__main__":
    unittest.main(verbosity=2)
