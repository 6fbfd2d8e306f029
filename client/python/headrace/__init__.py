"""Headrace for training processes: collectives through the node's service.

    import headrace
    with headrace.init() as session:            # reads torchrun's environment
        arena = session.arena(4 << 20)
        gradients = arena.tensor((1024, 1024), "float32", name="gradients")
        gradients.numpy()[:] = session.rank
        session.all_reduce(gradients, op="average")

Ranks post the same operations in the same order. Arrays of numpy and tensors of torch (on the CPU)
are taken too, copied in and out. ``session.arena(size, device=0)`` is on a GPU, where operations are
posted and awaited in the order of a stream. ``headrace.torch`` hooks into PyTorch's training loop.
"""

from headrace.arena import Arena, Range, Tensor
from headrace.codecs import compress_all_reduces
from headrace.errors import Cancelled, Error, Mismatch, PeerLost, Timeout, Unavailable
from headrace.layout import Layout
from headrace.library import version
from headrace.operation import Operation
from headrace.pieces import Pieces
from headrace.session import Session, init

__all__ = [
    "Arena",
    "Cancelled",
    "Error",
    "Layout",
    "Mismatch",
    "Operation",
    "PeerLost",
    "Pieces",
    "Range",
    "Session",
    "Tensor",
    "Timeout",
    "Unavailable",
    "compress_all_reduces",
    "init",
    "version",
]
