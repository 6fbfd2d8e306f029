"""The wheel, in an environment of its own: its record is true, it needs no more than it says, and two
ranks average through the service with nothing but it.

usage: wheel_test.py; HEADRACE_BUILD names the build tree.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE.parent))
sys.dont_write_bytecode = True

from support.service import Service, build_directory

# As torch 2.15 does when a backend of that name is asked for.
FINDS = """
from importlib.metadata import entry_points
(point,) = entry_points(group="torch.distributed.backends")
point.load()()
import torch.distributed
print(torch.distributed.Backend.HEADRACE)
"""
AVERAGES = """
import sys, headrace, numpy
with headrace.init(job="wheel", rank=int(sys.argv[1]), world_size=2) as session:
    array = numpy.full(4, session.rank, numpy.float32)
    session.all_reduce(array, op="average")
    assert (array == 0.5).all(), array
    print(headrace.library.load()._name)
"""


BUILDS = """
import importlib, os, sys, tomllib
project, folder, build = sys.argv[1:]
os.chdir(project)
with open("pyproject.toml", "rb") as file:
    system = tomllib.load(file)["build-system"]
assert system["requires"] == [], system
sys.path[:0] = system["backend-path"]
print(importlib.import_module(system["build-backend"]).build_wheel(folder, {"build-dir": build}))
"""


class WheelTest(unittest.TestCase):
    folder: tempfile.TemporaryDirectory
    wheel: Path

    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = tempfile.TemporaryDirectory(prefix="headrace-wheel-")
        cls.addClassCleanup(cls.folder.cleanup)
        program = ROOT / "containers" / "packages" / "wheel"
        made = subprocess.run(
            [sys.executable, "-B", str(program), build_directory(), cls.folder.name],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        cls.wheel = Path(made.stdout.strip())

    def test_its_name_promises_glibc_2_35(self) -> None:
        self.assertRegex(self.wheel.name, r"^headrace-[0-9.]+-py3-none-manylinux_2_35_\w+\.whl$")

    def test_its_record_names_every_file_with_its_digest(self) -> None:
        with zipfile.ZipFile(self.wheel) as wheel:
            names = set(wheel.namelist())
            record = next(name for name in names if name.endswith("/RECORD"))
            rows = list(csv.reader(io.StringIO(wheel.read(record).decode())))
            self.assertEqual({row[0] for row in rows}, names)
            for name, digest, size in rows:
                if name == record:
                    continue
                data = wheel.read(name)
                wanted = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
                self.assertEqual((digest, int(size)), (f"sha256={wanted}", len(data)), name)

    def test_python_s_tools_make_the_same_file(self) -> None:
        # What pip does with client/python/pyproject.toml (PEP 517), in a process of its own.
        with tempfile.TemporaryDirectory() as folder:
            made = subprocess.run(
                [sys.executable, "-B", "-c", BUILDS, str(ROOT / "client" / "python"), folder, build_directory()],
                capture_output=True, text=True, check=True,
            )  # fmt: skip
            self.assertEqual((Path(folder) / made.stdout.strip()).read_bytes(), self.wheel.read_bytes())

    def test_it_has_the_project_s_licence_and_names_it(self) -> None:
        with zipfile.ZipFile(self.wheel) as wheel:
            folder = next(name for name in wheel.namelist() if name.endswith("/METADATA")).rsplit("/", 1)[0]
            self.assertIn("\nLicense: Apache-2.0\n", wheel.read(f"{folder}/METADATA").decode())
            self.assertEqual(wheel.read(f"{folder}/licenses/LICENSE"), (ROOT / "LICENSE").read_bytes())

    def test_every_library_in_it_has_its_licence(self) -> None:
        with zipfile.ZipFile(self.wheel) as wheel:
            names = wheel.namelist()
            licences = next(name for name in names if name.endswith("licenses/carried.txt")).removesuffix(
                "carried.txt"
            )
            owners = dict(line.split("\t") for line in wheel.read(licences + "carried.txt").decode().splitlines())
            carried = [name.rsplit("/", 1)[1] for name in names if name.startswith("headrace/headrace/")]
            self.assertGreater(len(carried), 3)
            for library in carried:
                self.assertIn(f"{licences}{owners[library]}/copyright", names, library)

    def test_torch_finds_the_backend_by_it(self) -> None:
        place = Path(self.folder.name) / "found"
        with zipfile.ZipFile(self.wheel) as wheel:
            wheel.extractall(place)
        found = subprocess.run(
            [sys.executable, "-B", "-c", FINDS], env={"PATH": os.environ["PATH"], "PYTHONPATH": str(place)},
            capture_output=True, text=True,
        )  # fmt: skip
        self.assertEqual((found.stdout, found.stderr), ("HEADRACE\n", ""))

    def test_two_ranks_average_with_nothing_but_it(self) -> None:
        place = Path(self.folder.name) / "site"
        with zipfile.ZipFile(self.wheel) as wheel:
            wheel.extractall(place)
        with Service() as service:
            environment = {
                "PATH": os.environ["PATH"], "PYTHONPATH": str(place), "HEADRACE_SOCKET": service.socket,
                "PYTHONDONTWRITEBYTECODE": "1",
            }  # fmt: skip
            ranks = [
                subprocess.Popen(
                    [sys.executable, "-c", AVERAGES, str(rank)], env=environment, text=True,
                    stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                )
                for rank in range(2)
            ]  # fmt: skip
            for rank in ranks:
                out, err = rank.communicate(timeout=60)
                self.assertEqual(rank.returncode, 0, err)
                self.assertEqual(Path(out.strip()), place / "headrace" / "libheadrace.so")


if __name__ == "__main__":
    unittest.main(verbosity=2)
