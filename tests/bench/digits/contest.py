"""The quickstart's comparison: a ResNet on the digits over slow links, in several ways by turns."""

from __future__ import annotations

import dataclasses
import json
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from figures import (
    ALONE,
    GLOO,
    POLICIES,
    Figure,
    figures,
    print_rows,
    rate_for,
    sent_seconds,
    wrong,
)
from nodes import Failure, Nodes
from picture import draw
from processes import train

HERE = Path(__file__).resolve().parent
WIDTH = 64
BATCH = 48  # samples of each rank: so many that links are slow and cost the cores little
WARM_UP = 18  # the last plan that matters is made after the 16th
ITERATIONS, ROUNDS = 8, 2
WAYS = (ALONE, GLOO, *POLICIES)
TITLE = "by turns"


@dataclasses.dataclass(frozen=True)
class Contest:
    """What was measured, and where."""

    nodes: int
    rate_mbit: float
    size: int  # bytes of gradients
    tensors: int
    figures: list[Figure]
    moments: dict[str, Any]

    @property
    def sent_s(self) -> float:
        return sent_seconds(self.size, self.nodes, self.rate_mbit)

    def of(self, way: str) -> Figure:
        return next(each for each in self.figures if each.way == way)


def _train(
    nodes: Nodes, build: Path, folder: Path, ways: Sequence[str], *options: str
) -> list[dict[str, Any]]:
    """A rank on each node, with services; what each rank measured."""
    folder.mkdir()
    with nodes.services(build) as rendezvous:
        places = nodes.places(nodes.count)
        for place in places:
            service = place.node.service
            assert service is not None
            place.environment.update(
                HEADRACE_LIBRARY=str(build / "libheadrace.so"),
                HEADRACE_SOCKET=service.socket,
                HEADRACE_BOARD=service.board,
                HEADRACE_RENDEZVOUS=rendezvous,
                GLOO_SOCKET_IFNAME=place.node.interfaces[0],
            )
        program = [str(HERE / "contest_rank.py"), "--ctl", str(build / "headracectl")]
        program += ["--width", str(WIDTH), "--batch", str(BATCH), "--ways", *ways]
        train(TITLE, [*program, *options], places, folder)
    return [
        json.loads((folder / f"result.{rank}.json").read_text())
        for rank in range(nodes.count)
    ]


def measure(nodes: Nodes, build: Path) -> Contest:
    """First how long computing takes, so that links can be so slow that communication takes as long."""
    folder = nodes.directory / "contest"
    folder.mkdir()
    fixed = ["--warm-up", "2", "--iterations", "8", "--rounds", "1"]
    alone = _train(nodes, build, folder / "alone", [ALONE], *fixed)
    computing_s = statistics.median(
        s for rank in alone for s in rank["ways"][0]["seconds"][0]
    )
    size = alone[0]["bytes"]
    rate = rate_for(size, nodes.count, computing_s)
    nodes.set_rate(rate)
    turns = [
        "--warm-up",
        str(WARM_UP),
        "--iterations",
        str(ITERATIONS),
        "--rounds",
        str(ROUNDS),
    ]
    ranks = _train(nodes, build, folder / "ways", WAYS, "--picture", *turns)
    contest = Contest(
        nodes.count,
        rate,
        size,
        ranks[0]["tensors"],
        figures(ranks),
        ranks[0]["moments"],
    )
    problem = wrong(contest.figures)
    if problem:
        raise Failure(problem)
    return contest


def print_contest(contest: Contest) -> None:
    """A row for each way."""
    alone, gloo = contest.of(ALONE), contest.of(GLOO)
    exact = contest.of("exact")
    print(
        f"\nA ResNet of {contest.tensors} tensors, {contest.size / 1e6:.1f} MB of gradients, on "
        f"{contest.nodes} nodes of one rank, {BATCH} samples each.\nComputing takes "
        f"{alone.iteration_s * 1e3:.0f} ms; links are set to {contest.rate_mbit:g} Mbit/s, so that "
        f"gradients need {contest.sent_s * 1e3:.0f} ms.\n"
    )
    heads = (
        "way",
        "iteration ms",
        "speed-up",
        "hidden",
        "predicted ms",
        "loss off DDP by",
    )
    rows = [heads]
    for each in contest.figures:
        hidden, predicted = each.hidden(contest.sent_s), each.planned_s("predicted_ns")
        rows.append(
            (
                each.way,
                f"{each.iteration_s * 1e3:.0f}",
                f"{gloo.iteration_s / each.iteration_s:.2f}",
                "-" if hidden is None else f"{hidden:.0%}",
                "-" if predicted is None else f"{predicted * 1e3:.0f}",
                "-" if each.loss_distance is None else f"{each.loss_distance:.1e}",
            )
        )
    print_rows(rows)
    bound = exact.planned_s("lower_bound_ns")
    assert bound is not None
    print(
        f"\nMedians of {exact.samples} iterations. Speed-up: over DDP; with these times no plan's is "
        f"over {gloo.iteration_s / bound:.2f}.\nHidden: share of the gradients' time on the link in "
        f"which ranks did not wait. Loss: of all {len(exact.losses)} iterations."
    )


def save_picture(contest: Contest) -> Path:
    """An iteration under exact, as SVG in a folder of its own that stays."""
    moments = contest.moments
    title = (
        f"ResNet on the digits, {contest.nodes} nodes, {contest.rate_mbit:g} Mbit/s, plan by exact: "
        f"iteration {moments['iteration']}, {moments['iteration_s'] * 1e3:.0f} ms"
    )
    path = Path(tempfile.mkdtemp(prefix="headrace-")) / "iteration.svg"
    path.write_text(draw(title, moments))
    return path
