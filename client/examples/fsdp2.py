"""torch's fully_shard() (FSDP2) over Headrace, on CPUs: one word, and one more line to hide communication.

Under a service, with torch 2.9 or later:

    headrace run -- torchrun --nproc_per_node 2 client/examples/fsdp2.py
    headrace run -- torchrun --nproc_per_node 2 client/examples/fsdp2.py --accelerate
    torchrun --nproc_per_node 2 client/examples/fsdp2.py --backend gloo        # to compare

Prints each step's loss, and a digest of the whole parameters, which is the same for all three.
"""

from __future__ import annotations

import argparse
import hashlib

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

WIDTH, BLOCKS, BATCH = 64, 4, 16


class Block(torch.nn.Module):
    """What is gathered and freed as one."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.wide = torch.nn.Linear(WIDTH, 4 * WIDTH)
        self.narrow = torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.narrow(torch.nn.functional.gelu(self.wide(self.norm(x))))


def make_model() -> torch.nn.Sequential:
    torch.manual_seed(1)  # the same on all ranks
    return torch.nn.Sequential(*(Block() for _ in range(BLOCKS)))


def digest(model: torch.nn.Module) -> str:
    """A hash of the whole parameters, which all ranks gather."""
    whole = hashlib.sha256()
    for parameter in model.parameters():
        whole.update(parameter.full_tensor().detach().numpy().tobytes())
    return whole.hexdigest()[:12]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--backend", default="headrace")
    parser.add_argument("--accelerate", action="store_true")
    parser.add_argument("--steps", type=int, default=5)
    arguments = parser.parse_args()
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError as error:
        raise SystemExit(f"this example needs fully_shard: {error}") from error
    if arguments.backend == "headrace":
        import headrace.torch
    dist.init_process_group(arguments.backend)
    torch.set_num_threads(1)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = make_model()
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    if arguments.accelerate:
        optimizer = headrace.torch.accelerate(model, optimizer)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for step in range(arguments.steps):
        x = torch.randn(BATCH, WIDTH, generator=generator)
        optimizer.zero_grad()
        loss = (model(x) - x.sin()).square().mean()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"step {step + 1}: loss {loss.item():.4f}", flush=True)
    if arguments.accelerate:
        optimizer.synchronize()
    found = digest(model)
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks over {arguments.backend}: parameters {found}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
