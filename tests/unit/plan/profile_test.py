"""The recorder of profiles, on models small enough to know what must come out.

    profile_test.py HEADRACE_PLAN

HEADRACE_PLAN is the program that must be able to read what was recorded. Exit code 77: no torch.
"""

import contextlib
import io
import json
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

try:
    import torch
    from torch import nn
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "client" / "python"))
from headrace import profile

PLANNER = sys.argv.pop(1) if len(sys.argv) > 1 else None


class Slow(torch.autograd.Function):
    """Passes a tensor on, after a sleep each way."""

    @staticmethod
    def forward(context, x, forward_s, backward_s):
        context.backward_s = backward_s
        time.sleep(forward_s)
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        time.sleep(context.backward_s)
        return gradient, None, None


class Layer(nn.Module):
    """A linear layer that takes at least so long."""

    def __init__(self, inputs, outputs, forward_s, backward_s):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.forward_s, self.backward_s = forward_s, backward_s

    def forward(self, x):
        return Slow.apply(self.linear(x), self.forward_s, self.backward_s)


def record(model, inputs=4, **options):
    return profile.record(
        model,
        lambda: model(torch.ones(2, inputs)).sum(),
        name="test",
        iterations=3,
        warmup=1,
        **options,
    )


class Recorder(unittest.TestCase):
    def test_gives_tensors_in_the_order_of_the_forward_pass(self):
        class Reversed(nn.Module):
            def __init__(self):
                super().__init__()
                self.second = nn.Linear(3, 2)
                self.first = nn.Linear(4, 3)

            def forward(self, x):
                return self.second(self.first(x))

        names = [tensor["name"] for tensor in record(Reversed())["tensors"]]
        self.assertEqual(
            names, ["first.weight", "first.bias", "second.weight", "second.bias"]
        )

    def test_counts_elements(self):
        tensors = record(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)))["tensors"]
        self.assertEqual([tensor["elements"] for tensor in tensors], [12, 3, 6, 2])

    def test_measures_each_layer_forward_and_backward(self):
        model = nn.Sequential(Layer(4, 3, 0.02, 0.01), Layer(3, 2, 0.01, 0.03))
        tensors = record(model)["tensors"]
        first, second = tensors[:2], tensors[2:]
        self.assertGreaterEqual(sum(t["forward_s"] for t in first), 0.02)
        self.assertGreaterEqual(sum(t["forward_s"] for t in second), 0.01)
        self.assertGreaterEqual(sum(t["backward_s"] for t in first), 0.01)
        self.assertGreaterEqual(sum(t["backward_s"] for t in second), 0.03)

    def test_puts_a_layers_forward_time_at_its_last_tensor(self):
        tensors = record(nn.Sequential(Layer(4, 3, 0.02, 0), Layer(3, 2, 0, 0)))[
            "tensors"
        ]
        self.assertEqual(tensors[0]["forward_s"], 0)
        self.assertGreaterEqual(tensors[1]["forward_s"], 0.02)

    def test_gives_parameters_of_uncalled_modules_to_what_encloses_them(self):
        class Direct(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = nn.Linear(4, 3)

            def forward(self, x):
                return nn.functional.linear(x, self.inner.weight, self.inner.bias)

        names = [
            t["name"]
            for t in record(nn.Sequential(Direct(), nn.Linear(3, 2)))["tensors"]
        ]
        self.assertEqual(
            names, ["0.inner.weight", "0.inner.bias", "1.weight", "1.bias"]
        )

    def test_counts_a_shared_parameter_once(self):
        layer = nn.Linear(4, 4)
        self.assertEqual(
            len(record(nn.Sequential(layer, nn.ReLU(), layer))["tensors"]), 2
        )

    def test_never_gives_a_negative_time(self):
        model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(20)))
        for tensor in record(model)["tensors"]:
            self.assertGreaterEqual(tensor["backward_s"], 0)
            self.assertGreaterEqual(tensor["forward_s"], 0)

    def test_names_a_parameter_without_gradient(self):
        class Unused(nn.Module):
            def __init__(self):
                super().__init__()
                self.used, self.unused = nn.Linear(4, 3), nn.Linear(3, 2)

            def forward(self, x):
                return self.used(x)

        with self.assertRaisesRegex(ValueError, "unused.weight"):
            record(Unused())

    def test_refuses_a_model_that_has_nothing_to_train(self):
        with self.assertRaises(ValueError):
            record(nn.ReLU())

    def test_leaves_no_hooks_behind(self):
        model = nn.Linear(4, 3)
        record(model)
        self.assertFalse(model._forward_pre_hooks)

    def test_does_not_count_sleep_as_processor_time(self):
        tensors = record(Layer(4, 3, 0.05, 0.05), processor=True)["tensors"]
        self.assertLess(sum(t["forward_s"] + t["backward_s"] for t in tensors), 0.05)


class Transformer(unittest.TestCase):
    def test_has_the_sizes_of_bert_base(self):
        sizes = [p.numel() for p in profile.BertBase().parameters()]
        self.assertEqual((len(sizes), sum(sizes)), (206, 110_106_428))


class Program(unittest.TestCase):
    def test_writes_a_file_that_the_planner_reads(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "profile.json"
            arguments = ["squeezenet1_1", "--batch=1", "--iterations=1", "--warmup=0"]
            self.assertEqual(profile.main([*arguments, f"--out={path}"]), 0)
            written = json.loads(path.read_text())
            self.assertEqual(written["format"], "headrace-profile/1")
            self.assertEqual(sum(t["elements"] for t in written["tensors"]), 1_235_496)
            if PLANNER is None:
                self.skipTest("no planner was given")
            done = subprocess.run(
                [PLANNER, "simulate", path, "--startup-us=100", "--ratio=1", "--json"],
                check=True,
                capture_output=True,
                timeout=60,
            )
            policies = [row["policy"] for row in json.loads(done.stdout)]
            self.assertIn("exact", policies)
            self.assertEqual(len(set(policies)), len(policies))

    def test_refuses_a_model_it_does_not_know(self):
        with (
            self.assertRaises(SystemExit) as exit_,
            contextlib.redirect_stderr(io.StringIO()),
        ):
            profile.main(["resnet_of_nobody"])
        self.assertEqual(exit_.exception.code, 2)


if __name__ == "__main__":
    unittest.main()
