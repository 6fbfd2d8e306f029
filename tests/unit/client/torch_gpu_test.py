"""headrace.torch with gradients on a GPU: a double's, taken for torch's own.

Memory, words, streams and service are those of a real run; torch computes on the CPU in place of the
GPU. What only a real GPU shows is the order of torch's own work in its streams.
"""

import contextlib
import os
import tempfile
import time
import unittest
import unittest.mock

import headrace.torch
import torch
from doubled_gpu import DoubledGpu, DoubledGpuCase, as_torchs_gpu
from headrace.operation import Operation
from headrace.torch import devices
from ranks import run_ranks
from torch_ranks import main
from torch_scheduled import STEPS, batches, bits, both_ways, loss_of, network

RANKS = 2
WAIT_ON = Operation.wait_on  # as it is outside of as_torchs_gpu


def with_scheduled_optimizer(session):
    gpu = DoubledGpu()

    def make():
        model = network()
        return model, torch.optim.AdamW(model.parameters(), lr=0.01)

    with as_torchs_gpu(gpu):
        result = both_ways(session, make)
    waits = session.counters()["waits"]
    gpu.synchronize()
    return [*result, waits]


def with_arena(session, kind):
    gpu = DoubledGpu()
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def train():
        arena = headrace.torch.GradientArena(session, model.named_parameters())
        on = {tensor.device for tensor in arena._tensors}
        for batch in batches(session):
            arena.zero_grad()
            loss_of(model, batch).backward()
            arena.wait()
            optimizer.step()
        arena.close()
        return on

    if kind == "host":
        return bits([train() and 0, list(model.parameters())])
    with as_torchs_gpu(gpu):
        on = train()
    assert on == {gpu.number}, on
    return bits([0, list(model.parameters())])


def with_views_after_the_session(session):
    gpu = DoubledGpu()
    with as_torchs_gpu(gpu):
        tensor = session.arena(4096, 0).tensor((8,), "float32")
        view = tensor.torch()
        view.fill_(session.rank + 1)
        session.all_reduce(tensor, stream=gpu.stream)
        before = view.tolist()
        session.close()
        return before, view.tolist()


def with_ddp_hook(session):
    gpu = DoubledGpu()

    def average():
        return headrace.torch.ddp_hook(session, Bucket(session.rank)).wait().tolist()

    with as_torchs_gpu(gpu):
        averages = [average()]  # the first compares what is in the bucket, which waits
        before = session.counters()["waits"]
        averages += [average() for _ in range(2)]
        return averages, session.counters()["waits"] - before


class Bucket:
    """As DDP gives a hook one: 100 elements that are the rank's number and one."""

    def __init__(self, rank):
        self.rank = rank

    def index(self):
        return 0

    def parameters(self):
        return [torch.empty(100)]

    def buffer(self):
        return torch.full((100,), self.rank + 1.0)


def with_ddp_hook_before_the_other_rank(session, goes_on):
    """Rank 1 posts once rank 0's stream, in which backward computes, has nothing left to wait for."""
    gpu = DoubledGpu()
    streams = []
    bucket = Bucket(session.rank)
    with as_torchs_gpu(gpu):
        state = headrace.torch.DdpState(session)
        state.check(bucket)
        with (
            unittest.mock.patch.object(Operation, "wait_on", WAIT_ON),
            unittest.mock.patch.object(
                devices, "on_stream", lambda each: streams.append(each) or contextlib.nullcontext()
            ),
        ):
            if session.rank == 1:
                assert within(60, lambda: os.path.exists(goes_on)), "rank 0's stream waits"
            future = headrace.torch.ddp_hook(state, bucket)
            if session.rank == 0:
                went_on = within(60, gpu.is_idle)
                open(goes_on, "x").close() if went_on else None
        gpu.synchronize(streams[0])
        return future.wait().tolist(), len(streams), streams[0] != gpu.stream


def within(seconds, condition):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


def with_a_rank_that_dies(session):
    gpu = DoubledGpu()
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with as_torchs_gpu(gpu):
        scheduled = headrace.torch.ScheduledOptimizer(optimizer, model, session)
        try:
            for step, batch in enumerate(batches(session, 100)):
                if session.rank == 1 and step == 3:
                    session.close()
                    return "left"
                scheduled.zero_grad()
                loss_of(model, batch).backward()
                scheduled.step()
        except headrace.Error as error:
            return type(error).__name__
    return "did not hear of it"


class OnAGpu(DoubledGpuCase):
    def run_ranks(self, function, *arguments):
        job = self._testMethodName[:40]
        return run_ranks(self.service, RANKS, function, *arguments, job=job)

    def test_scheduled_optimizer_trains_to_the_same_bits(self):
        for scheduled, reference, _ in self.run_ranks(with_scheduled_optimizer):
            self.assertEqual(scheduled, reference)

    def test_gradient_arena_trains_to_the_same_bits_as_on_the_host(self):
        on_gpu = run_ranks(self.service, RANKS, with_arena, "gpu", job="arena-gpu")
        on_host = run_ranks(self.service, RANKS, with_arena, "host", job="arena-host")
        self.assertEqual(on_gpu, on_host)

    def test_ddps_hook_has_the_stream_wait(self):
        for averages, waits in self.run_ranks(with_ddp_hook):
            self.assertEqual(averages, [[1.5] * 100] * 3)
            self.assertEqual(waits, 0)

    def test_ddps_hook_lets_backwards_stream_go_on(self):
        with tempfile.TemporaryDirectory() as folder:
            ranks = self.run_ranks(
                with_ddp_hook_before_the_other_rank, os.path.join(folder, "goes-on")
            )
        for averages, streams, is_another in ranks:
            self.assertEqual(averages, [1.5] * 100)
            self.assertEqual((streams, is_another), (1, True))

    def test_views_stay_when_the_session_is_closed(self):
        for before, after in self.run_ranks(with_views_after_the_session):
            self.assertEqual(before, [3.0] * 8)
            self.assertEqual(after, before)

    def test_a_rank_that_leaves_is_heard_of_though_only_streams_wait(self):
        first, second = self.run_ranks(with_a_rank_that_dies)
        self.assertEqual(second, "left")
        self.assertNotEqual(first, "did not hear of it")


class Devices(unittest.TestCase):
    def test_the_cpu_has_no_number_and_no_stream(self):
        self.assertIsNone(devices.only_device([torch.zeros(1), torch.zeros(2)]))
        self.assertIsNone(devices.current_stream(None))

    def test_parameters_of_one_layout_are_on_one_device(self):
        with unittest.mock.patch.object(
            devices, "device_of", lambda tensor: None if len(tensor) == 1 else len(tensor)
        ):
            with self.assertRaisesRegex(TypeError, "GPU 2"):
                devices.only_device([torch.zeros(1), torch.zeros(2)])
            self.assertEqual(devices.only_device([torch.zeros(2)]), 2)

    def test_other_devices_are_refused_by_name(self):
        with self.assertRaisesRegex(TypeError, "meta"):
            devices.device_of(torch.zeros(1, device="meta"))

    def test_autocast_is_off_within(self):
        with torch.autocast("cpu", dtype=torch.bfloat16), devices.without_autocast():
            product = torch.ones(2, 2) @ torch.ones(2, 2)
        self.assertEqual(product.dtype, torch.float32)


if __name__ == "__main__":
    assert STEPS > 3
    main()
