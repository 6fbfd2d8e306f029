"""Sums an iteration again whose averages nobody has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from headrace.errors import Error
from headrace.torch import devices

if TYPE_CHECKING:
    from headrace.layout import Layout
    from headrace.session import Session
    from headrace.torch.slots import Slot


def sum_again(slots: Sequence[Slot], layout: Layout) -> None:
    """An iteration of the layout has all gradients: those that have their average add zeros."""
    averages = {slot.index: slot.memory.clone() for slot in slots if not slot.open}
    # Zeros that are encoded take with them what was left out before.
    carried = {i: [each.clone() for each in slots[i].carried] for i in averages}
    posted: list[Slot] = []
    failure: Error | None = None
    stream = devices.current_stream(layout.device)
    try:
        layout.begin_backward()
        for slot in reversed(slots):
            if slot.open:
                slot.memory.copy_(slot.kept)
                slot.restore_carried()
            else:
                slot.memory.zero_()
            layout.post(slot.index, stream)
            posted.append(slot)
    except Error as error:
        failure = error
    for slot in posted:
        try:
            layout.wait(slot.index)
            slot.open = False
        except Error as error:
            failure = failure or error
    for index, average in averages.items():
        slots[index].memory.copy_(average)
        for own, before in zip(slots[index].carried, carried[index]):
            own.copy_(before)
    if failure is not None:
        raise failure


def sum_beside(session: Session, slots: Sequence[Slot], count: int) -> None:
    """Sums an iteration again beside newcomers, who add nothing: averages are of ``count`` others."""
    for slot in slots:
        if not slot.open:
            continue
        own = torch.zeros_like(slot.memory) if slot.kept is None else slot.kept
        # As the service: halves are summed in float32.
        wide = own.dtype in (torch.float16, torch.bfloat16)
        total = own.to("cpu", torch.float32 if wide else own.dtype, copy=True)
        session.all_reduce(total, op="sum")
        slot.memory.copy_(total.div_(count))
        slot.restore_carried()
        slot.open, slot.operation = False, None
