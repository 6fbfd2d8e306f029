"""Gradients from backward to their update: which are posted, open, due."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from headrace.errors import Error
from headrace.layout import Layout
from headrace.operation import Operation
from headrace.session import Session
from headrace.torch import devices
from headrace.torch.clipping import Clipping
from headrace.torch.forward_order import ForwardOrder, tensors_in, used_by
from headrace.torch.handover import Listener
from headrace.torch.hooks import AccumulationHook
from headrace.torch.open_gradient import OpenGradient
from headrace.torch.outcomes import Outcomes
from headrace.torch.parameters import device_of_layout, refuse_others
from headrace.torch.recovery import LOSSES, Recovery
from headrace.torch.resize import Lack
from headrace.torch.slots import SLOTS_MAX, Member, Slot, all_used, make_slots
from headrace.torch.updates import Options, Updates
from headrace.torch.usage import Usage


class GradientFlow:
    """The state between a model, its optimizer and the layout. Of one thread, which trains.

    A slot is *open* from its post until it was waited for, and *due* from step() until its update was
    made. An iteration has *begun* when slots may be posted; it ends with step(), or is given up. It
    is *averaged* when all was waited for and step() has still to come.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        updates: Updates,
        session: Session,
        make_layout: Callable[[Sequence[tuple], int | None], Layout],
        say: Callable[[str], None],
        recovery: Recovery | None = None,
        scale: float | None = None,
        clipping: Clipping | None = None,
    ) -> None:
        self._model = model
        self._updates = updates
        self._session = session
        self._make_layout = make_layout
        self._say = say
        self._recovery = recovery  # None: a loss is raised
        self._scale = scale  # of each gradient before it is summed; None: 1
        self._clipping = clipping
        self._loss: Error | None = None  # met while gradients were posted; dealt with at a wait
        self._iteration = 0
        self._whole = 0  # the last iteration all of whose averages were waited for at once
        self._barrier: Operation | None = None  # of this iteration, where it is a transaction
        self._order: ForwardOrder | None = ForwardOrder(model)
        self._layout: Layout | None = None
        self._device: int | None = None  # that of the parameters; None: the CPU
        self._outcomes = Outcomes()
        self._slots: list[Slot] = []
        self._usage: Usage | None = None  # the first of them
        self._of: dict[torch.nn.Parameter, tuple[Slot, Member]] = {}
        self._waits: dict[torch.nn.Module, list[Slot]] = {}
        self._hooks: list[AccumulationHook] = []
        self._giving_up = False
        self.posts = True  # after the last forward pass; not within no_sync()
        self.steps_alone = False  # where backward posted nothing, as DDP does, and does not average
        self._begun = False
        self._averaged = False
        self._running = False  # a backward pass is, or ended by an exception
        self._waited = False  # in this forward pass

    @property
    def started(self) -> bool:
        """Whether the layout is made."""
        return self._layout is not None

    @property
    def layout(self) -> Layout:
        """Made with the first forward pass in training mode."""
        if self._layout is None:
            self._start([])
        return self._layout

    @property
    def slots(self) -> list[Slot]:
        """In forward order; empty before the layout is made."""
        return self._slots

    # ---- The layout ------------------------------------------------------------------------------

    def _start(self, outputs: Sequence[torch.Tensor]) -> None:
        """Makes the layout in the order of the forward pass that has just ended, rank 0's."""
        parameters = [
            p for p in self._updates.parameters() if p.requires_grad and p.numel()
        ]
        self._device = device_of_layout(parameters)
        order, waits = self._order.arrange(parameters, used_by(outputs))
        agreed = torch.tensor(order, dtype=torch.int64)
        self._session.broadcast(agreed, 0)
        self._lay_out(parameters, agreed.tolist(), waits)

    def _lay_out(
        self,
        parameters: Sequence[torch.nn.Parameter],
        order: Sequence[int],
        waits: dict[torch.nn.Parameter, torch.nn.Module],
    ) -> None:
        """Makes slots and layout; ``waits``: the module that waits for a parameter."""
        if self._recovery is not None:
            self._recovery.order = order
            self._recovery.buffers = list(self._model.buffers())
        names = {p: name for name, p in self._model.named_parameters()}
        members = [Member(names.get(parameters[i], ""), parameters[i]) for i in order]
        owners = self._order.owners()
        slots = make_slots(members, owners, SLOTS_MAX - 1, first=1)
        tells = self._recovery is not None and self._recovery.elastic
        self._usage = Usage(slots, tells)
        self._slots = [self._usage, *slots]
        self._layout = self._make_layout(
            [(slot.shape, slot.dtype, slot.name, slot.parts) for slot in self._slots],
            self._device,
        )
        for slot in self._slots:
            slot.take_views(self._layout.torch(slot.index))
            slot.set_carried(self._layout.carried(slot.index))
            for member in slot.members:
                self._take(slot, member)
        for module in self._model.modules():
            own = [p for p in module._parameters.values() if p in self._of]
            own += [p for p, user in waits.items() if user is module]
            slots = {self._of[p][0].index: self._of[p][0] for p in own}
            if slots:
                self._waits[module] = [slots[index] for index in sorted(slots)]
        self._order = None

    def join(self) -> None:
        """Instead of a first forward pass, in a job that runs: takes parameters and the optimizer's state
        from the others between two of their iterations, and begins with their next one.
        """
        parameters = [
            p for p in self._updates.parameters() if p.requires_grad and p.numel()
        ]
        self._device = device_of_layout(parameters)

        def lay_out(order: Sequence[int]) -> tuple[Sequence[Slot], Layout]:
            # The pass that would tell which module waits for which is the others'.
            self._lay_out(parameters, order, dict.fromkeys(parameters, self._model))
            return self._slots, self._layout

        listener = Listener(self._session, self._updates, self._clipping, self._recovery.transaction)
        self._iteration = self._recovery.enter(len(parameters), lay_out, listener)
        self._usage.pop_waits()

    @property
    def iteration(self) -> int:
        """How many have begun, of those that the job counts."""
        return self._iteration

    def _take(self, slot: Slot, member: Member) -> None:
        parameter = member.parameter
        self._of[parameter] = (slot, member)
        member.open = OpenGradient.of(self, parameter, member.view)
        arrived = functools.partial(self._arrived, slot, member)
        self._hooks.append(AccumulationHook(parameter, arrived))

    # ---- Forward ---------------------------------------------------------------------------------

    def before_forward(self, module: torch.nn.Module) -> None:
        """The forward pass of a module is about to read its parameters."""
        trains = self._model.training and torch.is_grad_enabled()
        if self._order is not None:
            if trains:
                self._order.begin(module)
            return
        if module is self._model and not trains:
            # Fast paths of evaluation read parameters past the modules that own them.
            self.make_updates()
            return
        # What is open and not due belongs to this iteration: activations are being computed again.
        slots = [
            slot
            for slot in self._waits.get(module, ())
            if not slot.asked_for and (slot.due is not None or not slot.open)
        ]
        due = [slot for slot in slots if slot.due is not None]
        if self._usage.open and not all_used(due):
            self._wait(self._usage)
        # Also where the values are known to be there: plans are made from when they were asked for.
        for slot in slots:
            self._waited = True
            self._wait(slot)
        due = [slot for slot in due if slot.due is not None]
        if due:
            self._update(due)

    def after_forward(self, result: Any) -> None:
        """The model's forward pass has ended; its outputs tell when backward begins."""
        outputs = list(tensors_in(result))
        if not torch.is_grad_enabled():
            return
        if self._order is not None and self._model.training:
            self._start(outputs)
        if self._waited:
            self._waited = False
            self._layout.end_forward()
        for output in outputs:
            if output.requires_grad:
                output.register_hook(self._backward_begins)

    # ---- Backward --------------------------------------------------------------------------------

    def _backward_begins(self, _: torch.Tensor | None = None) -> None:
        self._running = True
        torch.autograd.Variable._execution_engine.queue_callback(self._backward_ended)
        self._begin()

    def _backward_ended(self) -> None:
        self._running = False
        if self.posts and self._begun and all(slot.open for slot in self._slots[1:]):
            self._post_usage()

    def _begin(self) -> None:
        layout = self.layout
        self.make_updates()  # of what this forward pass did not use
        if not self.posts:
            return
        if self._begun and self._all_forgotten():
            self._give_up()
        if not self._begun:
            if self._recovery is not None:
                self._unless_lost(self._cross_border)
            self._unless_lost(layout.begin_backward)
            self._iteration += 1
            self._begun, self._averaged = True, False

    def _cross_border(self) -> None:
        """Between two iterations, where all ranks are alike: others may join."""
        recovery = self._recovery
        waits, seats = self._usage.pop_waits(), self._usage.pop_seats()
        if waits and not recovery.hands_over:
            recovery.meet(self._iteration, self._slots, self._layout)
        recovery.admit(self._iteration, seats, self._layout)
        recovery.compare(self._iteration + 1)

    def _all_forgotten(self) -> bool:
        open_slots = [slot for slot in self._slots if slot.open]
        return bool(open_slots) and all(
            member.parameter.grad is None
            for slot in open_slots
            for member in slot.members
        )

    def _arrived(self, slot: Slot, member: Member) -> None:
        """Backward has accumulated a gradient."""
        if not self.posts:
            return
        if not self._begun:  # nobody told: the model was not called as a whole
            self._backward_begins()
        if slot.open:
            raise RuntimeError(
                f"a second gradient of {member.name} before step(): use no_sync() for all but the "
                "last micro-batch"
            )
        member.adopt(self._scale)
        member.arrived = True
        if all(each.arrived for each in slot.members):
            self._post(slot)

    def _post(self, slot: Slot) -> None:
        self._outcomes.check()
        if self._recovery is not None:
            slot.keep()
        stream = devices.current_stream(self._device)
        number = self._unless_lost(lambda: self.layout.post(slot.index, stream))
        slot.operation = None
        if number is not None:
            slot.operation = Operation(self._session, number, None, copied=False)
        slot.open, slot.asked_for = True, False
        for member in slot.members:
            member.arrived = False
            member.parameter.grad = member.open

    def _post_missing(self) -> None:
        if not self._begun:
            self._begin()
        for slot in self._slots[1:]:
            if not slot.open:
                for member in slot.members:
                    member.adopt(self._scale)
                self._post(slot)
        self._post_usage()
        if self._recovery is not None and self._recovery.transaction:
            self._post_barrier()

    def _post_barrier(self) -> None:
        number = self._unless_lost(self.layout.barrier)
        lost = number is None
        self._barrier = None if lost else Operation(self._session, number, None, copied=False)

    def _post_usage(self) -> None:
        if not self._usage.open:
            seats = self._recovery is not None and self._recovery.seats
            self._usage.note(self._session.members_wait, seats)
            self._post(self._usage)

    # ---- The optimizer ---------------------------------------------------------------------------

    def step(self) -> None:
        """The iteration ends; its update is due."""
        self._check_running("step()")
        self._check_parameters()
        if self._clipping is not None and not self._clips_late() and self._begun:
            self.complete("clip_norm on a GPU, or with reconnect, needs all gradients", reads=False)
        if self._averaged:
            self._averaged = False
            self._clip_all()
            self._note_step(self._updates.options())
            self._updates.make_all()
            return
        self.make_updates()
        if self.steps_alone and not self._begun and not self.posts:
            self._make_all()
            return
        with self._posting(True):
            self._post_missing()
        self._begun = False
        self._updates.note_step()
        options = self._updates.options()
        self._note_step(options)
        for slot in self._slots:
            slot.due = options
            for member in slot.members:
                member.frozen = not member.parameter.requires_grad
        if self._clipping is not None:
            self._clipping.begin()
            self._take_norms([slot for slot in self._slots[1:] if self._has_ended(slot)])

    def _note_step(self, options: Options) -> None:
        recovery = self._recovery
        if recovery is not None:
            self._unless_lost(lambda: recovery.on_step(self._iteration, options, self._slots))

    def zero_grad(self, set_to_none: bool) -> None:
        """Gradients are forgotten; those that are due, after their update."""
        self._check_running("zero_grad()")
        if self._begun:
            self._give_up()
        self._averaged = False
        for parameter in self._updates.parameters():
            slot, member = self._of.get(parameter, (None, None))
            if set_to_none or parameter.grad is None or (slot and slot.open):
                parameter.grad = None
            elif member is None:
                parameter.grad.zero_()
            else:
                parameter.grad = member.view.zero_()
            if member is not None:
                member.arrived = False

    def complete(self, why: str, reads: bool = True) -> None:
        """All gradients of this iteration are averaged and may be read and changed; then step(). ``reads``:
        whether anybody but step() does.
        """
        if self._running:
            raise RuntimeError(f"{why}: not while backward runs")
        if self._averaged or not self.started:
            return
        self._say(why)
        if any(slot.due is not None for slot in self._slots):
            self.make_updates()
            return
        self._post_missing()
        for slot in self._slots:
            self._wait(slot)
        if self._recovery is not None:
            self._recovery.keep_averages(self._iteration, self._slots)
            if reads:
                self._recovery.on_read(self._iteration)
        for slot in self._slots:
            for member in slot.members:
                if member.parameter.grad is member.open:
                    parameter = member.parameter
                    idle = not parameter.requires_grad or self._usage.is_idle(member)
                    parameter.grad = None if idle else member.view
        self._begun, self._averaged = False, True

    def make_updates(self) -> None:
        """All that are due."""
        for slot in self._slots:
            if slot.due is not None and slot.open:
                self._wait(slot)
        due = [slot for slot in self._slots if slot.due is not None]
        if due:
            self._update(due)

    def is_open(self, parameter: torch.nn.Parameter) -> bool:
        """Whether the parameter's gradient belongs to the service at present."""
        return parameter in self._of and self._of[parameter][0].open

    def only_accumulating(self) -> contextlib.AbstractContextManager[None]:
        """Within it backward posts nothing."""
        return self._posting(False)

    def close(self) -> None:
        """Removes the hooks of the parameters; raises what streams have yet to be told of."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._outcomes.finish()

    # ---- Clipping --------------------------------------------------------------------------------

    def _clips_late(self) -> bool:
        """Whether updates may wait for the norm of all gradients, which the host then computes."""
        return self._device is None and self._recovery is None

    def _clip_all(self) -> None:
        if self._clipping is not None:
            self._clipping.clip(self._updates.parameters())

    def _make_all(self) -> None:
        self._clip_all()
        self._updates.make_all()

    def _take_norms(self, slots: Sequence[Slot]) -> None:
        """Adds the norms of averages that have arrived; parameters in doubt wait for what all ranks have used."""
        for slot in slots:
            in_doubt = self._usage.open and not all_used([slot])
            if self._clipping.has(slot.index) or in_doubt:
                continue
            used = [m for m in slot.members if not self._usage.is_idle(m)]
            self._clipping.add(slot.index, ((m.parameter, m.view) for m in used))

    def _clip(self, members: Sequence[Member]) -> None:
        """Before the first update of an iteration the norm of all; the last layers' came first."""
        if self._clipping.factor is None:
            if self._usage.open:
                self._wait(self._usage)
            for slot in reversed(self._slots[1:]):
                if slot.open:
                    slot.operation.wait()  # each is still asked for in its turn
                self._take_norms([slot])
            self._clipping.settle(self._updates.parameters())
        with torch.no_grad():
            for member in members:
                member.view.mul_(self._clipping.factor)

    # ---- Inside ----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _posting(self, posts: bool) -> Iterator[None]:
        before, self.posts = self.posts, posts
        try:
            yield
        finally:
            self.posts = before

    def _unless_lost(self, call: Callable[[], Any]) -> Any:
        """Backward goes on without the service where that can be made up for; None: it is gone."""
        if self._loss is not None:
            return None
        try:
            return call()
        except LOSSES as loss:
            if self._recovery is None:
                raise
            self._loss = loss
            return None

    def _recover(self, loss: Error) -> None:
        """After a loss, when all gradients of the iteration have been posted or kept."""
        lack = Lack.NOTHING if self._giving_up else Lack.AVERAGES
        if any(slot.due is not None for slot in self._slots):
            lack = Lack.STATE
        self._recovery.run(loss, self._iteration, lack, self._slots, self._layout)
        self._loss, self._barrier = None, None
        if self._recovery.level:
            self._usage.pop_waits()  # all have met after it, and those that waited are in
            self._usage.pop_seats()

    def _wait(self, slot: Slot) -> None:
        if self._recovery is not None and slot.open:
            try:
                if self._loss is None:
                    if self._recovery.whole:
                        self._wait_for_all()
                    self._layout.wait(slot.index)
            except LOSSES as loss:
                self._loss = loss
            if self._loss is not None:
                self._recover(self._loss)
        elif self._device is None:
            self._layout.wait(slot.index)
        else:
            self._layout.wait_on(slot.index, devices.current_stream(self._device))
            if slot.open:
                self._outcomes.add(slot.operation)
        slot.open, slot.asked_for = False, True

    def _wait_for_all(self) -> None:
        """Until every average of the iteration is there; each is still asked for in its turn."""
        if self._whole == self._iteration:
            return
        for slot in self._slots:
            if slot.open and slot.operation is not None:
                slot.operation.wait()
        if self._barrier is not None:
            self._barrier.wait()
            self._barrier = None
        self._whole = self._iteration

    def _update(self, slots: Sequence[Slot]) -> None:
        """Makes the updates of these, which have been waited for, and of those that are there too.

        One step of the optimizer for many parameters takes less than many for a few.
        """
        slots = [*slots, *self._there_besides(slots)]
        members = []
        for member in (member for slot in slots for member in slot.members):
            if not self._usage.is_idle(member):
                members.append(member)
            elif member.parameter.grad is member.open:
                member.parameter.grad = None
        before = [member.parameter.grad for member in members]
        for member in members:
            member.parameter.grad = member.view
        if self._clipping is not None:
            self._clip(members)
        options = slots[0].due
        for slot in slots:
            slot.due = None
        self._updates.make([m.parameter for m in members if not m.frozen], options)
        for member, gradient in zip(members, before):
            # What was forgotten in the meantime, or replaced, stays so.
            if gradient is not member.open:
                member.parameter.grad = gradient

    def _there_besides(self, slots: Sequence[Slot]) -> list[Slot]:
        """The slots behind these that are due and have ended, up to the first that has not."""
        there = []
        for slot in self._slots[slots[-1].index + 1 :]:
            if slot.due is None:
                continue
            if slot.open:
                if not self._has_ended(slot):
                    break
                slot.open = False
            if self._usage.open and not all_used([slot]):
                break
            there.append(slot)
        return there

    def _has_ended(self, slot: Slot) -> bool:
        """Whether the averages are there; raises what they failed with."""
        if self._loss is not None or not slot.operation.done():
            return False
        try:
            slot.operation.wait()  # for its error, if it has one
        except LOSSES:
            if self._recovery is None:
                raise
            return False  # the wait for it deals with that
        return True

    def _give_up(self) -> None:
        """Ends an iteration without an update, in step with the other ranks."""
        with self._posting(True):
            self._post_missing()
        self._giving_up = True
        try:
            for slot in self._slots:
                for member in slot.members:
                    member.parameter.grad = None
                self._wait(slot)
        finally:
            self._giving_up = False
        self._begun = False

    def _check_running(self, what: str) -> None:
        if not self._running:
            return
        posted = sum(slot.open for slot in self._slots[1:])
        if posted > 0:
            raise RuntimeError(
                f"{what}: the last backward pass ended by an exception with {posted} of "
                f"{len(self._slots) - 1} gradients posted; other ranks wait for the rest. End this "
                "process: theirs then end with an error that names it"
            )
        self._running = False

    def _check_parameters(self) -> None:
        if self.started:
            refuse_others(self._updates.parameters(), self._of)
