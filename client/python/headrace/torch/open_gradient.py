"""What stands in ``.grad`` while a gradient is on its way."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from headrace.torch.gradient_flow import GradientFlow

# What needs no values: shapes, types and addresses.
_PROPERTIES = (
    "shape", "dtype", "device", "layout", "ndim", "names", "is_sparse", "is_cuda", "is_cpu",
    "is_leaf", "is_quantized", "is_meta", "is_mkldnn", "is_sparse_csr", "requires_grad", "grad_fn",
    "grad", "_version", "itemsize", "nbytes",
)  # fmt: skip
_METHODS = (
    "size", "dim", "ndimension", "numel", "nelement", "stride", "storage_offset", "element_size",
    "detach_", "requires_grad_", "is_contiguous", "is_complex", "is_floating_point", "is_signed",
    "data_ptr", "get_device",
)  # fmt: skip
_WITHOUT_VALUES = {
    getattr(torch.Tensor, name).__get__
    for name in _PROPERTIES
    if hasattr(torch.Tensor, name)
} | {getattr(torch.Tensor, name) for name in _METHODS}


class OpenGradient(torch.Tensor):
    """A gradient whose memory is the service's until it has been waited for.

    Whoever computes with it, to clip or unscale or log, first has the optimizer wait for all
    gradients; zeroing it means that it is forgotten as soon as it was used for the update.
    """

    _flow: weakref.ref[GradientFlow]
    _parameter: weakref.ref[torch.nn.Parameter]

    @classmethod
    def of(
        cls,
        flow: GradientFlow,
        parameter: torch.nn.Parameter,
        view: torch.Tensor,
    ) -> OpenGradient:
        """One that stands for ``view``, as long as the flow lives."""
        gradient = view.as_subclass(cls)
        gradient._flow = weakref.ref(flow)
        gradient._parameter = weakref.ref(parameter)
        return gradient

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        """Called by torch in place of any function on such a tensor."""
        if function is torch.Tensor.zero_ and args[0]._forget():
            return args[0]
        if function not in _WITHOUT_VALUES:
            for gradient in _open_among((*args, *(kwargs or {}).values())):
                gradient._complete(function)
        with torch._C.DisableTorchFunction():
            return function(*args, **(kwargs or {}))

    def _complete(self, function: Any) -> None:
        flow, parameter = self._flow(), self._parameter()
        if flow is not None and parameter is not None and flow.is_open(parameter):
            name = getattr(function, "__name__", str(function))
            flow.complete(f"{name}() reads gradients")

    def _forget(self) -> bool:
        flow, parameter = self._flow(), self._parameter()
        if flow is None or parameter is None or not flow.is_open(parameter):
            return False
        parameter.grad = None
        return True


def _open_among(values: Any) -> Iterator[OpenGradient]:
    for value in values:
        if isinstance(value, OpenGradient):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _open_among(value)
