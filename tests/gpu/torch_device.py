"""Where the ranks of this folder's scripts have their tensors: on their GPU, or in a rehearsal on the CPU."""

from __future__ import annotations

import os

import torch

REHEARSAL = "GPU_REHEARSAL" in os.environ


def device() -> torch.device:
    """This rank's GPU, current from here on."""
    if REHEARSAL:
        return torch.device("cpu")
    ordinal = int(os.environ.get("GPU_ORDINAL", "0"))
    torch.cuda.set_device(ordinal)
    return torch.device("cuda", ordinal)


def synchronize() -> None:
    """Until everything that was put into this rank's GPU is done."""
    if not REHEARSAL:
        torch.cuda.synchronize()
