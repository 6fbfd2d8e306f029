"""What differs between parameters on the CPU and on a GPU: where they are, and the order of work.

A GPU is named by its number in this process, the CPU by None. Everything in headrace.torch that
depends on a real GPU goes through these functions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import torch

from headrace.errors import Error

_ONE_FUNCTION = hasattr(torch, "get_autocast_dtype")  # torch 2.4


def device_of(tensor: torch.Tensor) -> int | None:
    """The GPU that a tensor is on. TypeError for anything but the CPU and CUDA's GPUs."""
    if tensor.is_cpu:
        return None
    if tensor.device.type != "cuda":
        raise TypeError(
            f"a tensor is on {tensor.device}; only memory of the CPU and of CUDA's GPUs is taken"
        )
    index = tensor.device.index
    return torch.cuda.current_device() if index is None else index


def only_device(tensors: Iterable[torch.Tensor]) -> int | None:
    """The one device of all of them. TypeError when there are several."""
    found = sorted({device_of(tensor) for tensor in tensors}, key=str)
    if len(found) > 1:
        names = ", ".join("the CPU" if each is None else f"GPU {each}" for each in found)
        raise TypeError(
            f"parameters are on {names}: the gradients of one layout are on one. Move the model to "
            "one device, or use GradientArena"
        )
    return found[0]


def current_stream(device: int | None) -> int | None:
    """The stream that torch now puts work for this GPU into, as CUDA's number; None on the CPU."""
    if device is None:
        return None
    return torch.cuda.current_stream(device).cuda_stream


def refuse_capture(device: int | None) -> None:
    """Error where what is posted now would stand in a CUDA graph. Before anything is shared: that would end
    the capture."""
    if device is None:
        return
    with torch.cuda.device(device):
        if not torch.cuda.is_current_stream_capturing():
            return
    raise Error(
        "the stream is being captured into a CUDA graph, and a collective that stands in a graph would not be "
        "posted again when it is replayed: call it outside of torch.cuda.graph()",
        "invalid argument", 1,
    )  # fmt: skip


def new_stream(device: int) -> torch.cuda.Stream:
    """A stream of this GPU beside all others."""
    return torch.cuda.Stream(device)


def on_stream(stream: torch.cuda.Stream) -> contextlib.AbstractContextManager:
    """Within it, this stream is the current one."""
    return torch.cuda.stream(stream)


def finished_future(device: int, value: torch.Tensor) -> torch.futures.Future:
    """A future of a value that the current stream is about to have; who takes it comes after that."""
    future: torch.futures.Future = torch.futures.Future(devices=[f"cuda:{device}"])
    future.set_result(value)
    return future


def record_event(device: int) -> Any:
    """What the current stream of this GPU has come to, for wait_event()."""
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return event


def wait_event(device: int, event: Any) -> None:
    """What the current stream of this GPU is given from now on comes after the event."""
    torch.cuda.current_stream(device).wait_event(event)


def synchronize(device: int) -> None:
    """Waits until the current stream of this GPU has done all that stands in it."""
    torch.cuda.current_stream(device).synchronize()


def keep_for_stream(tensor: torch.Tensor) -> None:
    """Its memory is not given to others before the current stream has done what stands in it."""
    tensor.record_stream(torch.cuda.current_stream(tensor.device))


def without_autocast() -> contextlib.AbstractContextManager:
    """Within it no operation chooses another element type."""
    stack = contextlib.ExitStack()
    for kind in _autocasting():
        stack.enter_context(torch.autocast(kind, enabled=False))
    return stack


def _autocasting() -> list[str]:
    # torch 2.4 has one function for all devices, and warns of the others.
    if _ONE_FUNCTION:
        return [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    kinds = ["cpu"] if torch.is_autocast_cpu_enabled() else []
    return [*kinds, "cuda"] if torch.is_autocast_enabled() else kinds
