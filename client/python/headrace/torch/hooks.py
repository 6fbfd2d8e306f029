"""When autograd has accumulated a gradient, for every version of torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class AccumulationHook:
    """Calls a function each time a parameter's gradient has been added to ``.grad``.

    A parameter that is used several times is added to once, with the sum: so there is one call for
    each backward pass that reaches it.
    """

    def __init__(self, parameter: torch.nn.Parameter, call: Callable[[], None]) -> None:
        if hasattr(parameter, "register_post_accumulate_grad_hook"):  # torch 2.1
            self._handle: Any = parameter.register_post_accumulate_grad_hook(
                lambda _: call()
            )
            return
        # Tensor.register_hook fires before accumulation; the node that accumulates tells after it.
        # The node must be kept: the parameter only refers to it weakly.
        with torch.enable_grad():
            self._node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
        self._handle = self._node.register_hook(lambda *_: call())

    def remove(self) -> None:
        """No more calls."""
        self._handle.remove()
