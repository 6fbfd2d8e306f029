"""Record a profile of a real PyTorch model: when each gradient is ready, how long each layer runs.

    python -m headrace.profile resnet50 --batch 32 --out resnet50.json

MODEL is a name from torchvision.models, or `bert-base` (a transformer of BERT-Base's exact
parameter sizes, built below). The file that comes out is what `headrace-plan` and the service read:
tensors in forward order, times in seconds.

How it is measured. A training iteration runs forward, loss and backward with hooks:

* A gradient is ready when autograd has accumulated it, seen by a hook on the parameter's
  AccumulateGrad node. In the file the release of a tensor is the sum of `backward_s` from the last
  tensor to it, so a gradient that becomes ready before one behind it in forward order counts as
  ready together with that one.
* A layer is a module that owns parameters; it lasts from its first call to the first call of the
  next such module, so what stands between (pooling, activations) is counted. Its time stands at
  its last parameter: all its parameters are needed before any of it can run. Parameters of modules
  that are never called themselves belong to the nearest enclosing module that is.

Each time is the median over the measured iterations. Nothing here needs the client library.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace import needs

try:
    import torch
    from torch import nn
except ImportError as error:
    text = needs.sentence("headrace.profile", error)
    if __name__ == "__main__":
        sys.exit(text)
    raise ImportError(text, name=error.name) from error

FORMAT = "headrace-profile/1"


class Clock:
    """Marks moments of one iteration: CUDA events on a GPU, a clock of the host elsewhere.

    `processor` counts the process's processor time instead of time: on a busy machine, with one
    thread, that is how long the iteration would take if the machine were idle.
    """

    def __init__(self, device: torch.device, processor: bool = False) -> None:
        self._cuda = device.type == "cuda"
        self._now = time.process_time if processor else time.perf_counter

    def mark(self) -> Any:
        if not self._cuda:
            return self._now()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, begin: Any, end: Any) -> float:
        """Seconds between two marks; on a GPU the caller has synchronised after the last one."""
        return begin.elapsed_time(end) / 1e3 if self._cuda else end - begin

    def settle(self) -> None:
        if self._cuda:
            torch.cuda.synchronize()


@dataclass
class Iteration:
    """Marks of one iteration, by parameter name and by module name."""

    forward: Any
    layers: dict[str, Any]
    forward_end: Any
    backward: Any
    gradients: dict[str, Any]


class Recorder:
    """Hooks a model and runs iterations; `close` takes the hooks away again.

    `step` computes the loss of one batch; it is called once per iteration and must touch the model
    only through its forward. Not thread-safe.
    """

    def __init__(
        self, model: nn.Module, step: Callable[[], torch.Tensor], clock: Clock
    ) -> None:
        self._model = model
        self._step = step
        self._clock = clock
        self._layers: dict[str, Any] = {}
        self._gradients: dict[str, Any] = {}
        self._handles: list[Any] = []
        self._nodes: list[Any] = []  # autograd keeps no owner for a hooked node
        self.parameters = {
            name: parameter
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        }
        owners = {name.rpartition(".")[0] for name in self.parameters}
        for name, module in model.named_modules():
            encloses = any(
                owner == name or owner.startswith(name + ".") for owner in owners
            )
            if name == "" or encloses:
                self._handles.append(
                    module.register_forward_pre_hook(self._layer_hook(name))
                )
        for name, parameter in self.parameters.items():
            node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
            self._handles.append(node.register_hook(self._gradient_hook(name)))
            self._nodes.append(node)

    def _layer_hook(self, name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, _inputs: Any) -> None:
            if name not in self._layers:
                self._layers[name] = self._clock.mark()

        return hook

    def _gradient_hook(self, name: str) -> Callable[..., None]:
        def hook(*_gradients: Any) -> None:
            self._gradients[name] = self._clock.mark()

        return hook

    def run(self) -> Iteration:
        """Runs one iteration and returns its marks."""
        self._layers, self._gradients = {}, {}
        self._model.zero_grad(set_to_none=True)
        self._clock.settle()
        forward = self._clock.mark()
        loss = self._step()
        forward_end = self._clock.mark()
        backward = self._clock.mark()
        loss.backward()
        self._clock.settle()
        return Iteration(forward, self._layers, forward_end, backward, self._gradients)

    def seconds(self, begin: Any, end: Any) -> float:
        return self._clock.seconds(begin, end)

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._nodes.clear()


def _owner(parameter: str, called: dict[str, float]) -> str:
    """The nearest module around a parameter that was called."""
    owner = parameter.rpartition(".")[0]
    while owner and owner not in called:
        owner = owner.rpartition(".")[0]
    return owner


def _medians(marks: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(mark[name] for mark in marks) for name in marks[0]}


def _forward_times(
    order: list[str], owners: dict[str, str], begins: dict[str, float], end: float
) -> dict[str, float]:
    """The time of each layer, at its last parameter in forward order."""
    layers = list(dict.fromkeys(owners[name] for name in order))
    times = dict.fromkeys(order, 0.0)
    for index, layer in enumerate(layers):
        begin = 0.0 if index == 0 else begins[layer]
        until = end if index + 1 == len(layers) else begins[layers[index + 1]]
        last = [name for name in order if owners[name] == layer][-1]
        times[last] = max(0.0, until - begin)
    return times


def _backward_times(order: list[str], released: dict[str, float]) -> dict[str, float]:
    """What each tensor adds to the release before it, going from the last tensor to the first."""
    times = {}
    latest = 0.0
    for name in reversed(order):
        release = max(latest, released[name])
        times[name] = release - latest
        latest = release
    return times


def record(
    model: nn.Module,
    step: Callable[[], torch.Tensor],
    *,
    name: str,
    iterations: int = 10,
    warmup: int = 3,
    processor: bool = False,
) -> dict[str, Any]:
    """Returns the profile of `model` as the JSON form's dictionary.

    `step` runs forward and loss on one batch. `processor` counts processor time (see Clock). The model
    stays as it was, but for its gradients. Parameters that get no gradient are an error: the plan must
    know every gradient's release.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise ValueError("the model has no parameters that need gradients")
    if len({p.dtype for p in parameters}) != 1:
        raise ValueError("the parameters have different element types")
    recorder = Recorder(model, step, Clock(parameters[0].device, processor))
    try:
        for _ in range(warmup):
            recorder.run()
        runs = [recorder.run() for _ in range(iterations)]
    finally:
        recorder.close()
    missing = [p for p in recorder.parameters if p not in runs[0].gradients]
    if missing:
        raise ValueError(f"no gradient for {missing[0]} (and {len(missing) - 1} more)")
    begins = _medians(
        [
            {n: recorder.seconds(run.forward, m) for n, m in run.layers.items()}
            for run in runs
        ]
    )
    released = _medians(
        [
            {n: recorder.seconds(run.backward, m) for n, m in run.gradients.items()}
            for run in runs
        ]
    )
    forward_s = statistics.median(
        recorder.seconds(run.forward, run.forward_end) for run in runs
    )
    owners = {p: _owner(p, begins) for p in recorder.parameters}
    # A stable sort: parameters of one layer keep the order in which the layer registered them.
    order = sorted(recorder.parameters, key=lambda p: begins[owners[p]])
    backward = _backward_times(order, released)
    forward = _forward_times(order, owners, begins, forward_s)
    return {
        "format": FORMAT,
        "model": name,
        "dtype": str(parameters[0].dtype).removeprefix("torch."),
        "tensors": [
            {
                "name": p,
                "elements": recorder.parameters[p].numel(),
                "backward_s": round(backward[p], 9),
                "forward_s": round(forward[p], 9),
            }
            for p in order
        ],
    }


class BertBase(nn.Module):
    """BERT-Base with its pre-training heads, parameter by parameter (Devlin et al., NAACL 2019).

    110,106,428 parameters in 206 tensors. The decoder shares the word embedding's weight, as there.
    """

    VOCABULARY, WIDTH, LAYERS, HEADS, INNER, POSITIONS = 30522, 768, 12, 12, 3072, 512

    class Layer(nn.Module):
        def __init__(self, width: int, heads: int, inner: int) -> None:
            super().__init__()
            self.heads = heads
            self.query = nn.Linear(width, width)
            self.key = nn.Linear(width, width)
            self.value = nn.Linear(width, width)
            self.output = nn.Linear(width, width)
            self.norm1 = nn.LayerNorm(width)
            self.up = nn.Linear(width, inner)
            self.down = nn.Linear(inner, width)
            self.norm2 = nn.LayerNorm(width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            def split(y: torch.Tensor) -> torch.Tensor:
                return y.unflatten(-1, (self.heads, -1)).transpose(1, 2)

            query, key, value = (
                split(self.query(x)),
                split(self.key(x)),
                split(self.value(x)),
            )
            scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
            mixed = (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)
            x = self.norm1(x + self.output(mixed))
            return self.norm2(x + self.down(nn.functional.gelu(self.up(x))))

    def __init__(self) -> None:
        super().__init__()
        self.word = nn.Embedding(self.VOCABULARY, self.WIDTH)
        self.position = nn.Embedding(self.POSITIONS, self.WIDTH)
        self.kind = nn.Embedding(2, self.WIDTH)
        self.norm = nn.LayerNorm(self.WIDTH)
        self.layers = nn.Sequential(
            *(
                self.Layer(self.WIDTH, self.HEADS, self.INNER)
                for _ in range(self.LAYERS)
            )
        )
        self.pooler = nn.Linear(self.WIDTH, self.WIDTH)
        self.transform = nn.Linear(self.WIDTH, self.WIDTH)
        self.transform_norm = nn.LayerNorm(self.WIDTH)
        self.decoder = BertBase.Decoder(self.VOCABULARY)
        self.next_sentence = nn.Linear(self.WIDTH, 2)

    class Decoder(nn.Module):
        """The output layer; its weight is the word embedding's."""

        def __init__(self, vocabulary: int) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.zeros(vocabulary))

        def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return nn.functional.linear(x, weight, self.bias)

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = (
            self.word(tokens)
            + self.position(places)
            + self.kind(torch.zeros_like(tokens))
        )
        x = self.layers(self.norm(x))
        pooled = torch.tanh(self.pooler(x[:, 0]))
        hidden = self.transform_norm(nn.functional.gelu(self.transform(x)))
        return self.decoder(hidden, self.word.weight), self.next_sentence(pooled)


def _transformer(
    batch: int, tokens_count: int, device: torch.device
) -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    model = BertBase().to(device)
    tokens = torch.randint(BertBase.VOCABULARY, (batch, tokens_count), device=device)
    follows = torch.randint(2, (batch,), device=device)

    def step() -> torch.Tensor:
        words, sentences = model(tokens)
        loss = nn.functional.cross_entropy(words.flatten(0, 1), tokens.flatten())
        return loss + nn.functional.cross_entropy(sentences, follows)

    return model, step


def _vision(
    name: str, batch: int, device: torch.device
) -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    models = importlib.import_module("torchvision.models")
    make = getattr(models, name, None)
    if not callable(make) or name.startswith("_") or not name.islower():
        raise ValueError(f"torchvision.models has no model {name!r}")
    model = make(weights=None).to(device)
    side = 299 if name == "inception_v3" else 224
    images = torch.randn(batch, 3, side, side, device=device)
    labels = torch.randint(1000, (batch,), device=device)

    def step() -> torch.Tensor:
        out = model(images)
        # Models with auxiliary heads answer with a named tuple; all heads take part in training.
        outs = out if isinstance(out, tuple) else (out,)
        return sum(
            nn.functional.cross_entropy(o, labels) for o in outs if o is not None
        )

    return model, step


def machine(device: torch.device) -> str:
    """One line on where a profile comes from."""
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    processor = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            processor = next(
                line.partition(":")[2].strip()
                for line in lines
                if line.startswith("model name")
            )
    except (OSError, StopIteration):
        pass  # no /proc: the platform's own word stays
    threads = torch.get_num_threads()
    cores = os.cpu_count()
    return f"{processor}, {threads} of {cores} cores, torch {torch.__version__}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m headrace.profile", description=__doc__.split("\n")[0]
    )
    parser.add_argument("model", help="a name from torchvision.models, or bert-base")
    parser.add_argument("--batch", type=int, default=8, help="samples per iteration")
    parser.add_argument(
        "--tokens", type=int, default=128, help="sequence length of bert-base"
    )
    parser.add_argument(
        "--iterations", type=int, default=10, help="measured iterations"
    )
    parser.add_argument("--warmup", type=int, default=3, help="iterations before those")
    parser.add_argument(
        "--device", default="cuda" if torch.cuda.is_available() else "cpu"
    )
    parser.add_argument(
        "--clock",
        choices=("wall", "processor"),
        default="wall",
        help="processor: count processor time, for one thread on a busy machine without a GPU",
    )
    parser.add_argument("--out", help="file to write; standard output if absent")
    options = parser.parse_args(arguments)
    if min(options.batch, options.tokens, options.iterations) < 1 or options.warmup < 0:
        parser.error("counts must be positive")
    device = torch.device(options.device)
    torch.manual_seed(0)
    try:
        if options.model == "bert-base":
            model, step = _transformer(options.batch, options.tokens, device)
        else:
            model, step = _vision(options.model, options.batch, device)
        model.train()
        profile = record(
            model,
            step,
            name=options.model,
            iterations=options.iterations,
            warmup=options.warmup,
            processor=options.clock == "processor",
        )
    except ValueError as error:
        parser.error(str(error))
    except ImportError as error:
        parser.exit(1, needs.sentence(parser.prog, error) + "\n")
    profile["machine"] = machine(device)
    profile["batch"] = options.batch
    profile["iterations"] = options.iterations
    profile["clock"] = options.clock
    text = _dump(profile)
    if options.out is None:
        sys.stdout.write(text)
    else:
        with open(options.out, "w", encoding="utf-8") as file:
            file.write(text)
    return 0


def _dump(profile: dict[str, Any]) -> str:
    """JSON with one tensor a line, so that an error's line number points at a tensor."""
    head = {key: value for key, value in profile.items() if key != "tensors"}
    rows = ",\n".join("  " + json.dumps(tensor) for tensor in profile["tensors"])
    return json.dumps(head)[:-1] + ',\n "tensors": [\n' + rows + "\n]}\n"


if __name__ == "__main__":
    sys.exit(main())
