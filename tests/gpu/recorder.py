"""The profile recorder on a GPU: what it writes of a model, headrace-plan reads and simulates."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ranks import programs
from stack_model import loss_of, make_model, samples
from torch_device import REHEARSAL, device
from trained import figure

ITERATIONS, WARM_UP = (3, 1) if REHEARSAL else (10, 5)
NETWORK = ("--nodes", "4", "--link-gbit", "100", "--link-latency-us", "20")


def record() -> dict:
    """The profile of the model that stacks.py trains, as `python -m headrace.profile` makes one."""
    profile = importlib.import_module("headrace.profile")
    on = device()
    model, tokens = make_model(on), samples(0, 0, on)
    recorded = profile.record(
        model, lambda: loss_of(model(tokens[:, :-1]), tokens[:, 1:]),
        name="transformer", iterations=ITERATIONS, warmup=WARM_UP,
    )  # fmt: skip
    return {**recorded, "machine": profile.machine(on)}


def simulate(path: Path, *flags: str) -> str:
    command = [str(programs() / "headrace-plan"), "simulate", str(path), *NETWORK, *flags]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if ran.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ends with {ran.returncode}: {ran.stderr}")
    return ran.stdout


def main() -> int:
    begin = time.monotonic()
    profile = record()
    seconds = time.monotonic() - begin
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profile.json"
        path.write_text(json.dumps(profile))
        table = simulate(path, "--policy", "wfbp,ddp,exact")
        plans = json.loads(simulate(path, "--policy", "wfbp,exact", "--json", "--brief"))
    if not plans:
        raise SystemExit("headrace-plan simulates no plan")
    print(table)
    tensors = profile["tensors"]
    passes = {way: 1e3 * sum(tensor[f"{way}_s"] for tensor in tensors) for way in ("forward", "backward")}
    print(f"{len(tensors)} gradients on {profile['machine']}")
    if not all(time_ms > 0 for time_ms in passes.values()):
        raise SystemExit(f"a pass takes no time: {passes}")
    for way, time_ms in passes.items():
        figure(f"{way} pass that the recorder saw", time_ms, "ms")
    figure(f"recording of {WARM_UP + ITERATIONS} iterations", seconds, "s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
