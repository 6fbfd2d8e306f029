"""One rank of a training run by headrace.torch.elastic_run(); elastic_test.py starts it.

usage: elastic_train.py '{"way": "plain" or "ddp", "first": 0, "steps": 12, "members": [0, 1],
                          "kill": [[2, 5, "voted"]], "load": PATH, "save": PATH, "hold": [8, PATH],
                          "grown": PATH, "every": 1, "log": FOLDER, "slow": [[1, 0.3]], "stop": [[1, 5, "forward"]]}'

As shrink_train.py, whose data and digests it has. A member named in ``kill`` kills itself at that moment of that
step, and one named in ``stop`` stands still from then on; one in ``slow`` computes for so many seconds more in each
step. Moments are "forward", "backward", "step" (before the update), "stepped" (after it), "voted" (its commit is
made, and it does not know of the others'). It commits after each ``every`` steps. Each commit that has ended is a
line, the number of the step, in a file of ``log`` with the number of the member.
"""

from __future__ import annotations

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
from shrink_train import batch, digest_of


def average(state: headrace.torch.ElasticState) -> None:
    for parameter in state.module.parameters():
        state.session.all_reduce(parameter.grad, op="average")


class Loop:
    def __init__(self, asked: dict[str, Any]) -> None:
        self.asked = asked
        self.losses: dict[int, str] = {}
        self.resizes: list[dict[str, Any]] = []
        torch.manual_seed(0)
        layers = [torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 4)]
        model = torch.nn.Sequential(*layers)
        adam = torch.optim.AdamW(model.parameters(), 1e-2)
        if asked.get("load"):
            parameters, optimized = torch.load(asked["load"])
            model.load_state_dict(parameters)
            adam.load_state_dict(optimized)
        self.ddp = asked["way"] == "ddp"
        self.state = headrace.torch.ElasticState(model, adam, self.wrap if self.ddp else None)
        session = self.state.session
        # A rank of the beginning has a number among those that the test knows.
        self.names = {each: each for each in session.members}
        if not session.joins:
            self.names = dict(zip(session.members, asked["members"], strict=True))
        self.member = self.names[session.members[session.rank]]
        self.moments = {
            (step, when): number
            for what, number in (("kill", signal.SIGKILL), ("stop", signal.SIGSTOP))
            for who, step, when in asked.get(what, ())
            if who == self.member
        }
        self.pause_s = dict(asked.get("slow", ())).get(self.member, 0.0)
        next(iter(model.parameters())).register_hook(lambda _: self.come_to("backward"))
        self.state.session.all_reduce = self.vote_of(self.state.session.all_reduce)

    @staticmethod
    def wrap(module: torch.nn.Module, group: Any) -> torch.nn.Module:
        return torch.nn.parallel.DistributedDataParallel(module, process_group=group)

    def step_number(self) -> int:
        return self.asked["first"] + self.state.step

    def come_to(self, when: str, step: int | None = None) -> None:
        moment = (self.step_number() if step is None else step, when)
        if moment in self.moments:
            os.kill(os.getpid(), self.moments[moment])

    def vote_of(self, all_reduce: Any) -> Any:
        def vote(x: Any, op: str = "sum", async_op: bool = False, stream: Any = None) -> Any:
            operation = all_reduce(x, op, async_op, stream)
            if op == "max":
                self.come_to("voted", self.step_number() - 1)
            return operation

        return vote

    def train_step(self, state: headrace.torch.ElasticState) -> None:
        step = self.step_number()
        held, path = self.asked.get("hold") or (-1, "")
        if step == held:
            open(f"{path}{self.member}", "w", encoding="utf-8").close()
        while step == held and not os.path.exists(path):
            time.sleep(0.01)
        if step > held >= 0:
            time.sleep(0.02)  # others are to come while it runs
        if step > self.asked["first"]:
            self.log(step - 1)
        inputs = batch(self.member, step)
        state.optimizer.zero_grad()
        loss = (state.model(inputs) - inputs[:, :4]).square().mean()
        self.come_to("forward")
        time.sleep(self.pause_s)
        loss.backward()
        if not self.ddp:
            average(state)
        self.come_to("step")
        state.optimizer.step()
        self.come_to("stepped")
        self.losses[step] = repr(loss.item())

    def log(self, step: int) -> None:
        if self.asked.get("log"):
            with open(os.path.join(self.asked["log"], str(self.member)), "a", encoding="utf-8") as file:
                file.write(f"{step}\n")

    def resized(self, resize: headrace.torch.Resize) -> None:
        told = dict(vars(resize))
        told["iteration"] += self.asked["first"]
        self.resizes.append(told)
        if resize.joined and self.asked.get("grown") and resize.rank == 0:
            torch.save((self.state.module.state_dict(), self.state.optimizer.state_dict()), self.asked["grown"])

    def run(self) -> None:
        state = self.state
        headrace.torch.elastic_run(
            self.train_step, state, self.asked["steps"], self.asked.get("every", 1), self.resized
        )
        if self.asked.get("save") and state.rank == 0:
            torch.save((state.module.state_dict(), state.optimizer.state_dict()), self.asked["save"])
        first = min(self.losses)
        said = {
            "losses": [self.losses[step] for step in sorted(self.losses)],
            "resizes": self.resizes,
            "first": first,
            "digest": digest_of(state.module, state.optimizer),
        }
        print(json.dumps(said), flush=True)
        state.close()


def main() -> int:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    Loop(json.loads(sys.argv[1])).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
