"""One rank that trains by one of the stacks; writes the parameters to a file, prints a line of JSON for
each training.

usage: stack_rank.py STACK FILE ours|peer...; RANK, WORLD_SIZE and the rest by environment, GPU_ORDINAL for the
GPU, and in STACK_PORTS a port for each training. ours goes over the backend headrace, peer over NCCL, in a
rehearsal over gloo; they are trained one after the other, since torch takes seconds to start. In a rehearsal
a double is taken for the GPU that torch's tensors are on, as backend.py has it.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import sys
import time
import warnings

if __name__ == "__main__":
    # A rank that hangs says where, before it is ended: torch's start counts.
    faulthandler.dump_traceback_later(float(os.environ["STACK_LIMIT_S"]), exit=True)

import stack_ddp
import stack_frameworks
import stack_torch_parts
import torch
import torch.distributed as dist
from backend import gpu_in_use
from stack_model import STEPS, WARM_UP, Stack
from torch_device import REHEARSAL, device, synchronize

GROUPS: dict[str, dict[str, Stack]] = {
    "ddp": stack_ddp.STACKS,
    "compiled": stack_ddp.COMPILED,
    "parts": stack_torch_parts.STACKS,
    "split": {**stack_torch_parts.SPLIT, **stack_frameworks.STACKS},
}
ALL = {name: stack for stacks in GROUPS.values() for name, stack in stacks.items()}
PEER = "gloo" if REHEARSAL else "nccl"


def join(name: str, side: str) -> None:
    """Makes the process group."""
    if side == "peer":
        dist.init_process_group(PEER)
        return
    import headrace.torch

    options = headrace.torch.GroupOptions(plan_ddp=True) if name == "plan_ddp" else None
    dist.init_process_group("headrace", pg_options=options)


def held(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """What this rank has of each parameter, in the host's memory."""
    found = {}
    for name, parameter in model.named_parameters():
        own = parameter.detach()
        own = own.to_local() if hasattr(own, "to_local") else own
        # Not .cpu(): what lies there already would be the parameter itself.
        found[name.removeprefix("module.")] = own.float().to("cpu", copy=True)
    return found


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """The norm of the difference of all parameters as one vector."""
    return float(sum((one[name] - other[name]).double().norm() ** 2 for name in one) ** 0.5)


def run(stack: Stack, name: str, side: str, on: torch.device) -> tuple[dict, dict[str, torch.Tensor]]:
    """One training from the process group's start to its end: its figures, and the parameters."""
    told: list[warnings.WarningMessage]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        join(name, side)
        with gpu_in_use(REHEARSAL and side == "ours"):
            make = stack.peer if side == "peer" and stack.peer else stack.make
            training = make(on)
            before, begin = held(training.model), 0.0
            for step in range(STEPS):
                if step == WARM_UP:
                    synchronize()
                    begin = time.perf_counter()
                training.step(step)
            synchronize()
            seconds = (time.perf_counter() - begin) / (STEPS - WARM_UP)
            training.finish()
            synchronize()
            after = held(training.model)
            del training
            gc.collect()
        dist.destroy_process_group()
    figures = {
        "iteration_s": seconds, "moved": distance(before, after),
        "parameters": sum(each.numel() for each in after.values()),
        "warned": sorted({str(each.message) for each in told if str(each.message).startswith("headrace: ")}),
    }  # fmt: skip
    return figures, after


def main() -> int:
    name, path, *sides = sys.argv[1:]
    on, ends = device(), []
    # So that two runs may be compared bit by bit; what torch cannot do in one order it says at most.
    torch.use_deterministic_algorithms(True, warn_only=True)
    if hasattr(torch.utils, "deterministic"):
        torch.utils.deterministic.fill_uninitialized_memory = False  # it would only take time
    for side, port in zip(sides, os.environ["STACK_PORTS"].split(), strict=True):
        os.environ["MASTER_PORT"] = port
        figures, parameters = run(ALL[name], name, side, on)
        ends.append(parameters)
        print(json.dumps({"side": side, **figures}), flush=True)
    torch.save(ends, path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
