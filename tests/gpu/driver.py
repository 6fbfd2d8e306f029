"""Prints the names of the GPUs that CUDA's driver shows, as JSON; or why there are none, exit status 77.

usage: driver.py LIBRARY [free]; with free, how many bytes of the first GPU are free instead

In a process of its own: a driver that was asked once does not survive a fork.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable

NAME_SIZE = 128


Call = Callable[..., None]


def opened(library: str) -> Call:
    """Calls a function of the driver. Raises RuntimeError that says which step failed."""
    try:
        driver = ctypes.CDLL(library)
    except OSError as error:
        raise RuntimeError(str(error)) from None

    def call(name: str, *arguments: object) -> None:
        result = getattr(driver, name)(*arguments)
        if result != 0:
            raise RuntimeError(f"{name} answers {result}")

    call("cuInit", 0)
    return call


def free_bytes(library: str) -> int:
    """With a context of this process, whose own memory is the same each time."""
    call = opened(library)
    device, context, free, total = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxPushCurrent_v2", context)
    call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return free.value


def names(library: str) -> list[str]:
    """Raises RuntimeError that says which step failed."""
    call = opened(library)
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
        print(free_bytes(sys.argv[1]) if sys.argv[2:] == ["free"] else json.dumps(names(sys.argv[1])))
    except RuntimeError as error:
        print(error)
        return 77
    return 0


if __name__ == "__main__":
    sys.exit(main())
