"""What kubelet does when it ends a container of the manifests: the preStop command beside the service, then
SIGTERM, then, after the grace period, SIGKILL, which must not be needed.

The container has the image's files, read-only, and the manifest's arguments, environment, user and mounts.
On the node one job can reconnect and one cannot. The next service takes the place of the ended one.

usage: stop_test.py [unittest's arguments]; HEADRACE_BUILD names the build tree. Exits with 77, and the
reason, where containers cannot be run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import unittest
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent.parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent), str(ROOT), str(ROOT / "tests/golden/kubernetes")]
sys.dont_write_bytecode = True

from container import Container, Spec
from kustomize import render
from start_test import FIELDS, IMAGES, MANIFESTS, Machine, environment_of, expand, folders, pods
from support.cluster.requirements import missing
from support.directory import OwnDirectory
from support.places import HERE as THIS_PLACE
from support.places import Program, children_of
from support.ranks import RankError, Ranks
from support.service import build_directory, client_environment

LIMIT_S = 60.0
# Unless an argument says otherwise (service/config/config_keys.cc), and what the end itself may take beside.
DRAIN_TIMEOUT_S, MARGIN_S = 5.0, 10.0
GRACE_S = 30.0  # Kubernetes' own
# Longer than other jobs may hold the drain up, and the next service takes to come.
RECONNECT_S = 150.0


def containers() -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """The manifests that run headraced: a pod's name, its spec and the container."""
    return [
        (pod, spec, container)
        for folder in folders()
        for document in render(folder)
        if "spec" in document
        for pod, spec in pods(document)
        for container in spec.get("initContainers", []) + spec["containers"]
        if container["image"] in IMAGES and "command" not in container
    ]


def pre_stop(container: dict[str, Any]) -> list[str]:
    return container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", [])


def drain_s(command: list[str]) -> float:
    """For how long the command may wait for jobs that cannot reconnect."""
    return float(command[command.index("--deadline") + 1]) if command else 0.0


class Node:
    """The place of a stopped container's pod: a network with the node's address, files, the socket's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "image"
        subprocess.run(
            ["sh", str(ROOT / "containers/images/tree"), build_directory(), str(self.root)],
            check=True, capture_output=True, timeout=300,
        )  # fmt: skip
        self._holder = THIS_PLACE.start(
            ["unshare", "--net", "--fork", "--kill-child", "sleep", "infinity"],
            stdin=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + LIMIT_S
        while not (held := children_of(self._holder.pid)):
            assert time.monotonic() < deadline, "unshare made no network"
            time.sleep(0.01)
        self.network = f"/proc/{held[0]}/ns/net"
        inside = ["nsenter", f"--net={self.network}", "ip"]
        for command in (["link", "set", "lo", "up"], ["address", "add", FIELDS["status.hostIP"], "dev", "lo"]):
            subprocess.run([*inside, *command], check=True, capture_output=True)

    def close(self) -> None:
        self._holder.end()

    def start(self, pod: str, spec: dict[str, Any], container: dict[str, Any], count: int) -> Container:
        environment = environment_of(container, pod)
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        machine = Machine(self.folder)
        mounts: dict[str, Path] = {}
        user = {**spec.get("securityContext", {}), **container.get("securityContext", {})}["runAsUser"]
        for mounted in container["volumeMounts"]:
            place = machine.mount(pod, volumes[mounted["name"]], [FIELDS["spec.nodeName"]])
            mounts[mounted["mountPath"]] = place
            shutil.chown(place, user, user)
            for file in place.iterdir():
                shutil.chown(file, "root", spec["securityContext"]["fsGroup"])
        made = Container(
            Spec(
                name=FIELDS["spec.nodeName"], root=self.root, user=user, volumes=mounts,
                command=["/usr/bin/headraced", *(expand(each, environment) for each in container["args"])],
                environment={"PATH": "/usr/bin", **environment}, joins={"network": self.network},
            ),
            f"headrace-stop-{os.getpid()}-{count}", self.folder,
        )  # fmt: skip
        deadline = time.monotonic() + LIMIT_S
        while made.execute(*container["startupProbe"]["exec"]["command"]).returncode != 0:
            assert made.ended() is None and time.monotonic() < deadline, made.text()
            time.sleep(0.2)
        return made


class Attached:
    """What a test's rank asks of a service."""

    place = THIS_PLACE

    def __init__(self, socket: Path) -> None:
        self.socket = str(socket)


class Stop(unittest.TestCase):
    def test_every_grace_period_is_longer_than_what_the_service_takes(self) -> None:
        found = containers()
        self.assertGreaterEqual(len(found), 8)
        for pod, spec, container in found:
            self.assertFalse([each for each in container["args"] if "drain-timeout" in each], pod)
            needed = drain_s(pre_stop(container)) + DRAIN_TIMEOUT_S + MARGIN_S
            self.assertGreaterEqual(spec.get("terminationGracePeriodSeconds", GRACE_S), needed, pod)

    def test_a_service_for_many_pods_is_drained_first(self) -> None:
        drained = {pod for pod, _, container in containers() if pre_stop(container)}
        # A sidecar ends after its pod's trainer, so that nobody is left who could move over.
        self.assertEqual(drained, {pod for pod, spec, _ in containers() if spec.get("hostNetwork")})
        self.assertTrue(drained)

    def test_jobs_move_over_or_end_in_time(self) -> None:
        for number, (pod, spec, container) in enumerate(containers()):
            if pre_stop(container):
                with self.subTest(pod=pod, number=number):
                    self.stop(pod, spec, container)

    def stop(self, pod: str, spec: dict[str, Any], container: dict[str, Any]) -> None:
        own = OwnDirectory("headrace-stop-")
        self.addCleanup(own.close)
        node = Node(Path(own.path))
        self.addCleanup(node.close)
        service = node.start(pod, spec, container, 1)
        self.addCleanup(service.close)
        socket = service.spec.volumes["/run/headrace"] / "headrace.sock"
        moves = self.trainer(socket)
        stays = Ranks([Attached(socket)] * 2, 2, job="stays")
        self.addCleanup(stays.__exit__)
        stays.each("tensor", name="w", count=1000)

        grace_s = spec["terminationGracePeriodSeconds"]
        command = pre_stop(container)
        begin = time.monotonic()
        told = service.execute(*command, limit_s=grace_s)
        hook_s = time.monotonic() - begin
        self.assertEqual(told.returncode, 0, f"the hook would be called failed: {told}")
        self.assertIn("job stays", told.stderr)
        self.assertNotIn("line-0", told.stderr)
        self.assertLess(hook_s, drain_s(command) + DRAIN_TIMEOUT_S)
        service.terminate()
        self.assertEqual(service.wait(grace_s - hook_s), 0, service.text())
        self.assertTrue(service.text().rstrip().endswith("stopped"), service.text())
        with self.assertRaises(RankError) as lost:
            stays[0].call("post", kind="all_reduce", name="w")
            stays[0].call("wait")
        self.assertEqual(lost.exception.code, "unavailable")

        again = node.start(pod, spec, container, 2)
        self.addCleanup(again.close)
        said, _ = moves.communicate(timeout=LIMIT_S)
        self.assertRegex(said, r"step \d")
        self.assertIn("fitted 3.000 -1.000", said)
        self.assertEqual(moves.returncode, 0, said)

    def trainer(self, socket: Path) -> Program:
        """A job whose ranks reconnect."""
        program = THIS_PLACE.start(
            ["/usr/bin/python3", "-B", str(HERE / "train.py"), "300", "reconnect"],
            env=client_environment(HEADRACE_SOCKET=str(socket), WAIT_S=str(RECONNECT_S)),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self.addCleanup(program.stdout.close)
        self.addCleanup(program.end)
        while not (line := program.stdout.readline()).startswith("step 10\n"):
            self.assertNotEqual(line, "", "the trainer ended")
        return program


def lack() -> str:
    """Why this cannot be tried here; empty when it can."""
    if reason := missing():
        return reason
    return "" if shutil.which("runc") else "no runc"


if __name__ == "__main__":
    if reason := lack():
        print(f"skipped: {reason}")
        sys.exit(77)
    assert MANIFESTS.is_dir()
    unittest.main(verbosity=2)
