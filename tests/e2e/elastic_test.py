"""Plain loops and DDP go on when ranks are lost and others come, by headrace.torch.elastic_run()."""

from __future__ import annotations

import os
import sys
import unittest
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import join_test
import shrink_test
from support.elastic import LIMIT_S
from support.service import Service

STEPS = shrink_test.STEPS
PLAIN = {"trainer": "elastic_train.py", "way": "plain"}
DDP = {"trainer": "elastic_train.py", "way": "ddp"}


class Lost(shrink_test.ShrinkCase):
    def setUp(self) -> None:
        self.service = Service()
        self.addCleanup(self.service.close)
        self.service.start()

    def check(self, trained: dict[str, str], kill: list[Any], world: int) -> None:
        self.trained = trained
        services = [self.service] * world
        run = self.train(services, "train", first=0, steps=STEPS, kill=[kill])
        self.require_goes_on(run, services, "", [kill[0]])

    def test_a_plain_loop_goes_on_from_its_last_commit(self) -> None:
        self.check(PLAIN, [2, 5, "backward"], 4)

    def test_ddp_goes_on_over_a_group_of_those_that_are_left(self) -> None:
        self.check(DDP, [0, 5, "backward"], 3)


class LostNode(shrink_test.ShrinkCase):
    def test_ddp_goes_on_without_the_leaders_node(self) -> None:
        self.trained = DDP
        self.require_goes_on_without_the_leaders_node(3)


class Points(join_test.JoinCase):
    def test_one_dies_at_each_point_of_a_step_and_no_commit_is_taken_back(self) -> None:
        self.trained = PLAIN
        service = Service()
        self.addCleanup(service.close)
        service.start()
        points = ("forward", "backward", "step", "stepped", "voted")
        kill = [[2 + index, 3 * (index + 1), when] for index, when in enumerate(points)]
        world = 2 + len(points)
        log = self.path("log")
        os.mkdir(log)
        run = self.train([service] * world, "train", first=0, steps=20, kill=kill, log=log)
        said = run.ends([who for who, _, _ in kill])
        self.assertEqual(said[0]["digest"], said[1]["digest"])
        resizes = said[0]["resizes"]
        self.assertEqual(resizes, [{**each, "rank": 0} for each in said[1]["resizes"]])
        self.assertEqual([each["lost"] for each in resizes], [[who] for who, _, _ in kill])
        for resize, (who, step, when) in zip(resizes, kill, strict=True):
            begun = resize["iteration"] - 1  # the first step that is made without it
            # It has had its part in all averages of a step that it died after: the others may have made it.
            self.assertIn(begun, [step] if when in ("forward", "backward") else [step, step + 1], when)
            with open(os.path.join(log, str(who)), encoding="utf-8") as file:
                committed = sorted({int(line) for line in file})  # twice where a step was made again
            self.assertEqual(committed, list(range(step)), when)
            self.assertLess(committed[-1], begun, "what a rank has committed stays, also when it is lost")


class Joined(join_test.JoinCase):
    def test_one_joins_a_run_of_ddp_that_commits_every_third_step(self) -> None:
        self.trained = {**DDP, "every": 3}
        service = Service()
        self.addCleanup(service.close)
        service.start()
        services = [service] * 3
        run = self.train(
            services,
            "train",
            first=0,
            steps=join_test.STEPS,
            kill=[[1, 5, "backward"]],
            hold=[join_test.HELD, self.path("go")],
            grown=self.path("state"),
        )
        run.programs[1].wait(timeout=LIMIT_S)
        self.await_processes(service, 4)  # two sessions each: the group's is one
        joiner = self.train([service], "train", role="join", first=0, steps=join_test.STEPS)
        self.await_processes(service, 4, 1)
        self.go_on()
        said: dict[Any, dict[str, Any]] = dict(run.ends([1]))
        said["joined"] = joiner.ends()[0]
        self.assertEqual(said[0]["resizes"][0]["lost"], [1])
        self.assertEqual(said[0]["resizes"][0]["iteration"], 4, "the last commit was after three steps")
        begun = said["joined"]["first"]
        self.assertGreater(begun, join_test.HELD)
        self.assertEqual(begun % 3, 0)
        new = said[0]["resizes"][1]["joined"]
        members = [0, 2, *new]
        self.assertEqual(said["joined"]["resizes"][0]["members"], members)
        after = self.train(
            services,
            "after",
            members=members,
            first=begun,
            steps=join_test.STEPS - begun,
            load=self.path("state"),
        ).ends()
        self.require_alike(said, [0, 2, "joined"], after)


if __name__ == "__main__":
    unittest.main(verbosity=2)
