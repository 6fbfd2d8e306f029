"""What is said of ninja's log: the last time of each object, the slowest first."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = os.path.dirname(os.path.abspath(__file__))
LOG = """# ninja log v5
0\t9000\t1\ta/CMakeFiles/lib.dir/slow.cc.o\tff
0\t2500\t1\ta/CMakeFiles/lib.dir/quick.cc.o\tff
0\t99000\t1\ta/liblib.a\tff
10000\t14000\t1\ta/CMakeFiles/lib.dir/slow.cc.o\tff
0\t70000\t1\ta/CMakeFiles/lib.dir/gone.cc.o\tff
"""


class SlowestUnits(unittest.TestCase):
    def test_count_each_object_that_is_there_once(self) -> None:
        with tempfile.TemporaryDirectory() as build:
            Path(build, ".ninja_log").write_text(LOG)
            objects = Path(build, "a/CMakeFiles/lib.dir")
            objects.mkdir(parents=True)
            for name in ("slow.cc.o", "quick.cc.o"):
                (objects / name).touch()
            said = self.run_on(build)
            self.assertEqual(said.returncode, 0, said.stderr)
            first, *rows = said.stdout.splitlines()
            self.assertIn("2 sources took 6 s", first)
            self.assertEqual([row.split() for row in rows], [["4.0", "s", "a/slow.cc"], ["2.5", "s", "a/quick.cc"]])

    def test_say_so_where_nothing_was_built(self) -> None:
        with tempfile.TemporaryDirectory() as empty:
            said = self.run_on(empty)
            self.assertEqual(said.returncode, 1)
            self.assertIn(".ninja_log", said.stderr)

    def run_on(self, build: str) -> subprocess.CompletedProcess[str]:
        script = os.path.join(HERE, "slowest_units.py")
        return subprocess.run(
            [sys.executable, script, build], capture_output=True, text=True, check=False
        )


if __name__ == "__main__":
    unittest.main()
