"""The wheel, in an environment of its own: its record is true, it needs no more than it says, and two
ranks average through its service with nothing but it.

usage: wheel_test.py; HEADRACE_BUILD names the build tree.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import re
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

# With nothing but the standard library and the wheel: shared memory, no numpy. The job lives for longer than
# the report looks away.
TRAINS = """
import os, struct, time, headrace
with headrace.init(job="wheel", rank=0, world_size=1) as session:
    arena = session.arena(4096)
    tensor = arena.tensor((4,), "float32")
    arena.memory[:16] = struct.pack("4f", 1, 2, 3, 4)
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline:
        session.all_reduce(tensor)
        time.sleep(0.1)
    assert struct.unpack("4f", arena.memory[:16]) == (1, 2, 3, 4)
    print(os.readlink(f"/proc/{session.service_pid}/exe"), headrace.library.load()._name)
"""
# What every machine of the glibc that the wheel's name asks for has.
OF_EVERY_SYSTEM = re.compile(r"^(ld-linux.*|lib(c|m|dl|rt|pthread|util|resolv|stdc\+\+|gcc_s))\.so\.\d+$")
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("HEADRACE_", "PYTHON", "PIP_"))}

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
            carried = [name.rsplit("/", 1)[1] for name in names if name.startswith("headrace/lib/headrace/")]
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
                self.assertEqual(Path(out.strip()), place / "headrace" / "lib" / "libheadrace.so")


    def test_programs_and_libraries_need_only_glibc_and_what_comes_along(self) -> None:
        place = Path(self.folder.name) / "needs"
        with zipfile.ZipFile(self.wheel) as wheel:
            wheel.extractall(place)
        files = [*(place / "headrace" / "bin").iterdir(), *(place / "headrace" / "lib").rglob("*.so*")]
        names = {path.name for path in files}
        self.assertLessEqual({"headraced", "headracectl", "headrace-plan", "libheadrace.so", "libucp.so.0"}, names)
        for file in files:
            dynamic = subprocess.run(["readelf", "-d", str(file)], capture_output=True, text=True, check=True).stdout
            for name in re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic):
                self.assertTrue(name in names or OF_EVERY_SYSTEM.match(name), (file.name, name))

    def installed(self) -> Path:
        """A virtual environment with the wheel in it, put there by pip without a registry."""
        place = Path(self.folder.name) / "environment"
        if place.exists():
            return place
        for command in (
            [sys.executable, "-m", "venv", str(place)],
            [str(place / "bin" / "pip"), "install", "--quiet", "--no-index", "--no-deps", str(self.wheel)],
        ):
            done = subprocess.run(command, capture_output=True, text=True, env=CLEAN)
            self.assertEqual(done.returncode, 0, (command, done.stderr))
        return place

    def command(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        """One of the environment's commands, with no other in PATH but the system's."""
        bin_folder = self.installed() / "bin"
        environment = {**CLEAN, "PATH": f"{bin_folder}:/usr/bin:/bin", **more}
        return subprocess.run(
            [str(bin_folder / arguments[0]), *arguments[1:]],
            env=environment, capture_output=True, text=True, timeout=120,
        )  # fmt: skip

    def test_pip_makes_the_programs_commands(self) -> None:
        for name in ("headraced", "headracectl", "headrace-plan"):
            done = self.command(name, "--help")
            self.assertEqual(done.returncode, 0, (name, done.stderr))
            self.assertIn(name, done.stdout)
        self.assertEqual(self.command("headracectl", "no-such-command").returncode, 2)

    def test_a_program_runs_with_the_wheel_s_service(self) -> None:
        script = Path(self.folder.name) / "train.py"
        script.write_text(TRAINS)
        done = self.command("headrace", "run", "--report", "--", "python", str(script))
        self.assertEqual(done.returncode, 0, done.stderr)
        package = next((self.installed() / "lib").glob("python3*/site-packages/headrace"))
        expected = [package / "bin" / "headraced", package / "lib" / "libheadrace.so"]
        self.assertEqual([Path(path) for path in done.stdout.split()], expected)
        self.assertIn("job wheel: 1 rank", done.stderr)

    def test_a_wheel_that_lost_its_programs_says_so(self) -> None:
        with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(self.wheel) as wheel:
            wheel.extractall(folder, [name for name in wheel.namelist() if "/bin/" not in name])
            code = "import headrace.programs; headrace.programs.headraced()"
            done = subprocess.run(
                [sys.executable, "-B", "-c", code], env={**CLEAN, "PYTHONPATH": folder}, capture_output=True, text=True
            )
        self.assertEqual(done.returncode, 1)
        self.assertIn("headraced", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
