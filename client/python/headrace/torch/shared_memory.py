"""Tensors of the host in memory that a group's collectives use in place."""

from __future__ import annotations

import collections
import ctypes
import math
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from headrace.arena import Arena, aligned
from headrace.dtypes import dtype_name, dtype_size
from headrace.torch.free_ranges import FreeRanges
from headrace.torch.places import Places
from headrace.torch.process_group import ProcessGroup

_GROWTH = 16 << 20  # bytes that are asked of the service at least
_REVIEW = 1024  # tensors, after which memory that they did not need goes back
_FILLS = {
    torch.ops.aten.empty.memory_format: None,
    torch.ops.aten.zeros.default: 0,
    torch.ops.aten.ones.default: 1,
}


class HostMemory:
    """Memory of one group's session; memory of freed tensors is used again. Thread-safe.

    It grows by a round trip to the service. Empty arenas are released when others must grow, and when
    ``_REVIEW`` tensors were made without them; the rest is released with the group.
    """

    def __init__(self, places: Places) -> None:
        self.places = places
        self._lock = threading.Lock()
        self._free = FreeRanges()
        self._arenas: dict[int, Arena] = {}  # by number
        self._next = 0
        # What tensors have left, to be taken up with the lock: a tensor may end at any time, in any thread.
        self._left: collections.deque[tuple[int, int, int]] = collections.deque()
        self._used = 0  # bytes that tensors lie in
        self._most_used = 0  # since the last review
        self._made = 0

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A contiguous tensor with undefined values. TypeError for types unknown to the service."""
        count = math.prod(shape)
        if count == 0:
            return torch.frombuffer(bytearray(8), dtype=dtype)[:0].view(tuple(shape))
        size = aligned(count * dtype_size(dtype_name(dtype)))
        with self._lock:
            number, offset = self._take(size)
            mapping = self._arenas[number].memory
        memory = (ctypes.c_char * size).from_buffer(mapping, offset)
        # The tensor's storage keeps ``memory``, whose end says that nobody has a view any more.
        weakref.finalize(memory, self._left.append, (number, offset, size)).atexit = False
        return torch.frombuffer(memory, dtype=dtype, count=count).view(tuple(shape))

    @property
    def size(self) -> int:
        """The bytes of all arenas."""
        with self._lock:
            return self._free.total

    def _take(self, size: int) -> tuple[int, int]:
        while self._left:
            number, offset, left = self._left.popleft()
            self._free.give_back(number, offset, left)
            self._used -= left
        found = self._free.take(size)
        if found is None:
            self._give_back(0)  # none of them is large enough
            self._grow(size)
            found = self._free.take(size)
        self._used += size
        self._most_used = max(self._most_used, self._used)
        self._made += 1
        if self._made % _REVIEW == 0:
            self._give_back(self._most_used)
            self._most_used = self._used
        return found

    def _grow(self, size: int) -> None:
        # In steps of an eighth, so that slowly growing tensors do not need a new arena each time.
        step = max(_GROWTH, 1 << max(0, size.bit_length() - 4))
        self._next += 1
        self._arenas[self._next] = self.places.add_host(-(-size // step) * step)
        self._free.add(self._next, self._arenas[self._next].size)

    def _give_back(self, kept: int) -> None:
        # Unused arenas, as long as ``kept`` bytes are left.
        for number in self._free.unused():
            if self._free.total - self._free.size_of(number) < kept:
                continue
            if self.places.remove_host(self._arenas[number]):
                self._free.remove(number)
                del self._arenas[number]


# The memory of each group that has asked for some.
_memories: weakref.WeakKeyDictionary[ProcessGroup, HostMemory] = (
    weakref.WeakKeyDictionary()
)


def memory_of(group: Any) -> HostMemory:
    """The shared memory of a group; None: of the default group. TypeError for another backend's."""
    if group is None:
        group = dist.distributed_c10d._get_default_group()
    if not isinstance(group, ProcessGroup):
        raise TypeError(
            "memory is shared by a process group of the backend headrace: call init_process_group"
            f'("headrace") first, or give such a group (this is {type(group).__name__})'
        )
    places = group.poster.places
    if group not in _memories or _memories[group].places is not places:  # reconfigured since
        _memories[group] = HostMemory(places)
    return _memories[group]


def empty(
    *size: int | Sequence[int], dtype: torch.dtype | None = None, group: Any = None
) -> torch.Tensor:
    """As torch.empty on the CPU, in memory that the group's collectives use without a copy.

        x = headrace.torch.empty(1024, 1024)
        torch.distributed.all_reduce(x)          # summed where it lies

    Contiguous views of it, too. ``group``: None is the default group; collectives of other groups copy, as
    they do with any tensor. A reduce-scatter into another tensor with unequal parts copies, too. The memory
    is used again when the last view of a tensor has gone.
    """
    shape = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
    return memory_of(group).empty(shape, dtype or torch.get_default_dtype())


class shared_memory(TorchDispatchMode):  # used as a function, like torch.no_grad
    """Within it torch.empty, zeros and ones on the CPU, and functions that use them, make such tensors as
    empty() does.

        with headrace.torch.shared_memory():
            model = Model()
            ddp = DistributedDataParallel(model, gradient_as_bucket_view=True, find_unused_parameters=True)

    So parameters, buffers and DDP's buckets lie in shared memory, and are summed in place. (Without
    find_unused_parameters DDP allocates them again in the second iteration: run that within the block, too.)
    """

    def __init__(self, group: Any = None) -> None:
        super().__init__()
        self._memory = memory_of(group)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        """Called by torch in place of every operation."""
        named = kwargs or {}
        if function not in _FILLS or not self._takes(named):
            return function(*args, **named)
        dtype = named.get("dtype") or torch.get_default_dtype()
        try:
            tensor = self._memory.empty(args[0], dtype)
        except TypeError:  # of a type unknown to the service
            return function(*args, **named)
        value = _FILLS[function]
        return tensor if value is None else tensor.fill_(value)

    @staticmethod
    def _takes(named: dict[str, Any]) -> bool:
        device = named.get("device")
        layout = named.get("layout")
        memory_format = named.get("memory_format")
        return (
            (device is None or torch.device(device).type == "cpu")
            and layout in (None, torch.strided)
            and memory_format in (None, torch.contiguous_format)
            and not named.get("pin_memory")
        )
