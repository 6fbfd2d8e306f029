"""One rank of tests/bench/training: trains in several ways by turns and writes what it measured.

Rank, world size and where ranks meet come from the environment, as torchrun sets it.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "digits"), str(HERE.parents[1] / "client" / "examples")]

import torch
import torch.distributed
from training_models import make_task
from training_trace import Tracer
from ways import make_way, outcome, take_turns


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--warm-up", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--ways", nargs="+", required=True)
    parser.add_argument("--trace", action="store_true", help="note the moments of every iteration")
    parser.add_argument("--ctl", required=True, help="headracectl")
    parser.add_argument("--result", type=Path, required=True)
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    torch.set_num_threads(1)  # ranks share the cores
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    task = make_task(arguments.model, rank, arguments.batch)
    ways = [make_way(name, task, arguments.model) for name in arguments.ways]
    tracers = [Tracer(way) for way in ways] if arguments.trace else []

    def said(text: str) -> None:
        if rank == 0:
            print(text, flush=True)

    take_turns(
        ways, arguments.warm_up, arguments.steps, arguments.rounds, arguments.ctl, said,
    )  # fmt: skip
    result = outcome(task, ways, arguments.ctl)
    for way, tracer in zip(result["ways"], tracers, strict=False):
        way["trace"] = tracer.iterations
    arguments.result.write_text(json.dumps(result))
    torch.distributed.barrier()
    for way in ways:
        way.close()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
