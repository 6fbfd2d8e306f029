"""Checks one rule of the house on this tree, after it has checked the rule itself.

usage: tidy.py ROOT RULE     exit status 0: kept, 1: broken, 77: skipped
       tidy.py ROOT --list   prints the names of all rules

Every rule carries a tree that keeps it and trees that break it: a rule that no longer finds what it is
for fails like a rule that is broken.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import borders
import needs
import promises
import shape
from tree import is_cpp, load_tree, tracked_paths

RULES = {
    rule.__name__: (rule, *trees)
    for rule, trees in {**borders.RULES, **needs.RULES, **promises.RULES, **shape.RULES}.items()
}
FORMAT_RULE = "code_is_formatted"
FORMAT_VERSION = "14"
OWNERS_RULE = "needs_are_of_the_packages_they_name"
SKIPPED = 77


def check(name: str, root: Path) -> list[str]:
    """Findings of a rule on the tree, or what is wrong with the rule."""
    rule, kept, broken = RULES[name]
    false = rule(kept)
    if false:
        return [f"the rule finds fault with a tree that keeps it: {false}"]
    for index, tree in enumerate(broken):
        if not rule(tree):
            return [
                f"the rule finds nothing in the tree {index} that breaks it: {tree}"
            ]
    return rule(load_tree(root))


def misformatted(paths: list[str]) -> str:
    """What clang-format would change."""
    done = subprocess.run(
        ["clang-format", "--dry-run", "--Werror", *paths],
        capture_output=True,
        check=False,
        text=True,
    )
    return "" if done.returncode == 0 else done.stderr or "clang-format failed"


def check_format(root: Path) -> int:
    if not shutil.which("clang-format"):
        print("skipped: clang-format is not installed")
        return SKIPPED
    version = subprocess.run(
        ["clang-format", "--version"], capture_output=True, text=True, check=False
    ).stdout
    if not re.search(rf"version {FORMAT_VERSION}\.", version):
        print(
            f"skipped: this clang-format formats otherwise than {FORMAT_VERSION}: {version.strip()}"
        )
        return SKIPPED
    # The sample lies in the tree's own style, which clang-format looks for from the file upwards.
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(root / ".clang-format", folder)
        sample = Path(folder) / "sample.cc"
        sample.write_text("int  f( ){return 1 ;}\n")
        if not misformatted([str(sample)]):
            print("the rule finds nothing in a file that breaks it")
            return 1
    found = misformatted(
        [str(root / path) for path in tracked_paths(root) if is_cpp(path)]
    )
    print("\n".join(line for line in found.splitlines() if "error:" in line))
    return 1 if found else 0


def check_owners() -> int:
    if not shutil.which("dpkg"):
        print("skipped: this machine has no dpkg")
        return SKIPPED
    findings = needs.belongs()
    print("\n".join(findings))
    return 1 if findings else 0


def main() -> int:
    root = Path(sys.argv[1]).resolve()
    if sys.argv[2] == "--list":
        print("\n".join([*RULES, FORMAT_RULE, OWNERS_RULE]))
        return 0
    if sys.argv[2] == FORMAT_RULE:
        return check_format(root)
    if sys.argv[2] == OWNERS_RULE:
        return check_owners()
    findings = check(sys.argv[2], root)
    print("\n".join(findings))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
