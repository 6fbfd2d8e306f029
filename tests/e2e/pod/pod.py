"""A pod as Kubernetes would run it: a service and a trainer in containers of their own that share a
network namespace and one volume, and, if asked for, their pids. Reached from outside by a veth pair."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from container import Container, Spec
from support.directory import OwnDirectory
from support.places import HERE, Program, children_of

SERVICE_USER, TRAINER_USER = 64321, 64322
START_LIMIT_S = 60.0
HTTP_PORT = 9564


class Pod:
    """``service_root`` and ``trainer_root`` are images' files. All ends with the ``with`` block."""

    def __init__(self, service_root: Path, trainer_root: Path, shares_pids: bool) -> None:
        self._own = OwnDirectory("headrace-pod-")
        self.folder = Path(self._own.path)
        self._roots = {"service": service_root, "trainer": trainer_root}
        self._shares_pids = shares_pids
        self._count = 0
        self.containers: list[Container] = []
        self.volume = self.folder / "volume"
        self.volume.mkdir()
        os.chown(self.volume, SERVICE_USER, SERVICE_USER)
        self._pause: Program | None = None
        self._outside: str | None = None

    def __enter__(self) -> Pod:
        try:
            self._make_namespaces()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def _make_namespaces(self) -> None:
        """What holds the pod's namespaces, as a pause container does; and the way in from outside."""
        self._pause = HERE.start(
            ["unshare", "--net", "--pid", "--fork", "--kill-child", "sleep", "infinity"],
            stdin=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + START_LIMIT_S
        while not (held := children_of(self._pause.pid)):
            if time.monotonic() > deadline:
                raise RuntimeError("unshare made no namespaces")
            time.sleep(0.01)
        self.holder = held[0]
        self._outside = outside = f"hrp{os.getpid() % 100000}"
        # An address of the range for benchmarks of networks, so nobody's.
        self.address = f"198.18.{os.getpid() % 250}.2"
        gateway = f"198.18.{os.getpid() % 250}.1"
        inside = ["nsenter", "--net", "--target", str(self.holder)]
        for command in (
            ["ip", "link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", str(self.holder)],
            ["ip", "address", "add", f"{gateway}/30", "dev", outside],
            ["ip", "link", "set", outside, "up"],
            [*inside, "ip", "address", "add", f"{self.address}/30", "dev", "eth0"],
            [*inside, "ip", "link", "set", "eth0", "up"],
            [*inside, "ip", "link", "set", "lo", "up"],
        ):
            subprocess.run(command, check=True, capture_output=True)

    def _start(self, name: str, command: Sequence[str], user: int, environment: Mapping[str, str]) -> Container:
        joins = {"network": f"/proc/{self.holder}/ns/net"}
        if self._shares_pids:
            joins["pid"] = f"/proc/{self.holder}/ns/pid"
        self._count += 1
        spec = Spec(
            name=name, root=self._roots[name], command=command, user=user, environment=environment,
            volumes={"/run/headrace": self.volume}, joins=joins,
        )  # fmt: skip
        container = Container(spec, f"headrace-{os.getpid()}-{self._count}-{name}", self.folder)
        self.containers.append(container)
        return container

    def start_service(self) -> Container:
        """As the sidecar of the manifests; returns when its startup probe says yes."""
        flags = ["--node-name=pod", f"--http-address=0.0.0.0:{HTTP_PORT}"]
        service = self._start("service", ["/usr/bin/headraced", *flags], SERVICE_USER, {"PATH": "/usr/bin"})
        deadline = time.monotonic() + START_LIMIT_S
        while (probe := service.execute("/usr/bin/headracectl", "doctor", "--probe")).returncode != 0:
            if service.ended() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the service did not start:\n{service.text()}\n{probe.stdout}")
            time.sleep(0.1)
        return service

    def start_trainer(self, *command: str) -> Container:
        environment = {
            "PATH": "/usr/bin:/bin", "HOME": "/tmp", "PYTHONDONTWRITEBYTECODE": "1",
            "HEADRACE_SOCKET": "/run/headrace/headrace.sock",
            "PYTHONPATH": "/usr/share/headrace/python",
        }  # fmt: skip
        return self._start("trainer", command, TRAINER_USER, environment)

    def fetch(self, path: str) -> str:
        """From outside the pod."""
        with urllib.request.urlopen(f"http://{self.address}:{HTTP_PORT}{path}", timeout=10) as answer:
            return answer.read().decode()

    def jobs(self, service: Container) -> list[dict]:
        done = service.execute("/usr/bin/headracectl", "jobs", "--json")
        rows = json.loads(done.stdout)
        return rows["jobs"] if isinstance(rows, dict) else rows

    def close(self) -> None:
        for container in reversed(self.containers):
            container.close()
        self.containers.clear()
        if self._outside is not None:
            # The kernel takes a namespace apart some time after its last process, and until then the
            # name is not free for the next pod. It is gone already where making the pair failed.
            subprocess.run(["ip", "link", "delete", self._outside], capture_output=True)
        if self._pause is not None:
            self._pause.end()
        self._own.close()
