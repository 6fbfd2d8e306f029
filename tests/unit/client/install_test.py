"""The install tree needs nothing from the machine but glibc.

Reads HEADRACE_BUILD (the build folder) and CMAKE from the environment; ctest sets both.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

GLIBC = re.compile(r"^(ld-linux.*|lib(c|m|dl|rt|pthread|util|resolv))\.so\.\d+$")


def needed(library: pathlib.Path) -> list[str]:
    """DT_NEEDED of one file."""
    dynamic = subprocess.check_output(["readelf", "-d", library], text=True)
    return re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)


class InstallTree(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="headrace-install-")
        cls.root = pathlib.Path(cls.folder.name)
        subprocess.run(
            [
                os.environ["CMAKE"],
                "--install",
                os.environ["HEADRACE_BUILD"],
                "--component=client",
                f"--prefix={cls.root}",
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        cls.library = next(cls.root.rglob("libheadrace.so"))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_carries_all_that_is_needed_directly_or_not(self):
        carried = self.library.parent / "headrace"
        reached, waiting, missing = set(), [self.library], []
        while waiting:
            file = waiting.pop()
            for name in needed(file):
                if GLIBC.match(name) or name in reached:
                    continue
                reached.add(name)
                if (carried / name).exists():
                    waiting.append(carried / name)
                else:
                    missing.append(f"{name}, for {file.name}")
        self.assertEqual(missing, [])
        self.assertIn("libstdc++.so.6", reached)
        self.assertTrue(any(name.startswith("libkj-async") for name in reached))

    def test_loads_each_library_from_the_tree(self):
        run = subprocess.run(
            [sys.executable, "-c", f"import ctypes; ctypes.CDLL('{self.library}')"],
            env={"LD_DEBUG": "libs"},
            capture_output=True,
            text=True,
            check=True,
        )
        loaded = re.findall(
            r"calling init: (\S*(?:headrace|capnp|kj|stdc\+\+|gcc_s)\S*)", run.stderr
        )
        self.assertGreaterEqual(len(loaded), 7, run.stderr)
        for path in loaded:
            self.assertTrue(path.startswith(str(self.root)), path)

    def test_shows_nothing_but_the_c_functions(self):
        symbols = subprocess.check_output(
            ["readelf", "-W", "--dyn-syms", self.library], text=True
        )
        defined = [
            line.split()[7].split("@")[0]
            for line in symbols.splitlines()
            if re.match(r"\s*\d+:", line)
            and " UND " not in line
            and " ABS " not in line
        ]
        self.assertGreater(len(defined), 25)
        self.assertEqual([name for name in defined if not name.startswith("hr_")], [])

    def test_the_python_package_finds_its_library(self):
        package = next(self.root.rglob("headrace/__init__.py")).parent.parent
        program = "import headrace.library as l; print(l.load()._name)"
        printed = subprocess.check_output(
            [sys.executable, "-B", "-c", program],
            env={"PYTHONPATH": str(package)},
            text=True,
        )
        self.assertEqual(printed.strip(), str(self.library))

    def test_the_header_compiles_from_the_tree(self):
        subprocess.run(
            [
                "cc",
                "-std=c99",
                "-fsyntax-only",
                f"-I{self.root}/include",
                "-x",
                "c",
                "-",
            ],
            input="#include <headrace/headrace.h>\nint main(void) { return HR_OK; }\n",
            text=True,
            check=True,
        )

    def run_consumer(self, program: pathlib.Path) -> str:
        """What it prints; the library is found by the run path it was linked with."""
        return subprocess.check_output([program], env={}, text=True).strip()

    def write_program(self, folder: str) -> pathlib.Path:
        source = pathlib.Path(folder) / "program.c"
        source.write_text(
            "#include <headrace/headrace.h>\n#include <stdio.h>\n"
            "int main(void) { return puts(hr_version()) < 0; }\n"
        )
        return source

    def test_pkg_config_tells_a_c99_program_what_it_needs(self):
        pkgconfig = next(self.root.rglob("headrace.pc")).parent
        flags = subprocess.check_output(
            ["pkg-config", "--cflags", "--libs", "headrace"],
            env={**os.environ, "PKG_CONFIG_PATH": str(pkgconfig)},
            text=True,
        ).split()
        with tempfile.TemporaryDirectory() as folder:
            source = self.write_program(folder)
            program = pathlib.Path(folder) / "program"
            where = f"-Wl,-rpath,{self.library.parent}"
            command = ["cc", "-std=c99", "-pedantic", "-Werror", source, *flags, where]
            subprocess.run([*command, "-o", program], check=True)
            self.assertRegex(self.run_consumer(program), r"^\d+\.\d+\.\d+$")

    def test_cmake_finds_the_package(self):
        with tempfile.TemporaryDirectory() as folder:
            self.write_program(folder)
            (pathlib.Path(folder) / "CMakeLists.txt").write_text(
                "cmake_minimum_required(VERSION 3.25)\nproject(program C)\n"
                "find_package(headrace 0.1 CONFIG REQUIRED)\n"
                "add_executable(program program.c)\n"
                "target_link_libraries(program PRIVATE headrace::headrace)\n"
            )
            build = pathlib.Path(folder) / "build"
            prefix = f"-DCMAKE_PREFIX_PATH={self.root}"
            cmake = os.environ["CMAKE"]
            for command in (
                [cmake, "-S", folder, "-B", build, prefix],
                [cmake, "--build", build],
            ):
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            self.assertRegex(
                self.run_consumer(build / "program"), r"^\d+\.\d+\.\d+$"
            )


if __name__ == "__main__":
    unittest.main()
