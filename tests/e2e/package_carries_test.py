"""An installation carries all that it needs, and says whose it is: every shared library that is copied
has its licence beside, and needs nothing that is not there.

usage: package_carries_test.py; HEADRACE_BUILD names the build tree.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
sys.dont_write_bytecode = True

from support.service import build_directory

GLIBC = re.compile(r"^(ld-linux.*|lib(c|m|dl|rt|pthread|util|resolv))\.so\.\d+$")
COMPONENTS = ("service", "libraries", "planner", "client")


def needed(file: Path) -> list[str]:
    """DT_NEEDED of one file."""
    dynamic = subprocess.run(["readelf", "-d", file], capture_output=True, text=True, check=True).stdout
    return re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)


class CarriedTest(unittest.TestCase):
    """Installs once; nothing of it is changed."""

    root: Path
    told: str

    @classmethod
    def setUpClass(cls) -> None:
        folder = tempfile.TemporaryDirectory(prefix="headrace-carried-")
        cls.addClassCleanup(folder.cleanup)
        cls.root = Path(folder.name)
        cls.told = ""
        for component in COMPONENTS:
            command = ["cmake", "--install", build_directory(), "--prefix", folder.name, "--component", component]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                raise AssertionError(f"{' '.join(command)}: {done.stderr}")
            cls.told += done.stderr
        cls.carried = next(path.parent for path in cls.root.rglob("libheadrace.so")) / "headrace"
        cls.licences = cls.root / "share" / "doc" / "headrace" / "licences"

    def owners(self) -> dict[str, str]:
        """Packages, by what they own."""
        lines = "".join(path.read_text() for path in self.licences.glob("*.txt")).splitlines()
        return dict(line.split("\t") for line in lines)

    def libraries(self) -> list[Path]:
        return sorted(path for path in self.carried.rglob("*.so*") if not path.is_symlink())

    def test_the_project_s_own_licence_is_there(self) -> None:
        text = (HERE.parent.parent / "LICENSE").read_text()
        self.assertEqual((self.root / "share" / "doc" / "headrace" / "LICENSE").read_text(), text)

    def test_every_library_has_its_licence_beside(self) -> None:
        self.assertEqual(self.told, "")  # a licence that was not found is a warning
        owners = self.owners()
        files = {(self.carried / name).resolve(): package for name, package in owners.items()}
        files |= {(self.carried / "ucx" / name).resolve(): package for name, package in owners.items()}
        for library in self.libraries():
            with self.subTest(library.name):
                self.assertIn(library.resolve(), files)
                text = self.licences / files[library.resolve()] / "copyright"
                self.assertGreater(text.stat().st_size, 500)

    def test_what_is_compiled_in_has_its_licence_too(self) -> None:
        inside = {name: package for name, package in self.owners().items() if name.startswith("compiled in")}
        self.assertIn("compiled in: fmt/format.h", inside)
        for package in inside.values():
            self.assertTrue((self.licences / package / "copyright").exists(), package)

    def test_licences_that_others_refer_to_are_there(self) -> None:
        referred: set[str] = set()
        for text in self.licences.glob("*/copyright"):
            names = re.findall(r"/usr/share/common-licenses/([A-Za-z0-9.+-]+)", text.read_text())
            referred |= {name.rstrip(".") for name in names}
        self.assertIn("Apache-2.0", referred)
        there = {path.name for path in (self.licences / "common").iterdir()}
        self.assertEqual(referred - there, set())

    def test_nothing_carried_needs_what_is_not(self) -> None:
        programs = [self.root / "bin" / name for name in ("headraced", "headracectl", "headrace-plan")]
        missing = []
        for file in [*programs, *self.libraries()]:
            places = [self.carried, self.carried.parent]
            if file.parent.name == "ucx":
                places.append(file.parent)  # UCX has loaded the modules that its modules need
            for name in needed(file):
                if not GLIBC.match(name) and not any((place / name).exists() for place in places):
                    missing.append(f"{name}, for {file.name}")
        self.assertEqual(missing, [])

    def test_nothing_carried_looks_for_libraries_elsewhere(self) -> None:
        for library in self.libraries():
            dynamic = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
            self.assertNotRegex(dynamic, r"\((RUNPATH|RPATH)\)", library.name)

    def test_rdma_modules_come_with_their_drivers(self) -> None:
        if not (self.carried / "ucx" / "libuct_ib.so.0").exists():
            self.skipTest("this build's UCX has no module for RDMA")
        drivers = {path.name for path in self.carried.glob("*-rdmav*.so")}
        self.assertTrue(any(name.startswith("libmlx5-") for name in drivers), drivers)
        # The drivers' version is part of the ABI between them and the libibverbs that is carried.
        self.assertEqual(len({name.rsplit("-", 1)[1] for name in drivers}), 1)

    def test_programs_load_what_stands_beside_them(self) -> None:
        for name in ("headraced", "headracectl", "headrace-plan"):
            run = subprocess.run(
                [self.root / "bin" / name, "--help"], env={"LD_DEBUG": "libs"}, capture_output=True, text=True
            )
            self.assertEqual(run.returncode, 0, run.stderr[-2000:])
            loaded = [Path(path) for path in re.findall(r"calling init: (\S+)", run.stderr)]
            strangers = [
                path for path in loaded if not GLIBC.match(path.name) and self.root not in path.resolve().parents
            ]
            self.assertEqual(strangers, [], name)
            self.assertGreater(len(loaded), 4)


if __name__ == "__main__":
    os.umask(0o022)
    unittest.main(verbosity=2)
