"""A transformer trained by two ranks through the service, and by DDP with NCCL: the same losses, and
how long an iteration takes. On one GPU NCCL is told that the ranks are on different hosts."""

from __future__ import annotations

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
        ours = train("headrace", [{"HEADRACE_SOCKET": started.socket}] * RANKS)
    require_equal_ranks(ours)
    hosts = [{"NCCL_HOSTID": f"rank{rank}"} if share_a_gpu() else {} for rank in range(RANKS)]
    ddp = train("ddp", hosts)
    require_close(ours, ddp)
    where = "one GPU" if share_a_gpu() else "a GPU each"
    millions = ours[0]["parameters"] / 1e6
    model = f"{millions:.0f} million parameters, {RANKS} ranks, {where}"
    figure(f"iteration through headrace, {model}", slowest_ms(ours), "ms")
    figure(f"iteration through DDP with NCCL, {model}", slowest_ms(ddp), "ms")
    figure("headrace of DDP with NCCL", slowest_ms(ours) / slowest_ms(ddp), "")
    return 0


if __name__ == "__main__":
    sys.exit(main())
