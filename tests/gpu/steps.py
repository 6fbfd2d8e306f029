"""One step of what a real GPU must show: a program, what it printed, and what came of it.

Programs print a line for each figure, "figure<TAB>what<TAB>value<TAB>unit<TAB>goal", where a goal is
"< 2" or ">= 0.85" or empty, and say "skipped<TAB>why" and exit with 77 where they cannot run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

SKIPPED = 77
LIMIT_S = 300.0
SHOWN_LINES = 40  # of what a failed step printed last


@dataclasses.dataclass(frozen=True)
class Figure:
    what: str
    value: float
    unit: str
    goal: str  # "< 2", ">= 0.85"; empty: none was set

    @property
    def met(self) -> bool | None:
        """None where there is no goal."""
        if not self.goal:
            return None
        sign, bound = self.goal.split()
        return self.value >= float(bound) if sign == ">=" else self.value < float(bound)


@dataclasses.dataclass(frozen=True)
class Step:
    """``missing`` names what keeps it from running here; empty: nothing does."""

    name: str
    command: Sequence[str]
    missing: str = ""
    limit_s: float = LIMIT_S


@dataclasses.dataclass
class Result:
    name: str
    outcome: str  # "passed", "failed", "skipped"
    reason: str = ""
    seconds: float = 0.0
    figures: list[Figure] = dataclasses.field(default_factory=list)


def figures_in(text: str) -> list[Figure]:
    found = []
    for line in text.splitlines():
        parts = line.split("\t")
        if parts[0] == "figure" and len(parts) == 5:
            found.append(Figure(parts[1], float(parts[2]), parts[3], parts[4]))
    return found


def skips_in(text: str) -> list[str]:
    """Reasons that programs and GoogleTest's cases gave."""
    reasons = [line.split("\t", 1)[1] for line in text.splitlines() if line.startswith("skipped\t")]
    counted = re.search(r"\[  SKIPPED \] (\d+) tests?, listed below", text)
    if counted:
        reasons.append(f"{counted.group(1)} of its cases")
    return reasons


def _end(program: subprocess.Popen) -> None:
    """Ends it with all that it started: they share its process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(program.pid, signal.SIGKILL)
    program.wait()


def play(step: Step, environment: Mapping[str, str], log: Path, said: Callable[[str], None]) -> Result:
    """Runs it; what it prints goes to ``log`` as well."""
    if step.missing:
        return Result(step.name, "skipped", step.missing)
    said(step.name)
    begin = time.monotonic()
    program = subprocess.Popen(
        list(step.command), env=dict(environment), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        start_new_session=True,
    )  # fmt: skip
    try:
        text, _ = program.communicate(timeout=step.limit_s)
        ended = f"exit status {program.returncode}"
    except subprocess.TimeoutExpired:
        _end(program)
        text, _ = program.communicate()
        ended = f"ended after {step.limit_s:.0f} s"
    finally:
        _end(program)
    log.write_text(text)
    result = Result(step.name, "passed", "", time.monotonic() - begin, figures_in(text))
    if program.returncode == SKIPPED:
        result.outcome, result.reason = "skipped", "; ".join(skips_in(text)) or "says no reason"
    elif program.returncode != 0:
        result.outcome, result.reason = "failed", f"{ended}, see {log}"
        said("\n".join(text.splitlines()[-SHOWN_LINES:]))
    elif skips_in(text):
        result.reason = "skipped inside: " + "; ".join(skips_in(text))
    return result


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in [heads, *rows]) for i in range(len(heads))]
    lines = [heads, ["-" * width for width in widths], *rows]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def text_of(results: Sequence[Result]) -> str:
    """Two tables: what became of each step, and the figures beside their goals."""
    outcomes = [[r.name, r.outcome, f"{r.seconds:.1f}", r.reason] for r in results]
    parts = [table(["step", "outcome", "s", ""], outcomes)]
    words = {None: "", True: "met", False: "NOT MET"}
    figures = [
        [f.what, f"{f.value:.4g}", f.unit, f.goal, words[f.met]] for r in results for f in r.figures
    ]
    if figures:
        parts.append(table(["figure", "value", "unit", "goal", ""], figures))
    counts = {word: sum(r.outcome == word for r in results) for word in ("passed", "failed", "skipped")}
    parts.append(", ".join(f"{count} {word}" for word, count in counts.items()))
    not_run = [r.name for r in results if r.outcome == "skipped"]
    if not_run:
        parts.append("not run here, so not shown by this run: " + ", ".join(not_run))
    return "\n\n".join(parts)
