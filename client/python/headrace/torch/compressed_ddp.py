"""A communication hook for DistributedDataParallel whose sums cross between nodes in fewer bytes."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed

from headrace.layout import Layout
from headrace.operation import Operation
from headrace.session import Session
from headrace.torch.compression import (
    LayoutMaker,
    check_codecs,
    is_adaptive,
    is_sparse,
    takes_matrices,
)
from headrace.torch.ddp import DdpState, ddp_hook
from headrace.torch.ddp_buckets import Bucket, Part, cut_bucket


class CompressedState(DdpState):
    """What compressed_hook keeps: DDP's buckets as the gradients of a layout, which travel by the plan.

    One per DDP model, with a session of its own: a session has one layout. ``compress`` is a codec, or
    a mapping of patterns of ``model``'s parameters to codecs, as in Session.layout; what encodings
    leave out is kept as with ScheduledOptimizer. A bucket crosses in one codec: that of most of its
    elements, so that biases and norms are compressed with the weights beside them. Where powersgd is one of
    the codecs, each parameter of two or more dimensions in it is a gradient by itself, and those of one that
    lie behind each other are one. The first
    iterations cross as they are, until DDP has filled the same buckets twice, and so do
    ``compress_after`` more. ``optimizer`` says which codecs are refused; None: none is, and a warning
    names those with which Adam is known to diverge.
    Gradients on GPUs are compressed where they cross through the host's memory. ValueError for a mapping
    without a model.
    """

    def __init__(
        self,
        session: Session,
        compress: str | Mapping[str, str] = "int8",
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        force_compress: bool = False,
        compress_after: int = 0,
    ) -> None:
        by_name = not isinstance(compress, str)
        if by_name and model is None:
            raise ValueError(
                "CompressedState: patterns of names need model=, which has the names"
            )
        codecs = compress.values() if by_name else [compress]
        if optimizer is not None:
            check_codecs(optimizer, compress, force_compress)
        elif not force_compress and any(is_sparse(codec) for codec in codecs):
            warnings.warn(
                f'headrace: CompressedState(compress="{next(filter(is_sparse, codecs))}") was not told the '
                "optimizer, and Adam and its like are known to diverge with it: pass optimizer=, or "
                "force_compress=True",
                stacklevel=2,
            )
        super().__init__(session, model)
        adaptive = optimizer is not None and is_adaptive(optimizer)
        self._by_name = by_name
        self._by_matrix = any(takes_matrices(codec) for codec in codecs)
        self._maker = LayoutMaker(
            session,
            "average",
            None,
            compress if by_name else {"*": compress},
            compress_after,
            adaptive,
        )
        self._layout: Layout | None = None
        self._filled: list[Bucket] = []  # in this iteration so far
        self._last_filled: list[Bucket] = []
        self._parts: dict[int, list[Part]] = {}  # by bucket: what it was last filled with
        self._gradients: dict[int, range] = {}  # of the layout, by bucket

    @property
    def layout(self) -> Layout | None:
        """None while DDP may still change its buckets."""
        return self._layout

    def layout_for(self, bucket: torch.distributed.GradBucket) -> Layout | None:
        """The layout, once buckets stay as they are: see gradients_of.

        RuntimeError when DDP fills other buckets afterwards.
        """
        index, buffer = bucket.index(), bucket.buffer()
        size = Bucket(buffer.numel(), buffer.dtype)
        if index == 0:
            self._begin_iteration()
        if self._layout is None:
            self._filled.append(size)
            if self._by_name or self._by_matrix:
                self._parts[index] = [
                    (self._names.get(p, ""), tuple(p.shape)) for p in bucket.parameters()
                ]
            return None
        if index >= len(self._last_filled) or self._last_filled[index] != size:
            raise RuntimeError(
                f"compressed_hook: bucket {index} has {size.count} elements of {size.dtype}, and had others in the "
                "iterations before: DDP must not change its buckets any more"
            )
        return self._layout

    def gradients_of(self, bucket: torch.distributed.GradBucket) -> range:
        """Which gradients of the layout it is, one behind the other."""
        return self._gradients[bucket.index()]

    def _begin_iteration(self) -> None:
        if self._layout is not None:
            return self._layout.begin_backward()
        settled = bool(self._filled) and self._filled == self._last_filled
        self._last_filled, self._filled = self._filled, []
        if not settled:
            return None
        specs: list[tuple] = []
        # Backward fills the last of the forward pass first.
        for index, bucket in reversed(list(enumerate(self._last_filled))):
            cut = cut_bucket(index, bucket, self._parts.get(index), self._by_matrix)
            self._gradients[index] = range(len(specs), len(specs) + len(cut))
            specs += cut
        self._layout = self._maker(specs)
        return self._layout.begin_backward()

    def state_dict(self) -> dict[str, Any]:
        """What encodings have left out, where this rank keeps it; after backward. Each rank's own is to
        be saved and loaded.
        """
        return {"residuals": self._maker.save()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on with what was saved."""
        self._maker.load(state["residuals"])


def compressed_hook(
    state: CompressedState, bucket: torch.distributed.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """As ddp_hook, in fewer bytes between nodes.

        model = DistributedDataParallel(module)
        state = headrace.torch.CompressedState(session, "int8", module, optimizer)
        model.register_comm_hook(state, headrace.torch.compressed_hook)
    """
    layout = state.layout_for(bucket)
    if layout is None:
        return ddp_hook(state, bucket)
    state.check(bucket)
    gradients = state.gradients_of(bucket)
    whole = layout.torch_range(gradients)
    whole.copy_(bucket.buffer())
    operations = [
        Operation(state.session, layout.post(i), layout.views[i], copied=False) for i in gradients
    ]

    def finish(started: torch.futures.Future) -> torch.Tensor:
        for operation in started.value():
            operation.wait()
        return whole

    started: torch.futures.Future = torch.futures.Future()
    finished = started.then(finish)
    state.complete(started, operations)
    return finished


if torch.distributed.is_available():
    compressed_hook.__annotations__["bucket"] = torch.distributed.GradBucket
    compressed_hook.__annotations__["return"] = torch.futures.Future[torch.Tensor]
