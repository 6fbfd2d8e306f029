"""One rank of a training run by ScheduledOptimizer that says of each iteration what it has applied; transaction_test.py
starts it.

usage: transaction_train.py '{"steps": 20, "members": [0, 1], "kill": [[2, 5, "voted"]], "log": FOLDER,
                              "transaction": true, "unheard": [1, 4]}'

A member named in ``kill`` kills itself at that moment of that step (from 0): "forward", "backward", "step" (before
step()), "voted" (it has all averages, and does not know of the others), "applying" (the first of its updates is made),
"applied" (all are). With ``unheard`` that member kills itself a second after that step; the others do not hear of any
average of that step, as if their services could not tell them, and so have no part in its barrier either. Each rank
writes a line, the number of the step and a digest of its averages, into a file of ``log`` before it applies them.
Prints a JSON line at the end.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import headrace
import headrace.torch
import torch
from headrace.layout import Layout
from headrace.operation import Operation
from headrace.torch.updates import Updates
from shrink_train import batch, digest_of

ALONE_S = 1.0  # that the one that hears of averages has for using them
NOT_POSTED = 0  # in the place of an operation's number


class Watched:
    """What is looked at and done in the midst of a step."""

    def __init__(self, asked: dict[str, Any], member: int) -> None:
        self.member = member
        self.moments = {(step, when) for who, step, when in asked.get("kill", ()) if who == member}
        self.log = Path(asked["log"]) / str(member)
        self.pids = Path(asked["log"])
        self.applied = -1
        self.optimizer: headrace.torch.ScheduledOptimizer | None = None
        self.unheard: set[int] = set()  # operations
        who, self.deaf_in = asked.get("unheard") or (member, -1)
        if who == member:
            self.deaf_in = -1
        (self.pids / f"pid{member}").write_text(str(os.getpid()))
        self._watch_updates()
        self._watch_barriers()

    @property
    def step(self) -> int:
        return self.optimizer.iterations - 1

    def come_to(self, when: str) -> None:
        if (self.step, when) in self.moments:
            os.kill(os.getpid(), signal.SIGKILL)

    def _watch_updates(self) -> None:
        make = Updates.make

        def making(updates: Updates, *arguments: Any) -> None:
            if self.applied < self.step:
                self.applied = self.step
                digest = hashlib.sha256()
                for slot in self.optimizer._flow.slots[1:]:
                    digest.update(slot.memory.numpy().tobytes())
                with open(self.log, "a", encoding="utf-8") as file:
                    file.write(f"{self.step} {digest.hexdigest()}\n")
            make(updates, *arguments)
            self.come_to("applying")

        Updates.make = making

    def _watch_barriers(self) -> None:
        post, wait = Layout.barrier, Operation.wait
        barrier = -1

        def posting(layout: Layout) -> int:
            nonlocal barrier
            if self.step == self.deaf_in:
                return NOT_POSTED
            barrier = post(layout)
            return barrier

        def waiting(operation: Operation, timeout: float | None = None) -> Any:
            if operation.number == barrier:
                self.come_to("voted")
            return wait(operation, timeout)

        Layout.barrier, Operation.wait = posting, waiting

    def hear_nothing(self, of: int) -> None:
        """Waits for no average that this step has posted, while that member lives."""
        self.unheard = {slot.operation.number for slot in self.optimizer._flow.slots} | {NOT_POSTED}
        status = Path(f"/proc/{(self.pids / f'pid{of}').read_text()}/stat")
        wait = Operation.wait

        def waiting(operation: Operation, timeout: float | None = None) -> Any:
            if operation.number not in self.unheard:
                return wait(operation, timeout)
            while status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] != "Z":
                time.sleep(0.01)
            raise headrace.PeerLost("the service could not tell it any more", "peer lost", 10)

        Operation.wait = waiting


def main() -> int:
    asked: dict[str, Any] = json.loads(sys.argv[1])
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers = [torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 4)]
    model = torch.nn.Sequential(*layers)
    adam = torch.optim.AdamW(model.parameters(), 1e-2)
    session = headrace.init()
    watched = Watched(asked, asked["members"][session.rank])
    optimizer = watched.optimizer = headrace.torch.ScheduledOptimizer(
        adam, model, session, transaction=asked["transaction"]
    )
    who, when = asked.get("unheard") or (-1, -1)
    next(iter(model.parameters())).register_hook(lambda _: watched.come_to("backward"))
    for step in range(asked["steps"]):
        optimizer.zero_grad()
        inputs = batch(watched.member, step)
        loss = (model(inputs) - inputs[:, :4]).square().mean()
        if step:
            watched.come_to("applied")
        if (step, "forward") in watched.moments:
            os.kill(os.getpid(), signal.SIGKILL)
        loss.backward()
        watched.come_to("step")
        optimizer.step()
        if step == when and who == watched.member:
            threading.Timer(ALONE_S, os.kill, (os.getpid(), signal.SIGKILL)).start()
        elif step == when:
            watched.hear_nothing(who)
    optimizer.synchronize()
    print(json.dumps({"digest": digest_of(model, adam)}), flush=True)
    optimizer.close()
    session.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
