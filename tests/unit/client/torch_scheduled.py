"""What the tests of ScheduledOptimizer share: models, batches, and training with and without it.

The reference is the plain optimizer fed with averages of the ranks' gradients by ordinary all-reduces.
A rank trains both ways and returns both results; they must agree to the bit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import headrace
import headrace.torch
import torch

STEPS = 6


def network(seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.LayerNorm(32)]
    return torch.nn.Sequential(*layers, torch.nn.Linear(32, 4))


def batches(session: headrace.Session, steps: int = STEPS) -> Iterator[tuple]:
    random = torch.Generator().manual_seed(1)
    for _ in range(steps):
        inputs = torch.randn(session.world_size, 5, 8, generator=random)
        targets = torch.randint(0, 4, (session.world_size, 5), generator=random)
        yield inputs[session.rank], targets[session.rank]


def loss_of(model: torch.nn.Module, batch: tuple) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])


class Reference:
    """The plain optimizer; step() averages first.

    A parameter without a gradient has one of zeros where another rank has one, and else none.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, session: headrace.Session
    ) -> None:
        self.optimizer = optimizer
        self._session = session
        self._averaged = False

    @property
    def param_groups(self) -> list:
        return self.optimizer.param_groups

    def average(self) -> None:
        if self._averaged:
            return
        parameters = [
            parameter
            for group in self.optimizer.param_groups
            for parameter in group["params"]
            if parameter.requires_grad
        ]
        used = torch.tensor([float(p.grad is not None) for p in parameters])
        self._session.all_reduce(used, op="max")
        for parameter, is_used in zip(parameters, used.tolist(), strict=True):
            if not is_used:
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            self._session.all_reduce(parameter.grad, op="average")
        self._averaged = True

    def step(self) -> None:
        self.average()
        self.optimizer.step()
        self._averaged = False

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none=set_to_none)

    def clip_grad_norm_(self, most: float) -> torch.Tensor:
        self.average()
        parameters = [
            p for group in self.optimizer.param_groups for p in group["params"]
        ]
        return torch.nn.utils.clip_grad_norm_(parameters, most)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        yield

    def synchronize(self) -> None:
        pass


def plain_loop(model, optimizer, session, steps: int = STEPS) -> list[float]:
    losses = []
    for batch in batches(session, steps):
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def bits(value: Any) -> Any:
    """A value in which tensors are bytes, to be compared and sent through a pipe."""
    if isinstance(value, torch.Tensor):
        flat = value.detach().contiguous().view(-1)
        return (
            str(value.dtype),
            tuple(value.shape),
            flat.view(torch.uint8).numpy().tobytes(),
        )
    if isinstance(value, dict):
        return {key: bits(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [bits(each) for each in value]
    return value


def both_ways(
    session: headrace.Session,
    make: Callable[[], tuple[torch.nn.Module, torch.optim.Optimizer]],
    train: Callable = plain_loop,
    **options: Any,
) -> list:
    """[scheduled, reference]: what train() returned, the parameters and the optimizer's state."""
    results = []
    for scheduled in (True, False):
        model, optimizer = make()
        if scheduled:
            wrapped = headrace.torch.ScheduledOptimizer(
                optimizer, model, session, **options
            )
        else:
            wrapped = Reference(optimizer, session)
        outcome = train(model, wrapped, session)
        wrapped.synchronize()
        results.append(
            bits([outcome, list(model.parameters()), optimizer.state_dict()])
        )
    return results
