"""What the survey's measurements and the predictions of them look like to a person."""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from inputs import Survey
from inputs import survey as read_survey
from planner import Planner
from report import table
from survey import (
    GOAL,
    GPUS_PER_NODE,
    METHODS,
    VARIANTS,
    Model,
    errors,
    intensity,
    predict,
    repeated,
)


def _median(values: list[float]) -> str:
    return f"{100 * statistics.median(values):.1f} %" if values else "-"


def _intensity(data: dict, name: str) -> str:
    return f"{data['flops_per_byte'][name]:.0f}"


def network_text(data: dict, survey: Survey, network: str) -> str:
    rows = []
    for name in survey.names("model"):
        for case in data["cases"]:
            if case["network"] != network:
                continue
            cells = [
                f"{row['measured_s'] * 1e3:.0f} {row['predicted_s'] * 1e3:.0f} {100 * row['error']:+.0f}%"
                for row in case["rows"]
                if row["model"] == name
            ]
            rows.append([name, _intensity(data, name), str(case["gpus"]), *cells])
    heads = [f"{method}{' (fit)' if method in data['fitted'] else ''}" for method in METHODS]
    return f"{network}: iteration in ms, measured and predicted, error\n" + table(
        ["model", "FLOPs/byte", "GPUs", *heads], rows
    )


def lines_text(data: dict) -> str:
    rows = [
        [case["network"], str(case["gpus"]), f"{case['startup_s'] * 1e3:.2f} ms",
         f"{case['s_per_byte'] * 1e9:.3f} ns"]
        for case in data["cases"]
    ]  # fmt: skip
    return "Lines as fitted\n" + table(["network", "GPUs", "startup", "a byte"], rows)


def errors_text(data: dict, survey: Survey) -> str:
    cases = data["cases"]
    by_method = [
        [method, _median(errors(cases, method=method)),
         *(_median(errors(cases, method=method, model=name)) for name in survey.names("model"))]
        for method in METHODS
        if method not in data["fitted"]
    ]  # fmt: skip
    by_variant = [[name, f"{100 * value:.1f} %"] for name, value in data["median_error_of"].items()]
    above = [name.rsplit(" ", 1) for name in data["repeated"]]
    last = survey.names("network")[-1]
    kept = [
        abs(row["error"])
        for case in cases
        for row in case["rows"]
        if not row["fitted"] and not (case["network"] == last and [row["model"], row["method"]] in above)
    ]
    return "\n\n".join([
        f"Median error of {len(errors(cases))} predictions: {100 * data['median_error']:.1f} %"
        f" (wanted: at most {100 * GOAL:.0f} %)",
        table(["method", "median error", *survey.names("model")], by_method),
        "What each step of the model brings\n" + table(["model", "median error"], by_variant),
        f"Not explained: on {last} these rows repeat those of {survey.names('network')[0]} within 2.5 % although\n"
        f"other methods there are faster: {', '.join(data['repeated'])}. Without them: {_median(kept)}.",
    ])  # fmt: skip


def _exact_ms(case: dict, name: str) -> list[float]:
    return [seconds * 1e3 for seconds in case["exact_s"][name] if seconds is not None]


def exact_text(data: dict, survey: Survey) -> str:
    rows = []
    for case in data["cases"]:
        for name in survey.names("model"):
            found = {row["method"]: row for row in case["rows"] if row["model"] == name}
            best = min(found.values(), key=lambda row: row["measured_s"])
            foreseen = min(found.values(), key=lambda row: row["predicted_s"])
            exact = _exact_ms(case, name)
            rows.append([
                case["network"], str(case["gpus"]), name, _intensity(data, name),
                f"{survey.single_s[name] * 1e3:.0f}",
                f"{best['measured_s'] * 1e3:.0f} ({best['method']})",
                f"{foreseen['predicted_s'] * 1e3:.0f} ({foreseen['method']})", f"{exact[0]:.0f}",
                f"{exact[1]:.0f}" if len(exact) > 1 else "-",
                f"{foreseen['predicted_s'] * 1e3 / min(exact):.2f}",
            ])  # fmt: skip
    heads = ["network", "GPUs", "model", "FLOPs/byte", "1 GPU", "best measured", "best predicted",
             "exact, all-reduce", "exact, servers", "best predicted / exact"]  # fmt: skip
    return "What exact would give under the same lines: iteration in ms, simulated\n" + table(heads, rows)


def text(data: dict, survey: Survey) -> str:
    head = (
        "QUANTITATIVE SURVEY. Measured there: every throughput. Fitted: one line for each network and number of\n"
        f"GPUs, to {' and '.join(data['fitted'])} of all models. Simulated: the other five. Assumed: what survey.py\n"
        "says of methods and servers; ResNet-50's times are US-Byte's, scaled; BERT's go by floating-point\n"
        "operations, scaled; FLOPs/byte is operations of an iteration for each byte of gradients, counted, not\n"
        "measured."
    )
    networks = [network_text(data, survey, network) for network in survey.names("network")]
    return "\n\n".join(
        [head, *networks, lines_text(data), errors_text(data, survey), exact_text(data, survey)]
    )


def pictures(planner: Planner, data: dict, survey: Survey, out: Path) -> list[Path]:
    points = [
        (case["network"], row["method"], row["measured_s"] * 1e3, row["predicted_s"] * 1e3)
        for case in data["cases"]
        for row in case["rows"]
        if not row["fitted"]
    ]
    scatter = planner.curves(
        points, out / "survey_predicted.svg", "--title", "Iterations of the survey, ms", "--x", "measured",
        "--y", "predicted", "--marks", "--log-y", "--diagonal",
    )  # fmt: skip
    shares = []
    for name in survey.names("model"):
        for case in data["cases"]:
            single = 100 * survey.single_s[name]
            found = [row["measured_s"] for row in case["rows"] if row["model"] == name]
            panel, gpus = f"{name}: {case['network']}", float(case["gpus"])
            shares.append((panel, "best measured", gpus, single / min(found)))
            shares.append((panel, "worst measured", gpus, single / max(found)))
            exact = min(_exact_ms(case, name)) / 1e3
            shares.append((panel, "exact (simulated)", gpus, single / exact))
    scaling = planner.curves(
        shares, out / "survey_scaling.svg", "--title", "Throughput of a GPU among several, % of one alone",
        "--x", f"GPUs ({GPUS_PER_NODE} to a node)", "--y", "%",
    )  # fmt: skip
    return [scatter, scaling]


def part(planner: Planner, out: Path, options: argparse.Namespace) -> tuple[dict, str, list[Path]]:
    """The figures, their text and the pictures."""
    survey = read_survey(METHODS)
    fitted = tuple(options.fit)
    models = [
        Model(planner, survey, variant, fitted)
        for variant in (VARIANTS[-1:] if options.quick else VARIANTS)
    ]
    variants = [(model.variant, predict(model)) for model in models]
    cases, model = variants[-1][1], models[-1]
    for case in cases:
        line = (case["startup_s"], case["s_per_byte"])
        case["exact_s"] = {
            name: model.exact(name, case["gpus"], line) for name in survey.names("model")
        }
    data = {
        "fitted": fitted,
        "cases": cases,
        "median_error": statistics.median(errors(cases)),
        "median_error_of": {variant.name: statistics.median(errors(found)) for variant, found in variants},
        "flops_per_byte": intensity(survey),
        "repeated": repeated(survey),
    }
    return data, text(data, survey), pictures(planner, data, survey, out)
