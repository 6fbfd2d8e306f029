"""Goes on when a rank dies: torchrun starts all ranks again, and they go on from the last snapshot.

Under torchrun, with the service running and its library built:

    export PYTHONPATH=client/python HEADRACE_SOCKET=/tmp/headrace.sock
    export HEADRACE_LIBRARY=build/release/libheadrace.so
    torchrun --nproc_per_node 2 --max_restarts 3 --redirects 1 --tee 1 \\
        client/examples/elastic.py --snapshot /tmp/snapshot.pt --die-at 25

(--redirects and --tee are needed by torch 1.13 under Python 3.11 only.) The other ranks learn within
about a millisecond which rank died, end with that error, and torchrun begins its next attempt. Parameters at the
end are those of an undisturbed run, to the bit, because each step's samples follow from its
number. Gradients move by a plan, or with --ddp through DDP and the backend "headrace".
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
from pathlib import Path

try:
    import headrace.torch
    import torch
    import torch.distributed
    from torch.nn.parallel import DistributedDataParallel
except ImportError as error:
    raise SystemExit(
        f"this example needs python3-torch, and client/python in PYTHONPATH: {error}"
    ) from error

SAMPLES, WIDTH = 32, 64


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--snapshot", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--every", type=int, default=10, help="steps a snapshot")
    parser.add_argument("--ddp", action="store_true", help="through DDP")
    parser.add_argument(
        "--die-at", type=int, help="in the first attempt the last rank kills itself"
    )
    return parser.parse_args()


def model_and_optimizer(
    ddp: bool,
) -> tuple[torch.nn.Module, torch.nn.Module, torch.optim.Optimizer]:
    """What is called, what is saved, and what updates it."""
    torch.manual_seed(1)
    layers = [torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, 1)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    if ddp:
        torch.distributed.init_process_group("headrace")
        return DistributedDataParallel(model), model, optimizer
    return model, model, headrace.torch.ScheduledOptimizer(optimizer, model)


def samples(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Those of a step, the same whenever it is made."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(SAMPLES, WIDTH, generator=generator)
    return x, x.sum(1, keepdim=True).sin()


def save(path: Path, step: int, model: torch.nn.Module, optimizer: object) -> None:
    """All or nothing: a rank that dies meanwhile leaves the snapshot before."""
    state = {
        "step": step,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
    }
    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    os.replace(partial, path)


def main() -> None:
    arguments = parse()
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    torch.set_num_threads(1)
    called, model, optimizer = model_and_optimizer(arguments.ddp)
    begin = 0
    if arguments.snapshot.exists():
        state = torch.load(arguments.snapshot)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        begin = state["step"]
    loss = torch.zeros(())
    for step in range(begin, arguments.steps):
        if step == arguments.die_at and attempt == 0 and rank == ranks - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        x, y = samples(step, rank)
        optimizer.zero_grad()
        loss = (called(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        if rank == 0 and (step + 1) % arguments.every == 0:
            save(arguments.snapshot, step + 1, model, optimizer)
    if not arguments.ddp:
        optimizer.synchronize()
    if rank == 0:
        bits = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
        digest = hashlib.sha256(bits).hexdigest()[:12]
        print(
            f"attempt {attempt} went on from step {begin}: {ranks} ranks, loss {loss.item():.4f}, "
            f"parameters {digest}",
            flush=True,
        )


if __name__ == "__main__":
    main()
