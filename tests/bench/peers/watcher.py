"""Somebody who watches one service all the time, until killed: the queue on a screen, and metrics and
status over HTTP. Says "ready" once everything has answered.

usage: watcher.py HEADRACECTL SOCKET BOARD HOST:PORT SECONDS
"""

import subprocess
import sys
import time
import urllib.request

PAGES = ("/metrics", "/status.json")


def fetch(address: str) -> int:
    """Bytes of all pages."""
    total = 0
    for page in PAGES:
        with urllib.request.urlopen(f"http://{address}{page}", timeout=10) as answer:
            total += len(answer.read())
    return total


def main() -> None:
    ctl, socket, board, address, seconds = sys.argv[1:]
    fetch(address)
    subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", "--", ctl, "--socket", socket, "--board", board, "queue",
         "--watch", seconds],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    print("ready", flush=True)
    due = time.monotonic()
    while True:
        fetch(address)
        due = max(due + float(seconds), time.monotonic())
        time.sleep(due - time.monotonic())


if __name__ == "__main__":
    main()
