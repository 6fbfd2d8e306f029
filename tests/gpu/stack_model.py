"""The model that stacks.py trains, its samples, and what a way to train it is made of."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
from collections.abc import Callable

import torch
from torch.nn import functional
from torch_device import REHEARSAL

RANKS = 2
BLOCKS, WIDTH, HEAD, WORDS, LENGTH, BATCH = (2, 32, 8, 64, 16, 2) if REHEARSAL else (4, 512, 64, 4096, 128, 8)
STEPS, WARM_UP = (5, 3) if REHEARSAL else (16, 8)


@dataclasses.dataclass
class Training:
    """``step`` is one iteration; ``model`` has the parameters that are compared at the end."""

    step: Callable[[int], object]
    model: torch.nn.Module
    finish: Callable[[], object] = lambda: None


@dataclasses.dataclass(frozen=True)
class Stack:
    """One way to train: ``make(on)`` on a rank whose process group is there.

    ``peer`` makes what it is compared with, over the other backend: the same where it is None.
    ``exact``: the bits must be equal. ``lack`` says what is missing for it here; empty: nothing is.
    """

    title: str
    make: Callable[[torch.device], Training]
    peer: Callable[[torch.device], Training] | None = None
    exact: bool = True
    lack: Callable[[], str] = lambda: ""


def lack_of(module: str, *names: str) -> Callable[[], str]:
    """Says what of a module is not there."""

    def lack() -> str:
        try:
            found = importlib.import_module(module)
        except (ImportError, ValueError):  # torch 1.13's FSDP raises the second under Python 3.11
            return f"torch {torch.__version__}: {module} does not import"
        missing = [name for name in names if not hasattr(found, name)]
        return f"torch {torch.__version__}: {module} has no {missing[0]}" if missing else ""

    return lack


def plain_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, is_causal: bool) -> torch.Tensor:
    """What torch 2.0 brought as scaled_dot_product_attention."""
    scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
    if is_causal:
        hidden = torch.ones_like(scores, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
    return scores.softmax(-1) @ value


attention = getattr(functional, "scaled_dot_product_attention", plain_attention)


class Block(torch.nn.Module):
    """A transformer's layer, whose linear parts can be split among ranks: heads are counted by what is there."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.out = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.wide, self.narrow = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        query, key, value = (
            part(y).unflatten(-1, (-1, HEAD)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        x = x + self.out(attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.narrow(functional.gelu(self.wide(self.norm2(x))))


def make_model(on: torch.device) -> torch.nn.Sequential:
    """The same on all ranks: words, blocks, a norm and a head; 17 million parameters, less in a rehearsal."""
    torch.manual_seed(1)
    blocks = [Block() for _ in range(BLOCKS)]
    ends = [torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, WORDS, bias=False)]
    return torch.nn.Sequential(torch.nn.Embedding(WORDS, WIDTH), *blocks, *ends).to(on)


def samples(number: int, rank: int, on: torch.device) -> torch.Tensor:
    """Tokens of one iteration, with the next word of each place."""
    chance = torch.Generator().manual_seed(RANKS * number + rank)
    return torch.randint(0, WORDS, (BATCH, LENGTH + 1), generator=chance).to(on)


def loss_of(scores: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(scores.float().flatten(0, 1), following.flatten())


def loop(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    on: torch.device,
    rank: int,
    context: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext,
    compared: torch.nn.Module | None = None,
    finish: Callable[[], object] = lambda: None,
) -> Training:
    """The loop of every tutorial, with the forward pass in a context. ``rank`` chooses the samples."""

    def step(number: int) -> None:
        tokens = samples(number, rank, on)
        optimizer.zero_grad()
        with context():
            loss = loss_of(model(tokens[:, :-1]), tokens[:, 1:])
        loss.backward()
        optimizer.step()

    return Training(step, compared or model, finish)


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
