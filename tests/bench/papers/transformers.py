#!/usr/bin/python3
"""Writes the profiles of BERT-Base, BERT-Large and GPT-2 into client/profiles/published.

Sizes are the models' own. An iteration takes what the quantitative survey (arXiv 2005.13247) measured on one
GPU; for GPT-2, which it has not, as long as its floating-point operations take at BERT-Base's rate. How the
time is divided was assumed: by floating-point operations, a third forward and two thirds backward. The time
of a layer stands at its last parameter, as the recorder has it (headrace.profile).
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from model_profile import PUBLISHED_PROFILES


@dataclasses.dataclass(frozen=True)
class Shape:
    name: str
    width: int
    layers: int
    vocabulary: int
    positions: int
    batch: int
    tokens: int  # of a sequence


BERT_BASE = Shape("bert-base", 768, 12, 30522, 512, 64, 64)
BERT_LARGE = Shape("bert-large", 1024, 24, 30522, 512, 8, 64)
GPT2 = Shape("gpt2", 768, 12, 50257, 1024, 64, 64)
# The survey's, on one GPU.
SAMPLES_PER_S = {"bert-base": 212.8, "bert-large": 49.0}
SURVEY = "quantitative survey, arXiv 2005.13247, github.com/HKBU-HPML/ddl-benchmarks, results of 2020-05-29"

Tensor = tuple[str, int, float]  # name, elements, floating-point operations of its layer's forward pass


class Model:
    """The tensors of a model in forward order."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.rows = shape.batch * shape.tokens
        self.tensors: list[Tensor] = []

    def linear(self, name: str, inputs: int, outputs: int, rows: int, more: float = 0.0) -> None:
        self.tensors.append((f"{name}.weight", inputs * outputs, 0.0))
        self.tensors.append((f"{name}.bias", outputs, 2.0 * rows * inputs * outputs + more))

    def norm(self, name: str) -> None:
        for kind in ("weight", "bias"):
            self.tensors.append((f"{name}.{kind}", self.shape.width, 0.0))

    @property
    def attention(self) -> float:
        """FLOPs of a layer's attention scores and of the values that they weigh."""
        return 4.0 * self.rows * self.shape.tokens * self.shape.width

    @property
    def decoder(self) -> float:
        """FLOPs of the output layer, whose weight is the word embedding's."""
        return 2.0 * self.rows * self.shape.width * self.shape.vocabulary


def bert(shape: Shape) -> Model:
    """With its pre-training heads, as in headrace.profile."""
    model, width = Model(shape), shape.width
    for name, size in (("word", shape.vocabulary), ("position", shape.positions), ("kind", 2)):
        model.tensors.append((f"{name}.weight", size * width, 0.0))
    model.norm("norm")
    for layer in range(shape.layers):
        head = f"layers.{layer}"
        for name in ("query", "key", "value"):
            model.linear(f"{head}.{name}", width, width, model.rows)
        model.linear(f"{head}.output", width, width, model.rows, model.attention)
        model.norm(f"{head}.norm1")
        model.linear(f"{head}.up", width, 4 * width, model.rows)
        model.linear(f"{head}.down", 4 * width, width, model.rows)
        model.norm(f"{head}.norm2")
    model.linear("pooler", width, width, shape.batch)
    model.linear("transform", width, width, model.rows)
    model.norm("transform_norm")
    model.tensors.append(("decoder.bias", shape.vocabulary, model.decoder))
    model.linear("next_sentence", width, 2, shape.batch)
    return model


def gpt2(shape: Shape) -> Model:
    """Radford et al., 2019, the smallest; its output layer has no parameter of its own."""
    model, width = Model(shape), shape.width
    model.tensors.append(("wte.weight", shape.vocabulary * width, 0.0))
    model.tensors.append(("wpe.weight", shape.positions * width, 0.0))
    for layer in range(shape.layers):
        head = f"h.{layer}"
        model.norm(f"{head}.ln_1")
        model.linear(f"{head}.attn.c_attn", width, 3 * width, model.rows)
        model.linear(f"{head}.attn.c_proj", width, width, model.rows, model.attention)
        model.norm(f"{head}.ln_2")
        model.linear(f"{head}.mlp.c_fc", width, 4 * width, model.rows)
        model.linear(f"{head}.mlp.c_proj", 4 * width, width, model.rows)
    model.norm("ln_f")
    name, elements, _ = model.tensors[-1]
    model.tensors[-1] = (name, elements, model.decoder)
    return model


def operations(model: Model) -> float:
    """Floating-point operations of an iteration, forward and backward."""
    return 3.0 * sum(tensor[2] for tensor in model.tensors)


MODELS = (bert(BERT_BASE), bert(BERT_LARGE), gpt2(GPT2))


def iteration_s(model: Model) -> float:
    shape = model.shape
    if shape.name in SAMPLES_PER_S:
        return shape.batch / SAMPLES_PER_S[shape.name]
    base = MODELS[0]
    return iteration_s(base) * operations(model) / operations(base)


def profile(model: Model) -> str:
    shape = model.shape
    total = sum(tensor[2] for tensor in model.tensors)
    rows = []
    for name, elements, work in model.tensors:
        forward = float(f"{iteration_s(model) / 3 * work / total:.6g}")
        rows.append(
            f'  {{"name": {json.dumps(name)}, "elements": {elements}, '
            f'"backward_s": {float(f"{2 * forward:.6g}")}, "forward_s": {forward}}}'
        )
    source = f"scaled to the single-GPU time of the {SURVEY}"
    if shape.name not in SAMPLES_PER_S:
        source = f"no published time: its operations at BERT-Base's rate in the {SURVEY}"
    assumed = "each layer's share of the time is that of its floating-point operations; backward is twice forward"
    head = {
        "format": "headrace-profile/1", "model": shape.name, "dtype": "float32", "batch": shape.batch,
        "tokens": shape.tokens, "source": source, "assumed": assumed,
    }  # fmt: skip
    return json.dumps(head)[:-1] + ',\n "tensors": [\n' + ",\n".join(rows) + "\n ]}\n"


def path_of(model: Model) -> Path:
    return PUBLISHED_PROFILES / f"{model.shape.name.replace('-', '_')}.json"


def main() -> int:
    for model in MODELS:
        path_of(model).write_text(profile(model))
        print(f"written: {path_of(model)}: {sum(tensor[1] for tensor in model.tensors)} parameters")
    return 0


if __name__ == "__main__":
    sys.exit(main())
