"""Every change of the list still fits the tree, so that the list cannot rot."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from mutants import Mutant, StaleList, find_place, load_list, mutated
from support.unittests import run_tests

ROOT = Path(__file__).resolve().parents[2]


def has_git() -> bool:
    command = ["git", "-c", "safe.directory=*", "-C", str(ROOT), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        return False


@unittest.skipUnless(has_git(), "no git, or the tree is an unpacked archive")
class List(unittest.TestCase):
    """The committed list and this tree."""

    def setUp(self) -> None:
        self.mutants = load_list()

    def test_every_line_stands_once(self) -> None:
        for mutant in self.mutants:
            with self.subTest(mutant.name):
                find_place(ROOT, mutant)

    def test_every_change_changes_something(self) -> None:
        for mutant in self.mutants:
            with self.subTest(mutant.name):
                self.assertNotEqual(mutant.before, mutant.after)
                text = find_place(ROOT, mutant).read_text(encoding="utf-8")
                self.assertNotEqual(mutated(text, mutant), text)

    def test_names_are_unique_and_targets_exist(self) -> None:
        names = [mutant.name for mutant in self.mutants]
        self.assertEqual(len(names), len(set(names)))
        built = "\n".join(
            path.read_text(encoding="utf-8") for path in ROOT.glob("**/CMakeLists.txt")
        )
        for mutant in self.mutants:
            re.compile(mutant.tests)
            for target in mutant.targets:
                with self.subTest(mutant.name, target=target):
                    self.assertRegex(built, rf"add_(executable|library)\({re.escape(target)}\b")

    def test_a_line_that_is_gone_or_stands_twice_is_an_error(self) -> None:
        mutant = self.mutants[0]
        for before in ("no such line", ""):
            with self.assertRaises(StaleList):
                find_place(ROOT, dataclasses.replace(mutant, before=before))
        with self.assertRaises(StaleList):
            find_place(ROOT, dataclasses.replace(mutant, file="no_such_file.cc"))

    def test_one_line_is_replaced(self) -> None:
        mutant = Mutant("n", "w", "f", "  b", "  B", [], "")
        self.assertEqual(mutated("a\n  b\nc\n", mutant), "a\n  B\nc\n")


if __name__ == "__main__":
    run_tests()
