"""Trains a small GPT, letter by letter, on the sources of Python's standard library.

Under torchrun, with the service running and its library built:

    export PYTHONPATH=client/python HEADRACE_SOCKET=/tmp/headrace.sock
    export HEADRACE_LIBRARY=build/release/libheadrace.so
    torchrun --nproc_per_node 2 --redirects 1 --tee 1 client/examples/gpt.py --steps 60

(--redirects and --tee are needed by torch 1.13 under Python 3.11 only.) On a machine whose two cores
had a lot else to do, rank 0 printed

    step    1  loss 5.5671
    step   20  loss 3.4622
    step   40  loss 3.1280
    step   60  loss 3.3934
    scheduled, by default: 2 ranks, 1.84 million parameters, an iteration 829.1 ms, of which 2.7 ms waiting, loss 3.3934

and with --ddp gloo the same losses, then

    DDP, gloo: 2 ranks, 1.84 million parameters, an iteration 665.4 ms, of which 41.7 ms waiting, loss 3.3934

On one node there is little to hide; a link between nodes is what the plan is for. With HEADRACE_SHRINK=1 it
goes on when ranks die, and others may join with HEADRACE_ROLE.
"""

from __future__ import annotations

import argparse
import math
import sysconfig
from pathlib import Path

try:
    import torch
    import training
    from torch.nn import functional
except ImportError as error:
    raise SystemExit(
        f"this example needs python3-torch, and client/python in PYTHONPATH: {error}"
    ) from error

CORPUS_BYTES = 2_000_000
LETTERS = 256


class Attention(torch.nn.Module):
    """Attention of each letter to those before it."""

    def __init__(self, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.heads = heads
        self.query_key_value = torch.nn.Linear(width, 3 * width)
        self.result = torch.nn.Linear(width, width)
        self.later = torch.ones(context, context).triu(1).bool()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        samples, length, width = x.shape
        parts = self.query_key_value(x).view(samples, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-2, -1) / math.sqrt(width / self.heads)
        scores = scores.masked_fill(self.later[:length, :length], -math.inf)
        mixed = functional.softmax(scores, -1) @ value
        return self.result(mixed.transpose(1, 2).reshape(samples, length, width))


class Layer(torch.nn.Module):
    """Attention, then a network for each letter; both added to what came in."""

    def __init__(self, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.before_attention = torch.nn.LayerNorm(width)
        self.attention = Attention(width, heads, context)
        self.before_network = torch.nn.LayerNorm(width)
        self.widen = torch.nn.Linear(width, 4 * width)
        self.narrow = torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.before_attention(x))
        return x + self.narrow(functional.gelu(self.widen(self.before_network(x))))


class Gpt(torch.nn.Module):
    """The table of letters is used twice: to look letters up, and to score the next one."""

    def __init__(self, layers: int, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.letters = torch.nn.Embedding(LETTERS, width)
        self.places = torch.nn.Embedding(context, width)
        self.layers = torch.nn.ModuleList(
            [Layer(width, heads, context) for _ in range(layers)]
        )
        self.last = torch.nn.LayerNorm(width)
        self.scores = torch.nn.Linear(width, LETTERS, bias=False)
        self.scores.weight = self.letters.weight
        torch.nn.init.normal_(self.letters.weight, std=0.02)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = self.letters(text) + self.places(torch.arange(text.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.scores(self.last(x))


def corpus() -> torch.Tensor:
    """Letters of the standard library's sources, in the order of their names."""
    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = b"".join(path.read_bytes() for path in sources)[:CORPUS_BYTES]
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long()


def parse() -> argparse.Namespace:
    parser = training.parse(__doc__.splitlines()[0], steps=60)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--context", type=int, default=64)
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    text = corpus()
    torch.manual_seed(arguments.seed)
    model = Gpt(arguments.layers, arguments.width, arguments.heads, arguments.context)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    length = arguments.context + 1

    def batch_of(samples: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        begins = torch.randint(
            len(text) - length, (arguments.batch, 1), generator=samples
        )
        letters = text[begins + torch.arange(length)]
        return letters[:, :-1], letters[:, 1:]

    def loss_of(scores: torch.Tensor, letters: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(scores.flatten(0, 1), letters.flatten())

    training.fit(arguments, model, optimizer, batch_of, loss_of)


if __name__ == "__main__":
    main()
