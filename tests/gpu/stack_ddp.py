"""Ways to train by DistributedDataParallel, as their users write them."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable

import torch
import torch.distributed as dist
from stack_model import Stack, Training, lack_of, loop, loss_of, make_model, samples, sgd
from torch.nn.parallel import DistributedDataParallel
from torch_device import REHEARSAL


def wrapped(on: torch.device, **options: object) -> DistributedDataParallel:
    return DistributedDataParallel(make_model(on), **options)


def with_autocast(on: torch.device) -> Training:
    model = wrapped(on, gradient_as_bucket_view=True)
    context = functools.partial(torch.autocast, on.type, dtype=torch.bfloat16)
    return loop(model, sgd(model), on, dist.get_rank(), context)


def with_scaler(on: torch.device) -> Training:
    """Half precision as it is trained: scaled losses, and steps that are left out where they overflow."""
    model, rank = wrapped(on), dist.get_rank()
    optimizer, scaler = sgd(model), torch.amp.GradScaler(on.type)

    def step(number: int) -> None:
        tokens = samples(number, rank, on)
        optimizer.zero_grad()
        with torch.autocast(on.type, dtype=torch.float16):
            loss = loss_of(model(tokens[:, :-1]), tokens[:, 1:])
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    return Training(step, model)


def with_fp16_hook(on: torch.device) -> Training:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    model = wrapped(on)
    model.register_comm_hook(None, fp16_compress_hook)
    return loop(model, sgd(model), on, dist.get_rank())


def with_power_sgd(on: torch.device) -> Training:
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    model = wrapped(on)
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return loop(model, sgd(model), on, dist.get_rank())


def with_small_buckets(on: torch.device) -> Training:
    """stack_rank.py makes the group with plan_ddp=True for it. On a GPU its all-reduces stay operations."""
    model = wrapped(on, bucket_cap_mb=0.01 if REHEARSAL else 1)
    return loop(model, sgd(model), on, dist.get_rank())


def accelerated(on: torch.device) -> Training:
    import headrace.torch

    model = wrapped(on)
    optimizer = headrace.torch.accelerate(model, sgd(model))
    return loop(model, optimizer, on, dist.get_rank(), finish=optimizer.synchronize)


def plain(on: torch.device) -> Training:
    model = wrapped(on)
    return loop(model, sgd(model), on, dist.get_rank())


def compiled(model: torch.nn.Module) -> Callable:
    """In a rehearsal without inductor, which would compile C++ for minutes."""
    return torch.compile(model, backend="aot_eager" if REHEARSAL else "inductor")


def compiled_ddp(on: torch.device) -> Training:
    model = wrapped(on)
    return loop(compiled(model), sgd(model), on, dist.get_rank(), compared=model)


def compiled_scheduled(on: torch.device) -> Training:
    import headrace.torch

    model = make_model(on)
    session = headrace.init()
    optimizer = headrace.torch.ScheduledOptimizer(sgd(model), model, session)

    def finish() -> None:
        optimizer.synchronize()
        session.close()

    return loop(compiled(model), optimizer, on, int(os.environ["RANK"]), compared=model, finish=finish)


def compiled_peer(on: torch.device) -> Training:
    """The same parameters' names as those of a model that nothing wraps."""
    training = compiled_ddp(on)
    training.model = training.model.module
    return training


def compiler_lack() -> str:
    lack = lack_of("torch", "compile")()
    if lack or REHEARSAL:
        return lack
    compilers = (os.environ.get("CC"), "gcc", "cc", "clang")
    return "" if any(each and shutil.which(each) for each in compilers) else "torch.compile finds no C compiler"


STACKS = {
    "autocast": Stack("DDP with autocast of bfloat16", with_autocast),
    "scaler": Stack("DDP with fp16, a scaler and clipping", with_scaler, lack=lack_of("torch.amp", "GradScaler")),
    "fp16_hook": Stack("DDP with torch's fp16_compress_hook", with_fp16_hook),
    "power_sgd": Stack("DDP with torch's PowerSGD", with_power_sgd),
    "plan_ddp": Stack("DDP with plan_ddp", with_small_buckets),
    "accelerated": Stack("DDP with headrace.torch.accelerate", accelerated, peer=plain),
}
COMPILED = {
    "compiled_ddp": Stack("DDP, compiled", compiled_ddp, lack=compiler_lack),
    "compiled_scheduled": Stack(
        "ScheduledOptimizer of a compiled model", compiled_scheduled, peer=compiled_peer,
        exact=False, lack=compiler_lack,  # where modules wait, the graph is cut: other kernels
    ),
}  # fmt: skip
