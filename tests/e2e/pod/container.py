"""A container of a pod, run by runc: an image's files read-only, a user that is nobody, no capability.

Namespaces are a container's own unless it joins the pod's; the mount namespace always is its own.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

END_LIMIT_S = 20.0


@dataclasses.dataclass(frozen=True)
class Spec:
    name: str
    root: Path  # files of the image
    command: Sequence[str]
    user: int
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    volumes: Mapping[str, Path] = dataclasses.field(default_factory=dict)  # by where they appear
    joins: Mapping[str, str] = dataclasses.field(default_factory=dict)  # namespaces, by kind


def _mounts(spec: Spec) -> list[dict]:
    plain = ["nosuid", "noexec", "nodev"]
    found = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs",
         "options": ["nosuid", "strictatime", "mode=755", "size=65536k"]},
        # Where UCX looks for network devices: those of the container's own network namespace.
        {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": [*plain, "ro"]},
        {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": [*plain, "mode=1777"]},
    ]  # fmt: skip
    for where, folder in spec.volumes.items():
        found.append(
            {"destination": where, "type": "bind", "source": str(folder), "options": ["rbind", "rw", *plain]}
        )
    return found


def _config(spec: Spec) -> dict:
    kinds = ("pid", "network", "ipc", "uts", "mount")
    namespaces = [
        {"type": kind, "path": spec.joins[kind]} if kind in spec.joins else {"type": kind} for kind in kinds
    ]
    none = {kind: [] for kind in ("bounding", "effective", "permitted", "inheritable", "ambient")}
    return {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False,
            "user": {"uid": spec.user, "gid": spec.user},
            "args": list(spec.command),
            "env": [f"{name}={value}" for name, value in spec.environment.items()],
            "cwd": "/",
            "capabilities": none,
            "noNewPrivileges": True,
            "rlimits": [{"type": "RLIMIT_NOFILE", "hard": 4096, "soft": 1024}],
        },
        "root": {"path": str(spec.root), "readonly": True},
        "hostname": spec.name,
        "mounts": _mounts(spec),
        "linux": {
            "namespaces": namespaces,
            "maskedPaths": ["/proc/kcore", "/proc/keys", "/proc/timer_list"],
            "readonlyPaths": ["/proc/sys", "/proc/sysrq-trigger"],
        },
    }


class Container:
    """Runs from its making on. ``identity`` is unique on the machine."""

    def __init__(self, spec: Spec, identity: str, folder: Path) -> None:
        self.spec = spec
        self.identity = identity
        self._state = folder / "runc"
        bundle = folder / identity
        bundle.mkdir(parents=True)
        (bundle / "config.json").write_text(json.dumps(_config(spec), indent=1))
        self.log = bundle / "log"
        with self.log.open("wb") as log:
            self._runc = subprocess.Popen(
                [*self._command("run"), "--bundle", str(bundle), identity],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def _command(self, *arguments: str) -> list[str]:
        return ["runc", "--root", str(self._state), *arguments]

    def text(self) -> str:
        """What it printed so far."""
        return self.log.read_text(errors="replace")

    def ended(self) -> int | None:
        return self._runc.poll()

    def wait(self, limit_s: float) -> int:
        """Its exit status."""
        return self._runc.wait(limit_s)

    def signal(self, name: str) -> None:
        subprocess.run([*self._command("kill"), self.identity, name], check=True, capture_output=True)

    def terminate(self) -> None:
        """SIGTERM, where it has not ended."""
        subprocess.run([*self._command("kill"), self.identity, "TERM"], capture_output=True)

    def execute(self, *command: str, limit_s: float = 60) -> subprocess.CompletedProcess[str]:
        """A program beside the container's own, as its user and in its namespaces."""
        place = self._command("exec", "--user", str(self.spec.user))
        for name, value in self.spec.environment.items():
            place += ["--env", f"{name}={value}"]
        return subprocess.run(
            [*place, self.identity, *command],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit_s,
        )  # fmt: skip

    def close(self) -> None:
        """Ends it whatever it does, and waits until nothing of it is left."""
        deadline = time.monotonic() + END_LIMIT_S
        while self._runc.poll() is None:
            subprocess.run([*self._command("kill"), self.identity, "KILL"], capture_output=True)
            try:
                self._runc.wait(0.2)
            except subprocess.TimeoutExpired:
                if time.monotonic() > deadline:
                    raise
        subprocess.run([*self._command("delete"), "--force", self.identity], capture_output=True)
