"""Pictures in SVG: one iteration as a Gantt chart of what was computed, and of the blocks as planned and as measured;
and curves."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any
from xml.sax.saxutils import escape

WIDTH, LEFT, RIGHT, TOP = 1100, 140, 30, 60
ROW_HEIGHT, ROW_GAP = 34, 14
GLYPH_WIDTH = 8
INK, FAINT, GRID, BOUND = "#1f2933", "#7b8794", "#e4e7eb", "#d55e00"
# From the input to the output; the colours of headrace-plan's pictures.
SCALE = ((230, 159, 0), (213, 120, 90), (120, 130, 180), (0, 114, 178))


@dataclasses.dataclass(frozen=True)
class Bar:
    begin_s: float
    end_s: float
    depth: float  # 0 at the input, 1 at the output
    label: str
    tooltip: str


def _colour(depth: float) -> str:
    place = min(max(depth, 0.0), 1.0) * (len(SCALE) - 1)
    index = min(int(place), len(SCALE) - 2)
    share = place - index
    low, high = SCALE[index], SCALE[index + 1]
    return "#" + "".join(
        f"{round(a + (b - a) * share):02x}" for a, b in zip(low, high, strict=True)
    )


def _ticks(most: float, count: int) -> Iterator[float]:
    power = 10 ** math.floor(math.log10(most / count))
    step = next(
        power * factor
        for factor in (1, 2, 2.5, 5, 10)
        if power * factor * count >= most
    )
    for index in range(math.floor(most / step) + 1):
        yield index * step


def _text(
    x: float, y: float, words: str, anchor: str, fill: str = INK, size: int = 12
) -> str:
    return (
        f'<text x="{x:.2f}" y="{y:.2f}" text-anchor="{anchor}" fill="{fill}" '
        f'font-size="{size}">{escape(words)}</text>'
    )


def _line(x: float, top: float, bottom: float, stroke: str, dashes: str = "") -> str:
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<line x1="{x:.2f}" y1="{top}" x2="{x:.2f}" y2="{bottom}" stroke="{stroke}"{dashed}/>'


def _rows(moments: dict[str, Any]) -> dict[str, list[Bar]]:
    order = {name: index for index, name in enumerate(moments["forward"])}
    last = max(len(order) - 1, 1)
    backward, before = [], 0.0
    for name, at in sorted(moments["gradients"].items(), key=lambda item: item[1]):
        depth = order.get(name.rpartition(".")[0], 0) / last
        backward.append(
            Bar(before, at, depth, "", f"gradient of {name}, {at * 1e3:.1f} ms")
        )
        before = at
    forward = [
        Bar(
            begin,
            end,
            order[name] / last,
            "",
            f"{name}, {begin * 1e3:.1f} to {end * 1e3:.1f} ms",
        )
        for name, (begin, end) in moments["forward"].items()
    ]
    plan = moments["plan"]
    rows = {"backward": backward}
    for row, prefix in (("blocks, planned", "predicted_"), ("blocks, measured", "")):
        rows[row] = [_block(block, prefix, plan["tensors"]) for block in plan["blocks"]]
    return {**rows, "next forward": forward}


def _block(block: dict[str, Any], prefix: str, tensors: int) -> Bar:
    begin, end = (block[f"{prefix}{which}_ns"] / 1e9 for which in ("begin", "end"))
    first, last = block["first_tensor"], block["last_tensor"]
    held = block["tensor"] if first == last else f"{block['tensor']} to #{last}"
    return Bar(
        begin, end, first / max(tensors - 1, 1), str(block["index"] + 1),
        f"block {block['index'] + 1}, {held}, {block['bytes']} bytes, "
        f"{begin * 1e3:.1f} to {end * 1e3:.1f} ms",
    )  # fmt: skip


def _draw_row(name: str, bars: list[Bar], y: float, scale: float) -> Iterator[str]:
    middle = y + ROW_HEIGHT / 2 + 4
    yield _text(LEFT - 10, middle, name, "end")
    begin, end = min(bar.begin_s for bar in bars), max(bar.end_s for bar in bars)
    yield (
        f'<rect x="{LEFT + begin * scale:.2f}" y="{y}" width="{(end - begin) * scale:.2f}" '
        f'height="{ROW_HEIGHT}" fill="#f5f7fa"/>'
    )
    for bar in bars:
        x, width = LEFT + bar.begin_s * scale, (bar.end_s - bar.begin_s) * scale
        # A hair of space keeps neighbours apart where there is room for it.
        drawn = width - 0.6 if width > 3 else max(width, 0.3)
        yield (
            f'<rect x="{x:.2f}" y="{y}" width="{drawn:.2f}" height="{ROW_HEIGHT}" '
            f'fill="{_colour(bar.depth)}"><title>{escape(bar.tooltip)}</title></rect>'
        )
        if bar.label and width >= GLYPH_WIDTH * len(bar.label) + 4:
            yield _text(x + width / 2, middle, bar.label, "middle", "#ffffff", 11)


def draw(title: str, moments: dict[str, Any]) -> str:
    """The text of the picture. ``moments`` as moments.record() returns them."""
    rows, plan = _rows(moments), moments["plan"]
    end_s = max(bar.end_s for bars in rows.values() for bar in bars)
    backward_s = max(moments["gradients"].values())
    bound_s = plan["lower_bound_ns"] / 1e9
    bottom = TOP + len(rows) * (ROW_HEIGHT + ROW_GAP)
    scale = (WIDTH - LEFT - RIGHT) / max(end_s, bound_s)
    parts = [
        f'<rect width="{WIDTH}" height="{bottom + 44}" fill="#ffffff"/>',
        _text(LEFT, 22, title, "start", INK, 15),
        _text(
            LEFT, 42, "time from the begin of backward; colour: warm = near the input, "
            "cool = near the output; gaps in the forward pass: it waits, or updates parameters",
            "start", FAINT, 11,
        ),
    ]  # fmt: skip
    for tick_ms in _ticks(max(end_s, bound_s) * 1e3, 10):
        x = LEFT + tick_ms / 1e3 * scale
        parts += [
            _line(x, TOP, bottom, GRID),
            _text(x, bottom + 16, f"{tick_ms:g}", "middle"),
        ]
    parts.append(_text(LEFT - 10, bottom + 16, "ms", "end"))
    for index, (name, bars) in enumerate(rows.items()):
        parts += _draw_row(
            name, bars, TOP + ROW_GAP / 2 + index * (ROW_HEIGHT + ROW_GAP), scale
        )
    parts.append(_line(LEFT + backward_s * scale, TOP - 6, bottom, INK, "4 3"))
    parts.append(_line(LEFT + bound_s * scale, TOP - 6, bottom, BOUND, "2 2"))
    parts.append(
        _text(
            WIDTH - RIGHT, bottom + 34, f"dashed: end of backward ({backward_s * 1e3:.1f} ms); dotted: "
            f"lower bound ({bound_s * 1e3:.1f} ms); planned for an iteration: "
            f"{plan['predicted_ns'] / 1e6:.1f} ms; waited: {moments['waited_s'] * 1e3:.1f} ms",
            "end", FAINT, 11,
        )
    )  # fmt: skip
    return _document(bottom + 44, parts)


def _document(height: float, parts: Sequence[str]) -> str:
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" font-family="DejaVu Sans, Verdana, sans-serif">\n'
        f"{body}\n</svg>\n"
    )


# Okabe and Ito's, which people who see few colours can tell apart.
CURVE_COLOURS = ("#000000", "#e69f00", "#56b4e9", "#009e73", "#d55e00", "#0072b2", "#cc79a7")
CURVES_HEIGHT = 420
LEGEND_WIDTH = 190


@dataclasses.dataclass(frozen=True)
class Curve:
    name: str
    x: Sequence[float]  # growing
    y: Sequence[float]


def draw_curves(title: str, x_label: str, y_label: str, curves: Sequence[Curve]) -> str:
    """The text of the picture: y from its least value on, x from 0 on. What is no number is left out."""
    bottom, right = TOP + CURVES_HEIGHT, WIDTH - RIGHT - LEGEND_WIDTH
    values = [y for curve in curves for y in curve.y if math.isfinite(y)]
    low, high = min(values), max(values)
    end = max(curve.x[-1] for curve in curves)
    x_scale, y_scale = (right - LEFT) / end, CURVES_HEIGHT / ((high - low) or 1.0)
    parts = [
        f'<rect width="{WIDTH}" height="{bottom + 44}" fill="#ffffff"/>',
        _text(LEFT, 22, title, "start", INK, 15),
        _text(LEFT, 42, y_label, "start", FAINT, 11),
        _text(right, bottom + 34, x_label, "end", FAINT, 11),
    ]
    for tick in _ticks(end, 10):
        x = LEFT + tick * x_scale
        parts += [_line(x, TOP, bottom, GRID), _text(x, bottom + 16, f"{tick:g}", "middle")]
    for tick in _ticks((high - low) or 1.0, 8):
        y = bottom - tick * y_scale
        parts.append(_text(LEFT - 10, y + 4, f"{low + tick:.3g}", "end"))
        parts.append(f'<line x1="{LEFT}" y1="{y:.2f}" x2="{right}" y2="{y:.2f}" stroke="{GRID}"/>')
    for index, curve in enumerate(curves):
        colour = CURVE_COLOURS[index % len(CURVE_COLOURS)]
        points = " ".join(
            f"{LEFT + x * x_scale:.2f},{bottom - (y - low) * y_scale:.2f}"
            for x, y in zip(curve.x, curve.y, strict=True)
            if math.isfinite(y)
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(_text(right + 20, TOP + 16 + 20 * index, curve.name, "start", colour))
    return _document(bottom + 44, parts)
