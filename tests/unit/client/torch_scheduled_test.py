"""ScheduledOptimizer against the plain optimizer fed with averaged gradients: the same bits."""

import functools
import math
import unittest

import torch
from ranks import Service, run_ranks
from torch.optim import lr_scheduler
from torch_ranks import MODERN, main
from torch_scheduled import (
    STEPS,
    batches,
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
    """Of which each rank uses another in each step, and one nobody ever."""

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
            x = layer(x) + x * 0.01
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


class LikeThePlainOptimizer(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.service = Service().__enter__()
        cls.addClassCleanup(cls.service.__exit__)

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
        for policy in (
            *("bsp", "wfbp", "mg-wfbp", "bytescheduler", "us-byte", "exact"),
            *("ddp", "horovod", "p3", "bytesched-fused"),
        ):
            with self.subTest(policy):
                losses = self.check(with_policy, policy)[0]
                self.assertLess(losses[-1], losses[0])

    def test_an_unknown_policy_is_refused_by_name(self):
        with self.assertRaisesRegex(AssertionError, "fastest"):
            run_ranks(self.service, 1, with_policy, "fastest", job="fastest")


if __name__ == "__main__":
    main()
