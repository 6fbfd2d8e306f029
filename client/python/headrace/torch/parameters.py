"""The same parameters on every rank, before training."""

from __future__ import annotations

from collections.abc import Container, Sequence

import torch

from headrace.session import Session
from headrace.torch import devices


def broadcast_parameters(
    session: Session, module: torch.nn.Module, root: int = 0
) -> None:
    """Gives every rank rank ``root``'s parameters and buffers. Returns when all are there."""
    operations = []
    with torch.no_grad():
        for tensor in [*module.parameters(), *module.buffers()]:
            if tensor.numel() == 0:
                continue
            # Booleans and the like travel as bytes, and any layout as a contiguous copy.
            flat = tensor.detach().contiguous().cpu()
            data = flat.view(-1).view(torch.uint8)
            operations.append(
                (session.broadcast(data, root, async_op=True), tensor, flat)
            )
        for operation, tensor, flat in operations:
            operation.wait()
            if flat.data_ptr() != tensor.data_ptr():
                tensor.copy_(flat)


def device_of_layout(parameters: Sequence[torch.nn.Parameter]) -> int | None:
    """What the gradients of one layout must have in common; returns their device."""
    if not parameters:
        raise ValueError("none of the optimizer's parameters needs a gradient")
    return devices.only_device(parameters)


def refuse_others(
    parameters: Sequence[torch.nn.Parameter], known: Container[torch.nn.Parameter]
) -> None:
    """RuntimeError for a gradient of a parameter that is not of the layout."""
    for parameter in parameters:
        new = parameter.requires_grad and parameter.grad is not None
        if new and parameter not in known and parameter.numel():
            raise RuntimeError(
                f"a parameter of shape {tuple(parameter.shape)} needs a gradient since after the "
                "first forward pass: it has no place in the layout. Unfreeze before it, or make "
                "a new ScheduledOptimizer with a new session"
            )
