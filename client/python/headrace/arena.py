"""Memory shared with the service, and the tensors in it."""

from __future__ import annotations

import ctypes
import math
import mmap
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace import dtypes, library
from headrace.region import Foreign, GpuShare, Region, host_region

if TYPE_CHECKING:
    import numpy
    import torch

    from headrace.session import Session

_ALIGNMENT = 64  # a cache line: tensors do not share one


class Spec(NamedTuple):
    """A tensor to be placed in an arena."""

    shape: Sequence[int]
    dtype: Any
    name: str = ""
    order: int = 0


class Range(NamedTuple):
    """Part of a tensor: ``count`` elements from element ``offset``."""

    tensor: Tensor
    offset: int
    count: int


class Tensor:
    """A registered tensor: the service reads and writes it in place, without a copy.

    Its memory stays valid as long as any view of it is alive, also after the session was closed.
    """

    def __init__(self, arena: Arena, handle: int, offset: int, spec: Spec) -> None:
        self._arena = arena
        self._handle: int | None = handle
        self._offset = offset
        self.shape = tuple(spec.shape)
        self.dtype = dtypes.dtype_name(spec.dtype)
        self.name = spec.name
        self.order = spec.order
        self.count = math.prod(self.shape)
        self.last_stream: int | None = None  # the one that last waited for its values

    @property
    def handle(self) -> int:
        """The C handle."""
        if self._handle is None:
            raise ValueError(f"tensor {self.name or self.shape} was released")
        return self._handle

    @property
    def arena(self) -> Arena:
        """The memory it lies in."""
        return self._arena

    @property
    def device(self) -> int | None:
        """The GPU's number in this process; None: the host."""
        return self._arena.device

    def numpy(self) -> numpy.ndarray:
        """A view as a numpy array, of host memory. numpy has no bfloat16: use torch() for that."""
        return self._arena.numpy(self.dtype, self.shape, self._offset)

    def torch(self) -> torch.Tensor:
        """A view as a torch tensor, on the CPU or the GPU."""
        return self._arena.torch(self.dtype, self.shape, self._offset)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3, for memory on a GPU; its stream is that of the last wait_on."""
        region = self._arena.region
        return region.cuda_interface(
            self.dtype, self.shape, self._offset, self.last_stream
        )

    def __dlpack__(self, *, stream: Any = None, **_: Any) -> Any:
        """A capsule for from_dlpack of other libraries, without synchronisation: see wait_on."""
        return self._arena.region.dlpack(self.dtype, self.shape, self._offset)

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's type and number of the memory's device."""
        return self._arena.region.dlpack_device()

    def range(self, offset: int, count: int) -> Range:
        """Part of the tensor, in elements; collectives accept it instead of a tensor."""
        return Range(self, offset, count)

    def release(self) -> None:
        """Unregisters the tensor. Its views stay valid; its place in the arena is not reused.

        Raises Busy while an operation on it is open.
        """
        if self._handle is None:
            return
        handles = (ctypes.c_void_p * 1)(self._handle)
        error = library.ErrorText()
        session = self._arena.session
        library.check(
            library.load().hr_tensors_release(session.handle, handles, 1, error), error
        )
        self._handle = None

    def __repr__(self) -> str:
        name = f" {self.name}" if self.name else ""
        return f"<headrace.Tensor{name} {self.dtype} {self.shape}>"


class Arena:
    """One piece of memory shared with the service. Tensors are placed in it one after the other.

    Made by Session.arena, on the host or on a GPU, and by Session.share around existing memory. This and each
    call of tensor() and tensors() is a round trip to the service: do it before training.
    """

    def __init__(
        self,
        session: Session,
        size: int,
        device: int | None = None,
        around: Foreign | None = None,
    ) -> None:
        """``around``: existing memory to share, instead of an allocation."""
        self.session = session
        self.device = device
        c = library.load()
        error = library.ErrorText()
        segment = ctypes.c_void_p()
        out = ctypes.byref(segment)
        if around is not None:
            address = around.address
            status = c.hr_segment_share_device(session.handle, address, size, out, error)
        elif device is None:
            status = c.hr_segment_create(session.handle, size, out, error)
        else:
            status = c.hr_segment_create_on_device(
                session.handle, size, device, out, error
            )
        library.check(status, error)
        self._segment: int | None = segment.value
        self.size: int = c.hr_segment_size(segment)
        self.used = 0
        if around is not None:
            self.device = c.hr_segment_device(segment)
            self.region = Region(around.address, size, self.device, around.owner)
        elif device is None:
            # A mapping of Python's own, so that views outlive the session and even this object.
            flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
            self._host = mmap.mmap(
                c.hr_segment_descriptor(segment), self.size, flags=flags
            )
            self.region = host_region(self._host)
        else:
            # A share of Python's own, for the same end.
            address = c.hr_segment_address(segment)
            share = GpuShare(self._segment)
            self.region = Region(address, self.size, device, share)

    @property
    def memory(self) -> mmap.mmap:
        """The bytes, of host memory."""
        if self.device is not None:
            raise TypeError(
                f"the memory is on GPU {self.device}: view it with torch(), or by DLPack or "
                "__cuda_array_interface__"
            )
        return self._host

    def numpy(self, dtype: str, shape: Sequence[int], offset: int) -> numpy.ndarray:
        """The elements from byte ``offset`` as a numpy array, of host memory."""
        import numpy

        if dtype == "bfloat16":
            raise TypeError("numpy has no bfloat16: view the tensor with torch()")
        flat = numpy.frombuffer(self.memory, dtype, math.prod(shape), offset)
        return flat.reshape(tuple(shape))

    def torch(self, dtype: str, shape: Sequence[int], offset: int) -> torch.Tensor:
        """The elements from byte ``offset`` as a torch tensor."""
        import torch

        if self.device is not None:
            return torch.from_dlpack(_Placed(self.region, dtype, tuple(shape), offset))
        flat = torch.frombuffer(
            self.memory,
            dtype=getattr(torch, dtype),
            count=math.prod(shape),
            offset=offset,
        )
        return flat.view(tuple(shape))

    @property
    def segment(self) -> int:
        """The C handle of the memory."""
        if self._segment is None:
            raise ValueError("the arena was released")
        return self._segment

    def tensor(
        self, shape: int | Sequence[int], dtype: Any, name: str = "", order: int = 0
    ) -> Tensor:
        """Places and registers one tensor.

        ``dtype`` is a name ("bfloat16"), a numpy dtype or a torch dtype; ``order`` the place in
        forward order, 0 = used first. Errors: MemoryError when the arena is full.
        """
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        return self.tensors([Spec(shape, dtype, name, order)])[0]

    def tensors(self, specs: Sequence[Spec | tuple]) -> list[Tensor]:
        """Places and registers many tensors in one round trip, all or none."""
        wanted = [Spec(*spec) for spec in specs]
        c_specs = (library.TensorSpec * len(wanted))()
        end = self.used
        for spec, c_spec in zip(wanted, c_specs):
            name = dtypes.dtype_name(spec.dtype)
            count = math.prod(spec.shape)
            c_spec.segment = self.segment
            c_spec.offset = end
            c_spec.count = count
            c_spec.dtype = dtypes.dtype_number(name)
            c_spec.name = spec.name.encode()
            c_spec.order = spec.order
            end += aligned(count * dtypes.dtype_size(name))
        if end > aligned(self.size):
            raise MemoryError(
                f"the arena holds {self.size} bytes, {self.used} are used, "
                f"{end - self.used} more were asked for"
            )
        handles = (ctypes.c_void_p * len(wanted))()
        error = library.ErrorText()
        status = library.load().hr_tensors_register(
            self.session.handle, c_specs, len(wanted), handles, error
        )
        library.check(status, error)
        self.used = end
        return [
            Tensor(self, handle, c_spec.offset, spec)
            for handle, c_spec, spec in zip(handles, c_specs, wanted)
        ]

    def whole(self, dtype: Any) -> Tensor:
        """All of the memory as one tensor of that type; it may overlap others.

        For ranges of it, if other code decides what is in the memory.
        """
        used, self.used = self.used, 0
        count = self.size // dtypes.dtype_size(dtypes.dtype_name(dtype))
        try:
            return self.tensors([Spec((count,), dtype)])[0]
        finally:
            self.used = used

    def release(self) -> None:
        """Takes the memory back from the service. Its tensors must have been released; views stay valid."""
        if self._segment is None:
            return
        error = library.ErrorText()
        status = library.load().hr_segment_release(
            self.session.handle, self._segment, error
        )
        library.check(status, error)
        self._segment = None

    def __repr__(self) -> str:
        return f"<headrace.Arena {self.used} of {self.size} bytes used>"


class _Placed(NamedTuple):
    """Elements in a region, for from_dlpack."""

    region: Region
    dtype: str
    shape: tuple[int, ...]
    offset: int

    def __dlpack__(self, **_: Any) -> Any:
        return self.region.dlpack(self.dtype, self.shape, self.offset)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.region.dlpack_device()


def aligned(size: int) -> int:
    """The bytes that a tensor of ``size`` bytes takes up in an arena."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def bytes_for(specs: Sequence[Spec | tuple]) -> int:
    """The size of an arena that holds just these tensors."""
    total = 0
    for spec in (Spec(*each) for each in specs):
        total += aligned(
            math.prod(spec.shape) * dtypes.dtype_size(dtypes.dtype_name(spec.dtype))
        )
    return max(total, 1)


if sys.byteorder != "little":  # the channel's format
    raise ImportError("headrace runs on little-endian machines only")
