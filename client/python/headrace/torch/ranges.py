"""A parameter with its optimizer state, or a range of its elements, as it goes to another rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from headrace.torch.snapshot import copied


def is_divisible(parameter: torch.Tensor, state: Mapping[str, Any]) -> bool:
    """Whether each tensor of its state has an element for each of the parameter's, or is one number."""
    tensors = [each for each in state.values() if torch.is_tensor(each)]
    return all(_goes_along(each, parameter) or each.numel() == 1 for each in tensors)


def size_of_element(parameter: torch.Tensor, state: Mapping[str, Any]) -> int:
    """Bytes of one element of the parameter, with its state."""
    along = [each for each in state.values() if torch.is_tensor(each) and _goes_along(each, parameter)]
    return sum(each.element_size() for each in [parameter, *along])


def range_of(tensor: torch.Tensor, begin: int, end: int) -> torch.Tensor:
    """These elements of it, as if it lay in one piece; a view where it does."""
    tensor = tensor.detach()
    if tensor.is_contiguous():
        return tensor.view(-1)[begin:end]
    return torch.take(tensor, torch.arange(begin, end, device=tensor.device))


def write_range(tensor: torch.Tensor, begin: int, values: torch.Tensor) -> None:
    """The reverse of range_of()."""
    tensor, end = tensor.detach(), begin + values.numel()
    if tensor.is_contiguous():
        tensor.view(-1)[begin:end].copy_(values)
    else:
        places = torch.arange(begin, end, device=tensor.device)
        tensor.put_(places, values.to(tensor.device, tensor.dtype))


def content_of(parameter: torch.Tensor, state: Mapping[str, Any], begin: int, end: int) -> list[Any]:
    """These elements of it and of what its state has for them, and all the rest of its state."""
    parts = {}
    for key, value in state.items():
        along = torch.is_tensor(value) and _goes_along(value, parameter)
        parts[key] = [along, range_of(value, begin, end) if along else value]
    return [range_of(parameter, begin, end), parts]


def put_content(
    parameter: torch.Tensor, before: Mapping[str, Any], content: list[Any], begin: int
) -> dict[str, Any]:
    """Writes what content_of() has of another rank's; returns the state, which was ``before``. Elements of it that
    have not come yet are as before, or zeros.
    """
    values, parts = content
    write_range(parameter, begin, values)
    after = {}
    for key, (along, value) in parts.items():
        if not along:
            after[key] = copied(value)
            continue
        whole = before.get(key)
        if not torch.is_tensor(whole) or _kind(whole) != (parameter.shape, value.dtype, value.device):
            whole = torch.zeros_like(parameter.detach(), dtype=value.dtype, device=value.device)
        write_range(whole, begin, value)
        after[key] = whole
    return after


def _goes_along(tensor: torch.Tensor, parameter: torch.Tensor) -> bool:
    return tensor.shape == parameter.shape


def _kind(tensor: torch.Tensor) -> tuple[torch.Size, torch.dtype, torch.device]:
    return tensor.shape, tensor.dtype, tensor.device
