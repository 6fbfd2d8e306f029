"""PyTorch: a communication hook for DistributedDataParallel, and gradients that live in an arena.

Works with torch 1.13 and 2.x on the CPU. Sessions come from headrace.init(), which takes what torchrun
says, the rendezvous of a job of several nodes included.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed

from headrace.arena import Arena, Spec, Tensor, bytes_for
from headrace.errors import Error
from headrace.operation import Operation
from headrace.session import Session


class DdpState:
    """What ddp_hook keeps between iterations: one registered tensor per bucket, one waiter thread.

    One per DDP model. ddp_hook makes one by itself when it is given a Session.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self._buckets: dict[int, Tensor] = {}
        self._open: queue.SimpleQueue = queue.SimpleQueue()
        self._waiter: threading.Thread | None = None

    def __del__(self) -> None:
        self._open.put(None)  # ends the waiter

    def tensor_for(self, index: int, buffer: torch.Tensor) -> Tensor:
        """The registered tensor of a bucket; DDP may change a bucket's size once, after step 1."""
        tensor = self._buckets.get(index)
        if tensor is not None and tensor.shape == tuple(buffer.shape):
            return tensor
        spec = Spec(tuple(buffer.shape), buffer.dtype, f"bucket{index}", index)
        arena = self.session.arena(bytes_for([spec]))
        self._buckets[index] = arena.tensors([spec])[0]
        return self._buckets[index]

    def complete(self, started: torch.futures.Future, operation: Operation) -> None:
        """Has the waiter thread set the future, whose callback then waits for the operation."""
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
        model.register_comm_hook(session, headrace.torch.ddp_hook)

    The bucket is copied into shared memory once; DDP copies the average back. An error ends
    backward with the service's own words.
    """
    if isinstance(state, Session):
        state = _state_of(state)
    buffer = bucket.buffer()
    tensor = state.tensor_for(bucket.index(), buffer)
    view = tensor.torch()
    view.copy_(buffer)
    operation = state.session.all_reduce(tensor, op="average", async_op=True)

    def finish(started: torch.futures.Future) -> torch.Tensor:
        # Raised in a callback, an exception reaches DDP with its text.
        started.value().wait()
        return view

    started: torch.futures.Future = torch.futures.Future()
    finished = started.then(finish)
    state.complete(started, operation)
    return finished


if torch.distributed.is_available():
    # DDP compares a hook's annotations with these types; postponed ones are strings.
    ddp_hook.__annotations__["bucket"] = torch.distributed.GradBucket
    ddp_hook.__annotations__["return"] = torch.futures.Future[torch.Tensor]


def _state_of(session: Session) -> DdpState:
    state = getattr(session, "_ddp_state", None)
    if state is None:
        state = session._ddp_state = DdpState(session)
    return state


class GradientArena:
    """Gradients that live in shared memory and are averaged while backward still runs.

        arena = headrace.torch.GradientArena(session, model.named_parameters())
        for batch in batches:
            arena.zero_grad()
            loss(model(batch)).backward()
            arena.wait()
            optimizer.step()

    Every parameter's ``.grad`` is a view into one arena, so nothing is copied. Gradients are posted
    from last parameter to first, the order in which backward produces them, each as soon as it and
    all before it are there; so all ranks post in the same order whatever their graphs look like. A
    parameter without a gradient on this rank counts as zeros; wait() posts it.

    ``optimizer.zero_grad(set_to_none=True)``, torch 2's default, takes the view away: it is put back
    at the cost of one copy per gradient. Use zero_grad() of this class.
    """

    def __init__(
        self,
        session: Session,
        parameters: Iterable[torch.nn.Parameter | tuple[str, torch.nn.Parameter]],
        op: str = "average",
    ) -> None:
        named = [each if isinstance(each, tuple) else ("", each) for each in parameters]
        named = [(name, p) for name, p in named if p.requires_grad and p.numel() > 0]
        if not named:
            raise ValueError("none of the parameters needs a gradient")
        specs = [
            Spec(tuple(p.shape), p.dtype, name, order)
            for order, (name, p) in enumerate(named)
        ]
        self.session = session
        self.copies = 0  # gradients that had to be moved into the arena
        self._op = op
        self._arena: Arena = session.arena(bytes_for(specs))
        # Everything below is in posting order: last parameter first.
        self._tensors = self._arena.tensors(specs)[::-1]
        self._parameters = [p for _, p in named][::-1]
        self._views = [tensor.torch() for tensor in self._tensors]
        self._ready = [False] * len(self._parameters)
        self._operations: list[Operation] = []
        self._posting = True
        # Autograd may run hooks of several devices' threads.
        self._lock = threading.Lock()
        for parameter, view in zip(self._parameters, self._views):
            if parameter.grad is not None:
                view.copy_(parameter.grad)
            parameter.grad = view
        self._hooks = [self._hook(index, p) for index, p in enumerate(self._parameters)]

    def zero_grad(self) -> None:
        """Sets all gradients to zero, and makes them views again where something took them."""
        for parameter, view in zip(self._parameters, self._views):
            view.zero_()
            parameter.grad = view

    def wait(self, timeout: float | None = None) -> None:
        """Posts what backward did not produce, then waits until every gradient is averaged.

        Call it on every rank before optimizer.step(). ``timeout`` in seconds is for each gradient.
        Raises the first error; gradients are then undefined.
        """
        with self._lock:
            for index in range(len(self._operations), len(self._parameters)):
                self._adopt(index)
                self._post(index)
            operations, self._operations = self._operations, []
            self._ready = [False] * len(self._parameters)
        # Every operation is waited for before the first error is raised: until then the
        # service may write to the gradients.
        failure: Error | None = None
        for operation in operations:
            try:
                operation.wait(timeout)
            except Error as error:
                failure = failure or error
        if failure is not None:
            raise failure

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within it backward only accumulates: for all but the last of several micro-batches."""
        self._posting = False
        try:
            yield
        finally:
            self._posting = True

    def close(self) -> None:
        """Removes the hooks. Gradients stay what they are."""
        for handle, _ in self._hooks:
            handle.remove()
        self._hooks = []

    def _hook(self, index: int, parameter: torch.nn.Parameter) -> tuple[Any, Any]:
        if hasattr(parameter, "register_post_accumulate_grad_hook"):  # torch 2.1
            return parameter.register_post_accumulate_grad_hook(
                lambda _: self._accumulated(index)
            ), None
        # Tensor.register_hook fires before accumulation; the node that accumulates tells after it.
        # The node must be kept: the parameter only refers to it weakly.
        with torch.enable_grad():
            node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
        return node.register_hook(lambda *_: self._accumulated(index)), node

    def _accumulated(self, index: int) -> None:
        if not self._posting:
            return
        with self._lock:
            if self._ready[index]:
                raise RuntimeError(
                    "a second backward before wait(): use no_sync() for all but the last "
                    "micro-batch"
                )
            self._adopt(index)
            self._ready[index] = True
            while (
                len(self._operations) < len(self._ready)
                and self._ready[len(self._operations)]
            ):
                self._post(len(self._operations))

    def _adopt(self, index: int) -> None:
        parameter, view = self._parameters[index], self._views[index]
        if parameter.grad is None:
            view.zero_()
        elif parameter.grad.data_ptr() != view.data_ptr():
            view.copy_(
                parameter.grad.to_dense()
                if parameter.grad.is_sparse
                else parameter.grad
            )
            self.copies += 1
        else:
            return
        parameter.grad = view

    def _post(self, index: int) -> None:
        self._operations.append(
            self.session.all_reduce(self._tensors[index], op=self._op, async_op=True)
        )


def broadcast_parameters(
    session: Session, module: torch.nn.Module, root: int = 0
) -> None:
    """Gives every rank rank ``root``'s parameters and buffers. Returns when all are there."""
    operations = []
    with torch.no_grad():
        for tensor in [*module.parameters(), *module.buffers()]:
            if tensor.numel() == 0:
                continue
            # Booleans and the like travel as bytes, and any layout as a contiguous copy.
            flat = tensor.detach().contiguous()
            data = flat.view(-1).view(torch.uint8)
            operations.append(
                (session.broadcast(data, root, async_op=True), tensor, flat)
            )
        for operation, tensor, flat in operations:
            operation.wait()
            if flat.data_ptr() != tensor.data_ptr():
                tensor.copy_(flat)
