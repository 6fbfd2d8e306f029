"""A set of namespaces that has no name and lives as long as one process: there is nothing to leak.

The process is the first of a pid namespace: when it ends, the kernel ends all others in there. It
ends with the process that made it, because the kernel tells it to (setpriv), kill -9 included.
"""

from __future__ import annotations

import os
import signal
import subprocess
from typing import Any

from ..places import HERE, Program, children_of

# The namespaces get a /proc, a /sys (which lists a network's interfaces), a /dev/shm and a name of
# their own; orphans are reaped by ignoring them.
# Background traffic of IPv6 would be counted with that of tests.
_FIRST = """
mount -t sysfs sysfs /sys &&
mount -t tmpfs tmpfs /dev/shm &&
mount --bind "$2" /etc/hosts &&
hostname "$1" &&
ip link set lo up || exit 1
for file in /proc/sys/net/ipv6/conf/all/disable_ipv6 /proc/sys/net/ipv6/conf/default/disable_ipv6; do
  [ ! -w $file ] || echo 1 >$file
done
trap '' CHLD
echo ready
exec sleep infinity
"""


class Namespaces:
    """Network, processes, mounts, host name and System V objects, apart from everything else's."""

    def __init__(self, name: str, hosts: str) -> None:
        """``name`` is the host name; ``hosts`` a file to stand in for /etc/hosts."""
        unshare = ["unshare", "--net", "--mount", "--pid", "--uts", "--ipc"]
        self._holder = HERE.start(
            [*unshare, "--fork", "--kill-child", "--mount-proc", "sh", "-c", _FIRST, "sh", name, hosts],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        assert self._holder.stdout and self._holder.stderr
        if self._holder.stdout.readline() != "ready\n":
            reason = self._holder.stderr.read().strip()
            self.close()
            raise RuntimeError(f"namespaces for {name}: {reason}")
        self.pid = children_of(self._holder.pid)[0]

    def start(self, command: list[str], **options: Any) -> Program:
        """Starts a program inside, with the options of subprocess.Popen. It is in a session of its
        own: were nsenter ended by ctrl-C, the program would be a stranger's to reap, and the end of
        the namespaces would have to wait for that."""
        options.setdefault("start_new_session", True)
        directory = options.get("cwd") or os.getcwd()
        return Program(
            [*self.enter(), "-m", "-p", "-u", "-i", f"--wd={directory}", "--", *command],
            entered=True,
            **options,
        )

    def enter(self) -> list[str]:
        """The start of a command line that runs in this network and otherwise outside."""
        return ["nsenter", "-t", str(self.pid), "-n"]

    def alive(self) -> bool:
        return self._holder.poll() is None

    def members(self) -> list[int]:
        """The pids of everything inside but the first process."""
        own = os.readlink(f"/proc/{self.pid}/ns/pid")
        found = []
        for entry in os.listdir("/proc"):
            try:
                if entry.isdigit() and os.readlink(f"/proc/{entry}/ns/pid") == own:
                    found.append(int(entry))
            except OSError:
                pass  # it ended meanwhile
        return [pid for pid in found if pid != self.pid]

    def close(self) -> None:
        """Ends every process inside. Returns when they have ended; safe to call again."""
        if self._holder.poll() is None:
            for first in children_of(self._holder.pid):
                os.kill(first, signal.SIGKILL)
            try:
                self._holder.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self._holder.end()
        for pipe in (self._holder.stdout, self._holder.stderr):
            if pipe:
                pipe.close()
