"""What a cluster of network namespaces asks of the machine."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import unittest

PROGRAMS = ("unshare", "nsenter", "setpriv", "ip", "tc")
# What a cluster does, once in a namespace that ends with the command. Each step says what it needs.
_TRIAL = """
try() { what=$1; shift; "$@" >/dev/null 2>&1 || { echo "$what"; exit 0; }; }
try 'veth interfaces' ip link add name veth0 type veth peer name veth1
try 'bridges' ip link add name bridge0 type bridge
try 'the token filter tbf' tc qdisc add dev veth0 root tbf rate 1gbit burst 256kb latency 20ms
try 'the queueing discipline blackhole' tc qdisc add dev veth1 root blackhole
try 'file systems of its own' mount -t tmpfs tmpfs /dev/shm
try 'a /sys of its own' mount -t sysfs sysfs /sys
"""


class SkipReason(unittest.SkipTest):
    """This machine cannot do it; the text says why. A test that lets it through is skipped."""


@functools.cache
def missing() -> str:
    """Why namespaces cannot be had here; empty when they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    absent = [program for program in PROGRAMS if not shutil.which(program)]
    if absent:
        return f"network namespaces need {', '.join(absent)} (util-linux, iproute2)"
    unshare = ["unshare", "--net", "--mount", "--pid", "--uts", "--ipc", "--fork"]
    done = subprocess.run(
        [*unshare, "--mount-proc", "sh", "-c", _TRIAL],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode != 0:
        return f"network namespaces are refused here: {done.stderr.strip()}"
    if done.stdout:
        return f"this kernel does not offer {done.stdout.strip()}"
    return ""


def require_namespaces() -> None:
    """Raises SkipReason where a cluster with links of its own is not possible."""
    if missing():
        raise SkipReason(missing())
