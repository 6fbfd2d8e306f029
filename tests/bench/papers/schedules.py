"""Our us-byte beside the answers of its authors' code, block by block.

Three things are told apart. Whether the units of their answer add up to the tensors: when a block grows
their code forgets the units it had before, so it sends less than there is (`missing`); that can also
happen in a trial of its search only, and then its answer is whole but another one. Whether ours, fed the
same units, sends the same blocks in the same order. And what the iteration takes: their arithmetic
charges what is left after the backward pass in whole units, and takes the empty part of a tensor's last
unit off the block before its turn (`charged_s` repeats that arithmetic on any blocks); ours charges bytes.
"""

from __future__ import annotations

import dataclasses
import math

from inputs import Line, Schedule
from model_profile import Tensor, published_model
from planner import Planner

ELEMENT_BYTES = 4
# Published times have six digits.
ROUNDING = 2e-6


@dataclasses.dataclass(frozen=True)
class Beside:
    schedule: Schedule
    missing: dict[int, int]  # units that their answer does not send, by tensor
    same_blocks: bool
    ours_blocks: int
    ours_s: float
    charged_s: float  # our blocks by their arithmetic

    @property
    def verdict(self) -> str:
        if self.missing:
            lost = sum(self.missing.values())
            return f"theirs loses {lost} unit{'s' if lost > 1 else ''} of tensor {', '.join(map(str, self.missing))}"
        return "same blocks" if self.same_blocks else "other blocks"


def theirs(schedule: Schedule) -> list[tuple[int, int]]:
    """Their blocks without those of nothing."""
    return [block for block in schedule.blocks if block[1] > 0]


def missing_units(schedule: Schedule, model: tuple[Tensor, ...]) -> dict[int, int]:
    sent = [0] * len(model)
    for tensor, units in schedule.blocks:
        sent[tensor] += units
    wanted = [math.ceil(tensor.elements / schedule.unit_elements) for tensor in model]
    return {index: want - sent[index] for index, want in enumerate(wanted) if want != sent[index]}


def charged_s(
    phase1: list[tuple[int, int]], line: Line, unit: int, model: tuple[Tensor, ...]
) -> float:
    """The iteration time of blocks by their arithmetic, which is that of blocks sent before the end of the
    backward pass and of one block with the rest of each tensor, input first, after it."""  # fmt: skip
    releases = [0.0] * len(model)
    passed = 0.0
    for index in range(len(model) - 1, -1, -1):
        passed += model[index].backward_s
        releases[index] = passed
    left = [math.ceil(tensor.elements / unit) for tensor in model]
    empty = [count * unit - tensor.elements for count, tensor in zip(left, model, strict=True)]

    def cost(units: int) -> float:
        return line.startup_s + line.s_per_unit * unit * units if units else 0.0

    def credit(tensor: int) -> float:
        return line.s_per_unit * empty[tensor] if left[tensor] == 0 else 0.0

    now = releases[-1]
    for tensor, units in phase1:
        left[tensor] -= units
        now = max(now, releases[tensor]) + cost(units) - credit(tensor)
    begins = [max(releases[0], now)]
    for index in range(1, len(model)):
        begins.append(begins[-1] + cost(left[index - 1]) - credit(index))
    forward = 0.0
    for index, tensor in enumerate(model):
        begin = begins[index] + cost(left[index]) - credit(index)
        forward = max(forward, begin) + tensor.forward_s
    return forward


def beside(planner: Planner, schedule: Schedule, lines: list[Line]) -> Beside:
    (line,) = (each for each in lines if each.ranks == schedule.ranks)
    unit = schedule.unit_elements
    profile = published_model(schedule.model)
    made = planner.simulate(
        profile.path, line.startup_s, line.s_per_unit / ELEMENT_BYTES,
        ["us-byte"], "--unit-bytes", str(unit * ELEMENT_BYTES), blocks=True,
    )["us-byte"]  # fmt: skip
    model = profile.tensors
    backward_s = sum(tensor.backward_s for tensor in model)
    ours, phase1 = [], []
    for block in made["blocks"]:
        (part,) = block["parts"]
        counted = (part["tensor"], math.ceil(part["bytes"] / ELEMENT_BYTES / unit))
        ours.append(counted)
        if block["begin_s"] < backward_s * (1 - 1e-12):
            phase1.append(counted)
    return Beside(
        schedule, missing_units(schedule, model), ours == theirs(schedule), len(ours),
        made["iteration_s"], charged_s(phase1, line, unit, model),
    )  # fmt: skip
