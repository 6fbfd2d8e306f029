"""Whether all ranks hold the same parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from headrace.session import Session
    from headrace.torch.updates import Updates

_AT_ONCE = 4 << 20  # bytes of parameters that are compared between two iterations


class Comparison:
    """All ranks hold their parameters against each other, some between each two iterations."""

    def __init__(self, session: Session, updates: Updates) -> None:
        self._session = session
        self._updates = updates
        self._next = 0

    def go_on(self, iteration: int) -> bool:
        """Before that iteration; returns whether parameters are left. RuntimeError if any differ."""
        parameters = self._updates.parameters()
        some, size = [], 0
        while self._next < len(parameters) and (not some or size < _AT_ONCE):
            some.append(parameters[self._next])
            size += some[-1].numel() * some[-1].element_size()
            self._next += 1
        compare_digests(self._session, self._updates.digest(some), iteration)
        return self._next < len(parameters)


def compare_digests(session: Session, own: bytes, iteration: int) -> None:
    """On all ranks, before that iteration. RuntimeError where one has another digest."""
    digests = torch.zeros(session.world_size, len(own), dtype=torch.uint8)
    digests[session.rank] = torch.frombuffer(bytearray(own), dtype=torch.uint8)
    session.all_gather(digests)
    differ = (digests != digests[0]).any(dim=1).nonzero().view(-1).tolist()
    if differ:
        raise RuntimeError(
            f"headrace: after a recovery the parameters of ranks {differ} differ from those of rank 0 "
            f"before iteration {iteration}: end all ranks and go on from a checkpoint"
        )
