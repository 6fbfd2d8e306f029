"""Images are built and a pod is run: a training run through the service, whatever the pod's containers
share; metrics from outside; a killed trainer, a restarted service, an orderly end.

usage: pod_test.py [unittest's arguments]; HEADRACE_BUILD names the build tree. Exits with 77, and the
reason, where images or containers cannot be made.
"""

from __future__ import annotations

import os
import sys
import time
import unittest
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent)]
sys.dont_write_bytecode = True

import images
from container import Container
from pod import Pod
from support.directory import OwnDirectory
from support.service import build_directory

TRAIN = ("/usr/bin/python3", "/train.py")
LIMIT_S = 60.0


def until(condition: Callable[[], bool], limit_s: float, what: str) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {limit_s:.0f} s: {what}")
        time.sleep(0.02)


def await_steps(trainer: Container, count: int) -> None:
    def stepped() -> bool:
        assert trainer.ended() is None, trainer.text()
        return trainer.text().count("step ") >= count

    until(stepped, LIMIT_S, f"{count} steps of the trainer:\n{trainer.text()}")


class PodTest(unittest.TestCase):
    """Images are built once."""

    service_root: Path
    trainer_root: Path

    @classmethod
    def setUpClass(cls) -> None:
        own = OwnDirectory("headrace-images-")
        cls.addClassCleanup(own.close)
        built = images.Images(Path(own.path) / "storage")
        cls.addClassCleanup(built.close)
        build = Path(build_directory())
        cls.service_root = built.mount(built.build_service(build))
        cls.trainer_root = built.mount(built.build_trainer(build))
        program = cls.trainer_root / "train.py"
        program.write_text((HERE / "train.py").read_text())
        program.chmod(0o644)

    def pod(self, shares_pids: bool = False) -> Pod:
        pod = Pod(self.service_root, self.trainer_root, shares_pids)
        self.enterContext(pod)
        return pod

    def require_fitted(self, trainer: Container) -> None:
        self.assertEqual(trainer.wait(LIMIT_S), 0, trainer.text())
        self.assertIn("fitted 3.000 -1.000", trainer.text())

    def test_training_runs_whatever_pids_the_containers_have(self) -> None:
        shell = ("/bin/sh", "-c", f"{' '.join(TRAIN)} 150; exit $?")
        for name, shares_pids, command in (
            ("equal pids in two namespaces", False, (*TRAIN, "150")),
            ("different pids in two namespaces", False, shell),
            ("one namespace", True, (*TRAIN, "150")),
        ):
            with self.subTest(name), Pod(self.service_root, self.trainer_root, shares_pids) as pod:
                pod.start_service()
                self.require_fitted(pod.start_trainer(*command))

    def test_the_service_image_holds_no_shell_and_runs_as_nobody(self) -> None:
        self.assertFalse((self.service_root / "bin" / "sh").exists())
        self.assertEqual(
            sorted(path.name for path in (self.service_root / "usr" / "bin").iterdir()),
            ["headracectl", "headraced"],
        )
        pod = self.pod()
        service = pod.start_service()
        shell = service.execute("/bin/sh", "-c", "true")
        self.assertNotEqual(shell.returncode, 0)
        status = service.execute("/usr/bin/headracectl", "status")
        self.assertEqual(status.returncode, 0, status.stderr)
        self.assertEqual((pod.volume / "headrace.sock").stat().st_uid, 64321)

    def test_metrics_are_scraped_from_outside_the_pod(self) -> None:
        pod = self.pod()
        pod.start_service()
        trainer = pod.start_trainer(*TRAIN, "100000")
        await_steps(trainer, 20)
        metrics = pod.fetch("/metrics")
        self.assertRegex(metrics, r'headrace_job_bytes_total\{[^}]*job="line-0"[^}]*\} [1-9]')
        self.assertIn("ok", pod.fetch("/healthz").lower())

    def test_a_killed_trainer_costs_no_memory(self) -> None:
        pod = self.pod()
        service = pod.start_service()
        trainer = pod.start_trainer(*TRAIN, "100000")
        await_steps(trainer, 20)
        self.assertEqual(len(pod.jobs(service)), 1)
        trainer.signal("KILL")
        until(lambda: pod.jobs(service) == [], LIMIT_S, "the killed trainer's job is gone")
        self.assertIsNone(service.ended())
        again = pod.start_trainer(*TRAIN, "100")
        self.require_fitted(again)

    def test_a_restarted_service_costs_one_named_error(self) -> None:
        pod = self.pod()
        service = pod.start_service()
        trainer = pod.start_trainer(*TRAIN, "400", "reconnect")
        await_steps(trainer, 20)
        service.signal("KILL")
        service.wait(LIMIT_S)
        pod.start_service()
        self.require_fitted(trainer)
        self.assertRegex(trainer.text(), r"step \d+: .*service")

    def test_an_ended_service_drains_and_exits_with_nothing_to_say(self) -> None:
        pod = self.pod()
        service = pod.start_service()
        self.require_fitted(pod.start_trainer(*TRAIN, "100"))
        service.signal("TERM")
        self.assertEqual(service.wait(LIMIT_S), 0, service.text())
        self.assertFalse((pod.volume / "headrace.sock").exists())


if __name__ == "__main__":
    if reason := images.missing():
        print(f"skipped: {reason}")
        sys.exit(77)
    os.umask(0o022)
    unittest.main(verbosity=2)
