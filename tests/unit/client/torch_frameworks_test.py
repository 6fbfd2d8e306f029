"""Programs that others wrote, on the backend "headrace": accelerate's own tests, the trainers of Lightning
and of Hugging Face, and torch's fully_shard() as the examples use it.

Each is skipped by name where the Python that runs this has no such package.
"""

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import unittest

from ranks import ServiceCase
from support.service import ROOT
from torch_ranks import free_port, main

RANKS = 2
# accelerate takes the process group that is there.
RUN_A_SCRIPT = """
import runpy, sys
import torch.distributed
import headrace.torch
torch.distributed.init_process_group("headrace")
group = torch.distributed.distributed_c10d._get_default_group()
runpy.run_module("accelerate.test_utils.scripts." + sys.argv[1], run_name="__main__")
assert isinstance(group, headrace.torch.ProcessGroup), group
print("ended well", flush=True)
"""
TRAIN_BY_LIGHTNING = """
import sys
import torch
import headrace.torch
import lightning
from lightning.pytorch.strategies import DDPStrategy


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(8, 4)

    def training_step(self, batch, number):
        loss = torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


random = torch.Generator().manual_seed(1)
data = torch.utils.data.TensorDataset(
    torch.randn(64, 8, generator=random), torch.randint(0, 4, (64,), generator=random)
)
model = Model()
trainer = lightning.Trainer(
    accelerator="cpu", devices=2, max_epochs=2, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False,
    strategy=DDPStrategy(process_group_backend=sys.argv[1]),
)
trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=8))
weights = model.layer.weight.detach().numpy().tobytes().hex()
text = f"weights {torch.distributed.get_backend()} {weights}"
with open(f"{sys.argv[2]}.{trainer.global_rank}", "w") as file:
    file.write(text)
# Lightning leaves it open, and a thread of gloo's ended a process with an abort.
torch.distributed.destroy_process_group()
"""


def needs(package):
    return unittest.skipUnless(
        importlib.util.find_spec(package), f"{sys.executable} has no {package}"
    )


def has_fully_shard():
    """Whether torch is 2.9 or later, whose fully_shard() headrace.torch.accelerate() takes."""
    try:
        from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather  # noqa: F401
    except (ImportError, ValueError):  # torch 1.13's does not import under Python 3.11
        return False
    return True


class Frameworks(ServiceCase):
    def run_ranks(self, program, *arguments):
        """What the ranks of a program have written, when all have ended well."""
        with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
            file.write(program)
            file.flush()
            return self.run_file(file.name, *arguments)

    def run_file(self, path, *arguments):
        """The same of a program in a file."""
        folder = tempfile.TemporaryDirectory()  # torchrun leaves its own there
        self.addCleanup(folder.cleanup)
        environment = dict(
            os.environ,
            TMPDIR=folder.name,
            HEADRACE_SOCKET=self.service.socket,
            ACCELERATE_USE_CPU="true",
            GLOO_SOCKET_IFNAME="lo",
            OMP_NUM_THREADS="1",
        )
        ran = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(RANKS),
             "--master_port", str(free_port()), path, *arguments],
            env=environment, capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
        self.assertEqual(ran.returncode, 0, ran.stdout[-2000:] + ran.stderr[-4000:])
        return ran.stdout

    @needs("accelerate")
    def test_accelerates_own_tests_pass(self):
        for script in ("test_ops", "test_sync", "test_script"):
            with self.subTest(script):
                self.assertEqual(self.run_ranks(RUN_A_SCRIPT, script).count("ended well"), RANKS)

    @needs("lightning")
    def test_lightning_trains_to_gloos_bits(self):
        found = {}
        with tempfile.TemporaryDirectory() as folder:
            for backend in ("headrace", "gloo"):
                path = os.path.join(folder, backend)
                self.run_ranks(TRAIN_BY_LIGHTNING, backend, path)
                found[backend] = []
                for rank in range(RANKS):
                    with open(f"{path}.{rank}") as file:
                        _, named, weights = file.read().split()
                    self.assertEqual(named, backend)
                    found[backend].append(weights)
        self.assertEqual(found["headrace"], found["gloo"])

    def parameters_of(self, example, *arguments):
        """The digest that an example prints last."""
        said = self.run_file(os.path.join(ROOT, "client", "examples", example), *arguments)
        found = re.search(r"^2 ranks over (\w+): .*parameters (\w+)(.*)$", said, re.MULTILINE)
        self.assertIsNotNone(found, said)
        self.assertNotIn("NOT", found[3])
        self.assertIn(found[1], arguments or ("headrace",))
        return found[2]

    @unittest.skipUnless(has_fully_shard(), "this torch has no fully_shard()")
    def test_fully_shard_trains_to_gloos_bits(self):
        expected = self.parameters_of("fsdp2.py", "--backend", "gloo")
        self.assertEqual(self.parameters_of("fsdp2.py", "--backend", "headrace"), expected)
        accelerated = self.parameters_of("fsdp2.py", "--backend", "headrace", "--accelerate")
        self.assertEqual(accelerated, expected)

    @needs("transformers")
    @needs("accelerate")
    def test_hugging_faces_trainer_trains_to_gloos_bits(self):
        expected = self.parameters_of("hf_trainer.py", "--backend", "gloo")
        self.assertEqual(self.parameters_of("hf_trainer.py", "--backend", "headrace"), expected)


if __name__ == "__main__":
    main()
