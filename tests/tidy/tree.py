"""The files a rule looks at: a mapping from path (from the root, with /) to text.

Rules are functions from such a mapping to findings, so that a test can hand them a tree that breaks
them.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

Tree = dict[str, str]
Findings = list[str]

IGNORED_FOLDERS = {".git", ".cache", "build", "__pycache__"}


def tracked_paths(root: Path) -> list[str]:
    """What git tracks; without git (an unpacked archive) everything but build output."""
    # The tree may belong to another user than the one that runs the tests, as in a container.
    command = ["git", "-c", "safe.directory=*", "-C", str(root), "ls-files", "-z"]
    try:
        listed = subprocess.run(
            command, capture_output=True, check=True, text=True
        ).stdout
        return [path for path in listed.split("\0") if path and (root / path).is_file()]
    except (OSError, subprocess.CalledProcessError):
        paths = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
        return [str(path) for path in paths if not IGNORED_FOLDERS & set(path.parts)]


def load_tree(root: Path) -> Tree:
    """All text files; what is not UTF-8 has an empty text but is there."""
    tree = {}
    for path in sorted(tracked_paths(root)):
        try:
            tree[path] = (root / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            tree[path] = ""
    return tree


def is_cpp(path: str) -> bool:
    return path.endswith((".cc", ".h", ".c"))


def is_python(path: str, text: str) -> bool:
    return path.endswith(".py") or text.startswith("#!/usr/bin/python3")


def numbered_lines(text: str) -> list[tuple[int, str]]:
    return list(enumerate(text.splitlines(), 1))
