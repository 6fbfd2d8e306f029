"""Runs tests/bench/fsdp in its smallest form and looks at the fields of its JSON; at no time. Also the simulation
of orders: sending first what is needed first is never slower.

usage: fsdp_smoke_test.py BUILD
"""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import wrapped


def check_order() -> None:
    command = [str(HERE / "fsdp_order"), "--profiles", "resnet50", "--ratios", "0.5", "2"]
    head, *rows = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert head.split()[:4] == ["profile", "layers", "ratio", "parameters"], head
    assert len(rows) == 4, rows
    for row in rows:
        posted, gathers, needed = (float(each) for each in row.split()[4:7])
        assert 1 <= needed <= gathers <= posted, row


def main(build: str) -> int:
    check_order()
    rows = wrapped.smoke("fsdp", build)
    if rows is None:
        return 77
    (figures,) = rows
    assert set(figures["seconds"]) == {"gloo", "headrace", "accelerated"}, figures
    assert all(seconds > 0 for seconds in figures["seconds"].values()), figures
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
