"""Plans for training that is written for DistributedDataParallel or fully_shard: one line more."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from headrace.session import Session
from headrace.torch.jobs import attach_beside
from headrace.torch.optimizer import ScheduledOptimizer

_MARK = "_headrace_accelerated"
# What of DDP is off during its forward pass, so that its reducer takes no part in backward.
_OFF = ("require_backward_grad_sync", "find_unused_parameters", "static_graph")


def accelerate(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    policy: str | None = None,
    reconnect: float | None = None,
    clip_norm: float | None = None,
    clip_norm_type: float = 2.0,
    compress: str | Mapping[str, str] | None = None,
    compress_after: int = 0,
    force_compress: bool = False,
) -> torch.optim.Optimizer:
    """Communication of DistributedDataParallel or fully_shard hides behind the next forward pass.

        model = DistributedDataParallel(model)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        optimizer = headrace.torch.accelerate(model, optimizer)

    The loop stays as it is: forward, backward, clipping, no_sync(), schedulers, state_dict(). Gradients of a
    DistributedDataParallel move by the job's plan. The result is a ScheduledOptimizer (all of its
    documentation applies) with DDP's arithmetic: each gradient is divided by the number of ranks and then
    summed in the order of the ranks, so on one node parameters have the same bits as without this line over
    the backend headrace. DDP continues to broadcast its buffers; its reducer does nothing. The process group
    may be of any backend: plans have a job of their own, with the group's ranks.

    In a model of fully_shard (torch 2.9 or later) each module waits for its reduce-scatter, and applies the
    optimizer's step, just before its next forward pass gathers its parameters; there is no plan. On a GPU
    backward waits and step() makes all updates, so nothing is hidden.

    All ranks of the group call it at the same place, once for each model. ``policy``, ``reconnect``,
    ``clip_norm`` (which does not wait as clip_grad_norm_() does), ``compress`` and their related arguments
    are as in ScheduledOptimizer, and for DistributedDataParallel only. Errors: TypeError for another kind of
    model; ValueError, with what to do, for a DDP with communication hooks, mixed precision or parameters that
    it leaves out, and for parameters that are not the optimizer's.
    """
    if isinstance(model, _fsdp_module()):
        plans = {"policy": policy, "reconnect": reconnect, "clip_norm": clip_norm, "compress": compress}
        given = [name for name, value in plans.items() if value is not None]
        if given:
            raise ValueError(
                f"accelerate(): under fully_shard there is no {' and no '.join(given)}, which are of plans: "
                "leave them out (clip by clip_grad_norm_() before step())"
            )
        from headrace.torch.sharded import ShardedOptimizer

        return ShardedOptimizer(model, optimizer)
    if not isinstance(model, DistributedDataParallel):
        raise TypeError(
            "accelerate() takes what DistributedDataParallel or fully_shard returned, not "
            f"{type(model).__name__}: wrap the optimizer by ScheduledOptimizer where the model is wrapped "
            "by nothing"
        )
    _check(model, optimizer)
    _check_parameters(model, optimizer)
    group = model.process_group
    session = attach_beside(group)
    return _Accelerated(
        model,
        optimizer,
        session,
        policy,
        reconnect=reconnect,
        clip_norm=clip_norm,
        clip_norm_type=clip_norm_type,
        compress=compress,
        compress_after=compress_after,
        force_compress=force_compress,
    )


def _fsdp_module() -> type | tuple:
    """torch's class of what fully_shard() returns; none where torch has no fully_shard()."""
    fsdp = sys.modules.get("torch.distributed.fsdp")  # imported where fully_shard() was
    return getattr(fsdp, "FSDPModule", ())


class _Accelerated(ScheduledOptimizer):
    """The optimizer of a DistributedDataParallel whose gradients move by a plan."""

    def __init__(
        self,
        model: DistributedDataParallel,
        optimizer: torch.optim.Optimizer,
        session: Session,
        policy: str | None,
        **options: Any,
    ) -> None:
        super().__init__(
            optimizer,
            model,
            session,
            policy,
            op="sum",
            broadcast=False,  # DDP has
            scale=1 / session.world_size,
            **options,
        )
        self._owns_session = True
        self._flow.steps_alone = True
        self._ddp = model
        self._forward = model.forward
        model.forward = self._forward_of_ddp
        setattr(model, _MARK, True)

    def _forward_of_ddp(self, *inputs: Any, **named: Any) -> Any:
        """DDP's own, after which its reducer waits for no gradients."""
        syncs = self._ddp.require_backward_grad_sync
        if torch.is_grad_enabled():
            self._flow.posts = syncs
        with _without_reducer(self._ddp):
            result = self._forward(*inputs, **named)
        # DDP sends its buffers in the next forward pass if this one was not within no_sync().
        self._ddp.require_forward_param_sync = (
            syncs if torch.is_grad_enabled() else False
        )
        return result

    def close(self) -> None:
        """Makes the updates that are due; DDP's reducer goes on alone."""
        super().close()
        if hasattr(self._ddp, _MARK):
            self._ddp.forward = self._forward
            delattr(self._ddp, _MARK)


@contextlib.contextmanager
def _without_reducer(ddp: DistributedDataParallel) -> Iterator[None]:
    before = {name: getattr(ddp, name) for name in _OFF}
    for name in _OFF:
        setattr(ddp, name, False)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(ddp, name, value)


def _check(ddp: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> None:
    """Refuses by name what DDP would do with gradients and this would not."""
    if hasattr(ddp, _MARK):
        raise ValueError(
            "accelerate(): the model is accelerated already; close() the first optimizer, or give one "
            "optimizer with all parameters, as groups"
        )
    reasons = {
        "has a communication hook": getattr(ddp, "_comm_hooks", None),
        "computes in mixed precision of its own": getattr(ddp, "mixed_precision", None),
        "leaves out parameters": ddp.parameters_to_ignore,
        "is reduced by Python": getattr(ddp, "_use_python_reducer", False),
    }
    found = [reason for reason, holds in reasons.items() if holds]
    if found:
        raise ValueError(
            f"accelerate(): this DistributedDataParallel {' and '.join(found)}, which plans know nothing of: "
            "train it without accelerate(), or make it without that"
        )


def _check_parameters(
    ddp: DistributedDataParallel, optimizer: torch.optim.Optimizer
) -> None:
    known = {id(p) for group in optimizer.param_groups for p in group["params"]}
    missing = [
        name
        for name, p in ddp.module.named_parameters()
        if p.requires_grad and id(p) not in known
    ]
    if missing:
        raise ValueError(
            f"accelerate(): {len(missing)} parameters need gradients and are not the optimizer's (the first "
            f"is {missing[0]}), so nobody would average them: add them as a group, or freeze them"
        )
