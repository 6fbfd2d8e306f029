"""One rank of a job, attached to the service."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import math
import os
import sys
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace import dtypes, library, messages
from headrace.arena import Arena, Range, Tensor
from headrace.errors import Error, Unavailable
from headrace.layout import Gradient, Layout
from headrace.least_world import seconds_to_come_back, warned_of_halves
from headrace.operation import Operation
from headrace.pieces import Pieces
from headrace.region import Foreign, device_number, stream_handle

if TYPE_CHECKING:
    from typing_extensions import Self

ANY_SOURCE = 0xFFFFFFFF
# Sessions of this process, for its forked children to let go of.
_open: weakref.WeakSet[Session] = weakref.WeakSet()


ROLES = ("rank", "join", "spare", "rejoin")  # as hr_role numbers them


class Session:
    """One attached rank; made by init(). Thread-safe, except close(), which comes last and alone.

    Collectives take a registered Tensor or a Range of one (in place, no copy), or a numpy array or
    torch tensor, or Pieces of several (copied in and out; the result is in them after wait()). They
    return an Operation, ended already unless ``async_op`` is true.

    With a ``stream`` of a GPU (a number, or torch's or cupy's), on a Tensor there: the memory is ready
    once the stream has come this far, and unless ``async_op`` is true what follows in the stream
    waits for the result. The host waits for nothing, and hears of a failure by the Operation's wait().
    """

    def __init__(self, options: library.Options) -> None:
        self._handle: int | None = None
        self.call = library.Call()
        error = self.call.error
        handle = ctypes.c_void_p()
        library.check(library.load().hr_open(options, ctypes.byref(handle), error), error)
        self._handle = handle.value
        # "rank" of a job as it begins; others have come to one that runs.
        self.role: str = ROLES[library.load().hr_session_role(self._handle)]
        self.rank: int = options.rank
        self.world_size: int = options.world_size
        self.job: str = options.job.decode()
        self.reconnect_seconds: int = options.reconnect_s
        self.shrink_min_world: int = options.shrink_min_world  # 0: never goes on with fewer
        self.members: tuple[int, ...] = ()
        self._grace_ms: int = options.shrink_grace_ms
        self._adopt_membership()
        _open.add(self)

    @property
    def handle(self) -> int:
        """The C handle."""
        if self._handle is None:
            raise ValueError("the session was closed")
        return self._handle

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._handle is None

    @property
    def service_pid(self) -> int:
        """The service's process id; 0 if the kernel does not know it."""
        return library.load().hr_session_service_pid(self.handle)

    def reconnect(
        self,
        timeout: float | None = None,
        shrink: bool | None = None,
        min_world: int = 1,
        grace: float | None = None,
    ) -> None:
        """Attaches again to a service at the same socket after the service went away or the job failed.

        All ranks of the job call it, and it returns when all have come. Arenas, tensors, the layout
        and every view of them stay; operations that were open have failed for good. The caller must
        bring all ranks to the same iteration. ``timeout`` in seconds; None: ``reconnect`` of init(), or
        HEADRACE_RECONNECT. While it runs other threads get Unavailable.

        ``shrink``: whether the job goes on without ranks that are lost, as long as ``min_world`` are left.
        None: as HEADRACE_SHRINK or ``shrink`` of init() says. The ranks that are left are then numbered
        anew, in their order: ``rank``, ``world_size`` and ``members`` (of each rank, the one that it had when
        the job began) change with this call. A rank of which no service knows anything is lost after
        ``grace`` seconds (None: HEADRACE_SHRINK_GRACE_MS, or 5). A ``min_world`` of more than half of the
        world prevents that two parts that cannot reach each other both go on.

        Errors: Timeout, which names what was missing last, and after which the call may be repeated; Error
        when nothing is lost, and where waiting does not help; Mismatch, which names all lost ranks, when
        fewer than ``min_world`` are left or the job went on without this rank.
        """
        limit = 0 if timeout is None else max(1, int(timeout * 1e9))
        error = library.ErrorText()
        if shrink is None:
            shrink, min_world = self.shrink_min_world > 0, self.shrink_min_world
        c = library.load()
        if shrink:
            grace_ms = self._grace_ms if grace is None else max(0, int(grace * 1000))
            status = c.hr_session_shrink(self.handle, limit, min_world, grace_ms, error)
        else:
            # Not hr_session_reconnect, where the environment says that it shrinks.
            world = self.world_size
            status = (
                c.hr_session_shrink(self.handle, limit, world, self._grace_ms, error)
                if self.shrink_min_world
                else c.hr_session_reconnect(self.handle, limit, error)
            )
        library.check(status, error)
        self._adopt_membership()

    @property
    def joins(self) -> bool:
        """Whether this process has joined a job that was running already."""
        return self.role != "rank"

    @property
    def members_wait(self) -> bool:
        """Whether others wait to join the job, as far as this rank has been told; they are admitted when all
        ranks call reconnect(shrink=True).
        """
        return bool(library.load().hr_session_members_wait(self.handle))

    def _adopt_membership(self) -> None:
        c = library.load()
        room = c.hr_session_members(self.handle, None, 0)
        members = (ctypes.c_uint32 * room)()
        count = c.hr_session_members(self.handle, members, room)
        self.rank = c.hr_session_rank(self.handle)
        self.world_size = count
        self.members = tuple(members[:count])
        self.rendezvous: str = c.hr_session_rendezvous(self.handle).decode()

    def close(self) -> None:
        """Leaves the job in an orderly way; does nothing if the service went away before.

        Views of arenas stay valid as plain memory. Other errors are raised, and the session is closed
        nevertheless.
        """
        if self._handle is None:
            return
        handle, self._handle = self._handle, None
        error = library.ErrorText()
        with contextlib.suppress(Unavailable):
            library.check(library.load().hr_close(handle, error), error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # Nobody is left to tell.
        with contextlib.suppress(Error):
            self.close()

    def arena(self, size: int, device: Any = None) -> Arena:
        """Allocates ``size`` bytes of memory shared with the service, zeroed.

        ``device``: None is the host; a GPU is its number in this process, "cuda:1" or a
        torch.device. Errors on a GPU name what is missing: a driver, memory, permission to export.
        """
        return Arena(self, size, device_number(device))

    def share(self, x: Any, name: str = "", order: int = 0) -> Tensor:
        """Registers memory on a GPU that exists, in place: of torch's allocator, of cupy.

        ``x`` is a torch tensor on a GPU, or has ``__cuda_array_interface__``; contiguous. What
        cannot be shared is refused with the reason and an alternative. The memory must stay
        allocated while the session lasts, or until the tensor and then its ``arena`` were released;
        the Tensor keeps ``x``.
        """
        memory = Foreign(x)
        size = math.prod(memory.shape) * dtypes.dtype_size(memory.dtype)
        arena = Arena(self, size, around=memory)
        return arena.tensor(memory.shape, memory.dtype, name, order)

    def allocation_of(self, address: int) -> library.Allocation:
        """What an address of a GPU lies in, as the driver says. Errors: as share()."""
        found = library.Allocation()
        error = library.ErrorText()
        status = library.load().hr_device_allocation(
            self.handle, address, ctypes.byref(found), error
        )
        library.check(status, error)
        return found

    def layout(
        self,
        specs: Sequence[Gradient | tuple],
        op: str = "average",
        policy: str | None = None,
        device: Any = None,
        compress: str | Mapping[str, str] | None = None,
        compress_after: int = 0,
        adaptive: bool = False,
    ) -> Layout:
        """Makes the session's layout: all gradients of a model, in forward order.

        ``specs`` are (shape, dtype, name) or (shape, dtype), shapes in elements,
        at most 768. ``op``: "average" or "sum". ``policy``: one of those that
        ``headracectl policy --help`` lists, such as "auto" or "exact"; None: HEADRACE_POLICY, or as the
        service at the rendezvous is configured. ``compress``: how sums of float32 cross between
        nodes, "none", "bf16", "int8", "lossless", ... (client/PYTORCH.md), except gradients of one
        dimension or less than 4 KiB; None: HEADRACE_COMPRESS, or "none". Or a mapping of patterns of
        names, ``{"*.weight": "int8", "head.*": "none"}``: the last pattern that a name matches counts,
        also for small gradients, and a name without a match is not compressed. ``compress_after``: the
        number of first iterations without compression. ``adaptive``: the optimizer divides by past
        gradients, as Adam does, so ``headracectl compress`` refuses sign, topk and randomk. Allocates the
        memory, on ``device`` as arena() does: a round trip or two, before training. The gradients move
        when all ranks have made equal layouts. Errors: Mismatch when another rank's layout differs (the
        text says where), Error when the session has a layout already or a spec is wrong.
        """
        number = device_number(device)
        return Layout(self, specs, op, policy, number, compress, compress_after, adaptive)

    def all_reduce(
        self, x: Any, op: str = "sum", async_op: bool = False, stream: Any = None
    ) -> Operation:
        """Replaces x on every rank by the reduction over all ranks.

        ``op``: "sum", "average", "min", "max" or "product". Half types are accumulated in float32;
        all ranks get the same bits.
        """
        arguments = (dtypes.reduction_number(op),)
        return self._post("hr_all_reduce", x, arguments, async_op, stream)

    def broadcast(
        self, x: Any, root: int = 0, async_op: bool = False, stream: Any = None
    ) -> Operation:
        """Replaces x on every rank by that of rank ``root``."""
        return self._post("hr_broadcast", x, (root,), async_op, stream)

    def reduce_scatter(
        self, x: Any, op: str = "sum", async_op: bool = False, stream: Any = None
    ) -> Operation:
        """x consists of world_size equal parts; part(x) becomes the reduction of that part.

        The other parts keep their values.
        """
        arguments = (dtypes.reduction_number(op),)
        return self._post("hr_reduce_scatter", x, arguments, async_op, stream)

    def all_gather(self, x: Any, async_op: bool = False, stream: Any = None) -> Operation:
        """x consists of world_size equal parts; part r of rank r replaces part r everywhere."""
        return self._post("hr_all_gather", x, (), async_op, stream)

    def reduce(
        self,
        x: Any,
        op: str = "sum",
        root: int = 0,
        async_op: bool = False,
        stream: Any = None,
    ) -> Operation:
        """Replaces x on rank ``root`` by the reduction over all ranks; the others keep theirs."""
        arguments = (dtypes.reduction_number(op), root)
        return self._post("hr_reduce", x, arguments, async_op, stream)

    def all_to_all(
        self,
        outputs: Any,
        inputs: Any,
        output_counts: Sequence[int] | None = None,
        input_counts: Sequence[int] | None = None,
        async_op: bool = False,
    ) -> Operation:
        """``inputs[r]`` goes to rank r, and ``outputs[r]`` becomes what rank r has for this one.

        Lists with one for each rank, of any count, also none: numpy arrays or torch tensors, copied in
        and out, or, in place, Ranges of a registered Tensor, those of ``outputs`` one behind the other
        in a Tensor of the same arena. Or one array each, cut into parts of so many elements, equal ones
        without counts. A count that differs from what the other rank sends ends it everywhere.
        """
        lists = [isinstance(x, (list, tuple)) for x in (outputs, inputs)]
        if not any(lists):
            received = messages.cut(outputs, output_counts, self.world_size)
            sent = messages.cut(inputs, input_counts, self.world_size)
            return self._post_arrays("hr_all_to_all", sent, received, (), (outputs, inputs), async_op)
        self._expect_one_for_each(outputs, inputs)
        return self._post_messages("hr_all_to_all", outputs, inputs, (), async_op)

    def gather(
        self,
        x: Any,
        outputs: Sequence[Any] | None = None,
        root: int = 0,
        async_op: bool = False,
    ) -> Operation:
        """``outputs[r]`` of rank ``root`` becomes rank r's x; other ranks give no outputs."""
        parts = self._of_root(outputs, root)
        return self._post_messages("hr_gather", parts, [x], (root,), async_op)

    def scatter(
        self,
        x: Any,
        inputs: Sequence[Any] | None = None,
        root: int = 0,
        async_op: bool = False,
    ) -> Operation:
        """x becomes ``inputs[this rank]`` of rank ``root``; other ranks give no inputs."""
        parts = self._of_root(inputs, root)
        return self._post_messages("hr_scatter", [x], parts, (root,), async_op)

    def all_gather_parts(self, outputs: Sequence[Any], x: Any, async_op: bool = False) -> Operation:
        """``outputs[r]`` becomes x of rank r: arrays of any size, the same sizes on every rank.

        Without copies with Ranges, one behind the other in a registered Tensor, and ``outputs[this rank]`` as x.
        """
        self._expect_one_for_each(outputs)
        if messages.is_registered([*outputs, x]):
            name, where = messages.parts_in_c("hr_all_gather", outputs, x, self.rank)
            return self._post_in_c(name, where, (outputs, x), False, async_op)
        own, parts = messages.arrays_of([x]), messages.arrays_of(outputs)
        return self._post_arrays("hr_all_gather", own, parts, (), (outputs, x), async_op)

    def reduce_scatter_parts(
        self, x: Any, inputs: Sequence[Any], op: str = "sum", async_op: bool = False, stream: Any = None
    ) -> Operation:
        """x becomes the reduction of ``inputs[this rank]`` over all ranks: the reverse of all_gather_parts.

        On a GPU ``inputs`` are Ranges and stay as they are. With ``stream``, x is none of them.
        """
        self._expect_one_for_each(inputs)
        arguments = (dtypes.reduction_number(op),)
        if messages.is_registered([x, *inputs], stream):
            name, where = messages.parts_in_c("hr_reduce_scatter", inputs, x, self.rank, stream)
            return self._post_in_c(name, (*where, *arguments), (x, inputs), False, async_op, stream)
        own, parts = messages.arrays_of([x]), messages.arrays_of(inputs)
        return self._post_arrays("hr_reduce_scatter", parts, own, arguments, (x, inputs), async_op)

    def barrier(self, async_op: bool = False) -> Operation:
        """Ends when every rank has posted it."""
        number = ctypes.c_uint64()
        error = self.call.error
        status = library.load().hr_barrier(self.handle, ctypes.byref(number), error)
        library.check(status, error)
        operation = Operation(self, number.value, None, False)
        if not async_op:
            operation.wait()
        return operation

    def send(
        self,
        x: Any,
        to: int,
        tag: int = 0,
        async_op: bool = False,
        stream: Any = None,
    ) -> Operation:
        """Gives x to rank ``to``, which receives it under the same tag; ends when x may be used again.

        Between nodes that may be before there is a receive, if x is of 64 KiB or less in the host's memory.

        Sends and receives are matched by source, target and tag, in the order of the calls, and may be
        made at any time between other operations, on one node and between nodes.
        """
        return self._post("hr_send", x, (to, tag), async_op, stream)

    def receive(
        self,
        x: Any,
        source: int | None = None,
        tag: int = 0,
        async_op: bool = False,
        stream: Any = None,
    ) -> Operation:
        """Replaces x by what rank ``source`` sends under that tag, of the same count and type.

        ``source`` None: whoever sent first; the Operation's ``source`` says who it was.
        """
        rank = ANY_SOURCE if source is None else source
        return self._post("hr_recv", x, (rank, tag), async_op, stream)

    def part(self, x: Any, rank: int | None = None) -> Any:
        """The view of x (array, torch tensor or Tensor) that is ``rank``'s part (default: ours)."""
        rank = self.rank if rank is None else rank
        if isinstance(x, Tensor):
            count = x.count // self.world_size
            return x.range(count * rank, count)
        flat = x.reshape(-1)
        count = len(flat) // self.world_size
        return flat[count * rank : count * (rank + 1)]

    def counters(self) -> dict[str, int]:
        """What the session cost so far; hr_counters in the C header names each."""
        counters = library.Counters(size=ctypes.sizeof(library.Counters))
        error = library.ErrorText()
        status = library.load().hr_session_counters(self.handle, counters, error)
        library.check(status, error)
        return {name: getattr(counters, name) for name, _ in counters._fields_[1:]}

    @property
    def waited_seconds(self) -> float:
        """Time threads of this rank spent waiting for operations, summed."""
        return self.counters()["waited_ns"] / 1e9

    def _post(
        self, name: str, x: Any, arguments: tuple, async_op: bool, stream: Any = None
    ) -> Operation:
        number = ctypes.c_uint64()
        error = self.call.error
        copied = not isinstance(x, (Tensor, Range))
        if stream is not None:
            if copied:
                raise TypeError("only a headrace.Tensor on a GPU is posted on a stream")
            name += "_on_stream"
            arguments += (stream_handle(stream),)
        if isinstance(x, Pieces):
            where: tuple = (x.count, dtypes.dtype_number(x.dtype))
            arguments += (*x.in_c(x.read), *x.in_c(x.written))
            function = getattr(library.load(), name + "_pieces")
        elif copied:
            address, count, dtype = dtypes.array_of(x)
            where = (address, count, dtypes.dtype_number(dtype))
            function = getattr(library.load(), name + "_array")
        elif isinstance(x, Range):
            where = (x.tensor.handle, library.ElementRange(x.offset, x.count))
            function = getattr(library.load(), name)
        else:
            where = (x.handle, None)
            function = getattr(library.load(), name)
        status = function(self.handle, *where, *arguments, ctypes.byref(number), error)
        if status != 0:
            library.check(status, error)
        operation = Operation(self, number.value, x, copied)
        if not async_op:
            operation.wait() if stream is None else operation.wait_on(stream)
        return operation

    def _of_root(self, parts: Sequence[Any] | None, root: int) -> Sequence[Any]:
        if root != self.rank:
            return ()
        self._expect_one_for_each(parts or ())
        return parts or ()

    def _expect_one_for_each(self, *sides: Sequence[Any]) -> None:
        for parts in sides:
            if len(parts) != self.world_size:
                raise ValueError(
                    f"{len(parts)} parts for {self.world_size} ranks: give one for each"
                )

    def _post_messages(
        self,
        name: str,
        outputs: Sequence[Any],
        inputs: Sequence[Any],
        arguments: tuple,
        async_op: bool,
    ) -> Operation:
        result = outputs[0] if len(outputs) == 1 else outputs
        memory = (result, inputs)
        if messages.is_registered([*outputs, *inputs]):
            where = (*messages.ranges_of(inputs), *messages.ranges_of(outputs))
            return self._post_in_c(name, (*where, *arguments), memory, False, async_op)
        sent, received = messages.arrays_of(inputs), messages.arrays_of(outputs)
        return self._post_arrays(name, sent, received, arguments, memory, async_op)

    def _post_arrays(
        self, name: str, sent: tuple, received: tuple, arguments: tuple, memory: tuple, async_op: bool
    ) -> Operation:
        dtype = messages.dtype_of(sent[0], received[0])
        where = (dtype, messages.in_c(sent[1]), messages.in_c(received[1]))
        return self._post_in_c(name + "_arrays", (*where, *arguments), memory, True, async_op)

    def _post_in_c(
        self, name: str, arguments: tuple, memory: tuple, copied: bool, async_op: bool, stream: Any = None
    ) -> Operation:
        number = ctypes.c_uint64()
        error = self.call.error
        if stream is not None:
            name += "_on_stream"
            arguments += (stream_handle(stream),)
        function = getattr(library.load(), name)
        status = function(self.handle, *arguments, ctypes.byref(number), error)
        library.check(status, error)
        result, kept = memory
        operation = Operation(self, number.value, result, copied, kept)
        if not async_op:
            operation.wait() if stream is None else operation.wait_on(stream)
        return operation

    def __repr__(self) -> str:
        return f"<headrace.Session rank {self.rank} of {self.world_size}, job {self.job}>"


def init(
    job: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    socket: str | None = None,
    timeout: float | None = None,
    rendezvous: str | None = None,
    architecture: str | None = None,
    reconnect: float | None = None,
    shrink: int | None = None,
    role: str | None = None,
    sends_class: str | None = None,
    slow: float | None = None,
    slow_evict: bool | None = None,
) -> Session:
    """Attaches this process to the service as one rank of a job.

    What is not given comes from the environment: HEADRACE_JOB, or torchrun's TORCHELASTIC_RUN_ID or
    MASTER_ADDR:MASTER_PORT; RANK; WORLD_SIZE; HEADRACE_SOCKET, or /run/headrace/headrace.sock.
    ``timeout`` in seconds bounds every operation (None: HEADRACE_TIMEOUT_MS or the service's
    default).

    ``rendezvous`` is where the services of the job's nodes meet, "host" or "host:port" of one of
    them, the same on all ranks. None: HEADRACE_RENDEZVOUS, or torchrun's MASTER_ADDR where
    LOCAL_WORLD_SIZE is less than WORLD_SIZE; "": all ranks are on this node, unless its service
    has a rendezvous of its own for jobs that name none. ``architecture`` of a job of several nodes is
    "all-reduce" or "parameter-server"; None: HEADRACE_ARCHITECTURE, or as the service at the rendezvous
    is configured.

    ``reconnect``: for how many seconds Session.reconnect, and what uses it, waits for a service that
    went away; rounded up. None: HEADRACE_RECONNECT, or 30 with ``shrink``, or 0: off. ``shrink``: with
    how many ranks the job may go on when others are lost meanwhile; None: HEADRACE_SHRINK, or 0: all.

    ``role``: "rank"; "join": a further rank of a running job, which joins between two iterations; "spare":
    a further rank that takes the place of a lost one; "rejoin": "join" where torchrun has started the process
    again, else "rank" (Session.role says which). None: HEADRACE_ROLE, or "rank". A joining rank and a spare need
    no rank and no world size, and wait here until the job's ranks admit them: for at most ``reconnect`` seconds,
    a spare without limit.
    ``sends_class`` of rank 0: the job's sends, receives and operations that only copy go before its sums and gradients
    ("above"), or in turn with them ("same"). None: HEADRACE_SENDS_CLASS, or above.
    ``slow`` of rank 0: for how many seconds, rounded up, a rank may keep the others waiting before it is named;
    0: nobody looks. ``slow_evict``: and evicted, where ``shrink`` ranks are left. None: HEADRACE_SLOW, or off.

    Errors: Unavailable when there is no service, Error otherwise.
    """
    options = library.Options()
    error = library.ErrorText()
    status = library.fill(options, error)
    if None in (job, rank, world_size, socket):
        library.check(status, error)  # the environment is asked, so it must make sense
    library.set_text(options, "job", job)
    library.set_text(options, "socket_path", socket)
    library.set_text(options, "rendezvous", rendezvous)
    library.set_text(options, "architecture", architecture)
    library.set_text(options, "sends_class", sends_class)
    library.set_text(options, "program", os.path.basename(sys.argv[0])[:63] or "python3")
    options.rank = options.rank if rank is None else rank
    options.world_size = options.world_size if world_size is None else world_size
    if timeout is not None:
        options.timeout_ms = max(1, int(timeout * 1000))
    options.reconnect_s = seconds_to_come_back(options.reconnect_s, reconnect, shrink)
    options.shrink_min_world = options.shrink_min_world if shrink is None else shrink
    _set_slow(options, slow, slow_evict)
    if role is not None:
        if role not in ROLES:
            raise ValueError(f'role "{role}" is not one of {", ".join(ROLES)}')
        options.role = ROLES.index(role)
    return warned_of_halves(Session(options))


def _set_slow(options: library.Options, slow: float | None, slow_evict: bool | None) -> None:
    if slow is not None:
        options.slow_bound_s = math.ceil(max(0.0, slow))
        options.slow_evict = 0 if slow == 0 else options.slow_evict
    if slow_evict is not None:
        options.slow_evict = int(slow_evict)


def _let_go() -> None:
    # An inherited socket would keep the session attached after the parent has died, which is what
    # other ranks wait to hear; data loaders are such children.
    _close_all()


def _close_all() -> None:
    # A process that ends without taking leave looks like one that crashed, and fails its job. One
    # session that cannot leave does not keep the others from it; each failure is raised in the end.
    with contextlib.ExitStack() as stack:
        for session in list(_open):
            stack.callback(session.close)


atexit.register(_close_all)
os.register_at_fork(after_in_child=_let_go)
