"""Which module of fully_shard() gathers whose parameters ahead of its own forward pass."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch.distributed.fsdp import FSDPModule


class GatherAhead:
    """Has each module gather the parameters of the one that runs after it, once two passes had the same order.

    So the all-gather hides behind the module's own forward pass, and one module more than otherwise has its
    whole parameters. Where a script has called set_modules_to_forward_prefetch() itself, or passes differ,
    nothing is changed; where passes differ later, it is given up for good, and torch drops what was gathered in
    vain. Every rank decides the same, since ranks run the same modules.
    """

    def __init__(self, modules: Sequence[FSDPModule]) -> None:
        self._modules = list(modules)
        self._before: list[FSDPModule] = []  # that the last pass ran, in order
        self._now: list[FSDPModule] = []
        self._chained = False
        self._may = len(modules) > 1 and not any(
            module._get_fsdp_state()._states_to_forward_prefetch for module in modules
        )

    def begin(self, module: FSDPModule) -> None:
        """Called before a module's forward pass in training."""
        if not self._may:
            return
        state = module._get_fsdp_state()
        if state._training_state.name == "PRE_BACKWARD":  # forward made again for backward
            return
        if module in self._now:  # the next pass
            self._end_pass()
        self._now.append(module)

    def close(self) -> None:
        """Modules gather as torch has it by itself."""
        if self._chained:
            for module in self._modules:
                module.set_modules_to_forward_prefetch([])
        self._chained = self._may = False

    def _end_pass(self) -> None:
        before, self._before, self._now = self._before, self._now, []
        if not before:
            return
        if self._before != before:
            self.close()
        elif not self._chained:
            self._chained = True
            for module, following in itertools.pairwise(before):
                module.set_modules_to_forward_prefetch([following])
