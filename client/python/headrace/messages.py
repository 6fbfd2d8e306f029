"""What a gather, scatter or all_to_all has for each rank, as the C header takes it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any

from headrace import dtypes, library
from headrace.arena import Range, Tensor

_Rows = Sequence[tuple[int, int]]


def is_registered(parts: Sequence[Any], stream: Any = None) -> bool:
    """Whether they are Tensors or Ranges; TypeError when only some are, or with a ``stream`` none is."""
    registered = [isinstance(x, (Tensor, Range)) for x in parts]
    if any(registered) and not all(registered):
        raise TypeError("give registered tensors for all ranks, or for none")
    if stream is not None and not any(registered):
        raise TypeError("only a headrace.Tensor on a GPU is posted on a stream")
    return bool(registered) and registered[0]


def arrays_of(parts: Sequence[Any]) -> tuple[set[str], _Rows]:
    """Their dtypes, and (address, count) of each."""
    found = [dtypes.array_of(x) for x in parts]
    rows = [(address, count) for address, count, _ in found]
    return {dtype for _, _, dtype in found}, rows


def cut(x: Any, counts: Sequence[int] | None, parts: int) -> tuple[set[str], _Rows]:
    """The same of one array that is cut into so many parts, equal ones where ``counts`` is None."""
    address, count, dtype = dtypes.array_of(x)
    if counts is None:
        if count % parts != 0:
            raise ValueError(f"{count} elements are no {parts} equal parts")
        counts = [count // parts] * parts
    if len(counts) != parts or sum(counts) != count or min(counts, default=0) < 0:
        raise ValueError(
            f"{len(counts)} parts of {sum(counts)} elements in all for {parts} ranks and an array of {count}"
        )
    size = dtypes.dtype_size(dtype)
    ends = accumulate(counts)
    rows = [(address + (end - n) * size, n) for end, n in zip(ends, counts)]
    return {dtype}, rows


def in_c(rows: _Rows) -> bytes:
    """As hr_array, one behind the other."""
    return library.packed(2 * len(rows), chain.from_iterable(rows))


def dtype_of(*found: set[str]) -> int:
    """The number of the one dtype that all have."""
    names = set().union(*found)
    if len(names) != 1:
        raise TypeError(f"arrays of {', '.join(sorted(names))}: give one dtype")
    return dtypes.dtype_number(names.pop())


def ranges_of(parts: Sequence[Any]) -> tuple[Any, Any]:
    """The handle of their one tensor, and the ranges as hr_range; None and None of nothing."""
    if not parts:
        return None, None
    ranges = [x if isinstance(x, Range) else x.range(0, x.count) for x in parts]
    if any(each.tensor is not ranges[0].tensor for each in ranges):
        raise ValueError("the ranges of all ranks are of one tensor")
    rows = [(each.offset, each.count) for each in ranges]
    return ranges[0].tensor.handle, (library.ElementRange * len(rows))(*rows)


def parts_in_c(
    name: str, parts: Sequence[Any], own: Any, rank: int, stream: Any = None
) -> tuple[str, tuple]:
    """The C function that gathers or reduces registered parts, and what it is given of them.

    ValueError unless the parts stand one behind the other. ``own`` is that of the rank, or elsewhere, as it has
    to be on a ``stream``.
    """
    ranges, own = [_range_of(x) for x in parts], _range_of(own)
    whole, counts = _one_range(ranges)
    if own == ranges[rank]:
        if stream is not None:
            raise ValueError("x is one of the inputs: give another one, or post it without a stream")
        return name + "_parts", (*whole, counts)
    elsewhere = (own.tensor.handle, library.ElementRange(own.offset, own.count))
    ends = (elsewhere, whole) if name == "hr_all_gather" else (whole, elsewhere)
    return name + "_into", (*ends[0], *ends[1], counts)


def _range_of(x: Tensor | Range) -> Range:
    return x if isinstance(x, Range) else x.range(0, x.count)


def _one_range(ranges: Sequence[Range]) -> tuple[tuple[Any, Any], Any]:
    begin = end = ranges[0].offset
    for part in ranges:
        if part.tensor is not ranges[0].tensor or part.offset != end:
            raise ValueError(
                f"a part begins at element {part.offset}: those of all ranks stand one behind the other in "
                f"one tensor, so at {end}"
            )
        end += part.count
    counts = (ctypes.c_uint64 * len(ranges))(*(part.count for part in ranges))
    return (ranges[0].tensor.handle, library.ElementRange(begin, end - begin)), counts
