"""Gradients that live in shared memory and are averaged while backward still runs."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterable, Iterator

import torch

from headrace.arena import Arena, Spec, bytes_for
from headrace.errors import Error
from headrace.operation import Operation
from headrace.session import Session
from headrace.torch.hooks import AccumulationHook


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
        self._hooks = [
            AccumulationHook(parameter, functools.partial(self._accumulated, index))
            for index, parameter in enumerate(self._parameters)
        ]

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
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

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
