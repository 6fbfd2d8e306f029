"""Memory shared with the service, and the tensors in it."""

from __future__ import annotations

import ctypes
import math
import mmap
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace import dtypes, library

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

    @property
    def handle(self) -> int:
        """The C handle."""
        if self._handle is None:
            raise ValueError(f"tensor {self.name or self.shape} was released")
        return self._handle

    def numpy(self) -> numpy.ndarray:
        """A view as a numpy array. numpy has no bfloat16: use torch() for that."""
        import numpy

        if self.dtype == "bfloat16":
            raise TypeError("numpy has no bfloat16: view the tensor with torch()")
        flat = numpy.frombuffer(
            self._arena.memory, self.dtype, self.count, self._offset
        )
        return flat.reshape(self.shape)

    def torch(self) -> torch.Tensor:
        """A view as a torch tensor on the CPU."""
        import torch

        flat = torch.frombuffer(
            self._arena.memory,
            dtype=getattr(torch, self.dtype),
            count=self.count,
            offset=self._offset,
        )
        return flat.view(self.shape)

    def range(self, offset: int, count: int) -> Range:
        """Part of the tensor, in elements; collectives take it in the tensor's place."""
        return Range(self, offset, count)

    def release(self) -> None:
        """Unregisters the tensor. Its views stay valid; its place in the arena is not reused."""
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
    """One piece of memory shared with the service. Tensors are placed in it one behind the other.

    Made by Session.arena. A round trip to the service, as is each call of tensor() and tensors():
    do it before training.
    """

    def __init__(self, session: Session, size: int) -> None:
        self.session = session
        c = library.load()
        error = library.ErrorText()
        segment = ctypes.c_void_p()
        status = c.hr_segment_create(session.handle, size, ctypes.byref(segment), error)
        library.check(status, error)
        self._segment: int | None = segment.value
        self.size: int = c.hr_segment_size(segment)
        self.used = 0
        # A mapping of Python's own, so that views outlive the session and even this object.
        flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
        self.memory = mmap.mmap(
            c.hr_segment_descriptor(segment), self.size, flags=flags
        )

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

    def release(self) -> None:
        """Takes the memory back from the service. Its tensors must be released; views stay."""
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


def aligned(size: int) -> int:
    """What a tensor of ``size`` bytes takes up in an arena."""
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
