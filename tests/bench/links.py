"""What plain TCP and UCX reach between the nodes of a cluster: the ideal beside the contenders."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import time

from contenders import BenchError
from support.cluster import Cluster

SECONDS_MAX = 60
LISTEN_SECONDS_MAX = 10


def _listening(pid: int, port: int) -> bool:
    """Whether somebody in that process's network listens on the TCP port."""
    for table in ("tcp", "tcp6"):
        try:
            with open(f"/proc/{pid}/net/{table}", encoding="ascii") as sockets:
                for line in sockets:
                    fields = line.split()
                    if fields[1].endswith(f":{port:04X}") and fields[3] == "0A":
                        return True
        except OSError:
            pass  # no such table without IPv6
    return False


def _await_listener(cluster: Cluster, node: int, port: int) -> None:
    deadline = time.monotonic() + LISTEN_SECONDS_MAX
    while not _listening(cluster[node].namespaces.pid, port):
        if time.monotonic() > deadline:
            raise BenchError(f"nobody listens on port {port} of node {cluster[node].name}")
        time.sleep(0.01)


def tcp_rates(cluster: Cluster, flows: list[tuple[int, int, int]], seconds: int) -> list[float]:
    """Bits a second of what arrives, for flows (from node, to node, rail) that run at once, as
    iperf3 sees them; a second in which TCP finds its pace comes before and does not count."""
    running = []
    try:
        for index, (_, target, _) in enumerate(flows):
            port = str(5201 + index)
            server = cluster[target].start(
                ["iperf3", "-s", "-1", "-p", port], stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            running.append(server)
            _await_listener(cluster, target, int(port))
        clients = []
        for index, (source, target, rail) in enumerate(flows):
            address = cluster[target].addresses[rail]
            clients.append(
                cluster[source].start(
                    ["iperf3", "-c", address, "-p", str(5201 + index), "-J",
                     "-O", "1", "-t", str(seconds)],
                    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                )
            )  # fmt: skip
            running.append(clients[-1])
        return [_received(client.communicate(timeout=SECONDS_MAX)[0]) for client in clients]
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"iperf3: no end after {SECONDS_MAX} s") from error
    finally:
        for program in running:
            program.end()


def _received(text: str) -> float:
    result = json.loads(text or "{}")
    if "error" in result or "end" not in result:
        raise BenchError(f"iperf3: {result.get('error', 'it printed nothing')}")
    return result["end"]["sum_received"]["bits_per_second"]


def tcp_one_way(cluster: Cluster, seconds: int) -> float:
    """One flow between two nodes, nothing else on the links."""
    return tcp_rates(cluster, [(0, 1, 0)], seconds)[0]


def tcp_all_ways(cluster: Cluster, nodes: int, rails: int, seconds: int) -> float:
    """Every node sends to the next and receives from the one before, on all rails at once: what a
    node sends, and receives, in bits a second; the mean of the nodes."""
    flows = [(i, (i + 1) % nodes, rail) for rail in range(rails) for i in range(nodes)]
    return sum(tcp_rates(cluster, flows, seconds)) / nodes


def ucx(cluster: Cluster, test: str, size: int, count: int, repeats: int) -> float:
    """UCX's own test over TCP: bytes a second for a bandwidth test, the median of some runs; seconds
    one way for a latency test, the least, since both ends poll and a busy machine only adds."""
    environment = {**os.environ, "UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0"}
    found = []
    for _ in range(repeats):
        server = cluster[1].start(
            ["ucx_perftest"], env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            _await_listener(cluster, 1, 13337)
            client = cluster[0].start(
                ["ucx_perftest", cluster[1].address, "-t", test, "-s", str(size),
                 "-n", str(count), "-w", "2", "-f", "-v"],
                env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            try:
                text = client.communicate(timeout=SECONDS_MAX)[0]
            except subprocess.TimeoutExpired as error:
                raise BenchError(f"ucx_perftest: no end after {SECONDS_MAX} s") from error
            finally:
                client.end()
        finally:
            server.end()
        found.append(_ucx_figure(test, text))
    return statistics.median(found) if test.endswith("_bw") else min(found)


def _ucx_figure(test: str, text: str) -> float:
    try:
        heads, values = (line.strip().split(",") for line in text.strip().splitlines()[-2:])
        row = dict(zip(heads, values, strict=True))
        if test.endswith("_bw"):
            return float(row["overall_bw"]) * 2**20
        return float(row["overall_lat"]) / 1e6
    except (ValueError, KeyError) as error:
        raise BenchError(f"ucx_perftest: cannot read its output: {text[-500:]}") from error
