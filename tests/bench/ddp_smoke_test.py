"""Runs tests/bench/ddp in its smallest form and looks at the fields of its JSON; at no time.

usage: ddp_smoke_test.py BUILD
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import wrapped


def main(build: str) -> int:
    rows = wrapped.smoke("ddp", build)
    if rows is None:
        return 77
    assert [row["nodes"] for row in rows] == [1, 2], rows
    for row in rows:
        assert set(row["seconds"]) == {"gloo", "operations", "planned", "accelerated"}, row
        assert all(seconds > 0 for seconds in row["seconds"].values()), row
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
