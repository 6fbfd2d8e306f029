"""A GPU for a rank without one: the double of CUDA's driver, whose memory is the host's.

Ranks that are to have it are started after use_double(), and their service is gpu_service().
"""

from __future__ import annotations

import os

from ranks import Service, ServiceCase
from support.doubled_gpu import DoubledGpu, as_torchs_gpu

__all__ = ["DoubledGpu", "DoubledGpuCase", "as_torchs_gpu", "gpu_service", "use_double"]

LIBRARY = os.path.join(
    os.environ.get("HEADRACE_BUILD", "build/release"),
    "tests/support/cuda_double/libcuda.so.1",
)


def use_double() -> None:
    """Has the client library of this process, and of its children, take the double."""
    os.environ["HEADRACE_CUDA_LIBRARY"] = LIBRARY
    # No GPU is shared with another test that runs at the same time.
    os.environ["HEADRACE_CUDA_DOUBLE_MACHINE"] = f"client-{os.getpid()}"


def gpu_service(*flags: str) -> Service:
    """A service on a machine with two GPUs."""
    return Service("--gpu", "on", "--cuda-library", LIBRARY, *flags)


class DoubledGpuCase(ServiceCase):
    """Tests that share one service of GPUs."""

    @classmethod
    def make_service(cls) -> Service:
        use_double()
        return gpu_service()
