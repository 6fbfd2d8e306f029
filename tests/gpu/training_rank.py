"""One rank that trains a transformer on a GPU; prints its figures as JSON.

usage: training_rank.py WAY, WAY being headrace, alone (no gradient moves) or a backend of
torch.distributed for DDP: nccl, gloo or headrace-ddp. RANK, WORLD_SIZE and the rest by environment,
GPU_ORDINAL for the GPU, HEADRACE_COMPRESS for a codec. At the steps that GPU_KILL_AT names, rank 0
kills the service.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import sys
import time
from collections.abc import Callable

import torch
from torch_device import REHEARSAL, device, synchronize

LAYERS, WIDTH, HEADS, WORDS, LENGTH, BATCH = (
    (2, 32, 4, 64, 16, 2) if REHEARSAL else (8, 768, 12, 8192, 256, 8)
)
STEPS, WARM_UP = (16, 8) if REHEARSAL else (60, 30)


class Model(torch.nn.Module):
    """About 70 million parameters, less in a rehearsal: large gradients, many small ones."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, WIDTH)
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(
                WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(LAYERS)
        )
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.head = torch.nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def through_headrace(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[torch.nn.Module, torch.optim.Optimizer, Callable[[], None]]:
    import headrace
    import headrace.torch

    session = headrace.init()
    scheduled = headrace.torch.ScheduledOptimizer(optimizer, model, session)

    def finish() -> None:
        scheduled.synchronize()
        synchronize()
        session.close()

    return model, scheduled, finish


def through_ddp(
    backend: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[torch.nn.Module, torch.optim.Optimizer, Callable[[], None]]:
    if backend == "headrace":
        import headrace.torch  # noqa: F401 - registers the backend
    torch.distributed.init_process_group("gloo" if REHEARSAL and backend == "nccl" else backend)
    wrapped = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    return wrapped, optimizer, torch.distributed.destroy_process_group


def alone(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[torch.nn.Module, torch.optim.Optimizer, Callable[[], None]]:
    return model, optimizer, lambda: None


WAYS = {
    "headrace": through_headrace,
    "alone": alone,
    "nccl": functools.partial(through_ddp, "nccl"),
    "gloo": functools.partial(through_ddp, "gloo"),
    "headrace-ddp": functools.partial(through_ddp, "headrace"),
}


def main() -> int:
    way, rank = sys.argv[1], int(os.environ["RANK"])
    on = device()
    torch.manual_seed(1)
    model = Model().to(on)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    trained, steps_by, finish = WAYS[way](model, optimizer)
    samples = torch.Generator().manual_seed(100 + rank)
    kills = [int(step) for step in os.environ.get("GPU_KILL_AT", "").split() if rank == 0]
    losses, begin = [], 0.0
    for step in range(STEPS):
        if step == WARM_UP:
            synchronize()
            begin = time.perf_counter()
        tokens = torch.randint(0, WORDS, (BATCH, LENGTH + 1), generator=samples).to(on)
        steps_by.zero_grad()
        scores = trained(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        if step in kills:
            # A rank may not have noticed the kill before: both are one loss then.
            with contextlib.suppress(ProcessLookupError):
                os.kill(steps_by.session.service_pid, signal.SIGKILL)
        steps_by.step()
        losses.append(loss.detach())
    synchronize()
    seconds = (time.perf_counter() - begin) / (STEPS - WARM_UP)
    finish()
    recovery = steps_by._flow._recovery if way == "headrace" else None
    parameters = sum(parameter.numel() for parameter in model.parameters())
    norm = float(sum(p.detach().double().norm() ** 2 for p in model.parameters()) ** 0.5)
    print(
        json.dumps(
            {"way": way, "rank": rank, "iteration_s": seconds, "parameters": parameters,
             "losses": [float(loss) for loss in losses], "norm": norm,
             "recoveries": recovery.recoveries if recovery else 0}
        )
    )  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
