"""Element types and reductions, and what numpy and torch call them. Imports neither."""

from __future__ import annotations

import functools
import sys
from typing import Any

# name -> (number in the C header, bytes per element)
_DTYPES = {
    "float32": (1, 4),
    "float64": (2, 8),
    "float16": (3, 2),
    "bfloat16": (4, 2),
    "int32": (5, 4),
    "int64": (6, 8),
    "uint8": (7, 1),
}

_REDUCTIONS = {"sum": 1, "average": 2, "min": 3, "max": 4, "product": 5}


def dtype_name(dtype: Any) -> str:
    """ "float32" from a name, a numpy dtype or scalar type, or a torch dtype."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(dtype, torch.dtype):
        return _name_in_torch(dtype)
    if isinstance(dtype, str):
        return _checked(dtype)
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", str(dtype))
    return _checked(name)


@functools.cache
def _name_in_torch(dtype: Any) -> str:
    # Cached, since every post of a tensor asks and there are few.
    return _checked(str(dtype).removeprefix("torch."))


def _checked(name: str) -> str:
    if name not in _DTYPES:
        raise TypeError(f"dtype {name}: headrace moves {', '.join(_DTYPES)}")
    return name


@functools.cache  # for its speed: every post asks
def dtype_number(name: str) -> int:
    """The number in the C header."""
    return _DTYPES[name][0]


def dtype_size(name: str) -> int:
    """Bytes per element."""
    return _DTYPES[name][1]


def reduction_number(name: str) -> int:
    """The number in the C header of "sum", "average", "min", "max" or "product"."""
    try:
        return _REDUCTIONS[name]
    except KeyError:
        raise ValueError(
            f'reduction "{name}": there are {", ".join(_REDUCTIONS)}'
        ) from None


def array_of(x: Any) -> tuple[int, int, str]:
    """(address, element count, dtype) of a numpy array or a torch tensor on the CPU.

    Results are written in place, so the memory must be contiguous and writable.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        if not x.is_cpu:
            raise TypeError(
                f"the tensor is on {x.device}; only the CPU's memory is taken so far"
            )
        if not x.is_contiguous():
            raise ValueError(
                "the tensor is not contiguous: give x.contiguous() and copy back"
            )
        return x.data_ptr(), x.numel(), _name_in_torch(x.dtype)
    if hasattr(x, "__array_interface__"):
        if not x.flags.c_contiguous or not x.flags.writeable:
            raise ValueError(
                "the array must be C-contiguous and writable: results go into it"
            )
        return x.ctypes.data, x.size, dtype_name(x.dtype)
    raise TypeError(
        f"{type(x).__name__}: give a headrace.Tensor, a numpy array or a torch tensor"
    )
