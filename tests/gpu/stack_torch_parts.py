"""Ways to train with parameters, gradients or the optimizer's state in shards, or with the model's layers split
among ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist
from stack_ddp import wrapped
from stack_model import BLOCKS, Block, Stack, Training, lack_of, loop, loss_of, make_model, samples
from torch_device import REHEARSAL

LR = 1e-3


def adamw(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), LR)


def mesh_of(on: torch.device) -> object:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(on.type, (dist.get_world_size(),))


def sharded_model(on: torch.device, **options: object) -> torch.nn.Module:
    from torch.distributed.fsdp import fully_shard

    model, mesh = make_model(on), mesh_of(on)
    for part in model:
        if isinstance(part, Block):
            fully_shard(part, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def fully_sharded(on: torch.device) -> Training:
    model = sharded_model(on)
    return loop(model, adamw(model), on, dist.get_rank())


def fully_sharded_mixed(on: torch.device) -> Training:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = sharded_model(on, mp_policy=policy)
    return loop(model, adamw(model), on, dist.get_rank())


def fully_sharded_accelerated(on: torch.device) -> Training:
    import headrace.torch

    model = sharded_model(on)
    optimizer = headrace.torch.accelerate(model, adamw(model))
    return loop(model, optimizer, on, dist.get_rank(), finish=optimizer.synchronize)


def fsdp1(on: torch.device) -> Training:
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    precision = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    model = FullyShardedDataParallel(
        make_model(on), auto_wrap_policy=ModuleWrapPolicy({Block}), mixed_precision=precision,
        device_id=on, use_orig_params=True,
    )  # fmt: skip
    return loop(model, adamw(model), on, dist.get_rank())


def fsdp1_lack() -> str:
    if REHEARSAL and torch.__version__.startswith("1."):
        return f"torch {torch.__version__}: its FSDP needs a GPU"
    return lack_of("torch.distributed.fsdp", "FullyShardedDataParallel")()


def zero_redundancy(on: torch.device) -> Training:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = wrapped(on)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=LR)
    return loop(model, optimizer, on, dist.get_rank())


def tensor_parallel(on: torch.device) -> Training:
    """Each rank has half of each layer's heads and of its wide part; both see the same samples."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model, mesh = make_model(on), mesh_of(on)
    across, along = ("query", "key", "value", "wide"), ("out", "narrow")
    for part in model:
        if isinstance(part, Block):
            plan = {name: ColwiseParallel() for name in across} | {name: RowwiseParallel() for name in along}
            parallelize_module(part, mesh, plan)
    optimizer = torch.optim.AdamW(model.parameters(), LR, foreach=False)  # tensors of two kinds
    return loop(model, optimizer, on, 0)


def pipelined(schedule_name: str, on: torch.device) -> Training:
    """Half of the model on each rank; activations and their gradients are sent between them."""
    from torch.distributed import pipelining

    rank, whole = dist.get_rank(), make_model(on)
    half = 1 + BLOCKS // 2
    part = whole[:half] if rank == 0 else whole[half:]
    stage = pipelining.PipelineStage(part, rank, dist.get_world_size(), on)
    schedule = getattr(pipelining, schedule_name)(stage, n_microbatches=2, loss_fn=loss_of)
    optimizer = adamw(part)

    def step(number: int) -> None:
        tokens = samples(number, 0, on)
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(tokens[:, :-1].contiguous())
        else:
            schedule.step(target=tokens[:, 1:].contiguous())
        optimizer.step()

    return Training(step, part)


def gpipe(on: torch.device) -> Training:
    return pipelined("ScheduleGPipe", on)


def one_forward_one_backward(on: torch.device) -> Training:
    return pipelined("Schedule1F1B", on)


NO_FULLY_SHARD = lack_of("torch.distributed.fsdp", "fully_shard")
NO_TENSOR_PARALLEL = lack_of("torch.distributed.tensor.parallel", "RowwiseParallel", "parallelize_module")
NO_PIPELINES = lack_of("torch.distributed.pipelining", "PipelineStage", "Schedule1F1B")
STACKS = {
    "fully_shard": Stack("fully_shard", fully_sharded, lack=NO_FULLY_SHARD),
    "fully_shard_mixed": Stack("fully_shard, bfloat16", fully_sharded_mixed, lack=NO_FULLY_SHARD),
    "fully_shard_accelerated": Stack(
        "fully_shard with headrace.torch.accelerate", fully_sharded_accelerated, peer=fully_sharded,
        lack=lack_of("torch.distributed.fsdp._fully_shard._fsdp_api", "AllGather"),
    ),
    "fsdp1": Stack("FullyShardedDataParallel, bfloat16", fsdp1, lack=fsdp1_lack),
    "zero": Stack("DDP with ZeroRedundancyOptimizer", zero_redundancy),
}  # fmt: skip
SPLIT = {
    "tensor_parallel": Stack("tensor parallel", tensor_parallel, lack=NO_TENSOR_PARALLEL),
    "gpipe": Stack("pipeline, ScheduleGPipe", gpipe, lack=NO_PIPELINES),
    "1f1b": Stack("pipeline, Schedule1F1B", one_forward_one_backward, lack=NO_PIPELINES),
}
