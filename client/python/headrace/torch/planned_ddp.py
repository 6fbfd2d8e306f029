"""DDP's small buckets by a plan, without a line of the script: all-reduces that repeat become a layout's gradients.

DDP posts its buckets one after the other during backward, in the same order in every iteration, and waits for
all of them when backward has ended. So nobody needs one before the last was posted, and the plan may fuse them.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import math
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.utils
import torch.nn.parallel.distributed

from headrace import errors, library
from headrace.errors import Error
from headrace.layout import Layout
from headrace.operation import Operation
from headrace.session import Session
from headrace.torch import ddp_buckets, elements
from headrace.torch.backward_end import AtEndOfBackward, is_in_backward
from headrace.torch.ddp_buckets import Bucket
from headrace.torch.jobs import node_of
from headrace.torch.posting import Poster
from headrace.torch.work import Completer, Work, seconds_left

# Where DDP's reducer, which is C++, is called from besides backward: join(), for a rank that has no more data.
_JOIN = torch.nn.parallel.distributed.__file__
_NEW_MODEL = torch.distributed.utils.__file__  # where a new DDP compares its parameters with other ranks'

_TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_PASSES = 3  # that must be alike
_COUNT_MAX = 768  # gradients of a layout
_MEAN_SIZE_MAX = 4 << 20  # bytes; larger buckets gain nothing
_NODES_MAX = 2  # the sum of two is the same bits in either order, however buckets are cut
_MISMATCH = 9  # HR_MISMATCH


class Agreement:
    """Whether all ranks have come to the same point. By the group's store, and not by an operation, which would be
    missing on a rank that never comes there.
    """

    def __init__(self, store: dist.Store, session: Session) -> None:
        self._store = store
        self._session = session
        self._key = ""
        self._after: Work | None = None  # the first that was posted after come()

    def come(self, where: tuple) -> None:
        """This rank has come there, and posts an operation next. ``where`` says what follows, and how many operations
        were posted before.
        """
        digest = hashlib.blake2b(repr(where).encode(), digest_size=16).hexdigest()
        self._key = f"headrace/buckets/{self._session.job}/{digest}"
        self._after = None
        options = library.Options()
        library.check(library.fill(options, error := library.ErrorText()), error)
        self._store.set(f"{self._key}/{self._session.rank}", node_of(options.socket_path.decode()))
        self._store.add(self._key, 1)

    def note_operation(self, work: Work) -> None:
        """It was posted."""
        if self._key and self._after is None:
            self._after = work

    def is_reached(self) -> bool:
        """Whether all ranks have, on few enough nodes. All get the same answer: each asks when an operation has ended
        which the others posted right after come(), if they came.
        """
        after, self._after = self._after, None
        if after is None or not (after.settle(None) and after.is_success()):
            return False
        ranks = self._session.world_size
        if self._store.add(self._key, 0) != ranks:
            return False
        return len({self._store.get(f"{self._key}/{rank}") for rank in range(ranks)}) <= _NODES_MAX


class PlannedGradient:
    """One bucket of one iteration on its way, in the place of an Operation."""

    def __init__(
        self,
        opening: Operation,
        operation: Operation,
        view: torch.Tensor,
        tensor: torch.Tensor,
    ) -> None:
        self._opening = opening
        self._operation = operation
        self._view = view
        self._tensor = tensor

    def wait(self, limit_s: float | None = None) -> None:
        """As Operation.wait."""
        deadline = None if limit_s is None else time.monotonic() + limit_s
        self._opening.wait(limit_s)  # raises where other ranks have posted something else
        self._operation.wait(seconds_left(deadline))

    def done(self) -> bool:
        """As Operation.done."""
        if not self._opening.done():
            return False
        try:
            self._opening.wait(0)
        except Error:
            return True
        return self._operation.done()

    def finish(self) -> None:
        """Writes the sum where the bucket lies. Mismatch where it is not one of all ranks' buckets."""
        if self._view[-1].item() != 0.0:
            raise errors.make(
                "a bucket of DistributedDataParallel was posted on this rank, while another rank's backward pass "
                "ended, or posted something else, before it: run the same backward passes on every rank",
                "mismatch",
                _MISMATCH,
            )
        elements.put_back(self._view[:-1], self._tensor)


class PlannedWork(Work):
    """The Work of a bucket that moves by the plan."""

    def __init__(
        self,
        planned: PlannedDdp,
        gradient: PlannedGradient,
        result: Sequence[torch.Tensor],
        completer: Completer | AtEndOfBackward,
    ) -> None:
        super().__init__([gradient], result, gradient.finish, completer)
        self._planned = planned

    def wait(self, timeout: timedelta | float | None = None) -> bool:
        """As Work.wait. Who waits in the midst of an iteration, as DDP does not, has it end there."""
        if not self._settled:
            self._planned.depart()
        return super().wait(timeout)


class Step(enum.Enum):
    """How far a group is towards planned buckets."""

    WATCHING = 0
    SEEN = 1  # buckets that repeat
    MADE = 2  # a layout of them
    PLANNED = 3
    ENDED = 4  # for good: each all-reduce is an operation


class PlannedDdp:
    """What a group knows of its all-reduces: DDP's, which repeat, and are the gradients of a layout then. Thread-safe.

    All ranks see the same operations in the same order, so what follows from them alone is the same on all: which
    buckets are gradients, and that an iteration ends early, with *blanks* for what was not posted. When backward
    ends is each rank's own matter, so a bucket has one more element, which is not 0 if it met a blank.

    One model on a group only: another one would be able to post what looks like the first one's buckets.
    """

    def __init__(self, poster: Poster, session: Session, store: dist.Store) -> None:
        self._poster = poster
        self._session = session
        self._agreement = Agreement(store, session)
        self._completer = Completer(f"headrace-{session.job}", threads_max=1)
        self._at_the_end = AtEndOfBackward(self._completer)
        self._lock = threading.RLock()
        self._step = Step.WATCHING
        self._models = 0
        self._operations = 0  # posted while it watches
        self._running = False  # a backward pass that has posted buckets
        self._alike = 0  # how many of the last passes
        self._filled: list[Bucket] = []  # in this pass so far
        self._last_filled: list[Bucket] = []  # in the last one; when planned, in each
        self._layout: Layout | None = None
        self._views: list[torch.Tensor] = []  # by bucket
        self._posted = 0  # buckets of this iteration
        self._works: list[Work] = []
        self._opening: Operation | None = None

    @property
    def step(self) -> Step:
        """How far it is."""
        return self._step

    @property
    def layout(self) -> Layout | None:
        """Whose gradients are the buckets; None before."""
        return self._layout

    def close(self) -> None:
        """The group is about to close its session: what is open ends with an error."""
        self._completer.close()

    def note_call(self, caller: str) -> None:
        """An all-gather was called from that file."""
        with self._lock:
            self._models += caller == _NEW_MODEL
            if self._models > 1:
                self._end()

    def post(self, tensors: Sequence[torch.Tensor], op: Any, caller: str) -> Work | None:
        """The work of an all-reduce that was called from that file, if it is a planned bucket; None: it is an
        operation.
        """
        if self._step == Step.ENDED or not (is_in_backward(caller) or caller == _JOIN):
            return None
        bucket = _bucket_of(tensors, op)
        if bucket is None:
            return None
        with self._lock:
            if is_in_backward(caller):
                self._note_pass()
            if self._step == Step.PLANNED:
                completer = self._at_the_end if is_in_backward(caller) else self._completer
                return self._post_planned(bucket, tensors, completer)
            if is_in_backward(caller):
                self._filled.append(bucket)
                if self._poster.is_shared(elements.flat(tensors[0])):
                    self._end()  # it is summed where it lies, without a copy
        return None

    def note_operation(self, work: Work) -> None:
        """An operation was posted that is no planned bucket."""
        if self._step == Step.ENDED:
            return
        with self._lock:
            self._operations += 1
            self._agreement.note_operation(work)
            self.depart()

    def depart(self) -> None:
        """Ends an iteration in whose midst something else has come, and lets no other begin."""
        with self._lock:
            if self._step == Step.PLANNED and self._posted < len(self._views):
                self._end()

    def _end(self) -> None:
        was_planned, self._step = self._step == Step.PLANNED, Step.ENDED
        if not was_planned:
            return
        with contextlib.suppress(Error):  # works that are open say it
            for number in range(self._posted, len(self._views)):
                self._views[number].zero_()
                self._views[number][-1] = math.inf
                self._layout.post(ddp_buckets.index_of(number, len(self._views)))

    # ---- Until the buckets repeat ----------------------------------------------------------------

    def _note_pass(self) -> None:
        # After an exception in backward the callbacks of that pass are forgotten, so each bucket has one.
        torch.autograd.Variable._execution_engine.queue_callback(self._pass_ended)
        if self._running:
            return
        self._running = True
        if self._step == Step.PLANNED:
            return
        try:
            self._go_on()
        except RuntimeError:  # the store has gone, or there is no room for a layout: the other ranks hear nothing
            self._end()

    def _go_on(self) -> None:
        """One step towards a plan, between two backward passes."""
        if self._step == Step.WATCHING:
            self._alike = self._alike + 1 if self._filled == self._last_filled else 1
            self._last_filled, self._filled = self._filled, []
            if self._alike >= _PASSES and _is_worthwhile(self._last_filled):
                self._agreement.come((self._operations, self._last_filled))
                self._step = Step.SEEN
        elif not self._agreement.is_reached():
            self._end()
        elif self._step == Step.SEEN:
            specs = ddp_buckets.as_gradients(self._last_filled, {}, more=1)
            # As DDP sums its buckets, which it has divided; in the codec of this group's all-reduces, which is none.
            self._layout = self._session.layout(specs, "sum", compress="none")
            self._views = self._layout.views[::-1]
            self._posted = len(self._views)
            self._agreement.come((self._operations, "layout"))
            self._step = Step.MADE
        else:
            self._step = Step.PLANNED

    # ---- From then on ----------------------------------------------------------------------------

    def _post_planned(
        self, bucket: Bucket, tensors: Sequence[torch.Tensor], completer: Completer | AtEndOfBackward
    ) -> Work | None:
        count = len(self._views)
        number = self._posted % count
        if bucket != self._last_filled[number]:
            return None
        if number == 0:
            self._begin_iteration()
        view = self._views[number]
        view[:-1].copy_(elements.flat(tensors[0]))
        operation = self._layout.post(ddp_buckets.index_of(number, count))
        self._posted = number + 1
        gradient = PlannedGradient(
            self._opening, Operation(self._session, operation, None, copied=False), view, tensors[0]
        )
        self._works.append(PlannedWork(self, gradient, tensors, completer))
        return self._works[-1]

    def _begin_iteration(self) -> None:
        for work in self._works:  # DDP has waited for them, unless backward was left by an exception
            work.settle(None)
        self._works = []
        # Operations are matched in their order, gradients by their numbers: a rank that posts an operation in this
        # place ends this one, and hears of it.
        self._opening = self._session.barrier(async_op=True)
        self._layout.begin_backward()
        self._posted = 0

    def _pass_ended(self) -> None:
        """Backward has ended. DDP waits for its buckets next, all of them."""
        with self._lock:
            if not self._running:
                return
            self._running = False
            self.depart()
            is_planned = self._step == Step.PLANNED
        if is_planned:
            with contextlib.suppress(Error):  # which the works say, too
                self._opening.wait()
                # As a forward pass that needs all at once and lasts until the next backward pass: for the plan's times,
                # what the loop does meanwhile hides nothing.
                self._layout.wait_all()


def _bucket_of(tensors: Sequence[torch.Tensor], op: Any) -> Bucket | None:
    if len(tensors) != 1 or op != dist.ReduceOp.SUM:
        return None
    (tensor,) = tensors
    is_plain = tensor.is_cpu and not tensor.is_sparse and tensor.dtype in _TYPES and tensor.numel() > 0
    return Bucket(tensor.numel(), tensor.dtype) if is_plain else None


def _is_worthwhile(filled: Sequence[Bucket]) -> bool:
    sizes = [bucket.count * torch.finfo(bucket.dtype).bits // 8 for bucket in filled]
    return 2 <= len(sizes) <= _COUNT_MAX and sum(sizes) <= _MEAN_SIZE_MAX * len(sizes)
