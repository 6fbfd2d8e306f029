"""A rank that joins gets parameters and optimizer state from one of the others while these train on.

A newcomer is a member of the job since all have met, but it contributes nothing yet: it posts negative zeros,
which leave every sum as it is, and averages are divided by the number of the others. So it has the averages
of each iteration, like everybody else.

One of the others, the donor, sends the state in pieces, one an iteration: between two iterations it copies
some parameters with their optimizer state, and the copy travels while the next iteration goes on. The newcomer
makes that iteration's update of these parameters itself, and all later ones, from the averages and with the
options that the donor tells it after each iteration. An update of one parameter depends on no other
(ScheduledOptimizer needs that anyway), so both have the same bits. When all has been sent, the donor says so in
the gradients of the next iteration, so all ranks learn of it at once and count the newcomer from then on.

Nobody waits for the whole state, whatever its size. A piece is an eighth of the gradients, at least 4 MiB and at
most 64 MiB, or one parameter if that is more, so that it delays the gradients by little. Donor and newcomer have
memory for one piece.

If a rank is lost in the middle, the ranks meet as after any loss, and what a newcomer has by then is given up: it
listens again from the first piece on. Two kinds of state are handed over at once, while the others wait: what fits
into one piece, and that of a program which reads or changes averages before step(), since a newcomer does not know
what became of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from headrace.errors import Error, Timeout
from headrace.operation import Operation
from headrace.torch import devices
from headrace.torch.snapshot import copied, decoded, encoded, is_value, packed, unpacked

if TYPE_CHECKING:
    from headrace.arena import Arena, Tensor
    from headrace.layout import Layout
    from headrace.session import Session
    from headrace.torch.clipping import Clipping
    from headrace.torch.slots import Slot
    from headrace.torch.updates import Options, Updates
    from headrace.torch.usage import Usage

PIECE_MIN, PIECE_MAX = 4 << 20, 64 << 20  # bytes
_OF_GRADIENTS = 8  # a piece is their size divided by that
_TAG = (1 << 63) + 2  # no torch tag, and none of elastic_run()


@dataclasses.dataclass(frozen=True)
class Step:
    """What the others' update of an iteration was made with."""

    options: Options
    frozen: tuple[int, ...] = ()  # parameters that it left alone, by their place among all


class Donor:
    """Sends one rank's state to newcomers, piece by piece."""

    def __init__(
        self,
        session: Session,
        updates: Updates,
        buffers: Sequence[torch.Tensor],
        targets: Sequence[int],
        gradients_size: int,
    ) -> None:
        """``targets``: the ranks of the newcomers. ``gradients_size`` in bytes."""
        self._session = session
        self._updates = updates
        self._parameters = updates.parameters()
        self._buffers = buffers
        self._targets = targets
        self._piece = min(max(gradients_size // _OF_GRADIENTS, PIECE_MIN), PIECE_MAX)
        self._sent = 0  # of parameters, then buffers
        self._memory = _Memory(session)
        self._bodies: list[Operation] = []  # of the last piece
        self._told: list[Operation] = []

    @property
    def fits(self) -> bool:
        """Whether a newcomer can have the state in pieces, and is to."""
        values = [self._updates.options(), *map(self._updates.state_of, self._parameters)]
        if not self._updates.has_only_parameters() or not all(map(is_value, values)):
            return False
        return sum(self._size_of(i) for i in range(self._count)) > PIECE_MIN

    @property
    def has_sent_all(self) -> bool:
        """Whether a newcomer that takes part in the next iteration has all after it."""
        return self._sent == self._count

    def send(self, iteration: int, step: Step | None, sends_piece: bool) -> None:
        """Between two iterations, the last of which was made by ``step`` (None: it was given up). Newcomers
        get a piece if the last one has gone.
        """
        self._told = _unended(self._told)
        self._bodies = _unended(self._bodies)
        about: dict[str, Any] = {"step": None, "piece": "[]"}
        if step is not None:
            about["step"] = {"options": step.options, "frozen": list(step.frozen)}
        size = 0
        if sends_piece and not self._bodies:
            about["piece"], size = self._fill()
        text = packed(copied(about))
        numbers = torch.tensor([iteration, text.numel(), size], dtype=torch.int64)
        for target in self._targets:
            self._told.append(self._session.send(numbers, target, _TAG, async_op=True))
            self._told.append(self._session.send(text, target, _TAG, async_op=True))
            if size:
                body = self._memory.range(size)
                self._bodies.append(self._session.send(body, target, _TAG, async_op=True))

    def close(self) -> None:
        """Nobody listens any more."""
        self._memory.close()

    @property
    def _count(self) -> int:
        return len(self._parameters) + len(self._buffers)

    def _content(self, index: int) -> list[Any]:
        if index >= len(self._parameters):
            return [self._buffers[index - len(self._parameters)].detach(), {}]
        parameter = self._parameters[index]
        return [parameter.detach(), self._updates.state_of(parameter)]

    def _size_of(self, index: int) -> int:
        tensors: list[torch.Tensor] = []
        encoded(self._content(index), tensors)
        return sum(map(_bytes_of, tensors))

    def _fill(self) -> tuple[str, int]:
        """Copies the next piece; returns what is in it, and its size."""
        tensors: list[torch.Tensor] = []
        shapes: list[list[Any]] = []
        size, contents = 0, []
        while self._sent < self._count:
            more = self._size_of(self._sent)
            if contents and size + more > self._piece:
                break
            contents.append([self._sent, encoded(self._content(self._sent), tensors)])
            for each in tensors[len(shapes) :]:
                place = -1 if each.is_cpu else self._sent
                shapes.append([str(each.dtype).partition(".")[2], list(each.shape), place])
            size += more
            self._sent += 1
        memory = self._memory.view(max(size, 1))
        at = 0
        for tensor in tensors:
            raw = tensor.cpu().contiguous().view(-1).view(torch.uint8)
            memory[at : at + raw.numel()].copy_(raw)
            at += raw.numel()
        return json.dumps([contents, shapes]), size


class Listener:
    """One rank that has joined, until it has what the others have."""

    def __init__(
        self, session: Session, updates: Updates, clipping: Clipping | None, transaction: bool
    ) -> None:
        """``transaction``: whether each iteration ends with a barrier."""
        self._session = session
        self._updates = updates
        self._clipping = clipping
        self._transaction = transaction
        self._layout: Layout | None = None
        self._slots: Sequence[Slot] = ()
        self._usage: Usage | None = None  # the first of them
        self._buffers: Sequence[torch.Tensor] = ()
        self._memory = _Memory(session)
        self._donor = 0  # its rank
        self._parameters: list[torch.nn.Parameter] = []
        self._held: set[int] = set()  # parameters that are as the others'

    def attach(self, slots: Sequence[Slot], layout: Layout, buffers: Sequence[torch.Tensor]) -> None:
        """The layout is made."""
        self._slots, self._usage, self._layout = slots, slots[0], layout
        self._buffers = buffers

    def run(self, donor: int, iteration: int, contributors: int) -> None:
        """Takes part after that iteration, which so many ranks make, until the donor says that all has been sent
        after another. Raises what ends the session's operations, after which it may be called again.
        """
        self._layout.set_contributors(contributors)
        self._donor = donor
        self._parameters = self._updates.parameters()
        self._held = set()
        self._usage.pop_seats()
        about, size = self._receive(iteration)
        while True:
            body = None
            if size:
                self._memory.view(size)
                body = self._session.receive(self._memory.range(size), donor, _TAG, async_op=True)
            self._take_part()
            iteration += 1
            if body is not None:
                body.wait()
                self._install(about["piece"], self._memory.view(size))
            seats = self._usage.pop_seats()
            about, size = self._receive(iteration)
            if about["step"] is not None:
                self._update(Step(about["step"]["options"], tuple(about["step"]["frozen"])))
            if seats:
                break
        self._layout.set_contributors(0)

    def close(self) -> None:
        """It has all."""
        self._memory.close()

    def _receive(self, iteration: int) -> tuple[dict[str, Any], int]:
        numbers = torch.zeros(3, dtype=torch.int64)
        while True:
            try:
                self._session.receive(numbers, self._donor, _TAG)
                break
            except Timeout:
                pass  # the others do something else between two iterations
        of, text_size, size = numbers.tolist()
        text = torch.empty(text_size, dtype=torch.uint8)
        self._session.receive(text, self._donor, _TAG)
        if of != iteration:
            raise RuntimeError(
                f"headrace: rank {self._donor} hands over what it has after iteration {of}, and this rank has "
                f"the averages of {iteration}: end this process and let it join again"
            )
        return unpacked(text), size

    def _take_part(self) -> None:
        """In one iteration, to which this rank gives nothing."""
        layout = self._layout
        stream = devices.current_stream(layout.device)
        layout.begin_backward()
        for slot in reversed(self._slots):
            if slot is not self._usage:
                slot.memory.fill_(-0.0)
                layout.post(slot.index, stream)
            for member in slot.members:
                member.used = False
        self._usage.note_nothing()
        layout.post(self._usage.index, stream)
        if self._transaction:
            number = layout.barrier()
            Operation(self._session, number, None, copied=False).wait()
        for slot in self._slots:
            layout.wait(slot.index)
        layout.end_forward()

    def _install(self, piece: str, memory: torch.Tensor) -> None:
        contents, shapes = json.loads(piece)
        everything = [*self._parameters, *self._buffers]
        tensors, at = [], 0
        for dtype, shape, place in shapes:  # place: of what is on a GPU, whose it is
            each = torch.empty(shape, dtype=getattr(torch, dtype))
            size = _bytes_of(each)
            each.view(-1).view(torch.uint8).copy_(memory[at : at + size])
            tensors.append(each if place < 0 else each.to(everything[place].device))
            at += size
        for index, content in contents:
            own = everything[index]
            values, state = decoded(content, tensors)
            with torch.inference_mode(False), torch.no_grad():
                own.copy_(values)
            if index < len(self._parameters):
                self._updates.set_state(own, state)
                self._held.add(index)

    def _update(self, step: Step) -> None:
        """As the others have made it, of what this rank has."""
        places = {parameter: index for index, parameter in enumerate(self._parameters)}
        members = [
            member
            for slot in self._slots
            for member in slot.members
            if places[member.parameter] not in step.frozen and not self._usage.is_idle(member)
        ]
        for member in members:
            member.parameter.grad = member.view
        if self._clipping is not None:
            self._clipping.clip(self._parameters)
        held = [m.parameter for m in members if places[m.parameter] in self._held]
        self._updates.make(held, step.options)
        for member in members:
            member.parameter.grad = None


class _Memory:
    """What a piece travels in, shared with the service."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._arena: Arena | None = None
        self._tensor: Tensor | None = None

    def view(self, size: int) -> torch.Tensor:
        """So many bytes. Another view than before if these were fewer."""
        if self._tensor is None or self._tensor.count < size:
            self.close()
            self._arena = self._session.arena(size)
            self._tensor = self._arena.tensor(size, "uint8")
        return self._tensor.torch()

    def range(self, size: int) -> Any:
        return self._tensor.range(0, size)

    def close(self) -> None:
        """Where the service is gone, the session keeps it until its end."""
        if self._tensor is not None:
            with contextlib.suppress(Error):
                self._tensor.release()
                self._arena.release()
        self._arena = self._tensor = None


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
        while self._next < len(parameters) and (not some or size < PIECE_MIN):
            some.append(parameters[self._next])
            size += _bytes_of(some[-1])
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


def share_buffers(
    session: Session, buffers: Sequence[torch.Tensor], root: int, joins: bool
) -> None:
    """Newcomers begin with those of one of the others; afterwards they are each rank's own."""
    for buffer in buffers:
        if not buffer.numel():
            continue
        sent = buffer.detach().cpu().contiguous().clone()
        session.broadcast(sent.view(-1).view(torch.uint8), root)
        if joins:
            with torch.no_grad():
                buffer.copy_(sent)


def _bytes_of(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _unended(operations: Sequence[Operation]) -> list[Operation]:
    """Those that are still open; raises what the others failed with."""
    left = []
    for operation in operations:
        if operation.done():
            operation.wait()
        else:
            left.append(operation)
    return left
