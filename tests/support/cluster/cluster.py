"""N nodes on this machine, that nobody else notices and that are gone when this process is."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from ..directory import OwnDirectory
from .namespaces import Namespaces
from .network import Link, add_bridge, rail_address
from .node import LoopbackNode, Node
from .requirements import require_namespaces

NODES_MAX = 26  # named a to z


class Cluster:
    """Nodes a, b, c, ... in a ``with`` block, or until ``close``.

    Each node is a set of namespaces with one veth pair for each rail; the pairs meet at bridges in
    namespaces of their own. All of it lives only as long as processes that the kernel ends with the
    thread that made the cluster, however that ends; nothing has a name that could stay behind or
    meet another cluster's.

    ``rate_mbit`` holds in both directions of each node's link; None is as fast as the machine.
    ``rails``: the rates of several links a node, instead of one. ``loopback``: the same nodes
    without namespaces, root and links, as programs side by side on this machine.

    Raises SkipReason where the machine cannot do it.
    """

    def __init__(
        self,
        nodes: int = 2,
        rate_mbit: float | None = None,
        rails: Sequence[float | None] | None = None,
        loopback: bool = False,
    ) -> None:
        if not 1 <= nodes <= NODES_MAX:
            raise ValueError(f"{nodes} nodes: 1 to {NODES_MAX} can be had")
        self.loopback = loopback
        self.nodes: list[LoopbackNode] = []
        self._ends = contextlib.ExitStack()
        if not loopback:
            require_namespaces()
        rates = list(rails) if rails is not None else [rate_mbit]
        names = [chr(ord("a") + index) for index in range(nodes)]
        try:
            directory = OwnDirectory("headrace-cluster-")
            self._ends.callback(directory.close)
            self.directory = directory.path
            if loopback:
                for name in names:
                    self._add(LoopbackNode(name, os.path.join(self.directory, name), ["127.0.0.1"]))
            else:
                self._build(names, rates)
        except BaseException:
            self.close()
            raise

    def _build(self, names: list[str], rates: list[float | None]) -> None:
        hosts = os.path.join(self.directory, "hosts")
        with open(hosts, "w", encoding="ascii") as file:
            file.write("127.0.0.1 localhost\n")
            file.writelines(f"{rail_address(0, i)} {name}\n" for i, name in enumerate(names))
        self.switch = self._namespaces("switch", hosts)
        for rail in range(len(rates)):
            add_bridge(self.switch, rail)
        every: list[list[Link]] = []
        for index, name in enumerate(names):
            inside = self._namespaces(name, hosts)
            links = []
            for rail, rate in enumerate(rates):
                links.append(Link(inside, self.switch, f"eth{rail}", f"{name}{rail}", rail, index))
                links[-1].connect(rate)
            self._add(Node(name, os.path.join(self.directory, name), inside, links, rates))
            every.append(links)
        for rail in range(len(rates)):
            for links in every:
                links[rail].know([others[rail] for others in every if others is not links])

    def _namespaces(self, name: str, hosts: str) -> Namespaces:
        made = Namespaces(name, hosts)
        self._ends.callback(made.close)
        return made

    def _add(self, node: LoopbackNode) -> None:
        self.nodes.append(node)
        self._ends.callback(node.close)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def __getitem__(self, index: int) -> LoopbackNode:
        return self.nodes[index]

    def __len__(self) -> int:
        return len(self.nodes)

    def close(self) -> None:
        """Ends all programs, then the namespaces and the directory; safe to call again."""
        self._ends.close()
