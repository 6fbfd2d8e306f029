"""Links with a delay between the nodes of a cluster, beside those that it has."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from contenders import BenchError
from support.cluster import Cluster, SkipReason
from support.cluster.network import run_in

DEVICE = "far0"  # on each node
TUN = "/dev/net/tun"


def _address(index: int) -> str:
    return f"10.78.0.{index + 1}"


def _hardware_address(index: int) -> str:
    return f"02:78:00:00:00:{index + 1:02x}"


class FarLinks:
    """Each node's device of that name reaches the others' at the rate, after the delay. They carry what
    services are told to send there (``--rails``); all else goes over the cluster's own links. To be
    closed after the cluster."""

    def __init__(self, cluster: Cluster, rate_mbit: float, delay_us: float, build: Path):
        if not os.path.exists(TUN):
            raise SkipReason(f"links with a delay need {TUN}")
        pids = [str(node.namespaces.pid) for node in cluster.nodes]
        command = [str(build / "bench_far_links"), f"{rate_mbit:g}", f"{delay_us:g}", *pids]
        try:
            self._program = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
        except OSError as error:
            raise BenchError(f"bench_far_links: {error}") from error
        try:
            if self._program.stdout.readline() != "ready\n":
                raise BenchError(self._program.stderr.read().strip() or "bench_far_links ended")
            for index, node in enumerate(cluster.nodes):
                others = [other for other in range(len(cluster)) if other != index]
                run_in(
                    node.namespaces,
                    ["ip", "link", "set", DEVICE, "address", _hardware_address(index), "up"],
                    ["ip", "address", "add", f"{_address(index)}/24", "dev", DEVICE],
                    *[
                        ["ip", "neighbour", "replace", _address(other), "lladdr",
                         _hardware_address(other), "dev", DEVICE, "nud", "permanent"]
                        for other in others
                    ],
                )  # fmt: skip
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._program.kill()
        self._program.communicate()
