"""ScheduledOptimizer against the plain optimizer fed with averaged gradients: the same bits."""

import functools
import math
import os
import unittest

import headrace.torch
import torch
from ranks import ServiceCase, run_ranks
from support.policies import POLICIES
from torch.optim import lr_scheduler
from torch_ranks import MODERN, main
from torch_scheduled import (
    STEPS,
    Reference,
    batches,
    bits,
    both_ways,
    loss_of,
    network,
    plain_loop,
)

OPTIMIZERS = {
    "SGD": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01),
    "nesterov": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": functools.partial(torch.optim.Adam, lr=0.01),
    "AdamW": functools.partial(torch.optim.AdamW, lr=0.01, amsgrad=True),
    "RMSprop": functools.partial(torch.optim.RMSprop, lr=0.01, momentum=0.5),
    "Adagrad": functools.partial(torch.optim.Adagrad, lr=0.1),
}


def with_optimizer(session, name):
    def make():
        model = network()
        return model, OPTIMIZERS[name](model.parameters())

    return both_ways(session, make)


def scheduled(optimizer):
    return isinstance(optimizer, torch.optim.Optimizer)


def with_groups_and_schedulers(session, kind):
    def make():
        model = network()
        groups = [{"params": model[0].parameters(), "lr": 0.2},
                  {"params": model[2].parameters(), "weight_decay": 0.1},
                  {"params": model[3].parameters(), "momentum": 0.5}]  # fmt: skip
        return model, torch.optim.SGD(groups, lr=0.1, momentum=0.9)

    def train(model, optimizer, session):
        wrapped = getattr(
            optimizer, "_optimizer" if scheduled(optimizer) else "optimizer"
        )
        chosen = optimizer if kind == "outer" and scheduled(optimizer) else wrapped
        scheduler = lr_scheduler.OneCycleLR(
            chosen, [0.5, 0.3, 0.1], total_steps=STEPS + 1
        )
        rates = []
        for batch in batches(session):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
            scheduler.step()
            rates += scheduler.get_last_lr()
        return rates

    return both_ways(session, make, train)


def sgd(model):
    return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


def make_plain():
    model = network()
    return model, torch.optim.AdamW(model.parameters(), 0.01)


def accumulating(session):
    def train(model, optimizer, session):
        for step, batch in enumerate(batches(session, 3 * STEPS)):
            if step % 3 == 0:
                optimizer.zero_grad()
            if step % 3 < 2:
                with optimizer.no_sync():
                    loss_of(model, batch).backward()
            else:
                loss_of(model, batch).backward()
                optimizer.step()

    return both_ways(session, make_plain, train)


def in_no_sync_only(session):
    """step() itself averages what was accumulated."""

    def train(model, optimizer, session):
        for batch in batches(session):
            optimizer.zero_grad()
            with optimizer.no_sync():
                loss_of(model, batch).backward()
                optimizer.step()

    return both_ways(session, make_plain, train)


class Branches(torch.nn.Module):
    """A model with parts of which each rank uses another in each step, and one that nobody ever uses."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.never = torch.nn.Linear(8, 4)
        self.branches = torch.nn.ModuleList([torch.nn.Linear(8, 4) for _ in range(3)])
        self.choice = 0

    def forward(self, x):
        return self.branches[self.choice](x)


def with_unused(session):
    def make():
        model = Branches()
        return model, sgd(model)

    def train(model, optimizer, session):
        for step, batch in enumerate(batches(session)):
            optimizer.zero_grad()
            model.choice = (session.rank + step) % 3
            loss_of(model, batch).backward()
            optimizer.step()

    return both_ways(session, make, train)


def of_two_types(session):
    def make():
        torch.manual_seed(9)
        layers = [torch.nn.Linear(8, 32).double(), torch.nn.Linear(32, 31), torch.nn.Linear(31, 33)]
        layers[1].bfloat16()
        model = Casting([*layers, torch.nn.Linear(33, 4)])
        return model, torch.optim.AdamW(model.parameters(), 0.01)

    return both_ways(session, make, functools.partial(plain_loop, steps=30))


class Casting(torch.nn.Module):
    """Layers of several element types, and a parameter of one within a module of another."""

    def __init__(self, layers):
        super().__init__()
        self.layers = torch.nn.ModuleList(layers)
        self.layers[2].scale = torch.nn.Parameter(torch.ones(33, dtype=torch.bfloat16))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x.to(layer.weight.dtype)))
            x = x * layer.scale if hasattr(layer, "scale") else x
        return x


def many_of_two_types(session):
    def make():
        model = Deep()
        for layer in model.layers[::2]:
            layer.weight.data = layer.weight.data.double()
            layer.bias.data = layer.bias.data.double()
        return model, torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)

    return both_ways(session, make, functools.partial(plain_loop, steps=2))


def two_optimizers(session, socket):
    """A game of two models, of which each has an optimizer and neither a session."""
    os.environ.update(
        HEADRACE_JOB=session.job + "-game",
        HEADRACE_SOCKET=socket,
        RANK=str(session.rank),
        WORLD_SIZE=str(session.world_size),
    )
    results = []
    for way in (True, False):
        made, judging = network(), network(seed=1)
        judge = torch.nn.Sequential(judging, torch.nn.Linear(4, 1))
        forger = torch.nn.Sequential(made, torch.nn.Linear(4, 8))
        optimizers = []
        for model in (forger, judge):
            optimizer = torch.optim.Adam(model.parameters(), 0.01)
            optimizers.append(
                headrace.torch.ScheduledOptimizer(optimizer, model)
                if way
                else Reference(optimizer, session)
            )
        losses = []
        for real, _ in batches(session):
            optimizers[1].zero_grad()
            fake = forger(real)
            loss = torch.tanh(judge(fake.detach())).mean() - torch.tanh(judge(real)).mean()
            loss.backward()
            optimizers[1].step()
            optimizers[0].zero_grad()
            # Its backward pass reaches the judge's parameters, whose gradients the next pass forgets.
            loss = -torch.tanh(judge(fake)).mean()
            loss.backward()
            optimizers[0].step()
            losses.append(loss.item())
        for optimizer in optimizers:
            optimizer.synchronize()
        jobs = {optimizer.session.job for optimizer in optimizers} if way else set()
        parameters = [*forger.parameters(), *judge.parameters()]
        results.append((bits([losses, parameters]), len(jobs)))
        if way:
            for optimizer in optimizers:
                optimizer.close()
    return results


def never_used(session):
    """What was updated of a layer that no rank uses, but for one step in which rank 1 does."""
    model = Branches()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=0.1)
    optimizer = headrace.torch.ScheduledOptimizer(optimizer, model, session)
    seen = []
    for step, batch in enumerate(batches(session)):
        optimizer.zero_grad()
        model.choice = 1 if step == 3 and session.rank == 1 else 0
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.synchronize()
        gradient = model.branches[1].weight.grad
        seen.append(
            (None if gradient is None else bool(gradient.any()), bits(model.branches[1].weight))
        )
    state = len(optimizer.state)
    return seen, bits(model.never.weight), model.never.weight.grad, state


class Tied(torch.nn.Module):
    """A table used to look up, to score, and by a second module; and a bias of the model's own."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.table = torch.nn.Embedding(20, 8)
        self.middle = torch.nn.Linear(8, 8)
        self.again = torch.nn.Linear(8, 20, bias=False)
        self.again.weight = self.table.weight
        self.bias = torch.nn.Parameter(torch.zeros(20))

    def forward(self, words):
        x = torch.tanh(self.middle(self.table(words)))
        return self.again(x) + x @ self.table.weight.t() + self.bias


def words_of(session, steps=STEPS):
    random = torch.Generator().manual_seed(5)
    for _ in range(steps):
        words = torch.randint(0, 20, (2, session.world_size, 6), generator=random)
        yield words[0, session.rank], words[1, session.rank]


def train_words(model, optimizer, session):
    losses = []
    for words, targets in words_of(session):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(words), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def with_shared(session):
    def make():
        model = Tied()
        return model, sgd(model)

    return both_ways(session, make, train_words)


class Attention(torch.nn.Module):
    """MultiheadAttention reads its out_proj's parameters without calling it."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(6)
        self.first = torch.nn.Linear(8, 16)
        self.layer = torch.nn.TransformerEncoderLayer(
            16, 2, 32, dropout=0.0, batch_first=True
        )
        self.normed = torch.nn.utils.weight_norm(torch.nn.Linear(16, 4))

    def forward(self, x):
        return self.normed(self.layer(self.first(x).unsqueeze(0)).squeeze(0))


def with_evaluation(session, mode):
    """Fast paths of evaluation read parameters past their modules."""

    def make():
        model = Attention()
        return model, torch.optim.AdamW(model.parameters(), 0.01)

    def train(model, optimizer, session):
        seen = []
        for batch in batches(session):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
            if mode == "eval":
                model.eval()
                with torch.no_grad():
                    seen.append(model(batch[0]))
                model.train()
            elif mode == "inference":
                with torch.inference_mode():
                    seen.append(model(batch[0]).clone())
        return [t.tolist() for t in seen]

    return both_ways(session, make, train)


class OwnScaler:
    """What a GradScaler does, for the CPU and torch 1.13."""

    def __init__(self):
        self.scale_is = 1024.0

    def scale(self, loss):
        return loss * self.scale_is

    def step(self, optimizer):
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        for parameter in parameters:
            parameter.grad.mul_(1 / self.scale_is)
        self._found = not all(torch.isfinite(p.grad).all() for p in parameters)
        if not self._found:
            optimizer.step()

    def update(self):
        self.scale_is *= 0.5 if self._found else 1.5


def with_scaler(session, own):
    def train(model, optimizer, session):
        scaler = OwnScaler() if own else torch.amp.GradScaler("cpu", growth_interval=2)
        for step, batch in enumerate(batches(session)):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = loss_of(model, batch)
            if step == 2 and session.rank == 1:
                loss = loss * math.inf  # every rank must leave the step out
            scaler.scale(loss.float()).backward()
            if scheduled(optimizer):
                scaler.step(optimizer)
            else:
                optimizer.average()
                scaler.step(optimizer.optimizer)
                optimizer._averaged = False
            scaler.update()

    def make():
        torch.manual_seed(8)
        layers = [torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4)]
        model = torch.nn.Sequential(*layers)
        return model, torch.optim.AdamW(model.parameters(), 0.01)

    return both_ways(session, make, train)


def clipping(session, how):
    norms = []

    def train(model, optimizer, session):
        for batch in batches(session):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            if how == "method":
                norm = optimizer.clip_grad_norm_(0.1)
            else:
                if not scheduled(optimizer):
                    optimizer.average()
                norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            norms.append(norm.item())
        return norms[-STEPS:]

    import warnings

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = both_ways(session, make_plain, train)
    told = [str(w.message) for w in caught if "headrace" in str(w.message)]
    return results, told, norms


def zeroing(session, how):
    def train(model, optimizer, session):
        for step, batch in enumerate(batches(session)):
            if how == "never":
                pass
            elif how == "model":
                model.zero_grad(set_to_none=step % 2 == 0)
            else:
                optimizer.zero_grad(set_to_none=False)
            loss_of(model, batch).backward()
            optimizer.step()

    return both_ways(session, make_plain, train)


def giving_up(session):
    """Steps left out between backward and step(), by zero_grad() of either kind."""

    def train(model, optimizer, session):
        for step, batch in enumerate(batches(session)):
            loss_of(model, batch).backward()
            if step % 3 != 1:
                optimizer.step()
            if step % 2:
                model.zero_grad(set_to_none=True)
            else:
                optimizer.zero_grad()

    return both_ways(session, make_plain, train)


class Deep(torch.nn.Module):
    """More gradients than a layout has."""

    def __init__(self, layers=500):
        super().__init__()
        torch.manual_seed(7)
        self.first = torch.nn.Linear(8, 4)
        self.layers = torch.nn.ModuleList(
            [torch.nn.LayerNorm(4) for _ in range(layers)]
        )

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = layer(x.to(layer.weight.dtype)).to(x.dtype) + x * 0.01
        return x


def with_many(session):
    def make():
        model = Deep()
        return model, torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)

    return both_ways(session, make, functools.partial(plain_loop, steps=2))


def freezing(session):
    """A parameter frozen on the way is left alone, as by the plain optimizer."""

    def train(model, optimizer, session):
        for step, batch in enumerate(batches(session)):
            model[0].weight.requires_grad = step < 3
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()

    return both_ways(session, make_plain, train)


def with_policy(session, policy):
    """Long enough for plans to be made, and to take the place of the first one."""
    train = functools.partial(plain_loop, steps=30)
    return both_ways(session, make_plain, train, policy=policy)


class LikeThePlainOptimizer(ServiceCase):
    def check(self, function, *arguments, ranks=2):
        results = run_ranks(
            self.service, ranks, function, *arguments, job=self.id()[-50:].strip(".")
        )
        for ours, reference in results:
            self.assertEqual(ours, reference)
            self.assertEqual(ours[1:], results[0][0][1:], "ranks differ")
        return results[0][0]

    def test_for_each_kind_of_optimizer(self):
        for name in OPTIMIZERS:
            with self.subTest(name):
                self.check(with_optimizer, name, ranks=3 if name == "SGD" else 2)

    def test_with_groups_and_a_scheduler_of_either_optimizer(self):
        for kind in ("outer", "inner"):
            with self.subTest(kind):
                rates = self.check(with_groups_and_schedulers, kind)[0]
                self.assertGreater(len(set(rates)), STEPS)

    def test_when_gradients_accumulate(self):
        self.check(accumulating)
        self.check(in_no_sync_only)

    def test_with_parameters_that_some_or_all_ranks_do_not_use(self):
        self.check(with_unused, ranks=3)

    def test_parameters_that_nobody_used_are_left_alone(self):
        ranks = run_ranks(self.service, 2, never_used, job="never")
        self.assertEqual(ranks[0], ranks[1])
        seen, never, gradient, state = ranks[0]
        self.assertEqual([each for each, _ in seen], [None, None, None, True, None, None])
        weights = [weight for _, weight in seen]
        self.assertEqual(weights[0], weights[2])
        self.assertNotEqual(weights[2], weights[3])
        self.assertEqual(weights[3], weights[5])  # not even by momentum or decay
        self.assertEqual(never, bits(Branches().never.weight))
        self.assertIsNone(gradient)
        self.assertEqual(state, 4)  # of branches 0 and 1

    def test_with_parameters_of_several_types(self):
        self.check(of_two_types, ranks=3)
        self.check(many_of_two_types)

    def test_of_two_optimizers_in_a_process(self):
        for rank in run_ranks(self.service, 2, two_optimizers, self.service.socket, job="two"):
            (ours, jobs), (reference, _) = rank
            self.assertEqual(ours, reference)
            self.assertEqual(jobs, 2)

    def test_with_shared_parameters(self):
        self.check(with_shared)

    def test_with_evaluation_in_between(self):
        for mode in ("none", "eval", "inference"):
            with self.subTest(mode):
                self.check(with_evaluation, mode)

    def test_with_a_scaler_that_leaves_a_step_out(self):
        self.check(with_scaler, True)

    @unittest.skipUnless(MODERN, "torch 1.13 has no GradScaler for the CPU")
    def test_with_torchs_own_scaler(self):
        self.check(with_scaler, False)

    def test_with_clipping_which_is_told_once(self):
        for how in ("method", "torch"):
            with self.subTest(how):
                answers = run_ranks(self.service, 2, clipping, how, job=f"clip-{how}")
                for rank, (results, told, norms) in enumerate(answers):
                    self.assertEqual(*results)
                    self.assertEqual(len(told), 1 if rank == 0 else 0, told)
                    self.assertGreater(min(norms), 0.1)

    def test_however_gradients_are_zeroed(self):
        for how in ("never", "model", "kept"):
            with self.subTest(how):
                self.check(zeroing, how)

    def test_when_iterations_are_given_up(self):
        self.check(giving_up)

    def test_with_more_gradients_than_a_layout_has(self):
        self.check(with_many)

    def test_when_parameters_are_frozen(self):
        self.check(freezing)

    def test_with_each_policy(self):
        for policy in POLICIES:
            with self.subTest(policy):
                losses = self.check(with_policy, policy)[0]
                self.assertLess(losses[-1], losses[0])

    def test_an_unknown_policy_is_refused_by_name(self):
        with self.assertRaisesRegex(AssertionError, "fastest"):
            run_ranks(self.service, 1, with_policy, "fastest", job="fastest")


if __name__ == "__main__":
    main()
