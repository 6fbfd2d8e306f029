"""accelerate() against the same training without that line: the same bits, and gradients by a plan."""

import contextlib
import itertools
import os
import time
import unittest
import unittest.mock

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

STEPS = 8


def network():
    torch.manual_seed(0)
    layers = [torch.nn.Linear(16, 64), torch.nn.BatchNorm1d(64), torch.nn.Tanh()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(64, 63), torch.nn.Linear(63, 4))


class Branches(torch.nn.Module):
    """A model with parts of which each rank uses another in each step, and one that nobody ever uses."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.branches = torch.nn.ModuleList([torch.nn.Linear(16, 4) for _ in range(3)])
        self.never = torch.nn.Linear(16, 4)
        self.step = 0

    def forward(self, x):
        self.step += 1
        return self.branches[(dist.get_rank() + self.step) % 2](x)


def batches(steps=STEPS):
    random = torch.Generator().manual_seed(1)
    ranks = dist.get_world_size()
    inputs = torch.randn(steps, ranks, 8, 16, generator=random)
    targets = torch.randint(0, 4, (steps, ranks, 8), generator=random)
    for step in range(steps):
        yield inputs[step, dist.get_rank()], targets[step, dist.get_rank()]


def loss_of(model, batch):
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])


def plainly(model, optimizer):
    losses = []
    for batch in batches():
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def in_micro_batches(model, optimizer):
    for number, batch in enumerate(batches()):
        last = number % 3 == 2
        with contextlib.nullcontext() if last else model.no_sync():
            loss_of(model, batch).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()


def each_for_itself(model, optimizer):
    """Steps without averages, as local SGD takes them, and then one with."""
    for number, batch in enumerate(batches()):
        optimizer.zero_grad()
        with contextlib.nullcontext() if number % 4 == 3 else model.no_sync():
            loss_of(model, batch).backward()
        optimizer.step()


def clipped(model, optimizer):
    norms = []
    for batch in batches():
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5).item())
        optimizer.step()
    return norms


def evaluated(model, optimizer):
    """By the module within, which DDP's page advises."""
    seen = []
    for batch in batches():
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            seen.append(model.module(batch[0]).sum().item())
        model.train()
    return seen


def after_an_error(model, optimizer):
    """An exception in a forward pass leaves DDP as it was."""
    for number, batch in enumerate(batches()):
        optimizer.zero_grad()
        if number == 3:
            with contextlib.suppress(RuntimeError):
                model(torch.zeros(8, 3))
        loss_of(model, batch).backward()
        optimizer.step()


def clipped_by_the_optimizer(model, optimizer):
    """By clip_norm=0.5 where it is accelerated. Norms of the averages, as they were before."""
    scheduled = isinstance(optimizer, headrace.torch.ScheduledOptimizer)
    norms = []
    for number, batch in enumerate(batches()):
        optimizer.zero_grad()
        local = number % 4 == 2  # a step of this rank alone
        with model.no_sync() if local else contextlib.nullcontext():
            loss_of(model, batch).backward()
        if not scheduled:
            norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5).item())
        optimizer.step()
        if scheduled:
            optimizer.synchronize()
            norms.append(optimizer.grad_norm.item())
    return norms


def codecs_of_plans(rank, how):
    """What the layout was made with, and whether an encoding that the optimizer diverges with is refused."""
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    session = headrace.session.Session
    with unittest.mock.patch.object(
        session, "layout", autospec=True, side_effect=session.layout
    ) as layout:
        if how == "refused":
            try:
                headrace.torch.accelerate(model, optimizer, compress="sign")
            except ValueError as error:
                return str(error)
        optimizer = headrace.torch.accelerate(
            model, optimizer, compress={"*.weight": "int8"}, compress_after=3
        )
        for _ in range(3):
            model(torch.ones(2, 64)).sum().backward()
            optimizer.step()
        optimizer.close()
    return layout.call_args.args[5:7]


def train(rank, is_accelerated, loop, options, make=network, adam=False, more_of_plans=None):
    model = DistributedDataParallel(make(), bucket_cap_mb=0.01, **options)
    kind = torch.optim.AdamW if adam else torch.optim.SGD
    more = {} if adam else {"momentum": 0.9}
    optimizer = kind(model.parameters(), 0.05, **more)
    posted = 0
    if is_accelerated:
        optimizer = headrace.torch.accelerate(model, optimizer, **(more_of_plans or {}))
        posted = -optimizer.session.counters()["posted"]
    outcome = loop(model, optimizer)
    if is_accelerated:
        optimizer.synchronize()
        posted += optimizer.session.counters()["posted"]
        optimizer.close()
    # Rank 0's count, wherever they were used.
    buffers = [b.double().sum().item() for b in model.buffers()] if rank == 0 else []
    return outcome, [p.detach().numpy().tobytes() for p in model.parameters()], buffers, posted


def sharded(make=network):
    from torch.distributed.fsdp import fully_shard

    model = make()
    for layer in model.modules():
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer)
    return fully_shard(model)


def copied():
    """Bytes that the default group has copied so far; none if it is another backend's."""
    group = dist.distributed_c10d._get_default_group()
    if not isinstance(group, headrace.torch.ProcessGroup):
        return 0
    return group.session.counters()["copied_bytes"]


def train_sharded(rank, is_accelerated, loop, adam, how=None):
    model = sharded()
    if how == "prefetching":
        layers = [layer for layer in model if isinstance(layer, torch.nn.Linear)]
        for layer, following in itertools.pairwise(layers):
            layer.set_modules_to_forward_prefetch([following])
    kind = torch.optim.AdamW if adam else torch.optim.SGD
    optimizer = kind(model.parameters(), 0.05)
    called = torch.compile(model, backend="aot_eager") if how == "compiled" else model
    if is_accelerated:
        optimizer = headrace.torch.accelerate(model, optimizer)
    before = copied()
    outcome = loop(called, optimizer)
    optimizer.state_dict()  # with the updates that are due
    copies = copied() - before
    state = optimizer.state_dict()["state"]
    whole = [p.full_tensor().detach().numpy().tobytes() for p in model.parameters()]
    steps = [float(each["step"]) for each in state.values() if "step" in each]
    hidden = sum(unit.hidden for unit in optimizer.units) if is_accelerated else 0
    if is_accelerated:
        optimizer.close()
    return outcome, whole, steps, hidden, copies


def clipped_shards(model, optimizer):
    norms = []
    for batch in batches():
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        norms.append(norm.full_tensor().item())
        optimizer.step()
    return norms


def accumulating_shards(model, optimizer):
    for number, batch in enumerate(batches()):
        model.set_requires_gradient_sync(number % 4 != 0)
        loss_of(model, batch).backward()
        if number % 4 == 3:
            optimizer.step()
            optimizer.zero_grad(set_to_none=number == 3)


def evaluated_shards(model, optimizer):
    seen = []
    for batch in batches():
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
        with torch.no_grad():
            seen.append(model(batch[0]).sum().item())
        saved = {name: v.full_tensor().sum().item() for name, v in model.state_dict().items()
                 if hasattr(v, "full_tensor")}  # fmt: skip
        seen.append(saved)
    return seen


def reading_while_a_rank_is_late(rank, how):
    """What rank 0 sees of its gradients right after backward, while rank 1 is still in its own."""
    model = sharded()
    optimizer = headrace.torch.accelerate(model, torch.optim.SGD(model.parameters(), 0.1))
    first, group = model[0], dist.new_group(backend="gloo")
    if rank == 1:
        first.register_full_backward_pre_hook(lambda *_: dist.barrier(group))
    model(torch.full((8, 16), rank + 1.0) + torch.eye(8, 16)).sum().backward()
    gradient = first.weight.grad
    kind = type(gradient).__name__
    if rank == 0:
        dist.barrier(group)  # from here on rank 1 goes on to its last reduce-scatter
    if how == "to_local":
        value = gradient.to_local().sum().item()
    elif how == "norm":
        value = torch.nn.utils.get_total_norm([gradient]).full_tensor().item()
    else:
        value = (gradient * 1).full_tensor().sum().item()
    after = type(gradient).__name__
    optimizer.close()
    return kind, after, value, first.weight.grad.full_tensor().sum().item()


class Skipping(torch.nn.Module):
    """Its second layer of three is left out at will."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(3))
        self.skips = False

    def forward(self, x):
        for index, layer in enumerate(self.layers):
            if not (self.skips and index == 1):
                x = torch.tanh(layer(x))
        return x


def shards_that_skip(rank, is_accelerated, skipped):
    """Parameters after six steps, of which some leave a layer out; after each step, how many modules gather
    another one's parameters ahead, and how many all-gathers nobody had waited for where they were posted."""
    from headrace.torch.sharded import Gathering

    torch.manual_seed(1)
    model = sharded(Skipping)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    units = []
    if is_accelerated:
        optimizer = headrace.torch.accelerate(model, optimizer)
        units = optimizer.units
    ahead = []
    for step in range(6):
        model.skips = step in skipped
        optimizer.zero_grad()
        x = torch.full((4, 16), 0.1 * (rank + step)) + torch.eye(4, 16)
        model(x).square().sum().backward()
        optimizer.step()
        ahead.append(sum(len(unit.state._states_to_forward_prefetch) for unit in units))
    optimizer.state_dict()  # with the updates that are due
    whole = [p.full_tensor().detach().numpy().tobytes() for p in model.parameters()]
    posted = [unit.gathering for unit in units if isinstance(unit.gathering, Gathering)]
    kept = sum(each._input is not None for each in posted)
    if is_accelerated:
        optimizer.close()
    ahead.append(sum(len(unit.state._states_to_forward_prefetch) for unit in units))
    return whole, ahead, len(posted), kept


def sharded_refusals(rank):
    texts = []
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for options in ({"policy": "exact"}, {"clip_norm": 1.0, "compress": "int8"}, {}, {}):
        try:
            headrace.torch.accelerate(model, optimizer, **options)
        except ValueError as error:
            texts.append(str(error))
    return texts


def sharded_where_a_rank_dies(rank):
    model = sharded()
    optimizer = headrace.torch.accelerate(model, torch.optim.SGD(model.parameters(), 0.1))
    plainly(model, optimizer)
    if rank == 1:
        os._exit(9)
    try:
        plainly(model, optimizer)
    except (RuntimeError, headrace.Error) as error:
        dist.barrier = lambda: None
        return str(error)
    return ""


def refusals(rank):
    texts = []

    def refused(make, parameters=None):
        try:
            model = make()
            optimizer = torch.optim.SGD(parameters or model.parameters(), 0.1)
            headrace.torch.accelerate(model, optimizer)
        except (TypeError, ValueError) as error:
            texts.append(str(error))

    def hooked():
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        model = DistributedDataParallel(network())
        model.register_comm_hook(None, default_hooks.allreduce_hook)
        return model

    def leaving_out():
        model = network()
        model._ddp_params_and_buffers_to_ignore = ["0.weight"]
        return DistributedDataParallel(model)

    ddp = DistributedDataParallel(network())
    refused(network)
    if hasattr(ddp, "_comm_hooks"):
        refused(hooked)
    else:
        texts.append("has a communication hook")
    refused(leaving_out)
    refused(lambda: ddp, [ddp.module[0].weight])
    optimizer = headrace.torch.accelerate(ddp, torch.optim.SGD(ddp.parameters(), 0.1))
    refused(lambda: ddp)
    optimizer.close()
    again = headrace.torch.accelerate(ddp, torch.optim.SGD(ddp.parameters(), 0.1))
    again.close()
    # DDP is what it was: it averages by itself.
    ddp(torch.full((2, 16), float(rank))).sum().backward()
    averaged = [None] * dist.get_world_size()
    dist.all_gather_object(averaged, ddp.module[0].weight.grad.sum().item())
    return texts, len(set(averaged))


def where_a_rank_dies(rank):
    model = DistributedDataParallel(network())
    optimizer = headrace.torch.accelerate(model, torch.optim.SGD(model.parameters(), 0.1))
    plainly(model, optimizer)
    if rank == 1:
        os._exit(9)
    began = time.monotonic()
    try:
        plainly(model, optimizer)
    except (RuntimeError, headrace.Error) as error:
        dist.barrier = lambda: None
        return str(error), time.monotonic() - began
    return "", 0.0


def of_unlike_models(rank):
    """Equally large layers in another order: DDP does not compare names, plans do."""
    model = torch.nn.Sequential()
    for name in ("a", "b") if rank == 0 else ("b", "a"):
        model.add_module(name, torch.nn.Linear(16, 16))
    ddp = DistributedDataParallel(model)
    optimizer = headrace.torch.accelerate(ddp, torch.optim.SGD(ddp.parameters(), 0.1))
    try:
        for _ in range(3):
            ddp(torch.ones(2, 16)).sum().backward()
            optimizer.step()
        optimizer.synchronize()
    except headrace.Error as error:
        dist.barrier = lambda: None
        return str(error)
    return ""


class Accelerated(ServiceCase):
    def check(self, loop, ranks=2, backend="headrace", **options):
        make = options.pop("make", network)
        adam = options.pop("adam", False)
        more = (loop, options, make, adam, options.pop("plans", None))
        plain = run_group(self.service, ranks, train, False, *more, backend=backend)
        ours = run_group(self.service, ranks, train, True, *more, backend=backend)
        for one, other in zip(ours, plain, strict=True):
            self.assertEqual(one[:3], other[:3])
            self.assertGreater(one[3], 0)
        return ours

    def test_the_plain_loop_has_ddps_bits_for_any_number_of_ranks(self):
        for ranks in (2, 3, 4):
            with self.subTest(ranks):
                self.check(plainly, ranks)
        # Each of 8 iterations posts 8 gradients and what was used.
        self.assertEqual(self.check(plainly)[0][3], 8 * 9 + 1)

    def test_over_gloo_it_has_the_bits_of_ddp_over_gloo(self):
        self.check(plainly, backend="gloo", adam=True)

    def test_with_options_of_ddp(self):
        for options in (
            {"find_unused_parameters": True},
            {"gradient_as_bucket_view": True},
            {"static_graph": True},
            {"broadcast_buffers": False},
        ):
            with self.subTest(options):
                self.check(plainly, **options)

    def test_with_parameters_that_some_ranks_or_none_use(self):
        self.check(plainly, make=Branches, find_unused_parameters=True, ranks=3)

    def test_with_no_sync(self):
        self.check(in_micro_batches)
        self.check(each_for_itself)

    def test_with_clipping(self):
        norms = self.check(clipped, adam=True)[0][0]
        self.assertGreater(max(norms), 0.5)

    def test_clip_norm_has_the_bits_of_torchs_clipping(self):
        for adam in (False, True):
            with self.subTest(adam=adam):
                plans = {"clip_norm": 0.5}
                norms = self.check(clipped_by_the_optimizer, adam=adam, plans=plans)[0][0]
                self.assertGreater(max(norms), 0.5)

    def test_compress_reaches_the_layout(self):
        for codecs in run_group(self.service, 2, codecs_of_plans, "taken"):
            self.assertEqual(codecs, ({"*.weight": "int8"}, 3))
        for text in run_group(self.service, 2, codecs_of_plans, "refused"):
            self.assertIn("sign", text)
            self.assertIn("AdamW", text)

    def test_with_evaluation_by_the_module_within(self):
        self.check(evaluated)

    def test_after_an_exception_in_forward(self):
        self.check(after_an_error)

    def test_what_ddp_does_and_plans_do_not_is_refused_by_name(self):
        words = ("Sequential", "communication hook", "leaves out", "0.bias", "already")
        for texts, averages in run_group(self.service, 2, refusals):
            self.assertEqual(len(texts), len(words), texts)
            for text, word in zip(texts, words, strict=True):
                self.assertIn(word, text)
            self.assertEqual(averages, 1)

    def test_a_rank_that_dies_is_named(self):
        ranks = start_group(self.service, 2, where_a_rank_dies)
        text, seconds = ranks[0].result()
        ranks[1].end()
        self.assertIn("rank 1", text)
        self.assertIn(str(ranks[1].pid), text)
        self.assertLess(seconds, SOON_S)

    def test_ranks_whose_layers_stand_in_another_order_hear_of_it(self):
        texts = run_group(self.service, 2, of_unlike_models)
        self.assertTrue(all("b.weight" in text or "b.bias" in text for text in texts), texts)


@unittest.skipUnless(
    hasattr(getattr(dist, "fsdp", None), "FSDPModule"), "no fully_shard in this torch"
)
class Sharded(ServiceCase):
    def check(self, loop, ranks=2, adam=False, backend="headrace", how=None):
        more = (loop, adam, how)
        plain = run_group(self.service, ranks, train_sharded, False, *more, backend=backend)
        ours = run_group(self.service, ranks, train_sharded, True, *more, backend=backend)
        self.assertEqual([one[:3] for one in ours], [other[:3] for other in plain])
        if backend == "headrace":  # parameters and gradients of fully_shard lie in shared memory
            self.assertLess(ours[0][4], plain[0][4] / 4)
        return ours[0][3]

    def test_the_plain_loop_has_fully_shards_bits_and_waits_for_nothing_in_backward(self):
        for ranks in (2, 3):
            with self.subTest(ranks):
                # Three layers and what is left at the top.
                self.assertEqual(self.check(plainly, ranks, adam=True), 4 * STEPS)
        self.check(plainly, backend="gloo")

    def test_with_clipping_accumulation_and_evaluation(self):
        self.check(clipped_shards, adam=True)
        self.check(accumulating_shards)
        self.check(evaluated_shards)

    def test_with_layers_that_gather_the_next_ones_parameters(self):
        self.check(plainly, how="prefetching")

    def test_layers_gather_the_next_ones_parameters_once_passes_repeat(self):
        plain, _ = run_group(self.service, 2, shards_that_skip, False, ())
        for whole, ahead, gatherings, kept in run_group(
            self.service, 2, shards_that_skip, True, ()
        ):
            self.assertEqual(whole, plain[0])
            # The third pass shows that the second had the first one's order; three layers are two pairs.
            self.assertEqual(ahead, [0, 0, 2, 2, 2, 2, 0])
            self.assertEqual((gatherings, kept), (3, 0))

    def test_layers_that_are_left_out_at_times_end_that(self):
        for skipped, expected in (((3,), [0, 0, 2, 2, 0, 0, 0]), ((1,), [0] * 7)):
            with self.subTest(skipped):
                plain, _ = run_group(self.service, 2, shards_that_skip, False, skipped)
                for whole, ahead, *_ in run_group(
                    self.service, 2, shards_that_skip, True, skipped
                ):
                    self.assertEqual(whole, plain[0])
                    self.assertEqual(ahead, expected)

    def test_compiled(self):
        self.check(plainly, how="compiled")

    def test_who_looks_at_a_gradient_waits_for_it(self):
        for how in ("to_local", "norm", "product"):
            with self.subTest(how):
                first, second = run_group(
                    self.service, 2, reading_while_a_rank_is_late, how
                )
                self.assertEqual(first[:2], ("OpenShard", "DTensor"))
                self.assertEqual(first[3], second[3])
                if how != "to_local":
                    self.assertEqual(first[2], second[2])
                if how == "product":
                    self.assertEqual(first[2], first[3])

    def test_what_is_refused_is_named(self):
        for texts in run_group(self.service, 2, sharded_refusals):
            self.assertEqual(len(texts), 3)
            self.assertIn("policy", texts[0])
            self.assertIn("clip_norm and no compress", texts[1])
            self.assertIn("already", texts[2])

    def test_a_rank_that_dies_is_named(self):
        ranks = start_group(self.service, 2, sharded_where_a_rank_dies)
        text = ranks[0].result()
        ranks[1].end()
        self.assertIn("rank 1", text)


if __name__ == "__main__":
    main()
