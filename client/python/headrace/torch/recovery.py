"""Training goes on after the service went away, and nothing of an iteration is lost.

Each rank keeps a copy of its own gradients as it posts them. When the service goes, no two ranks are
more than an iteration apart, since the sum of an iteration needs all of them; and a gradient has its
average on all ranks, on some, or on none. After the reconnect the ranks tell each other how far they
are. An average that some have goes to the others; the rest of the iteration is summed again from the
copies, in the same order of ranks, so to the same bits. A rank that is behind, because its service
could not tell it any more that the last gradients were there, takes parameters and the optimizer's
state from one that is not.

On a GPU copies are made in the order of torch's current stream, and the host waits for averages: an
update is made only from what is known to have arrived, so none has ever to be taken back.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from headrace.errors import Error, PeerLost, Timeout, Unavailable
from headrace.torch import devices

if TYPE_CHECKING:
    from headrace.layout import Layout
    from headrace.session import Session
    from headrace.torch.slots import Slot
    from headrace.torch.updates import Updates

# What says that the service, or another node's, is gone. A rank that died looks alike: then the
# reconnect is refused, and says so.
LOSSES = (Unavailable, PeerLost)
ATTEMPTS_MAX = 8  # services that go away before one recovery is through
_FACTS = 2  # of a rank, before those of each slot: its iteration, and whether that one's step is due


class Recovery:
    """Brings one rank's gradients back after a loss, together with all other ranks.

    ``seconds``: how long a service, and the other ranks, are waited for at a time.
    """

    def __init__(
        self,
        session: Session,
        updates: Updates,
        seconds: float,
    ) -> None:
        self._session = session
        self._updates = updates
        self._seconds = seconds
        self.recoveries = 0

    def keep(self, slot: Slot) -> None:
        """Copies this rank's gradient, which is about to be posted."""
        if slot.kept is None:
            slot.kept = torch.empty_like(slot.memory)
        slot.kept.copy_(slot.memory)

    def run(
        self, cause: Error, iteration: int, slots: Sequence[Slot], layout: Layout
    ) -> None:
        """Returns with the averages of ``iteration`` in all slots, none of which is open any more.

        All slots have been posted or kept for that iteration. Raises Timeout when no service or not
        all ranks came in time, and at once an error of the cause's class when a rank's process is
        gone; both name the cause and what the reconnect met.
        """
        begin = time.monotonic()
        last: Error = cause
        for _ in range(ATTEMPTS_MAX):
            _close_ended(slots)
            try:
                self._session.reconnect(self._seconds)
                again = self._agree(iteration, slots, layout)
            except LOSSES as loss:
                last = loss
                continue
            except Timeout as late:
                raise Timeout(
                    f"{late}; what was lost first: {cause}", late.code, late.number
                ) from cause
            except Error as failure:
                # Of the class that says what was lost: waiting does not mend it.
                raise type(cause)(
                    f"{cause}; {failure}", cause.code, cause.number
                ) from failure
            self.recoveries += 1
            self._say(cause, iteration, again, len(slots), time.monotonic() - begin)
            return
        raise last from cause

    def _say(
        self, cause: Error, iteration: int, again: int, slots: int, seconds: float
    ) -> None:
        if self._session.rank != 0:
            return
        warnings.warn(
            f"headrace: lost the service in iteration {iteration} ({cause}); all "
            f"{self._session.world_size} ranks go on with the one of pid "
            f"{self._session.service_pid} after {seconds:.1f} s, and {again} of {slots} gradients "
            "were summed again: nothing is lost",
            stacklevel=2,
        )

    # ---- What all ranks do together, with the same facts -------------------------------------------

    def _agree(self, iteration: int, slots: Sequence[Slot], layout: Layout) -> int:
        """Returns how many slots were summed again."""
        facts = self._exchange_facts(iteration, slots)
        newest = int(facts[:, 0].max())
        oldest = int(facts[:, 0].min())
        if oldest == newest:
            self._complete_averages(facts, slots)
        else:
            self._hand_over(facts, iteration)
            if iteration < newest:
                for slot in slots:
                    slot.open, slot.due = False, None
                return 0
        again = sum(slot.open for slot in slots)
        if again:
            self._sum_again(slots, layout)
        return again

    def _exchange_facts(self, iteration: int, slots: Sequence[Slot]) -> torch.Tensor:
        """A row for each rank; of each slot, whether the rank has its average."""
        session = self._session
        facts = torch.zeros(session.world_size, _FACTS + len(slots), dtype=torch.int64)
        own = [iteration, int(all(slot.due is not None for slot in slots))]
        own += [int(not slot.open) for slot in slots]
        facts[session.rank] = torch.tensor(own, dtype=torch.int64)
        session.all_gather(facts)
        return facts

    def _complete_averages(self, facts: torch.Tensor, slots: Sequence[Slot]) -> None:
        for slot in slots:
            having = facts[:, _FACTS + slot.index].nonzero().view(-1).tolist()
            if not having:
                continue
            if len(having) < self._session.world_size:
                average = slot.memory.cpu()  # the memory itself, unless on a GPU
                self._session.broadcast(average.view(torch.uint8), having[0])
                if average.data_ptr() != slot.memory.data_ptr():
                    slot.memory.copy_(average)
            slot.open = False

    def _hand_over(self, facts: torch.Tensor, iteration: int) -> None:
        newest = int(facts[:, 0].max())
        for rank, (at, due) in enumerate(facts[:, :_FACTS].tolist()):
            if at < newest and not (at == newest - 1 and due):
                raise RuntimeError(
                    f"headrace: rank {rank} lost the service in iteration {at}, others in "
                    f"{newest}, and it cannot take their state"
                    + ("" if due else " before its step()")
                    + ": end all ranks and go on from a checkpoint"
                )
        root = facts[:, 0].tolist().index(newest)
        packed = torch.empty(0, dtype=torch.uint8)
        if self._session.rank == root:
            packed = self._updates.pack()
        size = torch.tensor([packed.numel()], dtype=torch.int64)
        self._session.broadcast(size, root)
        if self._session.rank != root:
            packed = torch.empty(int(size), dtype=torch.uint8)
        self._session.broadcast(packed, root)
        if iteration < newest:
            self._updates.unpack(packed)

    def _sum_again(self, slots: Sequence[Slot], layout: Layout) -> None:
        """An iteration of the layout has all gradients: those that have their average add zeros."""
        averages = {slot.index: slot.memory.clone() for slot in slots if not slot.open}
        posted: list[Slot] = []
        failure: Error | None = None
        stream = devices.current_stream(layout.device)
        try:
            layout.begin_backward()
            for slot in reversed(slots):
                if slot.open:
                    slot.memory.copy_(slot.kept)
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
        if failure is not None:
            raise failure


def _close_ended(slots: Sequence[Slot]) -> None:
    """What has ended well before the loss has its average."""
    for slot in slots:
        if not slot.open or slot.operation is None:
            continue
        try:
            slot.operation.wait()
            slot.open = False
        except Error:
            pass  # it is summed again
        slot.operation = None
