"""What compression is worth to a training: seconds until it has the loss that `none` reaches."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence

from picture import Curve, draw_curves

MODELS = ("gpt-small", "resnet-small")
OPTIMIZERS = ("sgd", "adamw")
# Without --codecs. The plan chooses in the last.
CODECS = ("none", "bf16", "int8", "int4", "topk", "sign", "auto:int8,bf16")
DIVERGES = ("sign", "topk", "randomk")  # under AdamW, which is refused
STEPS = {"gpt-small": 60, "resnet-small": 50}
QUICK_STEPS = 12
SMOOTHED = 8  # steps whose losses one point of a curve is the mean of
# `none` has its loss after this share of its steps, so that others have some to spare.
WITHIN = 0.8
SLACK = 0.005  # by which losses differ from step to step alone


@dataclasses.dataclass
class Run:
    """One training: the mean loss of all ranks at each step, and when the last of them knew it."""

    model: str
    optimizer: str
    codec: str
    losses: list[float]
    seconds: list[float]

    def smooth(self) -> list[float]:
        return [
            statistics.fmean(self.losses[max(0, step - SMOOTHED + 1) : step + 1])
            for step in range(len(self.losses))
        ]

    def reaches(self, loss: float) -> int | None:
        """The step at which it has that loss; None: never."""
        return next((step for step, each in enumerate(self.smooth()) if each <= loss), None)

    def target(self) -> float:
        """What others are to have: its least loss, or nearly."""
        return min(self.smooth()[: max(1, int(len(self.losses) * WITHIN))]) * (1 + SLACK)


def runs_of(codecs: Sequence[str], quick: bool) -> list[tuple[str, str, str, int]]:
    """Model, optimizer, codec and steps of all trainings, one behind the other."""
    models, optimizers = (MODELS[1:], OPTIMIZERS[:1]) if quick else (MODELS, OPTIMIZERS)
    return [
        (model, optimizer, codec, QUICK_STEPS if quick else STEPS[model])
        for model in models
        for optimizer in optimizers
        for codec in codecs
        if optimizer == "sgd" or codec not in DIVERGES
    ]


def merge(wanted: Sequence[tuple[str, str, str, int]], ranks: list[list[dict]]) -> list[Run]:
    """The curves that the ranks wrote."""
    return [
        Run(
            model, optimizer, codec,
            [statistics.fmean(each) for each in zip(*(rank[i]["losses"] for rank in ranks), strict=True)],
            [max(each) for each in zip(*(rank[i]["seconds"] for rank in ranks), strict=True)],
        )
        for i, (model, optimizer, codec, _) in enumerate(wanted)
    ]  # fmt: skip


def figures(nodes: int, rate: float, runs: Sequence[Run]) -> list[dict]:
    """A row for each training, beside `none` and bf16 with the same model and optimizer."""
    found = {(run.model, run.optimizer, run.codec): run for run in runs}
    rows = []
    for run in runs:
        none = found[run.model, run.optimizer, "none"]
        target = none.target()

        def until(codec: str, run: Run = run, target: float = target) -> float | None:
            """Seconds to the loss; None where it is not reached, or was not tried."""
            other = found.get((run.model, run.optimizer, codec))
            step = None if other is None else other.reaches(target)
            return None if step is None else other.seconds[step]

        own, bf16 = until(run.codec), until("bf16")
        step = run.reaches(target)
        rows.append(
            {
                "nodes": nodes, "rate_mbit": rate, "model": run.model, "optimizer": run.optimizer,
                "codec": run.codec, "target": target, "step": None if step is None else step + 1,
                "seconds": own, "over_none": own and own / until("none"),
                "over_bf16": own / bf16 if own and bf16 else None,
                "step_s": run.seconds[-1] / len(run.seconds), "last_loss": run.smooth()[-1],
            }
        )  # fmt: skip
    return rows


def table(rows: Sequence[dict]) -> list[tuple[str, ...]]:
    """Its head first."""

    def number(value: float | None, spec: str) -> str:
        return "-" if value is None else format(value, spec)

    head = ("nodes", "model", "optimizer", "codec", "to loss", "s", "steps")
    head += ("/ none", "/ bf16", "ms a step", "last loss")
    return [head] + [
        (
            str(row["nodes"]), row["model"], row["optimizer"], row["codec"], f"{row['target']:.3f}",
            number(row["seconds"], ".1f"), number(row["step"], "d"), number(row["over_none"], ".2f"),
            number(row["over_bf16"], ".2f"), f"{row['step_s'] * 1e3:.0f}", f"{row['last_loss']:.3f}",
        )
        for row in rows
    ]  # fmt: skip


def draw(title: str, model: str, optimizer: str, runs: Sequence[Run]) -> str:
    """The curves of one model and optimizer, as SVG."""
    curves = [
        Curve(run.codec, run.seconds, run.smooth())
        for run in runs
        if (run.model, run.optimizer) == (model, optimizer)
    ]
    return draw_curves(title, "seconds of training", f"loss, mean of {SMOOTHED} steps", curves)
