#!/usr/bin/python3
"""Prints which sources took longest to compile, and what all took, from ninja's log of a build folder.

    tests/support/slowest_units.py build/release

A time is the last one that ninja wrote for an object: wall time, beside whatever else the machine did.
"""

from __future__ import annotations

import sys
from pathlib import Path

SHOWN = 10


def units(log: str) -> dict[str, float]:
    """Seconds by object. A line: begin and end in ms, a file time, the output, a hash; newest last."""
    seconds: dict[str, float] = {}
    for line in log.splitlines():
        if line.startswith("#"):
            continue
        begin, end, _, output, _ = line.split("\t")
        if output.endswith(".o"):
            seconds[output] = (int(end) - int(begin)) / 1000
    return seconds


def source_of(output: str) -> str:
    """The source's path in the tree: a/CMakeFiles/target.dir/b.cc.o is made of a/b.cc."""
    folder, _, rest = output.partition("CMakeFiles/")
    return folder + rest.partition(".dir/")[2].removesuffix(".o")


def report(seconds: dict[str, float]) -> str:
    """The table."""
    slowest = sorted(seconds.items(), key=lambda item: item[1], reverse=True)[:SHOWN]
    lines = [f"{len(seconds)} sources took {sum(seconds.values()):.0f} s of one job; the slowest:"]
    lines += [f"{taken:8.1f} s  {source_of(output)}" for output, taken in slowest]
    return "\n".join(lines)


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: slowest_units.py BUILD-FOLDER", file=sys.stderr)
        return 2
    log = Path(sys.argv[1]) / ".ninja_log"
    try:
        found = units(log.read_text())
        # The log keeps what once was built.
        print(report({unit: taken for unit, taken in found.items() if (log.parent / unit).exists()}))
    except OSError as error:
        print(f"no times of sources: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
