"""Runs a test of this folder once more, by a Python that has another torch than Debian's.

usage: second_torch.py TEST.py     exit status 77: there is none

The Python is the one that HEADRACE_TEST_TORCH names, else /opt/headrace-torch/bin/python3. To install it:

    python3 -m venv /opt/headrace-torch && /opt/headrace-torch/bin/pip install numpy torch
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

DEFAULT = "/opt/headrace-torch/bin/python3"
SKIPPED = 77


def main() -> int:
    named = os.environ.get("HEADRACE_TEST_TORCH")
    python = shutil.which(named or DEFAULT)
    if python is None:
        if named:
            print(f"HEADRACE_TEST_TORCH={named}: there is no such program")
            return 1
        print(f"skipped: no second torch: HEADRACE_TEST_TORCH is not set, no {DEFAULT}")
        return SKIPPED
    found = subprocess.run(
        [python, "-c", "import torch; print(torch.__version__)"],
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode != 0:
        print(f"{python} has no torch:\n{found.stderr}")
        return 1
    print(f"torch {found.stdout.strip()} of {python}", flush=True)
    return subprocess.run([python, "-B", *sys.argv[1:]], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
