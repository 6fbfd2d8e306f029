"""A machine for packages: the smallest Debian in a folder, into which they are installed from Debian's
mirror with what they depend on, and which systemd then runs as its first process, in a container.

Nothing of it touches this machine's own packages, users or units.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "pod"), str(HERE.parent)]

import image_base
from support.directory import OwnDirectory

BOOT_LIMIT_S = 60.0
CALL_LIMIT_S = 120.0
END_LIMIT_S = 20.0
# What a first process of systemd's asks for, and a machine that is a container itself may still give.
CAPABILITIES = (
    "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP",
    "NET_ADMIN", "NET_BIND_SERVICE", "SYS_ADMIN", "SYS_CHROOT", "SYS_NICE", "SYS_PTRACE", "MKNOD", "SETFCAP",
)  # fmt: skip


class CannotBoot(RuntimeError):
    """This machine does not let systemd run in a container; the text has its last words."""


def missing() -> str:
    """Why there can be no such machine here; empty when there can."""
    if reason := image_base.missing():
        return reason
    absent = [name for name in ("runc", "cpack", "dpkg-deb") if shutil.which(name) is None]
    return f"no {', '.join(absent)}" if absent else ""


def _config(root: Path) -> dict:
    capabilities = [f"CAP_{name}" for name in CAPABILITIES]
    return {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "args": ["/lib/systemd/systemd", "--log-target=console", "--unit=multi-user.target"],
            "env": ["container=runc", "PATH=/usr/sbin:/usr/bin"],
            "cwd": "/",
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), capabilities),
        },
        "root": {"path": str(root)},
        "hostname": "machine",
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
            {"destination": "/dev/shm", "type": "tmpfs", "source": "tmpfs", "options": ["mode=1777"]},
            {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["ro"]},
            {"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup", "options": ["rw"]},
            {"destination": "/run", "type": "tmpfs", "source": "tmpfs", "options": ["mode=755"]},
            {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["mode=1777"]},
        ],
        "linux": {
            "namespaces": [{"type": kind} for kind in ("pid", "network", "ipc", "uts", "mount", "cgroup")],
            "cgroupsPath": f"/headrace-machine-{os.getpid()}",
        },
    }


class Machine:
    """Its files are in ``root`` from its making on; all of it goes with close()."""

    def __init__(self, build: Path) -> None:
        self._own = OwnDirectory("headrace-machine-")
        self.folder = Path(self._own.path)
        self._identity = f"headrace-machine-{os.getpid()}"
        self._runc: subprocess.Popen[bytes] | None = None
        try:
            self.root = image_base.unpack(build, self.folder / "root")
        except BaseException:
            self.close()
            raise

    def install(self, packages: Sequence[Path]) -> None:
        """With apt, which finds what they depend on; before the machine runs."""
        place = self.root / "var" / "cache" / "packages"
        place.mkdir(exist_ok=True)
        for package in packages:
            shutil.copy(package, place)
        image_base.install(self.root, *(f"/var/cache/packages/{package.name}" for package in packages))

    def _command(self, *arguments: str) -> list[str]:
        return ["runc", "--root", str(self.folder / "runc"), *arguments]

    def boot(self) -> None:
        """Returns when systemd has started everything."""
        bundle = self.folder / "bundle"
        bundle.mkdir()
        (bundle / "config.json").write_text(json.dumps(_config(self.root), indent=1))
        log = self.folder / "log"
        with log.open("wb") as out:
            self._runc = subprocess.Popen(
                self._command("run", "--bundle", str(bundle), self._identity),
                stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            )  # fmt: skip
        deadline = time.monotonic() + BOOT_LIMIT_S
        while (state := self.execute("systemctl", "is-system-running").stdout.strip()) != "running":
            if self._runc.poll() is not None or state == "degraded" or time.monotonic() > deadline:
                raise CannotBoot(f"systemd is {state or 'not there'}: {log.read_text()[-1500:].strip()}")
            time.sleep(0.2)

    def execute(self, *command: str, user: str = "0") -> subprocess.CompletedProcess[str]:
        """A program in the machine."""
        return subprocess.run(
            self._command("exec", "--user", user, self._identity, *command),
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=CALL_LIMIT_S,
        )  # fmt: skip

    def pid_outside(self, command: str) -> int:
        """The process of that name, by the number that it has on the machine around."""
        listed = json.loads(subprocess.check_output(self._command("ps", "--format", "json", self._identity)))
        for pid in listed:
            with contextlib.suppress(OSError):  # it has ended meanwhile
                if Path(f"/proc/{pid}/comm").read_text().strip() == command:
                    return pid
        raise LookupError(f"the machine has no process {command}")

    def close(self) -> None:
        """Ends it whatever it does; safe to call again."""
        deadline = time.monotonic() + END_LIMIT_S
        while self._runc is not None and self._runc.poll() is None:
            subprocess.run(self._command("kill", self._identity, "KILL"), capture_output=True)
            try:
                self._runc.wait(0.2)
            except subprocess.TimeoutExpired:
                if time.monotonic() > deadline:
                    raise
        if self._runc is not None:
            subprocess.run(self._command("delete", "--force", self._identity), capture_output=True)
            self._runc = None
        self._own.close()
