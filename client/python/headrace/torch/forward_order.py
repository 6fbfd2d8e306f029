"""In which order a model's forward pass uses its parameters, and where it must wait for each."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """All tensors in what a forward pass returned: tensors, sequences, mappings, dataclasses."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from tensors_in(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from tensors_in(each)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from tensors_in(getattr(value, field.name))


def used_by(outputs: Iterable[torch.Tensor]) -> set[torch.Tensor]:
    """The parameters that a backward pass from these outputs reaches."""
    waiting = [output.grad_fn for output in outputs if output.grad_fn is not None]
    seen, found = set(waiting), set()
    while waiting:
        node = waiting.pop()
        if hasattr(node, "variable"):
            found.add(node.variable)
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    return found


class ForwardOrder:
    """Made while the first forward pass runs: which modules begin, in which order."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._names = {module: name for name, module in model.named_modules()}
        self._modules = dict(model.named_modules())
        self._began: dict[torch.nn.Module, int] = {}

    def owners(self) -> dict[torch.nn.Parameter, int]:
        """A number of the first module that owns each parameter, the same on all ranks."""
        numbers: dict[torch.nn.Parameter, int] = {}
        for number, module in enumerate(self._names):
            for parameter in module._parameters.values():
                if parameter is not None:
                    numbers.setdefault(parameter, number)
        return numbers

    def begin(self, module: torch.nn.Module) -> None:
        """The forward pass of a module begins."""
        self._began.setdefault(module, len(self._began))

    def arrange(
        self, parameters: Sequence[torch.nn.Parameter], used: set[torch.Tensor]
    ) -> tuple[list[int], dict[torch.nn.Parameter, torch.nn.Module]]:
        """The parameters' indices in the order of first use, and the module that waits for each.

        A parameter is used by the module that owns it. Where that one's forward is never called and
        the parameter is in use all the same (as MultiheadAttention uses its out_proj), it is by the
        nearest module around it whose forward is. Parameters that are not used stand last, and no
        module waits for them; those that no module of the model owns are its caller's, so the model
        as a whole waits.
        """
        owners = self._owners()
        places: dict[int, tuple[int, int]] = {}
        waits: dict[torch.nn.Parameter, torch.nn.Module] = {}
        for index, parameter in enumerate(parameters):
            user = self._user(owners.get(parameter, []), parameter in used)
            if user is not None:
                waits[parameter] = user
            place = len(self._names) if user is None else self._began[user]
            places[index] = (place, index)
        return sorted(places, key=places.__getitem__), waits

    def _owners(self) -> dict[torch.nn.Parameter, list[torch.nn.Module]]:
        owners: dict[torch.nn.Parameter, list[torch.nn.Module]] = {}
        for module in self._names:
            for parameter in module._parameters.values():
                if parameter is not None:
                    owners.setdefault(parameter, []).append(module)
        return owners

    def _user(
        self, owners: list[torch.nn.Module], is_used: bool
    ) -> torch.nn.Module | None:
        """The first module that began and owns the parameter, or stands in for its owner."""
        if not owners:
            return self._modules[""]
        began = [owner for owner in owners if owner in self._began]
        if not began and is_used:
            around = [self._around(owner) for owner in owners]
            began = [module for module in around if module is not None]
        return min(began, key=self._began.__getitem__, default=None)

    def _around(self, module: torch.nn.Module) -> torch.nn.Module | None:
        name = self._names[module]
        while name:
            name = name.rpartition(".")[0]
            if self._modules[name] in self._began:
                return self._modules[name]
        return None
