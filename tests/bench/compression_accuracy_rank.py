"""One rank of tests/bench/compression --accuracy: trains each model with each optimizer by each codec in turn."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "digits"), str(HERE.parents[1] / "client" / "examples")]

import headrace
import headrace.torch
import torch
from training_models import make_task

BATCH = 4  # samples of a rank
# Rates at which `none` learns.
OPTIMIZERS = {
    ("gpt-small", "sgd"): lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    ("gpt-small", "adamw"): lambda p: torch.optim.AdamW(p, 1e-3),
    ("resnet-small", "sgd"): lambda p: torch.optim.SGD(p, 0.02, momentum=0.9),
    ("resnet-small", "adamw"): lambda p: torch.optim.AdamW(p, 1e-3),
}


def train(model: str, optimizer: str, codec: str, steps: int) -> dict[str, list[float]]:
    """The loss of each step, and when it was known: seconds since all ranks began."""
    with headrace.init(job=f"{model}-{optimizer}-{codec}") as session:
        task = make_task(model, session.rank, BATCH)
        batches = task.batches_of()
        scheduled = headrace.torch.ScheduledOptimizer(
            OPTIMIZERS[model, optimizer](task.model.parameters()), task.model, session, compress=codec
        )
        losses, seconds = [], []
        session.barrier()
        began = time.monotonic()
        for _ in range(steps):
            inputs, targets = next(batches)
            scheduled.zero_grad()
            loss = task.loss_of(task.model(inputs), targets)
            loss.backward()
            scheduled.step()
            losses.append(loss.item())
            seconds.append(time.monotonic() - began)
        scheduled.synchronize()
        session.barrier()
        scheduled.close()
    return {"losses": losses, "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", required=True, help="JSON: rows of model, optimizer, codec and steps")
    parser.add_argument("--result", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # ranks share the cores
    runs = []
    for model, optimizer, codec, steps in json.loads(arguments.runs):
        runs.append(train(model, optimizer, codec, steps))
        print(f"{model} {optimizer} {codec}: {runs[-1]['seconds'][-1]:.1f} s", flush=True)
    arguments.result.write_text(json.dumps(runs))


if __name__ == "__main__":
    main()
