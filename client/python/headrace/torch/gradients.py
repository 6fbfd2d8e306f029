"""Gradients that live in shared memory and are averaged while backward still runs."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterable, Iterator, Sequence

import torch

from headrace.arena import Spec, Tensor, bytes_for
from headrace.errors import Error
from headrace.operation import Operation
from headrace.session import Session
from headrace.torch import devices
from headrace.torch.hooks import AccumulationHook
from headrace.torch.names import check_names
from headrace.torch.outcomes import Outcomes


class GradientArena:
    """Gradients that live in shared memory and are averaged while backward still runs.

        arena = headrace.torch.GradientArena(session, model.named_parameters())
        for batch in batches:
            arena.zero_grad()
            loss(model(batch)).backward()
            arena.wait()
            optimizer.step()

    Every parameter's ``.grad`` is a view into an arena, one for each device, so nothing is copied. Gradients
    are posted from last parameter to first, the order in which backward produces them, each as soon as it and
    all before it are ready; so all ranks post in the same order, whatever their graphs are. A parameter
    without a gradient on this rank counts as zeros; wait() posts it.

    On a GPU streams wait instead of the host: wait() returns at once, and what follows in the current stream
    runs after the averages have arrived. A failure is raised by a later backward or wait(), once it is known;
    parameters that were updated since are undefined.

    All ranks make it at the same place in the program. It compares the names of their gradients: Mismatch if
    their order differs. Parameters without names are compared by their shapes.

    ``optimizer.zero_grad(set_to_none=True)``, torch 2's default, removes the view; putting it back costs one
    copy per gradient. Use zero_grad() of this class.
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
        check_names(
            session,
            [f"{name} {tuple(p.shape)}".strip() for name, p in named],
            "the gradients",
        )
        self.session = session
        self.copies = 0  # gradients that had to be moved into the arena
        self._op = op
        # Everything below is in posting order: last parameter first.
        self._tensors = _place(session, named)[::-1]
        self._parameters = [p for _, p in named][::-1]
        self._views = [tensor.torch() for tensor in self._tensors]
        self._ready = [False] * len(self._parameters)
        self._operations: list[Operation] = []
        self._outcomes = Outcomes()
        self._posting = True
        # Autograd may run hooks of several devices' threads.
        self._lock = threading.Lock()
        for parameter, view in zip(self._parameters, self._views):
            if parameter.grad is not None:
                view.copy_(parameter.grad)
            parameter.grad = view
        self._hooks = [
            AccumulationHook(parameter, functools.partial(self._accumulated, index))
            for index, parameter in enumerate(self._parameters)
        ]

    def zero_grad(self) -> None:
        """Sets all gradients to zero, and makes them views again where they were replaced."""
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
            self._outcomes.check()
        # Every operation is waited for before the first error is raised: until then the
        # service may write to the gradients.
        failure: Error | None = None
        for tensor, operation in zip(self._tensors, operations):
            try:
                self._wait(tensor, operation, timeout)
            except Error as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def restart(self) -> None:
        """Abandons the iteration that was under way when the service went away, so that the next backward
        begins a new one. Call it after Session.reconnect(), on every rank; gradients are undefined until
        then.

        On a GPU parameters may have been updated from such gradients before the loss was known: there,
        continue from a checkpoint.
        """
        with self._lock:
            operations, self._operations = self._operations, []
            self._ready = [False] * len(self._parameters)
            self._outcomes.forget()
        for operation in operations:
            with contextlib.suppress(Error):  # the loss, which is known
                operation.wait()

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within it backward only accumulates: for all but the last of several micro-batches."""
        self._posting = False
        try:
            yield
        finally:
            self._posting = True

    def close(self) -> None:
        """Removes the hooks. Gradients stay what they are, and are waited for."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._outcomes.finish()

    def _wait(
        self, tensor: Tensor, operation: Operation, timeout: float | None
    ) -> None:
        if tensor.device is None or operation.done():
            operation.wait(timeout)
        else:
            operation.wait_on(devices.current_stream(tensor.device))
            self._outcomes.add(operation)

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
        self._outcomes.check()
        tensor = self._tensors[index]
        stream = devices.current_stream(tensor.device)
        self._operations.append(
            self.session.all_reduce(tensor, self._op, async_op=True, stream=stream)
        )


def _place(
    session: Session, named: Sequence[tuple[str, torch.nn.Parameter]]
) -> list[Tensor]:
    """A tensor for each parameter's gradient, in an arena on the device of the parameter."""
    specs: dict[int | None, list[Spec]] = {}
    for order, (name, p) in enumerate(named):
        spec = Spec(tuple(p.shape), p.dtype, name, order)
        specs.setdefault(devices.device_of(p), []).append(spec)
    placed: list[Tensor] = []
    for device, of_device in specs.items():
        placed += session.arena(bytes_for(of_device), device).tensors(of_device)
    return sorted(placed, key=lambda tensor: tensor.order)
