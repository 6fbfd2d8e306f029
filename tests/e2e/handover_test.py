"""A rank that joins gets the state of the others while they train on, and goes on to the same bits."""

from __future__ import annotations

import os
import sys
import time
import unittest
from typing import Any

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from join_test import HELD, MEMBERS_MAX, JoinCase
from support.cluster import Cluster, Services
from support.elastic import LIMIT_S, Run
from support.service import Service

STEPS = 40
LAYERS = 7  # of 3 MiB with their optimizer state; the first pieces have one each
PIECES_MIN = 4  # that such a state makes, each of which may be twice as large as the one before
WIDE = {"layers": 0, "width": 1 << 16}  # one parameter of 12 MiB with its state, beside small ones
TRAINED = {"layers": LAYERS, "pause": 0.1, "steps": STEPS, "first": 0}
NEW = MEMBERS_MAX  # the first that joins


class HandOverCase(JoinCase):
    trained = TRAINED

    def begin(self, services: list[Service], joins: Service, **asked: Any) -> tuple[Run, Run]:
        """A run that one more joins before the step HELD + 2."""
        run = self.train(services, "train", hold=[HELD, self.path("go")], **asked)
        asked.pop("kill", None)
        self.await_held(len(services))
        joiner = self.train([joins], "train", role="join", **asked)
        self.await_processes(joins, sum(each is joins for each in services), 1)
        self.await_joiner(services[0])
        self.go_on()
        return run, joiner

    def await_held(self, ranks: int) -> None:
        until = time.monotonic() + LIMIT_S
        while not all(os.path.exists(self.path(f"go{rank}")) for rank in range(ranks)):
            self.assertLess(time.monotonic(), until)
            time.sleep(0.02)

    def undisturbed(
        self, services: list[Service], members: list[int], first: int, steps: int, **asked: Any
    ) -> dict[int, dict[str, Any]]:
        """These members alone, from where the last such run has ended; what they print."""
        asked |= {"members": members, "first": first, "steps": steps, "save": self.path("state")}
        if first:
            asked["load"] = self.path("state")
        return self.train(services, f"from{first}", **asked).ends()

    def require_steps(
        self,
        said: dict[Any, dict[str, Any]],
        places: list[Any],
        alone: dict[int, dict[str, Any]],
        first: int,
        steps: int,
    ) -> None:
        """These steps have the losses of the run without disturbance."""
        for rank, key in enumerate(places):
            begin = first - said[key]["first"]
            self.assertEqual(said[key]["losses"][begin : begin + steps], alone[rank]["losses"], key)


class OneNode(HandOverCase):
    def setUp(self) -> None:
        super().setUp()
        self.service = Service()
        self.addCleanup(self.service.close)
        self.service.start()

    def require_joined(self, run: Run, joiner: Run, least: int, most: int, **asked: Any) -> None:
        """After so many steps beside the others, which are those of the others alone."""
        said: dict[Any, dict[str, Any]] = dict(run.ends())
        said["joined"] = joiner.ends()[0]
        begun = said["joined"]["first"]
        self.assertGreaterEqual(begun - HELD, least)
        self.assertLessEqual(begun - HELD, most)
        count = len(run.programs)
        members = [*range(count), NEW]
        for rank in range(count):
            resizes = said[rank]["resizes"]
            wanted = {"rank": rank, "world_size": count + 1, "members": members, "lost": []}
            self.assertEqual(resizes, [{**wanted, "iteration": begun + 1, "joined": [NEW]}])
        alone = self.undisturbed([self.service] * count, members[:-1], 0, begun, **asked)
        self.require_steps(said, members[:-1], alone, 0, begun)
        after = self.undisturbed([self.service] * (count + 1), members, begun, STEPS - begun, **asked)
        self.require_alike(said, [*members[:-1], "joined"], after)

    def test_a_rank_listens_until_it_has_all(self) -> None:
        run, joiner = self.begin([self.service] * 3, self.service)
        self.require_joined(run, joiner, PIECES_MIN, LAYERS + 8)

    def test_it_gets_whole_parameters_and_what_the_optimizer_keeps_outside_of_them(self) -> None:
        run, joiner = self.begin([self.service] * 2, self.service, own=True)
        self.require_joined(run, joiner, PIECES_MIN, LAYERS + 8, own=True)

    def test_a_large_parameter_comes_in_ranges(self) -> None:
        run, joiner = self.begin([self.service] * 2, self.service, **WIDE)
        self.require_joined(run, joiner, PIECES_MIN, LAYERS + 8, **WIDE)

    def test_it_clips_as_the_others_do(self) -> None:
        run, joiner = self.begin([self.service] * 2, self.service, clip=0.05)
        self.require_joined(run, joiner, PIECES_MIN, LAYERS + 8, clip=0.05)

    def test_it_gets_averages_that_the_script_has_changed(self) -> None:
        reads = list(range(STEPS))
        run, joiner = self.begin([self.service] * 2, self.service, reads=reads)
        self.require_joined(run, joiner, PIECES_MIN, LAYERS + 8, reads=reads)

    def test_it_gets_averages_that_the_script_changes_now_and_then_and_clips(self) -> None:
        asked = {**WIDE, "reads": [HELD + 3, HELD + 4, HELD + 5], "clip": 0.04}
        run, joiner = self.begin([self.service] * 2, self.service, **asked)
        self.require_joined(run, joiner, PIECES_MIN, LAYERS + 8, **asked)

    def test_a_rank_that_is_killed_while_it_listens_is_missed_by_nobody(self) -> None:
        run, joiner = self.begin([self.service] * 2, self.service)
        self.await_job(self.service, world_size=3)
        joiner.programs[0].kill()
        self.await_job(self.service, world_size=2)
        said = run.ends()
        self.assertEqual([said[rank]["resizes"] for rank in (0, 1)], [[], []])
        alone = self.undisturbed([self.service] * 2, [0, 1], 0, STEPS)
        self.require_alike(said, [0, 1], alone)

    def test_a_donor_that_is_killed_between_two_ranges_is_followed_by_another(self) -> None:
        killed, asked = HELD + 4, WIDE
        run, joiner = self.begin([self.service] * 3, self.service, kill=[[0, killed, "backward"]], **asked)
        said: dict[Any, dict[str, Any]] = dict(run.ends([0]))
        said["joined"] = joiner.ends()[0]
        begun = said["joined"]["first"]
        self.assertGreaterEqual(begun, killed + PIECES_MIN)
        for rank in (1, 2):
            lost, joined = said[rank]["resizes"]
            self.assertEqual((lost["lost"], lost["members"], lost["world_size"]), ([0], [1, 2], 2))
            self.assertEqual((lost["rank"], lost["iteration"], lost["joined"]), (rank - 1, killed + 1, []))
            self.assertEqual((joined["lost"], joined["members"]), ([], [1, 2, NEW]))
            self.assertEqual((joined["iteration"], joined["joined"]), (begun + 1, [NEW]))
        three = self.undisturbed([self.service] * 3, [0, 1, 2], 0, killed, **asked)
        self.require_steps({rank: said[rank] for rank in (1, 2)}, [1, 2], {0: three[1], 1: three[2]}, 0, killed)
        two = self.undisturbed([self.service] * 2, [1, 2], killed, begun - killed, **asked)
        self.require_steps(said, [1, 2], two, killed, begun - killed)
        after = self.undisturbed([self.service] * 3, [1, 2, NEW], begun, STEPS - begun, **asked)
        self.require_alike(said, [1, 2, "joined"], after)


class Nodes(HandOverCase):
    def test_one_listens_on_a_node_of_its_own(self) -> None:
        cluster = Cluster(nodes=3, loopback=True)
        self.addCleanup(cluster.close)
        nodes = Services(cluster, "--rails", "lo")
        asked = {"rendezvous": nodes.rendezvous}
        run, joiner = self.begin([nodes[0], nodes[1]], nodes[2], **asked)
        said: dict[Any, dict[str, Any]] = dict(run.ends())
        said["joined"] = joiner.ends()[0]
        begun = said["joined"]["first"]
        self.assertGreaterEqual(begun - HELD, PIECES_MIN)
        alone = self.undisturbed([nodes[0], nodes[1]], [0, 1], 0, begun, **asked)
        self.require_steps(said, [0, 1], alone, 0, begun)
        three = [nodes[0], nodes[1], nodes[2]]
        after = self.undisturbed(three, [0, 1, NEW], begun, STEPS - begun, **asked)
        self.require_alike(said, [0, 1, "joined"], after)


if __name__ == "__main__":
    unittest.main(verbosity=2)
