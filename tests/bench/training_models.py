"""Real models with a realistic spread of tensor sizes, and what they are trained on."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import digits
import gpt
import resnet
import torch
from torch.nn import functional
from ways import Batch, Task

SEED = 1


def _gpt(rank: int, batch: int, layers: int = 4, width: int = 192) -> Task:
    text = gpt.corpus()
    context = 64

    def batches() -> Iterator[Batch]:
        samples = torch.Generator().manual_seed(1000 * SEED + rank)
        while True:
            begins = torch.randint(len(text) - context - 1, (batch, 1), generator=samples)
            letters = text[begins + torch.arange(context + 1)]
            yield letters[:, :-1], letters[:, 1:]

    def loss(scores: torch.Tensor, letters: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(scores.flatten(0, 1), letters.flatten())

    torch.manual_seed(SEED)
    model = gpt.Gpt(layers, width, heads=4, context=context)
    return Task(model, lambda p: torch.optim.AdamW(p, 1e-3), batches, loss)


def _resnet(rank: int, batch: int, width: int = 64, blocks: int = 2) -> Task:
    images, labels = digits.Digits().train

    def batches() -> Iterator[Batch]:
        samples = torch.Generator().manual_seed(1000 * SEED + rank)
        while True:
            chosen = torch.randint(len(labels), (batch,), generator=samples)
            yield images[chosen], labels[chosen]

    torch.manual_seed(SEED)
    model = resnet.make_model(width, blocks)
    return Task(
        model, lambda p: torch.optim.SGD(p, 0.01, momentum=0.9), batches, functional.cross_entropy
    )


def _resnet18(rank: int, batch: int) -> Task:
    """torchvision's, on images of noise: the times are a real model's, the labels mean nothing."""
    from torchvision.models import resnet18

    def batches() -> Iterator[Batch]:
        samples = torch.Generator().manual_seed(1000 * SEED + rank)
        images = torch.randn(batch, 3, 64, 64, generator=samples)
        labels = torch.randint(10, (batch,), generator=samples)
        while True:
            yield images, labels

    torch.manual_seed(SEED)
    return Task(
        resnet18(num_classes=10),
        lambda p: torch.optim.SGD(p, 0.01, momentum=0.9),
        batches,
        functional.cross_entropy,
    )


MAKERS: dict[str, Callable[[int, int], Task]] = {
    "gpt": _gpt, "resnet": _resnet, "resnet18": _resnet18,
    "gpt-small": functools.partial(_gpt, layers=2, width=128),
    "resnet-small": functools.partial(_resnet, width=32, blocks=1),
}  # fmt: skip


def make_task(model: str, rank: int, batch: int) -> Task:
    """One rank's."""
    return MAKERS[model](rank, batch)
