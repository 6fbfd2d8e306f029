"""Examples under what starts training: torchrun with restarts, and Ray Train where a Python has it.

usage: launchers_test.py; HEADRACE_TEST_RAY names a Python with ray[train] and torch, else /opt/headrace-ray/bin/python3
is asked.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, ".."))
import torchrun
from support.service import ROOT, Service, client_environment, service_directory
from support.unittests import run_tests

EXAMPLES = os.path.join(ROOT, "client", "examples")
RAY = os.environ.get("HEADRACE_TEST_RAY", "/opt/headrace-ray/bin/python3")
LIMIT_S = 180
ENDED = re.compile(r"attempt (\d+) went on from step (\d+): (\d+) ranks, loss ([\d.]+), parameters (\w+)")


@unittest.skipUnless(importlib.util.find_spec("torch"), "no torch (package python3-torch)")
class Elastic(unittest.TestCase):
    """client/examples/elastic.py on one node."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="headrace-elastic-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.service = self.enterContext(Service())

    def train(self, name: str, *options: str) -> tuple[str, ...]:
        """Attempt, step it went on from, ranks, loss and parameters."""
        command = [
            sys.executable, "-B", "-m", "torch.distributed.run", "--nproc_per_node", "2", "--max_restarts", "3",
            "--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0", "--rdzv_id", f"elastic-{name}",
            *torchrun.STREAMS, "--monitor_interval", "0.2", "--log_dir", os.path.join(self.folder, name),
            os.path.join(EXAMPLES, "elastic.py"), "--snapshot", os.path.join(self.folder, f"{name}.pt"), *options,
        ]  # fmt: skip
        environment = client_environment(HEADRACE_SOCKET=self.service.socket, OMP_NUM_THREADS="1")
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        found = ENDED.search(done.stdout)
        self.assertIsNotNone(found, done.stdout + done.stderr)
        assert found is not None
        self.service.await_job_gone(f"elastic-{name}")
        return found.groups()

    def test_a_rank_that_dies_changes_no_bit_of_the_end(self) -> None:
        for way in ((), ("--ddp",)):
            with self.subTest(way=way):
                kind = "ddp" if way else "plan"
                undisturbed = self.train(f"{kind}-whole", *way)
                self.assertEqual(undisturbed[:3], ("0", "0", "2"))
                disturbed = self.train(f"{kind}-broken", *way, "--die-at", "25")
                self.assertEqual(disturbed[:3], ("1", "20", "2"))
                self.assertEqual(disturbed[3:], undisturbed[3:])


def lacks_ray() -> str:
    """Why Ray Train cannot be tried; empty: it can."""
    if not os.access(RAY, os.X_OK):
        return f"{RAY} is not there: HEADRACE_TEST_RAY names a Python with ray[train] and torch"
    done = subprocess.run([RAY, "-c", "import torch, ray.train.torch"], capture_output=True, text=True)
    return "" if done.returncode == 0 else f"{RAY}: {(done.stderr.strip().splitlines() or ['?'])[-1]}"


class RayTrain(unittest.TestCase):
    """client/examples/ray_train.py, with a service of its own."""

    def test_ranks_end_with_the_same_parameters_as_over_gloo(self) -> None:
        if reason := lacks_ray():
            self.skipTest(reason)
        ends = [self.train(backend) for backend in ("headrace", "gloo")]
        # Two ranks' sums have no order, so even the bits agree.
        self.assertEqual(ends[0], ends[1])

    def train(self, backend: str) -> str:
        environment = client_environment(
            HEADRACE_HEADRACED=os.path.join(service_directory(), "headraced"), OMP_NUM_THREADS="1",
            RAY_USAGE_STATS_ENABLED="0",
        )  # fmt: skip
        program = os.path.join(EXAMPLES, "ray_train.py")
        done = subprocess.run(
            [RAY, "-B", "-m", "headrace", "run", "--", RAY, "-B", program, "--ranks", "2", "--backend", backend],
            env=environment, capture_output=True, text=True, timeout=LIMIT_S,
        )  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        found = re.search(r"2 ranks over (\w+): parameters (\w+), the same on all", done.stdout + done.stderr)
        self.assertIsNotNone(found, done.stdout + done.stderr)
        assert found is not None
        self.assertEqual(found.group(1), backend)
        return found.group(2)


if __name__ == "__main__":
    run_tests()
