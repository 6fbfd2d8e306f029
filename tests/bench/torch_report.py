"""How the figures of tests/bench/torch look, and where Headrace is slower than gloo."""

from __future__ import annotations

from collections.abc import Sequence

from report import size_name, table
from torch_turns import BACKENDS, Figure

Row = tuple[int, int, str, int]  # nodes, ranks, operation, bytes


def by_row(figures: Sequence[Figure]) -> dict[Row, dict[str, Figure]]:
    """The backends' figures side by side, in the order of measuring."""
    rows: dict[Row, dict[str, Figure]] = {}
    for figure in figures:
        row = (figure.nodes, figure.ranks, figure.operation, figure.bytes)
        rows.setdefault(row, {})[figure.backend] = figure
    return rows


def ratio(beside: dict[str, Figure], peer: str) -> float | None:
    """Headrace's median over the peer's: more than 1 is slower."""
    if "headrace" not in beside or peer not in beside:
        return None
    return beside["headrace"].p50_us / beside[peer].p50_us


def slower(figures: Sequence[Figure], peer: str = "gloo") -> list[dict[str, object]]:
    """The rows in which Headrace's median is larger than the peer's."""
    found = []
    for (nodes, ranks, operation, size), beside in by_row(figures).items():
        over = ratio(beside, peer)
        if over is not None and over > 1:
            row = {"nodes": nodes, "ranks": ranks, "operation": operation, "bytes": size}
            found.append({**row, "ratio_of": f"headrace / {peer}", "ratio": over})
    return found


def milliseconds(figure: Figure | None) -> str:
    return "-" if figure is None else f"{figure.p50_us / 1e3:.3f}"


def figures_table(figures: Sequence[Figure]) -> str:
    shown = [name for name in BACKENDS if any(figure.backend == name for figure in figures)]
    peers = [name for name in shown if name != "headrace"]
    rows = []
    for (nodes, ranks, operation, size), beside in by_row(figures).items():
        ratios = {peer: ratio(beside, peer) for peer in peers}
        behind = [peer for peer, over in ratios.items() if over is not None and over > 1]
        rows.append(
            [
                operation,
                f"{nodes} x {ranks // nodes}",
                size_name(size),
                *(milliseconds(beside.get(name)) for name in shown),
                *("-" if over is None else f"{over:.2f}" for over in ratios.values()),
                f"SLOWER than {', '.join(behind)}" if behind else "",
            ]
        )
    heads = ["operation", "nodes x ranks", "size", *(f"{name} ms" for name in shown), *(f"/ {p}" for p in peers), ""]
    return table(heads, rows)


def summary(figures: Sequence[Figure]) -> str:
    lines = []
    for peer in BACKENDS[1:]:
        compared = [beside for beside in by_row(figures).values() if ratio(beside, peer) is not None]
        if compared:
            behind = len(slower(figures, peer))
            lines.append(f"headrace is slower than {peer} in {behind} of {len(compared)} rows")
    return "\n".join(lines)
