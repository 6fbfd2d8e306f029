"""Which parameters any rank's backward pass has reached: the others are left alone, as torch does."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from headrace.torch.slots import Member, Slot


class Usage(Slot):
    """Gradient 0 of the layout: an element for each parameter, which is not zero where a rank has used it.

    It is posted last of an iteration's gradients, so it stands where the planner expects that. Whoever has
    a gradient of his own for a parameter knows without it that the parameter was used.

    ``tells``: two elements more are not zero where a rank knows of others that wait to join, and where
    newcomers have been sent all that the others have, so that all ranks learn of it in one iteration.
    """

    def __init__(self, slots: Sequence[Slot], tells: bool = False) -> None:
        super().__init__(0, [])
        self._tells = tells
        self._place = {}
        for slot in slots:
            for member in slot.members:
                self._place[id(member)] = len(self._place)
        self._all = [member for slot in slots for member in slot.members]
        # That of its neighbour, so that both travel as one piece of memory.
        self._dtype = slots[0].dtype
        self._reduced: list[float] | None = None  # read since the last post

    @property
    def name(self) -> str:
        """For tables and errors."""
        return "parameters in use"

    @property
    def shape(self) -> tuple[int, ...]:
        """An element for each parameter, and two for those that wait and for newcomers."""
        return (len(self._all) + 2 * self._tells,)

    @property
    def dtype(self) -> torch.dtype:
        """That of the first gradient."""
        return self._dtype

    def take_views(self, gradient: torch.Tensor) -> None:
        """Its memory."""
        self.memory = gradient.view(-1)

    def note(self, waits: bool = False, seats: bool = False) -> None:
        """Before it is posted, and after all others: what this rank has used, whether it knows of others that
        wait to join, and whether it has sent newcomers all that it has.
        """
        self._reduced = None
        if all(member.used for member in self._all):
            self.memory.fill_(1)
        else:
            used = [float(member.used) for member in self._all] + [0.0] * (2 * self._tells)
            self.memory.copy_(torch.tensor(used, dtype=self._dtype))
        if self._tells:
            self.memory[-2:] = torch.tensor([float(waits), float(seats)], dtype=self._dtype)

    def note_nothing(self) -> None:
        """Instead of note(), of a rank that gives nothing to the iteration."""
        self._reduced = None
        self.memory.zero_()

    def pop_waits(self) -> bool:
        """Whether any rank knew in the last iteration, all of whose averages are there, of others that
        wait to join; the same on all ranks, and once.
        """
        return self._pop(-2)

    def pop_seats(self) -> bool:
        """Likewise whether newcomers have been sent all in the last iteration."""
        return self._pop(-1)

    def _pop(self, place: int) -> bool:
        if not self._tells or not float(self.memory[place]):
            return False
        self.memory[place] = 0
        return True

    def is_idle(self, member: Member) -> bool:
        """Whether no rank has used the parameter. After the wait for this slot, unless this rank has."""
        if member.used:
            return False
        if self._reduced is None:
            self._reduced = self.memory.tolist()  # from a GPU, behind what its stream waits for
        return self._reduced[self._place[id(member)]] == 0
