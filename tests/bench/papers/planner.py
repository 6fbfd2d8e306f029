"""Calls of headrace-plan, which makes every plan and every time of this benchmark."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

from inputs import InputError

TIMEOUT_S = 120.0


@dataclasses.dataclass(frozen=True)
class Planner:
    program: Path

    def run(self, *arguments: str) -> str:
        """The standard output; InputError with the program's own words where it refuses."""
        try:
            done = subprocess.run(
                [str(self.program), *arguments], capture_output=True, text=True, timeout=TIMEOUT_S
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise InputError(f"{self.program}: {error}") from error
        if done.returncode != 0:
            raise InputError(done.stderr.strip() or f"{self.program}: exit code {done.returncode}")
        return done.stdout

    def simulate(
        self, profile: Path, startup_s: float, s_per_byte: float, policies: Sequence[str],
        *more: str, blocks: bool = False,
    ) -> dict[str, dict]:
        """By policy: iteration_s, lower_bound_s, speedup_over_wfbp and blocks, of which there is only the
        number unless all are asked for."""  # fmt: skip
        text = self.run(
            "simulate", str(profile), "--policy", ",".join(policies), "--startup-us",
            repr(startup_s * 1e6), "--ns-per-byte", repr(s_per_byte * 1e9), "--json",
            *([] if blocks else ["--brief"]), *more,
        )  # fmt: skip
        return {row["policy"]: row for row in json.loads(text)}

    def curves(self, points: Sequence[tuple[str, str, float, float]], svg: Path, *more: str) -> Path:
        """Draws (panel, curve, x, y); the table stays beside the picture."""
        table = svg.with_suffix(".csv")
        lines = [f"{panel},{curve},{x!r},{y!r}\n" for panel, curve, x, y in points]
        table.write_text("panel,curve,x,y\n" + "".join(lines))
        self.run("curves", str(table), "--svg", str(svg), *more)
        return svg
