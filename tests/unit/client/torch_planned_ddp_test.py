"""DDP's small buckets by a plan, without a line of the script: the same bits, and operations again on a departure."""

import contextlib
import os
import time
import unittest
import unittest.mock

import headrace
import headrace.torch
import torch
import torch.distributed as dist
from headrace.torch import planned_ddp
from headrace.torch.planned_ddp import Step
from ranks import ServiceCase
from torch.nn.parallel import DistributedDataParallel
from torch_ranks import main, run_group, start_group

STEPS = 14
PAUSE_S = 0.05
PLANNED_FROM = 7  # the iteration, counted from 0, from which on buckets have been gradients for sure


def group_that(plans):
    return dist.new_group(pg_options=headrace.torch.GroupOptions(plan_ddp=plans))


def network(layers=6, norm=True):
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(16, 64),
        torch.nn.BatchNorm1d(64) if norm else torch.nn.Tanh(),
        *[torch.nn.Linear(64, 64) for _ in range(layers)],
        torch.nn.Linear(64, 4),
    )


class Branches(torch.nn.Module):
    """A model with parts of which each rank uses another in each step."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.branches = torch.nn.ModuleList([torch.nn.Linear(16, 400) for _ in range(3)])
        self.step = 0

    def forward(self, x):
        self.step += 1
        return self.branches[(dist.get_rank() + self.step) % 3](x)


def wrapped(model, group, cap=0.02, **options):
    # Else the first bucket may have a megabyte, which is the whole model.
    with unittest.mock.patch.object(dist, "_DEFAULT_FIRST_BUCKET_BYTES", 20000):
        return DistributedDataParallel(model, bucket_cap_mb=cap, process_group=group, **options)


def batch(step, dtype=torch.float32):
    random = torch.Generator().manual_seed(100 * step + dist.get_rank())
    return torch.randn(8, 16, generator=random).to(dtype)


def bits(*models):
    return [p.detach().view(torch.uint8 if p.dtype == torch.bfloat16 else p.dtype).numpy().tobytes()
            for model in models for p in model.parameters()]  # fmt: skip


class Loop:
    """A training loop over one group; ``at`` is called in each iteration where a test wants something done."""

    def __init__(self, plans, make=network, dtype=torch.float32, **options):
        self.group = group_that(plans)
        self.buckets = self.group._ddp
        self.dtype = dtype
        self.model = wrapped(make().to(dtype), self.group, **options)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01, momentum=0.9)

    def iterate(self, step):
        self.optimizer.zero_grad()
        self.model(batch(step, self.dtype)).float().pow(2).mean().backward()
        self.optimizer.step()

    def outcome(self):
        step = None if self.buckets is None else self.buckets.step.name
        return step, bits(self.model)


def plainly(rank, plans, options):
    loop = Loop(plans, **options)
    for step in range(STEPS):
        loop.iterate(step)
    return loop.outcome()


def of_a_pass(rank, plans, options):
    """Bits with gradients that have accumulated, and with others' operations between the passes."""
    loop = Loop(plans, **options)
    for step in range(STEPS):
        if step % 3 == 2:
            with loop.model.no_sync():
                loop.model(batch(1000 + step)).mean().backward()
        loop.iterate(step)
        dist.all_reduce(torch.ones(5), group=loop.group)
        dist.barrier(loop.group)
        if rank == step % 2:
            dist.send(torch.ones(3), 1 - rank, group=loop.group)
        else:
            dist.recv(torch.ones(3), 1 - rank, group=loop.group)
    return loop.outcome()


def joined(rank, plans, options):
    """Rank 1 has more batches, and rank 0 shadows its all-reduces."""
    loop = Loop(plans, **options)
    with loop.model.join():
        for step in range(STEPS + 4 * rank):
            loop.iterate(step)
    return loop.outcome()


def with_a_barrier_in_backward(rank, plans, options):
    loop = Loop(plans, **options)
    for step in range(STEPS):
        handle = None
        if step == PLANNED_FROM + 2:
            work = []
            handle = loop.model.module[3].weight.register_hook(
                lambda _, work=work: work.append(dist.barrier(loop.group, async_op=True))
            )
            before = loop.buckets and loop.buckets.step
        loop.iterate(step)
        if handle is not None:
            handle.remove()
            work[0].wait()
            assert before in (None, Step.PLANNED), before
    return loop.outcome()


def with_another_model(rank, plans, options):
    """One whose buckets are the first ones of the first model, and which waits within its backward pass."""
    loop = Loop(plans, **options)
    for step in range(PLANNED_FROM + 2):
        loop.iterate(step)
    before = loop.buckets and loop.buckets.step
    assert before in (None, Step.PLANNED), before
    other = wrapped(network(3)[2:], loop.group, static_graph=True)
    optimizer = torch.optim.SGD(other.parameters(), 0.01)
    for step in range(4):
        optimizer.zero_grad()
        other(torch.full((8, 64), rank + 0.1 * step)).pow(2).mean().backward()
        optimizer.step()
        loop.iterate(step)
    step, _ = loop.outcome()
    return step, bits(loop.model, other)


def after_an_exception(rank, plans, options):
    """An exception in backward, which DDP does not survive. The group does."""
    loop = Loop(plans, **options)
    for step in range(PLANNED_FROM + 2):
        loop.iterate(step)

    def fail(_):
        raise ArithmeticError("on purpose")

    loop.model.module[3].weight.register_hook(fail)
    with contextlib.suppress(ArithmeticError, RuntimeError):
        loop.iterate(step + 1)
    tensor = torch.full((7,), rank + 1.0)
    dist.all_reduce(tensor, group=loop.group)
    return loop.outcome()[0], tensor.tolist()


def where_one_rank_sees_something_else(rank):
    """Rank 1 thinks that its buckets are not worth it."""
    no = unittest.mock.patch.object(planned_ddp, "_is_worthwhile", lambda _: False)
    loop = Loop(True)
    with no if rank == 1 else contextlib.nullcontext():
        for step in range(STEPS):
            loop.iterate(step)
    return loop.outcome()


def where_one_rank_departs(rank):
    """Rank 1 alone ends an iteration in its midst."""
    loop = Loop(True)
    for step in range(PLANNED_FROM + 2):
        loop.iterate(step)
    assert loop.buckets.step == Step.PLANNED, loop.buckets.step
    if rank == 1:
        loop.model.module[3].weight.register_hook(lambda _: loop.buckets.depart())
    text, seconds = error_of(lambda: loop.iterate(STEPS), rank)
    dist.barrier = lambda: None  # rank 0 leaves with its error, for which rank 1 waits
    return text, seconds


def where_one_rank_posts_an_operation(rank):
    """Where the other one begins an iteration."""
    loop = Loop(True, make=lambda: network(norm=False))  # without buffers that DDP would send first
    for step in range(PLANNED_FROM + 2):
        loop.iterate(step)
    if rank == 1:
        return error_of(lambda: dist.all_reduce(torch.ones(33), group=loop.group), rank)
    return error_of(lambda: loop.iterate(STEPS), rank)


def where_one_rank_dies(rank):
    loop = Loop(True)
    for step in range(PLANNED_FROM + 2):
        loop.iterate(step)
    if rank == 1:
        loop.model.module[3].weight.register_hook(lambda _: os._exit(9))
    text, seconds = error_of(lambda: loop.iterate(STEPS), rank)
    dist.barrier = lambda: None
    return text, seconds


def error_of(call, rank):
    began = time.monotonic()
    try:
        call()
    except (RuntimeError, headrace.Error) as error:
        return str(error), time.monotonic() - began
    return "", time.monotonic() - began


def in_shared_memory(rank):
    group = group_that(True)
    with headrace.torch.shared_memory(group):
        model = wrapped(network(), group, gradient_as_bucket_view=True, find_unused_parameters=True)
    for step in range(8):
        model(batch(step)).mean().backward()
    return group._ddp.step.name


def with_pauses(rank, service):
    """What the plan has measured of a loop that computes and pauses between its backward passes."""
    loop = Loop(True)
    for step in range(STEPS):
        loop.iterate(step)
        time.sleep(PAUSE_S)
    (job,) = service.ctl_json("plan", loop.buckets.layout.session.job)["jobs"]
    dist.barrier(loop.group)
    return job["plan"]["forward_ns"] / 1e9


def steps_of_groups(rank):
    """What groups do that are told not to, whose all-reduces are encoded, or whose buckets are too few or large."""
    found = []
    encoded = dist.new_group(pg_options=headrace.torch.GroupOptions(compress="bf16"))
    found += [group_that(False)._ddp, encoded._ddp]
    for cap, size in ((25, 64), (1, 1500)):
        group = group_that(True)
        layers = [torch.nn.Linear(size, size) for _ in range(2)]
        model = wrapped(torch.nn.Sequential(*layers), group, cap=cap)
        for _ in range(8):
            model(torch.ones(1, size)).mean().backward()
        found.append(group._ddp.step.name)
    return found


class PlannedDdp(ServiceCase):
    def alike(self, count, function, step="PLANNED", **options):
        """The same bits as without plans, on all ranks; returns what they had."""
        plain = run_group(self.service, count, function, False, options)
        planned = run_group(self.service, count, function, True, options)
        self.assertEqual([each[0] for each in planned], [step] * count)
        self.assertEqual([each[0] for each in plain], [None] * count)
        self.assertEqual([each[1] for each in planned], [each[1] for each in plain])

    def test_gives_the_bits_of_operations(self):
        for count in (2, 3, 4):
            with self.subTest(count):
                self.alike(count, plainly)

    def test_gives_the_bits_of_other_types_and_of_parameters_that_each_rank_uses_or_not(self):
        self.alike(2, plainly, dtype=torch.float64)
        self.alike(2, plainly, make=Branches, find_unused_parameters=True)
        self.alike(2, plainly, gradient_as_bucket_view=True)
        self.alike(3, plainly, static_graph=True)

    def test_what_happens_between_backward_passes_does_not_matter(self):
        self.alike(2, of_a_pass)

    def test_a_rank_without_data_shadows_the_buckets_of_others(self):
        self.alike(2, joined)

    def test_an_operation_amid_the_buckets_ends_it_on_all_ranks(self):
        self.alike(2, with_a_barrier_in_backward, step="ENDED")

    def test_another_model_ends_it(self):
        self.alike(2, with_another_model, step="ENDED")

    def test_an_exception_in_backward_ends_it_and_the_group_goes_on(self):
        self.assertEqual(run_group(self.service, 2, after_an_exception, True, {}), [("ENDED", [3.0] * 7)] * 2)

    def test_no_rank_decides_alone(self):
        first, second = run_group(self.service, 2, where_one_rank_sees_something_else)
        self.assertEqual(first, ("ENDED", second[1]))

    def test_a_rank_that_departs_alone_is_an_error_and_no_wrong_number(self):
        (first, _), _ = run_group(self.service, 2, where_one_rank_departs)
        self.assertIn("another rank's backward pass ended", first)

    def test_an_operation_in_the_place_of_an_iteration_is_a_mismatch(self):
        for text, seconds in run_group(self.service, 2, where_one_rank_posts_an_operation):
            self.assertIn("all_reduce of 33", text)
            self.assertIn("every rank must post the same operations", text)
            self.assertLess(seconds, 20)

    def test_a_rank_that_dies_is_named(self):
        ranks = start_group(self.service, 2, where_one_rank_dies)
        text, seconds = ranks[0].result()
        ranks[1].end()
        self.assertIn("rank 1", text)
        self.assertLess(seconds, 20)

    def test_buckets_in_shared_memory_stay_where_they_lie(self):
        self.assertEqual(run_group(self.service, 2, in_shared_memory), ["ENDED"] * 2)

    def test_what_the_loop_does_between_backward_passes_hides_nothing(self):
        for seconds in run_group(self.service, 2, with_pauses, self.service):
            self.assertGreater(seconds, PAUSE_S)

    def test_groups_that_gain_nothing_or_may_not_are_left_alone(self):
        self.assertEqual(
            run_group(self.service, 2, steps_of_groups), [[None, None, "WATCHING", "WATCHING"]] * 2
        )


if __name__ == "__main__":
    main()
