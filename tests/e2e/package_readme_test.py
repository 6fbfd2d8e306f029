"""The troubleshooting table of containers/README.md is keyed by what `headracectl doctor` prints: each of
its lines is one of doctor's, and whatever doctor may warn of is in it.

usage: package_readme_test.py
"""

from __future__ import annotations

import re
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.dont_write_bytecode = True


def told_by_doctor(levels: str) -> set[str]:
    """First words of the lines that doctor's sources print at such a level."""
    found: set[str] = set()
    for source in (ROOT / "client/cli/ctl").glob("doctor*.cc"):
        text = source.read_text()
        found |= set(re.findall(rf'\{{"([^"]+)",[^;{{]*?Level::k(?:{levels})\b', text))
        found |= set(re.findall(r'CheckLibrary\("([^"]+)"', text))
    return found


class TroubleshootingTest(unittest.TestCase):
    def setUp(self) -> None:
        page = (ROOT / "containers/README.md").read_text()
        section = page.split("\n## When `doctor` complains\n")[1].split("\n## ")[0]
        keys = re.findall(r"(?m)^\| (`[^|]+`) \|", section)
        self.keys = {name for key in keys for name in re.findall(r"`([^`]+)`", key)}

    def test_each_line_of_the_table_is_one_of_doctor_s(self) -> None:
        self.assertGreater(len(self.keys), 8)
        self.assertEqual(self.keys - told_by_doctor("Problem|Warning|Note|Ok"), set())

    def test_whatever_doctor_warns_of_is_in_the_table(self) -> None:
        self.assertEqual(told_by_doctor("Problem|Warning") - self.keys, set())


if __name__ == "__main__":
    unittest.main(verbosity=2)
