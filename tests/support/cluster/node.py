"""A node: a place where programs run, with a service, links to the others and faults on demand."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Any

from ..places import HERE, Program
from ..service import Service
from .namespaces import Namespaces
from .network import Link
from .requirements import SkipReason


class LoopbackNode:
    """A node that is only a name: its programs run here and its address is this machine's.

    One thread uses it. Everything a node can do is here; what needs links of its own raises
    SkipReason.
    """

    def __init__(self, name: str, directory: str, addresses: list[str]) -> None:
        self.name = name
        self.directory = directory
        self.addresses = addresses  # one a rail
        self.service: Service | None = None
        self._programs: list[Program] = []
        os.mkdir(directory)

    @property
    def address(self) -> str:
        return self.addresses[0]

    @property
    def interfaces(self) -> list[str]:
        return ["lo"]

    def start(self, command: list[str], **options: Any) -> Program:
        """Starts a program on the node, with the options of subprocess.Popen. It leads a session, so
        that those it starts end with it."""
        return self._known(HERE.start(command, start_new_session=True, **options))

    def start_service(self, *flags: str, **options: Any) -> Service:
        """Starts headraced here, with the options of Service; one that was here is ended. The flags
        for several nodes are the caller's (services.py)."""
        if self.service is not None:
            self.service.close()
        self.service = Service(*flags, directory=self.directory, place=self, **options)
        self.service.start()
        return self.service

    def kill(self) -> None:
        """All programs at once, by SIGKILL. Their connections are closed by the kernel."""
        for program in self._programs:
            if program.poll() is None:
                os.killpg(program.pid, signal.SIGKILL)
            program.end()
        self._programs.clear()

    def pause(self) -> None:
        """SIGSTOP to all programs: the node is there, and does nothing."""
        self._signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal_all(signal.SIGCONT)

    def close(self) -> None:
        self.kill()

    def pids(self) -> list[int]:
        """The pids of all programs that run on the node."""
        return [program.program_pid for program in self._programs if program.poll() is None]

    def _known(self, program: Program) -> Program:
        """Remembers it; those that have ended meanwhile are forgotten."""
        self._programs = [known for known in self._programs if known.poll() is None]
        self._programs.append(program)
        return program

    def _signal_all(self, sig: signal.Signals) -> None:
        for program in self._programs:
            program.send_signal(sig)
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sig)

    # What needs links of its own.

    def set_rate(self, mbit: float | None, rail: int = 0) -> None:
        raise self._no_links("a link's rate")

    def unplug(self, rail: int | None = None) -> None:
        raise self._no_links("a link that goes down")

    def plug(self, rail: int | None = None) -> None:
        raise self._no_links("a link that comes up")

    def cut(self, sending: bool = True, receiving: bool = True, rail: int | None = None) -> None:
        raise self._no_links("a link that is cut")

    def mend(self, rail: int | None = None) -> None:
        raise self._no_links("a link that is mended")

    def bytes_sent(self, rail: int = 0) -> int:
        raise self._no_links("counting bytes on a link")

    def bytes_received(self, rail: int = 0) -> int:
        raise self._no_links("counting bytes on a link")

    @staticmethod
    def _no_links(what: str) -> SkipReason:
        return SkipReason(f"{what} needs a cluster of namespaces, not one on loopback")


class Node(LoopbackNode):
    """A node in namespaces of its own."""

    def __init__(
        self,
        name: str,
        directory: str,
        namespaces: Namespaces,
        links: list[Link],
        rates_mbit: list[float | None],
    ) -> None:
        super().__init__(name, directory, [link.address for link in links])
        self.namespaces = namespaces
        self.links = links
        self._rates_mbit = list(rates_mbit)

    @property
    def interfaces(self) -> list[str]:
        return [link.interface for link in self.links]

    def start(self, command: list[str], **options: Any) -> Program:
        return self._known(self.namespaces.start(command, **options))

    def kill(self, silently: bool = False) -> None:
        """The kernel ends all programs of the node at once. ``silently``: as when the power goes,
        so that no peer is told."""
        if silently:
            self.unplug()
        self.namespaces.close()
        for program in self._programs:
            program.end()
        self._programs.clear()

    def pids(self) -> list[int]:
        return self.namespaces.members() if self.namespaces.alive() else []

    # Faults on links: of one rail, or of all when none is named.

    def set_rate(self, mbit: float | None, rail: int = 0) -> None:
        """A new rate in both directions, also while bytes move. None: as fast as it goes."""
        self._rates_mbit[rail] = mbit
        self.links[rail].limit(mbit)

    def unplug(self, rail: int | None = None) -> None:
        for link in self._chosen(rail):
            link.set_up(False)

    def plug(self, rail: int | None = None) -> None:
        for link in self._chosen(rail):
            link.set_up(True)

    def cut(self, sending: bool = True, receiving: bool = True, rail: int | None = None) -> None:
        """Drops what the node sends, or what is sent to it, or both; nobody is told."""
        for link in self._chosen(rail):
            link.cut(sending, receiving)

    def mend(self, rail: int | None = None) -> None:
        """Ends a cut; the rates are as before."""
        for link in self._chosen(rail):
            link.limit(self._rates_mbit[self.links.index(link)])

    def bytes_sent(self, rail: int = 0) -> int:
        """Since the start, with the headers of every layer."""
        return self.links[rail].counters()[1]

    def bytes_received(self, rail: int = 0) -> int:
        return self.links[rail].counters()[0]

    def _chosen(self, rail: int | None) -> list[Link]:
        return self.links if rail is None else [self.links[rail]]
