"""Two services that are two nodes to each other, a rank on each: training over them gives what it gives
on one node, whichever way GPU memory takes between them.

usage: nodes.py staged|nccl [CODEC...]: through pinned memory and UCX, also with what crosses in each of
the codecs, or by NCCL, which is told that the two services are on different hosts. NCCL expects a GPU for
each rank, so that a hang by nccl where both nodes share one proves nothing; a run that ends does.
"""

from __future__ import annotations

import contextlib
import sys

from ranks import service
from trained import (
    RANKS,
    figure,
    free_port,
    require_close,
    require_equal_ranks,
    require_learned,
    slowest_ms,
    train,
)  # fmt: skip


def main() -> int:
    way = sys.argv[1]
    with service() as started:
        one = train("headrace", [{"HEADRACE_SOCKET": started.socket}] * RANKS)
    with contextlib.ExitStack() as ends:
        ports = [free_port() for _ in range(RANKS)]
        nodes = [
            ends.enter_context(
                service(
                    "--node-name", f"node{i}", "--node-address", f"127.0.0.1:{port}",
                    "--gpu-network", way, environment={"NCCL_HOSTID": f"node{i}"},
                )
            )
            for i, port in enumerate(ports)
        ]  # fmt: skip
        rendezvous = f"127.0.0.1:{ports[0]}"
        for codec in ("none", *sys.argv[2:]):
            ranks = [
                {"HEADRACE_SOCKET": node.socket, "HEADRACE_RENDEZVOUS": rendezvous,
                 "HEADRACE_JOB": codec, "HEADRACE_COMPRESS": codec}
                for node in nodes
            ]  # fmt: skip
            two = train("headrace", ranks)
            require_equal_ranks(two)
            if codec == "none":
                require_close(two, one)
                exact = two
            else:
                require_learned(two, one)
                if two[0]["norm"] == exact[0]["norm"]:
                    raise SystemExit(f"as {codec} two nodes end with the same bits as without: nothing was encoded")
            crossing = way if codec == "none" else f"{way}, {codec}"
            figure(f"iteration over {RANKS} nodes on this machine, {crossing}", slowest_ms(two), "ms")
            figure("of one node's", slowest_ms(two) / slowest_ms(one), "")
    return 0


if __name__ == "__main__":
    sys.exit(main())
