"""GPU memory between nodes by NCCL: real services, on doubles of CUDA's driver and of NCCL."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import unittest
from typing import Any

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from gpu_machine import (
    COUNT,
    DOUBLE,
    NCCL,
    await_true,
    held,
    lanes,
    machine,
)
from support.cluster import Cluster, Services
from support.patience import PATIENCE_S, SOON_S
from support.ranks import RankError, Ranks
from support.service import Service, StartError

LIBRARIES = ("--cuda-library", DOUBLE, "--nccl-library", NCCL)
FLAGS = (*LIBRARIES, "--gpu-network", "nccl", "--rails", "lo")


def mapped(service: Service) -> int:
    """Pieces of GPUs' memory that the service has mapped: clients' and its own."""
    with open(f"/proc/{service.pid}/maps", encoding="utf-8") as maps:
        return sum("cuda" in line and "memfd" in line for line in maps)


class TwoNodes(unittest.TestCase):
    """Two services on this machine, each with all of its doubled GPUs. NCCL takes one rank of each
    GPU of a host, so they are two hosts to it."""

    def setUp(self) -> None:
        for name, value in machine().items():
            os.environ[name] = value
            self.addCleanup(os.environ.pop, name, None)
        self.cluster = Cluster(nodes=2, loopback=True)
        self.addCleanup(self.cluster.close)

    def start(self, *flags: str, first: dict[str, str] | None = None) -> None:
        environments = [{"NCCL_HOSTID": f"host-{name}"} for name in "ab"]
        environments[0].update(first or {})
        self.services = Services(self.cluster, *FLAGS, *flags, environments=environments)

    def ranks(self, counts: list[int], job: str, **options: Any) -> Ranks:
        ranks = self.services.ranks(counts, job=job, **options)
        self.addCleanup(ranks.__exit__)
        return ranks

    def await_gone(self, before: list[int]) -> None:
        """All memory of clients is given back, and what the service itself had for their jobs."""
        for service, count in zip((self.services[0], self.services[1]), before, strict=True):
            took = await_true(lambda service=service: held(service) == [0, 0], PATIENCE_S)
            self.assertIsNotNone(took, service.log())
            gone = await_true(lambda service=service, count=count: mapped(service) == count, PATIENCE_S)
            self.assertIsNotNone(gone, f"{mapped(service)} are mapped, {count} were")

    def test_every_collective_is_right_and_goes_by_the_lanes_of_all_gpus(self) -> None:
        self.start()
        before = [mapped(self.services[index]) for index in range(2)]
        ranks = self.ranks([2, 1], "spread")
        for dtype in ("float32", "bfloat16", "int32"):
            for kind in ("all_reduce", "reduce_scatter", "all_gather", "broadcast"):
                for member in ranks.members:
                    if kind == "all_reduce":
                        member.call(
                            "tensor",
                            name=f"{dtype}-90000",
                            count=90000,
                            dtype=dtype,
                            device=member.rank % 2,
                        )
                    member.send("exercise", kind=kind, dtype=dtype, count=90000, seed=7)
                wrong = [member.receive() for member in ranks.members]
                self.assertEqual(wrong, [0, 0, 0], f"{kind} of {dtype}")
        for service in (self.services[0], self.services[1]):
            shown = lanes(service)
            self.assertEqual(sorted(shown), ["nvlink0", "shm0", "ucx0", "ucx1"])
            for gpu in range(2):
                lane = shown[f"ucx{gpu}"]
                self.assertIn(f"NCCL 2.28.9 on GPU {gpu}", lane["transport"])
                self.assertGreater(lane["bytes_moved"], 0)
            for value in ("2 GPUs", "gpu_network = nccl", "GPUs 0 to 1"):
                service.await_log(value)
            self.assertNotIn("pinned", service.log())
        ranks.each("leave")
        ranks.__exit__()
        self.await_gone(before)

    def test_memory_of_the_host_and_barriers_go_beside_it(self) -> None:
        self.start()
        ranks = self.ranks([1, 1], "both")
        ranks.each("tensor", name="host", count=COUNT)
        ranks.each("tensor", name="gpu", count=5 * COUNT, device=0)
        for step in range(3):
            for name in ("gpu", "host"):
                for member in ranks.members:
                    member.call("fill", name=name, value=member.rank + float(step))
            for name in ("gpu", "host"):
                ranks.each("post", kind="all_reduce", name=name, key=name)
            ranks.each("post", kind="barrier", key="barrier")
            for key in ("barrier", "host", "gpu"):
                ranks.each("wait", key=key)
            for name in ("gpu", "host"):
                sums = [1.0 + 2.0 * step] * 4
                self.assertEqual(ranks.each("values", name=name), [sums] * 2)

    def test_a_killed_rank_ends_both_nodes_and_all_memory_goes_back(self) -> None:
        self.start()
        before = [mapped(self.services[index]) for index in range(2)]
        ranks = self.ranks([1, 1], "killed")
        ranks.each("tensor", name="w", count=COUNT, device=0)
        ranks.each("post", kind="all_reduce", name="w")
        ranks.each("wait")
        ranks[0].call("post", kind="all_reduce", name="w")
        ranks[0].send("wait")
        ranks[1].kill()  # what waited for the operation would take a minute
        took = await_true(lambda: held(self.services[1])[0] == 0, PATIENCE_S)
        self.assertIsNotNone(took)
        assert took is not None
        self.assertLess(took, SOON_S)
        with self.assertRaises(RankError) as caught:
            ranks[0].receive()
        self.assertEqual(caught.exception.code, "peer lost")
        self.assertIn("rank 1", str(caught.exception))
        ranks[0].kill()
        self.await_gone(before)

    def test_an_nccl_that_hangs_ends_by_the_timeout_on_both_nodes(self) -> None:
        self.start(
            "--operation-timeout-ms", "5000", first={"HEADRACE_NCCL_DOUBLE_FAIL": "hang:3"}
        )
        before = [mapped(self.services[index]) for index in range(2)]
        ranks = self.ranks([1, 1], "hangs")
        ranks.each("tensor", name="w", count=100, device=0)
        for _ in range(2):
            ranks.each("post", kind="all_reduce", name="w")
            ranks.each("wait")
        ranks.each("post", kind="all_reduce", name="w")
        for member in ranks.members:
            with self.assertRaises(RankError) as caught:
                member.call("wait")
            self.assertIn(caught.exception.code, ("timeout", "peer lost"))
            self.assertIn("operation", str(caught.exception))
        for member in ranks.members:
            member.kill()
        self.await_gone(before)
        # Other jobs go on.
        again = self.ranks([1, 1], "again")
        again.each("tensor", name="w", count=100, device=1)
        again.each("fill", name="w", value=2.0)
        again.each("post", kind="all_reduce", name="w")
        again.each("wait")
        self.assertEqual(again.each("values", name="w"), [[4.0] * 4] * 2)

    def test_memory_of_gpus_here_and_of_the_host_there_ends_with_an_error_on_both(self) -> None:
        self.start("--operation-timeout-ms", "5000")
        for job, first in (("at-once", 0), ("later", 2)):
            ranks = self.ranks([1, 1], job)
            for name, device in (("w", 0), ("v", None)):
                for member in ranks.members:
                    place = {} if device is None else {"device": device}
                    member.call("tensor", name=name, count=COUNT, **place)
            for _ in range(first):
                ranks.each("post", kind="all_reduce", name="w")
                ranks.each("wait")
            ranks[0].call("post", kind="all_reduce", name="w")
            ranks[1].call("post", kind="all_reduce", name="v")
            for member in ranks.members:
                with self.assertRaises(RankError) as caught:
                    member.call("wait")
                self.assertNotEqual(caught.exception.code, "ok")
                self.assertNotEqual(str(caught.exception), "")
            ranks.__exit__()
        self.assertEqual(self.services[0].stop(), 0)
        self.assertEqual(self.services[1].stop(), 0)

    def test_nccl_inside_the_nodes_goes_together_with_nccl_between_them(self) -> None:
        self.start("--gpu-lane", "nccl")
        ranks = self.ranks([2, 1], "nccl")
        for member in ranks.members:
            member.call("tensor", name="w", count=5 * COUNT, device=member.rank % 2)
        for step in range(3):
            for member in ranks.members:
                member.call("fill", name="w", value=float(member.rank + step))
            ranks.each("post", kind="all_reduce", name="w", stream=0)
            ranks.each("wait")
            self.assertEqual(ranks.each("values", name="w"), [[3.0 + 3.0 * step] * 4] * 3)
        for service in (self.services[0], self.services[1]):
            self.assertGreater(lanes(service)["nccl0"]["stages_ended"], 0)

    def test_what_encodings_leave_out_is_kept_in_the_memory_of_a_rank(self) -> None:
        self.services = Services(self.cluster, *LIBRARIES, "--rails", "lo")
        ranks = self.ranks([1, 1], "encoded")
        for member in ranks.members:
            member.send("gradients", counts=[6000, 300, 9000], device=0, compress={"*": "int4"})
        for member in ranks.members:
            member.receive()
        for member in ranks.members:
            member.send("apply", iterations=10, seed=member.rank)
        found = [member.receive() for member in ranks.members]
        self.assertEqual(found[0]["applied"], found[1]["applied"])
        errors = []
        for given, applied, left in zip(
            *(
                [sum(values) for values in zip(*(each[name] for each in found), strict=True)]
                for name in ("given", "applied", "left")
            ),
            strict=True,
        ):
            self.assertAlmostEqual(applied / 2 + left, given, delta=1e-4)
            errors.append(abs(applied / 2 - given))
        self.assertGreater(max(errors), 0.01, "nothing was encoded")

    def test_gpus_encode_to_the_bits_of_nodes_whose_hosts_do(self) -> None:
        """Both nodes on GPUs, one of them, and neither: gradients, what is left out, and operations."""
        found = {}
        for coded in ("on", "on"), ("on", "off"), ("off", "off"):
            self.services = Services(self.cluster, *LIBRARIES, "--rails", "lo")
            for index, value in enumerate(coded):
                self.services.start(index, "--gpu-codecs", value)
            ranks = self.ranks([2, 1], "coded")
            found[coded] = self.sums_of(ranks)
            for index, value in enumerate(coded):
                (job,) = self.services[index].ctl_json("jobs")["jobs"]
                compression = job["compression"]
                self.assertGreater(compression["bytes"], 0)
                by_gpus = compression["gpu_bytes"]
                self.assertEqual(by_gpus > 0, value == "on", f"{by_gpus} bytes by GPUs, which are {value}")
                places = self.processors(self.services[index], "coded")
                for codec in ("int8", "powersgd:3"):
                    self.assertEqual((codec, "GPU 0") in places, value == "on", places)
            ranks.__exit__()
        self.assertEqual(found["on", "on"], found["off", "off"])
        self.assertEqual(found["on", "off"], found["off", "off"])

    def processors(self, service: Service, job: str) -> set[tuple[str, str]]:
        """Those that have encoded blocks of the job, each in a codec."""
        with tempfile.NamedTemporaryFile() as file:
            code, said = service.ctl("trace", job, "-o", file.name)
            self.assertEqual(code, 0, said)
            events = json.load(file)["traceEvents"]
        found = [event["args"] for event in events if "coded_on" in event.get("args", {})]
        return {(args["codec"], args["coded_on"]) for args in found}

    def sums_of(self, ranks: Ranks) -> list[Any]:
        """Digests of what a job's iterations and operations in codecs have left each rank."""
        for member in ranks.members:
            device = member.rank % 2
            # Plans that follow what was measured cut elsewhere in each run, and what is cut has scales of its own.
            member.send(
                "gradients",
                counts=[[60, 100], 300, 9000],
                policy="wfbp",
                device=device,
                compress={"*": "int8", "g0": "powersgd:3"},
            )
        for member in ranks.members:
            member.receive()
        for member in ranks.members:
            member.send("apply", iterations=30, seed=member.rank)
        results = [json.dumps(member.receive(), sort_keys=True) for member in ranks.members]
        found: list[Any] = [hashlib.sha256(result.encode()).hexdigest() for result in results]
        for codec in ("bf16", "int8-stochastic"):
            ranks.each("compress", codec=codec)
            for member in ranks.members:
                member.call("tensor", name=codec, count=COUNT, device=member.rank % 2)
                member.call("noise", name=codec, seed=member.rank)
            ranks.each("post", kind="all_reduce", name=codec)
            ranks.each("wait")
            found.append(ranks.each("digest", name=codec))
            self.assertEqual(len(set(found[-1])), 1, codec)
        return found

    def test_nodes_that_differ_are_refused_with_both_names_and_settings(self) -> None:
        self.services = Services(self.cluster, *LIBRARIES, "--rails", "lo")
        self.services.start(0, "--gpu-network", "nccl")
        ranks = self.ranks([1, 1], "differs")
        ranks.each("tensor", name="w", count=100, device=0)
        ranks[1].call("post", kind="all_reduce", name="w")
        with self.assertRaises(RankError) as caught:
            ranks[1].call("wait")
        self.assertEqual(caught.exception.code, "mismatch")
        for part in (
            "node b carries GPU memory to other nodes through the host's memory",
            "(gpu_network = staged)",
            "node a by NCCL from 2 GPUs (gpu_network = nccl)",
            "give both the same gpu_network",
        ):
            self.assertIn(part, str(caught.exception))


class Refusals(unittest.TestCase):
    """What cannot carry GPUs' memory by NCCL does not start, and says what to do."""

    def refused(self, *flags: str, **settings: str) -> str:
        with self.assertRaises(StartError) as caught:
            Service(
                *("--node-address", "127.0.0.1:0", "--gpu-network", "nccl", *flags),
                environment=machine(**settings),
            ).__enter__()
        return str(caught.exception)

    def test_without_gpus(self) -> None:
        said = self.refused("--cuda-library", "/nonexistent/libcuda.so.1")
        self.assertIn("gpu_network", said)
        self.assertIn("/nonexistent/libcuda.so.1", said)
        self.assertIn("staged", said)

    def test_without_nccl(self) -> None:
        said = self.refused("--cuda-library", DOUBLE, "--nccl-library", "/nonexistent/libnccl.so.2")
        for value in ("gpu_network = nccl", "staged"):
            self.assertIn(value, said)
        self.assertIn("/nonexistent/libnccl.so.2", said)

    def test_with_more_blocks_of_threads_than_run_side_by_side(self) -> None:
        said = self.refused(*LIBRARIES, "--gpu-ctas", "45")
        for value in ("gpu_network", "gpu_ctas is 45", "GPU 0", "132"):
            self.assertIn(value, said)
        self.assertIn("44", said)
        with Service(
            *("--node-address", "127.0.0.1:0", "--gpu-network", "nccl", *LIBRARIES, "--gpu-ctas", "44"),
            environment=machine(),
        ):
            pass

    def test_where_launches_of_nccl_would_wait_for_each_other(self) -> None:
        with self.assertRaises(StartError) as caught:
            Service(
                *("--node-address", "127.0.0.1:0", "--gpu-network", "nccl", *LIBRARIES),
                environment={**machine(), "NCCL_LAUNCH_ORDER_IMPLICIT": "1"},
            ).__enter__()
        self.assertIn("NCCL_LAUNCH_ORDER_IMPLICIT is 1", str(caught.exception))
        self.assertIn("unset", str(caught.exception))

    def test_with_more_gpus_than_there_can_be_lanes(self) -> None:
        said = self.refused(*LIBRARIES, DEVICES="9")
        for value in ("9 GPUs", "8 lanes"):
            self.assertIn(value, said)
        self.assertIn("CUDA_VISIBLE_DEVICES", said)


if __name__ == "__main__":
    unittest.main()
