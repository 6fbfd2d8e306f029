"""Runs tests/bench/compression in its smallest forms and looks at the fields of its JSON; at no time.

usage: compression_smoke_test.py BUILD
"""

import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
BOUNDS = {"none": 1e-6, "bf16": 0.01, "fp16": 0.002, "int8": 0.02, "int4": 0.3, "lossless": 1e-6}
CONTENDERS = {"gloo": 1e-6, "gloo-fp16": 0.002, "gloo-powersgd": 2.0}


def run(build: str, folder: str, *options: str) -> list[dict] | None:
    """The figures; None where nodes cannot be had."""
    path = Path(folder) / "compression.json"
    command = [str(HERE / "compression"), "--quiet", "--build", build, "--json", str(path), *options]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 77:
        print(done.stdout.strip().splitlines()[-1])
        return None
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads(path.read_text())["figures"]


def check_accuracy(figures: list[dict], folder: str) -> None:
    assert [figure["codec"] for figure in figures] == ["none", "int8", "topk"], figures
    none = figures[0]
    assert none["step"] and none["seconds"] > 0 and none["over_none"] == 1, none
    for figure in figures:
        assert 0 < figure["last_loss"] < 10 and figure["target"] == none["target"], figure
    (picture,) = Path(folder).glob("*.svg")
    assert picture.read_text().count("<polyline") == 3, picture


def main(build: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        has_torch = importlib.util.find_spec("torch") is not None
        bounds = {**BOUNDS, **CONTENDERS} if has_torch else BOUNDS
        contenders = ["--contenders"] if has_torch else []
        figures = run(build, folder, "--smoke", "--codecs", *BOUNDS, *contenders)
        if figures is None:
            return 77
        if importlib.util.find_spec("torch") and importlib.util.find_spec("sklearn"):
            quick = run(build, folder, "--accuracy", "--quick", "--codecs", "none", "int8", "topk")
            check_accuracy(quick, folder)
    assert {figure["codec"] for figure in figures} == set(bounds), figures
    for figure in figures:
        assert figure["seconds"] > 0 and figure["over_none"] > 0, figure
        assert figure["error"] <= bounds[figure["codec"]], figure
        exact = figure["codec"] in ("none", "lossless", "gloo")
        assert exact or figure["error"] > 1e-5, figure
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
