"""How a torch tensor of any element type and layout travels as one array of the service's types."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.distributed import ReduceOp

from headrace.torch.devices import device_of

# What the service moves and reduces as it is.
_OWN = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int32,
    torch.int64,
    torch.uint8,
)
# Sums and products of a wider type, cut off, are those of the narrow type.
_WIDENED = (torch.int8, torch.int16)
_REDUCTIONS = [
    (ReduceOp.SUM, "sum"),
    (ReduceOp.AVG, "average"),
    (ReduceOp.PRODUCT, "product"),
    (ReduceOp.MIN, "min"),
    (ReduceOp.MAX, "max"),
]
# Reductions of zeros and ones: a sum that is not zero is true, as in torch.
_OF_BOOLEANS: dict[str | None, str] = {"sum": "max", "max": "max", "product": "min", "min": "min"}
_BITWISE_OF_BOOLEANS = [(ReduceOp.BAND, "min"), (ReduceOp.BOR, "max")]


def reduction_of(op: ReduceOp, dtype: torch.dtype) -> str:
    """The service's name of a reduction of such elements."""
    name = _named(op, _REDUCTIONS)
    if dtype == torch.bool:
        name = _OF_BOOLEANS.get(name) or _named(op, _BITWISE_OF_BOOLEANS)
    if dtype.is_complex and name not in ("sum", "average"):
        name = None
    if name is None:
        raise TypeError(f"headrace has no reduction {_spell(op)} of {dtype}")
    return name


def _named(op: ReduceOp, reductions: Sequence[tuple[ReduceOp, str]]) -> str | None:
    # By comparing, which is slow: in older versions of torch they have no hash.
    return next((name for known, name in reductions if op == known), None)


def _spell(op: ReduceOp) -> str:
    members = ReduceOp.RedOpType.__members__.items()
    return next((name for name, member in members if op == member), str(op))


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """All elements in order, in one dimension: a view where the layout allows it, else a copy."""
    if tensor.is_sparse:
        raise TypeError("the tensor is sparse: give tensor.to_dense()")
    if not tensor.is_cpu:
        device_of(tensor)  # which refuses others than CUDA's GPUs
    if tensor.is_conj() or tensor.is_neg():  # its memory holds something else
        tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.dim() == 1 and not tensor.requires_grad and tensor.is_contiguous():
        return tensor
    return tensor.detach().contiguous().view(-1)


def to_move(tensor: torch.Tensor) -> torch.Tensor:
    """The array that carries a tensor's elements unchanged; of types unknown to the service, bytes."""
    elements = flat(tensor)
    if elements.dtype in _OWN:
        return elements
    if elements.dtype.is_complex:
        return torch.view_as_real(elements).view(-1)
    return elements.view(torch.uint8)


def to_reduce(tensor: torch.Tensor) -> torch.Tensor:
    """The array whose reduction is the tensor's; see put_back."""
    elements = flat(tensor)
    if elements.dtype in _OWN:
        return elements
    if elements.dtype.is_complex:
        return torch.view_as_real(elements).view(-1)
    if elements.dtype == torch.bool:
        return elements.view(torch.uint8)
    if elements.dtype in _WIDENED:
        return elements.to(torch.int32)
    raise TypeError(f"headrace does not reduce elements of {elements.dtype}")


def put_back(array: torch.Tensor, tensor: torch.Tensor) -> None:
    """Writes what an array of to_move() or to_reduce() has become into the tensor it came from."""
    if array is tensor:
        return
    if array.data_ptr() == tensor.data_ptr() and tensor.is_contiguous():
        return  # it was a view
    if tensor.dtype.is_complex:
        elements = torch.view_as_complex(array.view(-1, 2))
    elif array.dtype == torch.uint8:  # bytes
        elements = array.view(tensor.dtype)
    else:
        elements = array
    with torch.no_grad():
        tensor.copy_(elements.view(tensor.shape))


def fill_sparse(tensor: torch.Tensor, result: torch.Tensor) -> None:
    """Gives a sparse tensor the elements of a dense one that are not zero."""
    with torch.no_grad():
        tensor.copy_(result.to_sparse(tensor.sparse_dim()))


def split(elements: torch.Tensor, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Views of one dimension with as many elements as each of ``like``."""
    return list(elements.split([each.numel() for each in like]))


def fill(tensors: Sequence[torch.Tensor], elements: torch.Tensor) -> None:
    """Copies elements that stand one behind the other into tensors of any layout."""
    with torch.no_grad():
        for tensor, part in zip(tensors, split(elements, tensors)):
            tensor.copy_(part.view(tensor.shape))
