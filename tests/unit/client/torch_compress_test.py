"""Which codec each gradient gets, which an optimizer takes, and what encodings leave out in a state_dict."""

import unittest
import warnings
from unittest import mock

import torch
from headrace.codecs import choose_codecs
from headrace.layout import Gradient
from headrace.torch.compressed_ddp import CompressedState
from headrace.torch.compression import (
    check_codecs,
    is_adaptive,
    load_residuals,
    save_residuals,
)
from headrace.torch.recovery import Recovery
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


class Copies(unittest.TestCase):
    """What a rank keeps as it posts, to post it again."""

    def test_lie_in_the_same_memory_each_time(self):
        session = mock.Mock(members=(0, 1), joins=False)
        recovery = Recovery(session, mock.Mock(), 1.0)
        slot = Slot(0, [], memory=torch.zeros(4), residual=torch.zeros(4))
        places = set()
        for value in (1.0, 2.0):
            slot.memory.fill_(value)
            slot.residual.fill_(-value)
            recovery.keep(slot)
            self.assertEqual(slot.kept.tolist(), [value] * 4)
            self.assertEqual(slot.residual_kept.tolist(), [-value] * 4)
            places.add((slot.kept.data_ptr(), slot.residual_kept.data_ptr()))
        self.assertEqual(len(places), 1)


class FakeLayout:
    """Of rank ``rank`` of two."""

    def __init__(self, rank, names=("a", "b"), keeps=True):
        self.session = mock.Mock(rank=rank, world_size=2)
        self.gradients = [Gradient((2,), "float32", name) for name in names]
        self.counts = [2] * len(names)
        self.memory = bytearray(range(16))
        self.residuals = memoryview(self.memory) if keeps else None


class Residuals(unittest.TestCase):
    """What encodings left out, saved and loaded."""

    def test_come_back_as_they_were(self):
        saved = save_residuals(FakeLayout(1))
        layout = FakeLayout(1)
        layout.memory[:] = bytes(16)
        load_residuals(layout, saved)
        self.assertEqual(layout.memory, bytearray(range(16)))

    def test_of_another_rank_or_other_gradients_begin_at_zero_and_say_so(self):
        saved = save_residuals(FakeLayout(0))
        for layout, word in ((FakeLayout(1), "rank 0 of 2"), (FakeLayout(0, "cb"), "other gradients")):
            with self.assertWarnsRegex(UserWarning, word):
                load_residuals(layout, saved)
            self.assertEqual(layout.memory, bytes(16))

    def test_begin_at_zero_where_none_were_saved(self):
        layout = FakeLayout(0)
        load_residuals(layout, None)
        self.assertEqual(layout.memory, bytes(16))

    def test_are_no_business_of_ranks_that_keep_none(self):
        layout = FakeLayout(0, keeps=False)
        self.assertIsNone(save_residuals(layout))
        load_residuals(layout, save_residuals(FakeLayout(1)))


if __name__ == "__main__":
    unittest.main()
