"""What PyTorch has: the same gradient by gloo, as float32 and as float16, and by PowerSGD's hook over it.

gloo of Debian 12's PyTorch (1.13) takes no bfloat16 ("Invalid scalar type"), so float16 stands for it.
"""

from __future__ import annotations

import time

import numpy
import torch
import torch.distributed
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

RANK = 4  # of PowerSGD's matrices


class Gloo:
    """One all_reduce, cast to ``dtype`` and back where that is not float32."""

    def __init__(self, mine: numpy.ndarray, dtype: torch.dtype = torch.float32) -> None:
        self._mine = torch.from_numpy(mine)
        self._dtype = dtype
        self.values = mine.copy()

    def iterate(self) -> float:
        """Seconds from the gradient to the sum."""
        torch.distributed.barrier()
        began = time.monotonic()
        # A copy in any case, as of a gradient that is summed where it lies.
        sent = self._mine.to(self._dtype, copy=True)
        torch.distributed.all_reduce(sent)
        result = sent.to(torch.float32)
        seconds = time.monotonic() - began
        self.values = result.numpy()
        return seconds


class _Product(torch.nn.Module):
    """Its gradient is what it is given."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(side, side))

    def forward(self, gradient: torch.Tensor) -> torch.Tensor:
        return (self.weight * gradient).sum()


class PowerSgd:
    """DistributedDataParallel over one square matrix, of as many elements as fit, with PowerSGD's hook.

    Its first two iterations go uncompressed. Times include a backward pass, which is one product.
    """

    def __init__(self, mine: numpy.ndarray) -> None:
        side = int(len(mine) ** 0.5)
        self._mine = torch.from_numpy(mine[: side * side]).view(side, side)
        self._model = torch.nn.parallel.DistributedDataParallel(_Product(side))
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=RANK, start_powerSGD_iter=2)
        self._model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        self.values = mine[: side * side].copy()

    def iterate(self) -> float:
        """Seconds from the begin of backward to the sum."""
        self._model.zero_grad()
        loss = self._model(self._mine)
        torch.distributed.barrier()
        began = time.monotonic()
        loss.backward()
        seconds = time.monotonic() - began
        average = self._model.module.weight.grad
        self.values = (average * torch.distributed.get_world_size()).flatten().numpy()
        return seconds


def make(name: str, mine: numpy.ndarray) -> Gloo | PowerSgd:
    """One of compression's CONTENDERS; all ranks call it in the same order."""
    if not torch.distributed.is_initialized():
        torch.set_num_threads(1)
        torch.distributed.init_process_group("gloo")
    if name == "gloo-powersgd":
        return PowerSgd(mine)
    return Gloo(mine, torch.float16 if name == "gloo-fp16" else torch.float32)
