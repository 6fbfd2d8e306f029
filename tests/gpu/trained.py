"""Ranks of training_rank.py at once, and whether they trained the same thing."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ranks import gpu_of, gpus_count, play
from support.ports import free_port

RANKS = 2
LEARNED = 0.05  # relative, of the last loss
CLOSE = 2e-3  # relative, of losses after tens of steps in another order of addition


def share_a_gpu() -> bool:
    return gpus_count() < RANKS


def train(way: str, environments: Sequence[Mapping[str, str]]) -> list[dict]:
    """What each rank printed."""
    program = [sys.executable, "-B", str(Path(__file__).parent / "training_rank.py"), way]
    common = {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [
        {**common, "RANK": str(rank), "GPU_ORDINAL": str(gpu_of(rank)), **environment}
        for rank, environment in enumerate(environments)
    ]
    printed = play([program] * RANKS, ranks)
    results = [json.loads(text.splitlines()[-1]) for text in printed]
    for result in results:
        require_finite(result)
    return results


def require_finite(result: dict) -> None:
    """No comparison tells a NaN from what it should be."""
    if not all(math.isfinite(value) for value in [result["norm"], *result["losses"]]):
        what = f"rank {result['rank']} by {result['way']}"
        raise SystemExit(f"{what} ends with norm {result['norm']}, losses {result['losses']}")


def require_equal_ranks(results: Sequence[dict]) -> None:
    """All ranks have the same parameters at the end, to the bit."""
    norms = {result["norm"] for result in results}
    if len(norms) != 1:
        raise SystemExit(f"ranks ended with different parameters: norms {sorted(norms)}")


def require_close(results: Sequence[dict], others: Sequence[dict]) -> None:
    """Both trained the same: losses are close at every step, on every rank."""
    for mine, other in zip(results, others, strict=True):
        for step, (a, b) in enumerate(zip(mine["losses"], other["losses"], strict=True)):
            if not abs(a - b) <= CLOSE * abs(b):
                raise SystemExit(
                    f"rank {mine['rank']} step {step}: loss {a} by {mine['way']}, {b} by {other['way']}"
                )


def require_learned(results: Sequence[dict], others: Sequence[dict]) -> None:
    """The last losses are those of the others, within what gradients that lost precision may change."""
    for mine, other in zip(results, others, strict=True):
        a, b = mine["losses"][-1], other["losses"][-1]
        if not abs(a - b) <= LEARNED * abs(b):
            raise SystemExit(f"rank {mine['rank']}: the last loss is {a}, without a codec {b}")


def slowest_ms(results: Sequence[dict]) -> float:
    return 1e3 * max(result["iteration_s"] for result in results)


def figure(what: str, value: float, unit: str, goal: str = "") -> None:
    print(f"figure\t{what}\t{value:.6g}\t{unit}\t{goal}")
