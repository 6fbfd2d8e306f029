"""One rank of a training run that goes on when others are lost; shrink_test.py starts it.

usage: shrink_train.py '{"first": 0, "steps": 12, "members": [0, 1], "kill": [[2, 5, "backward"]],
                         "load": PATH, "save": PATH, "hold": [8, PATH], "grown": PATH,
                         "slow": [[1, 0.3]], "stop": [[1, 5, "backward"]], "layers": 6, "clip": 0.5,
                         "reads": [9], "pause": 0.1, "width": 4096, "own": true}'

Trains by ScheduledOptimizer from step ``first`` on; the data of a step depends on the step and on which member of
``members`` this rank is. A member named in ``kill`` kills itself at that moment of that step, and one named in
``stop`` stands still from then on, until somebody lets it go on; before the step of ``hold`` all wait until the path
is there, and each makes the path with its number behind. One named in ``slow`` computes for so many seconds more in
each step. A rank that joins begins with the job's next step. Prints one JSON line: each step's loss, how the job was
resized, the first step, a digest of parameters and optimizer state, and what init() warned of; rank 0 saves
parameters and state to ``grown`` when others join. ``rank`` and ``world_size``, where given, stand in for the
environment's. With ``layers`` the model has so many layers of 1 MiB more, and the learning rate changes in each step.
``width``: how many rows of 64 bytes the first layer has. ``own``: the optimizer is OwnSGD.
``clip`` is the optimizer's clip_norm; in the steps of ``reads`` the script clips by itself. After the step of
``hold`` each step lasts ``pause`` seconds more (0.02).
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
import warnings
from typing import Any

import headrace
import headrace.torch
import torch


def batch(member: int, step: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(1000 * member + step)
    return torch.randn(8, 16, generator=random)


def digest_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> str:
    digest = hashlib.sha256()
    state = optimizer.state_dict()["state"]
    for index, parameter in enumerate(model.parameters()):
        digest.update(parameter.detach().numpy().tobytes())
        for key in sorted(state[index]):
            digest.update(torch.as_tensor(state[index][key]).numpy().tobytes())
    return digest.hexdigest()


class OwnSGD(torch.optim.SGD):
    """No class of torch's; its learning rate falls with the steps that the program counts in the optimizer's state."""

    @property
    def counts(self) -> dict[str, int]:
        """State that is of no parameter."""
        return self.state["counts"]

    def step(self, closure: None = None) -> None:
        """With the rate of now, for some of the parameters."""
        rates = [group["lr"] for group in self.param_groups]
        for group in self.param_groups:
            group["lr"] /= 1 + 0.1 * self.counts.get("steps", 0)
        super().step(closure)
        for group, rate in zip(self.param_groups, rates, strict=True):
            group["lr"] = rate


def build(asked: dict[str, Any]) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    deep = asked.get("layers", 0)
    width = asked.get("width") or (512 if deep else 64)
    layers: list[torch.nn.Module] = [torch.nn.Linear(16, width), torch.nn.Tanh()]
    for _ in range(deep):
        layers += [torch.nn.Linear(width, width), torch.nn.Tanh()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(width, 4))
    adam: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    if asked.get("own"):
        adam = OwnSGD(model.parameters(), 1e-2, momentum=0.9)
    if asked.get("load"):
        parameters, state = torch.load(asked["load"])
        model.load_state_dict(parameters)
        adam.load_state_dict(state)
    return model, adam


def wait_before(step: int, asked: dict[str, Any], member: int) -> None:
    """In the step of ``hold`` until it goes on, and after it for others that are to come while it runs."""
    held, path = asked.get("hold") or (-1, "")
    if step == held:
        open(f"{path}{member}", "w", encoding="utf-8").close()
    while step == held and not os.path.exists(path):
        time.sleep(0.01)
    if step > held >= 0:
        time.sleep(asked.get("pause", 0.02))


def main() -> int:
    asked: dict[str, Any] = json.loads(sys.argv[1])
    warnings.simplefilter("ignore")
    model, adam = build(asked)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        session = headrace.init(rank=asked.get("rank"), world_size=asked.get("world_size"))
    rank = session.rank
    member = session.members[rank] if session.joins else asked["members"][rank]
    resizes: list[dict[str, Any]] = []

    def resized(resize: headrace.torch.Resize) -> None:
        resizes.append(vars(resize))
        if resize.joined and asked.get("grown") and session.rank == 0:
            torch.save((model.state_dict(), adam.state_dict()), asked["grown"])

    clip = asked.get("clip")
    optimizer = headrace.torch.ScheduledOptimizer(adam, model, session, resized=resized, clip_norm=clip)
    moments = {
        (step, when): number
        for what, number in (("kill", signal.SIGKILL), ("stop", signal.SIGSTOP))
        for who, step, when in asked.get(what, ())
        if who == member
    }

    pause_s = dict(asked.get("slow", ())).get(member, 0.0)

    def come_to(step: int, when: str) -> None:
        if (step, when) in moments:
            os.kill(os.getpid(), moments[step, when])

    first = step = asked["first"] + optimizer.iterations
    next(iter(model.parameters())).register_hook(lambda _: come_to(step, "backward"))
    losses = []
    for step in range(first, asked["first"] + asked["steps"]):
        wait_before(step, asked, member)
        optimizer.zero_grad()
        inputs = batch(member, step)
        loss = (model(inputs) - inputs[:, :4]).square().mean()
        come_to(step, "forward")
        time.sleep(pause_s)
        loss.backward()
        come_to(step, "step")
        if step in asked.get("reads", ()):
            optimizer.clip_grad_norm_(0.05)
        if asked.get("layers"):
            adam.param_groups[0]["lr"] = 1e-2 / (1 + 0.2 * step)
        if asked.get("own"):
            adam.counts["steps"] = adam.counts.get("steps", 0) + 1
        optimizer.step()
        losses.append(repr(loss.item()))
    optimizer.synchronize()
    if asked.get("save") and session.rank == 0:
        torch.save((model.state_dict(), adam.state_dict()), asked["save"])
    said = {
        "losses": losses,
        "resizes": resizes,
        "first": first,
        "digest": digest_of(model, adam),
        "warned": [str(each.message) for each in warned],
    }
    print(json.dumps(said), flush=True)
    optimizer.close()
    session.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
