"""Trains a network on handwritten digits; gradients are averaged by headraced.

Every process is one rank. With the service running and its library built:

    export PYTHONPATH=client/python HEADRACE_LIBRARY=build/release/libheadrace.so
    torchrun --nproc_per_node 4 client/examples/digits.py

Beside a script for one process, it takes the lines marked (1) to (4).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

try:
    import numpy as np
    import sklearn.datasets
    import torch
    from torch import nn
    from torch.nn import functional
except ImportError as error:
    raise SystemExit(f"the digits need python3-numpy, python3-sklearn and python3-torch: {error}") from error

import headrace  # (1)
import headrace.torch

GLOBAL_BATCH_SIZE = 128
TEST_SIZE = 360
SEED = 2012


class Digits:
    """1797 handwritten digits of 8 x 8 pixels, split into training and test samples."""

    def __init__(self, parts: int = 1) -> None:
        """A global batch has as many samples as divide evenly into ``parts``, one for each rank."""
        digits = sklearn.datasets.load_digits()
        order = np.random.RandomState(SEED).permutation(len(digits.target))
        images = torch.tensor(digits.images[order] / 8.0 - 1.0, dtype=torch.float32).unsqueeze(1)
        labels = torch.tensor(digits.target[order], dtype=torch.int64)
        self.test = images[:TEST_SIZE], labels[:TEST_SIZE]
        self.train = images[TEST_SIZE:], labels[TEST_SIZE:]
        self.batch_size = max(1, GLOBAL_BATCH_SIZE // parts) * parts
        self.steps = len(self.train[1]) // self.batch_size  # of an epoch; what is left over waits

    def batches(self, epoch: int, rank: int, ranks: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """One rank's samples of each global batch: every ``ranks``-th of them, from the ``rank``-th on.

        Ranks have equally many, so the average of their gradients is that of the whole global batch.
        """
        images, labels = self.train
        order = torch.from_numpy(np.random.RandomState(SEED + 1 + epoch).permutation(len(labels)))
        for step in range(self.steps):
            mine = order[step * self.batch_size : (step + 1) * self.batch_size][rank::ranks]
            yield images[mine], labels[mine]


def make_model() -> nn.Module:
    """A convolutional network of 1.08 million parameters, the same bits in every process.

    It is smooth: where a ReLU or a maximum has its kink, a difference in the last bit may choose the
    other side, and then two trainings drift apart that add the same numbers in another order.
    """
    torch.manual_seed(SEED)
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.SiLU(),
        nn.Conv2d(32, 64, 3, padding=1), nn.SiLU(), nn.AvgPool2d(2), nn.Flatten(),
        nn.Linear(64 * 4 * 4, 1024), nn.SiLU(), nn.Linear(1024, 10),
    )  # fmt: skip


def train(
    model: nn.Module, digits: Digits, epochs: int, rank: int, ranks: int,
    zero_grad: Callable[[], None], average: Callable[[], None],
) -> None:  # fmt: skip
    """The training loop. ``average`` returns when the gradients are averaged over all ranks."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step, steps = 0, epochs * digits.steps
    for epoch in range(epochs):
        for images, labels in digits.batches(epoch, rank, ranks):
            zero_grad()
            loss = functional.cross_entropy(model(images), labels)
            loss.backward()
            average()
            optimizer.step()
            step += 1
            if rank == 0:
                print(f"step {step} of {steps}, loss {loss.item():.4f}", flush=True)


def evaluate(model: nn.Module, digits: Digits) -> tuple[float, float]:
    """Loss and accuracy on the test samples."""
    images, labels = digits.test
    with torch.no_grad():
        scores = model(images)
    loss = functional.cross_entropy(scores, labels).item()
    return loss, (scores.argmax(1) == labels).float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # ranks share the cores
    model = make_model()
    with headrace.init() as session:  # (2) rank, world size and job come from the environment
        headrace.torch.broadcast_parameters(session, model)
        arena = headrace.torch.GradientArena(session, model.named_parameters())  # (3)
        digits = Digits(session.world_size)
        train(
            model, digits, arguments.epochs, session.rank, session.world_size,
            zero_grad=arena.zero_grad,
            average=arena.wait,  # (4) before optimizer.step()
        )  # fmt: skip
        if session.rank == 0:
            loss, accuracy = evaluate(model, digits)
            print(f"test loss {loss:.4f}, test accuracy {accuracy:.2%}", flush=True)
        session.barrier()


if __name__ == "__main__":
    main()
