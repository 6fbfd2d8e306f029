"""Memory of a GPU by CUDA's driver alone, for ranks without torch: cuMemAlloc's, which other processes
import by a legacy IPC handle."""

from __future__ import annotations

import ctypes
import os


class LegacyMemory:
    """``count`` float32 at ``offset`` bytes into an allocation of cuMemAlloc; freed by the process's end.

    Has ``__cuda_array_interface__``, as Session.share takes it.
    """

    def __init__(self, ordinal: int, count: int, offset: int) -> None:
        self._driver = ctypes.CDLL(os.environ.get("HEADRACE_CUDA_LIBRARY", "libcuda.so.1"))
        self.count = count
        self._call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuDeviceGet", ctypes.byref(device), ordinal)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxPushCurrent_v2", context)
        begin = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(begin), ctypes.c_size_t(offset + self._size))
        self._address = ctypes.c_uint64(begin.value + offset)

    @property
    def _size(self) -> int:
        return self.count * ctypes.sizeof(ctypes.c_float)

    @property
    def __cuda_array_interface__(self) -> dict:
        return {
            "shape": (self.count,), "typestr": "<f4", "data": (self._address.value, False), "version": 3,
        }  # fmt: skip

    def write(self, values: ctypes.Array) -> None:
        self._call("cuMemcpyHtoD_v2", self._address, values, ctypes.c_size_t(self._size))
        # The copy of pageable memory may return before the GPU has it.
        self._call("cuCtxSynchronize")

    def read(self) -> ctypes.Array:
        values = (ctypes.c_float * self.count)()
        self._call("cuMemcpyDtoH_v2", values, self._address, ctypes.c_size_t(self._size))
        return values

    def _call(self, name: str, *arguments: object) -> None:
        result = getattr(self._driver, name)(*arguments)
        if result != 0:
            raise SystemExit(f"{name} answers {result}")
