"""The service's programs: where they are, and the commands by which a wheel starts them."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import NoReturn

_CARRIED = Path(__file__).resolve().parent / "bin"  # of a wheel


class NotFoundError(Exception):
    """No such program; the text says where it was looked for and what to do."""


def find(name: str) -> str:
    """The program's file: that of the wheel, else the one in PATH."""
    carried = _CARRIED / name
    if carried.is_file():
        return str(carried)
    found = shutil.which(name)
    if found is None:
        raise NotFoundError(
            f"no program {name} in PATH: install the Debian package or the wheel, or put a build's folder "
            "into PATH"
        )
    return found


def _become(name: str) -> NoReturn:
    carried = _CARRIED / name
    if not carried.is_file():
        # The command of that name in PATH would be this one.
        sys.exit(
            f"{name}: {carried} is not there: this installation of the Python package carries no programs"
        )
    os.execv(carried, [name, *sys.argv[1:]])


def headraced() -> NoReturn:
    """The command headraced."""
    _become("headraced")


def headracectl() -> NoReturn:
    """The command headracectl."""
    _become("headracectl")


def headrace_plan() -> NoReturn:
    """The command headrace-plan."""
    _become("headrace-plan")
