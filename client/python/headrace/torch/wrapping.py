"""What optimizers that wrap another one have in common."""

from __future__ import annotations

from typing import Any

import torch


class WrappingOptimizer(torch.optim.Optimizer):
    """Shows the wrapped optimizer's groups, state and defaults as its own.

    A subclass makes updates later than step(): its ``synchronize`` makes those that are due, so that
    what is saved or loaded has them all.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        # Not the base class's: param_groups and state are those of the wrapped optimizer.
        self._optimizer = optimizer

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The wrapped optimizer's."""
        return self._optimizer.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self._optimizer.param_groups = groups

    @property
    def state(self) -> Any:
        """The wrapped optimizer's. As of the last update that was made: see synchronize()."""
        return self._optimizer.state

    @property
    def defaults(self) -> dict[str, Any]:
        """The wrapped optimizer's."""
        return self._optimizer.defaults

    def __getattr__(self, name: str) -> Any:
        # Hooks and the like, which the base class looks for in self.
        if "_optimizer" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._optimizer, name)

    def __repr__(self) -> str:
        return f"{type(self).__name__} of {self._optimizer!r}"

    def synchronize(self) -> None:
        """Makes the updates that are due, once their gradients are there."""
        raise NotImplementedError

    def state_dict(self, *arguments: Any, **options: Any) -> dict[str, Any]:
        """The wrapped optimizer's, with all updates made."""
        self.synchronize()
        return self._optimizer.state_dict(*arguments, **options)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The wrapped optimizer's; updates that are due are made with the state before."""
        self.synchronize()
        self._optimizer.load_state_dict(state_dict)
