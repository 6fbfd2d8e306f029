"""What operators see over HTTP, of a real service with real jobs."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import time
import unittest
from collections.abc import Callable, Iterator
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from tests.support.browser import NoBrowser, Seen, see
from tests.support.exposition import Family, parse
from tests.support.frozen_thread import CannotFreeze, FrozenThread
from tests.support.patience import PATIENCE_S, until
from tests.support.ranks import Ranks
from tests.support.service import Service, StartError, build_directory
from tests.support.unittests import run_tests

PROFILE = pathlib.Path(__file__).resolve().parents[2] / "client/profiles/resnet50.json"
NASTY = "x<script>document.title='owned'</script>\"\\"


class Http(unittest.TestCase):
    """One service for each test, with an address for looking."""

    flags: tuple[str, ...] = ()

    def setUp(self) -> None:
        self.service = Service("--http-address", "127.0.0.1:0", *self.flags)
        self.addCleanup(self.service.close)
        self.service.start()
        self.port = self.service.http_port()

    def get(self, path: str) -> tuple[int, str]:
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            line.request("GET", path)
            answer = line.getresponse()
            return answer.status, answer.read().decode("utf-8")
        finally:
            line.close()

    def metrics(self) -> dict[str, Family]:
        status, text = self.get("/metrics")
        self.assertEqual(status, 200)
        return parse(text)

    def status(self) -> dict:
        return json.loads(self.get("/status.json")[1])

    def replay(self, job: str, world: int = 2) -> None:
        """A job that trains by a plan until the test ends."""
        for rank in range(world):
            process = self.service.place.start(
                [
                    os.path.join(build_directory(), "headracectl"), "--socket",
                    self.service.socket, "--board", self.service.board, "replay", str(PROFILE),
                    "--iterations", "100000", "--scale", "0.02", "--job", job,
                    "--rank", str(rank), "--world-size", str(world), "--json",
                ],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            self.addCleanup(process.end)

    def trained(self, job: str) -> dict | None:
        """The job with its plan, once iterations were measured under it."""
        for each in self.status()["jobs"]:
            if each["name"] == job and each["plan"] and each["plan"]["measured_s"] > 0:
                return each
        return None


class Metrics(Http):
    def test_they_count_what_was_moved_and_who_came(self) -> None:
        with Ranks(self.service, 2, job="bert") as ranks:
            ranks.each("tensor", name="w", count=1000)
            for _ in range(3):
                ranks.each("post", kind="all_reduce", name="w")
                ranks.each("wait")
            metrics = until(
                lambda: (found := self.metrics())["headrace_job_operations_total"].samples
                and found["headrace_job_operations_total"].value(job="bert") == 3
                and found,
                "three operations",
            )
            self.assertEqual(metrics["headrace_job_bytes_total"].value(job="bert"), 3 * 4000)
            self.assertEqual(metrics["headrace_job_world_size"].value(job="bert"), 2)
            self.assertEqual(
                metrics["headrace_rank_posts_total"].value(job="bert", rank="1"), 3
            )
            self.assertEqual(metrics["headrace_service_state"].value(state="running"), 1)
            self.assertGreater(metrics["headrace_lane_bytes_total"].value(lane="shm0"), 0)
        # Counters are written a moment after the job's row is freed.
        totals = until(
            lambda: not (found := self.metrics())["headrace_job_info"].samples
            and found["headrace_service_sessions_closed_total"].value() >= 2
            and found,
            "the job's series end with it",
        )
        self.assertGreaterEqual(totals["headrace_service_operations_total"].value(), 3)
        self.assertEqual(totals["headrace_service_sessions_closed_total"].value(), 2)

    def test_promtool_takes_them_from_a_service_with_jobs(self) -> None:
        if shutil.which("promtool") is None:
            self.skipTest("promtool is not installed (Debian's prometheus)")

        def jobs(text: str) -> set[str]:
            return {labels["job"] for labels, _ in parse(text)["headrace_job_info"].samples}

        self.replay("bert")
        until(lambda: self.trained("bert"), "iterations of bert")
        with Ranks(self.service, 1, job=NASTY) as ranks:
            ranks.each("post", kind="barrier")
            ranks.each("wait")
            # The board shows a job a moment after its operations end.
            text = until(
                lambda: jobs(found := self.get("/metrics")[1]) == {"bert", NASTY} and found,
                "both jobs in the metrics",
            )
        done = subprocess.run(
            ["promtool", "check", "metrics"], input=text, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))

    def test_counters_never_fall_while_a_job_trains(self) -> None:
        self.replay("bert")
        until(lambda: self.trained("bert"), "iterations of bert")
        before: dict[tuple, float] = {}
        for _ in range(10):
            for family in self.metrics().values():
                if family.type == "gauge":
                    continue
                for index, (labels, number) in enumerate(family.samples):
                    # The two samples of a summary have the same labels.
                    turn = index % 2 if family.type == "summary" else 0
                    key = (family.name, turn, *sorted(labels.items()))
                    self.assertGreaterEqual(number, before.get(key, 0), key)
                    before[key] = number
            time.sleep(0.25)
        iterations = [
            number for (name, turn, *labels), number in before.items()
            if (name, turn) == ("headrace_job_iteration_seconds", 1) and ("job", "bert") in labels
        ]  # fmt: skip
        self.assertEqual(len(iterations), 1)
        self.assertGreater(iterations[0], 0)


class Health(Http):
    flags = ("--drain-timeout-ms", "60000")

    def test_a_service_is_ready_when_its_data_path_answers(self) -> None:
        until(lambda: self.get("/healthz")[0] == 200, "healthy")
        until(lambda: self.get("/readyz")[0] == 200, "ready")
        text = until(lambda: (answer := self.get("/readyz"))[0] == 200 and answer[1], "ready")
        self.assertIn("lane shm0", json.loads(text)["answered_s"])

    def test_one_whose_data_path_hangs_says_so_and_is_well_again_then(self) -> None:
        try:
            with FrozenThread(self.service.pid, "hr-data"):
                # Whoever waited for dispatch would wait for as long as it stands.
                for path in ("/healthz", "/readyz"):
                    status, text = self.get(path)
                    self.assertEqual(status, 503, text)
                    silent = json.loads(text)["silent"]
                    self.assertIn("dispatch", [each["name"] for each in silent])
                    self.assertAlmostEqual(silent[0]["since_unix_s"], time.time(), delta=30)
                # The board is read by http, which nothing holds up.
                self.assertEqual(self.get("/metrics")[0], 200)
                self.assertEqual(self.get("/status.json")[0], 200)
        except CannotFreeze as error:
            self.skipTest(str(error))
        until(lambda: self.get("/readyz")[0] == 200, "ready again")

    def test_one_that_drains_is_healthy_and_not_ready(self) -> None:
        with Ranks(self.service, 2) as ranks:
            ranks[0].call("post", kind="barrier")
            until(lambda: self.status()["queue"], "an open operation")
            assert self.service.process is not None
            self.service.process.terminate()
            until(lambda: self.get("/readyz")[0] == 503, "not ready")
            until(lambda: json.loads(self.get("/readyz")[1]).get("state") == "draining", "draining")
            until(lambda: self.get("/healthz")[0] == 200, "healthy all the same")
            ranks[1].call("post", kind="barrier")
            self.assertEqual(self.service.process.wait(timeout=30), 0)

    def test_one_that_was_killed_is_not_there(self) -> None:
        self.service.kill()
        with self.assertRaises(ConnectionRefusedError):
            self.get("/healthz")


class Idle(Http):
    @unittest.skipIf("HEADRACE_SERVICE_BUILD" in os.environ, "the thread sanitizer wakes a thread of its own")
    def test_a_service_that_listens_and_is_not_asked_does_not_wake(self) -> None:
        self.get("/metrics")
        before = self.service.idle_switches()
        time.sleep(2)
        self.assertEqual(self.service.switches(), before)


class Address(unittest.TestCase):
    def test_nothing_listens_where_nobody_asked_for_it(self) -> None:
        with Service() as service:
            sockets = subprocess.run(
                ["ls", "-l", f"/proc/{service.pid}/fd"], capture_output=True, text=True, check=True
            ).stdout
            inodes = set(re.findall(r"socket:\[(\d+)\]", sockets))
            with open(f"/proc/{service.pid}/net/tcp", encoding="utf-8") as table:
                self.assertFalse([line for line in table if line.split()[9] in inodes])

    def test_a_port_that_is_taken_ends_the_start_with_a_remedy(self) -> None:
        with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as other:
            address = f"127.0.0.1:{other.server_port}"
            service = Service("--http-address", address)
            self.addCleanup(service.close)
            with self.assertRaises(StartError) as caught:
                service.start()
            self.assertIn(address, str(caught.exception))
            self.assertIn("http_address", str(caught.exception))
            assert service.process is not None
            self.assertEqual(service.process.wait(timeout=10), 1)


class Page(Http):
    """The status page, in a real browser."""

    def see(self, port: int, for_ms: int = 3000) -> Seen:
        try:
            return see(f"http://127.0.0.1:{port}/", for_ms)
        except NoBrowser as error:
            self.skipTest(str(error))

    def test_it_shows_jobs_why_they_wait_and_their_last_iterations(self) -> None:
        self.replay("bert")
        until(lambda: self.trained("bert"), "iterations of bert")
        with Ranks(self.service, 2, job=NASTY) as ranks:
            ranks.each("tensor", name="<img src=x onerror=\"document.title='owned'\">", count=100)
            ranks[0].call("post", kind="all_reduce", name="<img src=x onerror=\"document.title='owned'\">")
            until(
                lambda: any("not ready" in stage["why"] for stage in self.status()["queue"]
                            if stage["job"] == NASTY),
                "rank 1 not ready",
            )  # fmt: skip
            seen = self.see(self.port)
        self.assertEqual(seen.console, [])
        self.assertIn("<title>Headrace: running</title>", seen.dom)
        self.assertIn("bert", seen.dom)
        # As text, and never as what it looks like.
        self.assertIn("x&lt;script&gt;document.title='owned'&lt;/script&gt;", seen.dom)
        self.assertNotIn("<script>", seen.dom)
        self.assertNotIn("<img", seen.dom)
        self.assertRegex(seen.dom, r"rank 1 of job x&lt;script&gt;")
        for kind in ("backward", "moved stage0", "busy"):
            self.assertIn(f'<rect class="{kind}"', seen.dom)
        self.assertRegex(seen.dom, r"backward [\d.]+ ms of iteration \d+")
        self.assertNotIn('class="stale"', seen.dom)

    @contextlib.contextmanager
    def between(
        self, answers: float = math.inf, change: Callable[[dict[str, Any]], None] = lambda status: None
    ) -> Iterator[int]:
        """A port that passes everything on to the service, but only so many answers of status.json, changed."""
        test = self
        given = 0

        class Between(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                nonlocal given
                given += self.path == "/status.json"
                if self.path == "/status.json" and given > answers:
                    self.close_connection = True
                    return
                line = http.client.HTTPConnection("127.0.0.1", test.port, timeout=PATIENCE_S)
                line.request("GET", self.path)
                answer = line.getresponse()
                body = answer.read()
                if self.path == "/status.json":
                    status = json.loads(body)
                    change(status)
                    body = json.dumps(status).encode()
                self.send_response(answer.status)
                for name in ("Content-Type", "Content-Security-Policy"):
                    self.send_header(name, answer.getheader(name, ""))
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                line.close()

            def log_message(self, *unused: object) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Between)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def test_it_says_of_which_lane_nobody_knows_how_busy_it_is(self) -> None:
        def forget_busy(status: dict[str, Any]) -> None:
            for lane in status["lanes"]:
                lane["busy_s"] = None

        with Ranks(self.service, 1, job="bert"), self.between(change=forget_busy) as port:
            seen = self.see(port)
        self.assertEqual(seen.console, [])
        self.assertRegex(seen.dom, r"unknown: NCCL\b")

    def test_it_says_when_the_service_is_gone_and_keeps_the_last_picture(self) -> None:
        with Ranks(self.service, 2, job="bert"), self.between(answers=1) as port:
            seen = self.see(port, for_ms=5000)
        self.assertIn('class="stale"', seen.dom)
        self.assertIn("bert", seen.dom)


if __name__ == "__main__":
    run_tests()
