"""Which codecs an optimizer's gradients may cross the network in, and what they leave out."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from headrace.codecs import names_of
from headrace.layout import Layout
from headrace.session import Session

# They divide by a running mean of squares. What these codecs leave out arrives later and at once, in
# a few elements, so that mean no longer says how large a gradient is, and steps grow without bound.
# Those of other packages derive from torch.optim.Optimizer only: their classes, or those that these
# derive from, have such a name, or they take betas, as Adam does.
_ADAPTIVE_NAMES = ("adam", "adagrad", "adadelta", "adafactor", "adabelief", "rmsprop", "lamb", "novograd")
_SPARSE = ("sign", "topk", "randomk")


def is_adaptive(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it divides by what gradients were, as Adam does: by its class and its options."""
    classes = [each.__name__.lower() for each in type(optimizer).__mro__]
    named = any(name in each for each in classes for name in _ADAPTIVE_NAMES)
    return named or "betas" in optimizer.defaults


def is_sparse(codec: str) -> bool:
    """Whether adaptive optimizers are known to diverge with it, or with one that a plan may choose."""
    return any(name.partition(":")[0] in _SPARSE for name in names_of(codec))


def takes_matrices(codec: str) -> bool:
    """Whether it, or one that a plan may choose, leaves alone what is no matrix."""
    return any(name.partition(":")[0] == "powersgd" for name in names_of(codec))


def check_codecs(
    optimizer: torch.optim.Optimizer,
    compress: str | Mapping[str, str] | None,
    force: bool,
) -> None:
    """ValueError for a codec with which the optimizer is known to diverge, unless forced."""
    if force or not is_adaptive(optimizer):
        return
    where = "compress"
    if compress is None:
        where, compress = "HEADRACE_COMPRESS", os.environ.get("HEADRACE_COMPRESS", "")
    codecs = [compress] if isinstance(compress, str) else compress.values()
    for codec in codecs:
        if not is_sparse(codec):
            continue
        raise ValueError(
            f'{where}="{codec}" is known to diverge under {type(optimizer).__name__}, which divides '
            "by what gradients were: take int8, int4 or bf16, or SGD with momentum, or pass "
            "force_compress=True"
        )


# What operations, which nobody gives again, may cross in: the service refuses others.
_WITHOUT_RESIDUALS = (
    "none",
    "bf16",
    "fp16",
    "int8-stochastic",
    "int4-stochastic",
    "lossless",
)


@dataclasses.dataclass(frozen=True)
class GroupOptions:
    """``init_process_group("headrace", pg_options=GroupOptions(compress="bf16"))``.

    ``compress``: as headrace.compress_all_reduces has it, of all of the group's all_reduces; None:
    HEADRACE_COMPRESS, where that is one of its codecs, or "none". All ranks give the same.
    ``plan_ddp``: whether DDP's small all_reduces travel together by a plan, once they repeat.
    """

    compress: str | None = None
    plan_ddp: bool = False


def codec_of_group(options: GroupOptions) -> str:
    """In which codec a group's all_reduces cross: ValueError for one that cannot be, a warning where it is the
    environment's.
    """
    known = ", ".join(_WITHOUT_RESIDUALS)
    if options.compress is not None:
        if options.compress not in _WITHOUT_RESIDUALS:
            raise ValueError(
                f'GroupOptions(compress="{options.compress}"): all_reduces cross in one of {known}; other '
                "codecs need what they left out before, which ScheduledOptimizer and compressed_hook keep"
            )
        return options.compress
    codec = os.environ.get("HEADRACE_COMPRESS", "") or "none"
    if codec in _WITHOUT_RESIDUALS:
        return codec
    warnings.warn(
        f"headrace: HEADRACE_COMPRESS={codec} is of gradients of a ScheduledOptimizer or compressed_hook; "
        "all_reduces of this process group cross as they are, since nothing keeps what that codec leaves "
        f"out of them: take one of {known} for them, too",
        stacklevel=2,
    )
    return "none"


class LayoutMaker:
    """Makes the one layout of a session, with what was loaded before there was one."""

    def __init__(
        self,
        session: Session,
        op: str,
        policy: str | None,
        compress: str | Mapping[str, str] | None,
        compress_after: int = 0,
        adaptive: bool = False,
    ) -> None:
        self._session = session
        self._op = op
        self._policy = policy
        self._compress = compress
        self._compress_after = compress_after
        self._adaptive = adaptive
        self._layout: Layout | None = None
        self._loaded: Mapping[str, Any] | None = None

    def __call__(self, specs: Sequence[tuple], device: int | None = None) -> Layout:
        """The layout of these gradients."""
        self._layout = self._session.layout(
            specs,
            self._op,
            self._policy,
            device,
            self._compress,
            self._compress_after,
            self._adaptive,
        )
        if self._loaded is not None:
            load_residuals(self._layout, self._loaded)
        return self._layout

    def save(self) -> dict[str, Any] | None:
        """What encodings have left out, where this rank keeps it."""
        return None if self._layout is None else save_residuals(self._layout)

    def load(self, saved: Mapping[str, Any] | None) -> None:
        """Goes on with what was saved, now or when there is a layout."""
        self._loaded = saved
        if self._layout is not None:
            load_residuals(self._layout, saved)


def save_residuals(layout: Layout) -> dict[str, Any] | None:
    """What encodings have left out, for a state_dict; None where another rank's memory has it."""
    memory = layout.residuals
    if memory is None:
        return None
    return {
        "rank": layout.session.rank,
        "world_size": layout.session.world_size,
        "gradients": _names(layout),
        "values": torch.frombuffer(memory, dtype=torch.uint8).clone(),
        "right_factors": _right_factors(layout).clone(),
    }


def load_residuals(layout: Layout, saved: Mapping[str, Any] | None) -> None:
    """Takes them back where they were saved by this rank for these gradients; else they begin at zero,
    and a warning says why if some were saved."""
    memory = layout.residuals
    if memory is None:
        return
    values = torch.frombuffer(memory, dtype=torch.uint8)
    session = layout.session
    factors = _right_factors(layout)
    # They are the same on all nodes, and any is right to begin with.
    theirs = None if saved is None else saved.get("right_factors")
    if theirs is not None and saved["gradients"] == _names(layout) and theirs.shape == factors.shape:
        factors.copy_(theirs)
    else:
        factors.zero_()
    if saved is None:
        values.zero_()
    elif (saved["rank"], saved["world_size"]) != (session.rank, session.world_size):
        values.zero_()
        warnings.warn(
            f"headrace: rank {session.rank} of {session.world_size}: what encodings left out begins at "
            f"zero again, since the state is that of rank {saved['rank']} of {saved['world_size']}: "
            "save and load each rank's own to keep it",
            stacklevel=3,
        )
    elif saved["gradients"] != _names(layout):
        values.zero_()
        warnings.warn(
            "headrace: what encodings left out begins at zero again, since it was saved for other "
            "gradients",
            stacklevel=3,
        )
    else:
        values.copy_(saved["values"])


def _right_factors(layout: Layout) -> torch.Tensor:
    memory = layout.right_factors
    return torch.frombuffer(memory, dtype=torch.uint8) if memory else torch.empty(0, dtype=torch.uint8)


def _names(layout: Layout) -> list[tuple[str, int]]:
    return [(g.name, count) for g, count in zip(layout.gradients, layout.counts)]
