"""PyTorch over several nodes, started by torchrun: the backend, the scheduled optimizer, examples."""

from __future__ import annotations

import json
import os
import sys
import unittest

import numpy

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, ".."))
import torchrun
from support.cluster import Cluster, Services
from support.unittests import run_tests

EXAMPLES = os.path.join(HERE, "..", "..", "client", "examples")


class OverNodes(unittest.TestCase):
    def start(self, nodes: int) -> tuple[Services, str]:
        cluster = Cluster(nodes=nodes)
        self.addCleanup(cluster.close)
        folder = os.path.join(cluster.directory, "results")
        os.mkdir(folder)
        return Services(cluster), folder

    def test_three_nodes_train_to_the_same_bits(self) -> None:
        services, folder = self.start(3)
        torchrun.run(
            self, services, 1, folder, os.path.join(HERE, "cluster_torch.py"), folder
        )
        first, *others = (
            numpy.fromfile(os.path.join(folder, f"parameters.{rank}"), numpy.float32)
            for rank in range(3)
        )
        self.assertTrue(numpy.isfinite(first).all())
        self.assertGreater(len(first), 6000)
        for other in others:
            self.assertEqual(first.tobytes(), other.tobytes())

    def test_a_run_with_powersgd_that_is_resumed_from_its_state_has_the_same_bits(self) -> None:
        services, folder = self.start(2)
        program = os.path.join(HERE, "cluster_resumed.py")
        found = {}
        for name, source, steps in (
            ("whole", "", ("0", "12")),
            ("begun", "", ("0", "6")),
            ("resumed", "begun", ("6", "12")),
            ("forgot", "begun", ("6", "12", "forgets")),
        ):
            target = os.path.join(folder, name)
            os.mkdir(target)
            torchrun.run(self, services, 1, folder, program, os.path.join(folder, source), target, *steps)
            one, other = (
                numpy.fromfile(os.path.join(target, f"parameters.{rank}"), numpy.float32)
                for rank in range(2)
            )
            self.assertTrue(numpy.isfinite(one).all())
            self.assertEqual(one.tobytes(), other.tobytes(), name)
            found[name] = one.tobytes()
        self.assertEqual(found["resumed"], found["whole"])
        self.assertNotEqual(found["begun"], found["whole"])
        self.assertNotEqual(found["forgot"], found["whole"], "what was left out before counts")

    def test_small_buckets_of_ddp_move_by_a_plan_where_that_changes_no_bit(self) -> None:
        for nodes, ranks, step in ((2, 2, "PLANNED"), (3, 1, "ENDED")):
            with self.subTest(nodes=nodes):
                services, folder = self.start(nodes)
                program = os.path.join(HERE, "cluster_ddp.py")
                torchrun.run(self, services, ranks, folder, program, step)

    def test_examples_learn_alike_by_the_plan_and_through_ddp(self) -> None:
        services, folder = self.start(2)
        small = {"gpt": ("--layers", "2", "--width", "64"), "resnet": ("--width", "8")}
        for example, options in small.items():
            hashes, losses = set(), []
            for way in ((), ("--ddp", "headrace"), ("--ddp", "gloo")):
                with self.subTest(example, way=way):
                    result = os.path.join(folder, "result.json")
                    said = torchrun.run(
                        self, services, 1, folder, os.path.join(EXAMPLES, f"{example}.py"),
                        "--steps", "12", "--json", result, *options, *way,
                    )  # fmt: skip
                    self.assertIn("step    1  loss", said)
                    self.assertIn("2 ranks", said)
                    with open(result, encoding="utf-8") as file:
                        answer = json.load(file)
                    self.assertEqual(len(answer["iteration_s"]), 12)
                    self.assertEqual(len(answer["waited_s"]), 12)
                    hashes.add(answer["hash"])
                    losses.append(answer["losses"])
            # With two ranks a sum has no order, so even the bits agree.
            self.assertEqual(len(hashes), 1, losses)
            self.assertLess(losses[0][-1], losses[0][0])


if __name__ == "__main__":
    run_tests()
