"""Gradients that cross between two nodes encoded: equal bits everywhere, and nothing is lost over time."""

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

PROGRAM = os.path.join(HERE, "cluster_compressed.py")


class Compressed(unittest.TestCase):
    def test_sums_are_the_same_bits_and_what_they_lack_is_kept_with_a_rank_of_each_node(self) -> None:
        for ranks in (1, 2):
            with self.subTest(ranks=ranks), Cluster(nodes=2) as cluster:
                folder = os.path.join(cluster.directory, "results")
                os.mkdir(folder)
                torchrun.run(self, Services(cluster), ranks, folder, PROGRAM, folder)
                names = [os.path.join(folder, f"sums.{rank}") for rank in range(2 * ranks)]
                sums = [numpy.fromfile(name, numpy.float32) for name in names]
                for other in sums[1:]:
                    self.assertEqual(sums[0].tobytes(), other.tobytes())


if __name__ == "__main__":
    run_tests()
