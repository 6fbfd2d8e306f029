"""What is left of a job whose trainer or service is gone, and who is named when a rank hangs."""

from __future__ import annotations

import os
import re
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from support.cluster import Cluster, Services
from support.patience import await_equal, until
from support.ranks import RankError, Ranks
from support.service import ROOT, Service
from support.trace_check import check_trace, tracks_named
from support.unittests import run_tests

LATE_MS = 400
OPERATIONS = 5
HUNG = r"has not posted operation ([6-9]|1[0-5]) "  # those after the first ones, ten of which one rank posts


class Recorder(unittest.TestCase):
    def setUp(self) -> None:
        self.service = Service("--late-ms", str(LATE_MS))
        self.addCleanup(self.service.close)
        self.service.start()

    def train(self, job: str = "bert", operations: int = OPERATIONS) -> Ranks:
        """A job of two ranks that has summed a few times."""
        ranks = Ranks(self.service, 2, job=job)
        self.addCleanup(ranks.__exit__)
        ranks.each("tensor", name="w", count=1 << 12)
        for _ in range(operations):
            ranks.each("post", kind="all_reduce", name="w")
            ranks.each("wait")
        return ranks

    def await_open(self) -> None:
        """Until the service has read a post that others have yet to make."""
        until(lambda: self.service.ctl_json("queue")["queue"], "an open operation")

    def flight(self, *arguments: str) -> dict:
        """What the recorder has of the only job."""
        log = self.service.ctl_json("flight", "-n", "1000", *arguments)
        self.assertEqual(len(log["jobs"]), 1, log)
        return log["jobs"][0]

    def check_operations(self, blocks: list[dict]) -> None:
        """Each of the first operations, with both posts and its one stage."""
        self.assertGreaterEqual(len(blocks), OPERATIONS)
        for number, block in enumerate(blocks[:OPERATIONS], 1):
            self.assertEqual(block["operation"], number)
            self.assertEqual(block["code"], "ok")
            self.assertEqual(block["tensor"], "w")
            self.assertEqual(block["bytes"], 4 << 12)
            self.assertEqual(min(post["after_ns"] for post in block["posts"]), 0)
            self.assertIn(block["last_rank"], (0, 1))
            [stage] = block["stages"]
            self.assertEqual(stage["lane"], "shm0")
            self.assertLessEqual(block["ready_ns"], stage["queued_ns"])
            self.assertLessEqual(stage["queued_ns"], stage["begin_ns"])
            self.assertLessEqual(stage["begin_ns"], stage["end_ns"])

    def test_a_killed_trainer_leaves_its_last_operations(self) -> None:
        ranks = self.train()
        ranks[0].call("post", kind="all_reduce", name="w")
        ranks[0].send("wait")
        self.await_open()
        ranks[1].kill()
        with self.assertRaises(RankError):
            ranks[0].receive()
        ranks[0].kill()
        job = until(lambda: found if (found := self.flight())["ended_unix_ns"] else None, "the job has ended")
        self.check_operations(job["blocks"])
        last = job["blocks"][-1]
        self.assertEqual(last["operation"], OPERATIONS + 1)
        self.assertEqual(last["code"], "peer lost")
        self.assertIn(f"pid {ranks[1].pid}", last["cause"])
        self.assertEqual([post["after_ns"] for post in last["posts"]], [0, None])
        self.assertIsNone(last["last_rank"])
        code, table = self.service.ctl("flight", "bert", "--failed")
        self.assertEqual(code, 0, table)

    def test_a_killed_service_leaves_its_records_and_what_was_open(self) -> None:
        ranks = self.train()
        ranks[1].call("post", kind="all_reduce", name="w")
        self.await_open()
        self.service.kill()
        code, table = self.service.ctl("flight")
        self.assertEqual(code, 1, table)
        for value in ("rank 0", "job bert"):
            self.assertIn(value, table)
        out = os.path.join(self.service.directory, "trace.json")
        code, text = self.service.ctl("trace", "bert", "-o", out)
        self.assertEqual(code, 0, text)
        with open(out, encoding="utf-8") as file:
            self.assertEqual(len(tracks_named(check_trace(file.read()), "rank 1")["posts"]), 5)
        # The next service has a board of its own, and leaves that one readable.
        self.service.start()
        self.assertEqual(self.service.ctl_json("flight")["jobs"], [])
        self.check_operations(self.flight("--previous")["blocks"])
        code, text = self.service.ctl("flight", "--previous")
        self.assertEqual(code, 0, text)
        self.assertTrue(self.service.ctl_json("flight", "--previous")["open"])

    def test_a_service_that_ends_in_order_leaves_its_records(self) -> None:
        ranks = self.train()
        ranks.__exit__()
        self.assertEqual(self.service.stop(), 0)
        self.assertFalse(os.path.exists(self.service.board))
        code, text = self.service.ctl("flight")
        self.assertEqual(code, 1, text)
        self.assertIn("--previous", text)
        self.check_operations(self.flight("--previous")["blocks"])
        code, text = self.service.ctl("trace", "bert", "--previous", "-o", "-")
        self.assertEqual(code, 0, text)
        check_trace(text)

    def test_a_rank_that_hangs_is_named_once(self) -> None:
        ranks = self.train()
        for _ in range(10):
            ranks[0].call("post", kind="all_reduce", name="w")
        pattern = rf"rank 1 \(pid {ranks[1].pid}\) on this node has not posted operation 6 "
        [line] = self.service.await_log(pattern)
        self.assertIn("job bert", line)
        self.assertRegex(line, r", w\] for \d+\.\d s; 1 rank\b")
        time.sleep(4 * LATE_MS / 1000)
        self.assertEqual(len(self.service.await_log(HUNG)), 1)
        events = [event["text"] for event in self.service.ctl_json("events")["events"]]
        self.assertEqual(sum(re.search(HUNG, text) is not None for text in events), 1)
        for _ in range(10):
            ranks[1].call("post", kind="all_reduce", name="w")
        self.assertEqual(len(self.service.await_log(r"operation 6 .* went on after \d+\.\d s")), 1)

    def test_overwritten_operations_are_counted(self) -> None:
        self.train(operations=400)
        await_equal(lambda: self.flight()["recorded"], 400)
        job = self.flight()
        self.assertEqual(job["overwritten"], 16)
        self.assertEqual(job["blocks"][0]["number"], 17)

    def test_nothing_recorded_of_a_job_is_a_problem_and_says_so(self) -> None:
        for command in (("flight", "none"), ("trace", "none", "-o", "-")):
            code, text = self.service.ctl(*command)
            self.assertEqual(code, 1)
            self.assertRegex(text, r"\bnone\b")


class RealTrace(unittest.TestCase):
    """A model's training, played through the service, as a trace."""

    def test_every_recorded_stage_and_pass_is_in_it(self) -> None:
        with Service() as service:
            code, text = service.ctl(
                "replay", os.path.join(ROOT, "client/profiles/resnet50.json"), "--policy", "exact",
                "--scale", "0.02", "--iterations", "5", "--job", "vision",
            )  # fmt: skip
            self.assertEqual(code, 0, text)
            [job] = service.ctl_json("flight", "vision", "-n", "1000")["jobs"]
            code, text = service.ctl("trace", "vision", "-o", "-")
            self.assertEqual(code, 0, text)
            events = check_trace(text)
        lanes = tracks_named(events, "headraced: lanes")
        stages = [stage for block in job["blocks"] for stage in block["stages"]]
        self.assertGreater(len(stages), 10)
        self.assertEqual(len(lanes["shm0"]), len(stages))
        self.assertEqual(len(lanes["shm0 queue"]), len(stages))
        moved = sorted(round((stage["end_ns"] - stage["begin_ns"]) / 1000) for stage in stages)
        self.assertEqual(sorted(round(event["dur"]) for event in lanes["shm0"]), moved)
        named = {event["name"] for event in lanes["shm0"]}
        last = [block for block in job["blocks"] if block["iteration"] != 0][-1]
        name = f"{last['iteration']}/{last['operation']} {last['tensor']}"
        self.assertTrue(name in named, f"no slice is called {name}")
        for rank in ("rank 0", "rank 1"):
            tracks = tracks_named(events, rank)
            self.assertGreater(len(tracks["backward"]), 5)
            self.assertGreater(len(tracks["forward"]), 5)
            self.assertGreater(len(tracks["posts"]), len(tracks["backward"]))


class LateOverNodes(unittest.TestCase):
    """A rank that hangs is named once on each of two nodes."""

    def setUp(self) -> None:
        self.cluster = Cluster(nodes=2, loopback=True)
        self.addCleanup(self.cluster.close)
        self.services = Services(self.cluster, "--late-ms", str(LATE_MS))

    def test_on_both(self) -> None:
        ranks = self.services.ranks([1, 2], job="bert")
        self.addCleanup(ranks.__exit__)
        ranks.each("tensor", name="w", count=1 << 12)
        ranks.each("post", kind="all_reduce", name="w")
        ranks.each("wait")
        for rank in ranks.members[:2]:
            rank.call("post", kind="all_reduce", name="w")
        here, there = self.services[1], self.services[0]
        names = rf"rank 2 \(pid {ranks[2].pid}\) on .*has not posted operation 2 "
        self.assertEqual(len(here.await_log(names)), 1)
        self.assertEqual(len(there.await_log(names)), 1)
        node = self.cluster[1].name
        [waits] = there.await_log(rf"operation 2 .* waits for node {node} on lane ucx0")
        self.assertRegex(waits, r"for \d+\.\d s")
        await_equal(lambda: [row["wait_reason"] for row in there.ctl_json("queue")["queue"]], ["peer"])
        time.sleep(4 * LATE_MS / 1000)
        for service in (here, there):
            self.assertEqual(len(service.await_log("has not posted operation 2")), 1)
        ranks[2].call("post", kind="all_reduce", name="w")
        ranks.each("wait")
        went_on = there.await_log(r"operation 2 .* went on after")
        self.assertEqual(len(went_on), 1, there.log())


if __name__ == "__main__":
    run_tests()
