"""ScheduledOptimizer: when it waits, what it keeps, what it refuses."""

import contextlib
import io
import os
import time
import unittest
from unittest import mock

import headrace
import torch
import torch.utils.checkpoint
from headrace.torch import ScheduledOptimizer
from headrace.torch.slots import Member, make_slots
from ranks import Rank, Service, ServiceCase, run_ranks
from support.patience import SOON_S
from torch_ranks import main
from torch_scheduled import Reference, batches, bits, loss_of, network


def scheduled(session, model, **options):
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    return ScheduledOptimizer(optimizer, model, session, **options)


def one_step(model, optimizer, batch):
    optimizer.zero_grad()
    loss_of(model, batch).backward()
    optimizer.step()


def saving(session, how):
    """[continued after a load, continued without one]: parameters and state."""
    results = []
    for load in (True, False):
        model = network()
        optimizer = scheduled(session, model) if load else Reference(
            torch.optim.AdamW(model.parameters(), 0.01), session)  # fmt: skip
        steps = list(batches(session))
        for batch in steps[:3]:
            one_step(model, optimizer, batch)
        if load:
            file = io.BytesIO()
            if how == "optimizer first":
                state = {
                    "optimizer": optimizer.state_dict(),
                    "model": model.state_dict(),
                }
            else:
                state = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                }
            torch.save(state, file)
            # Two more steps, of which the last is due, then back to where we were.
            one_step(model, optimizer, steps[4])
            one_step(model, optimizer, steps[5])
            file.seek(0)
            state = torch.load(file)
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
        for batch in steps[3:]:
            one_step(model, optimizer, batch)
        optimizer.synchronize()
        results.append(
            bits([list(model.parameters()), optimizer.param_groups[0]["lr"]])
        )
    return results


def part_of_the_model(session):
    """state_dict() of a submodule has the update that is due."""
    model = network()
    optimizer = scheduled(session, model)
    one_step(model, optimizer, next(batches(session)))
    saved = bits({name: value.clone() for name, value in model[0].state_dict().items()})
    optimizer.synchronize()
    return saved == bits(dict(model[0].state_dict()))


class Backwards(torch.nn.Module):
    """Uses its modules in another order on each rank, and not as they stand; one only by its weight."""

    def __init__(self, rank):
        super().__init__()
        torch.manual_seed(1)
        self.a = torch.nn.Linear(8, 8)
        self.b = torch.nn.Linear(8, 8)
        self.unused = torch.nn.Linear(8, 8)
        self.read = torch.nn.Linear(8, 4)
        self.order = (self.b, self.a) if rank == 0 else (self.a, self.b)

    def forward(self, x):
        for module in self.order:
            x = module(x)
        return torch.nn.functional.linear(x, self.read.weight, self.read.bias)


class Swapped(torch.nn.Module):
    """Equally large layers, which stand and are used in another order on each rank."""

    def __init__(self, rank):
        super().__init__()
        for name in ("a", "b") if rank == 0 else ("b", "a"):
            setattr(self, name, torch.nn.Linear(8, 8, bias=False))

    def forward(self, x):
        for module in self.children():
            x = module(x)
        return x


def swapped(session):
    """How training ended."""
    model = Swapped(session.rank)
    try:
        optimizer = scheduled(session, model)
        for batch in batches(session):
            one_step(model, optimizer, batch)
        optimizer.synchronize()
    except headrace.Error as error:
        return str(error)
    return "no error"


def order(session):
    model = Backwards(session.rank)
    optimizer = scheduled(session, model)
    results = []
    for batch in batches(session):
        one_step(model, optimizer, batch)
    optimizer.synchronize()
    results = [slot.name for slot in optimizer._flow.slots[1:]]
    return results, bits(list(model.parameters()))


def refusals(session):
    texts = []

    def refused(function):
        try:
            function()
        except (TypeError, ValueError, RuntimeError) as error:
            texts.append(str(error))

    model = network()
    parameters = list(model.parameters())
    refused(lambda: ScheduledOptimizer(torch.optim.LBFGS(parameters), model, session))
    other = scheduled(session, torch.nn.Linear(8, 4, dtype=torch.complex64))
    refused(other.step)
    parameters[0].requires_grad = False
    optimizer = scheduled(session, model)
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))]})
    refused(lambda: optimizer.step(lambda: None))
    batch = next(batches(session))
    one_step(model, optimizer, batch)
    refused(lambda: optimizer.add_param_group({"params": [torch.ones(1)]}))
    parameters[0].requires_grad = True
    optimizer.zero_grad()
    loss_of(model, batch).backward()
    refused(optimizer.step)
    parameters[0].requires_grad = False
    optimizer.step()
    optimizer.zero_grad()
    loss_of(model, batch).backward()
    refused(lambda: loss_of(model, batch).backward())
    return texts


def empty_parameters(session):
    """A parameter without elements has a gradient, and nothing to be moved."""
    model = network()
    model[0].empty = torch.nn.Parameter(torch.zeros(0))
    optimizer = scheduled(session, model)
    for batch in batches(session):
        optimizer.zero_grad()
        (loss_of(model, batch) + model[0].empty.sum()).backward()
        optimizer.step()
    return len(optimizer._flow.slots) - 1


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ArithmeticError("in the middle of backward")


def exception_in_backward(session, early):
    """Before the first gradient nothing is lost; behind it the state is named."""
    model = network()
    optimizer = scheduled(session, model)
    steps = list(batches(session))
    one_step(model, optimizer, steps[0])
    inner = model[3] if early else model[2]
    handle = inner.register_forward_hook(lambda _, __, y: Fails.apply(y))
    with contextlib.suppress(ArithmeticError):
        one_step(model, optimizer, steps[1])
    handle.remove()
    texts = []
    try:
        one_step(model, optimizer, steps[2])
        optimizer.synchronize()
    except RuntimeError as error:
        texts.append(str(error))
    return texts


def a_rank_dies(session):
    model = network()
    optimizer = scheduled(session, model)
    steps = list(batches(session))
    one_step(model, optimizer, steps[0])
    one_step(model, optimizer, steps[1])
    if session.rank == 1:
        os.kill(os.getpid(), 9)
    began = time.monotonic()
    try:
        for batch in steps:
            one_step(model, optimizer, batch)
    except headrace.Error as error:
        return str(error), time.monotonic() - began
    return "", 0.0


def closing(session):
    """Afterwards the model and the wrapped optimizer are on their own, and the update is made."""
    model = network()
    before = [p.detach().clone() for p in model.parameters()]
    with scheduled(session, model) as optimizer:
        one_step(model, optimizer, next(batches(session)))
    after = [p.detach().clone() for p in model.parameters()]
    posted = session.counters()["posted"]
    model.zero_grad(set_to_none=True)
    loss_of(model, next(batches(session))).backward()
    alone = model[0].weight.grad.abs().sum().item()
    changed = all(not torch.equal(one, other) for one, other in zip(before, after, strict=True))
    return changed, session.counters()["posted"] - posted, alone > 0


def beginning(session):
    """All ranks begin with rank 0's parameters, unless they are told not to."""
    model = network(seed=session.rank)
    scheduled(session, model)
    return bits(list(model.parameters()))


def reading(session):
    """What reads .grad sees the averages; its shape and the like wait for nothing."""
    model = torch.nn.Linear(4, 2, bias=False)
    optimizer = scheduled(session, model)
    values = []
    for step in range(2):
        optimizer.zero_grad()
        model(torch.full((1, 4), float(session.rank + step))).sum().backward()
        gradient = model.weight.grad
        shape, posted = tuple(gradient.shape), session.counters()["waits"]
        assert shape == (2, 4) and gradient.dtype == torch.float32
        assert session.counters()["waits"] == posted
        values.append(gradient.tolist()[0][0])
        optimizer.step()
        values.append(model.weight.grad.sum().item())
    return values


class FakeLayout:
    """In which the test says what has ended. Waiting for anything else fails the test."""

    def __init__(self, specs):
        self.memory = [torch.zeros(shape, dtype=dtype) for shape, dtype, *_ in specs]
        self.posted, self.waited, self.ended = [], [], set()
        self.forward_ended = 0

    def torch(self, i):
        return self.memory[i]

    def carried(self, i):
        return []

    def begin_backward(self):
        self.posted, self.waited = [], []

    def post(self, i, stream):
        assert stream is None, "parameters are on the CPU"
        self.posted.append(i)
        return i

    def wait(self, i):
        assert i in self.ended, f"waits for gradient {i}"
        self.waited.append(i)

    def end_forward(self):
        self.forward_ended += 1


class FakeSession:
    """The session of one rank, for a FakeLayout."""

    rank, world_size, reconnect_seconds, shrink_min_world = 0, 1, 0, 0
    joins, members_wait = False, False

    def broadcast(self, tensor, root):
        pass

    def layout(self, specs, op, policy, device, compress, compress_after, adaptive):
        assert device is None, "parameters are on the CPU"
        self.made = FakeLayout(specs)
        return self.made


class FakeOperation:
    """Post number ``number`` of a FakeLayout."""

    def __init__(self, session, number, result, copied):
        self._layout, self._number = session.made, number

    def done(self):
        return self._number in self._layout.ended

    def wait(self):
        assert self.done()


class Waiting(unittest.TestCase):
    """What is waited for where, and when updates are made."""

    def setUp(self):
        patch = mock.patch("headrace.torch.gradient_flow.Operation", FakeOperation)
        patch.start()
        self.addCleanup(patch.stop)
        self.model = network()
        self.plain = torch.optim.SGD(self.model.parameters(), 1.0)
        self.session = FakeSession()
        self.optimizer = ScheduledOptimizer(
            self.plain, self.model, self.session, broadcast=False
        )
        self.steps = []
        taken = type(self.plain).step

        def step(*arguments):
            self.steps.append(sum(len(g["params"]) for g in self.plain.param_groups))
            return taken(self.plain, *arguments)

        self.plain.step = step

    def train_once(self):
        batch = (torch.ones(2, 8), torch.tensor([0, 1]))
        loss_of(self.model, batch).backward()
        self.optimizer.step()
        self.layout = self.session.made
        self.before = [p.detach().clone() for p in self.model.parameters()]

    def changed(self):
        new = self.model.parameters()
        return [not torch.equal(one, other) for one, other in zip(new, self.before, strict=True)]

    def test_step_waits_for_nothing_and_changes_nothing(self):
        self.train_once()
        # As backward produces them, and then which parameters were used.
        self.assertEqual(sorted(self.layout.posted), list(range(7)))
        self.assertEqual((self.layout.posted[:2], self.layout.posted[-1]), ([6, 5], 0))
        self.assertEqual((self.layout.waited, self.steps), ([], []))

    def test_each_module_waits_for_its_own_and_takes_the_step_there(self):
        self.train_once()
        self.layout.ended = {1, 2, 6}
        with self.assertRaisesRegex(AssertionError, "waits for gradient 3"):
            self.model(torch.ones(1, 8))
        self.assertEqual(self.layout.waited, [1, 2])
        self.assertEqual(self.changed(), [True, True, False, False, False, False])
        self.assertEqual(self.steps, [2])

    def test_what_is_there_is_updated_with_the_first(self):
        self.train_once()
        self.layout.ended = set(range(1, 7))
        self.model(torch.ones(1, 8))
        self.assertEqual(self.changed(), [True] * 6)
        self.assertEqual(self.steps, [6])
        # All the same each is asked for where it is used, and only once.
        self.assertEqual(self.layout.waited, list(range(1, 7)))
        self.assertEqual(self.layout.forward_ended, 1)
        self.model(torch.ones(1, 8))
        self.assertEqual(self.layout.waited, list(range(1, 7)))

    def test_activations_computed_again_wait_for_nothing(self):
        begun = []
        self.model[3].register_forward_pre_hook(lambda *_: begun.append(1))
        self.model.forward = lambda x: torch.utils.checkpoint.checkpoint(
            self.model[1:], self.model[0](x), use_reentrant=False
        )
        self.train_once()
        self.layout.ended = set(range(7))
        loss = self.model(torch.ones(2, 8)).sum()
        self.layout.ended = {0}
        loss.backward()
        self.assertEqual(len(begun), 4)
        self.assertEqual(sorted(self.layout.posted), list(range(7)))
        self.assertEqual(self.layout.waited, [])


class States(ServiceCase):
    def run_two(self, function, *arguments):
        job = self.id()[-40:] + "".join(str(a)[:5] for a in arguments).replace(" ", "")
        return run_ranks(self.service, 2, function, *arguments, job=job)

    def test_goes_on_from_what_was_saved(self):
        for how in ("optimizer first", "model first"):
            with self.subTest(how):
                for loaded, reference in self.run_two(saving, how):
                    self.assertEqual(loaded, reference)

    def test_a_part_of_the_model_is_saved_with_its_update(self):
        self.assertEqual(self.run_two(part_of_the_model), [True, True])

    def test_the_layout_has_rank_0s_forward_order(self):
        (first, parameters), (second, others) = self.run_two(order)
        self.assertEqual(first, second)
        self.assertEqual(parameters, others)
        modules = list(dict.fromkeys(name.split(".")[0] for name in first))
        # "read" is read by the model's own forward, which began first.
        self.assertEqual(modules, ["read", "b", "a", "unused"])

    def test_equally_large_layers_in_another_order_end_by_name(self):
        texts = self.run_two(swapped)
        self.assertNotIn("no error", texts)
        self.assertTrue(any("a.weight" in t and "b.weight" in t for t in texts), texts)

    def test_what_is_refused_is_named(self):
        expected = ("LBFGS", "dtype complex64", "closure",
                    "add_param_group", "needs a gradient since", "no_sync")  # fmt: skip
        for texts in self.run_two(refusals):
            self.assertEqual(len(texts), len(expected), texts)
            for text, word in zip(texts, expected, strict=True):
                self.assertIn(word, text)

    def test_parameters_without_elements_stay_out(self):
        self.assertEqual(self.run_two(empty_parameters), [6, 6])

    def test_an_exception_in_backward_leaves_a_named_state(self):
        self.assertEqual(self.run_two(exception_in_backward, True), [[], []])
        for texts in self.run_two(exception_in_backward, False):
            self.assertEqual(len(texts), 1)
            self.assertIn("2 of 6", texts[0])

    def test_closing_makes_the_last_update_and_leaves_the_model_alone(self):
        for changed, posted, alone in self.run_two(closing):
            self.assertTrue(changed)
            self.assertEqual(posted, 0)
            self.assertTrue(alone)

    def test_ranks_begin_alike(self):
        first, second = self.run_two(beginning)
        self.assertEqual(first, second)

    def test_reading_a_gradient_waits_for_it(self):
        for values in self.run_two(reading):
            self.assertEqual(values, [0.5, 4.0, 1.5, 12.0])

    def test_a_rank_that_dies_is_named_within_a_second(self):
        with Service() as service:

            def rank(number):
                with headrace.init("dies", number, 2, service.socket) as session:
                    return a_rank_dies(session)

            ranks = [Rank(rank, number) for number in range(2)]
            text, seconds = ranks[0].result()
            ranks[1].end()
            self.assertIn("rank 1", text)
            self.assertIn(str(ranks[1].pid), text)
            self.assertLess(seconds, SOON_S)


class Slots(unittest.TestCase):
    """How gradients are put together when a layout has too few for all."""

    def members(self, *sizes):
        return [
            Member(f"p{i}", torch.nn.Parameter(torch.zeros(size)))
            for i, size in enumerate(sizes)
        ]

    def cut(self, members, modules, most):
        numbers = {m.parameter: module for m, module in zip(members, modules, strict=True)}
        return [
            [m.name for m in slot.members]
            for slot in make_slots(members, numbers, most)
        ]

    def test_each_has_one_type(self):
        members = self.members(3, 1, 2, 4, 1, 1)
        for i in (1, 3, 4):
            members[i].parameter.data = members[i].parameter.data.bfloat16()
        found = self.cut(members, [0, 0, 0, 1, 1, 2], 5)
        self.assertEqual(found, [["p0", "p2"], ["p1"], ["p3", "p4"], ["p5"]])
        found = self.cut(members, [0, 0, 0, 1, 1, 2], 2)
        self.assertEqual(found, [["p0", "p2", "p5"], ["p1", "p3", "p4"]])

    def test_one_each_where_that_suffices(self):
        members = self.members(1, 2, 3)
        self.assertEqual(self.cut(members, [0, 0, 1], 3), [["p0"], ["p1"], ["p2"]])

    def test_neighbours_of_one_module_first(self):
        members = self.members(1, 2, 3, 1)
        found = self.cut(members, [0, 0, 1, 0], 3)
        self.assertEqual(found, [["p0", "p1"], ["p2"], ["p3"]])

    def test_then_the_smallest_neighbouring_modules(self):
        members = self.members(100, 1, 1, 50, 2, 2)
        found = self.cut(members, range(6), 4)
        self.assertLessEqual(len(found), 4)
        self.assertEqual(
            [name for slot in found for name in slot], [f"p{i}" for i in range(6)]
        )
        self.assertIn(["p0"], found)
        for most in (1, 2, 3, 5):
            self.assertLessEqual(len(self.cut(members, range(6), most)), most)

    def test_names_of_all_members_count_for_the_name(self):
        members = self.members(1, 1, 1, 1)
        one = {m.parameter: 0 for m in members}
        swapped = [members[i] for i in (0, 2, 1, 3)]
        names = [make_slots(each, one, 1)[0].name for each in (members, swapped)]
        self.assertNotEqual(*names)
        for name in names:
            self.assertTrue(name.startswith("p0 .. p3 "), name)

    def test_long_names_are_told_apart_and_fit(self):
        names = []
        for end in "ab":
            (member,) = self.members(1)
            member.name = "ü" * 300 + end
            names.append(make_slots([member], {}, 1)[0].name)
        self.assertNotEqual(*names)
        for name in names:
            self.assertLessEqual(len(name.encode()), 255)

    def test_views_are_parts_of_the_slots_memory(self):
        members = self.members(2, 3)
        (slot,) = make_slots(members, {m.parameter: 0 for m in members}, 1)
        self.assertEqual(slot.shape, (5,))
        memory = torch.arange(5.0)
        slot.take_views(memory)
        self.assertEqual(members[1].view.tolist(), [2.0, 3.0, 4.0])
        members[1].view.zero_()
        self.assertEqual(memory.tolist(), [0.0, 1.0, 0.0, 0.0, 0.0])


if __name__ == "__main__":
    main()
