"""torchrun on the nodes of a cluster."""

from __future__ import annotations

import os
import subprocess
import unittest

from support.cluster import Services
from support.places import Program
from support.service import client_environment

LIMIT_S = 120
# The default of torch 1.13, no redirection, does not get past the enumerations of Python 3.11.
STREAMS = ("--redirects", "1", "--tee", "1")


def start(
    services: Services, index: int, ranks: int, folder: str, *program: str, nodes: int | None = None
) -> Program:
    """One node's torchrun, with so many ranks on each node of the cluster, or on the first so many."""
    cluster = services.cluster
    nodes = len(cluster.nodes) if nodes is None else nodes
    return cluster[index].start(
        ["/usr/bin/python3", "-B", "-m", "torch.distributed.run",
         "--nnodes", str(nodes), "--nproc_per_node", str(ranks),
         "--node_rank", str(index), "--master_addr", cluster[0].address,
         "--master_port", "29500", "--rdzv_id", "training", *STREAMS,
         "--monitor_interval", "0.2", "--log_dir", os.path.join(folder, f"logs{index}"),
         *program],
        env=client_environment(
            HEADRACE_SOCKET=services[index].socket, GLOO_SOCKET_IFNAME="eth0",
            OMP_NUM_THREADS="1",
        ),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def run(test: unittest.TestCase, services: Services, ranks: int, folder: str, *program: str) -> str:
    """All nodes' torchruns, which must succeed and leave no job behind; what node 0 printed."""
    count = len(services.cluster.nodes)
    running = [start(services, i, ranks, folder, *program) for i in range(count)]
    outputs = []
    for each in running:
        outputs.append(each.communicate(timeout=LIMIT_S)[0])
        test.assertEqual(each.returncode, 0, outputs[-1])
    for index in range(count):
        services[index].await_job_gone("training")
    return outputs[0]
