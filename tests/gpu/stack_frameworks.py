"""Training by programs of others that take the process group that is there; nothing is downloaded."""

from __future__ import annotations

import importlib.util

import torch
from stack_model import BATCH, LENGTH, RANKS, STEPS, WORDS, Stack, Training
from torch_device import REHEARSAL


def hugging_face(on: torch.device) -> Training:
    """GPT-2 as transformers builds it, with chance's parameters, under accelerate's Accelerator."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from transformers import GPT2Config, GPT2LMHeadModel

    AcceleratorState._reset_state(True)  # of the training before, whose process group is gone
    torch.manual_seed(1)
    layers, width, heads = (2, 32, 4) if REHEARSAL else (4, 512, 8)
    config = GPT2Config(
        n_layer=layers, n_embd=width, n_head=heads, vocab_size=WORDS, n_positions=LENGTH,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    chance = torch.Generator().manual_seed(2)
    tokens = torch.randint(0, WORDS, (RANKS * STEPS * BATCH, LENGTH), generator=chance)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(tokens), BATCH)
    accelerator = Accelerator(mixed_precision="bf16", cpu=REHEARSAL)
    where = accelerator.device
    if accelerator.num_processes != RANKS or (where.type, where.index or 0) != (on.type, on.index or 0):
        raise RuntimeError(f"accelerate has {accelerator.num_processes} processes, this one on {where}, not {on}")
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    batches = iter(loader)

    def step(_: int) -> None:
        (tokens,) = next(batches)
        optimizer.zero_grad()
        accelerator.backward(model(input_ids=tokens, labels=tokens).loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return Training(step, model)


def hugging_face_lack() -> str:
    missing = [name for name in ("transformers", "accelerate") if importlib.util.find_spec(name) is None]
    return f"no {' and no '.join(missing)} for this Python" if missing else ""


STACKS = {"hugging_face": Stack("GPT-2 under Hugging Face's accelerate", hugging_face, lack=hugging_face_lack)}
