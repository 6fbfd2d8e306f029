"""Further processes come to a job that runs: one that joins, and a spare for a rank that is lost."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from typing import Any

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import torchrun
from support.cluster import Cluster, Services
from support.elastic import LIMIT_S, TRAINERS, ElasticCase
from support.places import Program
from support.service import Service, client_environment

STEPS = 24
HELD = 8  # before that step all wait for the others to come
KILLED = 4
MEMBERS_MAX = 64  # members of generation N that are new have numbers from N times that on


def end_with_children(program: Program) -> None:
    """Ends a torchrun, which ends what it has started when it is asked to end."""
    program.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        program.communicate(timeout=LIMIT_S)
    program.end()


class JoinCase(ElasticCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def await_processes(self, service: Service, ranks: int, others: int = 0) -> None:
        """Until a service has so many ranks, and so many that wait to be some, or are by now."""
        until = time.monotonic() + LIMIT_S
        while True:
            users = service.ctl_json("users")["users"]
            come = sum(user["sessions"] for user in users)
            connected = sum(user["connections"] for user in users)
            if connected == ranks + others and ranks <= come <= connected:
                return
            self.assertLess(time.monotonic(), until, users)
            time.sleep(0.05)

    def await_job(self, service: Service, **fields: Any) -> dict[str, Any]:
        """Until what the service shows of its one job is so; returns it."""
        until = time.monotonic() + LIMIT_S
        while True:
            jobs = service.ctl_json("jobs")["jobs"]
            if len(jobs) == 1 and all(jobs[0][name] == value for name, value in fields.items()):
                return jobs[0]
            self.assertLess(time.monotonic(), until, (fields, jobs))
            time.sleep(0.05)

    def await_joiner(self, leads: Service) -> None:
        """Until the service that leads the one job, whose ranks stand still, knows of one that wants to join."""
        self.await_job(leads, applicants={"joiners": 1, "spares": 0})

    def go_on(self) -> None:
        time.sleep(0.2)  # what came last is known to all ranks
        with open(self.path("go"), "w", encoding="utf-8"):
            pass

    def require_alike(
        self,
        said: dict[Any, dict[str, Any]],
        places: list[Any],
        after: dict[int, dict[str, Any]],
    ) -> None:
        """Those that went on from a state compute what so many ranks compute from it, to the bit."""
        count = len(after[0]["losses"])
        self.assertGreater(count, 0)
        for rank, key in enumerate(places):
            self.assertEqual(said[key]["losses"][-count:], after[rank]["losses"], key)
            self.assertEqual(said[key]["digest"], after[rank]["digest"], key)


class OneNode(JoinCase):
    def setUp(self) -> None:
        super().setUp()
        self.service = Service()
        self.addCleanup(self.service.close)
        self.service.start()

    def test_a_rank_is_lost_and_another_joins(self) -> None:
        services = [self.service] * 4
        run = self.train(
            services,
            "train",
            first=0,
            steps=STEPS,
            kill=[[2, KILLED, "backward"]],
            hold=[HELD, self.path("go")],
            grown=self.path("state"),
        )
        run.programs[2].wait(timeout=LIMIT_S)
        self.await_processes(self.service, 3)
        joiner = self.train([self.service], "train", role="join", first=0, steps=STEPS)
        self.await_processes(self.service, 3, 1)
        self.go_on()
        said: dict[Any, dict[str, Any]] = dict(run.ends([2]))
        said["joined"] = joiner.ends()[0]
        new = 2 * MEMBERS_MAX
        begun = said["joined"]["first"]
        self.assertGreaterEqual(begun, HELD)
        for key in (0, 1, 3, "joined"):
            wanted = {
                "world_size": 4,
                "members": [0, 1, 3, new],
                "lost": [],
                "iteration": begun + 1,
                "joined": [new],
            }
            last = dict(said[key]["resizes"][-1])
            last.pop("rank")
            self.assertEqual(last, wanted, key)
        after = self.train(
            services,
            "after",
            members=[0, 1, 3, new],
            first=begun,
            steps=STEPS - begun,
            load=self.path("state"),
        ).ends()
        self.require_alike(said, [0, 1, 3, "joined"], after)

    def start_rejoining(self, rank: int, launcher: tuple[str, ...], **asked: Any) -> Program:
        """A rank that joins when its launcher has started it again."""
        asked |= {"rank": rank, "world_size": len(asked["members"])}
        program = self.service.place.start(
            ["/usr/bin/python3", "-B", *launcher, os.path.join(TRAINERS, "shrink_train.py"), json.dumps(asked)],
            env=client_environment(
                HEADRACE_SOCKET=self.service.socket,
                HEADRACE_JOB="train",
                HEADRACE_ROLE="rejoin",
                HEADRACE_SHRINK="2",
                HEADRACE_SHRINK_GRACE_MS="1000",
                HEADRACE_RECONNECT=str(int(LIMIT_S)),
            ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.addCleanup(end_with_children, program)
        return program

    def test_torchrun_restarts_one_rank_which_joins(self) -> None:
        restarted = (
            "-m", "torch.distributed.run", "--nproc_per_node", "1", "--max_restarts", "2",
            "--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0", "--rdzv_id", "of-one-rank",
            *torchrun.STREAMS, "--monitor_interval", "0.2", "--log_dir", self.path("logs"),
        )  # fmt: skip
        ranks = [
            self.start_rejoining(
                rank,
                restarted if rank == 1 else (),
                members=[0, 1, 2],
                first=0,
                steps=STEPS,
                kill=[[1, KILLED, "backward"]],
                hold=[HELD, self.path("go")],
                grown=self.path("state"),
            )
            for rank in range(3)
        ]
        self.await_job(self.service, world_size=2, applicants={"joiners": 1, "spares": 0})
        self.go_on()
        said: dict[Any, dict[str, Any]] = {}
        for rank, program in enumerate(ranks):
            out = program.communicate(timeout=LIMIT_S)[0]
            self.assertEqual(program.returncode, 0, out)
            lines = [line[line.index("{") :] for line in out.splitlines() if '{"losses"' in line]
            self.assertEqual(len(lines), 1, out)
            said[rank] = json.loads(lines[0])
        begun = said[1]["first"]
        self.assertGreaterEqual(begun, HELD)
        new = 2 * MEMBERS_MAX
        for rank in range(3):
            self.assertEqual(said[rank]["resizes"][-1]["members"], [0, 2, new], rank)
        after = self.train(
            [self.service] * 3,
            "after",
            members=[0, 2, new],
            first=begun,
            steps=STEPS - begun,
            load=self.path("state"),
        ).ends()
        self.require_alike(said, [0, 2, 1], after)

    def test_a_spare_takes_the_place_of_a_lost_rank(self) -> None:
        services = [self.service] * 4
        run = self.train(
            services,
            "train",
            min_world=4,
            first=0,
            steps=STEPS,
            kill=[[2, HELD, "backward"]],
            hold=[HELD, self.path("go")],
        )
        spare = self.train([self.service], "train", role="spare", first=0, steps=STEPS)
        self.await_processes(self.service, 4, 1)
        self.await_job(self.service, applicants={"joiners": 0, "spares": 1}, evictions=0)
        self.go_on()
        said: dict[Any, dict[str, Any]] = dict(run.ends([2]))
        said["spare"] = spare.ends()[0]
        members = [0, 1, 3, MEMBERS_MAX]
        lost, joined = said[0]["resizes"]
        self.assertEqual((lost["lost"], lost["members"], lost["iteration"]), ([2], members[:3], HELD + 1))
        self.assertEqual((joined["joined"], joined["members"]), (members[3:], members))
        self.assertEqual(joined["iteration"], HELD + 2)
        self.assertEqual(said["spare"]["first"], HELD + 1, "the iteration was the others' alone")
        states = [self.path("before"), self.path("between")]
        self.train(services, "before", first=0, steps=HELD, save=states[0]).ends()
        self.train(
            services[:3],
            "between",
            members=members[:3],
            first=HELD,
            steps=1,
            load=states[0],
            save=states[1],
        ).ends()
        after = self.train(
            services,
            "after",
            members=members,
            first=HELD + 1,
            steps=STEPS - HELD - 1,
            load=states[1],
        ).ends()
        self.require_alike(said, [0, 1, 3, "spare"], after)

    def test_an_evicted_rank_is_lost_and_says_by_whom(self) -> None:
        services = [self.service] * 3
        run = self.train(services, "train", first=0, steps=STEPS, hold=[HELD, self.path("go")])
        self.await_processes(self.service, 3)
        self.await_job(self.service, evictions=0)
        code, text = self.service.ctl("evict", "train", "3")
        self.assertEqual(code, 1)
        self.assertIn("no rank 3", text)
        code, text = self.service.ctl("evict", "train", "1")
        self.assertEqual(code, 0, text)
        self.await_job(self.service, evictions=1)
        self.go_on()
        _, complaints = run.programs[1].communicate(timeout=LIMIT_S)
        self.assertNotEqual(run.programs[1].returncode, 0)
        self.assertIn("evicted by uid", complaints)
        said = run.ends([1])
        for rank in (0, 2):
            self.assertEqual(said[rank]["resizes"][0]["lost"], [1])
        self.assertEqual(said[0]["digest"], said[2]["digest"])

    def test_a_slow_rank_is_named_and_evicted_and_joins_again(self) -> None:
        services = [self.service] * 3
        held = 300  # which no run with the slow rank comes to
        asked = {"first": 0, "steps": held + STEPS, "min_world": 2, "slow_bound": "2:evict"}
        run = self.train(
            services,
            "train",
            slow=[[1, 0.3]],
            hold=[held, self.path("go")],
            grown=self.path("state"),
            **asked,
        )
        _, complaints = run.programs[1].communicate(timeout=LIMIT_S)
        self.assertNotEqual(run.programs[1].returncode, 0)
        for part in ("evicted as slow", "median of the others", "HEADRACE_ROLE=join"):
            self.assertIn(part, complaints)
        _, events = self.service.ctl("events")
        self.assertRegex(events, r"rank 1 \(pid \d+\) is slow: for \d+ s")
        self.assertEqual(self.service.ctl_json("status")["counters"]["slow_ranks"], 1)
        self.await_processes(self.service, 2)
        joiner = self.train([self.service], "train", role="join", **asked)
        self.await_processes(self.service, 2, 1)
        self.go_on()
        said: dict[Any, dict[str, Any]] = dict(run.ends([1]))
        said["joined"] = joiner.ends()[0]
        new = 2 * MEMBERS_MAX
        begun = said["joined"]["first"]
        self.assertGreaterEqual(begun, held)
        self.assertEqual(said[0]["resizes"][0]["lost"], [1])
        self.assertEqual(said[0]["resizes"][-1]["members"], [0, 2, new])
        after = self.train(
            services,
            "after",
            members=[0, 2, new],
            first=begun,
            steps=held + STEPS - begun,
            load=self.path("state"),
        ).ends()
        self.require_alike(said, [0, 2, "joined"], after)

    def others_of_evicted(self, run: Any) -> dict[int, Any]:
        """What ranks 0 and 2 say at the end; they went on without rank 1, which may be stopped."""
        self.addCleanup(run.programs[1].send_signal, signal.SIGCONT)
        said = {}
        for rank in (0, 2):
            out, complaints = run.programs[rank].communicate(timeout=LIMIT_S)
            self.assertEqual(run.programs[rank].returncode, 0, complaints)
            said[rank] = json.loads(out.splitlines()[-1])
            self.assertEqual(said[rank]["resizes"][0]["lost"], [1])
        return said

    def rank_1_is_told(self, run: Any, *parts: str) -> None:
        run.programs[1].send_signal(signal.SIGCONT)
        _, complaints = run.programs[1].communicate(timeout=LIMIT_S)
        self.assertNotEqual(run.programs[1].returncode, 0)
        for part in parts:
            self.assertIn(part, complaints)

    def test_a_rank_that_stands_still_is_evicted_and_the_others_go_on(self) -> None:
        services = [self.service] * 3
        stopped = 60
        run = self.train(
            services,
            "train",
            first=0,
            steps=stopped + STEPS,
            min_world=2,
            slow_bound="3:evict",
            stop=[[1, stopped, "backward"]],
        )
        said = self.others_of_evicted(run)
        _, events = self.service.ctl("events")
        self.assertRegex(events, r"rank 1 \(pid \d+\) stands still: for \d+ s")
        self.rank_1_is_told(run, "evicted as standing still", "HEADRACE_ROLE=join")
        self.train(services, "before", first=0, steps=stopped, save=self.path("state")).ends()
        after = self.train(
            services[:2],
            "after",
            members=[0, 2],
            first=stopped,
            steps=STEPS,
            load=self.path("state"),
        ).ends()
        self.require_alike(said, [0, 2], after)

    def evict_from_ddp(self, slow_bound: str, text: str, **asked: Any) -> None:
        """Ranks wait for each other in the group of DDP, which is a job of its own."""
        steps = 300
        run = self.train(
            [self.service] * 3,
            "train",
            trainer="elastic_train.py",
            way="ddp",
            first=0,
            steps=steps,
            min_world=2,
            slow_bound=slow_bound,
            every=10,
            **asked,
        )
        said = self.others_of_evicted(run)
        self.assertEqual(said[0]["digest"], said[2]["digest"])
        self.rank_1_is_told(run, text)

    def test_a_slow_rank_of_ddp_is_evicted(self) -> None:
        self.evict_from_ddp("2:evict", "evicted as slow", slow=[[1, 0.3]])

    def test_a_rank_of_ddp_that_stands_still_is_evicted(self) -> None:
        self.evict_from_ddp("3:evict", "evicted as standing still", stop=[[1, 150, "forward"]])


class Nodes(JoinCase):
    def test_one_joins_on_a_node_that_the_job_has_not_been_on(self) -> None:
        cluster = Cluster(nodes=3, loopback=True)
        self.addCleanup(cluster.close)
        nodes = Services(cluster, "--rails", "lo")
        services = [nodes[0], nodes[1]]
        asked = {"rendezvous": nodes.rendezvous, "first": 0, "steps": STEPS}
        run = self.train(
            services,
            "train",
            hold=[HELD, self.path("go")],
            grown=self.path("state"),
            **asked,
        )
        joiner = self.train([nodes[2]], "train", role="join", **asked)
        self.await_processes(nodes[2], 0, 1)
        self.go_on()
        said: dict[Any, dict[str, Any]] = dict(run.ends())
        said["joined"] = joiner.ends()[0]
        begun = said["joined"]["first"]
        after = self.train(
            [nodes[0], nodes[1], nodes[2]],
            "after",
            members=[0, 1, MEMBERS_MAX],
            rendezvous=nodes.rendezvous,
            first=begun,
            steps=STEPS - begun,
            load=self.path("state"),
        ).ends()
        self.require_alike(said, [0, 1, "joined"], after)

    def test_the_node_that_led_comes_back_to_a_job_that_is_led_elsewhere(self) -> None:
        cluster = Cluster(nodes=3, loopback=True)
        self.addCleanup(cluster.close)
        nodes = Services(cluster, "--rails", "lo")
        steps = HELD + 150
        asked = {"rendezvous": nodes.rendezvous, "first": 0, "steps": steps}
        run = self.train(
            [nodes[0], nodes[1], nodes[2]],
            "train",
            kill=[[0, KILLED, "backward"]],
            hold=[HELD, self.path("go")],
            grown=self.path("state"),
            **asked,
        )
        run.programs[0].wait(timeout=LIMIT_S)
        nodes[0].kill()
        until = time.monotonic() + LIMIT_S
        while [job["world_size"] for job in nodes[1].ctl_json("jobs")["jobs"]] != [2]:
            self.assertLess(time.monotonic(), until)
            time.sleep(0.05)
        # It knows nothing of the job, and is all that the one that joins was told of.
        nodes.start(0)
        joiner = self.train([nodes[0]], "train", role="join", **asked)
        self.await_processes(nodes[0], 0, 1)
        time.sleep(2)  # the new leader tries the former one once a second
        self.go_on()
        said: dict[Any, dict[str, Any]] = dict(run.ends([0]))
        said["joined"] = joiner.ends()[0]
        members = said[1]["resizes"][-1]["members"]
        self.assertEqual((len(members), members[:2]), (3, [1, 2]))
        begun = said["joined"]["first"]
        after = self.train(
            [nodes[1], nodes[2], nodes[0]],
            "after",
            members=members,
            rendezvous=nodes.address(1),
            first=begun,
            steps=steps - begun,
            load=self.path("state"),
        ).ends()
        self.require_alike(said, [1, 2, "joined"], after)


if __name__ == "__main__":
    unittest.main(verbosity=2)
