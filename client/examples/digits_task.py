"""What the digits examples share: data, model, and a plain PyTorch training loop.

The global batch of a step is the same samples whatever the number of ranks: rank r of n takes every
nth of them, starting with the rth. All parts are equally large, so the average of the ranks' gradients
is the gradient of the whole batch.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

try:
    import numpy as np
    import sklearn.datasets
    import torch
    from torch.nn import functional
except ImportError as error:
    raise SystemExit(
        f"the digits need python3-numpy, python3-sklearn and python3-torch: {error}"
    ) from error

GLOBAL_BATCH_SIZE = 128
TEST_SIZE = 360
SEED = 2012


class Digits:
    """1797 handwritten digits of 8 x 8 pixels, split into training and test samples."""

    def __init__(self) -> None:
        digits = sklearn.datasets.load_digits()
        order = np.random.RandomState(SEED).permutation(len(digits.target))
        images = torch.tensor(
            digits.images[order] / 8.0 - 1.0, dtype=torch.float32
        ).unsqueeze(1)
        labels = torch.tensor(digits.target[order], dtype=torch.int64)
        self.test = images[:TEST_SIZE], labels[:TEST_SIZE]
        self.train = images[TEST_SIZE:], labels[TEST_SIZE:]

    def batch_size(self, ranks: int) -> int:
        """Samples of a global batch: as many as divide evenly among the ranks."""
        return max(1, GLOBAL_BATCH_SIZE // ranks) * ranks

    def steps(self, ranks: int) -> int:
        """Global batches of one epoch; samples that fill none wait for the next shuffle."""
        return len(self.train[1]) // self.batch_size(ranks)

    def batches(
        self, epoch: int, rank: int, ranks: int, parts: int
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """One rank's part of every global batch of an epoch; batches are cut for `parts` ranks."""
        images, labels = self.train
        size = self.batch_size(parts)
        order = torch.from_numpy(
            np.random.RandomState(SEED + 1 + epoch).permutation(len(labels))
        )
        for step in range(self.steps(parts)):
            mine = order[step * size : (step + 1) * size][rank::ranks]
            yield images[mine], labels[mine]


def make_model() -> torch.nn.Module:
    """A convolutional network of 1.08 million parameters, the same bits in every process.

    It is smooth: where a ReLU or a maximum has its kink, a difference in the last bit may choose the
    other side, and then two trainings drift apart that add the same numbers in another order.
    """
    torch.manual_seed(SEED)
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 32, 3, padding=1),
        torch.nn.SiLU(),
        torch.nn.Conv2d(32, 64, 3, padding=1),
        torch.nn.SiLU(),
        torch.nn.AvgPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(64 * 4 * 4, 1024),
        torch.nn.SiLU(),
        torch.nn.Linear(1024, 10),
    )


class LastGradient:
    """The moment at which backward has produced its last gradients, those of the first layer."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.at = 0.0
        for parameter in list(model.parameters())[:2]:
            parameter.register_hook(self._produced)

    def _produced(self, gradient: torch.Tensor) -> None:
        self.at = time.monotonic()


def fit(
    model: torch.nn.Module,
    digits: Digits,
    arguments: argparse.Namespace,
    rank: int,
    ranks: int,
    zero_grad: Callable[[], None],
    average: Callable[[], None],
    barrier: Callable[[], None],
) -> dict[str, float]:
    """The training loop. `average` returns when the gradients are averaged over all ranks.

    Returns the seconds it took and those it waited for communication: from the last gradient of
    each backward until all were averaged, which includes waiting for slower ranks.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    last_gradient = LastGradient(model)
    parts = arguments.parts or ranks
    steps = arguments.epochs * digits.steps(parts)
    step, waited = 0, 0.0
    barrier()
    start = time.monotonic()
    for epoch in range(arguments.epochs):
        for images, labels in digits.batches(epoch, rank, ranks, parts):
            zero_grad()
            loss = functional.cross_entropy(model(images), labels)
            loss.backward()
            average()
            waited += time.monotonic() - last_gradient.at
            optimizer.step()
            step += 1
            if rank == 0:
                print(f"step {step} of {steps}, loss {loss.item():.4f}", flush=True)
    barrier()
    return {
        "seconds": time.monotonic() - start,
        "waited_seconds": waited,
        "steps": step,
    }


def parse(description: str) -> argparse.Namespace:
    """The options of every training program here."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument(
        "--result", type=Path, help="file to write what came out, as JSON"
    )
    parser.add_argument(
        "--parts", type=int, help="cut global batches as for so many ranks"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # ranks share the cores
    return arguments


def report(
    model: torch.nn.Module,
    digits: Digits,
    arguments: argparse.Namespace,
    rank: int,
    costs: dict,
) -> None:
    """Evaluates the trained model and writes the result: numbers, the parameters, their hash."""
    images, labels = digits.test
    with torch.no_grad():
        scores = model(images)
        loss = functional.cross_entropy(scores, labels).item()
        accuracy = (scores.argmax(1) == labels).float().mean().item()
        flat = torch.cat(
            [parameter.reshape(-1) for parameter in model.parameters()]
        ).numpy()
    if rank == 0:
        print(f"test loss {loss:.4f}, test accuracy {accuracy:.2%}", flush=True)
    if arguments.result:
        np.save(arguments.result.with_suffix(".npy"), flat)
        result = {"loss": loss, "accuracy": accuracy, **costs}
        result["parameters"] = len(flat)
        result["hash"] = hashlib.sha256(flat.tobytes()).hexdigest()
        arguments.result.write_text(json.dumps(result))
