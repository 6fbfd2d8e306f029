"""One rank of a training run whose service may go away; reconnect_test.py starts it.

usage: reconnect_train.py STEP ...

Trains by ScheduledOptimizer. At each of these steps rank 0 says "at STEP" and waits for a line before it
goes on. Prints how often it came back, and a digest of losses and parameters, at the end. With TRAIN_ON_GPU
gradients lie in memory of that GPU, a double's. With TRAIN_IN they cross between nodes in that codec, by plans
that always cut them alike.
"""

from __future__ import annotations

import hashlib
import os
import sys
import warnings

import headrace
import headrace.torch
import torch

STEPS = 20


def main() -> int:
    stops = {int(argument) for argument in sys.argv[1:]}
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    codec = os.environ.get("TRAIN_IN")
    width = 64 if codec is None else 2048  # what is small is not encoded
    layers = [torch.nn.Linear(16, width), torch.nn.Tanh(), torch.nn.Linear(width, 4)]
    model = torch.nn.Sequential(*layers)
    session = headrace.init()
    optimizer = headrace.torch.ScheduledOptimizer(
        torch.optim.AdamW(model.parameters(), 1e-2),
        model,
        session,
        policy=None if codec is None else "wfbp",
        compress=codec,
    )
    random = torch.Generator().manual_seed(session.rank)
    digest = hashlib.sha256()
    for step in range(STEPS):
        optimizer.zero_grad()
        inputs = torch.randn(8, 16, generator=random)
        loss = (model(inputs) - inputs[:, :4]).square().mean()
        loss.backward()
        if session.rank == 0 and step in stops:
            print(f"at {step}", flush=True)
            sys.stdin.readline()
        optimizer.step()
        digest.update(f"{loss.item()!r}\n".encode())
    optimizer.synchronize()
    saved = optimizer.state_dict().get("headrace_residuals")
    if saved is not None:  # what encodings have left out is part of the training
        assert saved["values"].any()
        digest.update(saved["values"].numpy().tobytes())
        assert saved["right_factors"].any() == str(codec).startswith("powersgd")
        digest.update(saved["right_factors"].numpy().tobytes())
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    recovery = optimizer._flow._recovery
    print(f"came back {recovery.recoveries if recovery else 0}", flush=True)
    print(f"digest {digest.hexdigest()}", flush=True)
    optimizer.close()
    session.close()
    return 0


def on_gpu(number: int) -> int:
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../unit/client"))
    from doubled_gpu import DoubledGpu, as_torchs_gpu

    with as_torchs_gpu(DoubledGpu(number)):
        return main()


if __name__ == "__main__":
    gpu = os.environ.get("TRAIN_ON_GPU")
    sys.exit(main() if gpu is None else on_gpu(int(gpu)))
