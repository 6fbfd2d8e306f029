"""Whether all ranks hold the same parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from headrace.torch.ranges import range_of

if TYPE_CHECKING:
    from headrace.session import Session
    from headrace.torch.updates import Updates

_AT_ONCE = 4 << 20  # bytes of parameters that are compared between two iterations


class Comparison:
    """All ranks hold their parameters against each other, some between each two iterations."""

    def __init__(self, session: Session, updates: Updates) -> None:
        self._session = session
        self._updates = updates
        self._next = 0  # of the parameters
        self._begin = 0  # and of its elements

    def go_on(self, iteration: int) -> bool:
        """Before that iteration; returns whether parameters are left. RuntimeError if any differ."""
        parameters = self._updates.parameters()
        some, room = [], _AT_ONCE
        while self._next < len(parameters) and room > 0:
            parameter = parameters[self._next]
            fit = max(room // parameter.element_size(), 1)
            end = min(self._begin + fit, parameter.numel())
            some.append(range_of(parameter, self._begin, end))
            room -= (end - self._begin) * parameter.element_size()
            self._begin = end
            if end == parameter.numel():
                self._next, self._begin = self._next + 1, 0
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
