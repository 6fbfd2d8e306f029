"""The service with GPUs, as far as the driver's double plays them: real processes, no GPU needed."""

from __future__ import annotations

import os
import sys
import unittest
from typing import Any

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from gpu_machine import (
    COUNT,
    DOUBLE,
    NCCL,
    await_stages,
    await_true,
    held,
    held_by_job,
    lanes,
    machine,
)
from support.cluster import Cluster, Services
from support.patience import PATIENCE_S, SOON_S, await_equal
from support.ranks import RankError, Ranks
from support.service import Service, StartError


class OneNode(unittest.TestCase):
    def setUp(self) -> None:
        self.environment = machine()
        self.service = self.enterContext_(
            Service("--cuda-library", DOUBLE, environment=self.environment)
        )

    def enterContext_(self, manager: Any) -> Any:
        """unittest has this from Python 3.11 on."""
        value = manager.__enter__()
        self.addCleanup(manager.__exit__, None, None, None)
        return value

    def ranks(self, world: int, **options: Any) -> Ranks:
        return self.enterContext_(
            Ranks(self.service, world, environment=self.environment, **options)
        )

    def on_gpus(self, ranks: Ranks, count: int = COUNT) -> None:
        for member in ranks.members:
            member.call("tensor", name="w", count=count, device=member.rank % 2)

    def test_sums_lie_where_the_gradients_are_and_people_see_where(self) -> None:
        ranks = self.ranks(3)
        self.on_gpus(ranks)
        for member in ranks.members:
            member.call("fill", name="w", value=member.rank + 1.0)
        ranks.each("post", kind="all_reduce", name="w")
        ranks.each("wait")
        self.assertEqual(ranks.each("values", name="w"), [[6.0] * 4] * 3)
        await_stages(self.service, "nvlink0", 1)
        self.assertEqual(lanes(self.service)["shm0"]["stages_ended"], 0)
        first, second = held(self.service)
        self.assertGreaterEqual(first, 2 * 4 * COUNT)
        self.assertGreaterEqual(second, 4 * COUNT)
        self.assertEqual(held_by_job(self.service, "test"), {0: first, 1: second})
        status: Any = self.service.ctl_json("status")
        self.assertEqual([gpu["segments"] for gpu in status["gpus"]], [2, 1])
        self.assertIn("holds", self.service.ctl("status")[1])
        self.assertIn("ON GPUS", self.service.ctl("jobs")[1])

    def test_every_collective_and_type_is_right_on_gpus(self) -> None:
        ranks = self.ranks(3)
        for dtype in ("float32", "bfloat16", "int32"):
            for kind in ("all_reduce", "reduce_scatter", "all_gather", "broadcast"):
                wrong = []
                for member in ranks.members:
                    name = f"{dtype}-3000"
                    if kind == "all_reduce":
                        member.call(
                            "tensor", name=name, count=3000, dtype=dtype, device=member.rank % 2
                        )
                    member.send("exercise", kind=kind, dtype=dtype, count=3000, seed=7)
                wrong = [member.receive() for member in ranks.members]
                self.assertEqual(wrong, [0, 0, 0], f"{kind} of {dtype}")
        await_stages(self.service, "nvlink0", 12)

    def test_posts_in_the_order_of_a_stream_end_in_it(self) -> None:
        ranks = self.ranks(2)
        self.on_gpus(ranks, 1000)
        for step in range(1, 20):
            ranks.each("fill", name="w", value=float(step))
            ranks.each("post", kind="all_reduce", name="w", stream=0)
            ranks.each("wait")
            self.assertEqual(ranks.each("values", name="w"), [[2.0 * step] * 4] * 2)

    def test_a_broken_gpu_ends_the_service_and_ranks_go_on_with_the_next(self) -> None:
        breaks = {**self.environment, "HEADRACE_CUDA_DOUBLE_BREAK": "cuLaunchKernel:2:700"}
        first = self.enterContext_(Service("--cuda-library", DOUBLE, environment=breaks))
        ranks = self.enterContext_(Ranks(first, 2, environment=self.environment))
        for member in ranks.members:
            member.call("tensor", name="w", count=64, device=0)
            member.call("fill", name="w", value=1.0)
        ranks.each("post", kind="all_reduce", name="w")
        ranks.each("wait")
        for member in ranks.members:
            member.call("post", kind="all_reduce", name="w")
        for member in ranks.members:
            with self.assertRaises(RankError) as caught:
                member.call("wait")
            # What a rank with HEADRACE_RECONNECT comes back from.
            self.assertEqual(caught.exception.code, "unavailable")
        self.assertEqual(first.process.wait(timeout=30), 3)
        told = [line for line in first.log().splitlines() if "is broken for good" in line]
        self.assertEqual(len(told), 1, first.log())
        self.assertRegex(told[0], "GPU 0: .*: CUDA_ERROR_ILLEGAL_ADDRESS")
        self.enterContext_(
            Service(
                "--cuda-library", DOUBLE, directory=first.directory, environment=self.environment
            )
        )
        for member in ranks.members:
            member.send("reconnect", timeout=30)
        for member in ranks.members:
            member.receive()
        for member in ranks.members:
            member.call("fill", name="w", value=2.0)
        ranks.each("post", kind="all_reduce", name="w")
        ranks.each("wait")
        self.assertEqual(ranks.each("values", name="w"), [[4.0] * 4] * 2)

    def test_memory_of_a_killed_trainer_is_given_back_within_a_second(self) -> None:
        ranks = self.ranks(2)
        self.on_gpus(ranks)
        ranks.each("post", kind="all_reduce", name="w")
        ranks.each("wait")
        self.assertGreater(held(self.service)[1], 0)
        ranks[0].call("post", kind="all_reduce", name="w")
        ranks[0].send("wait")
        ranks[1].kill()
        # Whatever waited for the operation would take its minute.
        took = await_true(lambda: held(self.service)[1] == 0, PATIENCE_S)
        self.assertIsNotNone(took, self.service.ctl("status")[1])
        assert took is not None
        self.assertLess(took, SOON_S)
        with self.assertRaises(RankError) as caught:
            ranks[0].receive()
        self.assertEqual(caught.exception.code, "peer lost")
        self.assertEqual(held_by_job(self.service, "test").get(1, 0), 0)
        ranks[0].kill()
        took = await_true(lambda: held(self.service) == [0, 0], PATIENCE_S)
        self.assertIsNotNone(took)
        assert took is not None
        self.assertLess(took, SOON_S)

    def test_killed_trainers_leave_nothing_mapped(self) -> None:
        def mapped() -> int:
            with open(f"/proc/{self.service.pid}/maps", encoding="utf-8") as maps:
                return sum("cuda" in line and "memfd" in line for line in maps)

        first = mapped()
        for index in range(5):
            ranks = self.ranks(2, job=f"job{index}")
            self.on_gpus(ranks)
            ranks.each("post", kind="all_reduce", name="w")
            for member in ranks.members:
                member.kill()
            self.assertIsNotNone(await_true(lambda: held(self.service) == [0, 0], PATIENCE_S))
        await_equal(mapped, first)
        self.assertEqual(self.service.stop(), 0, self.service.log())

    def test_memory_of_a_gpu_and_of_the_host_do_not_mix(self) -> None:
        ranks = self.ranks(2)
        ranks[0].call("tensor", name="w", count=100, device=1)
        ranks[1].call("tensor", name="w", count=100)
        ranks.each("post", kind="all_reduce", name="w")
        for member in ranks.members:
            with self.assertRaises(RankError) as caught:
                member.call("wait")
            self.assertEqual(caught.exception.code, "mismatch")
            for part in ("rank 0", "on GPU 1", "rank 1", "in host memory"):
                self.assertIn(part, str(caught.exception))

    def test_doctor_says_what_the_service_uses(self) -> None:
        _, text = self.service.ctl("doctor")
        self.assertIn("streams", text)
        self.assertIn("nvlink0", text)


class OverNccl(unittest.TestCase):
    """NCCL between the GPUs of a node, as its own double plays it on that of the driver."""

    def test_it_carries_what_it_can_and_leaves_the_rest_to_kernels(self) -> None:
        flags = ("--cuda-library", DOUBLE, "--gpu-lane", "nccl", "--nccl-library", NCCL)
        with Service(*flags, environment=machine()) as service:
            with Ranks(service, 2, environment=machine(), job="apart") as ranks:
                for member in ranks.members:
                    member.call("tensor", name="w", count=COUNT, device=member.rank)
                    member.call("fill", name="w", value=member.rank + 1.0)
                ranks.each("post", kind="all_reduce", name="w")
                ranks.each("wait")
                self.assertEqual(ranks.each("values", name="w"), [[3.0] * 4] * 2)
                await_stages(service, "nccl0", 1)
            self.assertNotIn("kernels", service.log())
            with Ranks(service, 2, environment=machine(), job="together") as ranks:
                ranks.each("tensor", name="w", count=100, device=0)
                for member in ranks.members:
                    member.call("fill", name="w", value=member.rank + 1.0)
                ranks.each("post", kind="all_reduce", name="w")
                ranks.each("wait")
                self.assertEqual(ranks.each("values", name="w"), [[3.0] * 4] * 2)
                await_stages(service, "nccl0", 2)
            said = service.await_log("kernels")
            self.assertEqual(len(said), 1, said)
            self.assertIn("NCCL", said[0])


class Without(unittest.TestCase):
    """Services that use no GPU say why, and do all else."""

    def refused(self, service: Service) -> str:
        with Ranks(service, 1, environment=machine()) as ranks:
            with self.assertRaises(RankError) as caught:
                ranks[0].call("tensor", name="w", count=100, device=0)
            self.assertEqual(caught.exception.code, "unavailable")
            ranks[0].call("tensor", name="v", count=100)
            ranks[0].call("post", kind="all_reduce", name="v")
            ranks[0].call("wait")
            self.assertEqual(service.ctl_json("status")["gpus"], [])  # type: ignore[index]
            return str(caught.exception)

    def test_off_is_refused_with_the_setting_that_says_so(self) -> None:
        with Service("--gpu", "off") as service:
            self.assertIn("gpu = off", self.refused(service))

    def test_without_a_driver_is_refused_with_what_to_install(self) -> None:
        with Service("--cuda-library", "/nonexistent/libcuda.so.1") as service:
            self.assertIn("/nonexistent/libcuda.so.1", self.refused(service))
            service.await_log(r"libcuda\.so\.1")

    def test_on_without_a_driver_does_not_start(self) -> None:
        with self.assertRaises(StartError) as caught:
            Service("--gpu", "on", "--cuda-library", "/nonexistent/libcuda.so.1").__enter__()
        self.assertIn("use GPUs (gpu = on)", str(caught.exception))

    def test_the_log_says_what_was_found_and_how_processes_share_it(self) -> None:
        with Service("--cuda-library", DOUBLE, environment=machine()) as service:
            service.await_log(r"GPU 0: .* MiB, .* 132 multiprocessors\b")
            service.await_log("MPS")

    def test_more_blocks_of_threads_than_the_gpu_holds_are_refused(self) -> None:
        with self.assertRaises(StartError) as caught:
            flags = ("--cuda-library", DOUBLE, "--gpu-ctas", "133")
            Service(*flags, environment=machine()).__enter__()
        for value in ("gpu_ctas is 133", "GPU 0"):
            self.assertIn(value, str(caught.exception))
        self.assertIn("132", str(caught.exception))

    def test_a_driver_that_refuses_a_context_is_named(self) -> None:
        environment = machine(FAIL="cuDevicePrimaryCtxRetain:1:2")
        with Service("--cuda-library", DOUBLE, environment=environment) as service:
            self.assertIn("OUT_OF_MEMORY", self.refused(service))


class Hostile(unittest.TestCase):
    def test_what_the_driver_refuses_ends_the_call_and_nothing_else(self) -> None:
        environment = machine(FAIL="cuMemMap:1:2,cuMemImportFromShareableHandle:2:1")
        with (
            Service("--cuda-library", DOUBLE, environment=environment) as service,
            Ranks(service, 1, environment=machine()) as ranks,
        ):
            with self.assertRaises(RankError) as caught:
                ranks[0].call("tensor", name="w", count=100, device=0)
            self.assertEqual(caught.exception.code, "exhausted")
            self.assertIn("OUT_OF_MEMORY", str(caught.exception))
            with self.assertRaises(RankError) as caught:
                ranks[0].call("tensor", name="w", count=100, device=0)
            self.assertIn("register GPU memory", str(caught.exception))
            self.assertEqual(held(service), [0, 0])
            ranks[0].call("tensor", name="w", count=100, device=0)
            ranks[0].call("post", kind="all_reduce", name="w")
            ranks[0].call("wait")


class TwoNodes(unittest.TestCase):
    """Two services on this machine, each with all of its doubled GPUs."""

    def setUp(self) -> None:
        for name, value in machine().items():
            os.environ[name] = value
            self.addCleanup(os.environ.pop, name, None)
        self.cluster = Cluster(nodes=2, loopback=True)
        self.addCleanup(self.cluster.close)
        self.services = Services(self.cluster, "--cuda-library", DOUBLE, "--rails", "lo")

    def test_memory_of_gpus_reaches_the_other_node_through_the_hosts(self) -> None:
        ranks = self.services.ranks([2, 1], job="spread")
        self.addCleanup(ranks.__exit__)
        for member in ranks.members:
            member.call("tensor", name="w", count=5 * COUNT, device=member.rank % 2)
        for step in range(3):
            for member in ranks.members:
                member.call("fill", name="w", value=float(member.rank + step))
            ranks.each("post", kind="all_reduce", name="w", stream=0)
            ranks.each("wait")
            sums = [3.0 + 3.0 * step] * 4
            self.assertEqual(ranks.each("values", name="w"), [sums] * 3)
        for service in (self.services[0], self.services[1]):
            service.await_log("pinned")
            self.assertGreater(lanes(service)["nvlink0"]["stages_ended"], 0)

    def test_a_killed_rank_ends_both_nodes_and_all_memory_goes_back(self) -> None:
        ranks = self.services.ranks([1, 1], job="killed")
        self.addCleanup(ranks.__exit__)
        for member in ranks.members:
            member.call("tensor", name="w", count=COUNT, device=0)
        ranks.each("post", kind="all_reduce", name="w")
        ranks.each("wait")
        ranks[0].call("post", kind="all_reduce", name="w")
        ranks[0].send("wait")
        ranks[1].kill()
        with self.assertRaises(RankError) as caught:
            ranks[0].receive()
        self.assertEqual(caught.exception.code, "peer lost")
        ranks[0].kill()
        for service in (self.services[0], self.services[1]):
            self.assertIsNotNone(await_true(lambda service=service: held(service) == [0, 0], PATIENCE_S))


if __name__ == "__main__":
    unittest.main()
