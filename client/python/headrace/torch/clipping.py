"""Clipping by the norm of all gradients, from norms of its parts that are taken as averages arrive."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch


class Clipping:
    """What torch.nn.utils.clip_grad_norm_ computes, of gradients that come one after the other.

    The norm of all is the norm of the parameters' norms, as torch takes it, so the factor has torch's
    bits.
    """

    def __init__(self, max_norm: float, norm_type: float = 2.0) -> None:
        if max_norm <= 0:
            raise ValueError(f"clip_norm={max_norm}: a norm greater than 0 is possible")
        self.max_norm = float(max_norm)
        self.norm_type = float(norm_type)
        self.norm: torch.Tensor | None = (
            None  # of all gradients, the last that was known
        )
        self._known: set[int] = set()  # parts
        self._norms: dict[torch.nn.Parameter, torch.Tensor] = {}
        self._factor: torch.Tensor | None = None

    def begin(self) -> None:
        """An iteration has ended, none of whose gradients are known here."""
        self._known = set()
        self._norms = {}
        self._factor = None

    def has(self, index: int) -> bool:
        """Whether the norms of part ``index`` are known."""
        return index in self._known

    def add(
        self, index: int, gradients: Iterable[tuple[torch.nn.Parameter, torch.Tensor]]
    ) -> None:
        """The averages of part ``index`` are there, and nobody has changed them."""
        self._known.add(index)
        for parameter, gradient in gradients:
            norm = torch.linalg.vector_norm(gradient.detach(), self.norm_type)
            self._norms[parameter] = norm

    @property
    def factor(self) -> torch.Tensor | None:
        """What each gradient is multiplied by; None before settle()."""
        return self._factor

    def settle(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """The norms of all parts are known; they are put together in the order of ``parameters``."""
        norms = [self._norms[p] for p in parameters if p in self._norms]
        whole = torch.stack(norms) if norms else torch.zeros(1)
        self.norm = torch.linalg.vector_norm(whole, self.norm_type)
        self._factor = torch.clamp(self.max_norm / (self.norm + 1e-6), max=1.0)

    def clip(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """All at once: their gradients are there."""
        self.norm = torch.nn.utils.clip_grad_norm_(
            parameters, self.max_norm, self.norm_type
        )
