"""torch.distributed's collectives on the service's."""

from __future__ import annotations

import atexit
import contextlib
import threading
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from headrace.codecs import compress_all_reduces
from headrace.operation import Operation
from headrace.pieces import one_by_one
from headrace.session import Session
from headrace.torch import devices, elements
from headrace.torch.backward_end import AtEndOfBackward, is_in_backward, is_small
from headrace.torch.group_names import GroupNames
from headrace.torch.jobs import attach
from headrace.torch.kept_work import KeptWork
from headrace.torch.planned_ddp import PlannedDdp
from headrace.torch.posting import Poster, StreamOperation
from headrace.torch.reconfigure import Reconfigurable
from headrace.torch.stream_work import StreamWork
from headrace.torch.tracing import file_of_caller
from headrace.torch.work import Completer, Work

Tensors = Sequence[torch.Tensor]

# The tag of messages among all on GPUs, which no caller can give: torch's tags have 63 bits.
_EXCHANGE = 1 << 63

_alive: weakref.WeakSet[ProcessGroup] = weakref.WeakSet()
_posters: weakref.WeakKeyDictionary[Session, Poster] = weakref.WeakKeyDictionary()


class ProcessGroup(Reconfigurable, GroupNames, dist.ProcessGroup):
    """One group of ranks: a job of the service. Made by torch.distributed, used through it.

    Work is posted in the order of the calls, which is the same on all ranks, and ends in its own time.
    Errors are headrace.Error with the service's words; in a DDP backward, RuntimeError with them.
    """

    def __init__(
        self,
        name: str,
        rank: int,
        size: int,
        timeout: timedelta,
        starts: bool = True,
        codec: str | None = None,
        store: dist.Store | None = None,
    ) -> None:
        """``starts``: has its ranks now, and not by reconfigure() only. ``codec``: of its all_reduces. ``store``: by
        which ranks agree that DDP's small all_reduces move by a plan; None: they do not.
        """
        super().__init__(rank, size)
        self.timeout, self._codec = timeout, codec
        self._rank, self._size = rank, size
        self._ddp: PlannedDdp | None = None
        self._close_lock = threading.Lock()
        self._set_group_name(name)
        if starts:
            self._start(attach(name, rank, size, timeout))
            if store is not None:
                self._ddp = PlannedDdp(self.poster, self.session, store)
        _alive.add(self)

    def _start(self, session: Session) -> None:
        self.poster = _posters[session] = Poster(session)
        self._completer = Completer(f"headrace-{session.job}")
        self._at_the_end = AtEndOfBackward(self._completer)
        self._kept = KeptWork()
        self._ddp = None
        self._together: list[Work] | None = None
        self._sequence_number = 0
        self._rank, self._size = session.rank, session.world_size
        self._session = session
        if self._codec is not None:
            compress_all_reduces(session, self._codec)

    def getBackendName(self) -> str:
        """ "headrace"; torch shows it."""
        return "headrace"

    # What torch 2 asks the backend within a group; here they are one thing.
    supports_coalescing = False
    supports_splitting = False

    def _get_backend(self, device: torch.device) -> ProcessGroup:
        if torch.device(device).type not in ("cpu", "cuda"):
            raise RuntimeError(
                f"the backend headrace takes tensors on the CPU and on CUDA's GPUs, not on {device}"
            )
        return self

    def _get_sequence_number_for_group(self) -> int:
        """How many collectives were posted; torch compares ranks by it."""
        return self._sequence_number

    def shutdown(self) -> None:
        """Leaves the jobs in an orderly way; what is open ends with an error on the other ranks."""
        with self._close_lock:
            if self._session is not None and not self._session.closed:
                self._completer.close()
                if self._ddp is not None:
                    self._ddp.close()
                self.poster.finish()
                self._session.close()

    def abort(self) -> None:
        """As shutdown(): reconfigure() gives it ranks again."""
        self.shutdown()

    def __del__(self) -> None:
        # torch 1.13 destroys groups by forgetting them. Nobody is left to tell of an error.
        with contextlib.suppress(Exception):
            self.shutdown()

    # ---- Reductions ------------------------------------------------------------------------------

    def allreduce(self, tensors: Tensors, opts: Any = None) -> Work:
        """Each tensor becomes the reduction over all ranks. A sparse one travels as a dense one."""
        op, caller = _op(opts), file_of_caller()
        if self._ddp and (planned := self._ddp.post(tensors, op, caller)):
            return self._keep_collective(planned)
        dense = [t.to_dense() if t.is_sparse else t for t in tensors]
        arrays = [elements.to_reduce(tensor) for tensor in dense]
        operations = []
        for array, tensor in zip(arrays, dense):
            name = elements.reduction_of(op, tensor.dtype)
            operations += _post(self.session.all_reduce, array, name)

        def finish() -> None:
            _put_back(arrays, dense)
            for result, tensor in zip(dense, tensors):
                if tensor.is_sparse:
                    elements.fill_sparse(tensor, result)

        return self._work(operations, tensors, finish, at_the_end=is_in_backward(caller) and is_small(tensors))

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Tensors, opts: Any) -> Work:
        """As allreduce for the root; other ranks' tensors stay as they are."""
        root = opts.rootRank == self._rank
        arrays = [elements.to_reduce(tensor) for tensor in tensors]
        operations = []
        for array, tensor in zip(arrays, tensors):
            name = elements.reduction_of(opts.reduceOp, tensor.dtype)
            whole = [(0, array)]
            operations += _post_pieces(
                self.session.reduce,
                array.numel(),
                whole,
                whole if root else [],
                name,
                opts.rootRank,
            )

        def finish() -> None:
            if root:
                _put_back(arrays, tensors)

        return self._work(operations, tensors, finish)

    def reduce_scatter(
        self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None
    ) -> Work:
        """output becomes the reduction of all ranks' input[rank]; inputs stay as they are."""
        operations, finishes = [], []
        for output, parts in zip(outputs, inputs):
            posted, finish = self._reduce_parts(output, parts, _op(opts))
            operations += posted
            finishes.append(finish)
        return self._work(operations, outputs, lambda: _each(finishes))

    def _reduce_parts(
        self, output: torch.Tensor, parts: Tensors, op: Any
    ) -> tuple[list[Operation], Callable[[], None]]:
        self._expect_parts(parts, "reduce_scatter")
        if parts[self._rank].numel() != output.numel():
            raise ValueError(
                f"reduce_scatter: rank {self._rank} has room for {output.numel()} elements, and its part "
                f"has {parts[self._rank].numel()}"
            )
        name = elements.reduction_of(op, output.dtype)
        arrays = [elements.to_reduce(part) for part in parts]
        result = elements.to_reduce(output)
        if len({part.numel() for part in parts}) == 1:
            both = (self.session.reduce_scatter, self.session.reduce_scatter_parts)
            operations = self.poster.post_reduce_scatter(both, arrays, result, self._rank, name)
        elif devices.device_of(output) is not None:  # streams know no unequal parts: each goes to its rank
            operations = []
            for root, array in enumerate(arrays):
                written = [(0, result)] if root == self._rank else []
                operations += _post_pieces(
                    self.session.reduce, array.numel(), [(0, array)], written, name, root
                )
        else:
            operations = [
                self.session.reduce_scatter_parts(result, arrays, name, async_op=True)
            ]
        return operations, lambda: _put_back([result], [output], arrays)

    def reduce_scatter_single(
        self, output: torch.Tensor, whole: torch.Tensor, opts: Any = None
    ) -> Work:
        """The same of one tensor with all ranks' equal parts."""
        return self.reduce_scatter([output], [self._parts(whole, output.numel())], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, wholes: Tensors, opts: Any = None
    ) -> Work:
        """The same of several."""
        parts = [self._parts(w, o.numel()) for w, o in zip(wholes, outputs)]
        return self.reduce_scatter(outputs, parts, opts)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def reduce_scatter_in_place(self, output: torch.Tensor, whole: torch.Tensor, op: Any) -> Work:
        """As reduce_scatter_single, of a ``whole`` that nobody needs afterwards: it is not copied where it lies in
        memory of empty(), and undefined then. A type that the service knows.
        """
        part = self._parts(whole, output.numel())[self._rank]
        name = elements.reduction_of(op, whole.dtype)
        operations = _post(self.session.reduce_scatter, elements.flat(whole), name)
        return self._work(
            operations, [output], lambda: elements.put_back(part, output)
        )

    # ---- Without arithmetic ----------------------------------------------------------------------

    def broadcast(self, tensors: Tensors, opts: Any) -> Work:
        """Every rank's tensors become the root's."""
        arrays = [elements.to_move(tensor) for tensor in tensors]
        operations = []
        for array in arrays:
            operations += _post(self.session.broadcast, array, opts.rootRank)
        return self._work(operations, tensors, lambda: _put_back(arrays, tensors))

    def allgather(
        self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None
    ) -> Work:
        """outputs[i][r] becomes inputs[i] of rank r; sizes may differ from rank to rank."""
        if self._ddp:
            self._ddp.note_call(file_of_caller())
        operations, finishes = [], []
        for parts, own in zip(outputs, inputs):
            self._expect_parts(parts, "all_gather")
            posted, finish = self._gather(parts, own)
            operations += posted
            finishes.append(finish)
        return self._work(
            operations, [t for parts in outputs for t in parts], lambda: _each(finishes)
        )

    def _gather(
        self, parts: Tensors, own: torch.Tensor
    ) -> tuple[list[Operation], Callable[[], None]]:
        if parts[self._rank].numel() != own.numel():
            raise ValueError(
                f"rank {self._rank} gives {own.numel()} elements and has room for "
                f"{parts[self._rank].numel()} of its own"
            )
        source = elements.to_move(own)
        arrays = [elements.to_move(part) for part in parts]
        if len({part.numel() for part in parts}) == 1:
            operations = _post_pieces(
                self.session.all_gather,
                source.numel() * self._size,
                [(source.numel() * self._rank, source)],
                one_by_one(arrays),
            )
        elif devices.device_of(own) is not None:  # streams know no unequal parts
            operations = []
            for root, array in enumerate(arrays):
                operations += _post_pieces(
                    self.session.broadcast,
                    array.numel(),
                    [(0, source)] if root == self._rank else [],
                    [(0, array)],
                    root,
                )
        else:
            operations = self.poster.post_parts(self.session.all_gather_parts, arrays, source, self._rank)
        return operations, lambda: _put_back(arrays, parts)

    def allgather_coalesced(
        self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None
    ) -> Work:
        """outputs[r][i] becomes inputs[i] of rank r."""
        by_input = [list(parts) for parts in zip(*outputs)]
        return self.allgather(by_input, inputs, opts)

    def all_gather_single(
        self, whole: torch.Tensor, own: torch.Tensor, opts: Any = None
    ) -> Work:
        """One tensor becomes all ranks' equal parts."""
        return self.all_gather_single_coalesced([whole], [own], opts)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(
        self, wholes: Tensors, inputs: Tensors, opts: Any = None
    ) -> Work:
        """The same of several."""
        operations, finishes = [], []
        for whole, own in zip(wholes, inputs):
            posted, finish = self._gather(self._parts(whole, own.numel()), own)
            operations += posted
            finishes.append(finish)
        return self._work(operations, wholes, lambda: _each(finishes))

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> Work:
        """outputs[0][r] of the root becomes inputs[0] of rank r."""
        parts: Tensors = []
        if opts.rootRank == self._rank:
            parts = outputs[0]
            self._expect_parts(parts, "gather")
        if devices.device_of(inputs[0]) is not None:
            sent = [(opts.rootRank, inputs[0])]
            return self._exchange(list(enumerate(parts)), sent, parts)
        arrays = [elements.to_move(part) for part in parts]
        own = elements.to_move(inputs[0])
        received, (sent,) = self.poster.where(enumerate(arrays), [(opts.rootRank, own)], self._rank)
        operation = self.session.gather(sent, received, opts.rootRank, async_op=True)
        return self._work([operation], parts, lambda: _put_back(arrays, parts, own))

    def gather_single(self, whole: torch.Tensor, own: torch.Tensor, opts: Any) -> Work:
        """The same into one tensor of the root's."""
        root = opts.rootRank == self._rank
        outputs = [self._parts(whole, own.numel())] if root else []
        return self.gather(outputs, [own], opts)

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> Work:
        """outputs[0] of rank r becomes inputs[0][r] of the root."""
        parts: Tensors = []
        if opts.rootRank == self._rank:
            parts = inputs[0]
            self._expect_parts(parts, "scatter")
        if devices.device_of(outputs[0]) is not None:
            received = [(opts.rootRank, outputs[0])]
            return self._exchange(received, list(enumerate(parts)), outputs)
        array = elements.to_move(outputs[0])
        read = [elements.to_move(part) for part in parts]
        (received,), sent = self.poster.where([(opts.rootRank, array)], enumerate(read), self._rank)
        operation = self.session.scatter(received, sent, opts.rootRank, async_op=True)
        return self._work([operation], outputs, lambda: _put_back([array], outputs, read))

    def barrier(self, opts: Any = None) -> Work:
        """Ends when every rank has come."""
        for device in self.poster.gpus:
            devices.refuse_capture(device)
        self.poster.synchronize()  # what stands in streams comes before it
        return self._work([self.session.barrier(async_op=True)], [], None)

    # ---- Between two ranks -----------------------------------------------------------------------

    def send(self, tensors: Tensors, other: int, tag: int = 0) -> Work:
        """Ends when ``other`` receives and the tensor has left, and may be used again."""
        send, operations = self.session.send, []
        for tensor in tensors:
            operations += self.poster.post(send, elements.to_move(tensor), other, tag, writes=False)
        work = self._work(operations, tensors, None, source=-1)
        if isinstance(work, StreamWork):
            self._kept.look_after(work)
        return work

    def recv(self, tensors: Tensors, other: int, tag: int = 0) -> Work:
        """Receives what ``other`` sends, which has the same size and type."""
        operations, finish = self._receive(tensors, other, tag)
        return self._work(operations, tensors, finish, source=other)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Work:
        """Receives from whoever has sent first under that tag; source_rank() of the Work says who it was."""
        operations, finish = self._receive(tensors, None, tag)
        source = (lambda: operations[-1].source) if operations else -1
        return self._work(operations, tensors, finish, source=source)

    def _receive(
        self, tensors: Tensors, other: int | None, tag: int
    ) -> tuple[list[Operation], Callable[[], Any] | None]:
        # Also what puts the results in their places, where they are received elsewhere.
        receive, operations, copies = self.session.receive, [], []
        for tensor in tensors:
            array = elements.to_move(tensor)
            operations += self.poster.post(receive, array, other, tag)
            if array is not tensor and array.data_ptr() != tensor.data_ptr():
                copies.append((array, tensor))
        finish = (lambda: [elements.put_back(*each) for each in copies]) if copies else None
        return operations, finish

    recvAnysource = recv_anysource

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        """outputs[r] becomes inputs[this rank] of rank r."""
        self._expect_parts(outputs, "all_to_all")
        self._expect_parts(inputs, "all_to_all")
        if devices.device_of(outputs[0]) is not None:
            received, sent = list(enumerate(outputs)), list(enumerate(inputs))
            return self._exchange(received, sent, outputs)
        arrays = [elements.to_move(output) for output in outputs]
        read = [elements.to_move(own) for own in inputs]
        received, sent = self.poster.where(enumerate(arrays), enumerate(read), self._rank)
        operation = self.session.all_to_all(received, sent, async_op=True)
        return self._work([operation], outputs, lambda: _put_back(arrays, outputs, read))

    def all_to_all_single(
        self,
        output: torch.Tensor,
        whole: torch.Tensor,
        output_sizes: Sequence[int],
        input_sizes: Sequence[int],
        opts: Any = None,
    ) -> Work:
        """The same of rows of one tensor each; no sizes: equally many for every rank."""
        if not output.is_contiguous():
            raise ValueError("all_to_all_single: the output must be contiguous")
        array, read = elements.to_move(output), elements.to_move(whole)
        parts = array.split(self._rows(output, output_sizes, "output", array.numel()))
        own = read.split(self._rows(whole, input_sizes, "input", read.numel()))
        if devices.device_of(output) is not None:
            return self._exchange(list(enumerate(parts)), list(enumerate(own)), [output])
        received, sent = self.poster.where(enumerate(parts), enumerate(own), self._rank)
        operation = self.session.all_to_all(received, sent, async_op=True)
        return self._work([operation], [output], lambda: _put_back([array], [output], read))

    alltoall_base = all_to_all_single

    def _exchange(
        self,
        received: Sequence[tuple[int, torch.Tensor]],
        sent: Sequence[tuple[int, torch.Tensor]],
        result: Tensors,
    ) -> Work:
        # On GPUs, where streams know sends and receives and no messages among all.
        operations, arrays = [], []
        for other, tensor in sent:
            if other != self._rank:
                own = elements.to_move(tensor)
                operations += _post(self.session.send, own, other, _EXCHANGE)
        for other, tensor in received:
            if other != self._rank:
                arrays.append((elements.to_move(tensor), tensor))
                operations += _post(
                    self.session.receive, arrays[-1][0], other, _EXCHANGE
                )
                continue
            kept = next(each for rank, each in sent if rank == other)
            elements.fill([tensor], elements.flat(kept))

        def finish() -> None:
            for array, tensor in arrays:
                elements.put_back(array, tensor)

        return self._work(operations, result, finish)

    # ---- Several at a time -----------------------------------------------------------------------

    def start_coalescing(self, *_: Any) -> None:
        """What is posted from now on is one Work for who ends it."""
        self._together = []

    def end_coalescing(self, works: list | None = None, *_: Any) -> Work:
        """All that was posted since, as one Work."""
        together, self._together = self._together or [], None
        result = [tensor for work in together for tensor in work.result()]
        if together and all(isinstance(work, StreamWork) for work in together):
            whole: Work = StreamWork.of_works(together, result)
        else:
            whole = Work.of_all(together, result, self._completer)
        self._keep(whole)
        return whole

    _start_coalescing = start_coalescing
    _end_coalescing = end_coalescing

    # ---- Inside ----------------------------------------------------------------------------------

    def _work(
        self,
        operations: Sequence[Operation],
        result: Tensors,
        finish: Callable[[], None] | None,
        source: int | Callable[[], int] | None = None,  # of a receive; -1: of a send
        at_the_end: bool = False,  # of backward its future is done
    ) -> Work:
        own_source = -1 if source is None else source
        if StreamOperation in map(type, operations):
            work: Work = StreamWork(operations, result, finish, own_source)
        else:
            completer = self._at_the_end if at_the_end else self._completer
            work = Work(operations, result, finish, completer, own_source)
        if source is None:
            if self._ddp is not None:
                self._ddp.note_operation(work)
            return self._keep_collective(work)
        return self._keep_of_call(work)

    def _keep_collective(self, work: Work) -> Work:
        self._sequence_number += 1
        return self._keep_of_call(work)

    def _keep_of_call(self, work: Work) -> Work:
        self._keep(work)
        if self._together is not None:
            self._together.append(work)
        return work

    def _keep(self, work: Work) -> None:
        self._kept.add(work)
        if not isinstance(work, StreamWork):  # whose results come when a stream waits
            self._kept.look_after(work)

    def _expect_parts(self, parts: Tensors, what: str) -> None:
        if len(parts) != self._size:
            raise ValueError(
                f"{what}: {len(parts)} tensors for {self._size} ranks, give one for each"
            )

    def _parts(self, whole: torch.Tensor, count: int) -> list[torch.Tensor]:
        if whole.numel() != count * self._size:
            raise ValueError(
                f"a tensor of {whole.numel()} elements does not hold {self._size} ranks' parts of {count}"
            )
        if not whole.is_contiguous():
            raise ValueError("the tensor with all ranks' parts must be contiguous")
        return list(whole.detach().view(self._size, count).unbind())

    def _rows(
        self, tensor: torch.Tensor, sizes: Sequence[int], what: str, count: int
    ) -> list[int]:
        # `count` elements carry the tensor: as many for each rank as it has rows.
        rows = tensor.shape[0] if tensor.dim() > 0 else 0
        if not sizes:
            if rows % self._size != 0:
                raise ValueError(
                    f"all_to_all_single: the {what}'s {rows} rows do not divide among {self._size} ranks"
                )
            sizes = [rows // self._size] * self._size
        if len(sizes) != self._size or sum(sizes) != rows:
            raise ValueError(
                f"all_to_all_single: sizes {list(sizes)} of the {what} are not those of "
                f"{self._size} ranks that make up {rows} rows"
            )
        return [size * count // rows if rows else 0 for size in sizes]


def _post(
    collective: Callable[..., Operation], array: torch.Tensor, *arguments: Any
) -> list[Operation]:
    writes = collective.__name__ != "send"
    poster = _posters[collective.__self__]
    return poster.post(collective, array, *arguments, writes=writes)


def _post_pieces(
    collective: Callable[..., Operation],
    count: int,
    read: Sequence[tuple[int, torch.Tensor]],
    written: Sequence[tuple[int, torch.Tensor]],
    *arguments: Any,
) -> list[Operation]:
    # As _post, without copies of what lies in several tensors.
    poster = _posters[collective.__self__]
    return poster.post_pieces(collective, count, read, written, *arguments)


def _op(opts: Any) -> Any:
    # torch's groups take a ReduceOp as well as options with one.
    return dist.ReduceOp.SUM if opts is None else getattr(opts, "reduceOp", opts)


def _put_back(arrays: Tensors, tensors: Tensors, _read: Any = None) -> None:
    # Who is to call this keeps `_read` until then: it may be read where it lies.
    for array, tensor in zip(arrays, tensors):
        elements.put_back(array, tensor)


def _each(calls: Sequence[Callable[[], None]]) -> None:
    for call in calls:
        call()


def _shut_down_all() -> None:
    # Before sessions are closed: no thread may wait in one then.
    for group in list(_alive):
        group.shutdown()


atexit.register(_shut_down_all)
