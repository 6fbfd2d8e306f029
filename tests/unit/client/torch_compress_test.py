"""Which codec each gradient gets, which an optimizer takes, and what encodings leave out in a state_dict."""

import unittest
import warnings
from unittest import mock

import torch
from headrace.codecs import choose_codecs, rank_of, right_factor_room, rows_of
from headrace.layout import Gradient
from headrace.torch.compressed_ddp import CompressedState
from headrace.torch.compression import (
    check_codecs,
    is_adaptive,
    load_residuals,
    save_residuals,
)
from headrace.torch.slots import Member, Slot

GRADIENTS = [
    Gradient((64, 3, 7, 7), "float32", "conv.weight"),
    Gradient((64,), "float32", "conv.bias"),
    Gradient((10, 64), "float32", "head.weight"),
]


class Choice(unittest.TestCase):
    """Codecs of gradients."""

    def test_gradients_of_one_dimension_are_left_alone(self):
        for compress in (None, "int8"):
            self.assertEqual(choose_codecs(GRADIENTS, compress), [None, "none", None])

    def test_the_last_pattern_counts_also_for_small_ones(self):
        codecs = choose_codecs(GRADIENTS, {"*.weight": "int8", "head.*": "none"})
        self.assertEqual(codecs, ["int8", "none", "none"])
        codecs = choose_codecs(GRADIENTS, {"head.*": "none", "*": "bf16"})
        self.assertEqual(codecs, ["bf16", "bf16", "bf16"])
        self.assertEqual(choose_codecs(GRADIENTS, {"conv.*": "int4"})[2], None)

    def test_a_pattern_without_a_gradient_is_named(self):
        with self.assertRaisesRegex(ValueError, r"fc\.\*.*conv\.weight"):
            choose_codecs(GRADIENTS, {"*.weight": "int8", "fc.*": "none"})

    def test_several_that_travel_as_one_have_the_codec_of_most_of_their_elements(self):
        members = [Member("a.bias", torch.nn.Parameter(torch.zeros(5))),
                   Member("a.weight", torch.nn.Parameter(torch.zeros(3, 4)))]  # fmt: skip
        slot = Slot(0, members)
        gradient = Gradient(slot.shape, slot.dtype, slot.name, slot.parts)
        self.assertEqual(choose_codecs([gradient], "int8"), [None])
        self.assertEqual(choose_codecs([gradient], {"*.bias": "int8"}), [None])
        self.assertEqual(choose_codecs([gradient], {"*.weight": "int8"}), ["int8"])

    def test_a_matrix_is_the_first_dimension_by_all_others(self):
        rows = [rows_of(gradient.shape) for gradient in GRADIENTS]
        self.assertEqual(rows, [64, 0, 10])
        self.assertEqual(rows_of(()), 0)

    def test_right_factors_have_the_largest_rank_that_is_named(self):
        ranks = [rank_of(codec) for codec in ("powersgd", "powersgd:7", "auto:int8,powersgd:2", "int8", "")]
        self.assertEqual(ranks, [4, 7, 2, 0, 0])
        rooms = [right_factor_room(4, shape) for shape in ((64, 3, 7, 7), (5, 30), (1, 30), (64,))]
        self.assertEqual(rooms, [4 * 147, 2 * 30, 0, 0])

    def test_what_has_no_parts_is_never_compressed(self):
        usage = Gradient((3, 4), "float32", "in use", [])
        self.assertEqual(choose_codecs([*GRADIENTS, usage], {"*": "int8"})[3], "none")


class Refusals(unittest.TestCase):
    """Codecs and optimizers that do not go together."""

    def setUp(self):
        parameters = [torch.nn.Parameter(torch.zeros(3))]
        self.adam = torch.optim.AdamW(parameters)
        self.sgd = torch.optim.SGD(parameters, 0.1, momentum=0.9)

    def test_signs_and_few_elements_under_adam_are_refused_by_name(self):
        for codec in ("sign", "topk", "topk:16", "randomk", {"*.weight": "randomk:4"}):
            with self.assertRaisesRegex(ValueError, "(sign|topk|randomk).*AdamW.*force_compress"):
                check_codecs(self.adam, codec, False)
            check_codecs(self.adam, codec, True)
            check_codecs(self.sgd, codec, False)

    def test_others_are_taken(self):
        for codec in (None, "none", "int4", "lossless", {"*.weight": "int8"}):
            check_codecs(self.adam, codec, False)

    def test_the_environment_counts_where_nothing_is_said(self):
        with mock.patch.dict("os.environ", HEADRACE_COMPRESS="sign"):
            with self.assertRaisesRegex(ValueError, 'HEADRACE_COMPRESS="sign"'):
                check_codecs(self.adam, None, False)
            check_codecs(self.adam, "int8", False)


class AdamElsewhere(torch.optim.Optimizer):
    """As other packages have it: derived from no class of torch's that is known."""

    def __init__(self, parameters, **defaults):
        super().__init__(parameters, defaults)


class Adaptive(unittest.TestCase):
    """Which optimizers divide by what gradients were."""

    def test_are_those_of_torch_and_their_like(self):
        parameters = [torch.nn.Parameter(torch.zeros(3))]
        optim = torch.optim
        for kind in (optim.Adam, optim.AdamW, optim.Adamax, optim.NAdam, optim.RAdam, optim.RMSprop,
                     optim.Adagrad, optim.Adadelta, optim.SparseAdam, AdamElsewhere):  # fmt: skip
            self.assertTrue(is_adaptive(kind(parameters, lr=0.1)), kind.__name__)
        betas = type("Custom", (optim.Optimizer,), {})(parameters, {"betas": (0.9, 0.99)})
        self.assertTrue(is_adaptive(betas))

    def test_are_none_that_only_add_gradients_up(self):
        parameters = [torch.nn.Parameter(torch.zeros(3))]
        for momentum in (0.0, 0.9):
            self.assertFalse(is_adaptive(torch.optim.SGD(parameters, 0.1, momentum)))
        self.assertFalse(is_adaptive(torch.optim.ASGD(parameters, 0.1)))


class FakeBucket:
    """A bucket of DDP's, of these parameters."""

    def __init__(self, index, parameters):
        self._index = index
        self._parameters = parameters

    def index(self):
        """Its number."""
        return self._index

    def buffer(self):
        """The sums of all gradients."""
        return torch.zeros(sum(p.numel() for p in self._parameters))

    def parameters(self):
        """In their order."""
        return self._parameters


class Hook(unittest.TestCase):
    """Codecs of a communication hook, which may know no optimizer."""

    def test_warns_of_what_adam_diverges_with_where_no_optimizer_is_given(self):
        session = mock.Mock(rank=0)
        with self.assertWarnsRegex(UserWarning, 'compress="topk".*optimizer='):
            CompressedState(session, "topk")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            CompressedState(session, "int8")
            CompressedState(session, "topk", force_compress=True)
            parameters = [torch.nn.Parameter(torch.zeros(3))]
            CompressedState(session, "topk", optimizer=torch.optim.SGD(parameters, 0.1))

    def test_says_whether_the_optimizer_is_adaptive(self):
        parameters = [torch.nn.Parameter(torch.zeros(3))]
        for optimizer in (torch.optim.SGD(parameters, 0.1), torch.optim.RAdam(parameters)):
            session = mock.Mock(rank=0)
            CompressedState(session, "int8", optimizer=optimizer)._maker([((3,), "float32", "g")])
            self.assertEqual(session.layout.call_args.args[-1], is_adaptive(optimizer))

    def test_hands_on_after_how_many_iterations_it_begins(self):
        session = mock.Mock(rank=0)
        CompressedState(session, "int8", compress_after=70)._maker([((3,), "float32", "g")])
        self.assertEqual(session.layout.call_args.args[-2], 70)

    def test_takes_buckets_apart_for_codecs_of_matrices(self):
        layers = [torch.nn.Conv2d(3, 8, 2), torch.nn.BatchNorm2d(8), torch.nn.Flatten(), torch.nn.Linear(8, 3)]
        model = torch.nn.Sequential(*layers)
        session = mock.Mock(rank=0)
        state = CompressedState(session, "powersgd:2", model)
        first = [model[3].bias, model[3].weight]
        second = [model[1].bias, model[1].weight, model[0].bias, model[0].weight]
        for _ in range(3):
            for index, parameters in enumerate((first, second)):
                state.layout_for(FakeBucket(index, parameters))
        specs = session.layout.call_args.args[0]
        self.assertEqual([spec[0] for spec in specs], [(24,), (8, 3, 2, 2), (3,), (3, 8)])
        gradients = [Gradient(*spec) for spec in specs]
        self.assertEqual(choose_codecs(gradients, {"3.*": "powersgd:2"}), ["none", None, "powersgd:2", "powersgd:2"])
        self.assertEqual(len({each.name for each in gradients}), 4)
        self.assertEqual(state.gradients_of(FakeBucket(0, first)), range(2, 4))
        self.assertEqual(state.gradients_of(FakeBucket(1, second)), range(2))

    def test_takes_patterns_of_the_models_names(self):
        model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Linear(5, 3))
        session = mock.Mock(rank=0)
        patterns = {"0.*": "int8", "1.*": "bf16"}
        state = CompressedState(session, patterns, model)
        # The bias of the second layer is in the bucket of the first.
        buckets = [[model[1].weight], [model[0].weight, model[0].bias, model[1].bias]]
        for _ in range(3):
            for index, parameters in enumerate(buckets):
                state.layout_for(FakeBucket(index, parameters))
        specs, *_, compress, _, _ = session.layout.call_args.args
        gradients = [Gradient(*spec) for spec in specs]
        self.assertEqual(choose_codecs(gradients, compress), ["int8", "bf16"])
        with self.assertRaisesRegex(ValueError, "need model="):
            CompressedState(session, patterns)
        with self.assertWarnsRegex(UserWarning, 'compress="topk".*optimizer='):
            CompressedState(session, {"0.*": "bf16", "1.*": "topk"}, model)


class Copies(unittest.TestCase):
    """What a rank keeps as it posts, to post it again."""

    def test_lie_in_the_same_memory_each_time(self):
        slot = Slot(0, [], memory=torch.zeros(4))
        slot.set_carried([memoryview(bytearray(4)), memoryview(bytearray(2))])
        places = set()
        for value in (1, 2):
            slot.memory.fill_(value)
            for each in slot.carried:
                each.fill_(10 * value)
            slot.keep()
            self.assertEqual(slot.kept.tolist(), [value] * 4)
            for each in slot.carried:
                each.zero_()
            slot.restore_carried()
            self.assertEqual([each.tolist() for each in slot.carried], [[10 * value] * n for n in (4, 2)])
            places.add((slot.kept.data_ptr(), *(each.data_ptr() for each in slot.carried_kept)))
        self.assertEqual(len(places), 1)


class FakeLayout:
    """The gradients of rank ``rank`` of two."""

    def __init__(self, rank, names=("a", "b"), keeps=True, factors=8):
        self.session = mock.Mock(rank=rank, world_size=2)
        self.gradients = [Gradient((2,), "float32", name) for name in names]
        self.counts = [2] * len(names)
        self.memory = bytearray(range(16 + factors))
        self.residuals = memoryview(self.memory)[:16] if keeps else None
        self.right_factors = memoryview(self.memory)[16:] if keeps else None


class Residuals(unittest.TestCase):
    """What encodings left out, saved and loaded."""

    def test_come_back_as_they_were(self):
        saved = save_residuals(FakeLayout(1))
        layout = FakeLayout(1)
        layout.memory[:] = bytes(24)
        load_residuals(layout, saved)
        self.assertEqual(layout.memory, bytearray(range(24)))

    def test_of_another_rank_or_other_gradients_begin_at_zero_and_say_so(self):
        saved = save_residuals(FakeLayout(0))
        for layout, word in ((FakeLayout(1), "rank 0 of 2"), (FakeLayout(0, "cb"), "other gradients")):
            with self.assertWarnsRegex(UserWarning, word):
                load_residuals(layout, saved)
            self.assertEqual(layout.memory[:16], bytes(16))

    def test_of_another_rank_have_the_same_right_factors(self):
        saved = save_residuals(FakeLayout(0))
        layout = FakeLayout(1)
        layout.memory[16:] = bytes(8)
        with self.assertWarnsRegex(UserWarning, "rank 0 of 2"):
            load_residuals(layout, saved)
        self.assertEqual(layout.memory[16:], bytes(range(16, 24)))

    def test_of_other_gradients_or_ranks_of_powersgd_have_other_right_factors(self):
        saved = save_residuals(FakeLayout(0))
        layout = FakeLayout(0, "cb")
        with self.assertWarnsRegex(UserWarning, "other gradients"):
            load_residuals(layout, saved)
        self.assertEqual(layout.memory[16:], bytes(8))
        for each in (save_residuals(FakeLayout(0, factors=12)), save_residuals(FakeLayout(0, factors=0))):
            layout = FakeLayout(0)
            load_residuals(layout, each)
            self.assertEqual(layout.memory, bytes(range(16)) + bytes(8))
        del saved["right_factors"]  # as earlier versions saved them
        layout = FakeLayout(0)
        load_residuals(layout, saved)
        self.assertEqual(layout.memory, bytes(range(16)) + bytes(8))

    def test_begin_at_zero_where_none_were_saved(self):
        layout = FakeLayout(0)
        load_residuals(layout, None)
        self.assertEqual(layout.memory, bytes(24))

    def test_are_no_business_of_ranks_that_keep_none(self):
        layout = FakeLayout(0, keeps=False)
        self.assertIsNone(save_residuals(layout))
        load_residuals(layout, save_residuals(FakeLayout(1)))


if __name__ == "__main__":
    unittest.main()
