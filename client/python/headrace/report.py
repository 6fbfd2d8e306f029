"""What a run gained: time that ranks waited for gradients, and time that was hidden, from the service's board."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Mapping
from typing import Any

LOOK_S = 0.5
_JOBS_MAX = 64
_LINE_BYTES_MAX = 1 << 22
_END_LIMIT_S = 10.0


class Watch:
    """Looks at a service's jobs until close(), and remembers each job's last state.

    A job leaves the board when it ends, so what is remembered of it is at most LOOK_S older than its end.
    """

    def __init__(
        self,
        headracectl: str,
        environment: Mapping[str, str],
        before_start: Callable[[], None],
    ) -> None:
        self._process = subprocess.Popen(
            [headracectl, "jobs", "--json", "--watch", str(LOOK_S)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=dict(environment),
            preexec_fn=before_start,
            start_new_session=True,
        )
        self._jobs: dict[int, dict[str, Any]] = {}
        self._left_out = 0
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        while line := self._process.stdout.readline(_LINE_BYTES_MAX):
            try:
                jobs = json.loads(line)["jobs"]
            except (ValueError, KeyError, TypeError):
                continue  # the line of a program that was ended while it wrote
            for job in jobs:
                self._remember(job)

    def _remember(self, job: dict[str, Any]) -> None:
        self._jobs[job["id"]] = job
        if len(self._jobs) > _JOBS_MAX:
            del self._jobs[next(iter(self._jobs))]
            self._left_out += 1

    def close(self) -> None:
        """Ends the looking; text() tells all from then on."""
        self._process.terminate()
        try:
            self._process.wait(_END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._thread.join(_END_LIMIT_S)

    def text(self) -> str:
        """The report, some lines for each job."""
        if not self._jobs:
            return f"headrace run: no job was seen in this service (looked every {LOOK_S:g} s)"
        lines = [
            f"headrace run: what was gained on this node, each job as it was last seen "
            f"(looked every {LOOK_S:g} s)"
        ]
        for job in self._jobs.values():
            lines += of_job(job)
        if self._left_out:
            lines.append(f"{self._left_out} earlier jobs are left out")
        return "\n".join(lines)


def of_job(job: Mapping[str, Any]) -> list[str]:
    """The lines of one job, an entry of `headracectl jobs --json`."""
    # A rank that has left in order is a reason why later operations fail; the job may well have ended without.
    failure = f", failed: {job['failure']}" if job["state"] == "failed" else ""
    lines = [f"job {job['name']}: {_count(job['world_size'], 'rank')}{failure}"]
    if "iterations" not in job:
        return [
            *lines,
            "  headracectl is of an older release, which does not tell what was waited",
        ]
    iterations = job["iterations"]
    operations = (
        f"  {_count(job['operations_ended'], 'operation')} of their own"
        f", {job['bytes_moved'] / 1e6:.1f} MB moved in all"
    )
    if iterations is None:
        return [
            *lines,
            operations,
            "  no plan moved its gradients, so what its ranks waited is known to them only "
            "(Session.waited_seconds)",
        ]
    moving, waited = iterations["moving_ns"], iterations["waited_ns"]
    lines.append(
        f"  {_count(iterations['count'], 'iteration')} by {job['policy'] or 'a plan'}, "
        f"{iterations['total_ns'] / 1e9:.2f} s"
    )
    lines.append(f"  gradients moved for   {moving / 1e9:10.3f} s")
    lines.append(f"  ranks waited for it   {waited / 1e9:10.3f} s")
    if moving > 0:
        hidden = max(0, moving - waited)
        lines.append(
            f"  hidden                {hidden / 1e9:10.3f} s, {100 * hidden / moving:.1f} %"
        )
    lines += _promise(iterations)
    return lines


def _promise(iterations: Mapping[str, Any]) -> list[str]:
    """The last iterations beside what the plan in force promises."""
    measured, predicted = iterations["measured_ns"], iterations["predicted_ns"]
    if measured is None:
        return []
    passes = measured - min(measured, iterations["elsewhere_ns"])
    lines = [f"  an iteration took     {passes / 1e6:10.1f} ms (median of the last)"]
    if predicted is None:
        return [*lines, "  no promise: the plan was made before times were known"]
    bound = iterations["lower_bound_ns"]
    return [
        *lines,
        f"  its plan promised     {predicted / 1e6:10.1f} ms; no plan is below {bound / 1e6:.1f} ms",
    ]


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
