"""One rank of three nodes, as torchrun starts it: the backend "headrace", then a scheduled optimizer.

usage: cluster_torch.py FOLDER     leaves FOLDER/parameters.RANK
"""

from __future__ import annotations

import os
import sys
import unittest.mock
from collections.abc import Iterator

import headrace
import headrace.torch
import torch
import torch.distributed as dist

STEPS = 20


def check_backend(rank: int, ranks: int) -> None:
    """Whole group, groups that leave out the node where services meet, sends and receives."""
    tensor = torch.full((1000,), float(rank))
    dist.all_reduce(tensor)
    assert torch.equal(tensor, torch.full((1000,), float(sum(range(ranks))))), tensor
    later = dist.new_group(list(range(1, ranks)))
    if rank > 0:
        tensor = torch.tensor([rank])
        dist.all_reduce(tensor, group=later)
        assert tensor.item() == sum(range(1, ranks)), tensor
    output = torch.zeros(ranks, 3)
    dist.all_to_all_single(output, torch.full((ranks, 3), float(rank)))
    assert torch.equal(output, torch.arange(float(ranks)).view(-1, 1).expand(ranks, 3))
    received = torch.zeros(4)
    sending = dist.isend(torch.full((4,), rank + 0.5), (rank + 1) % ranks)
    dist.recv(received, (rank - 1) % ranks)
    sending.wait()
    assert torch.equal(received, torch.full((4,), (rank - 1) % ranks + 0.5))
    dist.barrier()


def check_messages(rank: int, ranks: int) -> None:
    """Large ones in both directions at a time, tags in another order, from any source."""
    after, before = (rank + 1) % ranks, (rank - 1) % ranks
    large = [torch.zeros(2_000_000), torch.zeros(2_000_000)]
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.irecv, large[0], before),
            dist.P2POp(dist.irecv, large[1], after),
            dist.P2POp(dist.isend, torch.full((2_000_000,), float(rank)), after),
            dist.P2POp(dist.isend, torch.full((2_000_000,), rank + 0.5), before),
        ]
    )
    for work in works:
        work.wait()
    assert torch.equal(large[0], torch.full((2_000_000,), float(before)))
    assert torch.equal(large[1], torch.full((2_000_000,), after + 0.5))
    sent = [dist.isend(torch.tensor([rank, tag]), after, tag=tag) for tag in (5, 6)]
    for tag in (6, 5):
        received = torch.zeros(2, dtype=torch.int64)
        dist.recv(received, before, tag=tag)
        assert received.tolist() == [before, tag], received
    for work in sent:
        work.wait()
    if rank != 0:
        dist.send(torch.tensor([rank]), 0)
        return
    seen = []
    for _ in range(ranks - 1):
        received = torch.zeros(1, dtype=torch.int64)
        seen.append(dist.recv(received))
        assert received.item() == seen[-1], (received, seen)
    assert sorted(seen) == list(range(1, ranks)), seen


def check_compressed(rank: int, ranks: int) -> None:
    """A group whose all_reduces cross as bf16, beside one that has none of it."""
    group = dist.new_group(pg_options=headrace.torch.GroupOptions(compress="bf16"))
    random = torch.Generator().manual_seed(7)
    parts = torch.randn(ranks, 100_000, generator=random)
    exact = parts.double().sum(dim=0)
    compressed, plain = parts[rank].clone(), parts[rank].clone()
    dist.all_reduce(compressed, group=group)
    dist.all_reduce(plain)
    error = float((compressed - exact).abs().max())
    assert 1e-3 < error < 0.2, error
    assert float((plain - exact).abs().max()) < 1e-5
    largest = parts[rank].clone()
    dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
    assert torch.equal(largest, parts.max(dim=0).values)
    others = [torch.empty_like(compressed) for _ in range(ranks)]
    dist.all_gather(others, compressed)
    for other in others:
        assert torch.equal(other, compressed), "ranks differ"
    module = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Linear(400, 100), process_group=group
    )
    # DDP divides before it sums, and of small whole numbers bf16 loses nothing.
    module(torch.full((2, 400), float(rank * ranks))).sum().backward()
    average = torch.full_like(module.module.weight, float(ranks * (ranks - 1)))
    assert torch.equal(module.module.weight.grad, average), module.module.weight.grad
    try:
        dist.new_group(pg_options=headrace.torch.GroupOptions(compress="int8"))
    except ValueError as error:
        assert "compressed_hook" in str(error)
    else:
        raise AssertionError("a codec that needs residuals was taken")


class Weights(torch.nn.Module):
    """Its gradient is its input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(100, 400))

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return (self.weight * given).sum()


class Hooked:
    """DistributedDataParallel whose buckets cross in a codec once they stay as they are."""

    def __init__(self, job: str, codec: str) -> None:
        self.session = headrace.init(job)
        module = Weights()
        optimizer = torch.optim.SGD(module.parameters(), 0.1)
        self.state = headrace.torch.CompressedState(self.session, codec, module, optimizer)
        self.model = torch.nn.parallel.DistributedDataParallel(module)
        self.model.register_comm_hook(self.state, headrace.torch.compressed_hook)

    def average(self, given: torch.Tensor) -> torch.Tensor:
        self.model.zero_grad()
        self.model(given).backward()
        return self.model.module.weight.grad.clone()

    def averages(self, given: torch.Tensor) -> Iterator[torch.Tensor]:
        """Those that are encoded."""
        while self.state.layout is None:
            average = self.average(given)
        yield average
        while True:
            yield self.average(given)


def check_hook(rank: int, ranks: int, codec: str, most: float) -> None:
    """The hook encodes between nodes, alike on all ranks, and goes on from what was saved."""
    parts = torch.randn(ranks, 100, 400, generator=torch.Generator().manual_seed(9))
    exact = parts.double().mean(dim=0)
    first = Hooked(f"hook.{codec}", codec)
    averages = first.averages(parts[rank])
    applied = torch.zeros_like(exact)
    count = 5
    for _ in range(count):
        average = next(averages)
        applied += average
        error = float((average - exact).abs().max())
        assert 1e-4 < error < most, error
        others = [torch.empty_like(average) for _ in range(ranks)]
        dist.all_gather(others, average)
        for other in others:
            assert torch.equal(other, average), "ranks differ"
    saved = first.state.state_dict()
    left_out = saved["residuals"]["values"].view(torch.float32).view(100, 400).double()
    dist.all_reduce(left_out)
    error = float((applied + left_out / ranks - count * exact).abs().max())
    assert error < 1e-5, f"{error} was lost"
    after = next(averages)
    assert not torch.equal(next(averages), after), "what was left out before counts"
    first.state.load_state_dict(saved)
    assert torch.equal(next(averages), after), "loaded into a state that has a layout"
    second = Hooked(f"hook.again.{codec}", codec)
    second.state.load_state_dict(saved)
    assert torch.equal(next(second.averages(parts[rank])), after), "loaded before there is one"
    dist.barrier()
    for each in (first, second):
        each.session.close()


def train(rank: int, ranks: int) -> torch.Tensor:
    """With gradients that move by the job's plan, in the job that torchrun's variables name."""
    torch.manual_seed(rank)  # ScheduledOptimizer gives everybody rank 0's parameters
    layers = [torch.nn.Linear(16, 300), torch.nn.Tanh(), torch.nn.Linear(300, 4)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    random = torch.Generator().manual_seed(1)
    with headrace.init() as session, headrace.torch.ScheduledOptimizer(
        optimizer, model, session
    ) as scheduled:  # fmt: skip
        for _ in range(STEPS):
            inputs = torch.randn(ranks, 8, 16, generator=random)
            targets = torch.randint(0, 4, (ranks, 8), generator=random)
            scheduled.zero_grad()
            output = model(inputs[rank])
            torch.nn.functional.cross_entropy(output, targets[rank]).backward()
            scheduled.step()
        scheduled.synchronize()
        session.barrier()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("headrace")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    check_backend(rank, ranks)
    check_messages(rank, ranks)
    check_compressed(rank, ranks)
    with unittest.mock.patch.dict(os.environ, HEADRACE_POLICY="wfbp"):  # always the same blocks
        check_hook(rank, ranks, "int8", 0.2)
        check_hook(rank, ranks, "powersgd:2", 10)  # of noise two directions are little
    flat = train(rank, ranks)
    flat.numpy().tofile(os.path.join(sys.argv[1], f"parameters.{rank}"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
