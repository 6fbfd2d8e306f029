"""Memory shared with the service, in which tensors travel from one rank to another."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from headrace.errors import Error

if TYPE_CHECKING:
    from headrace.arena import Arena, Tensor
    from headrace.session import Session

_ALIGNED = 64  # bytes: each tensor begins at a multiple
Shape = list[Any]  # of a tensor: its dtype's name, and its size in each dimension


class PieceMemory:
    """One tensor behind the other; grows with what is put in."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._arena: Arena | None = None
        self._tensor: Tensor | None = None

    def write(self, tensors: Sequence[torch.Tensor]) -> int:
        """Copies them in; returns how many bytes that makes."""
        size = sum(map(room_of, tensors))
        memory = self.view(max(size, 1))
        at = 0
        for tensor in tensors:
            raw = bytes_of(tensor.cpu())
            memory[at : at + raw.numel()].copy_(raw)
            at += room_of(tensor)
        return size

    def read(self, shapes: Iterable[Shape]) -> list[torch.Tensor]:
        """Views of what write() of another rank has put in."""
        tensors, at = [], 0
        for dtype, shape in shapes:
            like = torch.empty(shape, dtype=getattr(torch, dtype), device="meta")
            size = like.numel() * like.element_size()
            raw = self._tensor.torch()[at : at + size]
            tensors.append(raw.view(like.dtype).view(like.shape))
            at += room_of(like)
        return tensors

    def view(self, size: int) -> torch.Tensor:
        """At least so many bytes. Other memory than before if these were fewer."""
        if self._tensor is None or self._tensor.count < size:
            self.close()
            self._arena = self._session.arena(size)
            self._tensor = self._arena.tensor(size, "uint8")
        return self._tensor.torch()

    def range(self, size: int) -> Any:
        """The first bytes of it, to be sent or received."""
        return self._tensor.range(0, size)

    def close(self) -> None:
        """Where the service is gone, the session keeps it until its end."""
        if self._tensor is not None:
            with contextlib.suppress(Error):
                self._tensor.release()
                self._arena.release()
        self._arena = self._tensor = None


def shape_of(tensor: torch.Tensor) -> Shape:
    """What read() needs to know of it."""
    return [str(tensor.dtype).partition(".")[2], list(tensor.shape)]


def room_of(tensor: torch.Tensor) -> int:
    """Bytes that it takes."""
    return -(-tensor.numel() * tensor.element_size() // _ALIGNED) * _ALIGNED


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Its memory, or that of a copy if it does not lie in one."""
    return tensor.detach().contiguous().view(-1).view(torch.uint8)
