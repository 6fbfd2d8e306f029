"""Training over two nodes, started by torchrun: the parameters are the same bits everywhere."""

from __future__ import annotations

import os
import subprocess
import sys
import unittest

import numpy

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, ".."))
from support.cluster import Cluster, Services  # noqa: E402
from support.places import Program  # noqa: E402
from support.service import client_environment  # noqa: E402
from support.unittests import run_tests  # noqa: E402

LIMIT_S = 120
# The default of torch 1.13, no redirection, does not get past the enumerations of Python 3.11.
STREAMS = ("--redirects", "1", "--tee", "1")


class Training(unittest.TestCase):
    def torchrun(self, services: Services, index: int, nodes: int, ranks: int, folder: str) -> Program:
        """One node's torchrun, with so many ranks on each node."""
        cluster = services.cluster
        return cluster[index].start(
            ["/usr/bin/python3", "-B", "-m", "torch.distributed.run",
             "--nnodes", str(nodes), "--nproc_per_node", str(ranks), "--node_rank", str(index),
             "--master_addr", cluster[0].address, "--master_port", "29500",
             "--rdzv_id", "training", *STREAMS, "--monitor_interval", "0.2",
             "--log_dir", os.path.join(folder, f"logs{index}"),
             os.path.join(HERE, "cluster_training.py"), folder],
            env=client_environment(
                HEADRACE_SOCKET=services[index].socket, GLOO_SOCKET_IFNAME="eth0",
                OMP_NUM_THREADS="1",
            ),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def parameters(self, nodes: int, ranks: int) -> list[numpy.ndarray]:
        """Of every rank after a training on so many nodes with so many ranks each."""
        with Cluster(nodes=nodes) as cluster:
            folder = os.path.join(cluster.directory, "results")
            os.mkdir(folder)
            services = Services(cluster)
            running = [self.torchrun(services, i, nodes, ranks, folder) for i in range(nodes)]
            for program in running:
                output = program.communicate(timeout=LIMIT_S)[0]
                self.assertEqual(program.returncode, 0, output)
            for index in range(nodes):
                self.assertNotIn("training", services[index].ctl("jobs")[1])
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
