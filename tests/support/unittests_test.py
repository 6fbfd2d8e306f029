"""Does a test file say so when none of its tests could run?"""

from __future__ import annotations

import subprocess
import sys
import unittest
from pathlib import Path

SUPPORT = Path(__file__).parent
HEAD = "import unittest\nfrom unittests import run_tests\n"
SKIPPED_CLASS = """
class Skipped(unittest.TestCase):
    @classmethod
    def setUpClass(cls): raise unittest.SkipTest("no namespaces")
    def test_one(self): pass
    def test_two(self): pass
"""
SKIPPED_TEST = """
class SkippedTest(unittest.TestCase):
    def test_one(self): self.skipTest("no card")
"""
SKIPPED_PARTS = """
class SkippedParts(unittest.TestCase):
    def test_one(self):
        for part in range(3):
            with self.subTest(part=part): self.skipTest("no part")
"""
RUNS = """
class Runs(unittest.TestCase):
    def test_one(self): pass
"""
FAILS = """
class Fails(unittest.TestCase):
    def test_one(self): self.fail("wrong")
"""


def end_of(*classes: str) -> tuple[int, str]:
    """Exit status and output of a file with these classes."""
    program = "".join((HEAD, *classes, "run_tests()\n"))
    done = subprocess.run(
        [sys.executable, "-B", "-c", program], cwd=SUPPORT, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout


class RunTests(unittest.TestCase):
    def test_a_file_of_which_nothing_ran_is_skipped_with_the_reason(self) -> None:
        self.assertEqual(end_of(SKIPPED_CLASS), (77, "skipped: no namespaces\n"))
        self.assertEqual(end_of(SKIPPED_TEST), (77, "skipped: no card\n"))
        self.assertEqual(end_of(SKIPPED_CLASS, SKIPPED_TEST)[0], 77)

    def test_a_file_of_which_one_test_ran_has_passed(self) -> None:
        for skipped in (SKIPPED_CLASS, SKIPPED_TEST, SKIPPED_PARTS):
            self.assertEqual(end_of(RUNS, skipped)[0], 0)

    def test_a_failure_outweighs_what_was_skipped(self) -> None:
        self.assertEqual(end_of(FAILS, SKIPPED_CLASS)[0], 1)


if __name__ == "__main__":
    unittest.main()
