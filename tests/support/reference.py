"""What a collective has to leave in every rank's memory, by numpy and case by case.

Values are small whole numbers whose every sum, product and average is exact in every type, so that
any right way of adding gives these bits. numpy has no bfloat16: its bits stand in uint16.
"""

from __future__ import annotations

import numpy

DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8")
REDUCTIONS = ("sum", "average", "min", "max", "product")


def storage(dtype: str) -> numpy.dtype:
    """The numpy type in which elements of that type are kept."""
    return numpy.dtype("uint16" if dtype == "bfloat16" else dtype)


def encode(values: numpy.ndarray, dtype: str) -> numpy.ndarray:
    """Whole numbers as elements of that type."""
    if dtype == "bfloat16":
        bits = values.astype(numpy.float32).view(numpy.uint32)
        assert not (bits & 0xFFFF).any(), "not exact in bfloat16"
        return (bits >> 16).astype(numpy.uint16)
    elements = values.astype(dtype)
    assert (elements.astype(numpy.int64) == values).all(), f"not exact in {dtype}"
    return elements


def given(rank: int, world: int, op: str, count: int, seed: int) -> numpy.ndarray:
    """What a rank has before, as whole numbers."""
    random = numpy.random.default_rng([seed, rank])
    if op == "product":
        return random.integers(1, 3, count)
    if op == "average":  # so that the sum divides evenly
        return world * random.integers(0, 4, count)
    return random.integers(0, 15, count)


def reduced(all_given: list[numpy.ndarray], op: str) -> numpy.ndarray:
    stacked = numpy.stack(all_given)
    if op == "average":
        return stacked.sum(0) // len(all_given)
    functions = {"sum": stacked.sum, "product": stacked.prod, "min": stacked.min, "max": stacked.max}
    return functions[op](axis=0)


def expected(
    kind: str, rank: int, world: int, op: str, root: int, count: int, seed: int
) -> numpy.ndarray:
    """What a rank has to have after."""
    all_given = [given(r, world, op, count, seed) for r in range(world)]
    part = count // world
    if kind == "all_reduce":
        return reduced(all_given, op)
    if kind == "broadcast":
        return all_given[root]
    result = all_given[rank].copy()
    if kind == "reduce_scatter":
        own = slice(rank * part, (rank + 1) * part)
        result[own] = reduced(all_given, op)[own]
    elif kind == "all_gather":
        for r in range(world):
            result[r * part : (r + 1) * part] = all_given[r][r * part : (r + 1) * part]
    else:
        raise ValueError(kind)
    return result
