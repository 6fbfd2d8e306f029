"""The same model, wrapped by DDP or fully_shard() over several backends, trained in each way by turns on this machine:
what tests/bench/ddp and tests/bench/fsdp have in common. Two ranks, on one node or on two whose links get a rate.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import report
from contenders import ROOT, BenchError
from support.cluster import Cluster, Services, SkipReason
from support.service import StartError, client_environment

RANKS = 2
PORT = 29500
LIMIT_S = 900
# Of the rate of a link what is left for payload, as iperf3 measures it on these links.
PAYLOAD = 0.935


@dataclasses.dataclass(frozen=True)
class Bench:
    """What differs between them. ``crosses``: of the parameters' bytes, what a node sends in an iteration."""

    name: str
    ways: tuple[str, ...]
    crosses: float
    fastest: str  # the way whose gain over gloo is shown
    options: tuple[str, ...]  # of the parser, which the ranks get

    @property
    def rank(self) -> Path:
        """What a rank runs."""
        return HERE / f"{self.name}_rank.py"


def add_options(parser: argparse.ArgumentParser, bench: Bench) -> None:
    """What both ask for."""
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release", help="build folder")
    where = f"where to write (default: {bench.name}.json in the build)"
    parser.add_argument("--json", type=report.json_path, help=where)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--steps", type=int, default=8, help="iterations that count, of each turn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ratios", type=float, nargs="+", default=[0.5, 1.0], help="of communication to computation")
    parser.add_argument("--smoke", action="store_true", help="show that it works; measure nothing of worth")


def _run_ranks(
    bench: Bench, arguments: argparse.Namespace, cluster: Cluster, services: Services, ways: tuple[str, ...]
) -> list[dict[str, Any]]:
    folder = Path(cluster.directory)
    options = [text for name in bench.options for text in (f"--{name}", str(getattr(arguments, name)))]
    nodes = len(cluster)
    with contextlib.ExitStack() as ends:
        programs = []
        for rank in range(RANKS):
            log = ends.enter_context(open(folder / f"{bench.name}.{rank}.log", "w"))
            program = cluster[rank % nodes].start(
                [arguments.python, "-B", str(bench.rank), "--ways", *ways, *options,
                 "--rounds", str(1 if ways == ("alone",) else arguments.rounds),
                 "--result", str(folder / f"{bench.name}.{rank}.json")],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=client_environment(
                    RANK=str(rank), WORLD_SIZE=str(RANKS), LOCAL_RANK=str(rank // nodes),
                    LOCAL_WORLD_SIZE=str(RANKS // nodes), MASTER_ADDR=cluster[0].address, MASTER_PORT=str(PORT),
                    GLOO_SOCKET_IFNAME="eth0" if nodes > 1 else "lo",
                    OMP_NUM_THREADS="1",  # as torchrun has it, for all libraries: OpenBLAS's threads would spin
                    HEADRACE_LIBRARY=str(arguments.build / "libheadrace.so"),
                    HEADRACE_SOCKET=services[rank % nodes].socket,
                ),
            )  # fmt: skip
            ends.callback(program.end)
            programs.append(program)
        for rank, program in enumerate(programs):
            try:
                ended_well = program.wait(LIMIT_S) == 0
            except subprocess.TimeoutExpired:
                raise BenchError(f"rank {rank} has not ended within {LIMIT_S} s: is the machine too busy?") from None
            if not ended_well:
                text = (folder / f"{bench.name}.{rank}.log").read_text()
                raise BenchError(f"rank {rank} ended badly:\n{text[-2000:]}")
    return [json.loads((folder / f"{bench.name}.{rank}.json").read_text()) for rank in range(RANKS)]


def _median_of(ranks: list[dict[str, Any]], way: str) -> float:
    return statistics.median(each for rank in ranks for each in rank["seconds"][way])


def measure(
    bench: Bench, arguments: argparse.Namespace, cluster: Cluster, services: Services
) -> list[dict[str, Any]]:
    """A row of figures for each ratio; on one node, which has no link, for none."""
    alone = _run_ranks(bench, arguments, cluster, services, ("alone",))
    computing_s = _median_of(alone, "alone")
    figures = []
    for ratio in arguments.ratios if len(cluster) > 1 else [0.0]:
        rate_mbit = 0.0
        if ratio:
            rate_mbit = max(10.0, bench.crosses * alone[0]["bytes"] * 8 / (ratio * computing_s) / 1e6 / PAYLOAD)
            for node in cluster.nodes:
                node.set_rate(rate_mbit)
        ranks = _run_ranks(bench, arguments, cluster, services, bench.ways)
        for each in (rank["losses"] for rank in ranks):
            if any(each[way] != each["gloo"] for way in bench.ways):
                raise BenchError(f"losses differ between the ways: {each}")
        figures.append(
            {
                "nodes": len(cluster), "ratio": ratio, "rate_mbit": rate_mbit, "load": os.getloadavg()[0],
                "computing_s": computing_s, "bytes": alone[0]["bytes"],
                "seconds": {way: _median_of(ranks, way) for way in bench.ways},
                "turns": {way: [rank["turns"][way] for rank in ranks] for way in bench.ways},
            }
        )  # fmt: skip
    return figures


def table(bench: Bench, figures: list[dict[str, Any]]) -> str:
    """Milliseconds of an iteration."""
    rows = [("nodes", "ratio", "Mbit/s", "load", "computing", "sending", *bench.ways, f"gloo / {bench.fastest}")]
    for each in figures:
        seconds = each["seconds"]
        times = [each["computing_s"], each["ratio"] * each["computing_s"], *(seconds[way] for way in bench.ways)]
        rows.append(
            (
                str(each["nodes"]), f"{each['ratio']:g}" if each["ratio"] else "-",
                f"{each['rate_mbit']:.0f}" if each["ratio"] else "-", f"{each['load']:.1f}",
                *(f"{value * 1e3:.0f}" for value in times),
                f"{seconds['gloo'] / seconds[bench.fastest]:.2f}",
            )
        )  # fmt: skip
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def run(
    bench: Bench,
    arguments: argparse.Namespace,
    torch_version: Callable[[str], str],
    figures: Callable[[], list[dict[str, Any]]],
) -> int:
    """Measures, prints and writes; returns the exit status."""
    arguments.json = arguments.json or arguments.build / f"{bench.name}.json"
    result: dict[str, Any] = {"machine": report.machine()}
    try:
        result["torch"] = torch_version(arguments.python)
        result["figures"] = figures()
    except SkipReason as reason:
        print(f"skipped: {reason}")
        return 77
    except (BenchError, StartError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    arguments.json.write_text(json.dumps(result, indent=2) + "\n")
    print("machine: " + ", ".join(f"{key} {value}" for key, value in result["machine"].items()))
    print(f"torch {result['torch']}; {result['figures'][0]['bytes'] / 1e6:.1f} MB;")
    print("one iteration in ms, medians of rounds by turns; none is below computing or sending, each alone")
    print("\n" + table(bench, result["figures"]))
    print(f"\nwritten: {arguments.json}")
    return 0


def smoke(name: str, build: str) -> list[dict[str, Any]] | None:
    """The figures of that bench in its smallest form; None: it skipped itself, and has said why."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.json"
        command = [str(HERE / name), "--smoke", "--build", build, "--json", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 77:
            print(done.stdout.strip())
            return None
        assert done.returncode == 0, done.stderr + done.stdout
        return json.loads(path.read_text())["figures"]
