"""Trains a network on handwritten digits; gradients are averaged by headraced.

Every process is one rank. With the service running and its library built:

    export PYTHONPATH=client/python HEADRACE_LIBRARY=build/release/libheadrace.so
    torchrun --nproc_per_node 4 client/examples/digits.py

Beside a script for one process, it takes the lines marked (1) to (4).
"""

import digits_task
import headrace  # (1)
import headrace.torch


def main() -> None:
    arguments = digits_task.parse(__doc__.splitlines()[0])
    digits, model = digits_task.Digits(), digits_task.make_model()
    with (
        headrace.init() as session
    ):  # (2) rank, world size and job come from the environment
        headrace.torch.broadcast_parameters(session, model)
        arena = headrace.torch.GradientArena(session, model.named_parameters())  # (3)
        costs = digits_task.fit(
            model,
            digits,
            arguments,
            session.rank,
            session.world_size,
            zero_grad=arena.zero_grad,
            average=arena.wait,  # (4) before optimizer.step()
            barrier=session.barrier,
        )
        digits_task.report(model, digits, arguments, session.rank, costs)
        session.barrier()


if __name__ == "__main__":
    main()
