"""Training over the backend "headrace": DDP, FSDP and a plain loop, against the same over gloo.

With two ranks a sum has no order, so the parameters must agree to the bit.
"""

import contextlib
import copy
import os
import threading
import time
import unittest

import headrace
import headrace.torch
import torch
import torch.distributed as dist
from ranks import ServiceCase
from support.patience import SOON_S
from torch.nn.parallel import DistributedDataParallel
from torch_ranks import MODERN, main, run_group, start_group

if MODERN:
    import torch.distributed.fsdp  # once here, and not in every rank

RANKS = 2
STEPS = 8


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64)]
    return torch.nn.Sequential(*layers, torch.nn.Tanh(), torch.nn.Linear(64, 4))


def fit(model, rank, average=lambda: None, optimizer=None) -> list:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    random = torch.Generator().manual_seed(1)
    inputs = torch.randn(STEPS, RANKS, 8, 16, generator=random)
    targets = torch.randint(0, 4, (STEPS, RANKS, 8), generator=random)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        output = model(inputs[step, rank])
        loss = torch.nn.functional.cross_entropy(output, targets[step, rank])
        loss.backward()
        average()
        optimizer.step()
        losses.append(loss.item())
    return losses


def trained(model) -> list:
    return [p.detach().clone().numpy().tobytes() for p in model.parameters()]


def plain_loop(rank):
    model = network()

    def average():
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= RANKS

    fit(model, rank, average)
    return trained(model)


def with_ddp(rank, **options):
    model = network()
    if rank == 1:  # DDP gives everybody rank 0's
        with torch.no_grad():
            model[0].weight.zero_()
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.01, **options)
    fit(ddp, rank)
    return trained(model)


def with_ddp_that_looks_for_unused(rank):
    return with_ddp(rank, find_unused_parameters=True)


class Branches(torch.nn.Module):
    """A model with parts of which each rank uses another."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.branches = torch.nn.ModuleList([torch.nn.Linear(16, 4) for _ in range(3)])

    def forward(self, x):
        return self.branches[dist.get_rank()](x)


def with_branches(rank):
    model = Branches()
    fit(DistributedDataParallel(model, find_unused_parameters=True), rank)
    return trained(model)


def with_micro_batches(rank):
    model = network()
    ddp = DistributedDataParallel(model)
    for step in range(4):
        quiet = ddp.no_sync() if step % 2 == 0 else contextlib.nullcontext()
        with quiet:
            ddp(torch.full((2, 16), float(rank + step))).sum().backward()
    return [p.grad.numpy().tobytes() for p in model.parameters()]


def with_fsdp(rank):
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(network(), device_id=torch.device("cpu"))
    losses = fit(model, rank)
    with FullyShardedDataParallel.summon_full_params(model):
        return losses, trained(model)


def with_fully_shard(rank):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (RANKS,))
    model = network()
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    losses = fit(model, rank)
    whole = [p.full_tensor().detach().numpy().tobytes() for p in model.parameters()]
    return losses, whole


def with_functional_collectives(rank):
    import torch.distributed._functional_collectives as functional

    group = dist.group.WORLD
    total = functional.all_reduce(torch.full((3,), rank + 1.0), "sum", group)
    gathered = functional.all_gather_into_tensor_coalesced(
        [torch.full((2,), float(rank))], group
    )[0]
    part = functional.reduce_scatter_tensor_coalesced(
        [torch.arange(4.0)], "sum", [0], group
    )[0]
    return [functional.wait_tensor(t).tolist() for t in (total, gathered, part)]


def compiled(model):
    """By dynamo and autograd's tracer; what runs stays torch's own, so the bits do."""
    return torch.compile(model, backend="aot_eager")


def with_compiled_ddp(rank):
    model = network()
    fit(compiled(DistributedDataParallel(model)), rank)
    return trained(model), torch._dynamo.utils.counters["graph_break"].total()


def with_ddp_of_a_compiled_model(rank):
    model = network()
    fit(DistributedDataParallel(compiled(model)), rank)
    return trained(model)


def with_compiled_fully_shard(rank):
    from torch.distributed.fsdp import fully_shard

    model = network()
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    fit(compiled(model), rank)
    whole = [p.full_tensor().detach().numpy().tobytes() for p in model.parameters()]
    return whole, torch._dynamo.utils.counters["graph_break"].total()


def with_compiled_functions(rank):
    @torch.compile(backend="aot_eager", fullgraph=True)
    def summed(x):
        y = x * 2
        dist.all_reduce(y)
        return y + 1

    return [summed(torch.full((3,), rank + 1.0)).tolist() for _ in range(2)]


def with_scheduled(rank, how):
    """The optimizer wrapped around a model that is compiled, or one that is compiled afterwards.

    Parameters; graphs that dynamo made, and why it broke them; modules that wait for gradients of their own.
    """
    model = network()
    session = headrace.init(job="scheduled", rank=rank, world_size=RANKS)
    called = compiled(model) if how == "compiled" else model
    optimizer = headrace.torch.ScheduledOptimizer(
        torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), called, session=session
    )
    if how == "compiled later":
        called = compiled(model)
    fit(called, rank, optimizer=optimizer)
    optimizer.close()
    session.close()
    waiting = sum(any(True for _ in each.parameters(recurse=False)) for each in model.modules())
    if how == "plain":
        return trained(model), 0, [], waiting
    counters = torch._dynamo.utils.counters
    reasons = list(counters["graph_break"])
    return trained(model), counters["stats"]["unique_graphs"], reasons, waiting


def with_a_copy(rank):
    """What a deep copy of a scheduled model computes once its parameters are zeros; what is left behind by close()."""
    model = network()
    session = headrace.init(job="copied", rank=rank, world_size=RANKS)
    optimizer = headrace.torch.ScheduledOptimizer(torch.optim.SGD(model.parameters(), 0.1), model, session=session)
    fit(model, rank, optimizer=optimizer)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
        found = other(torch.ones(1, 16)).abs().max().item(), model(torch.ones(1, 16)).abs().max().item()
    optimizer.close()
    session.close()
    return *found, sum("forward" in vars(each) for each in model.modules())


def with_a_static_graph(rank):
    """In its first pass DDP waits for its all-reduces before backward has ended."""
    ddp = DistributedDataParallel(network(), static_graph=True)
    fit(ddp, rank)
    return trained(ddp.module)


def threads_of_ddp(rank):
    """Of one with a small and of one with a large all-reduce."""
    found = []
    for width in (100, 600):
        ddp = DistributedDataParallel(torch.nn.Linear(width, width))
        for _ in range(3):
            ddp(torch.ones(2, width)).sum().backward()
        found.append(sum(each.name.startswith("headrace-") for each in threading.enumerate()))
    return found


def with_powersgd(rank):
    """Its hook waits for a future in the callback of another."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    model = network()
    ddp = DistributedDataParallel(model)
    state = powerSGD_hook.PowerSGDState(
        None,
        matrix_approximation_rank=1,
        start_powerSGD_iter=2,
        min_compression_rate=0.5,
    )
    ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    fit(ddp, rank)
    return trained(model)


def with_callbacks_that_wait(rank):
    """Each waits for a collective that is posted after its own."""
    later: list[torch.futures.Future] = []

    def wait(future, index):
        return future.value()[0] + later[index + 1].wait()[0]

    first = [
        dist.all_reduce(torch.full((2,), float(i)), async_op=True) for i in range(8)
    ]
    futures = [work.get_future() for work in first]
    later += futures
    sums = [futures[i].then(lambda f, i=i: wait(f, i)) for i in range(7)]
    return [total.wait().tolist() for total in sums]


def with_ddp_where_a_rank_dies(rank):
    ddp = DistributedDataParallel(network())
    fit(ddp, rank)
    if rank == 1:
        os._exit(9)
    began = time.monotonic()
    try:
        fit(ddp, rank)
    except (RuntimeError, headrace.Error) as error:
        # Nothing that needs the dead rank may follow.
        dist.barrier = lambda: None
        return str(error), time.monotonic() - began
    return "", 0.0


class Training(ServiceCase):
    def check_like_gloo(self, function):
        ours = run_group(self.service, RANKS, function)
        self.assertEqual(ours, run_group(None, RANKS, function, backend="gloo"))
        return ours

    def test_of_a_plain_loop_gives_gloos_bits(self):
        first, second = self.check_like_gloo(plain_loop)
        self.assertEqual(first, second)

    def test_with_ddp_gives_gloos_bits(self):
        first, second = self.check_like_gloo(with_ddp)
        self.assertEqual(first, second)

    def test_with_ddp_that_looks_for_unused_parameters_gives_gloos_bits(self):
        self.check_like_gloo(with_ddp_that_looks_for_unused)

    def test_with_ddp_where_each_rank_uses_other_parameters_gives_gloos_bits(self):
        first, second = self.check_like_gloo(with_branches)
        self.assertEqual(first, second)

    def test_with_ddp_accumulates_micro_batches(self):
        self.check_like_gloo(with_micro_batches)

    def test_with_ddp_names_the_rank_that_died(self):
        ranks = start_group(self.service, RANKS, with_ddp_where_a_rank_dies)
        text, seconds = ranks[0].result()
        ranks[1].end()
        self.assertIn("rank 1", text)
        self.assertIn(str(ranks[1].pid), text)
        self.assertLess(seconds, SOON_S)

    @unittest.skipUnless(MODERN, "FSDP of torch 1.13 runs on CUDA only")
    def test_with_fsdp_gives_gloos_bits(self):
        self.check_like_gloo(with_fsdp)

    @unittest.skipUnless(
        hasattr(getattr(dist, "fsdp", None), "fully_shard"),
        "no fully_shard before torch 2.6",
    )
    def test_with_fully_shard_gives_gloos_bits(self):
        (_, first), (_, second) = self.check_like_gloo(with_fully_shard)
        self.assertEqual(first, second)

    def test_with_ddp_of_a_static_graph_gives_gloos_bits(self):
        first, second = self.check_like_gloo(with_a_static_graph)
        self.assertEqual(first, second)

    def test_small_all_reduces_of_ddp_end_without_a_thread(self):
        self.assertEqual(run_group(self.service, RANKS, threads_of_ddp), [[0, 1]] * RANKS)

    def test_powersgd_gives_gloos_bits(self):
        first, second = self.check_like_gloo(with_powersgd)
        self.assertEqual(first, second)

    def test_callbacks_may_wait_for_other_futures(self):
        for sums in run_group(self.service, RANKS, with_callbacks_that_wait):
            self.assertEqual(sums, [[RANKS * (2.0 * i + 1)] * 2 for i in range(7)])

    @unittest.skipUnless(MODERN, "torch 1.13 does not compile")
    def test_of_compiled_models_gives_gloos_bits_and_graphs(self):
        for function in (
            with_compiled_ddp,
            with_ddp_of_a_compiled_model,
            with_compiled_fully_shard,
            with_compiled_functions,
        ):
            with self.subTest(function.__name__):
                self.check_like_gloo(function)

    @unittest.skipUnless(MODERN, "torch 1.13 does not compile")
    def test_scheduled_optimizers_take_compiled_models(self):
        plain = run_group(self.service, RANKS, with_scheduled, "plain")
        for how in ("compiled", "compiled later"):
            with self.subTest(how):
                found = run_group(self.service, RANKS, with_scheduled, how)
                self.assertEqual([each[0] for each in found], [each[0] for each in plain])
                for _, graphs, reasons, waiting in found:
                    # What each module computes that waits, broken by the waits and for no other reason.
                    self.assertEqual(graphs, waiting)
                    self.assertGreater(waiting, 1)
                    for reason in reasons:
                        self.assertIn("ModelHooks._register", reason)

    def test_copies_of_scheduled_models_are_models_of_their_own(self):
        for copied, own, left in run_group(self.service, RANKS, with_a_copy):
            self.assertEqual((copied, left), (0, 0))
            self.assertGreater(own, 0)

    @unittest.skipUnless(MODERN, "torch 1.13 has no functional collectives")
    def test_functional_collectives_run(self):
        for results in run_group(self.service, RANKS, with_functional_collectives):
            total, gathered, part = results
            self.assertEqual(total, [3.0] * 3)
            self.assertEqual(gathered, [0.0, 0.0, 1.0, 1.0])
            self.assertIn(part, ([0.0, 2.0], [4.0, 6.0]))


if __name__ == "__main__":
    main()
