"""The free parts of pieces of memory: which of them a request takes, and how what comes back joins again."""

from __future__ import annotations

import bisect


class FreeRanges:
    """Free ranges in bytes of pieces of memory that are named by numbers. Knows no memory itself.

    A request takes the smallest range that holds it, of those the one at the lowest address of the oldest piece;
    the rest of the range stays free. Neighbours that are both free are one range. Of one thread at a time.
    """

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}  # of pieces
        self._ordered: list[tuple[int, int, int]] = []  # (size, piece, offset) of each free range
        self._at_begin: dict[tuple[int, int], int] = {}  # (piece, offset): its end
        self._at_end: dict[tuple[int, int], int] = {}  # (piece, end): its offset

    def add(self, piece: int, size: int) -> None:
        """A further piece, all of which is free."""
        self._sizes[piece] = size
        self._insert(piece, 0, size)

    def take(self, size: int) -> tuple[int, int] | None:
        """The piece and the offset of ``size`` bytes, which are free no more. None: no range is as large."""
        at = bisect.bisect_left(self._ordered, (size, -1, -1))
        if at == len(self._ordered):
            return None
        found, piece, offset = self._ordered[at]
        self._remove(piece, offset, offset + found)
        if found > size:
            self._insert(piece, offset + size, offset + found)
        return piece, offset

    def give_back(self, piece: int, offset: int, size: int) -> None:
        """What take() gave is free again."""
        begin, end = offset, offset + size
        before = self._at_end.get((piece, begin))
        if before is not None:
            self._remove(piece, before, begin)
            begin = before
        after = self._at_begin.get((piece, end))
        if after is not None:
            self._remove(piece, end, after)
            end = after
        self._insert(piece, begin, end)

    def unused(self) -> list[int]:
        """The pieces of which nothing is taken, the largest first."""
        free = [piece for size, piece, offset in self._ordered if size == self._sizes[piece]]
        return sorted(free, key=lambda piece: -self._sizes[piece])

    def remove(self, piece: int) -> None:
        """Forgets a piece of unused()."""
        self._remove(piece, 0, self._sizes.pop(piece))

    @property
    def total(self) -> int:
        """The bytes of all pieces."""
        return sum(self._sizes.values())

    @property
    def free(self) -> int:
        """The bytes that are free."""
        return sum(size for size, _, _ in self._ordered)

    def size_of(self, piece: int) -> int:
        """The bytes of one piece."""
        return self._sizes[piece]

    def _insert(self, piece: int, begin: int, end: int) -> None:
        bisect.insort(self._ordered, (end - begin, piece, begin))
        self._at_begin[piece, begin] = end
        self._at_end[piece, end] = begin

    def _remove(self, piece: int, begin: int, end: int) -> None:
        del self._ordered[bisect.bisect_left(self._ordered, (end - begin, piece, begin))]
        del self._at_begin[piece, begin]
        del self._at_end[piece, end]
