"""Programs in Python say what to install where a module is missing, in a sentence.

They run in processes of their own in which the module cannot be imported.
"""

import importlib.util
import os
import pathlib
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "client" / "examples"

RUN = """
import runpy, sys
for name in sys.argv.pop(1).split(","):
    sys.modules[name] = None  # as if it were not installed
what = sys.argv.pop(1)
if what.endswith(".py"):
    sys.argv[0] = what
    sys.path.insert(0, what.rpartition("/")[0])
    runpy.run_path(what, run_name="__main__")
else:
    runpy.run_module(what, run_name="__main__", alter_sys=True)
"""


def run(missing: str, what: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ, PYTHONPATH=str(ROOT / "client" / "python"))
    return subprocess.run(
        [sys.executable, "-B", "-c", RUN, missing, what, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


class MissingModules(unittest.TestCase):
    def expect_sentence(
        self, ran: subprocess.CompletedProcess[str], *words: str
    ) -> None:
        self.assertEqual(ran.returncode, 1, ran.stderr)
        self.assertNotIn("Traceback", ran.stderr)
        self.assertEqual(len(ran.stderr.splitlines()), 1, ran.stderr)
        for word in words:
            self.assertIn(word, ran.stderr)

    def test_the_recorder_of_profiles_without_torch(self) -> None:
        ran = run("torch", "headrace.profile", "resnet18")
        self.expect_sentence(ran, "headrace.profile needs torch", "python3-torch")

    def test_the_recorder_of_profiles_without_torchvision(self) -> None:
        if importlib.util.find_spec("torch") is None:
            self.skipTest("no torch")
        ran = run("torchvision,torchvision.models", "headrace.profile", "resnet18")
        self.expect_sentence(ran, "needs torchvision", "python3-torchvision")

    def test_the_package_for_torch(self) -> None:
        ran = run("torch", "headrace.torch")
        self.assertNotEqual(ran.returncode, 0)
        last = ran.stderr.splitlines()[-1]
        self.assertTrue(last.startswith("ImportError: "), last)
        self.assertIn("python3-torch", last)

    def test_the_examples(self) -> None:
        for name in ("digits.py", "gpt.py", "resnet.py"):
            with self.subTest(name):
                self.expect_sentence(run("torch", str(EXAMPLES / name)), "python3-torch")
        with self.subTest("a rank of the quickstart"):
            rank = ROOT / "tests" / "bench" / "digits" / "rank.py"
            self.expect_sentence(run("torch", str(rank)), "python3-torch")
        with self.subTest("digits.py without sklearn"):
            ran = run("sklearn,sklearn.datasets", str(EXAMPLES / "digits.py"))
            self.expect_sentence(ran, "python3-sklearn")
        ran = run("numpy", str(EXAMPLES / "numpy_example.py"))
        self.expect_sentence(ran, "python3-numpy")


if __name__ == "__main__":
    unittest.main()
