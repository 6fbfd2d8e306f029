"""Training goes on after the service went away, and nothing of an iteration is lost.

Each rank keeps a copy of its own gradients as it posts them. When the service goes, no two ranks are
more than an iteration apart, since the sum of an iteration needs all of them; and a gradient has its
average on all ranks, on some, or on none. After the reconnect the ranks tell each other how far they
are. An average that some have goes to the others; the rest of the iteration is summed again from the
copies, in the same order of ranks, so to the same bits. A rank may be an iteration behind, because its
service could not tell it any more that the last gradients were there. What it lacks it gets from one
that is not:

- after its step(), where it may have made a part of its updates already: parameters and the
  optimizer's state;
- before its step(), in complete(): the averages of that iteration, of which every rank that waits for
  all of them before its step() keeps a copy until the next iteration's are there;
- an iteration that it gives up: nothing.

Where the job may go on with fewer ranks (shrink), sums of an iteration may be lost with a rank for good.
So no rank uses an average before it has all of the iteration, and there are two cases. All of them are
still found on some rank: those that lack any get them. Or nobody has used one: the whole iteration is
summed again from the copies, over those that are left and divided by their number. After each recovery
the ranks compare their parameters, once these have their updates.

That leaves one gap: a rank that is lost may have used averages that died with it. Where an iteration is a
transaction, each rank posts a barrier after its last gradient, which ends when every rank has all averages,
and uses them only then. So whoever has used one knew that all had all: whoever is lost, they are found.

What encodings hand on goes with the sums: of an average that somebody has, it stays as it is, since all nodes
have encoded their part; where a sum is made again, it begins as it was before the first time.

On a GPU copies are made in the order of torch's current stream, and the host waits for averages: an
update is made only from what is known to have arrived, so none has ever to be taken back.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from headrace.errors import Error, PeerLost, Timeout, Unavailable
from headrace.torch.comparison import Comparison, compare_digests
from headrace.torch.handover import Donor, share_buffers
from headrace.torch.resize import Lack, Resize
from headrace.torch.sum_again import sum_again, sum_beside

if TYPE_CHECKING:
    from headrace.layout import Layout
    from headrace.session import Session
    from headrace.torch.handover import Listener
    from headrace.torch.slots import Slot
    from headrace.torch.updates import Options, Updates

# What says that the service, or another node's, is gone. A rank that died looks alike: then the
# reconnect is refused, and says so.
LOSSES = (Unavailable, PeerLost)
ATTEMPTS_MAX = 8  # services that go away before one recovery is through

# What a rank says of itself, before whether it has the average of each slot.
_ITERATION, _LACK, _AVERAGES_OF, _WORLD = range(4)
_FACTS = 4


class Recovery:
    """Brings one rank's gradients back after a loss, together with all other ranks.

    ``seconds``: how long a service, and the other ranks, are waited for at a time. ``min_world``: with how
    many ranks the job may go on; 0: with all of them only. ``resized`` is called when it has.
    ``transaction``: no rank uses an average before it knows that all ranks have all of the iteration.
    """

    def __init__(
        self,
        session: Session,
        updates: Updates,
        seconds: float,
        min_world: int = 0,
        resized: Callable[[Resize], None] | None = None,
        transaction: bool = False,
    ) -> None:
        self._session = session
        self._updates = updates
        self._seconds = seconds
        self._min_world = min_world
        self.transaction = transaction
        self._resized = resized
        self._members = session.members  # as they were told last
        self._compare_at = 0  # the iteration before which parameters are compared; 0: none
        # How many ranks an iteration's averages in slots are made of; it never grows.
        self._averaged: tuple[int, int] = (0, 0)
        self.recoveries = 0
        self.order: Sequence[int] = ()  # of the parameters, once there is a layout
        self.buffers: Sequence[torch.Tensor] = ()  # of the model
        self._joins = session.joins  # until the others have handed over
        self._newcomers: list[int] = []  # ranks that have nothing of the job yet
        self._donor: Donor | None = None  # while this rank hands over piece by piece
        self._listening = False  # the newcomers get it so
        self._comparison: Comparison | None = None  # since they have all
        self._read = 0  # the last iteration whose averages the script has read before step()
        self.seats = False  # newcomers have all after the iteration that is under way
        self.level = False  # all others were in one iteration when they met last
        self._averages_of = 0  # the iteration whose averages slots have in ``averages``; 0: none

    def keep_averages(self, iteration: int, slots: Sequence[Slot]) -> None:
        """Copies the averages, all of which are there, before anybody may change them."""
        self._averages_of = 0
        for slot in slots:
            if slot.averages is None:
                slot.averages = torch.empty_like(slot.memory)
            slot.averages.copy_(slot.memory)
        self._averages_of = iteration

    @property
    def elastic(self) -> bool:
        """Whether the job may go on with other ranks."""
        return self._min_world > 0

    @property
    def whole(self) -> bool:
        """Whether averages are used only when all of the iteration's are there."""
        return self.elastic or self.transaction

    def _vote(self) -> None:
        """Says that this rank has all averages of the iteration, and returns when all ranks have said so."""
        if self.transaction:
            self._session.barrier()

    def compare(self, iteration: int) -> None:
        """Before that iteration begins, and after all updates: holds the parameters of all ranks against
        each other, where that is due. Raises RuntimeError if they differ.
        """
        if self._comparison is not None and not self._comparison.go_on(iteration):
            self._comparison = None
        if iteration == self._compare_at:
            self._compare_at = 0
            compare_digests(self._session, self._updates.digest(), iteration)

    def run(
        self,
        cause: Error,
        iteration: int,
        lack: Lack,
        slots: Sequence[Slot],
        layout: Layout,
    ) -> None:
        """Returns with no slot open any more, and the averages of ``iteration`` in all of them; or,
        where others have gone on, with what this rank lacks (no slot is due any more if its updates
        are made by that).

        All slots have been posted or kept for that iteration. Raises Timeout when no service or not
        all ranks came in time, and at once an error of the cause's class when a rank's process is
        gone; both name the cause and what the reconnect met.
        """
        begin = time.monotonic()
        last: Error = cause
        if self._averaged[0] != iteration:
            self._averaged = (iteration, self._contributors())
        for _ in range(ATTEMPTS_MAX):
            _close_ended(slots)
            layout.set_iterations(iteration - any(slot.open for slot in slots))
            try:
                self._session.reconnect(self._seconds, self.elastic, self._min_world)
                again = self._agree(iteration, lack, slots, layout)
            except LOSSES as loss:
                last = loss
                continue
            except Timeout as late:
                raise Timeout(
                    f"{late}; what was lost first: {cause}", late.code, late.number
                ) from cause
            except Error as failure:
                # The class of the cause says what was lost: waiting does not mend it.
                raise type(cause)(
                    f"{cause}; {failure}", cause.code, cause.number
                ) from failure
            self.recoveries += 1
            self._say(cause, iteration, again, len(slots), time.monotonic() - begin)
            self._announce(iteration)
            return
        raise last from cause

    def _say(
        self, cause: Error, iteration: int, again: int, slots: int, seconds: float
    ) -> None:
        if self._session.rank != 0:
            return
        gone = [each for each in self._members if each not in self._session.members]
        lost = f"ranks {gone}" if gone else "the service"
        left = "the other" if gone else "all"
        warnings.warn(
            f"headrace: lost {lost} in iteration {iteration} ({cause}); {left} "
            f"{self._session.world_size} ranks go on with the service of pid "
            f"{self._session.service_pid} after {seconds:.1f} s, and {again} of {slots} gradients "
            "were summed again",
            stacklevel=2,
        )

    def _announce(self, iteration: int) -> None:
        """Says who contributes from now on; newcomers do not yet."""
        old = self._old()
        before, self._members = self._members, tuple(self._session.members[rank] for rank in old)
        if before == self._members or self._resized is None:
            return
        self._resized(
            Resize(
                rank=old.index(self._session.rank),
                world_size=len(old),
                members=self._members,
                lost=tuple(each for each in before if each not in self._members),
                iteration=iteration,
                joined=tuple(each for each in self._members if each not in before),
            )
        )

    # ---- Those that join -----------------------------------------------------------------------------

    def meet(self, iteration: int, slots: Sequence[Slot], layout: Layout) -> None:
        """After ``iteration``, all of whose updates are made, on all ranks: those that wait come in."""
        self._averaged = (iteration, self._contributors())
        layout.set_iterations(iteration)
        self._session.reconnect(self._seconds, True, self._min_world)
        self._agree(iteration, Lack.NOTHING, slots, layout)
        self.recoveries += 1

    def enter(
        self,
        parameters: int,
        lay_out: Callable[[Sequence[int]], tuple[Sequence[Slot], Layout]],
        listener: Listener,
    ) -> int:
        """Joins a running job: returns, when this rank has all that the others have after an iteration, its
        number. ``lay_out`` makes slots and layout, once, in the order of the others.
        """
        slots: Sequence[Slot] = ()
        attempt = 0
        while True:
            try:
                if attempt:
                    self._session.reconnect(self._seconds, True, self._min_world)
                order = self._greet(parameters)
                if not slots:
                    slots, layout = lay_out(order)
                    listener.attach(slots, layout, self.buffers)
                iteration = self._agree_to_enter(slots)
                attempt = 0  # it may take long from here on
                old = [self._session.members[rank] for rank in self._old()]
                if self._newcomers:
                    iteration = self._receive(iteration, listener)
                listener.close()
            except LOSSES:
                attempt += 1
                if attempt == ATTEMPTS_MAX:
                    raise
                continue
            self._joins = False
            self._newcomers = []
            self._members = tuple(old)
            self._announce(iteration + 1)
            return iteration

    def _agree_to_enter(self, slots: Sequence[Slot]) -> int:
        """Has no part in the iteration that is under way; returns the one after which it has all, or is to have
        it.
        """
        for slot in slots:
            slot.open, slot.operation, slot.kept = True, None, None
        facts = self._exchange_facts(0, Lack.NOTHING, slots)
        old = self._old()
        newest = int(facts[old, _ITERATION].max())
        self._compare_at = newest + 1
        iteration = newest
        if bool((facts[old, _ITERATION] == newest).all()):
            self._drop_partial(facts, slots)
            self._complete_averages(facts, slots)
            sum_beside(self._session, slots, len(self._old()))
            self._vote()
        else:
            # Those that are behind get the state of before the newest iteration, too.
            self._hand_over(facts, slots)
            self._newcomers = []  # they have all, and their part in the newest
            iteration = newest - 1
        for slot in slots:
            slot.open = False
        return iteration

    def on_read(self, iteration: int) -> None:
        """The script has all averages of it, and may change them."""
        self._read = iteration

    def on_step(self, iteration: int, options: Options, slots: Sequence[Slot]) -> None:
        """The iteration's update is to be made with these, and with the gradients of now."""
        if self._donor is not None:
            self._donor.send_step(iteration, options, slots if self._read == iteration else None)

    @property
    def hands_over(self) -> bool:
        """Whether there are newcomers, which have not all yet."""
        return bool(self._newcomers)

    def admit(self, iteration: int, seats: bool, layout: Layout) -> None:
        """After ``iteration``, all of whose updates are made: newcomers get what the others have, at once or
        piece by piece. ``seats``: by now they have got it so.
        """
        if not self._newcomers:
            return
        root = self._old()[0]
        gives = self._session.rank == root
        if self._listening:
            if gives:
                self._donor.cross_border(iteration, not seats)
                self.seats = self._donor.has_sent_all
            if not seats:
                return
        elif gives:
            self._donor = Donor(
                self._session, self._updates, self.buffers, self._newcomers, layout.size, iteration
            )
        at_once = gives and not self._listening and not self._donor.fits
        packed, _ = self._broadcast_state(root, iteration, at_once)
        if not self._listening and not packed.numel():
            self._listening = True
            layout.set_contributors(self._contributors())
            if gives:
                self._donor.cross_border(iteration, True)
                self.seats = self._donor.has_sent_all
            return
        if packed.numel():
            self._compare_at = iteration + 1
        else:
            self._comparison = Comparison(self._session, self._updates)
        layout.set_contributors(0)
        self._stop_listening()
        self._say_joined(iteration)
        self._newcomers = []
        self._announce(iteration + 1)

    def _stop_listening(self) -> None:
        if self._donor is not None:
            self._donor.close()
        self._donor = None
        self._listening = self.seats = False

    def _say_joined(self, iteration: int) -> None:
        if self._session.rank == 0:
            joined = [self._session.members[rank] for rank in self._newcomers]
            warnings.warn(
                f"headrace: members {joined} joined after iteration {iteration}; "
                f"{self._session.world_size} ranks go on",
                stacklevel=2,
            )

    def _receive(self, iteration: int, listener: Listener) -> int:
        """The other side of admit(): returns the iteration."""
        root = self._old()[0]
        packed, of = self._broadcast_state(root, iteration, False)
        if not packed.numel():
            listener.run(root, iteration, self._contributors())
            packed, of = self._broadcast_state(root, iteration, False)
        if packed.numel():
            self._compare_at = of + 1
            self._updates.unpack(packed, set(self._updates.parameters()))
        else:
            self._compare_at = 0
            self._comparison = Comparison(self._session, self._updates)
        return of

    def _broadcast_state(self, root: int, iteration: int, at_once: bool) -> tuple[torch.Tensor, int]:
        """All of the root's, of after its iteration, if that says so; else nothing."""
        packed = torch.empty(0, dtype=torch.uint8)
        if self._session.rank == root and at_once:
            packed = self._updates.pack()
        about = torch.tensor([packed.numel(), iteration], dtype=torch.int64)
        self._session.broadcast(about, root)
        if int(about[0]):
            if self._session.rank != root:
                packed = torch.empty(int(about[0]), dtype=torch.uint8)
            self._session.broadcast(packed, root)
            share_buffers(self._session, self.buffers, root, self._joins)
        return packed, int(about[1])

    def _greet(self, parameters: int) -> Sequence[int]:
        """After each meeting: who is new; they get the order of the parameters, which is returned."""
        if not self.elastic:
            return self.order
        session = self._session
        self._stop_listening()
        self._comparison = None
        new = torch.zeros(session.world_size, 1, dtype=torch.int64)
        new[session.rank] = int(self._joins)
        session.all_gather(new)
        self._newcomers = new.view(-1).nonzero().view(-1).tolist()
        old = self._old()
        if not self._newcomers:
            return self.order
        if not old:
            raise RuntimeError(
                "headrace: all ranks that had a part in the training are lost: end this process and "
                "start the job from a checkpoint"
            )
        order = torch.tensor(self.order or [0] * parameters, dtype=torch.int64)
        session.broadcast(order, old[0])
        return order.tolist()

    def _old(self) -> list[int]:
        """The ranks that have had a part in the iteration that is under way."""
        return [r for r in range(self._session.world_size) if r not in self._newcomers]

    def _contributors(self) -> int:
        """How many ranks' gradients make up an average."""
        return self._session.world_size - len(self._newcomers)

    # ---- What all ranks do together, with the same facts -------------------------------------------

    def _agree(
        self, iteration: int, lack: Lack, slots: Sequence[Slot], layout: Layout
    ) -> int:
        """Returns how many slots were summed again."""
        self._greet(len(self.order))
        facts = self._exchange_facts(iteration, lack, slots)
        old = self._old()
        newest = int(facts[old, _ITERATION].max())
        # Else the service takes the iteration for one that has not ended: see Layout.set_iterations.
        counted = bool(facts[:, _FACTS:].all(dim=1).any())
        self.level = bool((facts[old, _ITERATION] == newest).all())
        if self.level:
            self._drop_partial(facts, slots)
            self._complete_averages(facts, slots)
        else:
            self._hand_over(facts, slots)
            self._newcomers = []
            # Whose averages nobody has without those that are behind.
            if iteration == newest:
                self._averaged = (iteration, self._session.world_size)
            if iteration < newest:
                self._compare_at = newest + 1 if self.whole else 0
                for slot in slots:
                    slot.open = False
                return 0
        # Where there are newcomers, when these have all.
        if self.whole and not self._newcomers:
            self._compare_at = newest + 1
        again = sum(slot.open for slot in slots)
        if again and self._newcomers:
            sum_beside(self._session, slots, len(self._old()))
        elif again or (self.level and not counted and not self._newcomers):
            sum_again(slots, layout)
        # Those that were behind, and newcomers then, vote when they have had their part in it.
        if self.level or again:
            self._vote()
        return again

    def _exchange_facts(
        self, iteration: int, lack: Lack, slots: Sequence[Slot]
    ) -> torch.Tensor:
        """A row for each rank; of each slot, whether the rank has its average."""
        session = self._session
        facts = torch.zeros(session.world_size, _FACTS + len(slots), dtype=torch.int64)
        own = [iteration, int(lack), self._averages_of, self._averaged[1]]
        own += [int(not slot.open) for slot in slots]
        facts[session.rank] = torch.tensor(own, dtype=torch.int64)
        session.all_gather(facts)
        return facts

    def _drop_partial(self, facts: torch.Tensor, slots: Sequence[Slot]) -> None:
        """Averages over ranks that are no more are used all or none: in ``facts`` and in the slots only
        those are left that complete the iteration, as averages of one world.
        """
        having = facts[:, _FACTS:]
        worlds = facts[:, _WORLD].clone()
        old = self._old()
        now = len(old)
        # The last world first: only ranks that have all averages of one can have used them.
        for world in sorted(set(worlds[old].tolist())):
            of_world = (worlds == world).unsqueeze(1) & having.bool()
            if world == now or bool(of_world.any(dim=0).all()):
                break
        having[worlds != world] = 0
        own = having[self._session.rank]
        if not self._joins:
            self._averaged = (self._averaged[0], world)
        if world != now and not bool(having.any(dim=0).all()):
            having[:] = 0
            if not self._joins:
                self._averaged = (self._averaged[0], now)
        for slot in slots:
            if not slot.open and not bool(own[slot.index]):
                slot.open, slot.operation = True, None  # its memory is to be written again

    def _complete_averages(self, facts: torch.Tensor, slots: Sequence[Slot]) -> None:
        for slot in slots:
            having = facts[:, _FACTS + slot.index].nonzero().view(-1).tolist()
            if not having:
                continue
            if len(having) < len(self._old()):
                self._broadcast(slot.memory, having[0])
            slot.open = False

    def _broadcast(self, memory: torch.Tensor, root: int) -> None:
        sent = memory.cpu()  # the memory itself, unless on a GPU
        self._session.broadcast(sent.view(torch.uint8), root)
        if sent.data_ptr() != memory.data_ptr():
            memory.copy_(sent)

    def _hand_over(self, facts: torch.Tensor, slots: Sequence[Slot]) -> None:
        """Those that are behind get what they lack from those that are not."""
        iterations = facts[:, _ITERATION].tolist()
        newest = max(iterations)
        behind = {
            rank: Lack(int(facts[rank, _LACK]))
            for rank, iteration in enumerate(iterations)
            if iteration < newest and rank not in self._newcomers
        }
        behind.update(dict.fromkeys(self._newcomers, Lack.STATE))
        own = behind.get(self._session.rank)
        if Lack.STATE in behind.values():
            self._hand_over_state(iterations.index(newest), own is Lack.STATE, slots)
        if Lack.AVERAGES in behind.values():
            kept = facts[:, _AVERAGES_OF].tolist()
            having = [r for r, of in enumerate(kept) if of == newest - 1 and r not in behind]
            if not having:
                _refuse_averages(behind, newest)
            for slot in slots:
                averages = slot.memory if own is not None else slot.averages
                if averages is None:
                    averages = torch.empty_like(slot.memory)
                self._broadcast(averages, having[0])

    def _hand_over_state(self, root: int, lacks: bool, slots: Sequence[Slot]) -> None:
        packed = torch.empty(0, dtype=torch.uint8)
        if self._session.rank == root:
            packed = self._updates.pack()
        size = torch.tensor([packed.numel()], dtype=torch.int64)
        self._session.broadcast(size, root)
        if self._session.rank != root:
            packed = torch.empty(int(size), dtype=torch.uint8)
        self._session.broadcast(packed, root)
        if self._newcomers:
            share_buffers(self._session, self.buffers, root, self._joins)
        if self._joins:
            self._updates.unpack(packed, set(self._updates.parameters()))
        elif lacks:
            due = [slot for slot in slots if slot.due is not None]
            # Parameters that have their update may be part of a forward pass by now.
            lacking = {member.parameter for slot in due for member in slot.members}
            self._updates.unpack(packed, lacking)
            for slot in due:
                slot.due = None


def _refuse_averages(behind: dict[int, Lack], newest: int) -> None:
    """Only where ranks run different programs: the others did not wait for all averages."""
    rank = next(rank for rank, lack in behind.items() if lack is Lack.AVERAGES)
    raise RuntimeError(
        f"headrace: rank {rank} lost the service in iteration {newest - 1} before its step(), where it "
        f"waits for all averages, and ranks that are in iteration {newest} did not wait for them and "
        "have none left: end all ranks and go on from a checkpoint"
    )


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
