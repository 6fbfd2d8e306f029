"""The steps that show a card, in the order in which their answers are worth most, and the calls of
tests/gpu/run that they are divided into: each call ends within 600 s whatever its steps do.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from steps import Step

HERE = Path(__file__).resolve().parent
# What a machine allows for one command is 600 s; the rest is for finding programs, GPUs and torch.
CALL_LIMIT_S = 570.0

# Selects, among tests that also run on a double of the driver, those on the real one. A driver does not
# survive the fork of a death test.
ON_CUDA_MEMORY = "--gtest_filter=*/cuda*"
ON_CUDA = "--gtest_filter=*OnCuda*-*DeathTest*"
# Under compute-sanitizer a thousand module loads take longer than everything else together.
ON_CUDA_CHECKED = ON_CUDA + ":*AThousand*"
SANITIZERS = ("compute-sanitizer", "/usr/local/cuda/bin/compute-sanitizer")


@dataclasses.dataclass(frozen=True)
class Machine:
    """What is here; each reason is empty where there is none."""

    programs: Path
    python: str
    no_gpu: str = ""
    no_torch: str = ""
    rehearsal: bool = False  # on doubles: programs that only measure have nothing to say


def calls_of(machine: Machine) -> list[list[Step]]:
    """All steps, by call."""

    def program(limit_s: float, name: str, title: str, *flags: str) -> Step:
        path = machine.programs / name
        missing = machine.no_gpu or ("" if path.exists() else f"{name} was not built")
        if not missing and machine.rehearsal:
            missing = "a rehearsal: ctest runs it on the doubles"
        return Step(title, [str(path), *flags], missing, limit_s)

    def script(limit_s: float, name: str, title: str, *flags: str) -> Step:
        return Step(title, [machine.python, "-B", str(HERE / name), *flags], machine.no_gpu, limit_s)

    def with_torch(limit_s: float, name: str, title: str, *flags: str) -> Step:
        step = script(limit_s, name, title, *flags)
        return dataclasses.replace(step, missing=step.missing or machine.no_torch)

    return [
        [
            program(90, "memory_test", "contract of memory, on CUDA's own", ON_CUDA_MEMORY),
            program(150, "nvlink_contract_test", "contract of the nvlink lane, on CUDA's own", ON_CUDA),
            program(70, "import_bench", "import of 2 GiB"),
            program(130, "gpu_reduce_bench", "reduction and averages beside a copy"),
            program(60, "gpu_codec_bench", "bits and speed of codecs beside a copy"),
            script(70, "legacy.py", "legacy memory alone"),
        ],
        [
            program(110, "nccl_check", "NCCL between nodes, a hang", "hang"),
            program(110, "nccl_check", "NCCL between nodes, a node that vanishes", "vanish"),
            program(90, "driver_probe", "what the driver blocks while a kernel spins"),
            script(110, "path.py", "post to completion"),
            script(130, "mps.py", "post to completion, with MPS", "path.py"),
        ],
        [
            with_torch(130, "tensors.py", "two ranks that share torch's tensors", "default"),
            with_torch(130, "tensors.py", "the same, of expandable segments", "expandable"),
            with_torch(300, "training.py", "training, against DDP and no communication"),
        ],
        [
            with_torch(250, "backend.py", "the backend of torch.distributed", "default"),
            with_torch(250, "backend.py", "the same backend, of expandable segments", "expandable"),
        ],
        [
            with_torch(270, "nodes.py", "two nodes on one GPU, by NCCL", "nccl"),
            with_torch(290, "nodes.py", "two nodes on one GPU, by pinned memory, coded by GPUs", "staged", "int8"),
        ],
        [
            with_torch(170, "stacks.py", "stacks of torch, DDP", "ddp"),
            with_torch(150, "stacks.py", "stacks of torch, compiled", "compiled"),
            with_torch(150, "stacks.py", "stacks of torch, in parts", "parts"),
            with_torch(60, "recorder.py", "the profile recorder, read by headrace-plan"),
        ],
        [
            with_torch(170, "faults.py", "faults of ranks and of the service"),
            with_torch(150, "stacks.py", "stacks of torch, split models and Hugging Face", "split"),
        ],
        [
            with_torch(300, "restart.py", "training, with the service killed"),
            with_torch(120, "product.py", "a matrix product beside reductions"),
            _sanitized(machine, 140, program),
        ],
    ]  # fmt: skip


def _sanitized(machine: Machine, limit_s: float, program: Callable[..., Step]) -> Step:
    plain = program(limit_s, "nvlink_contract_test", "the nvlink lane under compute-sanitizer", ON_CUDA_CHECKED)
    sanitizer = next((found for each in SANITIZERS if (found := shutil.which(each))), "")
    return dataclasses.replace(
        plain,
        command=[sanitizer, "--error-exitcode", "1", "--leak-check", "full", *plain.command],
        missing=plain.missing or ("" if sanitizer else "no compute-sanitizer"),
    )


def check_limits(calls: Sequence[Sequence[Step]]) -> None:
    """Raises ValueError where the steps of a call may take longer than a call."""
    for number, steps in enumerate(calls, start=1):
        longest = sum(step.limit_s for step in steps)
        if longest > CALL_LIMIT_S:
            raise ValueError(f"call {number} may take {longest:.0f} s, {CALL_LIMIT_S:.0f} s at most")
