"""A GPU in place of a real one: the double of CUDA's driver, whose memory is the host's.

HEADRACE_CUDA_LIBRARY names the double.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from collections.abc import Iterator
from unittest import mock


class DoubledGpu:
    """GPU ``number``, current on this thread, and a stream of it. Ends with the process."""

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.driver = ctypes.CDLL(os.environ["HEADRACE_CUDA_LIBRARY"])
        self._check(self.driver.cuInit(0))
        self._context = ctypes.c_void_p()
        retain = self.driver.cuDevicePrimaryCtxRetain
        self._check(retain(ctypes.byref(self._context), number))
        self._check(self.driver.cuCtxPushCurrent_v2(self._context))
        self.stream = self.new_stream()

    @staticmethod
    def _check(result: int) -> None:
        if result != 0:
            raise RuntimeError(f"CUDA error {result}")

    def new_stream(self) -> int:
        stream = ctypes.c_void_p()
        make = self.driver.cuStreamCreateWithPriority
        self._check(make(ctypes.byref(stream), 1, 0))
        return stream.value

    def synchronize(self, stream: int | None = None) -> None:
        handle = ctypes.c_void_p(self.stream if stream is None else stream)
        self._check(self.driver.cuStreamSynchronize(handle))

    def is_idle(self) -> bool:
        result = self.driver.cuStreamQuery(ctypes.c_void_p(self.stream))
        return result == 0

    def fill(self, address: int, value: int, size: int) -> None:
        """Sets bytes in the order of the stream."""
        self._check(
            self.driver.cuMemsetD8Async(
                ctypes.c_uint64(address),
                ctypes.c_ubyte(value),
                ctypes.c_size_t(size),
                ctypes.c_void_p(self.stream),
            )
        )

    def allocate(self, size: int) -> int:
        """cuMemAlloc."""
        address = ctypes.c_uint64()
        allocate = self.driver.cuMemAlloc_v2
        self._check(allocate(ctypes.byref(address), ctypes.c_size_t(size)))
        return address.value

    def map_pieces(self, count: int, size: int = 2 << 20) -> int:
        """So many pieces of memory one behind the other, as torch's expandable segments have them."""
        address, whole = ctypes.c_uint64(), ctypes.c_size_t(count * size)
        self._check(self.driver.cuMemAddressReserve(ctypes.byref(address), whole, ctypes.c_size_t(0),
                                                    ctypes.c_uint64(0), ctypes.c_uint64(0)))  # fmt: skip
        # CUmemAllocationProp: pinned, exported as a descriptor, of this GPU.
        properties = struct.pack("=IIIi16x", 1, 1, 1, self.number)
        for piece in range(count):
            memory = ctypes.c_uint64()
            self._check(self.driver.cuMemCreate(ctypes.byref(memory), ctypes.c_size_t(size), properties,
                                                ctypes.c_uint64(0)))  # fmt: skip
            at = ctypes.c_uint64(address.value + piece * size)
            self._check(self.driver.cuMemMap(at, ctypes.c_size_t(size), ctypes.c_size_t(0), memory,
                                             ctypes.c_uint64(0)))  # fmt: skip
            self._check(self.driver.cuMemRelease(memory))
        access = struct.pack("=IiI", 1, self.number, 3)  # CUmemAccessDesc: to read and write
        self._check(self.driver.cuMemSetAccess(address, whole, access, ctypes.c_size_t(1)))
        return address.value

    def free(self, address: int) -> None:
        """cuMemFree."""
        self._check(self.driver.cuMemFree_v2(ctypes.c_uint64(address)))


@contextlib.contextmanager
def as_torchs_gpu(gpu: DoubledGpu) -> Iterator[None]:
    """Has headrace.torch take tensors of the CPU for this GPU's.

    Its memory becomes tensors of the CPU, and torch does at once what it would put into the stream:
    so where the stream is made to wait, torch's work, which comes after it, waits for the stream.
    """
    import torch
    from headrace.layout import Layout
    from headrace.operation import Operation
    from headrace.region import Region
    from headrace.torch import devices

    def in_order(function):
        def called(*arguments):
            result = function(*arguments)
            gpu.synchronize(arguments[-1])
            return result

        return called

    def finished_future(_, value):
        future = torch.futures.Future()
        future.set_result(value)
        return future

    changes = [
        mock.patch.object(devices, "finished_future", finished_future),
        mock.patch.object(devices, "device_of", lambda _: gpu.number),
        mock.patch.object(devices, "current_stream", lambda _: gpu.stream),
        mock.patch.object(devices, "refuse_capture", lambda _: None),
        mock.patch.object(devices, "new_stream", lambda _: gpu.new_stream()),
        mock.patch.object(devices, "on_stream", contextlib.nullcontext),
        mock.patch.object(devices, "record_event", lambda _: gpu.synchronize() or "event"),
        mock.patch.object(devices, "wait_event", lambda *_: None),
        mock.patch.object(devices, "synchronize", lambda _: gpu.synchronize()),
        mock.patch.object(devices, "keep_for_stream", lambda _: None),
        mock.patch.object(Region, "dlpack_device", lambda _: (1, 0)),
        mock.patch.object(Layout, "wait_on", in_order(Layout.wait_on)),
        mock.patch.object(Operation, "wait_on", in_order(Operation.wait_on)),
    ]
    with contextlib.ExitStack() as stack:
        for change in changes:
            stack.enter_context(change)
        yield
