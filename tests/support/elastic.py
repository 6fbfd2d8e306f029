"""Training runs whose ranks may be lost, and to which others come: processes of e2e/shrink_train.py, or of another
program of that folder.
"""

from __future__ import annotations

import json
import os
import subprocess
import unittest
from collections.abc import Sequence
from typing import Any

from support.service import Service, rank_environment

LIMIT_S = 90.0  # of whatever is to succeed, on a machine that is busy
GRACE_S = 1.0
TRAINERS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e")


class Run:
    """A training run, one process for each of ``services``; all are ended with the test."""

    def __init__(
        self,
        services: Sequence[Service],
        job: str,
        members: Sequence[int] | None = None,
        rendezvous: str = "",
        min_world: int = 1,
        role: str = "rank",
        slow_bound: str = "",
        trainer: str = "shrink_train.py",
        **asked: Any,
    ) -> None:
        asked["members"] = list(members or range(len(services)))
        self.programs = [
            service.place.start(
                ["/usr/bin/python3", "-B", os.path.join(TRAINERS, trainer), json.dumps(asked)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=rank_environment(
                    service.socket,
                    job,
                    rendezvous,
                    rank,
                    len(services),
                    LIMIT_S,
                    HEADRACE_SHRINK=str(min_world),
                    HEADRACE_SHRINK_GRACE_MS=str(int(1000 * GRACE_S)),
                    HEADRACE_ROLE=role,
                    HEADRACE_SLOW=slow_bound,
                ),
            )
            for rank, service in enumerate(services)
        ]

    def close(self) -> None:
        for program in self.programs:
            program.end()
            program.stdout.close()
            program.stderr.close()

    def ends(self, lost: Sequence[int] = ()) -> dict[int, dict[str, Any]]:
        """By the rank of the beginning, what each of the others printed."""
        said = {}
        for rank, program in enumerate(self.programs):
            if rank in lost:
                program.wait(timeout=LIMIT_S)
                continue
            out, complaints = program.communicate(timeout=LIMIT_S)
            if program.returncode != 0:
                raise AssertionError(f"rank {rank} ended with {program.returncode}: {complaints}")
            said[rank] = json.loads(out.splitlines()[-1])
        return said


class ElasticCase(unittest.TestCase):
    """Training runs that end with the test; ``trained`` is said to all of them."""

    trained: dict[str, Any] = {}

    def train(self, services: Sequence[Service], job: str, **asked: Any) -> Run:
        run = Run(services, job, **{**self.trained, **asked})
        self.addCleanup(run.close)
        return run
