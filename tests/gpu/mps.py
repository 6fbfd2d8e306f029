"""Runs another script of this folder under MPS: with a control daemon of its own, which ends with it.

usage: mps.py SCRIPT ARGUMENT...
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from steps import SKIPPED

CONTROL = "nvidia-cuda-mps-control"
START_LIMIT_S = 20.0
END_LIMIT_S = 10.0


def quit_daemon(environment: dict[str, str], daemon: subprocess.Popen) -> None:
    """As its manual says, and by force where it does not hear."""
    try:
        subprocess.run([CONTROL], env=environment, input="quit\n", text=True, timeout=END_LIMIT_S)
        daemon.wait(timeout=END_LIMIT_S)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()


def main() -> int:
    if shutil.which(CONTROL) is None:
        print(f"skipped\tno {CONTROL}")
        return SKIPPED
    script = [sys.executable, "-B", str(Path(__file__).parent / sys.argv[1]), *sys.argv[2:]]
    with tempfile.TemporaryDirectory(prefix="headrace-mps-") as folder:
        pipes, logs = Path(folder) / "pipes", Path(folder) / "log"
        pipes.mkdir()
        logs.mkdir()
        environment = {
            **os.environ,
            "CUDA_MPS_PIPE_DIRECTORY": str(pipes), "CUDA_MPS_LOG_DIRECTORY": str(logs),
        }  # fmt: skip
        daemon = subprocess.Popen([CONTROL, "-f"], env=environment, stdin=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + START_LIMIT_S
            while not (pipes / "control").exists():
                if daemon.poll() is not None or time.monotonic() > deadline:
                    print(f"skipped\t{CONTROL} does not start: {(logs / 'control.log').read_text()[-500:]}"
                          if (logs / "control.log").exists() else f"skipped\t{CONTROL} does not start")  # fmt: skip
                    return SKIPPED
                time.sleep(0.05)
            return subprocess.run(script, env=environment).returncode
        finally:
            quit_daemon(environment, daemon)


if __name__ == "__main__":
    sys.exit(main())
