"""A transformer trained by two ranks while their service is killed twice: they come back to the next one, and
end where a run without that ends. Whatever a killed service's kernels still wrote would be seen."""

from __future__ import annotations

import sys
import threading
import time

from ranks import service
from support.service import Service, StartError
from trained import RANKS, figure, require_close, require_equal_ranks, train

KILLS = (12, 13)  # steps after whose backward pass the service is killed
LOOK_S = 0.05


def keep_up(started: Service, done: threading.Event) -> None:
    """Starts the service anew whenever it has ended, also where the next kill meets it while it starts."""
    while not done.wait(LOOK_S):
        if started.process.poll() is None:
            continue
        try:
            started.start()
        except StartError as error:
            print(error, file=sys.stderr)


def main() -> int:
    with service() as started:
        calm = train("headrace", [{"HEADRACE_SOCKET": started.socket}] * RANKS)
    with service() as started:
        done = threading.Event()
        keeper = threading.Thread(target=keep_up, args=(started, done))
        keeper.start()
        begin = time.monotonic()
        try:
            restless = train(
                "headrace",
                [{"HEADRACE_SOCKET": started.socket, "HEADRACE_RECONNECT": "60",
                  "GPU_KILL_AT": " ".join(map(str, KILLS))}] * RANKS,
            )  # fmt: skip
        finally:
            done.set()
            keeper.join()
    require_equal_ranks(restless)
    require_close(restless, calm)
    recoveries = min(result["recoveries"] for result in restless)
    # Two losses of which a rank learns at once are one.
    if not 1 <= recoveries <= len(KILLS):
        raise SystemExit(f"ranks came back {recoveries} times from {len(KILLS)} kills")
    figure(f"training with {len(KILLS)} kills of the service", time.monotonic() - begin, "s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
