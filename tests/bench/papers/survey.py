"""The quantitative survey (Shi et al., arXiv 2005.13247): seven methods, three models, three networks.

One line (startup and cost of a byte of an all-reduce) is fitted for each network and number of GPUs from two
methods (FITTED, or others by --fit); everything else is predicted. What each method does was read in the
survey's public code:

* BSP-A2A and BSP-PS send all gradients at once after the backward pass.
* WFBP-A2A runs over Horovod 0.19, which fuses what is ready once a cycle: `horovod` with its settings then.
* MG-WFBP: `mg-wfbp`.
* ByteScheduler-A2A runs untuned over Horovod with partitions of 16 MB and a credit of four:
  `bytesched-fused`.
* The PS methods run over BytePS, whose optimizer waits for all gradients. WFBP-PS: `wfbp`. ByteScheduler-PS:
  `bytescheduler` with BytePS's partitions of 4 MB, and a barrier.

A server's line is the all-reduce's taken apart: a ring of n sends 2 (n - 1) / n bytes for each byte in
2 (n - 1) steps, a push one byte in one step. Push and pull take turns, although cards can do both at
once: all nodes send to a server at the same time, and its card receives no faster. On one node there are no
servers, and BytePS groups its calls, so PS methods are taken as WFBP-A2A there.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import transformers
from inputs import Survey
from model_profile import published_model
from planner import Planner

METHODS = (
    "BSP-A2A", "WFBP-A2A", "MG-WFBP", "ByteScheduler-A2A", "BSP-PS", "WFBP-PS", "ByteScheduler-PS",
)  # fmt: skip
FITTED = ("BSP-A2A", "WFBP-A2A")
PROFILE_OF = {"ResNet-50": "resnet50", "BERT-Base": "bert_base", "BERT-Large": "bert_large"}
GPUS_PER_NODE = 4
HOROVOD = ("--unit-bytes", str(64 << 20), "--cycle-ms", "5")  # release 0.19's defaults
A2A_CREDITS = ("--unit-bytes", "16000000", "--credits", "4")
PS_CREDITS = ("--unit-bytes", "4096000", "--credits", "4", "--barrier")
# Multiplications and additions of an image's forward pass, as torchvision has them.
RESNET50_OPERATIONS = 2 * 4.089e9
THREADS = 2
GOAL = 0.10


@dataclasses.dataclass(frozen=True)
class Variant:
    """What of the model is in use; the last has all of it."""

    name: str
    fuses: bool = True  # Horovod's cycle
    credits: bool = True  # ByteScheduler's partitions in flight share a startup, servers' have a barrier
    servers: bool = True  # a push is a step of the ring, and takes turns with the pull


FULL = Variant("all of it")
VARIANTS = (
    Variant("methods as they are named, one line", fuses=False, credits=False, servers=False),
    Variant("+ Horovod's cycle", credits=False, servers=False),
    Variant("+ ByteScheduler's credit", servers=False),
    FULL,
)


class Model:
    """Predictions of iteration times, in seconds."""

    def __init__(
        self, planner: Planner, survey: Survey, variant: Variant, fitted: tuple[str, ...]
    ) -> None:
        self.planner = planner
        self.survey = survey
        self.variant = variant
        self.fitted = fitted
        self._simulate = functools.lru_cache(None)(self._run)

    def _run(self, model: str, policy: str, startup_s: float, s_per_byte: float, *more: str) -> float:
        profile = published_model(PROFILE_OF[model])
        scale = self.survey.single_s[model] / profile.compute_s
        rows = self.planner.simulate(
            profile.path, startup_s, s_per_byte, [policy], "--scale", repr(scale), *more
        )
        return rows[policy]["iteration_s"]

    def _servers(self, line: tuple[float, float], gpus: int) -> tuple[float, float, tuple[str, ...]]:
        """The line of a push, which a pull has too, and the options that go with it."""
        route = ("--architecture", "ps", "--placement")
        if not self.variant.servers:
            return line[0], line[1] / 2, (*route, "extra")
        steps = 2 * (gpus - 1)
        return round(line[0] / steps, 9), line[1] * gpus / steps, (*route, "colocated")

    def seconds(self, method: str, model: str, gpus: int, line: tuple[float, float]) -> float:
        kind, _, architecture = method.rpartition("-")
        if architecture == "PS" and gpus <= GPUS_PER_NODE and self.variant.servers:
            kind, architecture = ("BSP" if kind == "BSP" else "WFBP"), "A2A"
        startup_s, s_per_byte, route = *line, ()
        if architecture == "PS":
            startup_s, s_per_byte, route = self._servers(line, gpus)
        policy, more = self._policy(kind, architecture)
        return self._simulate(model, policy, startup_s, s_per_byte, *more, *route)

    def _policy(self, kind: str, architecture: str) -> tuple[str, tuple[str, ...]]:
        variant = self.variant
        if kind == "BSP":
            return "bsp", ()
        if kind == "MG":
            return "mg-wfbp", ()
        if kind == "WFBP":
            return ("horovod", HOROVOD) if architecture == "A2A" and variant.fuses else ("wfbp", ())
        if not variant.credits:
            return "bytescheduler", ()
        if architecture == "A2A":
            return "bytesched-fused", A2A_CREDITS
        return "bytescheduler", PS_CREDITS

    def exact(self, model: str, gpus: int, line: tuple[float, float]) -> tuple[float, float | None]:
        """By all-reduce, and over servers where there are any."""
        a2a = self._simulate(model, "exact", *line)
        if gpus <= GPUS_PER_NODE:
            return a2a, None
        startup_s, s_per_byte, route = self._servers(line, gpus)
        return a2a, self._simulate(model, "exact", startup_s, s_per_byte, *route)


def fit(cost: Callable[[float, float], float]) -> tuple[float, float]:
    """Startup and seconds a byte of least cost: steps along either, halved when none helps."""
    place = [math.log(1e-3), math.log(1e-9)]
    steps = [1.6, 1.0]

    def line(at: list[float]) -> tuple[float, float]:
        return round(math.exp(at[0]), 9), float(f"{math.exp(at[1]):.6g}")

    least = cost(*line(place))
    for _ in range(14):
        moved = False
        for axis, sign in ((0, 1), (0, -1), (1, 1), (1, -1)):
            while True:
                trial = list(place)
                trial[axis] += sign * steps[axis]
                value = cost(*line(trial))
                if value >= least - 1e-12:
                    break
                place, least, moved = trial, value, True
        if not moved:
            steps = [step / 2 for step in steps]
    return line(place)


def _case(model: Model, network: str, gpus: int) -> dict:
    """A network and a number of GPUs: its line, and all predictions under it."""
    survey = model.survey
    names = survey.names("model")

    def measured(name: str, method: str) -> float:
        return survey.measured[network, name, gpus, method].iteration_s

    def cost(*line: float) -> float:
        return sum(
            math.log(model.seconds(method, name, gpus, line) / measured(name, method)) ** 2
            for name in names
            for method in model.fitted
        )

    line = fit(cost)
    rows = []
    for name in names:
        for method in METHODS:
            predicted = model.seconds(method, name, gpus, line)
            rows.append({
                "model": name, "method": method, "measured_s": measured(name, method),
                "predicted_s": predicted, "error": predicted / measured(name, method) - 1,
                "fitted": method in model.fitted,
            })  # fmt: skip
    return {"network": network, "gpus": gpus, "startup_s": line[0], "s_per_byte": line[1], "rows": rows}


def predict(model: Model) -> list[dict]:
    survey = model.survey
    cases = [(network, gpus) for network in survey.names("network") for gpus in survey.names("gpus")]
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(lambda case: _case(model, *case), cases))


def errors(cases: list[dict], **wanted: object) -> list[float]:
    """Errors of what was predicted and not fitted, without their signs."""
    return [
        abs(row["error"])
        for case in cases
        for row in case["rows"]
        if not row["fitted"] and all({**case, **row}[key] == value for key, value in wanted.items())
    ]


def repeated(survey: Survey) -> list[str]:
    """Measurements of two networks, on several nodes, that are nearly one."""
    found = []
    slow, fast = survey.names("network")[0], survey.names("network")[-1]
    for model in survey.names("model"):
        for method in METHODS:
            pairs = [
                survey.measured[fast, model, gpus, method].iteration_s
                / survey.measured[slow, model, gpus, method].iteration_s
                for gpus in survey.names("gpus")
                if gpus > GPUS_PER_NODE
            ]
            if method in ("BSP-PS", "WFBP-PS") and all(abs(pair - 1) < 0.025 for pair in pairs):
                found.append(f"{model} {method}")
    return found


def intensity(survey: Survey) -> dict[str, float]:
    """Floating-point operations of an iteration for each byte of gradients."""
    built = {model.shape.name.replace("-", "_"): model for model in transformers.MODELS}
    found = {}
    for name in survey.names("model"):
        profile = PROFILE_OF[name]
        batch = next(row.batch for row in survey.measured.values() if row.model == name)
        work = (
            transformers.operations(built[profile])
            if profile in built
            else 3 * RESNET50_OPERATIONS * batch
        )
        found[name] = work / published_model(profile).bytes
    return found
