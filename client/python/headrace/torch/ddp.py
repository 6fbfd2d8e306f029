"""A communication hook for DistributedDataParallel."""

from __future__ import annotations

import queue
import threading
from typing import Any

import torch
import torch.distributed

from headrace.arena import Spec, Tensor, bytes_for
from headrace.operation import Operation
from headrace.session import Session
from headrace.torch import devices
from headrace.torch.names import check_names
from headrace.torch.outcomes import Outcomes


class DdpState:
    """What ddp_hook keeps between iterations: one registered tensor per bucket, and what waits for
    operations beside backward: a thread, or for each GPU a stream.

    One per DDP model. ddp_hook makes one by itself when it is given a Session. ``model`` gives the names of
    gradients: with it, a rank that has layers of equal size in another order ends every rank's backward with
    Mismatch. Without it only shapes and their order can be compared.
    """

    def __init__(self, session: Session, model: torch.nn.Module | None = None) -> None:
        self.session = session
        self._names = {p: name for name, p in model.named_parameters()} if model else {}
        self._checked: dict[int, list[str]] = {}  # by bucket
        self._buckets: dict[int, Tensor] = {}
        self._open: queue.SimpleQueue = queue.SimpleQueue()
        self._waiter: threading.Thread | None = None
        self._waiting: dict[int, Any] = {}  # streams, by GPU
        self.outcomes = Outcomes()

    def __del__(self) -> None:
        self._open.put(None)  # ends the waiter

    def check(self, bucket: torch.distributed.GradBucket) -> None:
        """Compares the gradients in a bucket with other ranks', when it is new or DDP has regrouped
        gradients.

        DDP does that on all ranks after the same backward.
        """
        names = [
            f"{self._names.get(p, '')} {tuple(p.shape)}".strip()
            for p in bucket.parameters()
        ]
        if self._checked.get(bucket.index()) != names:
            check_names(self.session, names, f"gradients of bucket {bucket.index()}")
            self._checked[bucket.index()] = names

    def tensor_for(self, index: int, buffer: torch.Tensor) -> Tensor:
        """The registered tensor of a bucket; DDP may change a bucket's size once, after step 1."""
        tensor = self._buckets.get(index)
        if tensor is not None and tensor.shape == tuple(buffer.shape):
            return tensor
        spec = Spec(tuple(buffer.shape), buffer.dtype, f"bucket{index}", index)
        arena = self.session.arena(bytes_for([spec]), devices.device_of(buffer))
        self._buckets[index] = arena.tensors([spec])[0]
        return self._buckets[index]

    def waiting_stream(self, device: int) -> Any:
        """A stream that waits in the place of the one in which backward computes."""
        if device not in self._waiting:
            self._waiting[device] = devices.new_stream(device)
        return self._waiting[device]

    def complete(self, started: torch.futures.Future, operation: Operation | list[Operation]) -> None:
        """Has the waiter thread set the future, whose callback then waits for the operation, or for all."""
        if self._waiter is None:
            self._waiter = threading.Thread(
                target=_complete_all,
                args=(self._open,),
                name="headrace-ddp",
                daemon=True,
            )
            self._waiter.start()
        self._open.put((started, operation))


def _complete_all(futures: queue.SimpleQueue) -> None:
    # Operations of one lane end about in the order they were posted.
    while True:
        each = futures.get()
        if each is None:
            return
        started, operation = each
        started.set_result(operation)


def ddp_hook(
    state: Session | DdpState, bucket: torch.distributed.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Averages a bucket of gradients over all ranks through the service.

        model = DistributedDataParallel(module)
        state = headrace.torch.DdpState(session, model)
        model.register_comm_hook(state, headrace.torch.ddp_hook)

    The bucket is copied into shared memory once; DDP copies the average back. An error ends backward with the
    service's text; on a GPU, it ends a later backward.
    """
    if isinstance(state, Session):
        state = _state_of(state)
    state.check(bucket)
    buffer = bucket.buffer()
    tensor = state.tensor_for(bucket.index(), buffer)
    view = tensor.torch()
    view.copy_(buffer)
    if tensor.device is not None:
        return _in_stream_order(state, tensor, view)
    operation = state.session.all_reduce(tensor, op="average", async_op=True)

    def finish(started: torch.futures.Future) -> torch.Tensor:
        # Raised in a callback, an exception reaches DDP with its text.
        started.value().wait()
        return view

    started: torch.futures.Future = torch.futures.Future()
    finished = started.then(finish)
    state.complete(started, operation)
    return finished


def _in_stream_order(
    state: DdpState, tensor: Tensor, view: torch.Tensor
) -> torch.futures.Future:
    """On a GPU a second stream waits, so that backward continues while gradients travel.

    The future is set in that stream: its consumer, DDP at the end of backward, runs after the average has
    arrived.
    """
    state.outcomes.check()
    computing = devices.current_stream(tensor.device)
    operation = state.session.all_reduce(tensor, "average", True, computing)
    waiting = state.waiting_stream(tensor.device)
    with devices.on_stream(waiting):
        operation.wait_on(waiting)
        state.outcomes.add(operation)
        return devices.finished_future(tensor.device, view)


if torch.distributed.is_available():
    # DDP compares a hook's annotations with these types; postponed ones are strings.
    ddp_hook.__annotations__["bucket"] = torch.distributed.GradBucket
    ddp_hook.__annotations__["return"] = torch.futures.Future[torch.Tensor]


def _state_of(session: Session) -> DdpState:
    state = getattr(session, "_ddp_state", None)
    if state is None:
        state = session._ddp_state = DdpState(session)
    return state
