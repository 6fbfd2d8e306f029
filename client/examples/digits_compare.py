"""The training of digits.py without Headrace, to compare with: DDP over gloo, or one process alone.

torch.distributed reads rank, world size and where ranks meet from the environment, as torchrun sets it;
a WORLD_SIZE of 0 means one process without any communication.
"""

import os

import digits_task
import torch.distributed
from torch.nn.parallel import DistributedDataParallel


def nothing() -> None:
    """Where one process has nobody to wait for, and where DDP has waited within backward."""


def main() -> None:
    arguments = digits_task.parse(__doc__.splitlines()[0])
    digits, model = digits_task.Digits(), digits_task.make_model()
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    trained, barrier = model, nothing
    if ranks > 0:
        torch.distributed.init_process_group("gloo")
        trained = DistributedDataParallel(model, gradient_as_bucket_view=True)
        barrier = torch.distributed.barrier
    costs = digits_task.fit(
        trained,
        digits,
        arguments,
        rank,
        max(ranks, 1),
        zero_grad=trained.zero_grad,
        average=nothing,
        barrier=barrier,
    )
    digits_task.report(model, digits, arguments, rank, costs)
    if ranks > 0:
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
