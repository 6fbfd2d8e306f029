"""One rank of a job that does what a test tells it (ranks.py), one command at a time.

Reads commands as JSON lines and answers each with one.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from typing import Any


class Agent:
    """The functions a test can call in a rank's process."""

    def __init__(self) -> None:
        self.session: Any = None
        self.arenas: dict[str, Any] = {}
        self.tensors: dict[str, Any] = {}
        self.operations: dict[str, Any] = {}

    def attach(self, job: str, rank: int, world: int, timeout: float | None = None) -> int:
        import headrace

        self.session = headrace.init(job=job, rank=rank, world_size=world, timeout=timeout)
        return self.session.service_pid

    def tensor(
        self, name: str, count: int, dtype: str = "float32", device: int | None = None
    ) -> None:
        """On a GPU of the driver's double, where ``device`` names one."""
        arena = self.session.arena(count * 8 + 4096, device)
        self.arenas[name] = arena
        self.tensors[name] = arena.tensor(count, dtype, name=name)

    def memory(self, name: str) -> Any:
        """A tensor's elements; numpy has no bfloat16, so that its bits are to be seen."""
        import numpy
        import reference

        tensor = self.tensors[name]  # the first of its arena
        storage = reference.storage(tensor.dtype)
        if tensor.device is not None:  # the double's memory is there for this process to touch
            region = self.arenas[name].region
            raw = (ctypes.c_char * region.size).from_address(region.address)
            return numpy.frombuffer(raw, storage, tensor.count)
        return numpy.frombuffer(self.arenas[name].memory, storage, tensor.count)

    def fill(self, name: str, value: float) -> None:
        self.memory(name)[:] = value

    def set_last(self, name: str, value: float) -> None:
        self.memory(name)[-1] = value

    def last(self, name: str) -> float:
        return float(self.memory(name)[-1])

    def values(self, name: str, count: int = 4) -> list[float]:
        return [float(value) for value in self.memory(name)[:count]]

    def digest(self, name: str) -> str:
        import hashlib

        return hashlib.sha256(self.memory(name).tobytes()).hexdigest()

    def compress(self, codec: str | None) -> None:
        """Sends later all_reduces between nodes in that codec."""
        import headrace

        headrace.compress_all_reduces(self.session, codec)

    def noise(self, name: str, seed: int) -> None:
        import numpy

        tensor = self.tensors[name]
        view = tensor.numpy() if tensor.device is None else self.memory(name)
        view[:] = numpy.random.default_rng(seed).standard_normal(len(view))

    def exercise(
        self, kind: str, dtype: str, count: int, op: str = "sum", root: int = 0, seed: int = 0
    ) -> int:
        """Does the collective on a tensor of that type; how many of its elements are wrong then."""
        import reference

        name = f"{dtype}-{count}"
        if name not in self.tensors:
            self.tensor(name, count, dtype)
        rank, world = self.session.rank, self.session.world_size
        memory = self.memory(name)
        memory[:] = reference.encode(reference.given(rank, world, op, count, seed), dtype)
        options: dict[str, Any] = {"root": root} if kind == "broadcast" else {"op": op}
        if kind == "all_gather":
            options = {}
        getattr(self.session, kind)(self.tensors[name], **options)
        wanted = reference.expected(kind, rank, world, op, root, count, seed)
        return int((memory != reference.encode(wanted, dtype)).sum())

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

    def spoil(self, name: str, key: str = "last") -> None:
        """Writes to a tensor until its operation has ended, as a program with a bug does."""
        elements = self.memory(name)[::1024]
        while not self.operations[key].done():
            elements[:] = 7.5
        self.operations[key].wait()

    def done(self, key: str = "last") -> bool:
        return self.operations[key].done()

    def settle(self, seconds: float = 0.05) -> None:
        """Gives what should not happen some time to happen."""
        import time

        time.sleep(seconds)

    def reconnect(self, timeout: float) -> int:
        """Comes back to a service; the pid of the one that it is."""
        self.session.reconnect(timeout)
        return self.session.service_pid

    def shrink(self, timeout: float, min_world: int, grace: float | None = None) -> list[Any]:
        """Comes back with those that are left: rank, world size, and members by rank."""
        session = self.session
        session.reconnect(timeout, shrink=True, min_world=min_world, grace=grace)
        return [session.rank, session.world_size, list(session.members)]

    def held(self) -> dict[str, int]:
        """What this process has of the kernel."""
        with open("/proc/self/status", encoding="utf-8") as status:
            fields = dict(line.split(":", 1) for line in status)
        with open("/proc/self/maps", encoding="utf-8") as maps:
            shared = sum("/memfd:" in line for line in maps)
        return {
            "descriptors": len(os.listdir("/proc/self/fd")),
            "threads": int(fields["Threads"]),
            "shared": shared,
            "resident_kib": int(fields["VmRSS"].split()[0]),
        }

    def leave(self) -> None:
        self.tensors.clear()
        self.arenas.clear()
        self.session.close()

    def train(self, name: str, iterations: int, pause: float) -> float:
        """So many sums, each after a time in which a model would compute; how long they took."""
        import time

        begin = time.monotonic()
        for _ in range(iterations):
            time.sleep(pause)
            self.session.all_reduce(self.tensors[name])
        return time.monotonic() - begin

    def gradients(
        self,
        counts: list[int | list[int]],
        policy: str | None = None,
        device: int | None = None,
        compress: dict[str, str] | None = None,
    ) -> None:
        """Hands in a layout of float32 gradients of so many elements each, or of such a shape."""
        shapes = [tuple(count) if isinstance(count, list) else (count,) for count in counts]
        specs = [(shape, "float32", f"g{i}") for i, shape in enumerate(shapes)]
        self.layout = self.session.layout(specs, "sum", policy, device=device, compress=compress)

    def apply(self, iterations: int, seed: int) -> dict[str, list[float]]:
        """Gives random gradients of a layout on a doubled GPU; the sums of what was given and of what came
        back, and what the layout's residuals hold."""
        import numpy

        layout = self.layout
        random = numpy.random.default_rng(seed)
        region = layout._arena.region
        raw = (ctypes.c_char * region.size).from_address(region.address)
        views = [
            numpy.frombuffer(raw, "float32", count, offset)
            for count, offset in zip(layout.counts, layout._offsets, strict=True)
        ]
        given = [numpy.zeros(count) for count in layout.counts]
        applied = [numpy.zeros(count) for count in layout.counts]
        for _ in range(iterations):
            layout.begin_backward()
            for i in reversed(range(len(layout))):
                views[i][:] = random.standard_normal(layout.counts[i])
                given[i] += views[i]
                layout.post(i)
            for i in range(len(layout)):
                layout.wait(i)
                applied[i] += views[i]
            layout.end_forward()
        left = [numpy.frombuffer(layout.residual(i), "float32") for i in range(len(layout))]
        return {
            name: numpy.concatenate(values).tolist()
            for name, values in (("given", given), ("applied", applied), ("left", left))
        }

    def iterations(self, count: int, pause: float = 0.0) -> float:
        """So many, each with a time in which the loop does something else before its forward pass;
        how long they took."""
        import time

        begin = time.monotonic()
        for _ in range(count):
            self.layout.begin_backward()
            for i in reversed(range(len(self.layout))):
                self.layout.post(i)
            time.sleep(pause)
            for i in range(len(self.layout)):
                self.layout.wait(i)
            self.layout.end_forward()
        return time.monotonic() - begin

    def register_again_and_again(self, name: str, count: int, until: str) -> int:
        """Registers so many tensors in one call and releases them, until that path is there; how often."""
        arena = self.session.arena(64 * count)
        times = 0
        while not os.path.exists(until):
            tensors = arena.tensors([((1,), "float32", f"{name}.{i}", i) for i in range(count)])
            times += 1
            for tensor in tensors:
                if os.path.exists(until):
                    break
                tensor.release()
        return times

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
        except Exception as error:  # noqa: BLE001 - the test shows it
            answer = {"error": [type(error).__name__, str(error)]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
