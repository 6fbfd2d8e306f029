"""Ways of averaging gradients, and a training that takes turns among them.

All ways stand in one process: each has its own copy of the model, its own optimizer and, where it has
one, its own job, and sees the same batches. Each trains a few iterations while the others rest; so
whatever else the machine and its links are busy with hits all alike.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import headrace
import headrace.torch
import torch
import torch.distributed
from figures import ACCELERATED, ALONE, GLOO, GLOO_1_MB
from torch.nn.parallel import DistributedDataParallel

CTL_SECONDS_MAX = 60

Batch = tuple[torch.Tensor, torch.Tensor]


@dataclasses.dataclass
class Task:
    """What is trained; the same bits in every process."""

    model: torch.nn.Module
    optimizer_of: Callable[[Iterator[torch.nn.Parameter]], torch.optim.Optimizer]
    batches_of: Callable[[], Iterator[Batch]]  # this rank's, without end
    loss_of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Way:
    """One copy of the model that trains in one way. This one averages nothing: ranks drift apart."""

    def __init__(self, name: str, task: Task) -> None:
        self.name = name
        self.job = ""
        self.model = copy.deepcopy(task.model)
        self.optimizer = task.optimizer_of(self.model.parameters())
        self.losses: list[float] = []
        self.seconds: list[list[float]] = []  # by round
        self.waits: list[list[float]] = []
        self.plans: list[dict[str, Any] | None] = []  # in force after the warm-up and after each round
        self._batches = task.batches_of()
        self._loss_of = task.loss_of
        self._trained = self.model

    def iterate(self) -> None:
        """One step of training."""
        inputs, targets = next(self._batches)
        self.optimizer.zero_grad()
        loss = self._loss_of(self._trained(inputs), targets)
        self.before_backward()
        loss.backward()
        self.after_backward()
        self.optimizer.step()
        self.losses.append(loss.item())

    def waited(self) -> float:
        """Seconds spent waiting for communication so far."""
        return 0.0

    def before_backward(self) -> None:
        """The forward pass has ended."""

    def after_backward(self) -> None:
        """backward() has returned."""

    def finish(self) -> None:
        """Parameters are final then."""

    def hash(self) -> str:
        """A hash of all parameters."""
        flat = torch.cat([p.detach().reshape(-1) for p in self.model.parameters()])
        return hashlib.sha256(flat.numpy().tobytes()).hexdigest()

    def close(self) -> None:
        """Lets go of what others must know of."""


class ThroughDdp(Way):
    """DistributedDataParallel. It waits within backward(), after the last gradient was there."""

    def __init__(self, name: str, task: Task, cap_mb: float) -> None:
        super().__init__(name, task)
        self._trained = DistributedDataParallel(
            self.model, bucket_cap_mb=cap_mb, gradient_as_bucket_view=True
        )
        self._waited = 0.0
        self._last = 0.0
        for parameter in self.model.parameters():
            parameter.register_hook(self._produced)

    def _produced(self, _: torch.Tensor) -> None:
        self._last = time.perf_counter()

    def after_backward(self) -> None:
        self._waited += time.perf_counter() - self._last

    def waited(self) -> float:
        return self._waited


class Scheduled(Way):
    """ScheduledOptimizer: each module waits for its own gradients, just before its forward."""

    def __init__(self, name: str, task: Task, job: str) -> None:
        super().__init__(name, task)
        self.job = f"{job}-{name}"
        policy, _, codec = name.partition("+")
        self.session = headrace.init(job=self.job)
        self.optimizer = headrace.torch.ScheduledOptimizer(
            self.optimizer, self.model, self.session, policy, compress=codec or None
        )

    def waited(self) -> float:
        return self.session.waited_seconds

    def finish(self) -> None:
        self.optimizer.synchronize()

    def close(self) -> None:
        self.optimizer.close()
        self.session.close()


class Accelerated(Way):
    """DistributedDataParallel over gloo whose gradients move by a plan: one line more."""

    def __init__(self, name: str, task: Task) -> None:
        super().__init__(name, task)
        self._trained = DistributedDataParallel(self.model)
        self.optimizer = headrace.torch.accelerate(self._trained, self.optimizer)
        self.session = self.optimizer.session
        self.job = self.session.job

    def waited(self) -> float:
        return self.session.waited_seconds

    def finish(self) -> None:
        self.optimizer.synchronize()

    def close(self) -> None:
        self.optimizer.close()


def make_way(name: str, task: Task, job: str) -> Way:
    """One of WAYS or BY_NAME. torch.distributed's process group is there already."""
    if name == ALONE:
        return Way(name, task)
    if name in (GLOO, GLOO_1_MB):
        return ThroughDdp(name, task, 25 if name == GLOO else 1)  # 25 is DDP's default
    if name == ACCELERATED:
        return Accelerated(name, task)
    return Scheduled(name, task, job)


def _turn(way: Way, iterations: int) -> tuple[list[float], list[float]]:
    """Time and waiting of each iteration but the first, which has nothing to wait for."""
    seconds, waits = [], []
    torch.distributed.barrier()
    for index in range(iterations + 1):
        begin, waited = time.perf_counter(), way.waited()
        way.iterate()
        if index > 0:
            seconds.append(time.perf_counter() - begin)
            waits.append(way.waited() - waited)
    way.finish()
    torch.distributed.barrier()
    return seconds, waits


def take_turns(
    ways: Sequence[Way],
    warm_up: int,
    iterations: int,
    rounds: int,
    ctl: str,
    said: Callable[[str], None],
) -> None:
    """Each way warms up, in which plans are made; then rounds, each of which begins with another.

    ``ctl`` is headracectl, which says after each turn which plan is in force.
    """
    for way in ways:
        said(f"{way.name}: warms up, {warm_up} iterations")
        _turn(way, warm_up)
        way.plans.append(_plan_in_force(way, ctl))
    for number in range(rounds):
        turn = number % len(ways)
        for way in [*ways[turn:], *ways[:turn]]:
            said(f"{way.name}: round {number + 1} of {rounds}")
            seconds, waits = _turn(way, iterations)
            way.seconds.append(seconds)
            way.waits.append(waits)
            way.plans.append(_plan_in_force(way, ctl))


def _plan_in_force(way: Way, ctl: str) -> dict[str, Any] | None:
    """What tells plans apart, and what this one promises."""
    plan = _find_job(ctl, way.job)["plan"] if way.job else None
    return plan and {name: plan[name] for name in ("version", "predicted_ns")}


def read_plan(ctl: str, job: str) -> dict[str, Any]:
    """The plan in force, with what was measured. RuntimeError where there is none.

    ``ctl`` is headracectl; HEADRACE_BOARD in the environment is the service's board.
    """
    found = _find_job(ctl, job)
    if found["plan"] is None:
        raise RuntimeError(f"job {job} has no plan: {found['why_none']}")
    return found["plan"]


def _find_job(ctl: str, job: str) -> dict[str, Any]:
    """What headracectl says of the job and its plan. RuntimeError where it knows no such job."""
    done = subprocess.run(
        [ctl, "plan", job, "--json"],
        capture_output=True,
        text=True,
        timeout=CTL_SECONDS_MAX,
    )
    if done.returncode != 0:
        said = done.stderr.strip() or done.stdout
        raise RuntimeError(f"headracectl plan {job}: {said}")
    jobs = json.loads(done.stdout)["jobs"]
    if len(jobs) != 1:
        raise RuntimeError(f"headracectl plan {job}: {len(jobs)} jobs of that name")
    return jobs[0]


def outcome(task: Task, ways: Sequence[Way], ctl: str) -> dict[str, Any]:
    """What this rank measured, for figures.figures()."""
    sizes = [p.numel() * p.element_size() for p in task.model.parameters()]
    return {
        "bytes": sum(sizes),
        "tensors": len(sizes),
        "ways": [
            {
                "way": way.name,
                "seconds": way.seconds,
                "waits": way.waits,
                "losses": list(way.losses),
                "hash": way.hash(),
                "plan": read_plan(ctl, way.job) if way.job else None,
                "plans": way.plans,
            }
            for way in ways
        ],
    }
