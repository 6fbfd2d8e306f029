"""tests/gpu/run on a machine without a GPU: its calls fit what a machine allows for one command, and its
Python steps go through on the doubles, so that a card's first minutes bring answers and not typing errors."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "gpu")]
from card import CALL_LIMIT_S, Machine, calls_of, check_limits
from support.service import build_directory

# In the order in which a card's answers are worth most.
ORDER = (
    "contract of memory", "contract of the nvlink", "import of 2 GiB", "beside a copy", "legacy memory",
    "a hang", "vanishes", "driver blocks", "post to completion", "with MPS", "torch's tensors", "expandable",
    "training, against DDP", "by NCCL", "by pinned", "service killed", "matrix product", "compute-sanitizer",
)  # fmt: skip
# Post to completion takes minutes on the double, and tells nothing there but that it runs.
REHEARSED = ("legacy", "tensors", "expandable", "training", "two nodes", "product")


class GpuRunTest(unittest.TestCase):
    def setUp(self) -> None:
        self.calls = calls_of(Machine(programs=Path(build_directory()), python=sys.executable))

    def test_each_call_fits_a_command(self) -> None:
        check_limits(self.calls)
        with self.assertRaisesRegex(ValueError, f"call 1 may take .* {CALL_LIMIT_S:.0f} s at most"):
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
        self.assertIn("8 passed, 0 failed, 0 skipped", run.stdout)

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
        self.assertIn("CUDA's driver: libcuda.so.1", run.stdout)
        self.assertIn("1 passed, 0 failed, 0 skipped", run.stdout)


if __name__ == "__main__":
    unittest.main()
