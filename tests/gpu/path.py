"""How long a small sum of two ranks on one GPU takes, from post to completion.

Run it with and without MPS: path_bench says which it was, and has a goal with MPS only, since three
contexts that take turns on the GPU wait for each other's time slices.
"""

from __future__ import annotations

import os
import sys

from ranks import play, programs, service

RANKS = 2
CASES = ((4096, 2000), (1 << 20, 500), (64 << 20, 100))  # bytes, rounds
REHEARSED = ((4096, 100), (1 << 20, 50), (64 << 20, 3))


def main() -> int:
    with service("--spin-us", "1000") as started:
        for bytes_each, rounds in REHEARSED if "GPU_REHEARSAL" in os.environ else CASES:
            commands = [
                [str(programs() / "path_bench"), started.socket, str(rank), str(RANKS),
                 str(bytes_each), str(rounds)]
                for rank in range(RANKS)
            ]  # fmt: skip
            print(play(commands, [{}] * RANKS)[0], end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
