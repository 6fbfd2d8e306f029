"""A transformer trained by two ranks through the service, beside what its users have today and beside
no communication at all: the same losses, and how long an iteration takes.

On one GPU NCCL is told that the ranks are on different hosts, since it refuses two ranks on one GPU;
its figure is then that of its sockets over loopback, not of a node.
"""

from __future__ import annotations

import os
import sys

from ranks import service
from trained import (
    RANKS,
    figure,
    require_close,
    require_equal_ranks,
    share_a_gpu,
    slowest_ms,
    train,
)  # fmt: skip


def main() -> int:
    with service() as started:
        sockets = [{"HEADRACE_SOCKET": started.socket}] * RANKS
        ours = train("headrace", sockets)
        require_equal_ranks(ours)
        unchanged = train("headrace-ddp", [{**each, "HEADRACE_JOB": "unchanged"} for each in sockets])
        require_equal_ranks(unchanged)
    hosts = [{"NCCL_HOSTID": f"rank{rank}"} if share_a_gpu() else {} for rank in range(RANKS)]
    others = {"DDP over the backend headrace": unchanged, "DDP with NCCL": train("nccl", hosts)}
    if "GPU_REHEARSAL" not in os.environ:  # where gloo stands for NCCL
        others["DDP with gloo"] = train("gloo", [{"GLOO_SOCKET_IFNAME": "lo"}] * RANKS)
    for each in others.values():
        require_close(ours, each)
    alone = train("alone", [{}] * RANKS)
    where = "one GPU" if share_a_gpu() else "a GPU each"
    millions = ours[0]["parameters"] / 1e6
    figure(f"iteration, {millions:.0f} million parameters, {RANKS} ranks, {where}", slowest_ms(ours), "ms")
    for name, results in {**others, "no communication": alone}.items():
        figure(f"iteration, {name}", slowest_ms(results), "ms")
        figure(f"headrace of {name}", slowest_ms(ours) / slowest_ms(results), "")
    return 0


if __name__ == "__main__":
    sys.exit(main())
