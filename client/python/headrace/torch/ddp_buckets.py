"""DDP's buckets as the gradients of a layout."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Part = tuple[str, tuple[int, ...]]


class Bucket(NamedTuple):
    """What one all-reduce of DDP's carries."""

    count: int  # elements
    dtype: Any


def as_gradients(
    buckets: Sequence[Bucket], parts: Mapping[int, Sequence[Part]], more: int = 0
) -> list[tuple]:
    """Gradients in forward order of buckets in the order in which backward fills them: the last one first.

    ``parts``: names and shapes of what is in a bucket, where that is known. ``more``: elements behind each.
    """
    return [
        ((bucket.count + more,), bucket.dtype, f"bucket{index}", parts.get(index))
        for index, bucket in enumerate(buckets)
    ][::-1]


def cut_bucket(index: int, bucket: Bucket, parts: Sequence[Part] | None, by_matrix: bool) -> list[tuple]:
    """The gradients of a layout that a bucket is, in the order of its elements: one; or, by matrix, each of its
    parts of two or more dimensions, and those of one that lie behind each other together.
    """
    if not by_matrix:
        return [((bucket.count,), bucket.dtype, f"bucket{index}", parts)]
    cut: list[tuple] = []
    flat: list[Part] = []

    def add(shape: tuple[int, ...], own: list[Part]) -> None:
        cut.append((shape, bucket.dtype, f"bucket{index}.{len(cut)}", own))

    def add_flat() -> None:
        if flat:
            add((sum(math.prod(shape) for _, shape in flat),), list(flat))
            flat.clear()

    for part in parts:
        shape = part[1]
        if len(shape) > 1:
            add_flat()
            add(shape, [part])
        else:
            flat.append(part)
    add_flat()
    return cut


def index_of(bucket: int, count: int) -> int:
    """Which gradient of as_gradients() of so many buckets it is."""
    return count - 1 - bucket
