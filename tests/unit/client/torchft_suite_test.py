"""torchft's own tests, as its wheel has them, on the backend headrace in the place of gloo.

torchft's Manager, LocalSGD, DiLoCo and DDP are as they are; each ProcessGroupGloo that its tests make is a
headrace.torch.ProcessGroup without ranks, which gets them by reconfigure(). So what gloo is asked is asked
of headrace. What does not pass must stand in LEFT_OUT, and what stands there must not pass.

usage: torchft_suite_test.py [--gloo] [-k PATTERN]...    the patterns choose among torchft's tests, by parts of
names; --gloo shows instead what passes with gloo. Exit status 77: torchft is not installed

Needs torch 2.14 or later: pip install torchft-nightly parameterized.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import importlib
import json
import os
import subprocess
import sys
import tempfile
import types
import unittest
from datetime import timedelta
from typing import Any

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
from support.service import Service, client_environment

try:
    import parameterized  # noqa: F401 - its tests need it
    import torch
    import torchft  # noqa: F401
except ImportError as error:
    print(f"skipped: {error}: torchft's tests need pip install torchft-nightly parameterized", file=sys.stderr)
    raise SystemExit(77) from error

LIMIT_S = 840
MODULES = ("reconfigure_test", "process_group_test", "manager_integ_test", "local_sgd_integ_test")
# By part of the name, why a test that gloo passes is left out.
_OWN = "looks into the handles of torchft's own groups, which name a TCPStore; those of headrace need none"
LEFT_OUT = {"ReconfigureTest.test_rendezvous": _OWN}
# Tests of torchft's gloo in a process of its own, which nothing of headrace is in: not run.
NOT_OURS = "baby"
# What headrace says where torchft's tests look for gloo's words.
OUR_WORDS = r"left the job|not all of the 2 ranks"


def why_left_out(name: str) -> str | None:
    """The reason, or None: it is to pass."""
    return next((why for part, why in LEFT_OUT.items() if part in name), None)


def run_module(name: str, patterns: list[str], gloo: bool) -> None:
    """In a process of its own: prints a line of JSON for each test that a module of torchft has."""
    module = importlib.import_module(f"torchft.{name}")
    if not gloo:
        _put_in_place_of_gloo(module)

    class Result(unittest.TestResult):
        def tell(self, test: unittest.TestCase, how: str, text: str = "") -> None:
            # A class that cannot be set up has one name for all its tests.
            short = ".".join(test.id().split(".")[-2:])
            print(json.dumps([short, how, text]), file=told, flush=True)

        def addSuccess(self, test: unittest.TestCase) -> None:
            self.tell(test, "passed")

        def addSkip(self, test: unittest.TestCase, reason: str) -> None:
            self.tell(test, "skipped", reason.splitlines()[0])

        def addFailure(self, test, error) -> None:
            self.tell(test, "failed", str(error[1]).strip()[-1000:])

        addError = addFailure

    loader = unittest.TestLoader()
    loader.testNamePatterns = [f"*{each}*" for each in patterns] or None
    with os.fdopen(int(os.environ["SUITE_TOLD"]), "w") as told:
        unittest.TestSuite(_ours(loader.loadTestsFromModule(module))).run(Result())
        told.flush()
        os._exit(0)  # torchft leaves threads behind where a test fails


def _ours(suite: unittest.TestSuite) -> list[unittest.TestCase]:
    """The tests one by one, but for those of NOT_OURS."""
    tests: list[unittest.TestCase] = []
    for each in suite:
        tests += _ours(each) if isinstance(each, unittest.TestSuite) else [each]
    return [test for test in tests if NOT_OURS not in test.id().lower()]


def _put_in_place_of_gloo(module: types.ModuleType) -> None:
    import headrace.torch
    import torchft._test.diloco_trainer
    from torchft.process_group import ProcessGroup, ReconfigureOptions

    class Group(headrace.torch.ProcessGroup, ProcessGroup):
        """With what torchft's tests ask its own groups besides."""

        def __init__(self, timeout: timedelta = timedelta(seconds=60)) -> None:
            super().__init__("", 0, 1, timeout, starts=False)

        def set_timeout(self, timeout: timedelta) -> None:
            self.timeout = timeout

        # torchft's wrappers look into handles: ours stands in one of theirs.

        def get_reconfigure_handle(self) -> str:
            handle = super().get_reconfigure_handle()
            return json.dumps({"id": self._handle_id(), "store": "", "global_rank": None, "handle": handle})

        def reconfigure(self, opts: ReconfigureOptions) -> Any:
            peers = [json.loads(handle) for handle in opts.handles]
            own = ReconfigureOptions()
            own.uuid = opts.uuid
            own.handles = [peer.get("handle") or _missing() for peer in peers]
            if opts.timeout is not None:
                own.timeout = opts.timeout
            return super().reconfigure(own)

    class Dist(types.ModuleType):
        """torch.distributed, where a test makes a native group by hand."""

        def __getattr__(self, name: str) -> Any:
            return getattr(torch.distributed, name)

        @staticmethod
        def ProcessGroup(*_: Any) -> Any:
            native = headrace.torch.ProcessGroup.reconfigurable()
            native._set_default_backend = native._register_backend = lambda *_: None
            return native

        @staticmethod
        def ProcessGroupGloo(*_: Any, enable_reconfigure: bool) -> None:
            assert enable_reconfigure

    Dist.ProcessGroup.BackendType = torch.distributed.ProcessGroup.BackendType
    Dist.ProcessGroup.reconfigure = torch.distributed.ProcessGroup.reconfigure
    for each in (module, torchft._test.diloco_trainer):
        each.ProcessGroupGloo = Group
    if module.__name__.endswith("manager_integ_test"):
        module.dist = Dist("dist")
    if module.__name__.endswith("process_group_test"):
        _accept_our_words(module)

    class Resizes(unittest.TestCase):
        """torchft's test of a native group, of init_process_group(enable_reconfigure=True)."""

        def test_resize_and_recover(self) -> None:
            store = torch.distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
            torch.multiprocessing.spawn(_resize, args=(store.port,), nprocs=3)

    if module.__name__.endswith("reconfigure_test"):
        module.Resizes = Resizes


def _missing() -> str:
    from headrace.torch.reconfigure import Handle

    missing = dataclasses.replace(Handle.own("own"), identity="missing")
    return missing.text()


def _accept_our_words(module: types.ModuleType) -> None:
    for each in (module.MultiPgBaseTest, module.ProcessGroupTest):

        def accept(self: unittest.TestCase, kind: Any, words: str, each: type = each) -> Any:
            return super(each, self).assertRaisesRegex(kind, f"{words}|{OUR_WORDS}")

        each.assertRaisesRegex = accept


def _resize(rank: int, port: int) -> None:
    import headrace.torch  # noqa: F401 - registers the backend
    from torchft.reconfigure_test import _resize_worker

    _resize_worker(rank, port, "headrace")


class Torchfts(unittest.TestCase):
    patterns: list[str] = []
    gloo = False

    def check(self, module: str) -> None:
        """Runs all of a module; each passes, leaves itself out, or stands in the table."""
        told = self.run_tests_of(module, self.patterns)
        # torchft's own deadlines are seconds, which a busy machine misses: what fails is run once more, alone.
        again = [name for name, how, _ in told if how == "failed" and not why_left_out(name)]
        told = [each for each in told if each[0] not in again]
        for name in again:
            told += self.run_tests_of(module, [name])
        found = collections.Counter(how for _, how, _ in told)
        left_out = [name for name, _, _ in told if why_left_out(name)]
        wrong = [
            f"{name} {how}: {text}"
            for name, how, text in told
            if how != "skipped" and (how == "passed") == (name in left_out and not self.gloo)
        ]
        reasons = collections.Counter(text for _, how, text in told if how == "skipped")
        print(
            f"torch {torch.__version__}, torchft {module}, {'gloo' if self.gloo else 'headrace'}: "
            f"{found['passed']} passed ({len(again)} were run again), {found['failed']} failed, of which are "
            f"left out: {len(left_out)}; "
            f"{found['skipped']} leave themselves out, mostly: {reasons.most_common(3)}",
            file=sys.stderr,
        )
        self.assertFalse(wrong, "\n".join(wrong))
        if not self.patterns:
            self.assertGreater(found["passed"], 0)

    def run_tests_of(self, module: str, patterns: list[str]) -> list[list[str]]:
        """What each test has come to: its name, how, and text."""
        reader, writer = os.pipe()
        arguments = [*(["--gloo"] if self.gloo else []), *patterns]
        with contextlib.ExitStack() as ends:
            told = ends.enter_context(os.fdopen(reader))
            output = ends.enter_context(tempfile.TemporaryFile("w+", errors="replace"))
            service = ends.enter_context(Service())
            process = subprocess.Popen(
                [sys.executable, "-B", os.path.abspath(__file__), "--module", module, *arguments],
                env=client_environment(
                    HEADRACE_SOCKET=service.socket,
                    HEADRACE_JOB="torchft",
                    SUITE_TOLD=str(writer),
                    OMP_NUM_THREADS="1",
                ),
                pass_fds=[writer],
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            os.close(writer)
            try:
                lines = [json.loads(line) for line in told]
                process.wait(LIMIT_S)
            finally:
                process.kill()
                process.wait()
            output.seek(0)
            text = output.read()
            if os.environ.get("HEADRACE_TEST_SHOW"):
                print(text, file=sys.stderr)
            self.assertEqual(process.returncode, 0, text[-3000:])
            if not (self.gloo or patterns):
                self.assertIn("attached", service.log(), "its tests have used headrace")
        return lines

    def test_reconfigure_test(self) -> None:
        self.check("reconfigure_test")

    def test_process_group_test(self) -> None:
        self.check("process_group_test")

    def test_manager_integ_test(self) -> None:
        self.check("manager_integ_test")

    def test_local_sgd_integ_test(self) -> None:
        self.check("local_sgd_integ_test")


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)  # the rest is unittest's
    parser.add_argument("-k", action="append", default=[])
    parser.add_argument("--gloo", action="store_true")
    parser.add_argument("--module")
    chosen, rest = parser.parse_known_args()
    if chosen.module:
        return run_module(chosen.module, rest, chosen.gloo)
    Torchfts.patterns, Torchfts.gloo = chosen.k, chosen.gloo
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
