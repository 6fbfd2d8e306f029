"""Ranges of a parameter and its optimizer state: what has come has the bits of where it is from, update by update."""

from __future__ import annotations

import collections
import sys
import unittest
from collections.abc import Callable
from typing import Any

import torch
from headrace.torch.comparison import Comparison
from headrace.torch.ranges import content_of, is_divisible, put_content, range_of, write_range
from headrace.torch.snapshot import copied, packed, unpacked
from headrace.torch.updates import Updates

ELEMENTS = 3 * 5 * 401  # no multiple of what a processor computes at once
RANGE = 1000
BEFORE = 3  # updates of the others before the first range
Make = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]

FORMS: dict[str, Make] = {
    "SGD": lambda p: torch.optim.SGD(p, 0.1),
    "SGD with momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01, dampening=0.1),
    "SGD by Nesterov": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, maximize=True),
    "Adam": lambda p: torch.optim.Adam(p, 0.1, weight_decay=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, 0.1),
    "AdamW, amsgrad": lambda p: torch.optim.AdamW(p, 0.1, amsgrad=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, 0.1, lr_decay=0.1, initial_accumulator_value=0.5),
    "RMSprop": lambda p: torch.optim.RMSprop(p, 0.1),
    "RMSprop, centered": lambda p: torch.optim.RMSprop(p, 0.1, momentum=0.9, centered=True),
    "Adamax": lambda p: torch.optim.Adamax(p, 0.1, weight_decay=0.01),
    "NAdam": lambda p: torch.optim.NAdam(p, 0.1, weight_decay=0.01),
    "RAdam": lambda p: torch.optim.RAdam(p, 0.1),
    "Adadelta": lambda p: torch.optim.Adadelta(p, 0.5),
    "ASGD": lambda p: torch.optim.ASGD(p, 0.1, lambd=0.1, t0=2, weight_decay=0.01),
    "Rprop": lambda p: torch.optim.Rprop(p, 0.1),
}


class Rank:
    """One parameter and its optimizer."""

    def __init__(self, make: Make, seed: int, changes: Callable[[torch.Tensor], torch.Tensor]) -> None:
        values = torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(seed)).view(3, 5, 401)
        self.parameter = torch.nn.Parameter(changes(values))
        self.optimizer = make([self.parameter])
        self.updates = Updates(self.optimizer)
        self.updates.parameters()

    def update(self, gradient: torch.Tensor) -> None:
        self.parameter.grad = gradient.clone()
        self.updates.make([self.parameter], self.updates.options())

    def whole(self) -> dict[str, Any]:
        return {"values": self.parameter.detach(), **self.updates.state_of(self.parameter)}


def gradient_of(step: int) -> torch.Tensor:
    return torch.randn(3, 5, 401, generator=torch.Generator().manual_seed(100 + step))


class Ranges(unittest.TestCase):
    def require_same(self, one: Rank, other: Rank, end: int) -> None:
        """The first elements, and all numbers that are not of elements."""
        own, others = one.whole(), other.whole()
        self.assertEqual(list(own), list(others))
        for key, value in own.items():
            if torch.is_tensor(value) and value.shape == one.parameter.shape:
                parts = [range_of(each, 0, end).contiguous() for each in (value, others[key])]
                self.assertTrue(torch.equal(*(each.view(torch.uint8) for each in parts)), key)
            else:
                self.assertEqual(value, others[key], key)

    def hand_over(self, make: Make, before: int = BEFORE, strided: bool = False) -> None:
        def changed(values: torch.Tensor) -> torch.Tensor:
            return values.transpose(0, 2).contiguous().transpose(0, 2) if strided else values

        donor, newcomer = Rank(make, 0, changed), Rank(make, 1, changed)
        for step in range(before):
            donor.update(gradient_of(step))
        self.assertTrue(donor.updates.is_of_elements)
        ends = [*range(RANGE, ELEMENTS, RANGE), ELEMENTS]
        for step, end in enumerate([*ends, ELEMENTS, ELEMENTS], before):
            begin = (end - 1) // RANGE * RANGE
            if step - before < len(ends):
                state = donor.updates.state_of(donor.parameter)
                self.assertTrue(is_divisible(donor.parameter, state))
                content = copied(content_of(donor.parameter, state, begin, end))
                held = newcomer.updates.state_of(newcomer.parameter)
                with torch.no_grad():
                    state = put_content(newcomer.parameter, held, content, begin)
                newcomer.updates.set_state(newcomer.parameter, state)
            self.require_same(donor, newcomer, end)
            for rank in (donor, newcomer):
                rank.update(gradient_of(step))
            self.require_same(donor, newcomer, end)

    def test_each_optimizer_of_elements(self) -> None:
        for name, make in FORMS.items():
            with self.subTest(name):
                self.hand_over(make)

    def forms(self, **option: Any) -> dict[str, Make]:
        """Those of FORMS that know the option."""
        found = {}
        for name, make in FORMS.items():

            def with_option(parameters: list[torch.nn.Parameter], make: Make = make) -> torch.optim.Optimizer:
                plain = make(parameters)
                group = {key: value for key, value in plain.param_groups[0].items() if key != "params"}
                return type(plain)(parameters, **{**_arguments(type(plain), group), **option})

            try:
                rank = Rank(with_option, 0, lambda values: values)
                rank.update(gradient_of(0))
            except (TypeError, RuntimeError):
                continue  # this torch has no such form
            found[name] = with_option
        return found

    def test_each_form_that_computes_all_parameters_at_once(self) -> None:
        forms = self.forms(foreach=True)
        self.assertGreater(len(forms), 8)
        for name, make in forms.items():
            with self.subTest(name):
                self.hand_over(make)

    def test_each_form_of_one_kernel(self) -> None:
        for name, make in self.forms(fused=True).items():
            with self.subTest(name):
                self.hand_over(make)

    def test_before_the_first_update(self) -> None:
        for name, make in FORMS.items():
            with self.subTest(name):
                self.hand_over(make, before=0)

    def test_a_parameter_that_does_not_lie_in_one_piece(self) -> None:
        for name in ("AdamW", "SGD with momentum"):
            with self.subTest(name):
                self.hand_over(FORMS[name], strided=True)

    def test_what_was_there_before_a_newcomer_began_again_is_replaced(self) -> None:
        donor, newcomer = (Rank(FORMS["AdamW"], seed, lambda values: values) for seed in (0, 1))
        for step in range(5):
            newcomer.update(gradient_of(step))
        state = donor.updates.state_of(donor.parameter)  # none yet
        content = copied(content_of(donor.parameter, state, 0, RANGE))
        with torch.no_grad():
            held = newcomer.updates.state_of(newcomer.parameter)
            newcomer.updates.set_state(newcomer.parameter, put_content(newcomer.parameter, held, content, 0))
        self.require_same(donor, newcomer, RANGE)

    def test_ranges_of_any_layout(self) -> None:
        tensor = torch.arange(24.0).view(4, 6)
        for each in (tensor, tensor.t().contiguous().t(), tensor.t()):
            self.assertEqual(range_of(each, 5, 9).tolist(), each.reshape(-1)[5:9].tolist())
            other = torch.zeros_like(each)
            write_range(other, 5, range_of(each, 5, 9))
            wanted = torch.zeros(24)
            wanted[5:9] = each.reshape(-1)[5:9]
            self.assertEqual(other.reshape(-1).tolist(), wanted.tolist())


class OfElements(unittest.TestCase):
    """Which optimizers may have ranges."""

    def is_of_elements(self, optimizer: torch.optim.Optimizer) -> bool:
        return Updates(optimizer).is_of_elements

    def setUp(self) -> None:
        self.parameter = torch.nn.Parameter(torch.zeros(3))
        self.optimizer = torch.optim.Adam([self.parameter])

    def test_an_optimizer_whose_class_is_another_has_none(self) -> None:
        class Own(torch.optim.Adam):
            """It may do anything."""

        self.assertFalse(self.is_of_elements(Own([self.parameter])))
        for name in ("SparseAdam", "Adafactor", "Muon"):
            kind = getattr(torch.optim, name, None)
            if kind is not None:
                matrix = torch.nn.Parameter(torch.zeros(2, 2))
                self.assertFalse(self.is_of_elements(kind([matrix])), name)

    def test_a_scheduler_changes_nothing(self) -> None:
        torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.assertTrue(self.is_of_elements(self.optimizer))

    def test_another_step_has_none(self) -> None:
        self.optimizer.step = lambda: None
        self.assertFalse(self.is_of_elements(self.optimizer))

    def test_hooks_of_a_step_have_none(self) -> None:
        if not hasattr(self.optimizer, "register_step_pre_hook"):
            self.skipTest("this torch has no such hooks")
        self.optimizer.register_step_pre_hook(lambda *_: None)
        self.assertFalse(self.is_of_elements(self.optimizer))

    def test_hooks_of_all_optimizers_have_none(self) -> None:
        register = getattr(sys.modules[torch.optim.Optimizer.__module__], "register_optimizer_step_post_hook", None)
        if register is None:
            self.skipTest("this torch has no such hooks")
        hook = register(lambda *_: None)
        self.addCleanup(hook.remove)
        self.assertFalse(self.is_of_elements(self.optimizer))

    def test_state_of_another_shape_has_none(self) -> None:
        self.assertTrue(is_divisible(self.parameter, {"step": torch.tensor(1.0), "none": None, "n": 2}))
        self.assertFalse(is_divisible(self.parameter, {"row": torch.zeros(2)}))


class Master(torch.optim.Optimizer):
    """Keeps float32 for parameters of fewer bits, and integers."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 0.05})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["master"] = parameter.float().clone()
                    state["squares"] = torch.zeros(parameter.shape)
                    state["steps"] = torch.zeros(2, dtype=torch.int64)
                    state["scale"] = 0.5
                gradient = parameter.grad.float()
                state["steps"] += 1
                state["squares"].mul_(0.99).addcmul_(gradient, gradient, value=0.01)
                state["master"].addcdiv_(gradient, state["squares"].sqrt().add_(1e-8), value=-group["lr"])
                parameter.copy_(state["master"] * state["scale"])


class AtOnce(unittest.TestCase):
    """The whole state, packed by one rank and unpacked by another: the bits are the same, update by update."""

    def require_same(self, one: dict[str, Any], other: dict[str, Any]) -> None:
        self.assertEqual(one.keys(), other.keys())
        for key, value in one.items():
            if torch.is_tensor(value):
                self.assertEqual(value.dtype, other[key].dtype, key)
                self.assertTrue(torch.equal(value, other[key]), key)
            else:
                self.assertEqual(value, other[key], key)

    def hand_over(self, make: Make, dtype: torch.dtype) -> None:
        donor, newcomer = (Rank(make, seed, lambda values: values.to(dtype)) for seed in (0, 1))
        for step in range(BEFORE):
            donor.update(gradient_of(step).to(dtype))
        newcomer.updates.unpack(donor.updates.pack(), {newcomer.parameter})
        self.require_same(donor.whole(), newcomer.whole())
        for step in range(BEFORE, BEFORE + 6):
            for rank in (donor, newcomer):
                rank.update(gradient_of(step).to(dtype))
        self.require_same(donor.whole(), newcomer.whole())

    def test_each_optimizer_with_parameters_of_each_type(self) -> None:
        for dtype in (torch.float32, torch.bfloat16, torch.float64):
            for name, make in {**FORMS, "with float32 beside": Master}.items():
                with self.subTest(name, dtype=dtype):
                    self.hand_over(make, dtype)

    def test_numbers_text_and_mappings_come_as_they_were(self) -> None:
        value = {"f": 0.1, "b": True, "none": None, "text": "x", "tuple": (1, [2.5]), 3: collections.OrderedDict(n=1)}
        self.assertEqual(unpacked(packed(value)), {**value, 3: {"n": 1}})
        self.assertEqual(unpacked(packed(collections.defaultdict(int, n=2))), {"n": 2})

    def test_what_could_run_code_is_refused_by_name(self) -> None:
        with self.assertRaisesRegex(TypeError, "reading it could run code.*keep numbers"):
            unpacked(packed({"state": Master}))


class Outside(unittest.TestCase):
    """State of an optimizer that is of no parameter."""

    def test_it_is_replaced_and_parameters_state_is_not(self) -> None:
        parameter = torch.nn.Parameter(torch.ones(3))
        optimizer = torch.optim.SGD([parameter], 0.1, momentum=0.9)
        parameter.grad = torch.ones(3)
        optimizer.step()
        updates = Updates(optimizer)
        self.assertEqual(updates.outside(), {})
        optimizer.state["old"] = {"n": 1}
        gone = torch.zeros(2)  # a parameter that is in no group any more
        optimizer.state[gone] = {"n": 2}
        old, other = updates.outside()
        self.assertEqual(old, "old")
        self.assertIs(other, gone)
        updates.set_outside({"new": {"n": 3}})
        self.assertEqual(updates.outside(), {"new": {"n": 3}})
        self.assertTrue(torch.equal(updates.state_of(parameter)["momentum_buffer"], torch.ones(3)))


class OneRank:
    """A session of a rank that compares itself with another, whose digests it was given."""

    def __init__(self, others: list[bytes]) -> None:
        self.rank, self.world_size = 0, 2
        self.others = others
        self.own: list[bytes] = []

    def all_gather(self, digests: torch.Tensor) -> None:
        self.own.append(bytes(digests[0].tolist()))
        if self.others:
            digests[1] = torch.frombuffer(bytearray(self.others.pop(0)), dtype=torch.uint8)
        else:
            digests[1] = digests[0]


class Comparisons(unittest.TestCase):
    """What ranks compare between two iterations, when one has joined."""

    def compare(self, values: torch.Tensor, others: list[bytes]) -> list[bytes]:
        session = OneRank(list(others))
        comparison = Comparison(session, Updates(torch.optim.SGD([torch.nn.Parameter(values)], 0.1)))
        iteration = 1
        while comparison.go_on(iteration):
            iteration += 1
        return session.own

    def test_a_large_parameter_is_compared_in_ranges_to_its_last_element(self) -> None:
        values = torch.zeros(5 << 18, 2)  # 10 MiB
        digests = self.compare(values, [])
        self.assertEqual(len(digests), 3)
        for place in (0, values.numel() // 2, values.numel() - 1):
            other = values.clone()
            other.view(-1)[place] = 1
            with self.assertRaisesRegex(RuntimeError, r"ranks \[1\] differ"):
                self.compare(other, digests)


def _arguments(kind: type, group: dict[str, Any]) -> dict[str, Any]:
    """Of a group, what the constructor of an optimizer takes."""
    names = kind.__init__.__code__.co_varnames[: kind.__init__.__code__.co_argcount]
    return {key: value for key, value in group.items() if key in names and key != "foreach"}


if __name__ == "__main__":
    unittest.main(verbosity=2)
