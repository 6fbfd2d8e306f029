#!/usr/bin/python3
"""Writes the traces of client/profiles/traces: what the ranks of mixed training post, and when.

Each is one iteration of two ranks in the form of client/profiles/README.md. Sizes and times are those of
published/bert_base.json, in half precision where training would have it; what each kind of parallelism does
with them is written down here, as the papers that are named have it. Nothing of it was recorded.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TRACES = HERE.parents[1] / "client" / "profiles" / "traces"
PROFILE = HERE.parents[1] / "client" / "profiles" / "published" / "bert_base.json"
MICROBATCHES = 4
# A layer's input: a batch of 64 sequences of 64 tokens, 768 wide, two bytes each.
ACTIVATION_BYTES = 64 * 64 * 768 * 2

Step = dict[str, Any]


class Layer:
    """Tensors that are computed, gathered and summed together."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.elements = 0
        self.forward_s = 0.0
        self.backward_s = 0.0


def layers() -> list[Layer]:
    """The embeddings, each layer of the encoder, and the heads, in forward order."""
    found: dict[str, Layer] = {}
    for tensor in json.loads(PROFILE.read_text())["tensors"]:
        parts = tensor["name"].split(".")
        name = next((f"layer{part}" for part in parts if part.isdigit()), parts[0])
        layer = found.setdefault(name, Layer(name))
        layer.elements += tensor["elements"]
        layer.forward_s += tensor["forward_s"]
        layer.backward_s += tensor["backward_s"]
    return list(found.values())


def compute(seconds: float) -> Step:
    return {"compute_s": round(seconds, 6)}


def post(kind: str, name: str, size: int, **more: int) -> Step:
    return {"post": kind, "name": name, "bytes": size, **more}


def wait(name: str) -> Step:
    return {"wait": name}


def fsdp() -> dict[str, Any]:
    """FSDP, two microbatches: parameters are gathered a layer ahead, gradients scattered behind."""
    steps: list[Step] = []
    model = layers()
    for micro in range(2):
        share = 0.5

        def gather(layer: Layer, way: str, micro: int = micro) -> tuple[str, Step]:
            name = f"{layer.name}.parameters.{way}{micro}"
            return name, post("all_gather", name, 2 * layer.elements)

        ahead, step = gather(model[0], "forward")
        steps.append(step)
        for index, layer in enumerate(model):
            here = ahead
            if index + 1 < len(model):
                ahead, step = gather(model[index + 1], "forward")
                steps.append(step)
            steps += [wait(here), compute(share * layer.forward_s)]
        ahead = ""  # the last layer's parameters are still there
        for index in range(len(model) - 1, -1, -1):
            layer = model[index]
            here = ahead
            if index > 0:
                ahead, step = gather(model[index - 1], "backward")
                steps.append(step)
            if here:
                steps.append(wait(here))
            steps.append(compute(share * layer.backward_s))
            steps.append(post("reduce_scatter", f"{layer.name}.gradients{micro}", 2 * layer.elements))
    steps += [wait(step["name"]) for step in steps if step.get("post") == "reduce_scatter"]
    return {
        "name": "fsdp",
        "assumed": "FSDP2 with one layer of prefetch, parameters are freed after forward, two microbatches whose "
        "gradients are each scattered; bf16",
        "programs": [steps],
    }


def experts() -> dict[str, Any]:
    """A mixture of experts: two all-to-alls a layer each way, dense gradients are summed behind."""
    steps: list[Step] = []
    model = layers()

    def exchange(layer: Layer, way: str) -> list[Step]:
        name = f"{layer.name}.{way}"
        return [post("all_to_all", name, ACTIVATION_BYTES), wait(name)]

    for layer in model:
        inside = layer.name.startswith("layer")
        steps.append(compute(layer.forward_s / 2))
        if inside:
            steps += exchange(layer, "dispatch")
        steps.append(compute(layer.forward_s / 2))
        if inside:
            steps += exchange(layer, "combine")
    for layer in reversed(model):
        inside = layer.name.startswith("layer")
        if inside:
            steps += exchange(layer, "combine_gradient")
        steps.append(compute(layer.backward_s / 2))
        if inside:
            steps += exchange(layer, "dispatch_gradient")
        steps.append(compute(layer.backward_s / 2))
        # Attention is a third of a layer's parameters; the experts' are nobody else's.
        size = 2 * layer.elements // (3 if inside else 1)
        steps.append(post("all_reduce", f"{layer.name}.dense", size))
    steps += [wait(step["name"]) for step in steps if step.get("post") == "all_reduce"]
    return {
        "name": "experts",
        "assumed": "every layer's feed-forward part is a mixture of experts, one expert a rank, every token goes to "
        "one of two (arXiv 2006.16668); the rest is data parallel; bf16",
        "programs": [steps],
    }


def pipeline() -> dict[str, Any]:
    """Two stages, two directions: each rank has the first stage of one pipeline and the last of the other."""
    model = layers()
    half = len(model) // 2
    stages = (model[:half], model[half:])
    forward = [sum(layer.forward_s for layer in stage) / MICROBATCHES for stage in stages]
    backward = [sum(layer.backward_s for layer in stage) / MICROBATCHES for stage in stages]
    size = ACTIVATION_BYTES // MICROBATCHES
    programs = []
    for rank in range(2):
        other = 1 - rank
        steps: list[Step] = []
        ahead: list[Step] = []  # every message has memory of its own from the start

        def send(what: str, micro: int, other: int = other, steps: list[Step] = steps) -> None:
            steps.append(post("send", f"sent.{what}{micro}", size, rank=other, tag=micro))

        def receive(what: str, micro: int, other: int = other, steps: list[Step] = steps, ahead=ahead) -> None:
            name = f"received.{what}{micro}"
            ahead.append(post("receive", name, size, rank=other, tag=micro))
            steps.append(wait(name))

        def pass_forward(micro: int, stage: int, steps: list[Step] = steps, send=send, receive=receive) -> None:
            if stage == 1:
                receive("activation", micro)
            steps.append(compute(forward[stage]))
            if stage == 0:
                send("activation", micro)

        def pass_backward(
            micro: int, stage: int, turn: int, steps: list[Step] = steps, send=send, receive=receive
        ) -> None:
            if stage == 0:
                receive("gradient", 100 + micro)
            steps.append(compute(backward[stage]))
            if stage == 1:
                send("gradient", 100 + micro)
            for layer in reversed(stages[stage]):
                steps.append(post("reduce_scatter", f"{layer.name}.gradients{turn}", 2 * layer.elements))

        # Microbatches of the own pipeline are even here: rank 0's 0 and 2, rank 1's 1 and 3.
        mine = [micro for micro in range(MICROBATCHES) if micro % 2 == rank]
        theirs = [micro for micro in range(MICROBATCHES) if micro % 2 != rank]
        for turn, (own, foreign) in enumerate(zip(mine, theirs, strict=True)):
            pass_forward(own, 0)
            pass_forward(foreign, 1)
            pass_backward(foreign, 1, turn)
        for turn, own in enumerate(mine):
            pass_backward(own, 0, turn)
        steps += [wait(step["name"]) for step in steps if step.get("post") in ("send", "reduce_scatter")]
        programs.append(ahead + steps)
    return {
        "name": "pipeline",
        "assumed": f"{MICROBATCHES} microbatches in a pipeline of two directions (Chimera, SC 2021), so "
        "both ranks have each stage; its gradients are scattered after every microbatch, as with ZeRO-2; bf16",
        "programs": programs,
    }


def text_of(trace: dict[str, Any]) -> str:
    """JSON with a line for each step."""
    programs = ["[\n   " + ",\n   ".join(map(json.dumps, steps)) + "]" for steps in trace["programs"]]
    head = ",\n".join(f" {json.dumps(key)}: {json.dumps(trace[key])}" for key in trace if key != "programs")
    return "{\n" + head + ',\n "programs": [\n  ' + ",\n  ".join(programs) + "]}\n"


def main() -> int:
    TRACES.mkdir(exist_ok=True)
    for trace in (fsdp(), pipeline(), experts()):
        whole = {
            "format": "headrace-trace/1",
            "model": "bert-base",
            "source": "times and sizes of client/profiles/published/bert_base.json",
            "world_size": 2,
            **trace,
        }
        (TRACES / f"{trace['name']}.json").write_text(text_of(whole))
        print(TRACES / f"{trace['name']}.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
