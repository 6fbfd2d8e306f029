"""Manifests are what they were: each overlay as kubectl renders it, held against a kept file.

usage: manifests_test.py; with HEADRACE_GOLDEN_UPDATE=1 it writes the files anew. Exits with 77 and the
reason without a kubectl that renders alike.
"""

from __future__ import annotations

import difflib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
MANIFESTS = HERE.parent.parent.parent / "containers" / "kubernetes"
RENDERS_FROM = 5  # kustomize's version


def lack() -> str:
    """Why nothing can be rendered here; empty when it can."""
    if shutil.which("kubectl") is None:
        return "no kubectl"
    told = subprocess.run(["kubectl", "version", "--client"], capture_output=True, text=True).stdout
    version = re.search(r"Kustomize Version: v(\d+)", told)
    if version is None or int(version.group(1)) < RENDERS_FROM:
        return f"a kubectl whose kustomize is older than {RENDERS_FROM}"
    return ""


def folders() -> list[Path]:
    """All that are meant to be applied."""
    return sorted(path.parent for path in MANIFESTS.rglob("kustomization.yaml"))


def render(folder: Path) -> str:
    done = subprocess.run(
        ["kubectl", "kustomize", str(folder)], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise AssertionError(f"kubectl kustomize {folder}: {done.stderr}")
    return done.stdout


def differences(folder: Path) -> list[str]:
    kept = HERE / ("-".join(folder.relative_to(MANIFESTS).parts) + ".yaml")
    rendered = render(folder)
    if os.environ.get("HEADRACE_GOLDEN_UPDATE"):
        kept.write_text(rendered)
    was = kept.read_text() if kept.exists() else ""
    lines = difflib.unified_diff(was.splitlines(), rendered.splitlines(), str(kept), "rendered", lineterm="")
    return list(lines)


def main() -> int:
    if reason := lack():
        print(f"skipped: {reason}")
        return 77
    found = folders()
    assert len(found) >= 8, found
    different = [line for folder in found for line in differences(folder)]
    print("\n".join(different) or f"{len(found)} folders render as they did")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
