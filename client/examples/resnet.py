"""Trains a small ResNet on handwritten digits.

Under torchrun, with the service running and its library built:

    export PYTHONPATH=client/python HEADRACE_SOCKET=/tmp/headrace.sock
    export HEADRACE_LIBRARY=build/release/libheadrace.so
    torchrun --nproc_per_node 2 --redirects 1 --tee 1 client/examples/resnet.py --steps 60

(--redirects and --tee are needed by torch 1.13 under Python 3.11 only.) On a machine whose two cores
had a lot else to do, rank 0 printed

    step    1  loss 2.0026
    step   20  loss 1.3398
    step   40  loss 0.1780
    step   60  loss 0.1849
    scheduled, by default: 2 ranks, 0.70 million parameters, an iteration 84.1 ms, of which 1.7 ms waiting, loss 0.1849

and with --ddp gloo the same losses, then

    DDP, gloo: 2 ranks, 0.70 million parameters, an iteration 93.5 ms, of which 15.2 ms waiting, loss 0.1849

On one node there is little to hide; a link between nodes is what the plan is for.
"""

from __future__ import annotations

import argparse

import digits
import torch
import training
from torch.nn import functional

GROUPS = 8  # channels are normalised in groups: so no rank has statistics of its own


def norm(channels: int) -> torch.nn.Module:
    return torch.nn.GroupNorm(GROUPS, channels)


class Block(torch.nn.Module):
    """Two convolutions, added to what came in."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.first_norm = norm(out)
        self.second = torch.nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.second_norm = norm(out)
        self.shortcut = torch.nn.Sequential()
        if stride != 1 or channels != out:
            convolution = torch.nn.Conv2d(channels, out, 1, stride, bias=False)
            self.shortcut = torch.nn.Sequential(convolution, norm(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu(self.first_norm(self.first(x)))
        y = self.second_norm(self.second(y))
        return functional.relu(y + self.shortcut(x))


def make_model(width: int, blocks: int) -> torch.nn.Module:
    """Three stages; each halves the image and doubles the channels, except the first."""
    layers = [torch.nn.Conv2d(1, width, 3, 1, 1, bias=False), norm(width), torch.nn.ReLU()]  # fmt: skip
    channels = width
    for stage in range(3):
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(Block(channels, width << stage, stride))
            channels = width << stage
    layers += [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(channels, 10))


def parse() -> argparse.Namespace:
    parser = training.parse(__doc__.splitlines()[0], steps=60)
    parser.add_argument("--width", type=int, default=32, help="channels of stage 1")
    parser.add_argument("--blocks", type=int, default=2, help="in each stage")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    images, labels = digits.Digits().train
    torch.manual_seed(arguments.seed)
    model = make_model(arguments.width, arguments.blocks)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)

    def batch_of(samples: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = torch.randint(len(labels), (arguments.batch,), generator=samples)
        return images[chosen], labels[chosen]

    training.fit(arguments, model, optimizer, batch_of, functional.cross_entropy)


if __name__ == "__main__":
    main()
