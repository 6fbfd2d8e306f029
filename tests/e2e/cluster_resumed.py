"""One rank of a job that trains with matrices that cross as two factors, as torchrun starts it.

usage: cluster_resumed.py FROM TO FIRST LAST [forgets]   trains steps FIRST to LAST - 1. Goes on from the state
in folder FROM where FIRST is not 0, and leaves its own, and its parameters, in folder TO.

With "forgets" it goes on without what encodings had left out.
"""

from __future__ import annotations

import os
import sys

import headrace
import headrace.torch
import numpy
import torch


def batch(rank: int, step: int) -> torch.Tensor:
    return torch.randn(16, 64, generator=torch.Generator().manual_seed(1000 * rank + step))


def main() -> None:
    source, target = sys.argv[1:3]
    first, last = (int(number) for number in sys.argv[3:5])
    forgets = sys.argv[5:] == ["forgets"]
    torch.set_num_threads(1)
    torch.manual_seed(1)
    # 32 KiB each: above what crosses encoded.
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Tanh(), torch.nn.Linear(128, 64))
    plain = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    with headrace.init() as session:
        name = f"state.{session.rank}"
        optimizer = headrace.torch.ScheduledOptimizer(
            plain, model, session, policy="wfbp", compress="powersgd:2"
        )
        if first > 0:
            state = torch.load(os.path.join(source, name))
            if forgets:
                state["optimizer"].pop("headrace_residuals")
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
        for step in range(first, last):
            optimizer.zero_grad()
            given = batch(session.rank, step)
            (model(given) - given.flip(1)).square().mean().backward()
            optimizer.step()
        optimizer.synchronize()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        assert state["optimizer"]["headrace_residuals"]["right_factors"].any(), "nothing crossed as factors"
        torch.save(state, os.path.join(target, name))
        parameters = torch.cat([each.detach().flatten() for each in model.parameters()])
        parameters.numpy().astype(numpy.float32).tofile(os.path.join(target, f"parameters.{session.rank}"))


if __name__ == "__main__":
    main()
