"""Ports of this machine's loopback that no other test has, nor a connection that somebody makes."""

from __future__ import annotations

import contextlib
import os
import random
import socket

FIRST = 10000
# Each port that was given out is a name that this process holds, so that no other test is given it. The kernel takes
# the names back when the process ends.
_held: list[int] = []


def free_port() -> int:
    """One that nobody listens at, and that stays free for this process until its end.

    It is none of those that the kernel gives to whoever connects, or listens at port 0."""
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
        ephemeral = int(file.read().split()[0])
    ports = list(range(min(FIRST, ephemeral // 2), ephemeral))
    random.Random(os.urandom(8)).shuffle(ports)
    for port in ports:
        name = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(OSError), socket.socket() as probe:
            name.bind(f"\0headrace-test-port-{port}")
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            _held.append(name.detach())
            return port
        name.close()
    raise RuntimeError(f"no port below {ephemeral} is free")
