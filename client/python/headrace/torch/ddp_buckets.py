"""DDP's buckets as the gradients of a layout."""

from __future__ import annotations

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


def index_of(bucket: int, count: int) -> int:
    """Which gradient of as_gradients() of so many buckets it is."""
    return count - 1 - bucket
