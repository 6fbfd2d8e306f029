"""US-Byte (Gao et al., IEEE TPDS 2024): its authors' times and cost lines under every policy."""

from __future__ import annotations

import argparse
import csv
import dataclasses
import math
from pathlib import Path

import schedules
from inputs import Line, us_byte_claims, us_byte_lines, us_byte_schedules
from model_profile import published_model
from planner import Planner
from report import table

MODELS = ("vgg16", "resnet50", "resnet152", "densenet201", "inceptionv3")
FAR_RANKS = 128
UNIT_FROM, UNIT_TO, UNIT_POINTS = 64 << 10, 64 << 20, 11
UNIT_MODELS = ("vgg16", "resnet50", "densenet201")
UNIT_POLICIES = ("bytescheduler", "us-byte")
FOUND = ("us-byte", "exact")  # whose speed-ups stand beside the paper's


@dataclasses.dataclass(frozen=True)
class Reading:
    """How the published slope is understood; its unit is not said there."""

    name: str
    unit_bytes: int


READINGS = (Reading("a byte", 1), Reading("an element", schedules.ELEMENT_BYTES))


def far_line(lines: list[Line]) -> Line:
    """A straight line through the published ones over the logarithm of the ranks, by least squares. The
    startup then grows as a tree's does, and the slope on."""  # fmt: skip

    def at(values: list[float]) -> float:
        places = [math.log2(line.ranks) for line in lines]
        mean_x, mean_y = sum(places) / len(places), sum(values) / len(values)
        spread = sum((x - mean_x) ** 2 for x in places)
        slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(places, values, strict=True)) / spread
        return mean_y + slope * (math.log2(FAR_RANKS) - mean_x)

    return Line(
        FAR_RANKS, at([line.startup_s for line in lines]), at([line.s_per_unit for line in lines])
    )


def measure(planner: Planner) -> list[dict]:
    """A figure for each model, line, reading and policy."""
    figures = []
    lines = us_byte_lines()
    for line in [*lines, far_line(lines)]:
        for reading in READINGS:
            slope = line.s_per_unit / reading.unit_bytes
            for model in map(published_model, MODELS):
                rows = planner.simulate(model.path, line.startup_s, slope, ["all"])
                for policy, row in rows.items():
                    figures.append({
                        "model": model.name, "ranks": line.ranks, "reading": reading.name, "policy": policy,
                        "iteration_s": row["iteration_s"], "lower_bound_s": row["lower_bound_s"],
                        "ratio": (line.startup_s + slope * model.bytes) / model.compute_s,
                        "over_wfbp": row["speedup_over_wfbp"],
                        "over_bytescheduler": rows["bytescheduler"]["iteration_s"] / row["iteration_s"],
                    })  # fmt: skip
    return figures


def _of(figures: list[dict], **wanted: object) -> list[dict]:
    return [
        figure
        for figure in figures
        if all(figure[name] == value for name, value in wanted.items())
    ]


def times_text(figures: list[dict]) -> str:
    reading = READINGS[0].name
    texts = []
    for ranks in sorted({figure["ranks"] for figure in figures}):
        rows = []
        for model in MODELS:
            row = _of(figures, ranks=ranks, reading=reading, model=model)
            rows.append(
                [model, f"{row[0]['ratio']:.3f}"]
                + [f"{figure['iteration_s'] * 1e3:.1f}" for figure in row]
                + [f"{row[0]['lower_bound_s'] * 1e3:.1f}"]
            )
        policies = [
            figure["policy"]
            for figure in _of(figures, ranks=ranks, reading=reading, model=MODELS[0])
        ]
        texts.append(
            f"{ranks} ranks, iteration in ms, the slope a byte\n"
            + table(["model", "comm/comp", *policies, "bound"], rows)
        )
    return "\n\n".join(texts)


def claims_text(figures: list[dict]) -> str:
    """The paper's largest speed-ups beside the largest of ours."""
    rows = []
    for claim in us_byte_claims():
        far = "simulated" in claim.claim
        for reading in READINGS:
            cells = []
            for policy in FOUND:
                found = [
                    figure
                    for figure in _of(figures, reading=reading.name, policy=policy)
                    if (figure["ranks"] == FAR_RANKS) == far and (far or figure["ranks"] == 8)
                ]
                best = max(found, key=lambda figure: figure[f"over_{claim.over}"])
                cells.append(f"{best[f'over_{claim.over}']:.2f} ({best['model']})")
            rows.append([claim.claim, claim.over, f"{claim.figure:.2f}", reading.name, *cells])
    return table(
        ["published", "over", "up to", "slope is of", *(f"ours, {policy}" for policy in FOUND)], rows
    )


def schedules_text(found: list[schedules.Beside]) -> str:
    rows = []
    for each in found:
        schedule = each.schedule
        rows.append([
            schedule.model, str(schedule.ranks), str(schedule.unit_elements), each.verdict,
            f"{len(schedules.theirs(schedule))}", f"{each.ours_blocks}",
            f"{schedule.iteration_s * 1e3:.3f}", f"{each.charged_s * 1e3:.3f}", f"{each.ours_s * 1e3:.3f}",
            f"{100 * (each.ours_s / schedule.iteration_s - 1):+.3f} %",
        ])  # fmt: skip
    return table(
        ["model", "ranks", "unit", "blocks", "theirs", "ours", "theirs ms", "ours as they charge",
         "ours by bytes", "difference"], rows,
    )  # fmt: skip


def units(planner: Planner, out: Path) -> tuple[list[dict], Path]:
    """What the size of partitions and units does to an iteration with 8 ranks, and its picture."""
    (line,) = (each for each in us_byte_lines() if each.ranks == 8)
    picture = out / "us_byte_units.svg"
    planner.run(
        "sweep", *(str(published_model(model).path) for model in UNIT_MODELS), "--over", "unit",
        "--from", str(UNIT_FROM), "--to", str(UNIT_TO), "--points", str(UNIT_POINTS),
        "--policy", ",".join(UNIT_POLICIES), "--startup-us", repr(line.startup_s * 1e6), "--ns-per-byte",
        repr(line.s_per_unit * 1e9), "--svg", str(picture), "--csv", str(picture.with_suffix(".csv")),
    )  # fmt: skip
    found = [
        {
            "model": row["model"], "unit_bytes": float(row["unit"]), "policy": row["policy"],
            "iteration_s": float(row["iteration_s"]), "over_wfbp": float(row["speedup_over_wfbp"]),
            "blocks": int(row["blocks"]),
        }
        for row in csv.DictReader(picture.with_suffix(".csv").read_text().splitlines())
    ]  # fmt: skip
    return found, picture


def units_text(found: list[dict]) -> str:
    rows = []
    for unit in sorted({figure["unit_bytes"] for figure in found}):
        row = [f"{unit / 1024:.0f} KiB"]
        for model in UNIT_MODELS:
            for policy in UNIT_POLICIES:
                (figure,) = _of(found, unit_bytes=unit, model=model, policy=policy)
                row.append(f"{figure['over_wfbp']:.3f} ({figure['blocks']})")
        rows.append(row)
    heads = [f"{model}, {policy}" for model in UNIT_MODELS for policy in UNIT_POLICIES]
    return (
        "8 ranks, size of a partition or unit against speed: times as fast as wfbp (blocks of an iteration)\n"
        + table(["size", *heads], rows)
    )


def pictures(planner: Planner, figures: list[dict], out: Path) -> list[Path]:
    points = [
        (figure["model"], figure["policy"], float(figure["ranks"]), figure["over_wfbp"])
        for figure in _of(figures, reading=READINGS[0].name)
    ]
    speedups = planner.curves(
        points, out / "us_byte_speedups.svg", "--title", "US-Byte's models and cost lines, simulated",
        "--x", "ranks (128: line extrapolated)", "--y", "iteration time of wfbp / of the policy",
    )  # fmt: skip
    return [speedups]


def part(planner: Planner, out: Path, _options: argparse.Namespace) -> tuple[dict, str, list[Path]]:
    """The figures, their text and the pictures."""
    figures = measure(planner)
    lines = us_byte_lines()
    found = [schedules.beside(planner, schedule, lines) for schedule in us_byte_schedules()]
    far = far_line(lines)
    sizes, sizes_picture = units(planner, out)
    text = "\n\n".join([
        "US-BYTE. Published and measured there: forward times, cost lines for 2, 4 and 8 ranks, the largest\n"
        "speed-ups. Assumed: backward takes twice as long as forward; the line for 128 ranks is a straight line\n"
        f"over the logarithm of the ranks ({far.startup_s * 1e6:.0f} us + {far.s_per_unit * 1e9:.3f} ns a unit); the"
        " slope\nis that of a byte, as the authors fit it, or of an element, as their code applies it. Simulated:\n"
        "every iteration time below.",
        times_text(figures), claims_text(figures), units_text(sizes),
        "Our us-byte, given the same units, beside the answers of the authors' code. Their code loses units where\n"
        "a block grows, charges whole units after the backward pass, and takes the empty part of a last unit off\n"
        "the block before; `ours as they charge` is our blocks by that arithmetic.",
        schedules_text(found),
    ])  # fmt: skip
    data = {"figures": figures, "units": sizes, "schedules": [dataclasses.asdict(each) for each in found]}
    return data, text, [*pictures(planner, figures, out), sizes_picture]
