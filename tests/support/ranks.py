"""Real client processes that do what a test tells them, one command at a time."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any

from .service import Service, client_environment

# Longer than an operation may take by default, so that its own timeout is seen first.
ANSWER_LIMIT_S = 100.0
_AGENT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rank_agent.py")


class RankError(Exception):
    """The agent's call failed; ``code`` and the text are the client library's."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class Rank:
    """One agent process, at the place of its service. Its commands are the functions of Agent in
    rank_agent.py.

    ``environment`` is added to what a client needs; ``user`` is another user to run as;
    ``attach=False`` leaves attaching to the test. Further options go to the command ``attach``.
    """

    def __init__(
        self,
        service: Service,
        rank: int,
        world: int,
        *,
        job: str = "test",
        attach: bool = True,
        user: str | None = None,
        environment: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        self.rank = rank
        self._attach = {"job": job, "rank": rank, "world": world, **options}
        self._received = b""
        self.process = service.place.start(
            ["/usr/bin/python3", _AGENT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=client_environment(HEADRACE_SOCKET=service.socket, **(environment or {})),
            user=user,
        )
        self.pid = _inner_pid(self.process.program_pid)
        if attach:
            try:
                self.attach()
            except BaseException:
                self.close()
                raise

    def attach(self) -> None:
        self.call("attach", **self._attach)

    def send(self, command: str, /, **arguments: Any) -> None:
        """Gives a command without waiting for its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([command, arguments]).encode() + b"\n")
        self.process.stdin.flush()

    def receive(self, limit_s: float = ANSWER_LIMIT_S) -> Any:
        """The answer to the oldest command without one. RankError when it is an error."""
        answer = json.loads(self._line(time.monotonic() + limit_s))
        if "error" in answer:
            raise RankError(*answer["error"])
        return answer["value"]

    def call(self, command: str, /, **arguments: Any) -> Any:
        self.send(command, **arguments)
        return self.receive()

    def kill(self) -> None:
        self.process.end()

    def close(self) -> None:
        self.process.end()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _line(self, deadline: float) -> bytes:
        assert self.process.stdout is not None
        answers = self.process.stdout.fileno()
        while b"\n" not in self._received:
            if not select.select([answers], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise RuntimeError(f"rank {self.rank} (pid {self.pid}) does not answer")
            part = os.read(answers, 1 << 20)
            if not part:
                raise RuntimeError(f"rank {self.rank} ended: {self.process.wait(timeout=30)}")
            self._received += part
        line, _, self._received = self._received.partition(b"\n")
        return line


def _inner_pid(pid: int) -> int:
    """The pid by which a process is known where it runs; in a node that is not ours."""
    with open(f"/proc/{pid}/status", encoding="utf-8") as status:
        for line in status:
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    return pid


class Ranks:
    """The ranks of one job; all are ended with the ``with`` block.

    ``services`` is the one that all ranks have, or one for each rank.
    """

    def __init__(
        self, services: Service | Sequence[Service], world: int, attach: bool = True, **options: Any
    ) -> None:
        if isinstance(services, Service):
            services = [services] * world
        self.members: list[Rank] = []
        try:
            for rank, service in enumerate(services):
                self.members.append(Rank(service, rank, world, attach=False, **options))
            for member in self.members if attach else ():
                member.attach()
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *unused: object) -> None:
        for member in self.members:
            member.close()

    def __getitem__(self, rank: int) -> Rank:
        return self.members[rank]

    def __len__(self) -> int:
        return len(self.members)

    def each(self, command: str, /, **arguments: Any) -> list[Any]:
        """The same command on all ranks at the same time; the answers in rank order."""
        for member in self.members:
            member.send(command, **arguments)
        return [member.receive() for member in self.members]
