"""Plain training loops, and those over DistributedDataParallel, that go on when ranks are lost or join.

    model, optimizer = build()
    state = headrace.torch.ElasticState(
        model, optimizer, wrap=lambda model, group: DistributedDataParallel(model, process_group=group)
    )

    def train_step(state):
        state.optimizer.zero_grad()
        loss_of(state.model, batch(state.step, state.rank, state.world_size)).backward()
        state.optimizer.step()

    headrace.torch.elastic_run(train_step, state, steps=1000)

As Horovod's elastic state: its contents are committed after a step, and whenever the members of the job
change, all of them, old and new ones, start again from the last commit of one of them. Every rank takes part,
whatever it has noticed: if one went on alone, the others would wait for it for ever.

A commit is a transaction: it ends when all ranks have made theirs. So a commit that one rank has made, and
perhaps published, is never rolled back because no other rank had it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import math
import os
import time
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from headrace.errors import Error
from headrace.session import Session, init
from headrace.torch.optimizer import ScheduledOptimizer
from headrace.torch.reconfigure import DEFAULT_TIMEOUT, Membership
from headrace.torch.recovery import ATTEMPTS_MAX, LOSSES
from headrace.torch.resize import Resize
from headrace.torch.snapshot import copied, packed, put_back, unpacked
from headrace.waits import count_waits

if TYPE_CHECKING:
    from typing_extensions import Self

_RECONNECT_S = 30  # where the environment says nothing
_NOTICE_S = 2.0  # in which a session learns of a loss that another of this process has met
_NOTICE_TAG = (1 << 63) + 1  # no torch tag
_HANDLE_SIZE = 4096  # bytes

Wrap = Callable[[torch.nn.Module, Any], torch.nn.Module]


class ElasticState:
    """A model, its optimizer, a step number and further values, the same on all ranks after each change.

    ``model`` is the callable for the step: the result of ``wrap`` for ``module``, the model as it was given,
    and ``group``, a process group of the present ranks; without ``wrap`` the module itself, and no group. For
    one thread only.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        wrap: Wrap | None = None,
        session: Session | None = None,
        min_world: int | None = None,
        transaction: bool = True,
        **values: Any,
    ) -> None:
        """``session``: None makes one by headrace.init(), which close() closes; with HEADRACE_ROLE=join or
        spare that returns when the job has admitted this process. ``min_world``: with how many ranks the job
        may go on; None: HEADRACE_SHRINK, else 1. ``wrap(module, group)`` is called again after each change;
        the group takes part in collectives of torch.distributed by ``group=``. ``transaction``: whether
        commit() waits for the others; the same on all ranks.

        ``values`` become attributes: objects with state_dict() and load_state_dict(), as a scheduler, or numbers,
        text, None, tensors, and lists, tuples and dicts of these.
        """
        if isinstance(optimizer, ScheduledOptimizer):
            raise TypeError(
                "ScheduledOptimizer goes on with other ranks by itself (shrink=): call it without elastic_run()"
            )
        self.module = model
        self.model = model
        self.optimizer = optimizer
        self.step = 0
        self.group: Any = None
        for name, value in values.items():
            if hasattr(self, name):
                raise ValueError(f"{name} is a name that the state has itself: give the value another one")
            setattr(self, name, value)
        self._names = tuple(values)
        self._wrap = wrap
        self._transaction = transaction
        self._inside_step = False  # of elastic_run()
        self._number = 0  # of the last commit
        self._snapshot: dict[str, Any] | None = None
        self._vote: tuple[Any, torch.Tensor] | None = None
        self._others_wait = False
        self._owns_session = session is None
        if session is None:
            if min_world is None and not os.environ.get("HEADRACE_SHRINK"):
                min_world = 1
            session = init(shrink=min_world)
        self.session = session
        self.min_world = min_world or session.shrink_min_world or 1

    @property
    def rank(self) -> int:
        """This process's among the present ranks."""
        return self.session.rank

    @property
    def world_size(self) -> int:
        """How many ranks there are at present."""
        return self.session.world_size

    def commit(self) -> None:
        """Copies the whole state: after a later loss, all ranks continue from this commit or a newer one. All
        ranks call it after the same step; elastic_run() does so by itself, so a step may but need not. In a
        step it must come last: a rank that continues from the commit begins with the next step. Copying takes
        as long as reading and writing model and optimizer state once.

        With ``transaction`` returns when all ranks have called it. Raises PeerLost or Unavailable, which
        elastic_run() expects.
        """
        self._number += 1
        self._snapshot = copied(self._everything(), self._snapshot)
        before = self._vote
        # Whether others wait to join is known to some ranks first, and is to be acted upon by all at once.
        waits = torch.tensor([int(self.session.members_wait)], dtype=torch.int32)
        operation = self.session.all_reduce(waits, op="max", async_op=True)
        self._vote = (operation, waits)
        ended = self._vote if self._transaction else before
        if ended is not None:
            ended[0].wait()
            self._others_wait = bool(ended[1])

    def close(self) -> None:
        """Ends the process group, and the session that the state has made."""
        self._drop_group()
        if self._owns_session:
            self.session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- Inside ----------------------------------------------------------------------------------

    def _everything(self) -> dict[str, Any]:
        parts = {"module": self.module, "optimizer": self.optimizer}
        parts.update({name: getattr(self, name) for name in self._names})
        return {
            # A step that commits has done its work.
            "step": self.step + int(self._inside_step),
            "number": self._number,
            "parts": {
                name: part.state_dict() if hasattr(part, "state_dict") else part
                for name, part in parts.items()
            },
        }

    def _load(self, whole: dict[str, Any]) -> None:
        self.step, self._number = whole["step"], whole["number"]
        for name, value in whole["parts"].items():
            part = getattr(self, name)
            if hasattr(part, "load_state_dict"):
                part.load_state_dict(value)
            else:
                setattr(self, name, put_back(value, part))
        if self.optimizer is not None:
            self.optimizer.zero_grad(set_to_none=True)  # what a step that failed has left

    def _synchronize(self, newcomer: bool) -> tuple[int, ...]:
        """After each change, on all members: all have what the first that is furthest has committed. Returns
        the members that were there before.
        """
        session = self.session
        facts = torch.zeros(session.world_size, 2, dtype=torch.int64)
        facts[session.rank] = torch.tensor([int(newcomer), self._number])
        session.all_gather(facts)
        old = (facts[:, 0] == 0).nonzero().view(-1).tolist()
        if not old:
            raise RuntimeError(
                "headrace: all ranks that had a part in the training are lost: end this process and start the "
                "job from a checkpoint"
            )
        root = max(old, key=lambda rank: (int(facts[rank, 1]), -rank))
        data = torch.empty(0, dtype=torch.uint8)
        if session.rank == root:
            data = packed(self._snapshot)
        size = torch.tensor([data.numel()], dtype=torch.int64)
        session.broadcast(size, root)
        if session.rank != root:
            data = torch.empty(int(size), dtype=torch.uint8)
        session.broadcast(data, root)
        self._load(unpacked(data))
        self._snapshot = copied(self._everything(), self._snapshot)
        self._vote, self._others_wait = None, False
        return tuple(session.members[rank] for rank in old)

    def _drop_group(self) -> None:
        if self.group is None:
            return
        # The hooks of what wrapped the module go with its last reference.
        self.model = self.module
        gc.collect()
        with contextlib.suppress(Error):
            self.group.shutdown()
        self.group = None

    def _make_group(self) -> None:
        if self._wrap is None:
            return
        from headrace.torch.process_group import ProcessGroup

        session = self.session
        group = ProcessGroup("", session.rank, session.world_size, DEFAULT_TIMEOUT, starts=False)
        own = group.get_reconfigure_handle().encode().ljust(_HANDLE_SIZE)
        handles = torch.zeros(session.world_size, _HANDLE_SIZE, dtype=torch.uint8)
        handles[session.rank] = torch.frombuffer(bytearray(own), dtype=torch.uint8)
        session.all_gather(handles)
        texts = [bytes(row.tolist()).decode().rstrip() for row in handles]
        membership = Membership.of(texts, self._number, group._identity)
        if membership.rendezvous:
            # Where the members have met: the environment's may be the address of a node that is gone.
            membership = dataclasses.replace(membership, rendezvous=session.rendezvous)
        attached = membership.attach(DEFAULT_TIMEOUT)
        count_waits(attached, session)
        group._start(attached)
        self.group = group
        session.barrier()  # which hears at once of a member that does not come
        self.model = self._wrap(self.module, group)

    def _loss_behind(self, error: RuntimeError) -> Error | None:
        """The loss that made a step fail, if one did: DDP's backward passes on no more than its text."""
        loss = error if isinstance(error, LOSSES) else None
        if loss is None and self.group is not None and self.world_size > 1:
            # A receive that nobody sends for disturbs nobody, and ends when the session learns of a loss.
            other = (self.rank + 1) % self.world_size
            try:
                self.session.receive(torch.zeros(1), other, _NOTICE_TAG, async_op=True).wait(_NOTICE_S)
            except LOSSES as behind:
                loss = behind
            except Error:
                pass
        if loss is None:
            return None
        # Without the frames of the step, which hold what has wrapped the model.
        return type(loss)(str(loss), loss.code, loss.number)


def elastic_run(
    train_step: Callable[[ElasticState], Any],
    state: ElasticState,
    steps: int | None = None,
    commit_every: int = 1,
    resized: Callable[[Resize], None] | None = None,
) -> int:
    """Calls ``train_step(state)`` until ``state.step``, which it counts, is ``steps``, or until a step returns False
    (on all ranks at once). Commits after each ``commit_every`` steps (0: only where the step does), and at the
    end. Returns the number of steps.

    Begins with the state of rank 0 on all ranks. When ranks are lost, and when others wait to join, all
    members meet, take the last commit, and go on from there; ``resized`` is then called on each: ranks are
    numbered anew, and the data must be divided among them from the next step on. Random numbers are each
    rank's own.

    Raises what a step raises, unless a lost rank or service caused it; Mismatch when fewer than ``min_world``
    ranks are left, Timeout when no other rank came.
    """
    if commit_every < 0:
        raise ValueError(f"commit_every={commit_every}: give the number of steps between commits, or 0")
    return _Run(train_step, state, steps, commit_every, resized).run()


class _Run:
    """One call of elastic_run()."""

    def __init__(
        self,
        train_step: Callable[[ElasticState], Any],
        state: ElasticState,
        steps: int | None,
        commit_every: int,
        resized: Callable[[Resize], None] | None,
    ) -> None:
        self._train_step = train_step
        self._state = state
        self._steps = steps
        self._commit_every = commit_every
        self._resized = resized
        session = state.session
        self._newcomer = session.joins and state._snapshot is None
        self._members: tuple[int, ...] = () if self._newcomer else session.members
        self._ended = False

    def run(self) -> int:
        state = self._state
        state._snapshot = copied(state._everything(), state._snapshot)
        loss = self._unless_lost(self._adopt)
        while loss is not None or not self._ended:
            if loss is not None or state._others_wait:
                self._meet(loss)
            loss = self._unless_lost(self._step)
        return state.step

    def _step(self) -> None:
        state = self._state
        limit = math.inf if self._steps is None else self._steps
        more = state.step < limit and self._call(state)
        if more:
            state.step += 1
        ends = not more or state.step >= limit
        if ends or (self._commit_every and state.step % self._commit_every == 0):
            state.commit()
        self._ended = ends

    def _call(self, state: ElasticState) -> bool:
        """Whether there is to be another step after this one."""
        state._inside_step = True
        try:
            return self._train_step(state) is not False
        finally:
            state._inside_step = False

    def _unless_lost(self, call: Callable[[], None]) -> Error | None:
        """Returns the loss that it has met."""
        try:
            call()
        except RuntimeError as error:
            loss = self._state._loss_behind(error)
            if loss is None:
                raise
            return loss
        return None

    def _meet(self, cause: Error | None) -> None:
        """Returns when all members of now have the same state."""
        state, begin, last = self._state, time.monotonic(), cause
        for _ in range(ATTEMPTS_MAX):
            state._drop_group()
            seconds = state.session.reconnect_seconds or _RECONNECT_S

            def come_together(seconds: float = seconds) -> None:
                state.session.reconnect(seconds, True, state.min_world)
                self._adopt()

            try:
                last = self._unless_lost(come_together)
            except Error as error:
                text = str(error) if cause is None else f"{error}; what was lost first: {cause}"
                raise type(error)(text, error.code, error.number) from error
            if last is None:
                self._say(cause, time.monotonic() - begin)
                return
        raise last

    def _adopt(self) -> None:
        """All that follows when ranks have come together."""
        state = self._state
        before = state._synchronize(self._newcomer)
        state._make_group()
        self._ended = False
        members = state.session.members
        before, self._members = self._members or before, members
        self._newcomer = False
        if before == members or self._resized is None:
            return
        self._resized(
            Resize(
                rank=state.rank,
                world_size=state.world_size,
                members=members,
                lost=tuple(each for each in before if each not in members),
                iteration=state.step + 1,
                joined=tuple(each for each in members if each not in before),
            )
        )

    def _say(self, cause: Error | None, seconds: float) -> None:
        state = self._state
        if state.rank == 0:
            why = "others join" if cause is None else str(cause)
            warnings.warn(
                f"headrace: {why}; {state.world_size} ranks go on after step {state.step}, {seconds:.1f} s later",
                stacklevel=2,
            )
