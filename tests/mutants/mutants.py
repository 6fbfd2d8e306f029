"""The lists of changes, and where each stands in a tree."""

from __future__ import annotations

import subprocess
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LISTS = sorted(Path(__file__).parent.glob("list*.toml"))
FIELDS = {"name", "why", "file", "before", "after", "targets", "tests"}


class StaleList(RuntimeError):
    """The list does not fit the tree."""


@dataclass(frozen=True)
class Mutant:
    """One line, and what it becomes. ``file`` is a name without its folder, so that a file may
    move; ``tests`` is the regular expression of the tests that must notice."""

    name: str
    why: str
    file: str
    before: str
    after: str
    targets: list[str]
    tests: str


def load_list(paths: Sequence[Path] = LISTS) -> list[Mutant]:
    mutants = []
    for entry in (each for path in paths for each in _entries(path)):
        if wrong := FIELDS ^ set(entry):
            raise StaleList(f"{entry.get('name', '?')}: missing or unknown: {', '.join(wrong)}")
        mutants.append(Mutant(**entry))
    return mutants


def _entries(path: Path) -> list[dict[str, Any]]:
    return tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]


def find_place(root: Path, mutant: Mutant) -> Path:
    """The one file of that name, outside the tests, that has the line exactly once."""
    command = ["git", "-c", "safe.directory=*", "-C", str(root), "ls-files", "-z", "--"]
    listed = subprocess.run(
        [*command, f":(glob)**/{mutant.file}"], capture_output=True, check=True, text=True
    ).stdout
    counts = {}
    for name in filter(None, listed.split("\0")):
        if not name.startswith("tests/"):
            lines = (root / name).read_text(encoding="utf-8").splitlines()
            counts[name] = lines.count(mutant.before)
    found = [name for name, count in counts.items() if count]
    if len(found) != 1 or counts[found[0]] != 1:
        raise StaleList(
            f"{mutant.name}: this line must stand once in one file named {mutant.file}, but stands "
            f"{counts or 'in none'}; change the list with the code:\n{mutant.before}"
        )
    return root / found[0]


def mutated(text: str, mutant: Mutant) -> str:
    lines = text.split("\n")
    lines[lines.index(mutant.before)] = mutant.after
    return "\n".join(lines)
