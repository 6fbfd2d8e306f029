"""Real client processes that do what a test tells them, one command at a time.

Run as a program this file is the agent: it reads commands as JSON lines and answers each with one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

from service import Service, client_environment

ANSWER_LIMIT_S = 60.0


class RankError(Exception):
    """The agent's call failed; ``code`` and the text are the client library's."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class Rank:
    """One agent process. Its methods are the functions of Agent below."""

    def __init__(self, service: Service, rank: int, world: int, **options: Any) -> None:
        self.rank = rank
        job = options.pop("job", "test")
        self.process = subprocess.Popen(
            ["/usr/bin/python3", os.path.abspath(__file__)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=client_environment(HEADRACE_SOCKET=service.socket),
            text=True,
            user=options.pop("user", None),
        )
        try:
            if options.pop("attach", True):
                self.call("attach", job=job, rank=rank, world=world, **options)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self.process.pid

    def send(self, command: str, /, **arguments: Any) -> None:
        """Gives a command without waiting for its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([command, arguments]) + "\n")
        self.process.stdin.flush()

    def receive(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"rank {self.rank} ended: {self.process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise RankError(*answer["error"])
        return answer["value"]

    def call(self, command: str, /, **arguments: Any) -> Any:
        self.send(command, **arguments)
        return self.receive()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(timeout=30)

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass


class Ranks:
    """The ranks of one job; all are ended with the ``with`` block."""

    def __init__(self, service: Service, world: int, **options: Any) -> None:
        self.members: list[Rank] = []
        try:
            for rank in range(world):
                self.members.append(Rank(service, rank, world, **options))
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


class Agent:
    """The functions a test can call in a rank's process."""

    def __init__(self) -> None:
        self.session: Any = None
        self.tensors: dict[str, Any] = {}
        self.operations: dict[str, Any] = {}

    def attach(self, job: str, rank: int, world: int, timeout: float | None = None) -> int:
        import headrace

        self.session = headrace.init(job=job, rank=rank, world_size=world, timeout=timeout)
        return self.session.service_pid

    def tensor(self, name: str, count: int, dtype: str = "float32") -> None:
        arena = self.session.arena(count * 8 + 4096)
        self.tensors[name] = arena.tensor(count, dtype, name=name)

    def fill(self, name: str, value: float) -> None:
        self.tensors[name].numpy()[:] = value

    def values(self, name: str, count: int = 4) -> list[float]:
        return [float(value) for value in self.tensors[name].numpy()[:count]]

    def digest(self, name: str) -> str:
        import hashlib

        return hashlib.sha256(self.tensors[name].numpy().tobytes()).hexdigest()

    def noise(self, name: str, seed: int) -> None:
        import numpy

        view = self.tensors[name].numpy()
        view[:] = numpy.random.default_rng(seed).standard_normal(len(view))

    def post(self, kind: str, name: str = "", key: str = "last", **options: Any) -> int:
        function = getattr(self.session, kind)
        arguments = [self.tensors[name]] if name else []
        self.operations[key] = function(*arguments, async_op=True, **options)
        return self.operations[key].number

    def wait(self, key: str = "last", timeout: float | None = None) -> float:
        """Returns how long it took; the error's text gets the time in front."""
        import time

        begin = time.monotonic()
        try:
            self.operations[key].wait(timeout)
        finally:
            self.waited = time.monotonic() - begin
        return self.waited

    def waited_last(self) -> float:
        return self.waited

    def done(self, key: str = "last") -> bool:
        return self.operations[key].done()

    def leave(self) -> None:
        self.tensors.clear()
        self.session.close()

    def rounds(self, job: str, count: int, how: str) -> int:
        """Attaches, moves a little and ends, again and again; ``how``: leave or kill."""
        for index in range(count):
            pid = os.fork()
            if pid == 0:
                _one_round(f"{job}{index}", how)
            _, status = os.waitpid(pid, 0)
            code = os.waitstatus_to_exitcode(status)
            if code != (0 if how == "leave" else -signal.SIGKILL):
                raise RuntimeError(f"round {index} ended with {code}")
        return count

    def scribble(self, offset: int, data: str) -> None:
        """Writes hex ``data`` into this session's channel, as a damaged client might."""
        import ctypes

        bytes_ = bytes.fromhex(data)
        ctypes.memmove(_channel_address() + offset, bytes_, len(bytes_))

    def ring(self) -> None:
        """Rings the doorbell, so that a sleeping service looks at the channel."""
        for entry in os.listdir("/proc/self/fd"):
            try:
                if "[eventfd]" in os.readlink(f"/proc/self/fd/{entry}"):
                    os.write(int(entry), (1).to_bytes(8, "little"))
            except OSError:
                pass  # the listing's own descriptor, or one that takes no write


def _one_round(job: str, how: str) -> None:
    import headrace

    session = headrace.init(job=job, rank=0, world_size=1)
    tensor = session.arena(1 << 16).tensor(1024, "float32", name="weight")
    session.all_reduce(tensor)
    if how == "kill":
        session.all_reduce(tensor, async_op=True)
        os.kill(os.getpid(), signal.SIGKILL)
    session.close()
    os._exit(0)


def _channel_address() -> int:
    with open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            if "/memfd:headrace-channel" in line:
                return int(line.split("-")[0], 16)
    raise RuntimeError("no channel is mapped")


def main() -> None:
    from headrace.errors import Error

    agent = Agent()
    for line in sys.stdin:
        name, arguments = json.loads(line)
        try:
            answer: dict[str, Any] = {"value": getattr(agent, name)(**arguments)}
        except Error as error:
            answer = {"error": [error.code, str(error)]}
        except Exception as error:  # the test shows it
            answer = {"error": [type(error).__name__, str(error)]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
