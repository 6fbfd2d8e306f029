"""Programs one version apart: each works, or is refused by both numbers and which side to update.

usage: versions_test.py ATTACH_VERSIONS [unittest's arguments]; that program speaks other versions.
"""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from support.ranks import Ranks
from support.service import Service, build_directory

ATTACH_VERSIONS = ""
BOARD_VERSION_AT = 8  # ipc/BOARD.md
VIEWS = ("status", "jobs", "queue", "lanes", "events", "doctor")


class VersionsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.service = Service()
        cls.addClassCleanup(cls.service.close)
        cls.service.start()
        text = subprocess.run(
            [os.path.join(build_directory(), "headracectl"), "--version"],
            capture_output=True, text=True, check=True, timeout=60,
        ).stdout  # fmt: skip
        numbers = re.search(r"\(protocol (\d+), board (\d+)\)", text)
        assert numbers is not None, text
        cls.protocol, cls.board = int(numbers[1]), int(numbers[2])

    def answer(self, kind: str, protocol: int = 0, channel: int = 0) -> str:
        """What the service says to a client whose numbers are off by these."""
        return subprocess.run(
            [ATTACH_VERSIONS, kind, self.service.socket, str(protocol), str(channel)],
            capture_output=True, text=True, check=True, timeout=60,
        ).stdout.strip()  # fmt: skip

    def tearDown(self) -> None:
        """Whatever came, the service serves its own version."""
        self.assertIsNone(self.service.process.poll())
        # The ranks of the test before may still be leaving.
        with Ranks(self.service, 2, job=self.id().rpartition(".")[2][-60:]) as ranks:
            ranks.each("tensor", name="w", count=16)
            ranks.each("post", kind="all_reduce", name="w")
            ranks.each("wait")

    def test_a_client_of_equal_numbers_that_knows_fewer_fields_works(self) -> None:
        self.assertEqual(self.answer("attach"), "ok:")
        self.assertEqual(self.answer("admin"), "ok:")

    def test_an_older_protocol_is_refused_and_the_client_to_be_updated(self) -> None:
        for kind in ("attach", "admin"):
            text = self.answer(kind, protocol=-1)
            self.assertRegex(
                text,
                rf"version mismatch: .*headraced \S+ speaks protocol {self.protocol}, .* speaks "
                rf"protocol {self.protocol - 1}: update the latter, which is older",
            )

    def test_a_newer_protocol_is_refused_and_the_service_to_be_updated(self) -> None:
        for kind in ("attach", "admin"):
            text = self.answer(kind, protocol=1)
            self.assertRegex(
                text,
                rf"version mismatch: .*headraced \S+ speaks protocol {self.protocol}, .* speaks "
                rf"protocol {self.protocol + 1}: update the service",
            )

    def test_another_channel_is_refused_and_the_older_side_named(self) -> None:
        older, newer = self.answer("attach", channel=-1), self.answer("attach", channel=1)
        self.assertRegex(older, r"version mismatch: .*update the client library\b")
        self.assertRegex(newer, r"version mismatch: .*update the service\b")
        spoken = {int(number) for number in re.findall(r"version (\d+)", older + newer)}
        self.assertEqual(len(spoken), 3, "each text names both numbers")

    def test_another_board_is_refused_by_every_view_and_the_older_side_named(self) -> None:
        for difference, remedy in ((-1, "update the service"), (1, "update this program")):
            path = os.path.join(self.service.directory, f"board{difference}")
            with open(self.service.board, "rb") as board:
                content = bytearray(board.read())
            struct.pack_into("<I", content, BOARD_VERSION_AT, self.board + difference)
            with open(path, "wb") as other:
                other.write(content)
            for view in VIEWS:
                with self.subTest(view, board=self.board + difference):
                    result = subprocess.run(
                        [os.path.join(build_directory(), "headracectl"),
                         "--board", path, "--socket", self.service.socket, view],
                        capture_output=True, text=True, timeout=60,
                    )  # fmt: skip
                    said = result.stdout + result.stderr
                    self.assertIn(result.returncode, (1, 2), said)
                    self.assertIn(f"version {self.board + difference} ", said)
                    self.assertIn(f"version {self.board} ", said)
                    self.assertIn(remedy, said)


if __name__ == "__main__":
    ATTACH_VERSIONS = sys.argv.pop(1)
    unittest.main(verbosity=2)
