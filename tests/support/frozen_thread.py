"""One thread of another process stands still while the others go on, as a hang would have it."""

from __future__ import annotations

import ctypes
import os

_SEIZE, _INTERRUPT, _DETACH = 0x4206, 0x4207, 17
_ALL = 0x40000000  # __WALL: threads too
_libc = ctypes.CDLL(None, use_errno=True)


class CannotFreeze(Exception):
    """The system does not let this process trace the other one."""


def _trace(what: int, thread: int) -> None:
    if _libc.ptrace(ctypes.c_long(what), ctypes.c_long(thread), None, None) != 0:
        raise CannotFreeze(f"ptrace {what:#x}: {os.strerror(ctypes.get_errno())}")


def thread_named(pid: int, name: str) -> int:
    """The number of the process's thread with that name."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/comm", encoding="utf-8") as comm:
            if comm.read().strip() == name:
                return int(thread)
    raise LookupError(f"process {pid} has no thread {name}")


class FrozenThread:
    """Stands still for the ``with`` block. Both ends of it in the same thread of ours."""

    def __init__(self, pid: int, name: str) -> None:
        self._thread = thread_named(pid, name)
        self._ended = False

    def __enter__(self) -> FrozenThread:
        _trace(_SEIZE, self._thread)
        try:
            _trace(_INTERRUPT, self._thread)
            os.waitpid(self._thread, _ALL)
        except BaseException:
            _trace(_DETACH, self._thread)
            raise
        return self

    def ended(self) -> bool:
        """Whether its process was killed meanwhile. Whoever asks for that end asks this, too: until then
        the dead thread waits for us, and its process for the thread."""
        if not self._ended:
            self._ended = os.waitpid(self._thread, _ALL | os.WNOHANG)[0] == self._thread
        return self._ended

    def __exit__(self, *unused: object) -> None:
        if not self._ended:
            _trace(_DETACH, self._thread)
