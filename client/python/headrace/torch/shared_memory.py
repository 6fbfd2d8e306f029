"""Tensors of the host in memory that a group's collectives use in place."""

from __future__ import annotations

import ctypes
import math
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from headrace.arena import aligned
from headrace.dtypes import dtype_name, dtype_size
from headrace.torch.places import Places
from headrace.torch.process_group import ProcessGroup

_GROWTH = 16 << 20  # bytes that are asked of the service at least
_FILLS = {
    torch.ops.aten.empty.memory_format: None,
    torch.ops.aten.zeros.default: 0,
    torch.ops.aten.ones.default: 1,
}


class HostMemory:
    """Memory of one group's session; what a tensor leaves behind is used again. Thread-safe.

    It grows by a round trip to the service, and goes back with the group.
    """

    def __init__(self, places: Places) -> None:
        self.places = places
        self._lock = threading.RLock()  # a tensor may end while another is made
        self._free: dict[int, list[tuple[Any, int]]] = {}  # by size: mappings and offsets
        self._rest: tuple[Any, int, int] | None = None  # a mapping, and what of it was never used

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A contiguous tensor with undefined values. TypeError for types unknown to the service."""
        count = math.prod(shape)
        if count == 0:
            return torch.frombuffer(bytearray(8), dtype=dtype)[:0].view(tuple(shape))
        size = aligned(count * dtype_size(dtype_name(dtype)))
        with self._lock:
            mapping, offset = self._take(size)
        memory = (ctypes.c_char * size).from_buffer(mapping, offset)
        weakref.finalize(memory, self._give_back, mapping, offset, size).atexit = False
        # The tensor's storage keeps ``memory``, whose end says that nobody has a view any more.
        return torch.frombuffer(memory, dtype=dtype, count=count).view(tuple(shape))

    def _take(self, size: int) -> tuple[Any, int]:
        free = self._free.get(size)
        if free:
            return free.pop()
        if self._rest is None or self._rest[2] - self._rest[1] < size:
            arena = self.places.add_host(max(size, _GROWTH))
            self._rest = (arena.memory, 0, arena.size)
        mapping, offset, end = self._rest
        self._rest = (mapping, offset + size, end)
        return mapping, offset

    def _give_back(self, mapping: Any, offset: int, size: int) -> None:
        with self._lock:
            self._free.setdefault(size, []).append((mapping, offset))


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
    they do with any tensor. Whole arrays only: a reduce-scatter, which must leave its input alone, copies. The
    memory is used again when the last view of a tensor has gone.
    """
    shape = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
    return memory_of(group).empty(shape, dtype or torch.get_default_dtype())


class shared_memory(TorchDispatchMode):  # used as a function, like torch.no_grad
    """Within it torch.empty, zeros and ones of the CPU, and what is made of these, are as empty() makes them.

        with headrace.torch.shared_memory():
            model = Model()
            ddp = DistributedDataParallel(model, gradient_as_bucket_view=True, find_unused_parameters=True)

    So parameters, buffers and DDP's buckets lie in shared memory, and are summed in place. (Without
    find_unused_parameters DDP makes them anew in the second iteration: let that run within it, too.)
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
