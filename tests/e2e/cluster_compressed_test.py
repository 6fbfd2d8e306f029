"""Gradients that cross between two nodes encoded: equal bits everywhere, and nothing is lost over time."""

from __future__ import annotations

import os
import sys
import time
import unittest

import numpy

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, ".."))
import torchrun
from support.cluster import Cluster, Services
from support.places import Program
from support.service import Service
from support.unittests import run_tests

SUMS_BYTES = 64 * 128 * 4
PROGRAM = os.path.join(HERE, "cluster_compressed.py")


class Compressed(unittest.TestCase):
    def await_files(self, names: list[str], running: list[Program]) -> None:
        """Until all are there and whole."""
        deadline = time.monotonic() + torchrun.LIMIT_S
        while not all(os.path.exists(name) and os.path.getsize(name) == SUMS_BYTES for name in names):
            for each in running:
                self.assertIsNone(each.poll(), "a rank has ended")
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)

    def check_shown(self, compression: dict, ratio: float) -> None:
        self.assertAlmostEqual(compression["ratio"], ratio, places=3)
        self.assertEqual(compression["saved_bytes"], compression["bytes"] - compression["sent_bytes"])
        self.assertGreater(compression["encode_ns"], 0)
        self.assertGreater(compression["decode_ns"], 0)
        # Of the same matrix of noise in each iteration, four of 64 directions in each, more waits than is given.
        self.assertTrue(0 < compression["residual"] < 1 / ratio, compression)

    def await_plan(self, service, job: str) -> dict:
        """The job's plan, once one is in force and shown."""
        deadline = time.monotonic() + torchrun.LIMIT_S
        while time.monotonic() < deadline:
            for planned in service.ctl_json("plan", job)["jobs"]:
                return planned["plan"]
            time.sleep(0.05)
        self.fail(f"job {job} has no plan")

    def test_sums_are_the_same_bits_and_what_they_lack_is_kept_with_a_rank_of_each_node(self) -> None:
        # 4 bits, and a scale for each 256; 4 numbers for each row and column of 64 by 128.
        shares = {"int4": 132 / 1024, "powersgd:4": 4 * (64 + 128) / (64 * 128)}
        for ranks, codec in ((1, "int4"), (2, "int4"), (2, "powersgd:4")):
            with self.subTest(ranks=ranks, codec=codec), Cluster(nodes=2) as cluster:
                folder = os.path.join(cluster.directory, "results")
                os.mkdir(folder)
                services = Services(cluster)
                names = [os.path.join(folder, f"sums.{rank}") for rank in range(2 * ranks)]
                running = [torchrun.start(services, i, ranks, folder, PROGRAM, folder, codec) for i in range(2)]
                self.await_files(names, running)
                (job,) = services[0].ctl_json("jobs")["jobs"]
                self.check_shown(job["compression"], shares[codec])
                plan = self.await_plan(services[0], job["name"])
                self.assertEqual((plan["codec"], plan["compressed_tensors"]), (codec, 1))
                code, text = services[1].ctl("compress", job["name"], "none")
                self.assertEqual(code, 0, text)
                for each in running:
                    output = each.communicate(timeout=torchrun.LIMIT_S)[0]
                    self.assertEqual(each.returncode, 0, output)
                sums = [numpy.fromfile(name, numpy.float32) for name in names]
                for other in sums[1:]:
                    self.assertEqual(sums[0].tobytes(), other.tobytes())

    def test_servers_sum_what_is_encoded_and_keep_what_they_leave_out(self) -> None:
        with Cluster(nodes=4) as cluster:
            folder = os.path.join(cluster.directory, "results")
            os.mkdir(folder)
            services = Services(cluster, "--architecture", "parameter-server", servers=2)
            names = [os.path.join(folder, f"sums.{rank}") for rank in range(2)]
            program = (PROGRAM, folder, "int4", "served")
            running = [torchrun.start(services, i, 1, folder, *program, nodes=2) for i in range(2)]
            self.await_files(names, running)
            (job,) = services[0].ctl_json("jobs")["jobs"]
            # What goes to a server also says of what gradients it is.
            self.assertAlmostEqual(job["compression"]["ratio"], 132 / 1024, delta=0.01)
            self.assertGreater(job["compression"]["residual"], 0)
            self.assert_served([services[2], services[3]], job["name"])
            self.assertEqual(services[0].ctl_json("jobs")["served"], [])
            plan = self.await_plan(services[0], job["name"])
            self.assertEqual((plan["codec"], plan["compressed_tensors"]), ("int4", 1))
            self.assertEqual(services[1].ctl("compress", job["name"], "none")[0], 0)
            for each in running:
                output = each.communicate(timeout=torchrun.LIMIT_S)[0]
                self.assertEqual(each.returncode, 0, output)
            sums = [numpy.fromfile(name, numpy.float32) for name in names]
            self.assertEqual(sums[0].tobytes(), sums[1].tobytes())

    def assert_served(self, servers: list[Service], job: str) -> None:
        """The servers show the job; whichever has the weight's sums shows what it leaves out of them."""
        deadline = time.monotonic() + 20
        encoded: list[dict] = []
        while not encoded and time.monotonic() < deadline:  # it is shown once a second
            shown = [row for server in servers for row in server.ctl_json("jobs")["served"]]
            encoded = [row for row in shown if row["encoded_bytes"] > 0 and len(shown) == len(servers)]
        self.assertTrue(encoded, "no server has encoded anything")
        self.assertEqual([(row["name"], row["world_size"]) for row in shown], [(job, 2)] * len(servers))
        for row in encoded:
            self.assertGreater(row["kept_bytes"], 0)
            self.assertTrue(0 < row["residual"] < 1, row)
        self.assertIn("SUMS FOR", servers[0].ctl("jobs")[1])

    def test_operations_are_summed_by_servers_in_the_codec_that_they_have(self) -> None:
        with Cluster(nodes=4) as cluster:
            folder = os.path.join(cluster.directory, "results")
            os.mkdir(folder)
            services = Services(cluster, "--architecture", "parameter-server", servers=2)
            program = (os.path.join(HERE, "cluster_compressed_operations.py"), folder)
            running = [torchrun.start(services, i, 1, folder, *program, nodes=2) for i in range(2)]
            for each in running:
                output = each.communicate(timeout=torchrun.LIMIT_S)[0]
                self.assertEqual(each.returncode, 0, output)
            sums = [numpy.fromfile(os.path.join(folder, f"sums.{rank}"), numpy.float32) for rank in range(2)]
            self.assertEqual(sums[0].tobytes(), sums[1].tobytes())

    def test_a_second_job_draws_the_same_by_chance(self) -> None:
        """On services that have had another one: they count the jobs that they open."""
        with Cluster(nodes=2) as cluster:
            services = Services(cluster)
            runs = []
            for number in range(2):
                folder = os.path.join(cluster.directory, f"run{number}")
                os.mkdir(folder)
                program = (PROGRAM, folder, "int8-stochastic")
                names = [os.path.join(folder, f"sums.{rank}") for rank in range(2)]
                running = [torchrun.start(services, i, 1, folder, *program) for i in range(2)]
                self.await_files(names, running)
                (job,) = services[0].ctl_json("jobs")["jobs"]
                self.assertEqual(services[0].ctl("compress", job["name"], "none")[0], 0)
                for each in running:
                    output = each.communicate(timeout=torchrun.LIMIT_S)[0]
                    self.assertEqual(each.returncode, 0, output)
                runs.append(numpy.fromfile(names[0], numpy.float32).tobytes())
            self.assertEqual(runs[0], runs[1])


if __name__ == "__main__":
    run_tests()
