"""Measuring several contenders in interleaved rounds, and what the numbers come to."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable

from contenders import Contender

KIB, MIB = 1 << 10, 1 << 20
# Operations per size, contender and round: enough for a 99th percentile at the small sizes.
REPETITIONS = {4 * KIB: 300, 64 * KIB: 200, 1 * MIB: 60, 16 * MIB: 8, 64 * MIB: 4}
ROUNDS = 10
# What the smoke test runs: shows that all works, measures nothing of worth.
SMOKE_REPETITIONS = {4 * KIB: 5, 1 * MIB: 3}
SMOKE_ROUNDS = 2


@dataclasses.dataclass(frozen=True)
class Figure:
    """One contender at one size and number of ranks. Times in microseconds."""

    contender: str
    ranks: int
    bytes: int
    samples: int
    p50_us: float
    p99_us: float
    mean_us: float
    least_us: float


def figure_of(contender: str, ranks: int, size: int, times_ns: list[int]) -> Figure:
    ordered = sorted(times_ns)
    # The smallest value that at least 99 % of the samples do not exceed.
    p99 = ordered[-(-99 * len(ordered) // 100) - 1]
    return Figure(
        contender=contender,
        ranks=ranks,
        bytes=size,
        samples=len(ordered),
        p50_us=statistics.median(ordered) / 1e3,
        p99_us=p99 / 1e3,
        mean_us=statistics.fmean(ordered) / 1e3,
        least_us=ordered[0] / 1e3,
    )


def measure(
    contenders: list[Contender],
    repetitions: dict[int, int],
    rounds: int,
    said: Callable[[str], None],
) -> list[Figure]:
    """All sizes with all contenders; each round starts with another, so that the noise of the
    machine and the warmth of its caches favour none."""
    times: dict[tuple[str, int], list[int]] = {}
    for index in range(rounds):
        said(f"{contenders[0].ranks} ranks: round {index + 1} of {rounds}")
        turn = index % len(contenders)
        for size, count in repetitions.items():
            for contender in contenders[turn:] + contenders[:turn]:
                times.setdefault((contender.name, size), []).extend(
                    contender.measure(size, count)
                )
    return [
        figure_of(contender.name, contender.ranks, size, times[contender.name, size])
        for size in repetitions
        for contender in contenders
    ]
