"""Where torch lets us in: at accumulated gradients and at a model's modules, in every version."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from headrace.torch.tracing import trace_forward, untraced

if TYPE_CHECKING:
    from headrace.torch.gradient_flow import GradientFlow


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


class ModelHooks:
    """Tells a flow what the modules of a model are about to do, until remove()."""

    def __init__(self, model: torch.nn.Module, flow: GradientFlow) -> None:
        self._handles: list[Any] = []
        self._framed: list[torch.nn.Module] = []
        for module in model.modules():
            # No module waits where there are no parameters, and each hook breaks a compiled model's graph.
            if module is model or any(True for _ in module.parameters()):
                self._register(module, flow)
        self._handles.append(
            model.register_forward_hook(
                untraced(lambda _, __, result: flow.after_forward(result))
            )
        )

    def _register(self, module: torch.nn.Module, flow: GradientFlow) -> None:
        handle = module.register_forward_pre_hook(
            untraced(lambda module, _: flow.before_forward(module))
        )
        # Before others: weight_norm's, for one, reads parameters.
        module._forward_pre_hooks.move_to_end(handle.id, last=False)
        self._handles.append(handle)
        if trace_forward(module):
            self._framed.append(module)
        # A state_dict refers to the parameters, so what is updated after it was made is in it.
        self._handles.append(
            module._register_state_dict_hook(lambda *_: flow.make_updates())
        )
        self._handles.append(
            module._register_load_state_dict_pre_hook(lambda *_: flow.make_updates())
        )

    def remove(self) -> None:
        """The model is as it was."""
        for handle in self._handles:
            handle.remove()
        for module in self._framed:
            vars(module).pop("forward", None)
        self._handles, self._framed = [], []
