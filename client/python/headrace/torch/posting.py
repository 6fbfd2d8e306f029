"""How an array is posted: where it lies, copied by the library, or by way of an arena on its GPU."""

from __future__ import annotations

import collections
import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from headrace.arena import Range
from headrace.dtypes import dtype_name, dtype_size
from headrace.errors import Error
from headrace.operation import Operation
from headrace.pieces import Pieces, one_by_one
from headrace.session import Session
from headrace.torch import devices
from headrace.torch.outcomes import Outcomes
from headrace.torch.places import Places

_STAGE_MIN = 1 << 21  # bytes; a GPU hands out no less
_FREE_MAX = 16  # pieces of stage of one size that are kept

PieceList = Sequence[tuple[int, torch.Tensor]]


class StreamOperation:
    """An operation on memory of a GPU, for which streams wait."""

    def __init__(
        self,
        operation: Operation,
        device: int,
        stream: int,
        in_place: Sequence[torch.Tensor] = (),
        copies: Sequence[tuple[torch.Tensor, torch.Tensor]] = (),
        give_back: Callable[[], None] | None = None,
    ) -> None:
        self.device = device
        self.stream = stream  # in which it was posted
        # The service reads or writes these where they lie. Some are nobody else's, such as contiguous copies.
        self._in_place = in_place
        self._operation = operation
        self._copies = copies  # (from, to), once it has ended
        self._give_back = give_back

    def wait(self, limit_s: float | None = None) -> None:
        """As Operation.wait: the host waits."""
        self._operation.wait(limit_s)

    def done(self) -> bool:
        """As Operation.done."""
        return self._operation.done()

    @property
    def source(self) -> int:
        """As Operation.source."""
        return self._operation.source

    def wait_on(self, stream: int) -> Operation:
        """Has the current stream wait; its results are then in the tensors, for what comes after."""
        self._operation.wait_on(stream)
        return self._operation

    def release_memory(self) -> None:
        """Lets go of its tensors. The current stream has been made to wait for its end: no later work of another
        stream gets their memory before that.
        """
        if devices.current_stream(self.device) != self.stream:
            for tensor in [*self._in_place, *(target for _, target in self._copies)]:
                devices.keep_for_stream(tensor)
        self._in_place = ()

    def take_results(self) -> None:
        """Copies what lies in the stage, in the order of the current stream."""
        with torch.no_grad():
            for source, target in self._copies:
                target.copy_(source)
        self._copies = ()
        if self._give_back is not None:
            self._give_back()
            self._give_back = None


class StagingBuffers:
    """Memory on GPUs that is shared with the service, for what cannot be shared where it lies."""

    def __init__(self, session: Session) -> None:
        self._session = session
        # By GPU, type and size: arrays, and the event after which each may be written to.
        self._free: dict[tuple, collections.deque[tuple[Range, torch.Tensor, Any]]] = (
            collections.defaultdict(collections.deque)
        )

    def take(
        self, device: int, dtype: torch.dtype, count: int
    ) -> tuple[Range, torch.Tensor, Callable[[], None]]:
        """An array of that many elements, a view of it, and what gives it back in stream order."""
        size = dtype_size(dtype_name(dtype))
        room = max(_STAGE_MIN, 1 << (count * size - 1).bit_length()) // size
        key = (device, dtype, room)
        free = self._free[key]
        if free:
            whole, memory, event = free.popleft()
            devices.wait_event(device, event)
        else:
            tensor = self._session.arena(room * size, device).tensor((room,), dtype)
            whole, memory = tensor.range(0, room), tensor.torch()

        def give_back() -> None:
            if len(free) < _FREE_MAX:
                free.append((whole, memory, devices.record_event(device)))

        return whole.tensor.range(0, count), memory[:count], give_back


class Poster:
    """Posts collectives of one session on tensors wherever they lie. Thread-safe."""

    def __init__(self, session: Session) -> None:
        self.places = Places(session)
        self.outcomes = Outcomes()
        self.gpus: set[int] = set()
        self._staging = StagingBuffers(session)
        # Autograd may post from a thread for each GPU.
        self._lock = threading.RLock()

    def post(
        self,
        collective: Callable[..., Operation],
        array: torch.Tensor,
        *arguments: Any,
        writes: bool = True,
    ) -> list[Operation | StreamOperation]:
        """One operation on an array. An empty one is posted, too: other ranks match it."""
        device = devices.device_of(array)
        if device is None and not self.places.has_host:
            return [collective(array, *arguments, async_op=True)]
        devices.refuse_capture(device)
        with self._lock:
            where = self.places.find(array)
            if device is None:
                x = array if where is None else where
                return [collective(x, *arguments, async_op=True)]
            written = [array] if writes else []
            return [self._on_gpu(collective, device, where, array, written, arguments)]

    def is_shared(self, array: torch.Tensor) -> bool:
        """Whether it lies in memory that the service reaches."""
        with self._lock:
            return self.places.find(array) is not None

    def post_pieces(
        self,
        collective: Callable[..., Operation],
        count: int,
        read: PieceList,
        written: PieceList,
        *arguments: Any,
    ) -> list[Operation | StreamOperation]:
        """The same of an array of ``count`` elements that lies in several tensors. What is only read stays as it is."""
        first = next(array for _, array in [*read, *written])
        device = devices.device_of(first)
        devices.refuse_capture(device)
        with self._lock:
            whole = self.places.find_whole(written, count) if written else None
            if device is not None:
                operation = self._pieces_on_gpu(
                    collective, device, count, whole, read, written, arguments
                )
                return [operation]
        if whole is not None:
            _gather_into(read, _flat_of(written, count))
            return [collective(whole, *arguments, async_op=True)]
        pieces = Pieces(
            count,
            dtype_name(first.dtype),
            [piece for piece in read if piece[1].numel()],
            [piece for piece in written if piece[1].numel()],
        )
        return [collective(pieces, *arguments, async_op=True)]

    def where(
        self,
        received: Iterable[tuple[int, torch.Tensor]],
        sent: Iterable[tuple[int, torch.Tensor]],
        own: int,
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """Arrays of an all_to_all, gather or scatter, each with the other rank, as the session takes them: where
        they lie in shared memory, or as they are, to be copied. ``own``: this rank.
        """
        targets, sources = list(received), list(sent)
        with self._lock:
            found = self.places.find_messages(targets, sources, own)
        return found or ([array for _, array in targets], [array for _, array in sources])

    def post_parts(
        self,
        collective: Callable[..., Operation],
        parts: Sequence[torch.Tensor],
        own: torch.Tensor,
        rank: int,
    ) -> list[Operation]:
        """An all-gather in the host's memory of parts of any size, of which this rank gives ``own``."""
        pieces = one_by_one(parts)
        count = sum(part.numel() for part in parts)
        with self._lock:
            whole = self.places.find_whole(pieces, count)
        if whole is None:
            return [collective(parts, own, async_op=True)]
        _gather_into([(pieces[rank][0], own)], _flat_of(pieces, count))
        ranges = [
            Range(whole.tensor, whole.offset + offset, part.numel()) for offset, part in pieces
        ]
        return [collective(ranges, ranges[rank], async_op=True)]

    def post_reduce_scatter(
        self,
        reduce_scatter: tuple[Callable[..., Operation], Callable[..., Operation]],
        parts: Sequence[torch.Tensor],
        result: torch.Tensor,
        rank: int,
        name: str,
    ) -> list[Operation | StreamOperation]:
        """A reduce-scatter of equal parts, which stay as they are, of which this rank's goes to ``result``.

        ``reduce_scatter``: the session's, and its reduce_scatter_parts for what the service reads where it lies.
        """
        in_place, elsewhere = reduce_scatter
        pieces = one_by_one(parts)
        count = sum(part.numel() for part in parts)
        device = devices.device_of(result)
        devices.refuse_capture(device)
        with self._lock:
            whole, place = self.places.find_both(pieces, count, result)
            if whole is not None and place is not None and not _overlap(pieces[0][1], count, result):
                ranges = [
                    Range(whole.tensor, whole.offset + at, part.numel()) for at, part in pieces
                ]
                if device is None:
                    return [elsewhere(place, ranges, name, async_op=True)]
                used = [result, *parts]
                return [self._posted(elsewhere, place, device, (ranges, name), used)]
        return self.post_pieces(in_place, count, pieces, [(pieces[rank][0], result)], name)

    def _on_gpu(
        self,
        collective: Callable[..., Operation],
        device: int,
        where: Range | None,
        array: torch.Tensor,
        written: Sequence[torch.Tensor],
        arguments: tuple,
    ) -> StreamOperation:
        if where is not None:
            return self._posted(collective, where, device, arguments, [array])
        where, memory, give_back = self._staging.take(device, array.dtype, array.numel())
        memory.copy_(array)
        copies = [(memory, target) for target in written]
        return self._posted(collective, where, device, arguments, (), copies, give_back)

    def _pieces_on_gpu(
        self,
        collective: Callable[..., Operation],
        device: int,
        count: int,
        whole: Range | None,
        read: PieceList,
        written: PieceList,
        arguments: tuple,
    ) -> StreamOperation:
        if whole is not None:
            _gather_into(read, _flat_of(written, count))
            in_place = [part for _, part in written]
            return self._posted(collective, whole, device, arguments, in_place)
        if not written and (whole := self.places.find_whole(read, count)) is not None:
            in_place = [part for _, part in read]
            return self._posted(collective, whole, device, arguments, in_place)
        dtype = next(array.dtype for _, array in [*read, *written])
        where, memory, give_back = self._staging.take(device, dtype, count)
        _gather_into(read, memory)
        copies = [(memory[at : at + part.numel()], part) for at, part in written]
        return self._posted(collective, where, device, arguments, (), copies, give_back)

    def _posted(
        self,
        collective: Callable[..., Operation],
        where: Range,
        device: int,
        arguments: tuple,
        in_place: Sequence[torch.Tensor] = (),
        copies: Sequence[tuple[torch.Tensor, torch.Tensor]] = (),
        give_back: Callable[[], None] | None = None,
    ) -> StreamOperation:
        self.outcomes.check()
        self.gpus.add(device)
        stream = devices.current_stream(device)
        operation = collective(where, *arguments, async_op=True, stream=stream)
        self.outcomes.add(operation)
        return StreamOperation(operation, device, stream, in_place, copies, give_back)

    def synchronize(self) -> None:
        """Waits until GPUs have done what stands before this in their current streams."""
        for device in self.gpus:
            devices.synchronize(device)

    def finish(self) -> None:
        """Waits for what only streams await, before the session is closed; nobody is left to tell."""
        with contextlib.suppress(Error):
            self.outcomes.finish()


def _gather_into(read: PieceList, memory: torch.Tensor) -> None:
    with torch.no_grad():
        for offset, part in read:
            place = memory[offset : offset + part.numel()]
            if part.numel() and part.data_ptr() != place.data_ptr():
                place.copy_(part)


def _overlap(first: torch.Tensor, count: int, other: torch.Tensor) -> bool:
    begin, size = first.data_ptr(), first.element_size()
    return other.data_ptr() < begin + count * size and begin < other.data_ptr() + other.numel() * size


def _flat_of(written: PieceList, count: int) -> torch.Tensor:
    first = next(part for _, part in written if part.numel())
    return first.as_strided((count,), (1,))
