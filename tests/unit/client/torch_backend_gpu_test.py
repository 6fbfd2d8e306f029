"""The backend "headrace" with tensors on a GPU: a double's, taken for torch's own.

Memory, words, streams and service are those of a real run; torch computes on the CPU in place of the GPU.
"""

import contextlib
import os
import tempfile
import time
import unittest
import unittest.mock
import warnings
import weakref

import headrace
import headrace.torch
import torch
import torch.distributed as dist
from doubled_gpu import DoubledGpu, DoubledGpuCase
from headrace.arena import Arena
from headrace.operation import Operation
from support.patience import SOON_S
from torch.nn.parallel import DistributedDataParallel
from torch_on_gpu import KINDS, Memory, a_gpu, at_address, group_of
from torch_ranks import main, run_group, start_group

WAIT_ON = Operation.wait_on  # as it is outside of as_torchs_gpu


def collectives(rank, new):
    """What each collective gives, of tensors that ``new`` makes of values."""
    size, results = dist.get_world_size(), {}

    def base(count, dtype=torch.float32):
        return torch.arange(count, dtype=torch.float32).mul(rank + 1).to(dtype)

    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.int8, torch.bool):
        tensor = new(base(12, dtype))
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        results[f"all_reduce {dtype}"] = tensor
    spread = new(base(24))[::2]  # not contiguous
    dist.all_reduce(spread)
    results["all_reduce spread"] = spread
    tensor = new(base(7))
    dist.broadcast(tensor, 1)
    results["broadcast"] = tensor
    parts = [new(torch.zeros(5)) for _ in range(size)]
    dist.all_gather(parts, new(base(5)))
    results["all_gather"] = torch.stack(parts)
    whole = new(torch.zeros(size * 6))
    dist.all_gather_into_tensor(whole, new(base(6)))
    results["all_gather_into_tensor"] = whole
    output, inputs = new(torch.zeros(4)), new(base(size * 4))
    dist.reduce_scatter_tensor(output, inputs)
    results["reduce_scatter"] = output
    results["what was scattered"] = inputs
    parts = [new(torch.zeros(3 + r)) for r in range(size)]
    dist.all_gather(parts, new(base(3 + rank)))
    results["all_gather of unequal parts"] = torch.cat(parts)
    output = new(torch.zeros(2 + rank))
    parts = [new(base(2 + r)) for r in range(size)]
    dist.reduce_scatter(output, parts)
    results["reduce_scatter of unequal parts"] = output
    results["what was scattered in unequal parts"] = torch.cat(parts)
    output = new(torch.zeros(2 if rank else 3))
    sizes = [1, 2] if rank == 0 else [1, 1]
    dist.all_to_all_single(output, new(base(sum([1, 1] if rank == 0 else [2, 1]))), sizes,
                           [1, 1] if rank == 0 else [2, 1])  # fmt: skip
    results["all_to_all of unequal parts"] = output
    tensor = new(base(9))
    dist.reduce(tensor, 1)
    results["reduce"] = tensor if rank == 1 else new(base(9))
    parts = [new(torch.zeros(3)) for _ in range(size)] if rank == 0 else None
    dist.gather(new(base(3)), parts, 0)
    results["gather"] = torch.stack(parts) if parts else torch.zeros(1)
    output = new(torch.zeros(2))
    dist.scatter(output, [new(base(2) + i) for i in range(size)] if rank == 0 else None, 0)
    results["scatter"] = output
    output = new(torch.zeros(2 * size))
    dist.all_to_all_single(output, new(base(2 * size)))
    results["all_to_all_single"] = output
    tensor = new(base(11))
    if rank == 0:
        dist.send(tensor, 1, tag=3)
    elif rank == 1:
        results["source"] = torch.tensor(dist.recv(tensor, None, tag=3))
    results["recv"] = tensor
    works = [dist.all_reduce(new(base(4)), async_op=True) for _ in range(3)]
    results["later"] = torch.stack([work.get_future().wait()[0] for work in works])
    works[0].wait()
    empty = new(torch.zeros(0))
    dist.all_reduce(empty)
    return {name: (str(t.dtype), t.tolist()) for name, t in results.items()}


def on_a_gpu(rank, kind):
    gpu = DoubledGpu()
    poster = group_of().poster
    with a_gpu(gpu), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        memory = Memory(gpu, kind)
        found = collectives(rank, memory.tensor)
    told = [str(each.message) for each in told if str(each.message).startswith("headrace: ")]
    return found, len(poster.places._on_gpus), told


def plainly(rank):
    return collectives(rank, lambda values: torch.as_tensor(values).clone())


def in_place_waits_for_nothing(rank):
    """The host's waits, and arrays of the stage, of collectives whose memory can be shared."""
    gpu = DoubledGpu()
    poster = group_of().poster
    with a_gpu(gpu):
        memory = Memory(gpu, "allocated")
        tensors = [memory.tensor(torch.full((64,), rank + 1.0)) for _ in range(4)]
        whole = memory.tensor(torch.zeros(64 * dist.get_world_size()))
        with unittest.mock.patch.object(Arena, "__init__", autospec=True,
                                        side_effect=Arena.__init__) as made:  # fmt: skip
            before = poster.places._session.counters()["waits"]
            for tensor in tensors:
                dist.all_reduce(tensor)
            dist.all_gather_into_tensor(whole, tensors[0])
            dist.broadcast(whole, 0)
            waits = poster.places._session.counters()["waits"] - before
        values = [tensor.tolist() for tensor in [*tensors, whole]]
    return waits, made.call_count, len(poster._staging._free), values


def another_allocation_at_its_address(rank):
    gpu = DoubledGpu()
    poster = group_of().poster
    seen = []
    with a_gpu(gpu):
        for turn in range(3):
            memory = Memory(gpu, "allocated")
            tensor = memory.tensor(torch.full((8,), rank + 10.0 * turn))
            dist.all_reduce(tensor)
            (number,) = list(poster.places._on_gpus.values())[-1].numbers
            seen.append((memory.base, number, tensor.tolist()[0]))
            gpu.free(memory.base)
    return seen


def stream_goes_on(rank, goes_on):
    """Rank 1 posts once rank 0's wait() has returned, while rank 0's stream stands."""
    gpu = DoubledGpu()
    with a_gpu(gpu), unittest.mock.patch.object(Operation, "wait_on", WAIT_ON):
        tensor = Memory(gpu, "allocated").tensor(torch.full((16,), rank + 1.0))
        if rank == 1:
            wait_for_file(goes_on)
        work = dist.all_reduce(tensor, async_op=True)
        idle = None
        if rank == 0:
            with unittest.mock.patch.object(
                headrace.torch.devices, "record_event", lambda _: "event"
            ):
                work.wait()
            idle = gpu.is_idle(), work.is_completed()
            open(goes_on, "x").close()
        gpu.synchronize()
        work.wait()
    return idle, tensor.tolist()


def one_after_the_other(rank):
    """The same tensor again and again, while the host runs ahead of its stream and of the other rank."""
    gpu = DoubledGpu()
    with a_gpu(gpu), unittest.mock.patch.object(Operation, "wait_on", WAIT_ON):
        tensor = Memory(gpu, "allocated").tensor(torch.ones(1 << 16))
        event = unittest.mock.patch.object(
            headrace.torch.devices, "record_event", lambda _: "event"
        )
        with event:
            for _ in range(6):
                if rank == 1:
                    time.sleep(0.02)
                dist.all_reduce(tensor)
        gpu.synchronize()
        return tensor.unique().tolist()


def with_ddp(rank, is_on_gpu):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 4)]
    model = torch.nn.Sequential(*layers)

    def train():
        ddp = DistributedDataParallel(model, bucket_cap_mb=0.001)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        for step in range(5):
            optimizer.zero_grad()
            ddp(torch.full((4, 16), rank + 0.1 * step)).sum().backward()
            optimizer.step()

    if is_on_gpu:
        with a_gpu(DoubledGpu()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            train()
    else:
        train()
    return [p.detach().numpy().tobytes() for p in model.parameters()]


def where_a_rank_dies(rank):
    gpu = DoubledGpu()
    with a_gpu(gpu):
        tensor = Memory(gpu, "allocated").tensor(torch.ones(16))
        dist.all_reduce(tensor)
        if rank == 1:
            os._exit(9)
        began = time.monotonic()
        try:
            while time.monotonic() < began + 20:
                dist.all_reduce(tensor)
        except headrace.Error as error:
            dist.barrier = lambda: None
            return str(error), time.monotonic() - began
    return "", 0.0


def unlike_memory(rank):
    """A rank whose tensor is the host's, and one whose is a GPU's."""
    gpu = DoubledGpu()
    try:
        if rank == 0:
            dist.all_reduce(torch.ones(16))
        else:
            with a_gpu(gpu):
                work = dist.all_reduce(
                    Memory(gpu, "allocated").tensor(torch.ones(16)), async_op=True
                )
                work.settle(20)
                work.wait()
    except headrace.Error as error:
        dist.barrier = lambda: None
        return str(error)
    return ""


def of_one_segment(rank):
    """How often memory is shared for tensors that begin in one piece of a segment and end in others."""
    gpu = DoubledGpu()
    with a_gpu(gpu), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        base = gpu.map_pieces(3)
        short, long, longest = (at_address(base + 256 * i, (i << 19) + 64) for i in range(3))
        with unittest.mock.patch.object(Arena, "__init__", autospec=True,
                                        side_effect=Arena.__init__) as made:  # fmt: skip
            for tensor in (short, long, short, longest, long, short, longest):
                dist.all_reduce(tensor.fill_(rank + 1.0))
                assert tensor.unique().tolist() == [3.0], tensor
        places = group_of().poster.places
        return made.call_count, len(places._on_gpus), len(places._replaced), len(told)


def of_a_segment_in_use(rank, goes_on):
    """Whether a piece that was in use when more of its segment was needed is taken back afterwards."""
    gpu = DoubledGpu()
    places = group_of().poster.places
    with a_gpu(gpu), unittest.mock.patch.object(Operation, "wait_on", WAIT_ON):
        base = gpu.map_pieces(2)
        short, long = at_address(base, 64), at_address(base + 256, (1 << 19) + 64)
        short.fill_(1.0), long.fill_(1.0)
        if rank == 1:
            wait_for_file(goes_on)
        works = [dist.all_reduce(short, async_op=True)]
        first = places._on_gpus[base]
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            works.append(dist.all_reduce(long, async_op=True))
        known = places._on_gpus[base]
        assert known is not first and not told, (known, first, told)
        if rank == 0:
            assert places._replaced == [first], "the test has posted too late"
            open(goes_on, "x").close()
        for work in works:
            work.settle(60)
        dist.all_reduce(long)
        gpu.synchronize()
        assert places._on_gpus[base] is known and not places._replaced
        is_released = first.arena._segment is None
        return short.unique().tolist(), long.unique().tolist(), is_released


def in_more_pieces(rank):
    gpu = DoubledGpu()
    with a_gpu(gpu), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        tensor = at_address(gpu.map_pieces(3), (5 << 20) // 4).fill_(1.0)
        with unittest.mock.patch.object(headrace.torch.places, "PIECES_MAX", 2):
            dist.all_reduce(tensor)
        return tensor.unique().tolist(), [str(each.message) for each in told]


@contextlib.contextmanager
def streams_by_turns(gpu):
    """Within it the current stream is the one of on_stream(). Yields what was kept for each of them, by address."""
    devices, current, kept = headrace.torch.devices, [gpu.stream], {}

    @contextlib.contextmanager
    def on_stream(stream):
        current.append(stream)
        yield
        current.pop()

    def keep(tensor):
        kept.setdefault(current[-1], set()).add(tensor.data_ptr())

    with (
        unittest.mock.patch.object(devices, "current_stream", lambda _: current[-1]),
        unittest.mock.patch.object(devices, "on_stream", on_stream),
        unittest.mock.patch.object(devices, "keep_for_stream", keep),
    ):
        yield kept


def kept_for_the_stream_of_a_future(rank):
    """Whether memory that a future's stream reads and writes is kept for it: the caller's, and what was made of it.
    And of a wait() in the stream of the post, which needs none of it.
    """
    gpu = DoubledGpu()
    with a_gpu(gpu), streams_by_turns(gpu) as kept:
        memory = Memory(gpu, "allocated")
        narrow, plain = memory.tensor(torch.ones(9, dtype=torch.int8)), memory.tensor(torch.ones(4))
        poster, posted = group_of().poster, []
        with unittest.mock.patch.object(poster, "post", side_effect=poster.post) as post:
            works = [dist.all_reduce(tensor, async_op=True) for tensor in (narrow, plain)]
            posted = [call.args[1] for call in post.call_args_list]
        assert posted[0].dtype == torch.int32, posted
        assert not kept, "before a stream waits nothing is kept"
        found = []
        for work, tensor, array in zip(works, (narrow, plain), posted, strict=True):
            work.get_future().wait()
            (of_stream,) = kept.values()
            found.append({tensor.data_ptr(), array.data_ptr()} <= of_stream)
            kept.clear()
        dist.all_reduce(narrow)
        values = narrow.tolist(), plain.tolist()
    return found, len(kept), values


def kept_until_it_was_sent(rank):
    """Whether what was made of a tensor, to be sent, lives until it has left, and no longer."""
    gpu = DoubledGpu()
    with a_gpu(gpu):
        memory = Memory(gpu, "allocated")
        spread, made = memory.tensor(torch.arange(8.0))[::2], []

        def to_move(_):
            made.append(weakref.ref(array := memory.tensor(torch.arange(0.0, 8, 2))))
            return array

        if rank == 1:
            dist.barrier()
            received = memory.tensor(torch.zeros(4))
            dist.recv(received, 0)
            return received.tolist()
        with unittest.mock.patch.object(headrace.torch.elements, "to_move", to_move):
            work = dist.isend(spread, 1)
        before = made[0]() is not None
        dist.barrier()
        work.wait()
        return before, made[0]() is not None


def wait_for_file(path):
    deadline = time.monotonic() + 60
    while not os.path.exists(path) and time.monotonic() < deadline:
        time.sleep(0.001)


class OnAGpu(DoubledGpuCase):
    def test_every_collective_gives_what_it_gives_on_the_host(self):
        plain = run_group(self.service, 2, plainly)
        for kind in KINDS:
            with self.subTest(kind):
                ranks = run_group(self.service, 2, on_a_gpu, kind)
                self.assertEqual([found for found, _, _ in ranks], plain)
                for _, shared, told in ranks:
                    self.assertEqual(shared, 0 if kind == "not shareable" else 1)
                    # What torch itself makes of int8, say, lies in the host's memory here.
                    self.assertEqual(len(told), 1, told)

    def test_what_can_be_shared_is_summed_where_it_lies_and_the_host_waits_for_nothing(self):
        for waits, made, staged, values in run_group(self.service, 2, in_place_waits_for_nothing):
            self.assertEqual((waits, made, staged), (0, 1, 0))
            self.assertEqual(values, [[3.0] * 64] * 4 + [[3.0] * 128])

    def test_an_allocation_is_shared_anew_when_another_lies_at_its_address(self):
        for seen in run_group(self.service, 2, another_allocation_at_its_address):
            self.assertEqual([value for _, _, value in seen], [1.0, 21.0, 41.0])
            self.assertEqual(len({number for _, number, _ in seen}), 3)
            self.assertLess(len({base for base, _, _ in seen}), 3, "no address was used again")

    def test_tensors_that_begin_in_one_piece_of_a_segment_share_it_once_for_each_length(self):
        self.assertEqual(run_group(self.service, 2, of_one_segment), [(3, 1, 0, 0)] * 2)

    def test_a_piece_in_use_is_taken_back_once_it_is_not(self):
        with tempfile.TemporaryDirectory() as folder:
            ranks = run_group(self.service, 2, of_a_segment_in_use, os.path.join(folder, "goes-on"))
        self.assertEqual(ranks, [([2.0], [4.0], True)] * 2)

    def test_a_tensor_in_more_pieces_than_can_be_shared_is_copied(self):
        for values, told in run_group(self.service, 2, in_more_pieces):
            self.assertEqual(values, [2.0])
            self.assertEqual(len(told), 1, told)
            self.assertIn("more than 2 pieces", told[0])

    def test_wait_is_the_streams(self):
        with tempfile.TemporaryDirectory() as folder:
            goes_on = os.path.join(folder, "goes-on")
            first, second = run_group(self.service, 2, stream_goes_on, goes_on)
        self.assertEqual(first, ((False, False), [3.0] * 16))
        self.assertEqual(second[1], [3.0] * 16)

    def test_a_tensor_may_be_posted_again_before_its_stream_has_come_so_far(self):
        self.assertEqual(run_group(self.service, 2, one_after_the_other), [[64.0]] * 2)

    def test_a_future_keeps_memory_for_its_stream(self):
        ranks = run_group(self.service, 2, kept_for_the_stream_of_a_future)
        self.assertEqual(ranks, [([True, True], 0, ([4] * 9, [2.0] * 4))] * 2)

    def test_what_was_made_of_a_tensor_lives_until_it_was_sent(self):
        ranks = run_group(self.service, 2, kept_until_it_was_sent)
        self.assertEqual(ranks, [(True, False), [0.0, 2.0, 4.0, 6.0]])

    def test_ddp_gives_the_same_bits_as_on_the_host(self):
        on_gpu = run_group(self.service, 2, with_ddp, True)
        self.assertEqual(on_gpu, run_group(self.service, 2, with_ddp, False))

    def test_a_rank_that_dies_is_named_by_a_later_collective(self):
        ranks = start_group(self.service, 2, where_a_rank_dies)
        text, seconds = ranks[0].result()
        ranks[1].end()
        self.assertIn("rank 1", text)
        self.assertLess(seconds, SOON_S)

    def test_memory_of_another_kind_on_each_rank_is_a_mismatch(self):
        for text in run_group(self.service, 2, unlike_memory):
            self.assertIn("GPU", text)


if __name__ == "__main__":
    main()
