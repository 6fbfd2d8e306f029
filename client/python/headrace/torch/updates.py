"""The wrapped optimizer's step for some of its parameters, with the options of an earlier moment."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Container, Sequence
from typing import Any

import torch

from headrace.torch.devices import without_autocast
from headrace.torch.snapshot import packed, put_back, unpacked

DIGEST_BYTES = 16
Options = list[dict[str, Any]]  # of each parameter group, without its parameters

# Their update of an element depends on nothing of other elements, of the same parameter or another.
_OF_ELEMENTS = (
    torch.optim.ASGD,
    torch.optim.Adadelta,
    torch.optim.Adagrad,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.RMSprop,
    torch.optim.Rprop,
    torch.optim.SGD,
)
_SCHEDULERS_MARKS = ("_with_counter", "_wrapped_by_lr_sched")  # of a step() that they count, by version of torch


class Updates:
    """Runs an optimizer's own step() on a part of its parameters; its state is shared."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._groups: dict[torch.nn.Parameter, int] = {}

    def parameters(self) -> list[torch.nn.Parameter]:
        """All of all groups, as they are now."""
        self._groups = {
            parameter: index
            for index, group in enumerate(self._optimizer.param_groups)
            for parameter in group["params"]
        }
        return list(self._groups)

    def options(self) -> Options:
        """The options of this moment: a scheduler may change them before the update is made."""
        return [
            {
                key: value.clone() if torch.is_tensor(value) else value
                for key, value in group.items()
                if key != "params"
            }
            for group in self._optimizer.param_groups
        ]

    def make(self, parameters: Sequence[torch.nn.Parameter], options: Options) -> None:
        """Updates them from their ``.grad``."""
        chosen: dict[int, list[torch.nn.Parameter]] = {}
        for parameter in parameters:
            chosen.setdefault(self._groups[parameter], []).append(parameter)
        if not chosen:
            return
        groups = [{"params": chosen[i], **options[i]} for i in sorted(chosen)]
        whole = self._optimizer.param_groups
        self._optimizer.param_groups = groups
        try:
            # This may run within a forward pass: with autocast, without gradients, in inference mode,
            # where new tensors of the optimizer's state could not be changed later.
            with torch.inference_mode(False), without_autocast():
                self._optimizer.step()
        finally:
            self._optimizer.param_groups = whole
        self._refuse_changes(groups, [options[i] for i in sorted(chosen)])

    def note_step(self) -> None:
        """Has a scheduler of the wrapped optimizer know that step() was called, if not yet made."""
        self._optimizer._opt_called = True  # torch 2.4
        self._optimizer._step_count = getattr(self._optimizer, "_step_count", 0) + 1

    def make_all(self) -> None:
        """A step of the optimizer as a whole, from all gradients, with the options of now."""
        self._optimizer.step()

    def state_of(self, parameter: torch.nn.Parameter) -> dict[str, Any]:
        """The optimizer's own, not a copy; empty before its first update."""
        return self._optimizer.state.get(parameter, {})

    def set_state(self, parameter: torch.nn.Parameter, state: dict[str, Any]) -> None:
        """As state_of() of another rank; empty: as before the first update."""
        if state:
            self._optimizer.state[parameter] = state
        else:
            self._optimizer.state.pop(parameter, None)

    @property
    def is_of_elements(self) -> bool:
        """Whether an element's update is known to depend on that element and its state alone. So it is of torch's
        own optimizers, as they are: a subclass, a hook or another step() may do anything.
        """
        optimizer = self._optimizer
        if type(optimizer) not in _OF_ELEMENTS:
            return False
        own_step = vars(optimizer).get("step")
        if own_step is not None and not any(hasattr(own_step, mark) for mark in _SCHEDULERS_MARKS):
            return False
        hooks = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")  # torch 2
        of_all = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")
        module = sys.modules[torch.optim.Optimizer.__module__]
        return not any(getattr(optimizer, name, None) for name in hooks) and not any(
            getattr(module, name, None) for name in of_all
        )

    def outside(self) -> dict[Any, Any]:
        """What its state has under keys that are no parameters; not a copy."""
        known = set(self.parameters())
        return {
            key: value
            for key, value in self._optimizer.state.items()
            if not torch.is_tensor(key) or key not in known
        }

    def set_outside(self, values: dict[Any, Any]) -> None:
        """As outside() of another rank."""
        before = self.outside()
        for key in before:
            del self._optimizer.state[key]
        self._optimizer.state.update({key: put_back(value, before.get(key)) for key, value in values.items()})

    def digest(self, tensors: Sequence[torch.Tensor] | None = None) -> bytes:
        """A hash of these, or of all parameters, for ranks to compare."""
        whole = hashlib.blake2b(digest_size=DIGEST_BYTES)
        for tensor in self.parameters() if tensors is None else tensors:
            memory = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
            whole.update(memory.numpy().data)
        return whole.digest()

    def pack(self) -> torch.Tensor:
        """Parameters and state, for another rank's unpack(), as bytes."""
        parameters = [p.detach() for p in self.parameters()]
        return packed((parameters, self._optimizer.state_dict()["state"]))

    def unpack(
        self, data: torch.Tensor, lacking: Container[torch.nn.Parameter]
    ) -> None:
        """Takes what another rank has packed; the options stay this rank's.

        Parameters that are not ``lacking`` are not written to: they have the same values already.
        """
        parameters, state = unpacked(data)  # torch 1.13 loads no float but in text
        with torch.inference_mode(False), torch.no_grad():
            for own, given in zip(self.parameters(), parameters):
                if own in lacking:
                    own.copy_(given)
            groups = self._optimizer.state_dict()["param_groups"]
            self._optimizer.load_state_dict({"state": state, "param_groups": groups})
            self._restore_types(state)

    def _restore_types(self, state: dict[Any, Any]) -> None:
        """load_state_dict() gives state its parameter's element type, which rounds what is kept in another."""
        for index, parameter in enumerate(self.parameters()):
            own = self.state_of(parameter)
            for key, value in state.get(index, {}).items():
                loaded_as = own.get(key)
                if torch.is_tensor(value) and torch.is_tensor(loaded_as) and loaded_as.dtype != value.dtype:
                    own[key] = value.to(loaded_as.device)

    def _refuse_changes(self, after: Options, before: Options) -> None:
        for group, options in zip(after, before):
            for key, value in group.items():
                if key != "params" and (
                    key not in options or value is not options[key]
                ):
                    raise TypeError(
                        f'{type(self._optimizer).__name__}.step() changes its group\'s "{key}", so '
                        "its parameters cannot be updated one after the other"
                    )
