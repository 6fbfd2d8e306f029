"""A model's gradients in forward order, moved by the plan of the job."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace import dtypes, errors, library
from headrace.arena import Arena
from headrace.codecs import (
    choose_codecs,
    keeps_residuals,
    loses,
    rank_of,
    right_factor_room,
    rows_of,
)
from headrace.region import stream_handle

if TYPE_CHECKING:
    import numpy
    import torch

    from headrace.session import Session

_TIMEOUT = 8  # HR_TIMEOUT
_RESIDUALS_ALIGNMENT = 64


class Gradient(NamedTuple):
    """A gradient of a layout: ``shape`` in elements, and a name, the same on all ranks.

    ``parts``: names and shapes of its components, by which its codec is chosen; None: its own name and shape;
    empty: it is never compressed.
    """

    shape: Sequence[int]
    dtype: Any
    name: str = ""
    parts: Sequence[tuple[str, Sequence[int]]] | None = None


class Layout:
    """All gradients of a model, in shared memory, in the order in which the forward pass uses them.

    Made by Session.layout, once a session; equal on all ranks of the job, with the names. The
    service decides in which blocks, and in which order, they travel. One iteration is, on every
    rank::

        for i in range(len(layout)):        # the forward pass, in any order
            layout.wait(i)                  # before gradient i's parameter is updated and used
        layout.end_forward()
        layout.begin_backward()
        for i in reversed(range(len(layout))):
            layout.views[i].copy_(...)      # or autograd writes there
            layout.post(i)                  # as soon as it is there

    Every gradient is posted once an iteration; a gradient without a value is zeroed and posted, too. From
    post(i) to the return of wait(i) its memory belongs to the service: neither read nor write it. These calls
    also measure the times that plans are made from. Thread-safe. The views stay valid as plain memory after
    the session was closed.
    """

    def __init__(
        self,
        session: Session,
        specs: Sequence[Gradient | tuple],
        op: str = "average",
        policy: str | None = None,
        device: int | None = None,
        compress: str | Mapping[str, str] | None = None,
        compress_after: int = 0,
        adaptive: bool = False,
    ) -> None:
        self.session = session
        self.gradients = [Gradient(*spec) for spec in specs]
        names = [dtypes.dtype_name(gradient.dtype) for gradient in self.gradients]
        self.counts = [math.prod(gradient.shape) for gradient in self.gradients]
        self._offsets, end = _packed(self.counts, names)
        self._dtypes = names
        options = library.LayoutOptions()
        error = library.ErrorText()
        c = library.load()
        library.check(
            c.hr_layout_options_init_sized(options, ctypes.sizeof(options), error),
            error,
        )
        options.reduction = dtypes.reduction_number(op)
        if policy is not None:
            options.policy = _name("policy", policy)
        codecs = choose_codecs(self.gradients, compress)
        if compress is not None:
            options.codec = _name("codec", compress if isinstance(compress, str) else "")
        named = [codec and codec.encode() for codec in codecs]
        options.codecs = (ctypes.c_char_p * len(named))(*named)
        options.compress_after = compress_after
        options.adaptive = adaptive
        rows = [rows_of(gradient.shape) for gradient in self.gradients]
        options.rows = (ctypes.c_uint64 * len(rows))(*rows)
        default = options.codec.decode()
        chosen = [default if codec is None else codec for codec in codecs]
        lossy = any(loses(codec) for codec in chosen)
        self._residuals: int | None = None  # where they begin
        # Bytes behind that, for right factors of powersgd: each gradient's begins, and all end, there.
        self._factors: list[int] = []
        self._residuals_arena: Arena | None = None  # of a GPU's gradients
        if lossy and keeps_residuals():
            options.factors_rank = max(map(rank_of, chosen))
            self._factors = self._factor_offsets(end, options.factors_rank)
            end = self._make_room(end, device, options)
        self._arena = Arena(session, max(end, 1), device)
        handle = ctypes.c_void_p()
        status = c.hr_layout_create(
            session.handle,
            self._c_specs(),
            len(self.gradients),
            options,
            ctypes.byref(handle),
            error,
        )
        if status != 0:
            with contextlib.suppress(errors.Error):  # what matters is why there is no layout
                self._arena.release()
                if self._residuals_arena is not None:
                    self._residuals_arena.release()
        library.check(status, error)
        self._layout = handle.value
        self._post, self._wait = c.hr_layout_post, c.hr_layout_wait
        self._post_on, self._wait_on = (
            c.hr_layout_post_on_stream,
            c.hr_layout_wait_on_stream,
        )

    def _factor_offsets(self, end: int, rank: int) -> list[int]:
        offsets = [_aligned(end)]
        for gradient in self.gradients:
            offsets.append(offsets[-1] + 4 * right_factor_room(rank, gradient.shape))
        return offsets

    def _make_room(self, end: int, device: int | None, options: library.LayoutOptions) -> int:
        """Room for residuals, behind the host's gradients or apart from those of a GPU; where the arena ends."""
        room = self._factors[-1]
        if device is not None:
            self._residuals = 0
            self._residuals_arena = Arena(self.session, max(room, 1))
            options.residuals_segment = self._residuals_arena.segment
            return end
        self._residuals = _aligned(end)
        options.residuals = self._residuals
        return self._residuals + room

    def _c_specs(self) -> ctypes.Array:
        specs = (library.TensorSpec * len(self.gradients))()
        for i, spec in enumerate(specs):
            spec.segment = self._arena.segment
            spec.offset = self._offsets[i]
            spec.count = self.counts[i]
            spec.dtype = dtypes.dtype_number(self._dtypes[i])
            spec.name = self.gradients[i].name.encode()
            spec.order = i
        return specs

    @property
    def _handle(self) -> int:
        # The session frees the layout with itself.
        if self.session.closed:
            raise ValueError("the layout's session was closed")
        return self._layout

    def __len__(self) -> int:
        return len(self.gradients)

    @property
    def size(self) -> int:
        """Bytes of all gradients together."""
        return self._offsets[-1] + self.counts[-1] * dtypes.dtype_size(self._dtypes[-1])

    def numpy(self, i: int) -> numpy.ndarray:
        """Gradient i as a numpy array of its shape. TypeError for bfloat16, which numpy does not have."""
        shape = self.gradients[i].shape
        return self._arena.numpy(self._dtypes[i], shape, self._offsets[i])

    def torch(self, i: int) -> torch.Tensor:
        """Gradient i as a torch tensor of its shape, on the CPU or the GPU."""
        shape = self.gradients[i].shape
        return self._arena.torch(self._dtypes[i], shape, self._offsets[i])

    def torch_range(self, gradients: range) -> torch.Tensor:
        """Gradients of one type, one behind the other, as one torch tensor of one dimension."""
        count = sum(self.counts[i] for i in gradients)
        first = gradients[0]
        return self._arena.torch(self._dtypes[first], (count,), self._offsets[first])

    @property
    def residuals(self) -> memoryview | None:
        """What encodings have left out of this node's sums so far, laid out as the gradients are.

        None if another rank's memory has it, or if nothing is compressed. Read and written only while no
        gradient of this rank is open.
        """
        return None if self._residuals is None else self._carried(0, self.size)

    @property
    def right_factors(self) -> memoryview | None:
        """From which the next sums by powersgd begin, one gradient's behind the other's; as residuals."""
        return None if self._residuals is None else self._carried(self._factors[0], self._factors[-1])

    def _carried(self, begin: int, end: int) -> memoryview:
        arena = self._residuals_arena or self._arena
        return memoryview(arena.memory)[self._residuals + begin : self._residuals + end]

    def residual(self, i: int) -> memoryview | None:
        """Gradient i's part of residuals."""
        whole = self.residuals
        if whole is None:
            return None
        begin = self._offsets[i]
        return whole[begin : begin + self.counts[i] * dtypes.dtype_size(self._dtypes[i])]

    def carried(self, i: int) -> list[memoryview]:
        """What an encoding of gradient i hands on to the next one, where this rank has it: its residual, and
        its right factor where it has one.
        """
        if self._residuals is None:
            return []
        parts = [self.residual(i), self._carried(*self._factors[i : i + 2])]
        return [part for part in parts if part]

    @functools.cached_property
    def views(self) -> list[torch.Tensor]:
        """All gradients as torch tensors, in forward order. Needs torch."""
        return [self.torch(i) for i in range(len(self))]

    def begin_backward(self) -> None:
        """Begins the backward pass of the next iteration; before this call, post() is refused.

        A pass that posts nothing, such as that of a micro-batch, is no iteration. Error if some but not all
        gradients of the last backward pass were posted, because other ranks would wait for the rest.
        """
        error = library.ErrorText()
        library.check(
            library.load().hr_layout_begin_backward(self._handle, error), error
        )

    @property
    def device(self) -> int | None:
        """The GPU that the gradients are on; None: the host."""
        return self._arena.device

    def post(self, i: int, stream: Any = None) -> int:
        """Posts gradient i of this iteration, which is in its memory. Returns the operation's number.

        With a ``stream`` of the GPU (a number, or torch's or cupy's) the gradient is ready when that stream
        reaches this point, and the call returns at once. Error if its last operation has not ended and no
        stream waits for it, or if it was posted in this backward pass already.
        """
        error = library.ErrorText()
        number = ctypes.c_uint64()
        if stream is None:
            status = self._post(self._handle, i, number, error)
        else:
            stream = stream_handle(stream)
            status = self._post_on(self._handle, i, stream, number, error)
        if status != 0:
            library.check(status, error)
        return number.value

    def wait(self, i: int, timeout: float | None = None) -> None:
        """Waits until the last post of gradient i has ended; the forward pass calls it before it uses the
        parameter.

        Its memory then holds the reduction over all ranks. Returns at once if no post of it is open.
        ``timeout`` in seconds, None: no limit beyond the operation's own. Raises Timeout when that passed
        first (it can be waited for again), or what the operation failed with.
        """
        limit = -1 if timeout is None else max(0, int(timeout * 1e9))
        error = library.ErrorText()
        status = self._wait(self._handle, i, limit, error)
        if status != 0:
            library.check(status, error)

    def wait_on(self, i: int, stream: Any) -> None:
        """As wait(i), for work that is put into ``stream`` of the GPU from now on; returns at once.

        Raises the operation's error only if it has ended by now: the stream continues after a failure, and
        wait() for its operation raises it.
        """
        error = library.ErrorText()
        status = self._wait_on(self._handle, i, stream_handle(stream), error)
        if status != 0:
            library.check(status, error)

    def barrier(self) -> int:
        """Ends when every rank has posted it and has the averages of all gradients that it posted before.

        If it is posted directly after the last gradient of an iteration, it costs no wait of its own. Returns
        the operation's number. Error when some but not all gradients of the backward pass were posted.
        """
        error = library.ErrorText()
        number = ctypes.c_uint64()
        library.check(library.load().hr_layout_barrier(self._handle, number, error), error)
        return number.value

    def end_forward(self) -> None:
        """Ends the forward pass: time after this call is not counted for any gradient."""
        error = library.ErrorText()
        library.check(library.load().hr_layout_end_forward(self._handle, error), error)

    def set_contributors(self, count: int) -> None:
        """From the next backward pass on averages are divided by ``count`` instead of the world size (0: by
        the world size again), for ranks that post zeros and do not count. Negative zeros leave every sum as it
        is, to the bit.

        All ranks call it between the same two iterations, else Mismatch ends these. Session.reconnect sets it
        back to 0.
        """
        error = library.ErrorText()
        library.check(library.load().hr_layout_set_contributors(self._handle, count, error), error)

    def set_iterations(self, iterations: int) -> None:
        """Sets the number of iterations that this rank has completed; call it before Session.reconnect.

        The service continues counting there, from the largest number of all ranks: for ``compress_after``,
        and for the random numbers of codecs, so that a repeated iteration has the same bits.
        """
        error = library.ErrorText()
        library.check(
            library.load().hr_layout_set_iterations(self._handle, iterations, error), error
        )

    def wait_all(self, timeout: float | None = None) -> None:
        """Waits for all gradients, within ``timeout`` seconds together (None: no limit).

        Raises the first error, in forward order, after all have ended; Timeout at once when the time is over.
        Counts as a forward pass that needs all gradients at its start: the time from here to end_forward() or
        begin_backward() is the last gradient's part of it.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        first: errors.Error | None = None
        for i in range(len(self)):
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                self.wait(i, left)
            except errors.Error as failure:
                out_of_time = deadline is not None and time.monotonic() >= deadline
                if failure.number == _TIMEOUT and out_of_time:
                    raise
                first = first or failure
        if first is not None:
            raise first

    def __repr__(self) -> str:
        return f"<headrace.Layout of {len(self)} gradients, {self.size} bytes>"


def _packed(counts: Sequence[int], names: Sequence[str]) -> tuple[list[int], int]:
    """Offsets in bytes, one behind the other without gaps, and where the last one ends.

    Neighbours without a gap travel as one piece of memory. Elements of equal size are aligned that way;
    before larger elements there is a gap if they would not be aligned.
    """
    offsets, end = [], 0
    for count, name in zip(counts, names):
        size = dtypes.dtype_size(name)
        end = -(-end // size) * size
        offsets.append(end)
        end += count * size
    return offsets, end


def _aligned(end: int) -> int:
    return -(-end // _RESIDUALS_ALIGNMENT) * _RESIDUALS_ALIGNMENT


def _name(field: str, name: str) -> bytes:
    value = name.encode()
    # The field ends in a NUL byte, which ctypes does not insist on.
    most = getattr(library.LayoutOptions, field).size - 1
    if len(value) > most:
        raise ValueError(f'{field} "{name}" has {len(value)} bytes, {most} are possible')
    return value
