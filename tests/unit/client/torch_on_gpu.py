"""Tensors on a double's GPU, which torch takes for its own, for ranks of the backend "headrace"."""

from __future__ import annotations

import contextlib
import os

import headrace
import torch
import torch.distributed as dist
from doubled_gpu import as_torchs_gpu
from headrace.arena import _Placed
from headrace.region import Region

KINDS = ("allocated", "mapped", "not shareable")


def group_of(group=None):
    return group or dist.distributed_c10d._get_default_group()


@contextlib.contextmanager
def a_gpu(gpu):
    """Within it tensors are this GPU's; after it nothing asks torch for streams."""
    try:
        with as_torchs_gpu(gpu):
            yield
            dist.barrier()
    finally:
        group_of().poster.gpus.clear()


class Memory:
    """Tensors in memory of the double, of one of KINDS."""

    def __init__(self, gpu, kind):
        self.gpu, self.kind = gpu, kind
        self.base, self.used = 0, 0
        if kind == "allocated":
            self.base = gpu.allocate(1 << 20)
        elif kind == "mapped":  # as torch's expandable segments are: by pieces, with leave to export
            name = f"memory{dist.get_rank()}"
            self.session = headrace.init(name, 0, 1, os.environ["HEADRACE_SOCKET"])
            self.arena = self.session.arena(1 << 20, gpu.number)
            self.base = self.arena.region.address

    def tensor(self, values):
        values = torch.as_tensor(values)
        if self.kind == "not shareable":
            return values.clone()
        size = values.numel() * values.element_size()
        region = Region(self.base + self.used, size, 0, self)
        self.used += -(-size // 512) * 512
        placed = torch.from_dlpack(_Placed(region, "uint8", (size,), 0))
        return placed.view(values.dtype).view(values.shape).copy_(values)


def at_address(address, count):
    """A tensor of float32 in memory of the double."""
    region = Region(address, 4 * count, 0, None)
    return torch.from_dlpack(_Placed(region, "float32", (count,), 0))
