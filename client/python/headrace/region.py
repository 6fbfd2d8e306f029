"""Memory that tensors lie in, of the host or of a GPU, and how other libraries see it.

Two ways lead from an address to a tensor of another library: DLPack, and numpy's interface with its
counterpart of CUDA. Both are made here, by ctypes alone. headrace.torch takes DLPack: it knows
bfloat16, and its capsule carries the memory's owner along; ``__cuda_array_interface__`` is for
libraries that know nothing else.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from typing import Any

from headrace import dtypes, library

_CPU, _CUDA = 1, 2  # kDLCPU, kDLCUDA
# dtype -> DLPack's code: 0 int, 1 unsigned, 2 float, 4 bfloat
_CODES = {"float": 2, "bfloat": 4, "int": 0, "uint": 1}
# numpy's spelling; it has none of bfloat16.
_TYPESTR = {
    "float32": "<f4",
    "float64": "<f8",
    "float16": "<f2",
    "int32": "<i4",
    "int64": "<i8",
    "uint8": "|u1",
}
_FRESH = b"dltensor"  # of a capsule that nobody has taken


class GpuShare:
    """A share in GPU memory of the library: it stays until this goes, also past the session."""

    def __init__(self, segment: int) -> None:
        self._memory: int | None = library.load().hr_segment_keep(segment)
        if self._memory is None:
            raise MemoryError("no memory for a share in an arena")
        self._free = library.load().hr_memory_free

    def __del__(self) -> None:
        memory, self._memory = getattr(self, "_memory", None), None
        if memory is not None:
            self._free(memory)


class Region:
    """``size`` bytes at ``address``, on GPU ``device`` or (None) the host, kept by ``owner``."""

    def __init__(self, address: int, size: int, device: int | None, owner: Any) -> None:
        self.address = address
        self.size = size
        self.device = device
        self.owner = owner

    def dlpack_device(self) -> tuple[int, int]:
        """What ``__dlpack_device__`` returns."""
        return (_CPU, 0) if self.device is None else (_CUDA, self.device)

    def dlpack(self, dtype: str, shape: Sequence[int], offset: int) -> Any:
        """A DLPack capsule of the tensor at byte ``offset``; it keeps the memory."""
        tensor = _ManagedTensor()
        dims = (ctypes.c_int64 * len(shape))(*shape)
        steps = list(itertools.accumulate(reversed(shape[1:]), int.__mul__, initial=1))
        strides = (ctypes.c_int64 * len(shape))(*reversed(steps[: len(shape)]))
        inner = tensor.tensor
        inner.data = self.address + offset
        inner.device_type, inner.device_id = self.dlpack_device()
        inner.ndim = len(shape)
        kind = dtype.rstrip("0123456789")
        inner.code, inner.bits, inner.lanes = _CODES[kind], int(dtype[len(kind) :]), 1
        inner.shape, inner.strides = dims, strides
        tensor.deleter = _forget_address
        address = ctypes.addressof(tensor)
        _lent[address] = (tensor, dims, strides, self.owner)
        try:
            return _new_capsule(address, _FRESH, _drop_capsule_address)
        except BaseException:
            del _lent[address]
            raise

    def cuda_interface(
        self, dtype: str, shape: Sequence[int], offset: int, stream: int | None
    ) -> dict[str, Any]:
        """``__cuda_array_interface__``, version 3. AttributeError where there can be none."""
        if self.device is None:
            raise AttributeError("the memory is the host's: there is no CUDA interface")
        if dtype not in _TYPESTR:
            raise AttributeError(f"{dtype} has no CUDA interface: use DLPack")
        return {
            "shape": tuple(shape),
            "typestr": _TYPESTR[dtype],
            "data": (self.address + offset, False),
            "strides": None,
            "version": 3,
            # The consumer's streams come after this one; 1 stands for the legacy default stream.
            "stream": None if stream is None else stream or 1,
        }


def host_region(memory: Any) -> Region:
    """A region around a writable buffer, such as an mmap."""
    view = (ctypes.c_char * len(memory)).from_buffer(memory)
    return Region(ctypes.addressof(view), len(memory), None, (memory, view))


def stream_handle(stream: Any) -> int:
    """The CUstream's number of an int, a torch.cuda.Stream or a cupy.cuda.Stream."""
    for name in ("cuda_stream", "ptr"):
        stream = getattr(stream, name, stream)
    if not isinstance(stream, int) or isinstance(stream, bool) or stream < 0:
        raise TypeError(
            f"stream {stream!r}: give a CUstream's number, or a stream of torch or cupy"
        )
    # 1 is CUDA's other name of the legacy default stream.
    return 0 if stream == 1 else stream


def device_number(device: Any) -> int | None:
    """A GPU's number of 1, "cuda:1" or a torch.device; None, the host, of None and "cpu"."""
    if device is None or (isinstance(device, int) and not isinstance(device, bool)):
        return device
    kind, _, number = str(device).partition(":")
    if kind == "cpu":
        return None
    if kind != "cuda" or not number.isdigit():
        raise ValueError(f'device {device}: give None, a GPU\'s number or "cuda:NUMBER"')
    return int(number)


class Foreign:
    """Memory on a GPU of somebody else's: where it lies, and what keeps it."""

    def __init__(self, x: Any) -> None:
        """Takes whatever has ``__cuda_array_interface__``, or a torch tensor on a GPU."""
        if hasattr(x, "data_ptr"):  # torch: its interface refuses bfloat16 and what needs grad
            if x.device.type != "cuda":
                raise TypeError(f"the tensor is on {x.device}: only a GPU's memory is shared")
            if not x.is_contiguous():
                raise ValueError("the tensor is not contiguous: share x.contiguous()")
            self.address, self.shape = x.data_ptr(), tuple(x.shape)
            self.dtype = dtypes.dtype_name(x.dtype)
        else:
            interface = getattr(x, "__cuda_array_interface__", None)
            if interface is None:
                raise TypeError(
                    f"{type(x).__name__}: give something on a GPU with __cuda_array_interface__"
                )
            self._take(interface)
        self.owner = x

    def _take(self, interface: dict[str, Any]) -> None:
        names = {typestr: name for name, typestr in _TYPESTR.items()}
        self.address, readonly = interface["data"]
        self.shape = tuple(interface["shape"])
        if readonly:
            raise ValueError("the memory is read-only: results go into it")
        if interface["typestr"] not in names:
            raise TypeError(
                f"elements {interface['typestr']}: headrace moves {', '.join(_TYPESTR)}"
            )
        self.dtype = names[interface["typestr"]]
        element = dtypes.dtype_size(self.dtype)
        steps = itertools.accumulate(reversed(self.shape), int.__mul__, initial=element)
        contiguous = tuple(reversed(list(steps)[:-1]))
        if interface.get("strides") not in (None, contiguous):
            raise ValueError("the memory is not contiguous: share a contiguous copy")


# ---- DLPack by ctypes ----------------------------------------------------------------------------


class _Tensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _ManagedTensor(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = [
        ("tensor", _Tensor),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


_Callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_lent: dict[int, tuple] = {}  # address of a managed tensor -> what it needs to live


@_Callback
def _forget(address: int) -> None:
    """The deleter: whoever took the capsule is done with the memory."""
    _lent.pop(address, None)


@_Callback
def _drop_capsule(capsule: int) -> None:
    """A capsule goes; nobody has taken what was in it if it still has its first name."""
    if _is_valid(capsule, _FRESH):
        _lent.pop(_pointer(capsule, _FRESH), None)


# These outlive the interpreter's last moments, in which tensors may still be freed.
for _callback in (_forget, _drop_capsule, _lent):
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_callback))
_forget_address = ctypes.cast(_forget, ctypes.c_void_p).value
_drop_capsule_address = ctypes.cast(_drop_capsule, ctypes.c_void_p).value

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
# By address: within its destructor a capsule has no references any more.
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype = ctypes.c_int
_is_valid.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype = ctypes.c_void_p
_pointer.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
