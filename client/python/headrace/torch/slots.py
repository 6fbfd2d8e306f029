"""Which parameters' gradients travel as one gradient of the layout."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from headrace.torch.names import digest

if TYPE_CHECKING:
    from headrace.operation import Operation
    from headrace.torch.open_gradient import OpenGradient

SLOTS_MAX = 768  # gradients of a layout, as ipc/layout_limits.h has it
_NAME_MAX = 255  # bytes, as the C header has it


@dataclasses.dataclass
class Member:
    """One parameter, and where its gradient lies."""

    name: str
    parameter: torch.nn.Parameter
    view: torch.Tensor = dataclasses.field(default_factory=lambda: torch.empty(0))
    open: OpenGradient | None = None  # stands in .grad while the service has the view
    arrived: bool = False  # backward has produced it since the last post
    used: bool = True  # it had a gradient when it was last posted
    frozen: bool = False  # when step() was called: it is left alone

    def adopt(self, scale: float | None = None) -> None:
        """Has the gradient lie in the view, times ``scale``; none counts as zeros."""
        gradient = self.parameter.grad
        self.used = gradient is not None
        if gradient is None:
            self.view.zero_()
        elif scale is not None:
            dense = gradient.to_dense() if gradient.is_sparse else gradient
            torch.mul(dense.detach(), scale, out=self.view)
        elif gradient is not self.view:
            dense = gradient.to_dense() if gradient.is_sparse else gradient
            self.view.copy_(dense)
        self.parameter.grad = self.view


@dataclasses.dataclass
class Slot:
    """Gradient ``index`` of the layout: one parameter's, or several neighbours'."""

    index: int
    members: list[Member]
    open: bool = False  # posted, and not known to have ended since
    asked_for: bool = True  # by a forward pass, since it was posted
    operation: Operation | None = None  # the last post; None: lost before it was made
    memory: torch.Tensor = dataclasses.field(default_factory=lambda: torch.empty(0))
    kept: torch.Tensor | None = None  # this rank's gradient as it was posted, to post it again
    # What one encoding of it hands on to the next, where this rank has it: Layout.carried.
    carried: list[torch.Tensor] = dataclasses.field(default_factory=list)
    carried_kept: list[torch.Tensor] = dataclasses.field(default_factory=list)  # before the last post
    averages: torch.Tensor | None = None  # a copy, while a rank that is behind may need them
    # The options of each parameter group at step(); None: no update is due.
    due: list[dict[str, Any]] | None = None

    @property
    def name(self) -> str:
        """For tables and errors, and for ranks to compare: those of all members are in it.

        Where they do not fit, or are several, a digest stands for what is not shown.
        """
        first, last = self.members[0].name, self.members[-1].name
        if len(self.members) == 1 and len(first.encode()) <= _NAME_MAX:
            return first
        whole = digest("\0".join(member.name for member in self.members)).hex()[:16]
        shown = first if len(self.members) == 1 else f"{first} .. {last}"
        if len(shown.encode()) > _NAME_MAX - 20:
            shown = shown[: _NAME_MAX // 5]
        return f"{shown} #{whole}"

    @property
    def shape(self) -> tuple[int, ...]:
        """A single parameter's own; several lie one behind the other."""
        if len(self.members) == 1:
            return tuple(self.members[0].parameter.shape)
        return (sum(member.parameter.numel() for member in self.members),)

    @property
    def parts(self) -> list[tuple[str, tuple[int, ...]]]:
        """Names and shapes of its parameters."""
        return [(m.name, tuple(m.parameter.shape)) for m in self.members]

    @property
    def dtype(self) -> torch.dtype:
        """That of all its parameters."""
        return self.members[0].parameter.dtype

    def set_carried(self, memory: Sequence[memoryview]) -> None:
        """What encodings hand on is there."""
        self.carried = [torch.frombuffer(each, dtype=torch.uint8) for each in memory]

    def keep(self) -> None:
        """Copies this rank's gradient, which is about to be posted, and what encodings have handed on."""
        if self.kept is None:
            self.kept = torch.empty_like(self.memory)
            self.carried_kept = [torch.empty_like(each) for each in self.carried]
        self.kept.copy_(self.memory)
        for kept, each in zip(self.carried_kept, self.carried):
            kept.copy_(each)

    def restore_carried(self) -> None:
        """As it was before the gradient was first posted, which is to be summed again."""
        for kept, each in zip(self.carried_kept, self.carried):
            each.copy_(kept)

    def take_views(self, gradient: torch.Tensor) -> None:
        """Gives each parameter its part of the slot's memory."""
        self.memory = flat = gradient.view(-1)
        parts = flat.split([member.parameter.numel() for member in self.members])
        for member, part in zip(self.members, parts):
            member.view = part.view(member.parameter.shape)


def all_used(slots: Sequence[Slot]) -> bool:
    """Whether this rank had a gradient for every parameter."""
    return all(member.used for slot in slots for member in slot.members)


def make_slots(
    members: Sequence[Member],
    modules: Mapping[torch.nn.Parameter, int],
    most: int,
    first: int = 0,
) -> list[Slot]:
    """At most so many slots for members in forward order, numbered from ``first`` on.

    One each where that suffices. Else neighbours of one module (``modules`` numbers them) are put
    together; and if these are still too many, neighbouring modules, the smallest first. What is put
    together has one element type.
    """
    groups = [[member] for member in members]
    if len(groups) > most:
        whole = _by_module(members, modules)
        groups = _of_one_type(whole)
        if len(groups) > most:
            groups = _of_one_type(_packed(whole, most))
    return [Slot(index, group) for index, group in enumerate(groups, first)]


def _of_one_type(groups: Sequence[list[Member]]) -> list[list[Member]]:
    """Each group as one for each of its element types."""
    split = []
    for group in groups:
        by_type: dict[torch.dtype, list[Member]] = {}
        for member in group:
            by_type.setdefault(member.parameter.dtype, []).append(member)
        split += by_type.values()
    return split


def _by_module(
    members: Sequence[Member], modules: Mapping[torch.nn.Parameter, int]
) -> list[list[Member]]:
    groups: list[list[Member]] = []
    last = None
    for member in members:
        module = modules.get(member.parameter)
        if module == last:
            groups[-1].append(member)
        else:
            groups.append([member])
        last = module
    return groups


def _packed(groups: list[list[Member]], most: int) -> list[list[Member]]:
    """Neighbours together up to a size, which is the smallest that gives few enough of one type."""
    sizes = [sum(member.parameter.numel() for member in group) for group in groups]
    low, high = 1, sum(sizes)
    while low < high:
        middle = (low + high) // 2
        if len(_of_one_type(_joined(groups, _cut(sizes, middle)))) <= most:
            high = middle
        else:
            low = middle + 1
    return _joined(groups, _cut(sizes, low))


def _joined(
    groups: Sequence[list[Member]], counts: Sequence[int]
) -> list[list[Member]]:
    joined, begin = [], 0
    for count in counts:
        joined.append([m for group in groups[begin : begin + count] for m in group])
        begin += count
    return joined


def _cut(sizes: Sequence[int], most: int) -> list[int]:
    """How many neighbours make up each piece, if no piece but a single one is larger than that."""
    counts: list[int] = []
    room = -1
    for size in sizes:
        if counts and size <= room:
            counts[-1] += 1
            room -= size
        else:
            counts.append(1)
            room = most - size
    return counts
