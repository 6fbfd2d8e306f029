"""The same parameters on every rank, before training."""

from __future__ import annotations

import torch

from headrace.session import Session


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
