"""A rank that joins gets parameters and optimizer state from one of the others while these train on.

A newcomer is a member of the job since all have met, but it contributes nothing yet: it posts negative zeros,
which leave every sum as it is, and averages are divided by the number of the others. So it has the averages
of each iteration, like everybody else.

One of the others, the donor, sends the state in pieces, one an iteration: between two iterations it copies
some parameters with their optimizer state, and the copy travels while the next iteration goes on. The newcomer
makes that iteration's update of these parameters itself, and all later ones, from the averages and with the
options that the donor sends it with each step(). An update of one parameter depends on no other
(ScheduledOptimizer needs that anyway), so both have the same bits.

Where the update of an element depends on that element alone (Updates.is_of_elements), a parameter is sent in ranges
of its elements if it does not fit into a piece. From the first of them on the newcomer makes the updates of the whole
parameter: what it has not received yet gets values that mean nothing, until its range comes and overwrites them,
parameter and state. So what has come has the same bits. That would not be sure if only a part of the parameter were
updated: how a number is rounded may depend on its place in the tensor.

When all has been sent, the donor says so in the gradients of the next iteration, so all ranks learn of it at once
and count the newcomer from then on.

In an iteration whose averages the program reads before step(), and may change, the donor sends with that step()
the gradients that it has changed, of what the newcomer has.

Nobody waits for the whole state, whatever its size. The newcomer measures how long a piece takes to arrive, and
the next one is as large as arrives in a part of an iteration (PieceSize); or one parameter, if that is more and the
optimizer is not one of elements. So pieces follow what the link carries, and delay the gradients by that part at
most. Nor do the others wait for the newcomer's updates: it makes them while the others make theirs, and posts its
zeros before their next gradients.

If a rank is lost in the middle, the ranks meet as after any loss, and what a newcomer has by then is given up: it
listens again from the first piece on.

What the optimizer keeps outside parameters goes with each step(), as options do, and once more when all has been
sent. A state that is as small as a first piece is handed over at once, while the others wait, and so is one with more
than values, or with much of it outside parameters.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from headrace.errors import Error, Timeout
from headrace.operation import Operation
from headrace.torch import devices
from headrace.torch.piece_memory import PieceMemory, Shape, bytes_of, room_of, shape_of
from headrace.torch.ranges import content_of, is_divisible, put_content, range_of, size_of_element, write_range
from headrace.torch.snapshot import copied, decoded, encoded, is_plain, is_value, packed, unpacked

if TYPE_CHECKING:
    from headrace.layout import Layout
    from headrace.session import Session
    from headrace.torch.clipping import Clipping
    from headrace.torch.slots import Slot
    from headrace.torch.updates import Options, Updates
    from headrace.torch.usage import Usage

AT_ONCE_MAX = 4 << 20  # bytes of a state that is handed over while the others wait
_OUTSIDE_MAX = 1 << 20  # bytes of an optimizer's state that is of no parameter, sent with each step()
_RANGE_MIN = 64 << 10  # bytes of a parameter that are worth a place in a piece, unless they are its last
# No torch tags, and none of elastic_run(): what donor and newcomer say, pieces, and gradients.
_TAG, _PIECE_TAG, _GRADIENTS_TAG = (1 << 63) + 2, (1 << 63) + 3, (1 << 63) + 4


class PieceSize:
    """How many bytes go with an iteration: as many as the measured times allow."""

    MIN, MAX = 256 << 10, 256 << 20
    SENT_SHARE = 0.15  # of an iteration's time, in which a piece arrives
    COPIED_SHARE = 0.05  # and in which the donor copies it while the others wait
    CHANGE_MAX = 2.0  # times that one piece may be larger or smaller than the last was to be
    COUNT_MAX = 128  # pieces of the whole, if MAX allows it: also where each takes long however small it is

    def __init__(self, gradients: int, whole: int = 0) -> None:
        """``gradients``: bytes that each iteration moves anyway, of which the first piece is an eighth. ``whole``:
        bytes of all pieces.
        """
        self._most = min(max(gradients, AT_ONCE_MAX), self.MAX)
        self._least = min(max(whole // self.COUNT_MAX, self.MIN), self._most)
        self.bytes = min(max(gradients // 8, self._least), self._most)

    def follow(self, size: int, sent_s: float, copied_s: float, iteration_s: float) -> None:
        """A piece of that size took so long, beside an iteration of that length."""
        fits = self.SENT_SHARE * iteration_s / max(sent_s, 1e-9)
        fits = min(fits, self.COPIED_SHARE * iteration_s / max(copied_s, 1e-9))
        wanted = size * fits
        if fits >= 1:
            wanted = max(wanted, self.bytes)  # a small one says little of larger ones
        wanted = min(max(wanted, self.bytes / self.CHANGE_MAX), self.bytes * self.CHANGE_MAX)
        self.bytes = min(max(int(wanted), self._least), self._most)

    def halve(self) -> bool:
        """There is no memory for so large a piece; False: none is smaller."""
        if self.bytes <= self.MIN:
            return False
        self.bytes = self._most = self.bytes // 2
        self._least = min(self._least, self._most)
        return True


@dataclasses.dataclass
class _Piece:
    """One that is under way."""

    size: int
    copied_s: float
    begun_s: float
    open: list[Operation]
    took: list[torch.Tensor]  # nanoseconds, as each newcomer has measured


class Donor:
    """Sends one rank's state to newcomers, piece by piece."""

    def __init__(
        self,
        session: Session,
        updates: Updates,
        buffers: Sequence[torch.Tensor],
        targets: Sequence[int],
        gradients_size: int,
        iteration: int,
    ) -> None:
        """``targets``: the ranks of the newcomers, who have the averages of all after ``iteration``.
        ``gradients_size`` in bytes.
        """
        self._session = session
        self._updates = updates
        self._parameters = updates.parameters()
        self._buffers = buffers
        self._targets = targets
        self._whole_size = sum(map(self._size_of, range(self._count)))
        self._size = PieceSize(gradients_size, self._whole_size)
        self._sent = 0  # whole parameters, then buffers
        self._begin = 0  # elements of the next one that are sent
        self._piece: _Piece | None = None
        self._memory = PieceMemory(session)
        self._gradients = PieceMemory(session)
        self._messages: list[Operation] = []  # that are under way
        self._changes: list[Operation] = []
        self._stepped = iteration  # the last whose step the newcomers know
        self._crossed_s = time.monotonic()  # when the last border was

    @property
    def fits(self) -> bool:
        """Whether a newcomer can have the state in pieces, and is to."""
        outside = self._updates.outside()
        values = [self._updates.options(), outside, *map(self._updates.state_of, self._parameters)]
        if not all(map(is_value, values)) or not all(map(is_plain, outside)):
            return False
        if packed(copied(outside)).numel() > _OUTSIDE_MAX:
            return False
        return self._whole_size > AT_ONCE_MAX

    @property
    def has_sent_all(self) -> bool:
        """Whether a newcomer that takes part in the next iteration has all after it."""
        return self._sent == self._count

    def send_step(self, iteration: int, options: Options, slots: Sequence[Slot] | None) -> None:
        """That iteration's update is about to be made. ``slots``: the program may have changed the averages, of
        which they have copies; None: it has not.
        """
        step: dict[str, Any] = {"options": options, "reads": slots is not None, "outside": self._updates.outside()}
        changed: list[torch.Tensor] = []
        if slots is None:
            alone = [i for i, each in enumerate(self._parameters) if not each.requires_grad]
        else:
            alone = [i for i, each in enumerate(self._parameters) if each.grad is None]
            step["changed"] = self._changed(slots, changed)
        step["alone"] = alone
        for operation in self._changes:
            operation.wait()  # newcomers have used them by now
        size = self._gradients.write(changed) if changed else 0
        self._send(iteration, step, size)
        self._changes = [
            self._session.send(self._gradients.range(size), target, _GRADIENTS_TAG, async_op=True)
            for target in (self._targets if size else ())
        ]
        self._stepped = iteration

    def cross_border(self, iteration: int, sends_piece: bool) -> None:
        """Between ``iteration`` and the next. Newcomers get a piece if the last one has arrived, unless they
        have all: then they get what the updates have made of the state that is of no parameter.
        """
        self._messages = _unended(self._messages)
        if self._stepped != iteration:
            self._send(iteration, {}, 0)  # it was given up
            self._stepped = iteration
        now = time.monotonic()
        before, self._crossed_s = self._crossed_s, now
        if not sends_piece:
            self._send(iteration, {"outside": self._updates.outside()}, 0)
            return
        about, size = [[], []], 0
        if self._piece is None or self._has_arrived(now - before):
            about, size = self._fill()
            self._piece = _Piece(size, time.monotonic() - now, now, [], []) if size else None
        self._send(iteration, {"piece": json.dumps(about)}, size)
        for target in self._targets if size else ():
            body = self._session.send(self._memory.range(size), target, _PIECE_TAG, async_op=True)
            took = torch.zeros(1, dtype=torch.int64)
            answer = self._session.receive(took, target, _PIECE_TAG, async_op=True)
            self._piece.open += [body, answer]
            self._piece.took.append(took)

    def close(self) -> None:
        """Nobody listens any more."""
        self._memory.close()
        self._gradients.close()

    @property
    def _count(self) -> int:
        return len(self._parameters) + len(self._buffers)

    def _send(self, iteration: int, about: dict[str, Any], size: int) -> None:
        text = packed(copied(about))
        numbers = torch.tensor([iteration, text.numel(), size], dtype=torch.int64)
        for target in self._targets:
            for each in (numbers, text):
                self._messages.append(self._session.send(each, target, _TAG, async_op=True))

    def _has_arrived(self, iteration_s: float) -> bool:
        piece = self._piece
        piece.open = _unended(piece.open)
        if piece.open:
            return False
        sent_s = max(map(int, piece.took)) / 1e9
        # Of a piece that has held up iterations, the whole time counts.
        if self._crossed_s - piece.begun_s > 1.5 * iteration_s:
            sent_s = max(sent_s, iteration_s)
        self._size.follow(piece.size, sent_s, piece.copied_s, iteration_s)
        return True

    def _changed(self, slots: Sequence[Slot], changed: list[torch.Tensor]) -> list[list[Any]]:
        """Of what newcomers have, what the program has made of the averages."""
        averages: dict[torch.nn.Parameter, torch.Tensor] = {}
        for slot in slots:
            if slot.members:
                parts = slot.averages.split([each.parameter.numel() for each in slot.members])
                averages.update({m.parameter: part for m, part in zip(slot.members, parts)})
        rows = []
        for index, parameter in enumerate(self._parameters[: self._sent + 1]):
            elements = parameter.numel() if index < self._sent else self._begin
            if parameter.grad is None or not elements:
                continue
            gradient = parameter.grad.detach()
            gradient = gradient.to_dense() if gradient.is_sparse else gradient
            gradient, average = range_of(gradient, 0, elements), averages.get(parameter)
            if average is None or not torch.equal(bytes_of(gradient), bytes_of(average[:elements])):
                rows.append([index, shape_of(gradient)])
                changed.append(gradient)
        return rows

    def _whole(self, index: int) -> tuple[torch.Tensor, dict[str, Any]]:
        """A parameter, or a buffer, with its state."""
        if index >= len(self._parameters):
            return self._buffers[index - len(self._parameters)].detach(), {}
        parameter = self._parameters[index]
        return parameter.detach(), self._updates.state_of(parameter)

    def _size_of(self, index: int, begin: int = 0) -> int:
        """Bytes of it from that element on."""
        values, state = self._whole(index)
        if begin:
            return (values.numel() - begin) * size_of_element(values, state)
        tensors: list[torch.Tensor] = []
        encoded([values, state], tensors)
        return sum(map(room_of, tensors))

    def _fill(self) -> tuple[list[list[Any]], int]:
        """Copies the next piece, as large as there is memory for; returns what is in it, and its size."""
        while True:
            sent, begin = self._sent, self._begin
            try:
                return self._fill_whole()
            except Error as error:
                if error.code != "exhausted" or not self._size.halve():
                    raise
                self._sent, self._begin = sent, begin

    def _fill_whole(self) -> tuple[list[list[Any]], int]:
        tensors: list[torch.Tensor] = []
        shapes: list[tuple[Shape, int]] = []
        size, contents = 0, []
        while self._sent < self._count:
            end = self._end_of_next(size)
            if end is None:
                break
            values, state = self._whole(self._sent)
            content = content_of(values, state, self._begin, end)
            contents.append([self._sent, self._begin, encoded(content, tensors)])
            for each in tensors[len(shapes) :]:
                shapes.append((shape_of(each), -1 if each.is_cpu else self._sent))
                size += room_of(each)
            self._begin = end
            if end == values.numel():
                self._sent, self._begin = self._sent + 1, 0
        return [contents, shapes], self._memory.write(tensors)

    def _end_of_next(self, size: int) -> int | None:
        """Behind which element the next range ends, of a piece that has that size so far; None: there is no room
        for one.
        """
        values, state = self._whole(self._sent)
        is_parameter = self._sent < len(self._parameters)
        divided = is_parameter and self._updates.is_of_elements and is_divisible(values, state)
        if not divided:
            self._begin = 0
        if size + self._size_of(self._sent, self._begin) <= self._size.bytes:
            return values.numel()
        if divided:
            room = self._size.bytes - size
            fit = room // size_of_element(values, state)
            return min(self._begin + fit, values.numel()) if room >= _RANGE_MIN else None
        # One that is larger goes with the small ones before it.
        return None if size > self._size.bytes // 4 else values.numel()


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
        self._memory = PieceMemory(session)
        self._gradients = PieceMemory(session)
        self._barrier: Operation | None = None
        self._answers: list[Operation] = []
        self._donor = 0  # its rank
        self._parameters: list[torch.nn.Parameter] = []
        self._held: set[int] = set()  # parameters that are as the others', or whose first elements are

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
        self._answers = []
        self._usage.pop_seats()
        seats = False
        while not seats:
            self._post_nothing()
            self._receive_piece(iteration)
            iteration += 1
            self._await_averages()
            seats = self._usage.pop_seats()
            self._receive_step(iteration)
        last, _ = self._receive(iteration)
        self._updates.set_outside(last["outside"])
        self._layout.set_contributors(0)

    def close(self) -> None:
        """It has all."""
        self._memory.close()
        self._gradients.close()

    def _receive(self, iteration: int) -> tuple[dict[str, Any], int]:
        """What the donor says next, and the size of what follows."""
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

    def _post_nothing(self) -> None:
        """For the next iteration, to which this rank gives nothing."""
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
            self._barrier = Operation(self._session, number, None, copied=False)

    def _await_averages(self) -> None:
        if self._barrier is not None:
            self._barrier.wait()
            self._barrier = None
        for slot in self._slots:
            self._layout.wait(slot.index)
        self._layout.end_forward()

    def _receive_piece(self, iteration: int) -> None:
        """What the donor has copied after that iteration."""
        about, size = self._receive(iteration)
        if not size:
            return
        begun_ns = time.monotonic_ns()
        self._memory.view(size)
        self._session.receive(self._memory.range(size), self._donor, _PIECE_TAG)
        took = torch.tensor([time.monotonic_ns() - begun_ns], dtype=torch.int64)
        self._answers = _unended(self._answers)
        self._answers.append(self._session.send(took, self._donor, _PIECE_TAG, async_op=True))
        contents, shapes = json.loads(about["piece"])
        everything = [*self._parameters, *self._buffers]
        tensors = self._memory.read(shape for shape, _ in shapes)
        # Of what is on a GPU, whose it is.
        tensors = [
            each if place < 0 else each.to(everything[place].device)
            for each, (_, place) in zip(tensors, shapes)
        ]
        with torch.inference_mode(False), torch.no_grad():
            for index, begin, content in contents:
                target, before = everything[index], {}
                if index < len(self._parameters):
                    before = self._updates.state_of(target)
                state = put_content(target, before, decoded(content, tensors), begin)
                if index < len(self._parameters):
                    self._updates.set_state(target, state)
                    self._held.add(index)

    def _receive_step(self, iteration: int) -> None:
        """Makes that iteration's update, as the others make it, of what this rank has."""
        step, size = self._receive(iteration)
        if not step:
            return
        members = {m.parameter: m for slot in self._slots for m in slot.members}
        for index, parameter in enumerate(self._parameters):
            parameter.grad = None  # of an attempt before, or of the program's
            member = members.get(parameter)
            if index in step["alone"] or member is None:
                continue
            if step["reads"] or not self._usage.is_idle(member):
                parameter.grad = member.view
        if size:
            self._receive_gradients(step["changed"], size)
        if self._clipping is not None and not step["reads"]:
            self._clipping.clip(self._parameters)
        held = [
            each
            for index, each in enumerate(self._parameters)
            if index in self._held and each.grad is not None
        ]
        self._updates.set_outside(step["outside"])
        self._updates.make(held, step["options"])
        for parameter in self._parameters:
            parameter.grad = None

    def _receive_gradients(self, changed: Sequence[tuple[int, Shape]], size: int) -> None:
        self._gradients.view(size)
        self._session.receive(self._gradients.range(size), self._donor, _GRADIENTS_TAG)
        gradients = self._gradients.read(shape for _, shape in changed)
        with torch.no_grad():
            for (index, _), gradient in zip(changed, gradients):
                parameter = self._parameters[index]
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                # What this rank has not of it yet is overwritten later.
                write_range(parameter.grad, 0, gradient)


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


def _unended(operations: Sequence[Operation]) -> list[Operation]:
    """Those that are still open; raises what the others failed with."""
    left = []
    for operation in operations:
        if operation.done():
            operation.wait()
        else:
            left.append(operation)
    return left
