"""headracectl replay against a real service: what it prints, and that it ends when things break."""

import json
import os
import signal
import subprocess
import tempfile
import unittest

from ranks import Service
from support.cluster import Cluster, Services
from support.patience import until
from support.policies import POLICIES

PROFILE = {
    "format": "headrace-profile/1",
    "model": "toy",
    "dtype": "float32",
    "tensors": [
        {"name": "conv", "elements": 50_001, "backward_s": 0.004, "forward_s": 0.003},
        {"name": "norm", "elements": 64, "backward_s": 0.0, "forward_s": 0.0},
        {"name": "fc", "elements": 300_000, "backward_s": 0.004, "forward_s": 0.005},
    ],
}


def program() -> str:
    return os.path.join(os.environ["HEADRACE_BUILD"], "headracectl")


class Replay(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.service = Service()
        self.service.__enter__()
        self.addCleanup(self.service.close)
        self.profile = self.write(PROFILE)

    def write(self, profile: dict) -> str:
        path = os.path.join(self.folder, "profile.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(profile, file)
        return path

    def command(self, *arguments: str) -> list[str]:
        socket = ["--socket", self.service.socket]
        return [program(), *socket, "replay", self.profile, *arguments]

    def replay(self, *arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            self.command(*arguments),
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    def measured(self, *arguments: str) -> dict:
        run = self.replay("--json", *arguments)
        self.assertEqual(run.returncode, 0, run.stderr + self.service.log())
        return json.loads(run.stdout)

    def test_plays_every_policy_and_finds_every_average_right(self):
        for policy in POLICIES:
            with self.subTest(policy=policy):
                measured = self.measured("--policy", policy, "--iterations", "6")
                self.assertEqual(measured["policy"], policy)
                self.assertGreaterEqual(measured["plan_version"], 2)
                self.assertEqual(len(measured["iterations_s"]), 6)
                self.assertEqual(measured["values_checked"], 3 + 6)
                # Computing alone takes 16 ms; that is all sleep, so it cannot take less.
                self.assertGreaterEqual(measured["least_s"], 0.016)
                self.assertGreater(measured["predicted_s"], 0.015)
                self.assertIsNone(measured["rank"])

    def test_scales_and_jitters_computing_on_several_ranks(self):
        measured = self.measured(
            *("--ranks", "3", "--scale", "2", "--jitter", "0.2", "--iterations", "5")
        )
        self.assertEqual(measured["world_size"], 3)
        self.assertGreaterEqual(measured["least_s"], 0.016 * 2 * 0.8)
        self.assertGreater(measured["backward_s"], 0.016)

    def test_averages_half_precision_exactly(self):
        self.write({**PROFILE, "dtype": "bfloat16"})
        self.assertEqual(self.measured("--iterations", "3")["values_checked"], 6)

    def test_writes_a_trace_of_ranks_and_blocks(self):
        path = os.path.join(self.folder, "trace.json")
        run = self.replay("--iterations", "4", "--trace", path)
        self.assertEqual(run.returncode, 0, run.stderr)
        with open(path, encoding="utf-8") as file:
            slices = json.load(file)["traceEvents"]
        names = {slice["name"] for slice in slices}
        self.assertLessEqual({"backward fc", "forward conv", "block 1"}, names)

    def test_plays_one_rank_beside_another_process(self):
        common = ("--job", "two", "--world-size", "2", "--iterations", "4", "--json")
        other = subprocess.Popen(
            self.command("--rank", "1", *common),
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            first = self.measured("--rank", "0", *common)
            second = json.loads(other.communicate(timeout=60)[0])
        finally:
            other.kill()
            other.wait()
        self.assertEqual((first["rank"], second["rank"]), (0, 1))
        self.assertEqual(first["plan_hash"], second["plan_hash"])
        self.assertEqual(first["warmup_iterations"], second["warmup_iterations"])

    def test_names_the_cause_when_another_rank_dies(self):
        common = ("--job", "two", "--world-size", "2", "--iterations", "100000")
        ranks = [
            subprocess.Popen(
                self.command("--rank", str(rank), *common),
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        try:
            trains = "it trains"
            until(lambda: any(job["blocks_ended"] for job in self.service.ctl_json("jobs")["jobs"]), trains)
            ranks[1].send_signal(signal.SIGKILL)
            ranks[1].communicate()
            errors = ranks[0].communicate(timeout=50)[1]  # before operations expire
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
        self.assertEqual(ranks[0].returncode, 1)
        self.assertIn(f"pid {ranks[1].pid}", errors)

    def test_refuses_what_makes_no_sense(self):
        for arguments, words in (
            (("--rank", "0"), "--job"),
            (("--rank", "0", "--job", "a"), "--world-size"),
            (("--rank", "2", "--job", "a", "--world-size", "2"), "world size - 1"),
            (("--world-size", "2"), "--rank"),
            (("--nodes", "/a,/b,/c"), "--ranks"),
            (("--policy", "fastest"), "fastest"),
            (("--jitter", "1.5"), "1.5"),
        ):
            with self.subTest(arguments=arguments):
                run = self.replay(*arguments)
                self.assertEqual(run.returncode, 2, run.stderr)
                self.assertIn(words, run.stderr)

    def test_says_what_it_could_not_reach(self):
        run = self.replay("--nodes", "/nowhere/socket")
        self.assertEqual(run.returncode, 1)
        self.assertIn("/nowhere/socket", run.stderr)
        self.profile = "/nowhere/profile.json"
        run = self.replay()
        self.assertEqual(run.returncode, 1)
        self.assertIn("/nowhere/profile.json", run.stderr)


class ReplayOverNodes(unittest.TestCase):
    def test_spreads_its_ranks_over_the_services_of_several_nodes(self):
        with Cluster(nodes=2, loopback=True) as cluster, tempfile.TemporaryDirectory() as folder:
            services = Services(cluster)
            profile = os.path.join(folder, "profile.json")
            with open(profile, "w", encoding="utf-8") as file:
                json.dump(PROFILE, file)
            sockets = ",".join(services[i].socket for i in range(2))
            command = [program(), "--json", "replay", profile, "--iterations", "5"]
            command += ["--ranks", "4", "--nodes", sockets]
            command += ["--rendezvous", services.rendezvous]
            run = subprocess.run(
                command, capture_output=True, text=True, timeout=100, check=False
            )
            self.assertEqual(run.returncode, 0, run.stderr + services[0].log())
            measured = json.loads(run.stdout)
            self.assertEqual(measured["world_size"], 4)
            self.assertEqual(measured["values_checked"], 3 + 5)
            for service in (services[0], services[1]):
                service.await_log("rank [0-3] of 4 attached")

    def test_plays_every_policy_over_a_parameter_server(self):
        # Two nodes with a rank each, and a third that has no ranks and sums.
        with Cluster(nodes=3, loopback=True) as cluster, tempfile.TemporaryDirectory() as folder:
            services = Services(cluster, servers=1)
            profile = os.path.join(folder, "profile.json")
            with open(profile, "w", encoding="utf-8") as file:
                json.dump(PROFILE, file)
            sockets = ",".join(services[i].socket for i in range(2))
            command = [program(), "--json", "replay", profile, "--iterations", "4", "--scale", "0.5"]
            command += ["--nodes", sockets, "--rendezvous", services.rendezvous]

            def played(policy: str, architecture: str) -> dict:
                options = ["--policy", policy, "--architecture", architecture]
                run = subprocess.run(
                    [*command, *options, "--job", f"{policy}-by-{architecture}"],
                    capture_output=True, text=True, timeout=100, check=False,
                )  # fmt: skip
                self.assertEqual(run.returncode, 0, run.stderr + services[0].log())
                return json.loads(run.stdout)

            for policy in POLICIES:
                with self.subTest(policy=policy):
                    measured = played(policy, "parameter-server")
                    self.assertEqual(measured["policy"], policy)
                    self.assertEqual(measured["values_checked"], 3 + 4)
            played("exact", "all-reduce")
            # As the leader says; in the job by all-reduce there is no server.
            met = services[0].await_log("nodes have met", len(POLICIES) + 1)
            self.assertEqual(len(met), len(POLICIES) + 1)
            for line in met:
                self.assertEqual("-by-parameter-server:" in line, "c (server)" in line, line)

    def test_names_the_server_that_is_missing(self):
        with Cluster(nodes=2, loopback=True) as cluster, tempfile.TemporaryDirectory() as folder:
            services = Services(cluster)
            profile = os.path.join(folder, "profile.json")
            with open(profile, "w", encoding="utf-8") as file:
                json.dump(PROFILE, file)
            command = [program(), "replay", profile, "--architecture", "parameter-server"]
            command += ["--timeout", "2", "--nodes", ",".join(services[i].socket for i in range(2))]
            run = subprocess.run(
                [*command, "--rendezvous", services.rendezvous],
                capture_output=True, text=True, timeout=100, check=False,
            )  # fmt: skip
            self.assertEqual(run.returncode, 1, run.stderr)
            self.assertIn("server", run.stderr)

    def test_refuses_an_architecture_that_there_is_not(self):
        run = subprocess.run(
            [program(), "replay", "profile.json", "--architecture", "ring"],
            capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
        self.assertEqual(run.returncode, 2, run.stderr)
        for word in ("ring", "all-reduce", "parameter-server"):
            self.assertIn(word, run.stderr)


if __name__ == "__main__":
    unittest.main()
