"""Ray Train's TorchTrainer over Headrace: one word of its configuration, and a hook that registers the backend.

With the wheel and "ray[train]" installed, on a machine of its own or as the driver of a cluster whose
nodes run the service:

    headrace run -- python client/examples/ray_train.py --ranks 2
    python client/examples/ray_train.py --ranks 2 --backend gloo       # to compare

Prints each epoch's loss, and a digest of the parameters that is the same on all ranks.
"""

from __future__ import annotations

import argparse
import hashlib

try:
    import ray
    import torch
    from ray import train
    from ray.train import ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer
except ImportError as error:
    raise SystemExit(
        f'this example needs torch and ray (pip install "ray[train]" torch): {error}'
    ) from error

SAMPLES, WIDTH = 64, 32


def register() -> None:
    """On every rank, before its process group is made. With torch 2.15 and the wheel it does no harm."""
    import headrace.torch  # noqa: F401


def train_loop(config: dict) -> None:
    """One rank."""
    torch.manual_seed(1)
    torch.set_num_threads(1)
    layers = [torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, 1)]
    model = train.torch.prepare_model(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    rank = train.get_context().get_world_rank()
    generator = torch.Generator().manual_seed(rank)
    for epoch in range(config["epochs"]):
        x = torch.randn(SAMPLES, WIDTH, generator=generator)
        optimizer.zero_grad()
        loss = (model(x) - x.sum(1, keepdim=True).sin()).square().mean()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"epoch {epoch + 1}: loss {loss.item():.4f}", flush=True)
    bits = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    digest = hashlib.sha256(bits).hexdigest()[:12]
    backend = torch.distributed.get_backend()
    digests: list[str | None] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(digests, digest)
    if rank == 0:
        same = "the same" if len(set(digests)) == 1 else "NOT the same"
        print(
            f"{len(digests)} ranks over {backend}: parameters {digest}, {same} on all",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--backend", default="headrace")
    arguments = parser.parse_args()
    ray.init(runtime_env={"worker_process_setup_hook": register})
    trainer = TorchTrainer(
        train_loop,
        train_loop_config={"epochs": arguments.epochs},
        torch_config=TorchConfig(backend=arguments.backend),
        scaling_config=ScalingConfig(num_workers=arguments.ranks),
    )
    trainer.fit()


if __name__ == "__main__":
    main()
