"""The end of a test file: runs its tests, and tells ctest when none could run."""

from __future__ import annotations

import sys
import unittest

SKIPPED = 77  # ctest's SKIP_RETURN_CODE in the CMake files of these tests


def run_tests() -> None:
    """Like unittest.main. When every test was skipped, says why and exits with 77."""
    program = unittest.main(exit=False, verbosity=2)
    result = program.result
    if not result.wasSuccessful():
        sys.exit(1)
    # A class or module that is skipped as a whole is an entry of its own, and none of its tests is counted as run.
    # A test of which parts were skipped (subTest) has run.
    skipped = [test for test, _ in result.skipped if isinstance(test, unittest.TestCase)]
    began = [test for test in skipped if not hasattr(test, "test_case")]
    if result.skipped and result.testsRun <= len(began):
        print(f"skipped: {result.skipped[0][1]}")
        sys.exit(SKIPPED)
