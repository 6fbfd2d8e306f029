"""torch's own tests of its collectives and of DDP, as torch installs them, on the backend headrace.

They are run as if the backend were gloo, so what gloo is asked is asked of headrace: by 2, 3 and 4 ranks, by one
service and by two, and at each of torch's debug levels. What does not pass must stand in LEFT_OUT, and
what stands there must not pass. What gloo passes here, or passed when tests/golden/torch/VERSION.txt was written, must
not leave itself out.

usage: torch_suite_test.py [-k PATTERN]...    the patterns choose among torch's tests, by parts of names

HEADRACE_GOLDEN_UPDATE=1 writes the file of this torch anew. HEADRACE_TEST_TORCH_CROSS=1 runs all world sizes with
one service and with two at all debug levels.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import importlib.util
import itertools
import json
import os
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Iterator

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
from support.cluster import Cluster, Services
from support.service import Service, client_environment

try:
    import torch
except ImportError as error:
    raise SystemExit(77) from error

LIMIT_S = 900
# World size, services, debug level: the runs that a usual test makes. The list of a torch has a column for each.
RUNS = ((4, 1, "OFF"), (3, 2, "INFO"), (2, 2, "DETAIL"))
WORLD_SIZES, SERVICES, LEVELS = (2, 3, 4), (1, 2), ("OFF", "INFO", "DETAIL")
GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../golden/torch")
# By part of the name, why a test that gloo passes is left out.
_MONITORED = "gloo's own call for debugging; any barrier of headrace names who is missing"
_BROKEN = "torch.distributed's sharded tensors cannot be imported with Debian's Python; so of gloo, too"
LEFT_OUT = {"test_monitored_barrier": _MONITORED}
LEFT_OUT_OF_1 = {
    "test_DistributedDataParallelCPU": _BROKEN,
    "test_ddp_create_graph": _BROKEN,
    "test_ddp_logging_data_cpu": _BROKEN,
    "test_static_graph_api_cpu": _BROKEN,
    "test_accumulate_gradients_no_sync": _BROKEN,
}
LEFT_OUT_IN_DETAIL = {"test_barrier_timeout": "a monitored barrier is expected to run before each"}
MODERN = not torch.__version__.startswith("1.")


def why_left_out(name: str, level: str) -> str | None:
    """The reason, or None: it is to pass."""
    table = dict(LEFT_OUT)
    if not MODERN:
        table.update(LEFT_OUT_OF_1)
    if level == "DETAIL":
        table.update(LEFT_OUT_IN_DETAIL)
    return next((why for part, why in table.items() if name.startswith(part)), None)


class GlooToo(str):
    """A name that tests take for gloo's, and torch for its own letters."""

    def __eq__(self, other: object) -> bool:
        return other == "gloo" or str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


def run_suite(backend: str, patterns: list[str]) -> None:
    """In a process of its own: prints a line of JSON for each test that torch has."""
    import headrace.torch  # noqa: F401 - registers the backend

    if importlib.util.find_spec("expecttest") is None:  # Debian has none; nothing here uses it
        stand_in = type(sys)("expecttest")
        stand_in.TestCase, stand_in.ACCEPT = unittest.TestCase, False
        sys.modules["expecttest"] = stand_in
    # Imported with gloo's name, so that no test leaves itself out.
    from torch.testing._internal import common_distributed
    from torch.testing._internal.distributed import distributed_test

    if backend == "headrace":
        distributed_test.BACKEND = GlooToo("headrace")
    for feature in ("ddp", "subgroup"):
        common_distributed.DistTestCases.backend_feature[feature].add("headrace")

    class Suite(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        def setUp(self) -> None:
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

        @classmethod
        def _run(cls, rank: int, *arguments: object, **named: object) -> None:
            sockets = os.environ.get("SUITE_SOCKETS", "").split(":")
            os.environ["HEADRACE_SOCKET"] = sockets[rank % len(sockets)]
            super()._run(rank, *arguments, **named)

    class Result(unittest.TestResult):
        def tell(self, test: unittest.TestCase, how: str, text: str = "") -> None:
            print(json.dumps([test._testMethodName, how, text]), file=told, flush=True)

        def addSuccess(self, test: unittest.TestCase) -> None:
            self.tell(test, "passed")

        def addSkip(self, test: unittest.TestCase, reason: str) -> None:
            self.tell(test, "skipped", reason.splitlines()[0])

        def addFailure(self, test, error) -> None:
            self.tell(test, "failed", str(error[1]).strip()[-1000:])

        addError = addFailure

    names = [name for name in dir(Suite) if name.startswith("test_")]
    if patterns:
        names = [name for name in names if any(each in name for each in patterns)]
    with os.fdopen(int(os.environ["SUITE_TOLD"]), "w") as told:
        unittest.TestSuite(Suite(name) for name in names).run(Result())


@contextlib.contextmanager
def services(count: int) -> Iterator[dict[str, str]]:
    """One service, or two that meet over loopback: the environment of their ranks."""
    if count == 1:
        with Service() as service:
            yield {**client_environment(), "SUITE_SOCKETS": service.socket}
        return
    cluster = Cluster(nodes=count, loopback=True)
    try:
        # Ranks, services and other tests share a few cores: a second of silence is no death here.
        both = Services(cluster, "--rails", "lo", "--detection-ms", "20000")
        sockets = ":".join(both[index].socket for index in range(count))
        rendezvous = {"HEADRACE_RENDEZVOUS": both.rendezvous}
        yield {**client_environment(), **rendezvous, "SUITE_SOCKETS": sockets}
    finally:
        cluster.close()


class List:
    """What each test of one torch has come to, in a file: its name, one word for each of RUNS, why it does not pass."""

    def __init__(self) -> None:
        version = torch.__version__.partition("+")[0]
        self.path = os.path.normpath(os.path.join(GOLDEN, f"{version}.txt"))
        self._rows: dict[str, list[str]] = {}
        if os.path.exists(self.path):
            with open(self.path) as file:
                for line in file.read().splitlines():
                    name, *words = line.split("\t")
                    self._rows[name] = [*words, ""][: len(RUNS) + 1]

    def passed(self, run: tuple) -> set[str]:
        """The tests that passed in one of RUNS."""
        column = RUNS.index(run)
        return {name for name, words in self._rows.items() if words[column] == "passed"}

    def update(self, run: tuple, told: list[list[str]], left_out: dict[str, str]) -> None:
        """Writes one column anew."""
        for name, how, text in told:
            words = self._rows.setdefault(name, ["-"] * len(RUNS) + [""])
            words[RUNS.index(run)] = how
            if how != "passed":
                words[-1] = left_out.get(name, text)
            elif set(words[:-1]) == {"passed"}:
                words[-1] = ""
        os.makedirs(GOLDEN, exist_ok=True)
        with open(self.path, "w") as file:
            for name, words in sorted(self._rows.items()):
                file.write("\t".join([name, *words]).rstrip() + "\n")


def temporary(directory: str) -> dict[str, str]:
    """Settings under which torch's tests leave their files, which they do not remove, there."""
    return {"TEMP_DIR": directory, "TMPDIR": directory}


class TorchsOwn(unittest.TestCase):
    patterns: list[str] = []

    def check(self, ranks: int, services_count: int, level: str, beside_gloo: bool = False) -> None:
        """Runs all with so many ranks; each passes, leaves itself out, or stands in the table."""
        with (
            tempfile.TemporaryDirectory(prefix="headrace-suite-") as directory,
            services(services_count) as environment,
        ):
            told = self.run_by("headrace", ranks, {**environment, **temporary(directory)}, level)
        found = collections.Counter(how for _, how, _ in told)
        reasons = collections.Counter(text for _, how, text in told if how == "skipped")
        left_out = {name: why for name, _, _ in told if (why := why_left_out(name, level))}
        wrong = [
            f"{name} {how}: {text}"
            for name, how, text in told
            if how != "skipped" and (how == "passed") == (name in left_out)
        ]
        print(
            f"torch {torch.__version__}, {ranks} ranks, {services_count} services, debug level {level}: "
            f"{found['passed']} passed, {found['failed']} failed, of which are left out: "
            f"{len(left_out)}; {found['skipped']} leave themselves out, mostly: {reasons.most_common(3)}",
            file=sys.stderr,
        )
        self.assertFalse(wrong, "\n".join(wrong))
        passed = {name for name, how, _ in told if how == "passed"}
        self.assertTrue(passed or self.patterns)
        if beside_gloo:
            by_gloo = self.passed_by_gloo(ranks, level)
            self.assertEqual(by_gloo - set(left_out) - passed, set())
        self.compare_with_list((ranks, services_count, level), told, left_out)

    def passed_by_gloo(self, ranks: int, level: str) -> set[str]:
        """The names of the tests that pass with torch's own backend on this machine."""
        with tempfile.TemporaryDirectory(prefix="headrace-suite-") as directory:
            environment = {**client_environment(), **temporary(directory), "GLOO_SOCKET_IFNAME": "lo"}
            told = self.run_by("gloo", ranks, environment, level)
        passed = {name for name, how, _ in told if how == "passed"}
        print(f"of these gloo passes {len(passed)}", file=sys.stderr)
        self.assertTrue(passed or self.patterns)
        return passed

    def compare_with_list(self, run: tuple, told: list[list[str]], left_out: dict[str, str]) -> None:
        """What has passed once with this torch still does, and does not leave itself out."""
        if run not in RUNS or self.patterns:
            return
        known = List()
        if os.environ.get("HEADRACE_GOLDEN_UPDATE"):
            known.update(run, told, left_out)
            return
        if not os.path.exists(known.path):
            print(f"{known.path} is not there: HEADRACE_GOLDEN_UPDATE=1 writes it", file=sys.stderr)
            return
        passed = {name for name, how, _ in told if how == "passed"}
        self.assertEqual(known.passed(run) - passed, set())

    def run_by(self, backend: str, ranks: int, environment: dict[str, str], level: str) -> list[list[str]]:
        """What each test has come to: its name, how, and text."""
        reader, writer = os.pipe()
        with os.fdopen(reader) as told, tempfile.TemporaryFile("w+", errors="replace") as output:
            process = subprocess.Popen(
                [sys.executable, "-B", os.path.abspath(__file__), "--suite", backend, *self.patterns],
                env={
                    **environment,
                    "BACKEND": "gloo",
                    "WORLD_SIZE": str(ranks),
                    "INIT_METHOD": "file://" + os.path.join(environment["TEMP_DIR"], "shared"),
                    "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": "60",
                    "TORCH_DISTRIBUTED_DEBUG": level,
                    "SUITE_TOLD": str(writer),
                    "OMP_NUM_THREADS": "1",
                },
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
            self.assertEqual(process.returncode, 0, output.read()[-3000:])
        return lines

    def test_of_four_ranks_beside_gloo(self) -> None:
        self.check(*RUNS[0], beside_gloo=True)

    def test_of_three_ranks_of_two_services(self) -> None:
        self.check(*RUNS[1])

    def test_of_two_ranks_of_two_services(self) -> None:
        self.check(*RUNS[2])

    def test_of_all_world_sizes_services_and_debug_levels(self) -> None:
        if not os.environ.get("HEADRACE_TEST_TORCH_CROSS"):
            self.skipTest("HEADRACE_TEST_TORCH_CROSS is not set: it takes half an hour")
        for run in itertools.product(WORLD_SIZES, SERVICES, LEVELS):
            with self.subTest(run=run):
                self.check(*run)


def main() -> None:
    if sys.argv[1:2] == ["--suite"]:
        return run_suite(sys.argv[2], sys.argv[3:])
    parser = argparse.ArgumentParser(add_help=False)  # the rest is unittest's
    parser.add_argument("-k", action="append", default=[])
    chosen, rest = parser.parse_known_args()
    TorchsOwn.patterns = chosen.k
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
