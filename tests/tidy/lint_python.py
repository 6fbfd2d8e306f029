"""Checks the tree's Python by ruff with the rules of .ruff.toml, after it has checked that they find something.

usage: lint_python.py ROOT     exit status 0: nothing found, 1: findings, 77: skipped
       lint_python.py --find   exit status 0: there is a ruff of the right version, 77: there is none

ruff is that of PATH, or a module of this Python.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from tree import load_tree

CONFIGURATION = ".ruff.toml"
VERSION = "0.17"  # others have other rules under the same names
SKIPPED = 77
SAMPLE = "import os\n"  # which is not used
HAS_A_SUFFIX = re.compile(r"\.py[iw]?$")
IS_PYTHON = re.compile(r"#!.*\bpython3?\b")


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def find_ruff() -> tuple[list[str], str]:
    """The command, or why there is none."""
    found = shutil.which("ruff")
    for command in ([found] if found else []), [sys.executable, "-m", "ruff"]:
        if command and (said := run([*command, "--version"])).returncode == 0:
            version = said.stdout.strip().removeprefix("ruff ")
            if version.startswith(f"{VERSION}."):
                return command, ""
            return [], f"ruff {version} has other rules than {VERSION}"
    return [], "ruff is neither in PATH nor a module of this Python"


def check(ruff: list[str], folder: Path) -> str:
    """What ruff finds, or why it did not run; empty where there is nothing."""
    done = run([*ruff, "check", "--no-cache", "--quiet", "--output-format", "concise", str(folder)])
    return "" if done.returncode == 0 else done.stdout + done.stderr


def unlisted(root: Path) -> list[str]:
    """Programs without a suffix that ruff does not know to be Python, and those that are no more."""
    listed = set(tomllib.loads((root / CONFIGURATION).read_text())["extend-include"])
    there = {
        path
        for path, text in load_tree(root).items()
        if IS_PYTHON.match(text) and not HAS_A_SUFFIX.search(path)
    }
    findings = [f"{path}: is Python, and not in extend-include of {CONFIGURATION}" for path in there - listed]
    findings += [f"{CONFIGURATION}: extend-include names {path}, which is no Python" for path in listed - there]
    return sorted(findings)


def main() -> int:
    if sys.argv[1:] == ["--find"]:
        return SKIPPED if not find_ruff()[0] else 0
    root = Path(sys.argv[1]).resolve()
    findings = unlisted(root)
    if findings:
        print("\n".join(findings))
        return 1
    ruff, reason = find_ruff()
    if not ruff:
        print(f"skipped: {reason}")
        return SKIPPED
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(root / CONFIGURATION, folder)
        (Path(folder) / "sample.py").write_text(SAMPLE)
        if "F401" not in check(ruff, Path(folder)):
            print("ruff finds nothing in a file that breaks a rule")
            return 1
    found = check(ruff, root)
    print(found, end="")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
