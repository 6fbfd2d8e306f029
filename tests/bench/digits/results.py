"""What a training came to, the table of several, and whether it is what it must be."""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from figures import print_rows


@dataclasses.dataclass(frozen=True)
class Result:
    """One training, all ranks."""

    title: str
    loss: float
    accuracy: float
    hashes: list[str]  # of the parameters, by rank
    parameters: np.ndarray  # of rank 0
    waited_seconds: list[float]  # by rank
    seconds: float
    nodes: str
    link: str
    sent_bytes: list[int]  # by node; empty where nothing counts them


def read_result(
    title: str,
    ranks: int,
    folder: Path,
    nodes: str = "-",
    link: str = "-",
    sent_bytes: Sequence[int] = (),
) -> Result:
    files = [folder / f"result.{rank}.json" for rank in range(ranks)]
    per_rank = [json.loads(file.read_text()) for file in files]
    return Result(
        title=title,
        loss=per_rank[0]["loss"],
        accuracy=per_rank[0]["accuracy"],
        hashes=[rank["hash"] for rank in per_rank],
        parameters=np.load(files[0].with_suffix(".npy")),
        waited_seconds=[rank["waited_seconds"] for rank in per_rank],
        seconds=max(rank["seconds"] for rank in per_rank),
        nodes=nodes,
        link=link,
        sent_bytes=list(sent_bytes),
    )


def _same_bits(result: Result) -> str:
    if len(result.hashes) == 1:
        return "-"
    return f"yes, {result.hashes[0][:12]}" if len(set(result.hashes)) == 1 else "NO"


def _waited(result: Result) -> str:
    return (
        f"{statistics.fmean(result.waited_seconds):.2f}"
        if len(result.hashes) > 1
        else "-"
    )


def _sent(result: Result) -> str:
    if not result.sent_bytes:
        return "-"
    return f"{statistics.fmean(result.sent_bytes) / 1e6:.0f}"


def print_table(results: list[Result]) -> None:
    """One column for each training, one row for each figure."""
    alone = next((result for result in results if result.title == "one process"), None)

    def distance(result: Result) -> str:
        if alone is None or result is alone:
            return "-"
        return f"{np.abs(result.parameters - alone.parameters).max():.1e}"

    rows = [["", *(result.title for result in results)]]
    rows.append(["ranks", *(str(len(result.hashes)) for result in results)])
    rows.append(["nodes", *(result.nodes for result in results)])
    rows.append(["link", *(result.link for result in results)])
    rows.append(["test loss", *(f"{result.loss:.4f}" for result in results)])
    rows.append(["test accuracy", *(f"{result.accuracy:.2%}" for result in results)])
    rows.append(["same bits on all ranks", *map(_same_bits, results)])
    rows.append(["farthest from one process", *map(distance, results)])
    rows.append(["seconds waiting, mean of ranks", *map(_waited, results)])
    rows.append(
        ["seconds of training", *(f"{result.seconds:.2f}" for result in results)]
    )
    if any(result.sent_bytes for result in results):
        rows.append(["MB on the wire, mean of nodes", *map(_sent, results)])
    print()
    print_rows(rows)
    print(
        f"\n{results[0].parameters.size} parameters. Waiting: from a rank's last gradient until all"
    )
    print("are averaged, which includes waiting for slower ranks.")
    for rank, value in enumerate(results[0].hashes):
        print(f"rank {rank}: parameters {value[:32]}")


def conclude(results: list[Result]) -> int:
    """The exit status: ranks whose parameters differ, or are no numbers, are a failure."""
    ours = results[0]
    if len(set(ours.hashes)) != 1:
        print("quickstart: the parameters of the ranks differ", file=sys.stderr)
        return 1
    if not np.isfinite(ours.parameters).all():
        print("quickstart: the parameters are no finite numbers", file=sys.stderr)
        return 1
    return 0
