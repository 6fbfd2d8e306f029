"""tests/gpu/run on a machine without a GPU: its calls fit what a machine allows for one command, and its
Python steps go through on the doubles, so that a card's first minutes bring answers and not typing errors."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "gpu")]
from card import CALL_LIMIT_S, Machine, calls_of, check_limits
from support.service import build_directory

# In the order in which a card's answers are worth most.
ORDER = (
    "contract of memory", "contract of the nvlink", "import of 2 GiB", "averages beside a copy",
    "codecs beside a copy", "legacy memory", "a hang", "vanishes", "driver blocks",
    "post to completion", "with MPS", "torch's tensors", "expandable",
    "training, against DDP", "backend of torch", "backend, of expandable",
    "by NCCL", "by pinned",
    "torch, DDP", "torch, compiled", "torch, in parts", "profile recorder", "faults", "torch, split",
    "service killed", "matrix product", "compute-sanitizer",
)  # fmt: skip
# Post to completion takes minutes on the double, and tells nothing there but that it runs.
REHEARSED = ("legacy", "tensors", "expandable", "training", "backend", "two nodes", "product",
             "in parts", "recorder", "faults")  # fmt: skip
# What every machine with Python brings.
GLIBC = ("linux-vdso", "ld-linux-x86-64", "libc", "libm", "libpthread", "libdl", "librt", "libresolv")


class GpuRunTest(unittest.TestCase):
    def setUp(self) -> None:
        self.calls = calls_of(Machine(programs=Path(build_directory()), python=sys.executable))

    def test_each_call_fits_a_command(self) -> None:
        check_limits(self.calls)
        with self.assertRaisesRegex(ValueError, f"call 1 .* {CALL_LIMIT_S:.0f} s"):
            check_limits([[step for steps in self.calls for step in steps]])

    def test_the_most_telling_steps_come_first_and_the_sanitizer_last(self) -> None:
        names = [step.name for steps in self.calls for step in steps]
        self.assertEqual(len(names), len(ORDER), names)
        for name, words in zip(names, ORDER, strict=True):
            self.assertIn(words, name)

    def test_the_sanitizer_leaves_out_a_thousand_module_loads(self) -> None:
        command = self.calls[-1][-1].command
        test_filter = next(part for part in command if part.startswith("--gtest_filter="))
        program = next(part for part in command if part.endswith("nvlink_contract_test"))
        listed = subprocess.run(
            [program, test_filter, "--gtest_list_tests"], capture_output=True, text=True, check=True
        ).stdout
        self.assertIn("OnCuda", listed)
        self.assertNotIn("Thousand", listed)

    def test_python_steps_go_through_on_the_doubles(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            run = subprocess.run(
                [sys.executable, "-B", str(ROOT / "tests" / "gpu" / "run"), "--rehearse", "--build",
                 build_directory(), "--out", folder, "--only", *REHEARSED],
                capture_output=True, text=True, env={**os.environ},
            )  # fmt: skip
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        self.assertIn("13 passed, 0 failed, 0 skipped", run.stdout)

    def test_a_bare_name_reaches_the_loader_and_the_service(self) -> None:
        """What the loader was asked for is what the service is told: without a folder, too."""
        double = Path(build_directory()) / "tests/support/cuda_double/libcuda.so.1"
        environment = {**os.environ, "LD_LIBRARY_PATH": str(double.parent), "GPU_REHEARSAL": "1"}
        with tempfile.TemporaryDirectory() as folder:
            run = subprocess.run(
                [sys.executable, "-B", str(ROOT / "tests" / "gpu" / "run"), "--build", build_directory(),
                 "--out", folder, "--only", "legacy"],
                capture_output=True, text=True, env=environment,
            )  # fmt: skip
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        self.assertIn("libcuda.so.1", run.stdout)
        self.assertIn("1 passed, 0 failed, 0 skipped", run.stdout)

    def test_programs_that_do_not_start_are_told_with_the_loaders_words(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "headraced"
            program.write_text("#!/bin/sh\necho \"version GLIBC_2.36 not found\" >&2\nexit 1\n")
            program.chmod(0o755)
            run = subprocess.run(
                [sys.executable, "-B", str(ROOT / "tests" / "gpu" / "run"), "--build", folder, "--list"],
                capture_output=True, text=True,
            )  # fmt: skip
        self.assertEqual(run.returncode, 1, run.stdout + run.stderr)
        self.assertIn("GLIBC_2.36", run.stderr)
        self.assertIn("glibc 2.36", run.stderr)


class BundleTest(unittest.TestCase):
    """What tests/gpu/bundle makes runs where nothing of this machine is but glibc and Python."""

    def setUp(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        archive = Path(self.folder.name) / "carried.tar.gz"
        subprocess.run(
            [sys.executable, "-B", str(ROOT / "tests" / "gpu" / "bundle"), build_directory(), str(archive)],
            capture_output=True, check=True,
        )  # fmt: skip
        with tarfile.open(archive) as carried:
            carried.extractall(self.folder.name)
        self.bundle = Path(self.folder.name) / "carried"

    def test_programs_load_nothing_of_this_machine_but_glibc(self) -> None:
        programs = sorted((self.bundle / "bin").iterdir())
        self.assertIn("nccl_check", [program.name for program in programs])
        for program in [*programs, self.bundle / "lib" / "libheadrace.so"]:
            for line in self.loaded_by(program).splitlines():
                name, _, path = (part.strip() for part in line.partition("=>"))
                if Path(name.split()[0]).name.split(".")[0] in GLIBC:
                    continue
                self.assertTrue(path.startswith(str(self.bundle.resolve())), f"{program.name}: {line}")

    def loaded_by(self, program: Path) -> str:
        traced = subprocess.run(["ldd", str(program)], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"})
        self.assertEqual(traced.returncode, 0, traced.stderr)
        return traced.stdout

    def test_its_python_steps_go_through_without_this_tree(self) -> None:
        doubles = Path(build_directory()) / "tests" / "support"
        run = subprocess.run(
            [sys.executable, "-B", str(self.bundle / "tests" / "gpu" / "run"), "--rehearse",
             "--cuda-library", str(doubles / "cuda_double/libcuda.so.1"),
             "--nccl-library", str(doubles / "nccl_double/libnccl.so.2"), "--only", "legacy"],
            capture_output=True, text=True, cwd=self.folder.name,
            env={"PATH": "/usr/bin:/bin", "HOME": self.folder.name},
        )  # fmt: skip
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        self.assertIn("1 passed, 0 failed, 0 skipped", run.stdout)


if __name__ == "__main__":
    unittest.main()
