"""Training as users of torch write it, over the backend headrace and over NCCL: parameters end with the same
bits, since a sum of two ranks is the same in either order. Each stack has a service and processes of its own,
so that one which fails hides no other. On one GPU NCCL is told that the ranks are on different hosts.

usage: stacks.py GROUP|STACK...; stack_rank.py has their names
"""

from __future__ import annotations

import functools
import json
import sys
import tempfile
from pathlib import Path

import torch
from cases import Skip, run_each
from ranks import gpu_of, play, service
from stack_model import RANKS, Stack
from stack_rank import ALL, GROUPS, PEER, distance
from support.ports import free_port
from torch_device import REHEARSAL
from trained import figure, share_a_gpu

LIMIT_S = 75.0  # of the ranks of one stack: torch's start, compiling, some iterations both ways
CLOSE = 2e-2  # where kernels differ: of the way that parameters went
OURS_AND_PEER = ("ours", "peer")
Result = tuple[list[dict], list[dict[str, torch.Tensor]]]  # what each rank printed, and its parameters


def train(name: str, sides: tuple[str, str], more: dict[str, str]) -> list[Result]:
    """Both ranks at once, first one way, then the other. Raises SystemExit with what a failed one said."""
    with tempfile.TemporaryDirectory(prefix="headrace-stacks-") as folder:
        files = [str(Path(folder) / str(rank)) for rank in range(RANKS)]
        common = {
            "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "HEADRACE_JOB": name,
            "STACK_PORTS": " ".join(str(free_port()) for _ in sides), "STACK_LIMIT_S": str(LIMIT_S - 5),
            "GLOO_SOCKET_IFNAME": "lo", "CUBLAS_WORKSPACE_CONFIG": ":4096:8", **more,
        }  # fmt: skip
        if REHEARSAL:
            common["OMP_NUM_THREADS"] = "1"
        environments = [
            {**common, "RANK": str(rank), "GPU_ORDINAL": str(gpu_of(rank)), "LOCAL_RANK": str(gpu_of(rank)),
             **({"NCCL_HOSTID": f"rank{rank}"} if share_a_gpu() else {})}
            for rank in range(RANKS)
        ]  # fmt: skip
        script = str(Path(__file__).parent / "stack_rank.py")
        commands = [[sys.executable, "-B", script, name, file, *sides] for file in files]
        printed = play(commands, environments, LIMIT_S)
        ends = [torch.load(file) for file in files]
        lines = [[json.loads(line) for line in text.splitlines() if line.startswith('{"side"')] for text in printed]
        return [([each[i] for each in lines], [each[i] for each in ends]) for i in range(len(sides))]


def differing(mine: Result, other: Result) -> list[str]:
    """Which parameters of which rank have other bits."""
    return [
        f"rank {rank}'s {name}"
        for rank, (one, two) in enumerate(zip(mine[1], other[1], strict=True))
        for name in sorted({*one, *two})
        if name not in one or name not in two or not torch.equal(one[name], two[name])
    ]


def farthest(mine: Result, other: Result) -> float:
    """How far apart a rank's parameters are, in parts of the way that the other's training moved them."""
    ways = zip(mine[1], other[1], other[0], strict=True)
    return max(distance(one, two) / printed["moved"] for one, two, printed in ways)


def verdict(name: str, stack: Stack, ours: Result, theirs: Result) -> str:
    """What the comparison showed. Raises SystemExit where it must not be so."""
    if any(not printed["moved"] > 0 for printed in theirs[0]):
        raise SystemExit(f"{PEER}'s training moved nothing: there is nothing to compare")
    different = differing(ours, theirs)
    if not different:
        return f"the bits of {PEER}"
    apart = farthest(ours, theirs)
    how = f"{len(different)} parameters have other bits than over {PEER}, first {different[0]}"
    if stack.exact:
        one, again = train(name, ("peer", "peer"), {})
        if not differing(one, again):
            raise SystemExit(f"{how}; {apart:.3g} of the way apart, while {PEER} repeats its own bits")
        how += f", which differ from one run to the next over {PEER}, too"
    if not apart <= CLOSE:
        raise SystemExit(f"{how}: {apart:.3g} of the way apart, at most {CLOSE} is close")
    return f"{apart:.2g} of the way apart ({how})"


def slowest_ms(result: Result) -> float:
    return 1e3 * max(printed["iteration_s"] for printed in result[0])


def show(name: str, stack: Stack) -> None:
    """Trains both ways, and prints what came of it."""
    if lack := stack.lack():
        raise Skip(lack)
    with service() as started:
        ours, theirs = train(name, OURS_AND_PEER, {"HEADRACE_SOCKET": started.socket})
    words = verdict(name, stack, ours, theirs)
    count = sum(printed["parameters"] for printed in ours[0])
    print(f"{stack.title}: {count} parameters on {RANKS} ranks, {words}")
    if not REHEARSAL:  # where the CPU's tensors cannot be shared, of which the backend warns
        for warning in sorted({text for printed in ours[0] for text in printed["warned"]}):
            print(f"  warned: {warning}")
    figure(f"iteration, {stack.title}, headrace", slowest_ms(ours), "ms")
    figure(f"iteration, {stack.title}, {PEER}", slowest_ms(theirs), "ms")


def chosen(words: list[str]) -> dict[str, Stack]:
    found: dict[str, Stack] = {}
    for word in words:
        found.update(GROUPS[word] if word in GROUPS else {word: ALL[word]})
    return found


def main() -> int:
    stacks = chosen(sys.argv[1:])
    return run_each({stack.title: functools.partial(show, name, stack) for name, stack in stacks.items()})


if __name__ == "__main__":
    sys.exit(main())
