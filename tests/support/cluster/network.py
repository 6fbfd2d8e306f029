"""Links between namespaces: a bridge for each rail, a veth pair for each node on it, rates by tbf."""

from __future__ import annotations

import dataclasses
import subprocess

from .namespaces import Namespaces

# Large enough that TCP fills the link (95 % of the rate) although its segments come 64 KiB at a time,
# and small beside what is measured: 2 ms at 1 Gbit/s.
BURST = "256kb"
# What a switch would hold at most, in time; the rest is dropped.
QUEUE_TIME = "20ms"


class LinkError(RuntimeError):
    """A command that shapes the network failed; the text has the command and its words."""


def run_in(place: Namespaces, *commands: list[str]) -> None:
    """Runs commands in the namespaces' network, one after the other."""
    for command in commands:
        done = subprocess.run(
            [*place.enter(), *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if done.returncode != 0:
            raise LinkError(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()}")


@dataclasses.dataclass(frozen=True)
class Link:
    """One node's connection to one rail. ``port`` is the end at the bridge, ``interface`` the node's;
    a rate holds in both directions."""

    node: Namespaces
    switch: Namespaces
    interface: str
    port: str
    rail: int
    index: int  # of the node

    @property
    def address(self) -> str:
        return rail_address(self.rail, self.index)

    @property
    def hardware_address(self) -> str:
        return f"02:77:00:00:{self.rail:02x}:{self.index + 1:02x}"

    def connect(self, rate_mbit: float | None) -> None:
        run_in(
            self.switch,
            ["ip", "link", "add", "name", self.port, "type", "veth",
             "peer", "name", self.interface, "address", self.hardware_address,
             "netns", str(self.node.pid)],
            ["ip", "link", "set", self.port, "master", bridge_name(self.rail), "up"],
        )  # fmt: skip
        run_in(
            self.node,
            ["ip", "address", "add", f"{self.address}/24", "dev", self.interface],
            ["ip", "link", "set", self.interface, "up"],
        )
        self.limit(rate_mbit)

    def know(self, others: list[Link]) -> None:
        """Fixes where the others of this rail are, so that a cut is silent: no connection is told
        that its peer cannot be found."""
        for other in others:
            run_in(
                self.node,
                ["ip", "neighbour", "replace", other.address, "lladdr", other.hardware_address,
                 "dev", self.interface, "nud", "permanent"],
            )  # fmt: skip

    def limit(self, rate_mbit: float | None, sending: bool = True, receiving: bool = True) -> None:
        """A new rate, None for none; takes effect at once, also under way. Ends a cut."""
        for chosen, place, device in self._ends(sending, receiving):
            if not chosen:
                continue
            if rate_mbit is None:
                kind = ["noqueue"]
            else:
                kind = ["tbf", "rate", f"{round(rate_mbit * 1000)}kbit"]
                kind += ["burst", BURST, "latency", QUEUE_TIME]
            run_in(place, ["tc", "qdisc", "replace", "dev", device, "root", *kind])

    def cut(self, sending: bool = True, receiving: bool = True) -> None:
        """Nothing gets through in these directions, and nobody is told."""
        for chosen, place, device in self._ends(sending, receiving):
            if chosen:
                run_in(place, ["tc", "qdisc", "replace", "dev", device, "root", "blackhole"])

    def set_up(self, up: bool) -> None:
        """Plugs the cable in or out at the bridge: the node sees its carrier go."""
        run_in(self.switch, ["ip", "link", "set", self.port, "up" if up else "down"])

    def counters(self) -> tuple[int, int]:
        """Bytes that the node has received and sent here, with the headers of every layer."""
        with open(f"/proc/{self.node.pid}/net/dev", encoding="ascii") as table:
            for line in table:
                name, _, values = line.partition(":")
                if name.strip() == self.interface:
                    numbers = values.split()
                    return int(numbers[0]), int(numbers[8])
        raise LinkError(f"{self.interface} is gone")

    def _ends(self, sending: bool, receiving: bool) -> list[tuple[bool, Namespaces, str]]:
        return [
            (sending, self.node, self.interface),
            (receiving, self.switch, self.port),
        ]


def bridge_name(rail: int) -> str:
    return f"bridge{rail}"


def add_bridge(switch: Namespaces, rail: int) -> None:
    """A bridge with an address, so that a program of ours in the switch can speak to the nodes."""
    name = bridge_name(rail)
    run_in(
        switch,
        ["ip", "link", "add", "name", name, "type", "bridge"],
        ["ip", "link", "set", name, "type", "bridge", "mcast_snooping", "0"],
        ["ip", "address", "add", f"{rail_address(rail, 253)}/24", "dev", name],
        ["ip", "link", "set", name, "up"],
    )


def rail_address(rail: int, index: int) -> str:
    """The address of node ``index`` on a rail; addresses mean nothing outside the namespaces."""
    return f"10.77.{rail}.{index + 1}"
