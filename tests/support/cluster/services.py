"""Services on the nodes of a cluster that know of each other, and jobs whose ranks are spread."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ..ports import free_port
from ..ranks import Ranks
from ..service import Service
from .cluster import Cluster
from .node import LoopbackNode

PORT = 7733  # the default; in namespaces nobody else is there
DETECTION_MS = 1000


class Services:
    """One service a node; the jobs meet at the first. The last ``servers`` of them have no ranks and
    sum for the others. Ends with the cluster.

    ``flags`` go to all services. Unless they name certificates, plain text is spoken.
    ``environments``, one a node, are added to that of this process.
    """

    def __init__(
        self,
        cluster: Cluster,
        *flags: str,
        servers: int = 0,
        build: str | os.PathLike[str] | None = None,
        environments: Sequence[Mapping[str, str]] = (),
    ) -> None:
        self.cluster = cluster
        self._environments = environments
        self._flags = flags
        self._build = build
        self._ports = [free_port() if cluster.loopback else PORT for _ in cluster.nodes]
        self.servers = len(cluster) - servers  # the first node that is one
        for index in range(len(cluster)):
            self.start(index)

    @property
    def rendezvous(self) -> str:
        return self.address(0)

    def address(self, index: int) -> str:
        """Where the other services reach that of a node."""
        return f"{self.cluster[index].address}:{self._ports[index]}"

    def flags(self, index: int) -> list[str]:
        """What the service of that node is started with."""
        flags = ["--node-name", self.cluster[index].name]
        if "--node-address" not in self._flags:
            flags += ["--node-address", self.address(index)]
        if not any(flag.startswith("--detection-ms") for flag in self._flags):
            flags += ["--detection-ms", str(DETECTION_MS)]
        if not self.cluster.loopback and "--tls-key" not in self._flags:
            flags += ["--plain-text"]
        if index >= self.servers:
            flags += ["--role", "server", "--rendezvous", self.rendezvous]
        return [*flags, *self._flags]

    def start(self, index: int, *flags: str) -> Service:
        """Starts that node's service, again if it had one; ``flags`` are added."""
        node: LoopbackNode = self.cluster[index]
        environment = self._environments[index] if self._environments else None
        return node.start_service(
            *self.flags(index), *flags, build=self._build, environment=environment
        )

    def __getitem__(self, index: int) -> Service:
        service = self.cluster[index].service
        assert service is not None
        return service

    def ranks(self, counts: Sequence[int], **options: Any) -> Ranks:
        """A job with so many ranks on each node, numbered through; ``world`` where more are to come.
        Options as for Ranks."""
        spread = [self[index] for index, count in enumerate(counts) for _ in range(count)]
        environment = {"HEADRACE_RENDEZVOUS": self.rendezvous, **options.pop("environment", {})}
        world = options.pop("world", len(spread))
        return Ranks(spread, world, environment=environment, **options)
