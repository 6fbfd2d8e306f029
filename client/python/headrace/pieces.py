"""An operation's array that has no memory of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from headrace import dtypes, library


class Pieces(NamedTuple):
    """The array of one collective, ``count`` elements of ``dtype``, in the memory of several others.

    ``read`` and ``written`` are (offset, x): x, a numpy array or a torch tensor on the CPU, is that part of
    the array, in elements. What the operation reads is copied while it is posted, what it writes when it is
    waited for. What nobody wants may be left out of ``written``.
    """

    count: int
    dtype: str
    read: Sequence[tuple[int, Any]]
    written: Sequence[tuple[int, Any]]

    def in_c(self, pieces: Sequence[tuple[int, Any]]) -> tuple[bytes, int]:
        """Those pieces as hr_piece, one behind the other, and how many.

        Errors: TypeError for another dtype, as array_of().
        """
        rows: list[int] = []
        for offset, x in pieces:
            address, count, dtype = dtypes.array_of(x)
            if dtype != self.dtype:
                raise TypeError(f"a piece of {dtype} in an array of {self.dtype}")
            rows += (address, offset, count)
        return library.packed(len(rows), rows), len(pieces)


def one_by_one(arrays: Sequence[Any]) -> list[tuple[int, Any]]:
    """Pieces that follow each other, of torch tensors of one dimension."""
    pieces, offset = [], 0
    for x in arrays:
        pieces.append((offset, x))
        offset += x.numel()
    return pieces
