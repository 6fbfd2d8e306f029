"""Training over two nodes, started by torchrun: the parameters are the same bits everywhere."""

from __future__ import annotations

import os
import sys
import unittest

import numpy

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, ".."))
import torchrun
from support.cluster import Cluster, Services
from support.unittests import run_tests

PROGRAM = os.path.join(HERE, "cluster_training.py")


class Training(unittest.TestCase):
    def parameters(self, nodes: int, ranks: int) -> list[numpy.ndarray]:
        """What every rank has after a training on so many nodes with so many ranks each."""
        with Cluster(nodes=nodes) as cluster:
            folder = os.path.join(cluster.directory, "results")
            os.mkdir(folder)
            services = Services(cluster)
            torchrun.run(self, services, ranks, folder, PROGRAM, folder)
            return [
                numpy.fromfile(os.path.join(folder, f"parameters.{rank}"), numpy.float32)
                for rank in range(nodes * ranks)
            ]

    def test_of_two_nodes_gives_the_bits_of_one_node(self) -> None:
        apart, together = self.parameters(2, 1), self.parameters(1, 2)
        self.assertTrue(numpy.isfinite(apart[0]).all())
        self.assertGreater(len(apart[0]), 90000)
        for other in (apart[1], *together):
            self.assertEqual(apart[0].tobytes(), other.tobytes())

    def test_of_two_nodes_of_two_ranks_gives_the_same_bits_everywhere(self) -> None:
        first, *others = self.parameters(2, 2)
        self.assertTrue(numpy.isfinite(first).all())
        for other in others:
            self.assertEqual(first.tobytes(), other.tobytes())


if __name__ == "__main__":
    run_tests()
