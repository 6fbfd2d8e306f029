"""Ranks with memory on GPUs and a real service, all of them on a double of CUDA's driver."""

from __future__ import annotations

import ctypes
import os
import pathlib
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "unit/client"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "client/python"))

from tests.support.service import build_directory
from tests.support.unittests import run_tests

# The client's library is loaded here, so a sanitizer's run time has to come first.
PRELOAD = os.environ.get("HEADRACE_TEST_PRELOAD", "")
if os.environ.get("LD_PRELOAD", "") != PRELOAD:
    os.environ.update(LD_PRELOAD=PRELOAD, ASAN_OPTIONS="detect_leaks=0")
    os.execv(sys.executable, [sys.executable, "-B", *sys.argv])
os.environ.setdefault("HEADRACE_BUILD", build_directory())
os.environ.setdefault("HEADRACE_LIBRARY", os.path.join(build_directory(), "libheadrace.so"))

import headrace
from doubled_gpu import DoubledGpu, gpu_service, use_double
from ranks import Rank, run_ranks, start_rank

COUNT = 100_000


def values(tensor):
    """The double's memory is the host's: a numpy view of it."""
    import numpy

    data, _ = tensor.__cuda_array_interface__["data"]
    elements = (ctypes.c_float * tensor.count).from_address(data)
    return numpy.frombuffer(elements, "float32")


def sums_in_stream_order(session):
    gpu = DoubledGpu(session.rank)
    tensor = session.arena(COUNT * 4, session.rank).tensor((COUNT,), "float32")
    assert values(tensor).sum() == 0
    # 0x40404040 is 3.0039..., written by the stream.
    gpu.fill(tensor.__cuda_array_interface__["data"][0], 0x40, COUNT * 4)
    operation = session.all_reduce(tensor, stream=gpu.stream)
    gpu.synchronize()
    operation.wait()
    return values(tensor)[[0, 1, COUNT - 1]].tolist(), operation.done()


def every_collective(session):
    gpu = DoubledGpu(session.rank)
    arena = session.arena(1 << 20, f"cuda:{session.rank}")
    results = []
    for name in ("all_reduce", "broadcast", "reduce_scatter", "all_gather"):
        tensor = arena.tensor((8,), "float32", name)
        values(tensor)[:] = [10 * session.rank + i for i in range(8)]
        getattr(session, name)(tensor, stream=gpu.stream)
        gpu.synchronize()
        results.append(values(tensor).tolist())
    return results


def shares_an_allocation(session):
    gpu = DoubledGpu()
    address = gpu.allocate(1 << 20) + 4096

    class Allocated:
        __cuda_array_interface__ = {
            "data": (address, False), "shape": (64,), "typestr": "<f4", "version": 3,
        }  # fmt: skip

    tensor = session.share(Allocated(), "gradients")
    values(tensor)[:] = session.rank + 1
    session.all_reduce(tensor, "average").wait()
    result = values(tensor).tolist()
    tensor.release()
    tensor.arena.release()
    return result


def posts_without_a_stream(session):
    tensor = session.arena(4096, 0).tensor((16,), "float32")
    values(tensor)[:] = session.rank
    session.all_reduce(tensor)
    return values(tensor).tolist()


def waits_for_a_rank_that_never_comes(session):
    gpu = DoubledGpu()
    tensor = session.arena(4096, 0).tensor((16,), "float32")
    operation = session.all_reduce(tensor, stream=gpu.stream)
    try:
        gpu.synchronize()  # the failure lets it go
        operation.wait()
    except headrace.Error as error:
        return error.code, str(error)
    return None


def lays_out(session):
    gpu = DoubledGpu()
    layout = session.layout([((64,), "float32", "a"), ((32,), "float32", "b")], device=0)
    for _ in range(5):
        for i in range(2):
            layout.wait_on(i, gpu.stream)
        layout.end_forward()
        layout.begin_backward()
        for i in (1, 0):
            # In stream order: the bytes of this iteration's gradient, after the wait for the last.
            address = layout._arena.region.address + layout._offsets[i]
            gpu.fill(address, 0x40, layout.counts[i] * 4)
            layout.post(i, gpu.stream)
    for i in range(2):
        layout.wait_on(i, gpu.stream)
    gpu.synchronize()
    first = ctypes.c_float.from_address(layout._arena.region.address)
    return first.value


class Gpus(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        use_double()
        cls.service = gpu_service()
        cls.addClassCleanup(cls.service.close)
        cls.service.start()

    def run_ranks(self, function, count: int = 2) -> list:
        return run_ranks(self.service, count, function, job=function.__name__)

    def test_gradients_are_summed_in_the_order_of_streams(self) -> None:
        byte = ctypes.c_float.from_buffer_copy(b"\x40" * 4).value
        for values_found, done in self.run_ranks(sums_in_stream_order):
            self.assertEqual(values_found, [2 * byte] * 3)
            self.assertTrue(done)

    def test_every_collective_gives_what_it_gives_on_the_host(self) -> None:
        own = [[10.0 * rank + i for i in range(8)] for rank in range(2)]
        total = [a + b for a, b in zip(*own, strict=True)]
        gathered = own[0][:4] + own[1][4:]
        for rank, found in enumerate(self.run_ranks(every_collective)):
            half = slice(4 * rank, 4 * rank + 4)
            scattered = list(own[rank])
            scattered[half] = total[half]
            self.assertEqual(found, [total, own[0], scattered, gathered])

    def test_an_allocation_of_somebody_elses_is_shared_in_place(self) -> None:
        self.assertEqual(self.run_ranks(shares_an_allocation), [[1.5] * 64] * 2)

    def test_memory_is_ready_at_once_without_a_stream(self) -> None:
        self.assertEqual(self.run_ranks(posts_without_a_stream), [[1.0] * 16] * 2)

    def test_a_layout_on_a_gpu_moves_by_the_plan(self) -> None:
        byte = ctypes.c_float.from_buffer_copy(b"\x40" * 4).value
        self.assertEqual(self.run_ranks(lays_out), [byte] * 2)

    def test_a_stream_goes_on_when_the_operation_has_timed_out(self) -> None:
        rank = start_rank(
            self.service, 0, 2, waits_for_a_rank_that_never_comes, job="late", timeout=0.5
        )
        code, text = rank.result()
        self.assertEqual(code, "timeout", text)

    def test_a_stream_goes_on_when_the_service_is_killed(self) -> None:
        with gpu_service() as service:
            rank = start_rank(service, 0, 2, waits_for_a_rank_that_never_comes, job="lost")
            self.await_post(service)
            service.kill()
            code, text = rank.result()
        self.assertEqual(code, "unavailable", text)

    def test_what_is_missing_is_named(self) -> None:
        def without_driver() -> str:
            os.environ["HEADRACE_CUDA_LIBRARY"] = "/nonexistent/libcuda.so.1"
            with headrace.init("none", 0, 1, self.service.socket) as session:
                try:
                    session.arena(4096, 0)
                except headrace.Error as error:
                    return str(error)
            return ""

        self.assertIn("NVIDIA", Rank(without_driver).result())

    @staticmethod
    def await_post(service) -> None:
        end = time.monotonic() + 30
        while time.monotonic() < end:
            jobs = service.ctl_json("jobs")["jobs"]
            if any(job["operations_open"] for job in jobs):
                return
            time.sleep(0.02)
        raise AssertionError("the rank posted nothing")


if __name__ == "__main__":
    run_tests()
