"""Where a tensor lies in memory that the service reaches, so that nothing is copied."""

from __future__ import annotations

import bisect
import dataclasses
import warnings
from collections.abc import Sequence

import torch

from headrace.arena import Arena, Range, Tensor
from headrace.dtypes import dtype_name
from headrace.errors import Error
from headrace.region import Foreign
from headrace.session import Session
from headrace.torch import devices

PIECES_MAX = 253  # of one allocation that is mapped in pieces; as the C header has it
_KEPT_MAX = 512  # allocations of torch's allocator that are shared at a time


@dataclasses.dataclass
class Place:
    """A piece of memory that is shared with the service."""

    base: int
    size: int
    arena: Arena
    numbers: tuple[int, ...] = ()  # of the allocations in it, as the driver counts them
    by_type: dict[str, Tensor] = dataclasses.field(default_factory=dict)

    def range_of(self, array: torch.Tensor) -> Range | None:
        """The array's part of it. None where elements do not lie at multiples of their size."""
        name = dtype_name(array.dtype)
        offset, rest = divmod(array.data_ptr() - self.base, array.element_size())
        if rest:
            return None
        if name not in self.by_type:
            self.by_type[name] = self.arena.whole(name)
        return self.by_type[name].range(offset, array.numel())

    def release(self) -> None:
        """Takes it back from the service. Busy while operations on it are open: it may be tried again."""
        for name, tensor in list(self.by_type.items()):
            tensor.release()
            del self.by_type[name]
        self.arena.release()

    def holds(self, size: int, numbers: tuple[int, ...]) -> bool:
        """Whether it is, or begins with, these allocations."""
        return self.size >= size and self.numbers[: len(numbers)] == numbers


class Places:
    """The shared memory of one session: of the host as arenas of empty(), of GPUs as torch allocates it.

    An allocation on a GPU is shared when a tensor in it is first used, as a whole, and taken back when the
    driver says that another one lies at its address, or many more have been used since. Of a segment in pieces
    that is as far as the longest tensor reaches that begins in the same piece. Of one thread at a time; another
    may add and remove memory of the host meanwhile.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        # Arenas of the host by address, and their addresses: replaced as a whole, since others may look.
        self._host: tuple[list[int], list[Place]] = ([], [])
        self.has_host = False  # whether any memory of the host is shared
        self._on_gpus: dict[int, Place] = {}  # by address; the last one used stands last
        self._replaced: list[Place] = []  # were in use when others took their places
        self._has_told: set[str] = set()

    def add_host(self, size: int) -> Arena:
        """An arena of the session in the host's memory, whose tensors are found from now on."""
        arena = self._session.arena(size)
        self._set_host([*self._host[1], Place(arena.region.address, arena.size, arena)])
        return arena

    def remove_host(self, arena: Arena) -> bool:
        """Takes an arena of add_host() back from the service. False: operations on it are still open."""
        place = next(place for place in self._host[1] if place.arena is arena)
        if not _is_released(place):
            return False
        self._set_host([each for each in self._host[1] if each is not place])
        return True

    def _set_host(self, places: list[Place]) -> None:
        places.sort(key=lambda place: place.base)
        self._host = ([place.base for place in places], places)
        self.has_host = bool(places)

    def find(self, array: torch.Tensor) -> Range | None:
        """Where a contiguous array lies; None: in memory of its own."""
        if array.numel() == 0:
            return None
        device = devices.device_of(array)
        place = self._find_host(array) if device is None else self._find_gpu(array)
        return None if place is None else place.range_of(array)

    def find_whole(
        self, pieces: Sequence[tuple[int, torch.Tensor]], count: int
    ) -> Range | None:
        """Returns the range of the array that these pieces make up, one behind the other without gaps in memory."""
        if count == 0 or (not self._host[1] and devices.device_of(pieces[0][1]) is None):
            return None
        end, address = 0, None
        for offset, part in pieces:
            if not part.numel():
                continue  # which has no address
            if address is None:
                address = part.data_ptr()
            beside = address + offset * part.element_size()
            if offset != end or part.data_ptr() != beside:
                return None
            end = offset + part.numel()
        if end != count or address is None:
            return None
        first = next(part for _, part in pieces if part.numel())
        return self.find(first.as_strided((count,), (1,)))

    def find_both(
        self, pieces: Sequence[tuple[int, torch.Tensor]], count: int, other: torch.Tensor
    ) -> tuple[Range | None, Range | None]:
        """As find_whole() and find(), of what one operation uses together."""
        # What begins in the same piece of a GPU's segment and reaches farther has it shared anew, and what was
        # found there before is taken back.
        if devices.device_of(other) is not None and self.find(other) is None:
            return None, None
        whole = self.find_whole(pieces, count)
        return whole, None if whole is None else self.find(other)

    def find_messages(
        self,
        received: Sequence[tuple[int, torch.Tensor]],
        sent: Sequence[tuple[int, torch.Tensor]],
        own: int,
    ) -> tuple[list[Range], list[Range]] | None:
        """Where the arrays of one all_to_all, gather or scatter lie, each given with the other rank.

        None where the service does not take them as they lie: all are of one arena and type, those received
        stand in the ranks' order, and none of those between the first and the last that is sent. What rank
        ``own``, this one, has for itself may be anywhere in the arena.
        """
        if not self._host[1]:
            return None
        found = [self.find(array) for _, array in (*received, *sent)]
        known = next((place for place in found if place is not None), None)
        if known is None:
            return None
        for (_, array), place in zip((*received, *sent), found):
            if array.numel() and (place is None or place.tensor is not known.tensor):
                return None
        ranges = [place or Range(known.tensor, 0, 0) for place in found]
        targets, sources = ranges[: len(received)], ranges[len(received) :]
        into = _others(received, targets, own)
        out = sorted(_others(sent, sources, own))
        if any(begin < end for (_, end), (begin, _) in zip(into, into[1:])):
            return None
        if into and out and into[0][0] < max(end for _, end in out) and out[0][0] < into[-1][1]:
            return None
        return targets, sources

    def _find_host(self, array: torch.Tensor) -> Place | None:
        begin = array.data_ptr()
        bases, places = self._host
        at = bisect.bisect_right(bases, begin) - 1
        if at < 0:
            return None
        place = places[at]
        return place if _end(array) <= place.base + place.size else None

    def _find_gpu(self, array: torch.Tensor) -> Place | None:
        try:
            base, size, numbers = self._allocations(array)
            if 0 in numbers:  # so nobody could tell it from the next one at its address
                self._tell("the driver does not number allocations")
                return None
            if base + size < _end(array):
                self._tell(f"it lies in more than {PIECES_MAX} pieces")
                return None
            known = self._on_gpus.pop(base, None)
            if known is not None and not known.holds(size, numbers):
                self._replaced.append(known)
                known = None
            self._replaced = [place for place in self._replaced if not _is_released(place)]
            if known is None:
                known = Place(base, size, self._share(base, size), numbers)
            self._on_gpus[base] = known
            self._drop_old()
            return known
        except Error as error:
            self._tell(str(error))
            return None

    def _allocations(self, array: torch.Tensor) -> tuple[int, int, tuple[int, ...]]:
        """The allocations that the array lies in, together: where, how large, and their numbers."""
        found = self._session.allocation_of(array.data_ptr())
        base, end, numbers = found.base, found.base + found.size, [found.number]
        while end < _end(array) and len(numbers) < PIECES_MAX:
            found = self._session.allocation_of(end)
            end += found.size
            numbers.append(found.number)
        return base, end - base, tuple(numbers)

    def _share(self, base: int, size: int) -> Arena:
        memory = Foreign.__new__(Foreign)
        memory.address, memory.owner = base, None
        return Arena(self._session, size, around=memory)

    def _drop_old(self) -> None:
        for base in list(self._on_gpus)[: len(self._on_gpus) - _KEPT_MAX]:
            if not _is_released(self._on_gpus[base]):
                return  # the next one looks again
            del self._on_gpus[base]

    def _tell(self, why: str) -> None:
        if self._has_told:
            return
        self._has_told.add(why)
        warnings.warn(
            f"headrace: a tensor on a GPU is copied on its way, since its memory cannot be shared: {why} "
            "(said once)",
            stacklevel=2,
        )


def _others(
    arrays: Sequence[tuple[int, torch.Tensor]], ranges: Sequence[Range], own: int
) -> list[tuple[int, int]]:
    """Begin and end of each that is not empty, and is for another rank."""
    return [
        (each.offset, each.offset + each.count)
        for (rank, _), each in zip(arrays, ranges)
        if rank != own and each.count
    ]


def _is_released(place: Place) -> bool:
    """Whether it could be taken back now: not while operations on it are open."""
    try:
        place.release()
    except Error:
        return False
    return True


def _end(array: torch.Tensor) -> int:
    return array.data_ptr() + array.numel() * array.element_size()
