"""When, in one iteration, gradients were there, blocks moved, and modules ran: what a picture needs."""

from __future__ import annotations

import time
from typing import Any

import torch
from ways import Scheduled, read_plan

# The service shows blocks of every fourth iteration; so this many to go hold one, and the next forward.
SHOWN_EVERY = 4


class Moments:
    """Notes moments of a model's passes until remove()."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.gradients: dict[str, float] = {}
        self.forward: dict[str, tuple[float, float]] = {}
        self._began: dict[str, float] = {}
        self._handles: list[Any] = []
        for name, parameter in model.named_parameters():
            self._handles.append(
                parameter.register_hook(lambda _, name=name: self._produced(name))
            )
        for name, module in model.named_modules():
            if next(module.parameters(recurse=False), None) is None:
                continue
            # Behind ScheduledOptimizer's own, which waits for the module's gradients.
            self._handles.append(
                module.register_forward_pre_hook(
                    lambda *_, name=name: self._begin(name)
                )
            )
            self._handles.append(
                module.register_forward_hook(lambda *_, name=name: self._end(name))
            )

    def _produced(self, name: str) -> None:
        self.gradients[name] = time.perf_counter()

    def _begin(self, name: str) -> None:
        self._began[name] = time.perf_counter()

    def _end(self, name: str) -> None:
        self.forward[name] = (self._began[name], time.perf_counter())

    def remove(self) -> None:
        """The model is as it was."""
        for handle in self._handles:
            handle.remove()


def record(way: Scheduled, ctl: str) -> dict[str, Any]:
    """Trains on until an iteration is on the board; its moments, in seconds from backward's begin.

    The iteration goes from the begin of its backward pass to the end of the next forward pass.
    """
    while len(way.losses) % SHOWN_EVERY != 0:
        way.iterate()
    for _ in range(SHOWN_EVERY - 1):
        way.iterate()
    moments = Moments(way.model)
    begins = []
    way.before_backward = lambda: begins.append(time.perf_counter())
    way.iterate()
    waited = way.waited()
    number, gradients = len(way.losses), dict(moments.gradients)
    way.iterate()
    waited = way.waited() - waited
    plan = read_plan(ctl, way.job)
    moments.remove()
    del way.before_backward
    zero = begins[0]
    return {
        "iteration": number,
        "iteration_s": begins[1] - zero,
        "waited_s": waited,
        "gradients": {name: at - zero for name, at in gradients.items()},
        "forward": {
            name: [begin - zero, end - zero]
            for name, (begin, end) in moments.forward.items()
        },
        "plan": plan,
    }
