"""Two services that are two nodes to each other, a rank on each: training over them gives what it gives
on one node, whichever way GPU memory takes between them.

usage: nodes.py staged|nccl [CODEC...]: through pinned memory and UCX, also with what crosses in each of
the codecs, which GPUs encode: on both nodes, then on one of them, while the host does it on the other.
Or by NCCL, which is told that the two services are on different hosts. NCCL expects a GPU for each rank,
so that a hang by nccl where both nodes share one proves nothing; a run that ends does.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Sequence

from ranks import service
from support.ports import free_port
from support.service import Service
from trained import (
    RANKS,
    figure,
    require_close,
    require_equal_ranks,
    require_learned,
    slowest_ms,
    train,
)  # fmt: skip


def coded_on(node: Service, job: str) -> set[str]:
    """The processors that have encoded the job's last blocks."""
    with tempfile.NamedTemporaryFile() as file:
        code, said = node.ctl("trace", job, "-o", file.name)
        if code != 0:
            raise SystemExit(f"trace of {job}: {said}")
        events = json.load(file)["traceEvents"]
    return {event["args"]["coded_on"] for event in events if "coded_on" in event.get("args", {})}


def require_coded(node: Service, job: str, by_gpu: bool) -> None:
    """A rehearsal trains in the host's memory, which the host encodes."""
    by_gpu = by_gpu and "GPU_REHEARSAL" not in os.environ
    places = coded_on(node, job)
    if any(place.startswith("GPU") for place in places) != by_gpu:
        raise SystemExit(f"blocks of {job} were encoded on {sorted(places)}, on GPUs is {by_gpu}")


class Nodes:
    """A service for each node, which end with the block."""

    def __init__(self, way: str, ends: contextlib.ExitStack) -> None:
        ports = [free_port() for _ in range(RANKS)]
        self._rendezvous = f"127.0.0.1:{ports[0]}"
        self._way = way
        self._starts = [
            ("--node-name", f"node{i}", "--node-address", f"127.0.0.1:{port}", "--gpu-network", way)
            for i, port in enumerate(ports)
        ]
        self._ends = ends

    def open(self, gpu_codecs: Sequence[str]) -> list[Service]:
        return [
            self._ends.enter_context(
                service(*flags, "--gpu-codecs", codecs, environment={"NCCL_HOSTID": f"node{i}"})
            )
            for i, (flags, codecs) in enumerate(zip(self._starts, gpu_codecs, strict=True))
        ]

    def train(self, nodes: Sequence[Service], codec: str) -> list[dict]:
        two = train(
            "headrace",
            [
                {"HEADRACE_SOCKET": node.socket, "HEADRACE_RENDEZVOUS": self._rendezvous,
                 "HEADRACE_JOB": codec, "HEADRACE_COMPRESS": codec}
                for node in nodes
            ],
        )  # fmt: skip
        require_equal_ranks(two)
        return two


def told(two: Sequence[dict], one: Sequence[dict], crossing: str) -> None:
    figure(f"iteration over {RANKS} nodes on this machine, {crossing}", slowest_ms(two), "ms")
    figure("of one node's", slowest_ms(two) / slowest_ms(one), "")


def main() -> int:
    way, codecs = sys.argv[1], sys.argv[2:]
    with service() as started:
        one = train("headrace", [{"HEADRACE_SOCKET": started.socket}] * RANKS)
    with contextlib.ExitStack() as ends:
        nodes = Nodes(way, ends)
        services = nodes.open(["on"] * RANKS)
        exact = nodes.train(services, "none")
        require_close(exact, one)
        told(exact, one, way)
        for codec in codecs:
            two = nodes.train(services, codec)
            require_learned(two, one)
            if two[0]["norm"] == exact[0]["norm"]:
                raise SystemExit(f"as {codec} two nodes end with the same bits as without: nothing was encoded")
            for node in services:
                require_coded(node, codec, by_gpu=True)
            told(two, one, f"{way}, {codec} by GPUs")
    if not codecs:
        return 0
    # Ranks that end with the same bits have had the same bits from GPUs and from the host.
    with contextlib.ExitStack() as ends:
        nodes = Nodes(way, ends)
        services = nodes.open(["on", "off"])
        two = nodes.train(services, codecs[-1])
        require_learned(two, one)
        for node, by_gpu in zip(services, (True, False), strict=True):
            require_coded(node, codecs[-1], by_gpu)
        told(two, one, f"{way}, {codecs[-1]} by the GPU of one node and the host of the other")
    return 0


if __name__ == "__main__":
    sys.exit(main())
