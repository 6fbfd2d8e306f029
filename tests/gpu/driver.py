"""Prints the names of the GPUs that CUDA's driver shows, as JSON; or why there are none, exit status 77.

usage: driver.py LIBRARY

In a process of its own: a driver that was asked once does not survive a fork.
"""

from __future__ import annotations

import ctypes
import json
import sys

NAME_SIZE = 128


def names(library: str) -> list[str]:
    """Raises RuntimeError that says which step failed."""
    try:
        driver = ctypes.CDLL(library)
    except OSError as error:
        raise RuntimeError(str(error)) from None

    def call(name: str, *arguments: object) -> None:
        result = getattr(driver, name)(*arguments)
        if result != 0:
            raise RuntimeError(f"{name} answers {result}")

    call("cuInit", 0)
    count = ctypes.c_int()
    call("cuDeviceGetCount", ctypes.byref(count))
    found = []
    for ordinal in range(count.value):
        text = ctypes.create_string_buffer(NAME_SIZE)
        call("cuDeviceGetName", text, NAME_SIZE, ordinal)
        found.append(text.value.decode())
    if not found:
        raise RuntimeError("the driver shows no GPU")
    return found


def main() -> int:
    try:
        print(json.dumps(names(sys.argv[1])))
    except RuntimeError as error:
        print(error)
        return 77
    return 0


if __name__ == "__main__":
    sys.exit(main())
