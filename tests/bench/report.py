"""What the figures look like to a person, and the goals they are held against."""

from __future__ import annotations

import argparse
import dataclasses
import os
import platform
import re
from collections.abc import Iterable
from pathlib import Path

from rounds import KIB, MIB, Figure


@dataclasses.dataclass(frozen=True)
class Goal:
    """A ratio of medians that was set as a goal before anything was measured."""

    ranks: int
    bytes: int
    over: str  # the contender whose time is divided ...
    under: str  # ... by this one's
    least: float = 0.0
    most: float = float("inf")

    def text(self) -> str:
        return f">= {self.least:g}" if self.least else f"<= {self.most:g}"


GOALS = [
    goal
    for ranks in (2, 4)
    for goal in (
        Goal(ranks, 64 * MIB, "headrace", "ideal", most=1.3),
        Goal(ranks, 64 * MIB, "openmpi", "headrace", least=4),
        Goal(ranks, 64 * MIB, "gloo", "headrace", least=6),
        Goal(ranks, 1 * MIB, "openmpi", "headrace", least=1),
        Goal(ranks, 1 * MIB, "gloo", "headrace", least=1),
    )
] + [Goal(4, 4 * KIB, "headrace", "openmpi", most=1)]


def json_path(text: str) -> Path:
    """argparse's type of --json: measuring takes minutes, so a path that cannot be written is refused first."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a folder: name a file in it")
    if not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path.parent}: make it, or write elsewhere")
    return path


def machine() -> dict[str, object]:
    """The machine the figures are from."""
    cpuinfo = Path("/proc/cpuinfo").read_text()
    model = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    memory = re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())
    return {
        "cpu": model.group(1) if model else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(memory.group(1)) / MIB, 1) if memory else None,
        "kernel": platform.release(),
        "load_average_at_start": os.getloadavg()[0],
    }


def ratios(figures: Iterable[Figure]) -> list[dict[str, object]]:
    """The goals whose two contenders were measured, each with what was reached."""
    p50 = {
        (figure.contender, figure.ranks, figure.bytes): figure.p50_us
        for figure in figures
    }
    reached = []
    for goal in GOALS:
        over = p50.get((goal.over, goal.ranks, goal.bytes))
        under = p50.get((goal.under, goal.ranks, goal.bytes))
        if over is None or under is None:
            continue
        ratio = over / under
        reached.append(
            {
                "ranks": goal.ranks,
                "bytes": goal.bytes,
                "ratio_of": f"{goal.over} / {goal.under}",
                "ratio": ratio,
                "goal": goal.text(),
                "met": goal.least <= ratio <= goal.most,
            }
        )
    return reached


def size_name(size: int) -> str:
    return f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB"


def table(heads: list[str], rows: list[list[str]]) -> str:
    """Columns as wide as they need to be; the first two flush left."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = []
    for row in [heads, ["-" * width for width in widths], *rows]:
        cells = [
            cell.ljust(width) if index < 2 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def microseconds(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def figures_table(figures: list[Figure]) -> str:
    ideal = {(f.ranks, f.bytes): f.p50_us for f in figures if f.contender == "ideal"}
    rows = []
    for figure in figures:
        reference = ideal.get((figure.ranks, figure.bytes))
        rows.append(
            [
                f"{size_name(figure.bytes)} x {figure.ranks}",
                figure.contender,
                microseconds(figure.p50_us),
                microseconds(figure.p99_us),
                microseconds(figure.least_us),
                f"{figure.p50_us / reference:.2f}" if reference else "-",
                str(figure.samples),
            ]
        )
    return table(
        ["size x ranks", "who", "p50 us", "p99 us", "least us", "x ideal", "samples"],
        rows,
    )


def goals_table(reached: list[dict]) -> str:
    rows = [
        [
            f"{size_name(row['bytes'])} x {row['ranks']}",
            row["ratio_of"],
            f"{row['ratio']:.2f}",
            row["goal"],
            "met" if row["met"] else "NOT MET",
        ]
        for row in reached
    ]
    return table(["size x ranks", "ratio of medians", "measured", "goal", ""], rows)


def service_table(costs: dict) -> str:
    def calls(kind: str) -> str:
        value = costs["posting"][kind]["system_calls_per_post"]
        return "strace is missing" if value is None else f"{value:.4f}"

    posting = costs["posting"]
    rows = [
        [
            "posting, service awake",
            "CPU ns, p50",
            f"{posting['awake']['cpu_ns_p50']:.0f}",
            "< 300",
        ],
        ["", "CPU ns, p99", f"{posting['awake']['cpu_ns_p99']:.0f}", ""],
        ["", "system calls per post", calls("awake"), "0"],
        [
            "posting, default settings",
            "CPU ns, p50",
            f"{posting['default']['cpu_ns_p50']:.0f}",
            "",
        ],
        ["", "system calls per post", calls("default"), ""],
    ]
    for kind in ("empty", "attached"):
        idle, title = (
            costs["idle"][kind],
            {"empty": "no clients", "attached": "4 idle clients"}[kind],
        )
        rows += [
            [
                f"idle, {title}",
                f"CPU % over {idle['seconds']:.0f} s",
                f"{idle['cpu_percent']:.4f}",
                "< 0.1",
            ],
            ["", "wakeups", f"{idle['wakeups']:.0f}", "0"],
            ["", "MiB beside segments", f"{idle['beside_segments_mib']:.1f}", "< 30"],
        ]
    return table(["the service", "what", "measured", "goal"], rows)
