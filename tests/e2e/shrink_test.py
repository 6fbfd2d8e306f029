"""A job goes on without ranks that are lost: processes, a node, and what the rest then computes."""

from __future__ import annotations

import os
import sys
import tempfile
import time
import unittest
from collections.abc import Callable, Sequence
from typing import Any

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from support.cluster import Cluster, Services
from support.elastic import LIMIT_S, ElasticCase, Run
from support.patience import await_equal, until
from support.ranks import RankError, Ranks
from support.service import Service

COUNT = 4096
STEPS = 12


class ShrinkCase(ElasticCase):
    def require_goes_on(
        self, run: Run, services: Sequence[Service], rendezvous: str, lost: Sequence[int]
    ) -> None:
        """Those that are left compute what so many ranks compute from the same state, to the bit."""
        world = len(services)
        left = [rank for rank in range(world) if rank not in lost]
        said = run.ends(lost)
        resize = said[left[0]]["resizes"]
        self.assertEqual(len(resize), 1, resize)
        first = resize[0]["iteration"] - 1  # that is summed over fewer
        for rank, each in said.items():
            wanted = {
                "rank": left.index(rank),
                "world_size": len(left),
                "members": left,
                "lost": list(lost),
                "iteration": first + 1,
                "joined": [],
            }
            self.assertEqual(each["resizes"], [wanted], f"rank {rank}")
        with tempfile.TemporaryDirectory() as folder:
            state = os.path.join(folder, "state")
            # Those ranks are on other nodes; what they save is this machine's all the same.
            if first:
                before = self.train(
                    services, "before", rendezvous=rendezvous, first=0, steps=first, save=state
                )
                undisturbed = before.ends()
                for rank in left:
                    self.assertEqual(said[rank]["losses"][:first], undisturbed[rank]["losses"])
            after = self.train(
                [services[rank] for rank in left],
                "after",
                members=left,
                rendezvous=rendezvous,
                first=first,
                steps=STEPS - first,
                load=state if first else "",
            ).ends()
            for place, rank in enumerate(left):
                self.assertEqual(said[rank]["losses"][first:], after[place]["losses"], rank)
                self.assertEqual(said[rank]["digest"], after[place]["digest"], rank)

    def await_standstill(self, service: Service, held: list[str]) -> None:
        """Until all ranks have come to the step before which they wait, and nothing of theirs moves any more."""
        until(lambda: all(os.path.exists(path) for path in held), "all ranks have come to it", LIMIT_S)
        ended: list[int] = []

        def stands() -> bool:
            jobs = service.ctl_json("jobs")["jobs"]
            ended.append(sum(job["blocks_ended"] + job["operations_ended"] for job in jobs))
            time.sleep(1)
            return len(ended) > 1 and ended[-1] == ended[-2] > 0

        until(stands, "nothing moves", LIMIT_S)

    def require_goes_on_without_a_node(
        self,
        nodes: Services,
        places: Sequence[Service],
        lost: Sequence[int],
        lose: Callable[[Run], None],
    ) -> dict[int, dict[str, Any]]:
        """The ranks ``lost`` are those of one node, which ``lose`` ends between two steps. The others compute
        what so many ranks compute from the same state, to the bit. Returns what a run said that lost nobody.
        """
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        go, state = (os.path.join(folder.name, name) for name in ("go", "state"))
        left = [rank for rank in range(len(places)) if rank not in lost]
        home = places[left[0]]
        index = [nodes[each] for each in range(len(nodes.cluster.nodes))].index(home)
        first = 5
        asked = {"rendezvous": nodes.rendezvous, "first": 0}
        undisturbed = self.train(places, "before", steps=first, save=state, **asked).ends()
        run = self.train(places, "train", steps=STEPS, hold=[first, go], **asked)
        self.await_standstill(home, [f"{go}{rank}" for rank in range(len(places))])
        lose(run)
        with open(go, "w", encoding="utf-8"):
            pass
        said = run.ends(lost)
        home.await_event(f"goes on with {len(left)} of {len(places)} ranks")
        after = self.train(
            [places[rank] for rank in left],
            "after",
            members=left,
            rendezvous=nodes.address(index),
            first=first,
            steps=STEPS - first,
            load=state,
        ).ends()
        for place, rank in enumerate(left):
            # What is under way is the last one that all had averages of, until its updates are made.
            self.assertIn(said[rank]["resizes"][0]["iteration"], (first, first + 1))
            self.assertEqual(said[rank]["resizes"][0]["members"], left)
            self.assertEqual(said[rank]["resizes"][0]["lost"], list(lost))
            self.assertEqual(said[rank]["losses"][:first], undisturbed[rank]["losses"])
            self.assertEqual(said[rank]["losses"][first:], after[place]["losses"])
            self.assertEqual(said[rank]["digest"], after[place]["digest"])
        return undisturbed

    def require_goes_on_without_the_leaders_node(self, count: int, restarts: bool = False) -> None:
        """One rank on each of so many nodes; the node of rank 0 is gone at once, with its addresses.

        With ``restarts`` all other services begin again, too, and have forgotten where the job is.
        """
        cluster = Cluster(nodes=count)
        self.addCleanup(cluster.close)
        nodes = Services(cluster)
        places = [nodes[index] for index in range(count)]

        def lose(_: Run) -> None:
            cluster[0].kill()
            others = places[1:] if restarts else []
            for each in others:
                each.kill()
            for each in others:
                each.start()

        self.require_goes_on_without_a_node(nodes, places, [0], lose)


class OneNode(ShrinkCase):
    def setUp(self) -> None:
        self.service = Service()
        self.addCleanup(self.service.close)
        self.service.start()

    def ranks(self, world: int) -> Ranks:
        ranks = Ranks(self.service, world, job="fewer")
        self.addCleanup(ranks.__exit__)
        ranks.each("tensor", name="w", count=COUNT)
        return ranks

    def lose(self, ranks: Ranks, *lost: int) -> list[Any]:
        """Kills some; the others have each learned of it."""
        left = [member for member in ranks.members if member.rank not in lost]
        for rank in lost:
            ranks[rank].kill()
        for member in left:
            with self.assertRaises(RankError) as caught:
                member.call("post", kind="all_reduce", name="w")
                member.call("wait")
            self.assertEqual(caught.exception.code, "peer lost", str(caught.exception))
        return left

    def test_three_of_four_go_on_with_ranks_of_their_own(self) -> None:
        ranks = self.ranks(4)
        left = self.lose(ranks, 1)
        begin = time.monotonic()
        for member in left:
            member.send("shrink", timeout=LIMIT_S, min_world=2, grace=LIMIT_S / 2)
        answers = [member.receive() for member in left]
        took = time.monotonic() - begin
        self.assertEqual(answers, [[place, 3, [0, 2, 3]] for place in range(3)])
        self.assertLess(took, LIMIT_S / 2, "nobody is waited for whose process is known to be gone")
        for place, member in enumerate(left):
            member.call("fill", name="w", value=place + 1.0)
            member.send("post", kind="all_reduce", name="w", op="average")
        for member in left:
            member.receive()
            member.call("wait")
            self.assertEqual(member.call("values", name="w"), [2.0] * 4)
        await_equal(lambda: [job["world_size"] for job in self.service.ctl_json("jobs")["jobs"]], [3])
        self.service.await_event("goes on with 3 of 4 ranks")

    def test_one_after_the_other_may_go(self) -> None:
        ranks = self.ranks(4)
        left = ranks.members
        for lost, members in ((0, [1, 2, 3]), (2, [1, 3]), (3, [1])):
            ranks.members = left
            at = [member.rank for member in left].index(lost)
            gone, left = left[at], [member for member in left if member.rank != lost]
            gone.kill()
            for member in left:
                with self.assertRaises(RankError):
                    member.call("post", kind="all_reduce", name="w")
                    member.call("wait")
                member.send("shrink", timeout=LIMIT_S, min_world=1)
            self.assertEqual(
                [member.receive() for member in left],
                [[place, len(members), members] for place in range(len(members))],
            )

    def test_below_the_least_world_all_that_are_lost_are_named(self) -> None:
        ranks = self.ranks(3)
        pids = [ranks[1].pid, ranks[2].pid]
        left = self.lose(ranks, 1, 2)
        left[0].send("shrink", timeout=LIMIT_S, min_world=2)
        with self.assertRaises(RankError) as caught:
            left[0].receive()
        self.assertEqual(caught.exception.code, "mismatch")
        for word in ("1 of 3", "min_world", *map(str, pids), "checkpoint"):
            self.assertIn(word, str(caught.exception))

    def test_a_restarted_service_costs_no_rank(self) -> None:
        ranks = self.ranks(3)
        self.service.kill()
        for member in ranks.members:
            member.send("shrink", timeout=LIMIT_S, min_world=1, grace=LIMIT_S)
        self.service.start()
        self.assertEqual(
            [member.receive() for member in ranks.members],
            [[rank, 3, [0, 1, 2]] for rank in range(3)],
        )

    def test_training_goes_on_when_a_rank_dies_in_its_backward_pass(self) -> None:
        services = [self.service] * 4
        run = self.train(services, "train", first=0, steps=STEPS, kill=[[2, 5, "backward"]])
        self.require_goes_on(run, services, "", [2])

    def test_training_goes_on_when_rank_0_dies_after_its_forward_pass(self) -> None:
        services = [self.service] * 3
        run = self.train(services, "train", first=0, steps=STEPS, kill=[[0, 4, "forward"]])
        self.require_goes_on(run, services, "", [0])

    def test_training_below_the_least_world_ends_and_says_why(self) -> None:
        services = [self.service] * 2
        run = self.train(
            services, "train", first=0, steps=STEPS, kill=[[1, 3, "backward"]], min_world=2
        )
        run.programs[1].wait(timeout=LIMIT_S)
        _, complaints = run.programs[0].communicate(timeout=LIMIT_S)
        self.assertEqual(run.programs[0].returncode, 1)
        self.assertIn("1 of 2 ranks", complaints)
        self.assertIn("member 1", complaints)


class Nodes(ShrinkCase):
    def begin(self, nodes: int) -> None:
        cluster = Cluster(nodes=nodes, loopback=True)
        self.addCleanup(cluster.close)
        self.services = Services(cluster, "--rails", "lo")

    def test_training_on_two_nodes_goes_on_without_a_rank_of_one(self) -> None:
        self.begin(2)
        services = [self.services[0]] * 2 + [self.services[1]] * 2
        rendezvous = self.services.rendezvous
        run = self.train(
            services,
            "train",
            rendezvous=rendezvous,
            first=0,
            steps=STEPS,
            kill=[[3, 6, "backward"]],
        )
        self.require_goes_on(run, services, rendezvous, [3])

    def test_training_goes_on_without_a_node_of_two_ranks(self) -> None:
        self.begin(3)
        nodes = self.services
        places = [nodes[0], nodes[1], nodes[2], nodes[2]]

        def lose(run: Run) -> None:
            nodes[2].kill()
            for rank in (2, 3):
                run.programs[rank].kill()

        undisturbed = self.require_goes_on_without_a_node(nodes, places, [2, 3], lose)
        # The least world is 1 of 4.
        self.assertIn("two halves", undisturbed[0]["warned"][0])
        self.assertEqual([len(undisturbed[rank]["warned"]) for rank in range(4)], [1, 0, 0, 0])
        events = [event["text"] for event in nodes[0].ctl_json("events")["events"]]
        warned = [text for text in events if "two halves" in text]
        self.assertEqual(len(warned), 3, "one for each job")
        self.assertIn("1 of 4 ranks", warned[0])

    def test_training_goes_on_without_the_leaders_node(self) -> None:
        self.require_goes_on_without_the_leaders_node(3)

    def test_training_goes_on_without_the_leaders_node_and_all_other_services(self) -> None:
        self.require_goes_on_without_the_leaders_node(3, restarts=True)


if __name__ == "__main__":
    unittest.main(verbosity=2)
