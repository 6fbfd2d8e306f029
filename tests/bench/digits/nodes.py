"""The nodes that the quickstart trains on, all of them on this machine.

For root a node is a set of namespaces with a network link of its own, as fast as was asked for; where
that is not possible, nodes are programs side by side that meet on loopback. Everything started on a
node ends with this process, kill -9 included; tests/support/cluster/README.md says how.
"""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests"))
from support.cluster import Cluster, LoopbackNode, Services, SkipReason
from support.ports import free_port

PYTORCH_PORT = 29500  # torchrun's default
# Tests ask for less. Here ranks, services and whatever else runs share the cores of one machine.
DETECTION_MS = 3000


class Failure(RuntimeError):
    """Why the quickstart ends early; the text is for people."""

    def __init__(self, text: str, status: int = 1):
        super().__init__(text)
        self.status = status


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a rank runs, and the environment that tells it so."""

    node: LoopbackNode
    environment: dict[str, str]


class Nodes:
    """The nodes in a ``with`` block; leaving it ends all that runs on them.

    ``link`` says in words what connects them, "-" where there is only one. ``directory`` is a folder
    that all of them see, and that goes with them.
    """

    def __init__(self, count: int, rate_mbit: float) -> None:
        """``rate_mbit`` is each link's rate in both directions; 0 is as fast as it goes."""
        self.count = count
        self.link = "-"
        if count == 1:
            self._cluster = Cluster(nodes=1, loopback=True)
        else:
            self._cluster = self._connected(rate_mbit)
        self.directory = Path(self._cluster.directory)

    def _connected(self, rate_mbit: float) -> Cluster:
        try:
            cluster = Cluster(nodes=self.count, rate_mbit=rate_mbit or None)
        except SkipReason as reason:
            self.link = "loopback"
            _say(
                f"{reason}; {self.count} nodes meet on loopback, and nothing is rate-limited"
            )
            return Cluster(nodes=self.count, loopback=True)
        self.link = f"{_in_words(rate_mbit)} each" if rate_mbit else "not limited"
        _say(f"{self.count} nodes in namespaces of their own, links: {self.link}")
        return cluster

    def __enter__(self) -> Nodes:
        return self

    def __exit__(self, *unused: object) -> None:
        self._cluster.close()

    @property
    def first(self) -> LoopbackNode:
        return self._cluster[0]

    @contextlib.contextmanager
    def services(self, build: Path) -> Iterator[str]:
        """A headraced on each node, asked to stop at the end; after a failure they end with the nodes.

        Yields what ranks must be told of where services meet: nothing where torchrun's variables
        suffice, which is so when each service has its port to itself.
        """
        rendezvous = ""
        if self.count == 1:
            self.first.start_service(build=build)
        else:
            timing = f"--detection-ms={DETECTION_MS}"
            services = Services(self._cluster, timing, build=build)
            rendezvous = services.rendezvous if self._cluster.loopback else ""
        yield rendezvous
        for node in self._cluster.nodes:
            self._stop(node)

    @staticmethod
    def _stop(node: LoopbackNode) -> None:
        assert node.service is not None
        try:
            status = node.service.stop()
        except subprocess.TimeoutExpired as late:
            raise Failure(
                f"headraced on node {node.name} has not ended {late.timeout:.0f} s after SIGTERM"
            ) from None
        if status != 0:
            raise Failure(
                f"headraced on node {node.name} ended with {status} when it was asked to stop:\n"
                + node.service.log()[-2000:]
            )

    def places(self, ranks: int) -> list[Place]:
        """Spreads ranks over the nodes, and tells each what torchrun would tell it."""
        node_of = [rank * self.count // ranks for rank in range(ranks)]
        port = free_port() if self._cluster.loopback else PYTORCH_PORT
        return [
            Place(
                self._cluster[node],
                {
                    "RANK": str(rank),
                    "WORLD_SIZE": str(ranks),
                    "LOCAL_RANK": str(rank - node_of.index(node)),
                    "LOCAL_WORLD_SIZE": str(node_of.count(node)),
                    "MASTER_ADDR": self.first.address,
                    "MASTER_PORT": str(port),
                },
            )
            for rank, node in enumerate(node_of)
        ]

    @property
    def linked(self) -> bool:
        """Whether links of a rate connect the nodes."""
        return self.count > 1 and not self._cluster.loopback

    def set_rate(self, rate_mbit: float) -> None:
        """Sets the rate of every link, in both directions."""
        for node in self._cluster.nodes:
            node.set_rate(rate_mbit)

    def bytes_sent(self) -> list[int]:
        """What each node has sent on its link so far, all headers included; empty without links."""
        if self._cluster.loopback:
            return []
        return [node.bytes_sent() for node in self._cluster.nodes]


def _in_words(rate_mbit: float) -> str:
    if rate_mbit < 1000:
        return f"{rate_mbit:g} Mbit/s"
    return f"{rate_mbit / 1000:g} Gbit/s"


def _say(text: str) -> None:
    print(f"quickstart: {text}", flush=True)
