"""Hugging Face's Trainer over Headrace: the process group is made before the Trainer is.

Under a service, with torch, transformers and accelerate, on CPUs:

    headrace run -- torchrun --nproc_per_node 2 client/examples/hf_trainer.py
    torchrun --nproc_per_node 2 client/examples/hf_trainer.py --backend gloo        # to compare

Trains a small GPT-2 with random weights on made-up tokens (nothing is downloaded), and prints the backend, the
last loss and a digest of the parameters, which is the same for both.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Trainer asks accelerate, which would choose a backend of its own list if there were no group.
os.environ.setdefault("ACCELERATE_USE_CPU", "true")

import torch
import torch.distributed as dist

try:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
except ImportError as error:
    raise SystemExit(
        f"this example needs transformers and accelerate (pip install transformers accelerate): {error}"
    ) from error

VOCABULARY, LENGTH, SAMPLES = 64, 16, 64


class Counting(torch.utils.data.Dataset):
    """Rows that count upwards from somewhere."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = (torch.arange(LENGTH) + 7 * index) % VOCABULARY
        return {"input_ids": tokens, "labels": tokens}


def make_model() -> GPT2LMHeadModel:
    torch.manual_seed(1)
    shape = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": LENGTH}
    without_chance = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, bos_token_id=0, eos_token_id=0, **shape, **without_chance))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--backend", default="headrace")
    parser.add_argument("--steps", type=int, default=8)
    arguments = parser.parse_args()
    if arguments.backend == "headrace":
        import headrace.torch  # noqa: F401
    torch.set_num_threads(1)
    dist.init_process_group(arguments.backend)
    model = make_model()
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=model,
            args=TrainingArguments(
                output_dir=folder, use_cpu=True, max_steps=arguments.steps, report_to=[],
                per_device_train_batch_size=4, save_strategy="no", logging_strategy="no",
                disable_tqdm=True, learning_rate=1e-3, seed=1, data_seed=1,
            ),
            train_dataset=Counting(),
        )  # fmt: skip
        result = trainer.train()
    bits = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    found = hashlib.sha256(bits).hexdigest()[:12]
    found_everywhere: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(found_everywhere, found)
    if dist.get_rank() == 0:
        same = "the same" if len(set(found_everywhere)) == 1 else "NOT the same"
        print(
            f"{dist.get_world_size()} ranks over {dist.get_backend()}: loss "
            f"{result.training_loss:.4f}, parameters {found}, {same} on all",
            flush=True,
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
