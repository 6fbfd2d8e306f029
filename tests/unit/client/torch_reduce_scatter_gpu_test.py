"""Reduce-scatters of tensors on a GPU, as torch_backend_gpu_test.py has the other collectives."""

import os
import unittest
import unittest.mock
import warnings

import headrace
import headrace.torch
import torch
import torch.distributed as dist
from doubled_gpu import LIBRARY, DoubledGpu, DoubledGpuCase, use_double
from ranks import Rank
from support.cluster import Cluster, Services
from support.ports import free_port
from torch_on_gpu import KINDS, Memory, a_gpu, at_address, group_of
from torch_ranks import main, run_group


def reduce_scatter_to_another_tensor(rank, kind):
    """What comes of it for each type, whether inputs stay as they are, and how many arrays are staged for it."""
    with a_gpu(gpu := DoubledGpu()):
        memory, size, found = Memory(gpu, kind), dist.get_world_size(), []
        for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64,
                      torch.uint8):  # fmt: skip
            values = (torch.arange(40 * size) % 7 + rank).to(dtype)
            whole, part = memory.tensor(values), memory.tensor(torch.zeros(40, dtype=dtype))
            dist.reduce_scatter_tensor(part, whole)
            found.append((part.tolist(), torch.equal(whole, values)))
        staged = sum(len(free) for free in group_of().poster._staging._free.values())
    return found, staged


def reduce_scatter_of_a_session(rank):
    """In parts of any size, in the order of a stream and without one; and what is refused."""
    gpu, texts = DoubledGpu(), []
    session = group_of().session
    with a_gpu(gpu):
        whole, part = (session.arena(1 << 16, gpu.number).tensor((100,), "float32") for _ in range(2))
        ranges = [whole.range(0, 30), whole.range(30, 70)]
        mine, values = part.range(5, ranges[rank].count), torch.arange(100.0) + rank
        found = []
        for stream in (None, gpu.stream):
            whole.torch().copy_(values), part.torch().fill_(-1)
            session.reduce_scatter_parts(mine, ranges, stream=stream)
            gpu.synchronize()
            found.append((part.torch().tolist(), torch.equal(whole.torch(), values)))
        session.reduce_scatter_parts(ranges[rank], ranges)
        found.append(whole.torch().tolist())
        for x, parts in ((ranges[rank], ranges), (torch.zeros(2), [torch.zeros(2)] * 2)):
            try:
                session.reduce_scatter_parts(x, parts, stream=gpu.stream)
            except (TypeError, ValueError) as error:
                texts.append(str(error))
    return found, texts


def reduce_scatter_within_a_tensor(rank):
    """Into a part of its own input, which the service would refuse: it is copied."""
    with a_gpu(gpu := DoubledGpu()):
        whole = Memory(gpu, "allocated").tensor(torch.arange(8.0) + rank)
        dist.reduce_scatter_tensor(whole[:4], whole)
        return whole.tolist()


def reduce_scatter_of_one_piece(rank):
    """Both tensors begin in one piece of a segment, and the result alone ends in another."""
    with a_gpu(gpu := DoubledGpu()), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        base = gpu.map_pieces(2)
        whole, part = at_address(base, 128).fill_(rank + 1.0), at_address(base + (2 << 20) - 128, 64)
        part.zero_()
        dist.reduce_scatter_tensor(part, whole)
        staged = len(group_of().poster._staging._free)
        return part.unique().tolist(), whole.unique().tolist(), staged, len(told)


def reduce_scatter_of_unequal_parts(rank):
    """Which operations it is, of how many elements; how many arrays are staged; what comes of it."""
    with a_gpu(gpu := DoubledGpu()):
        memory = Memory(gpu, "allocated")
        parts = [memory.tensor(torch.full((4 * r + 3,), rank + 10.0 * r)) for r in range(3)]
        output = memory.tensor(torch.zeros(4 * rank + 3))
        with unittest.mock.patch.object(headrace.Session, "_post", autospec=True,
                                        side_effect=headrace.Session._post) as post:  # fmt: skip
            dist.reduce_scatter(output, parts)
        posted = [(call.args[1], call.args[2].count) for call in post.call_args_list]
        staged = len(group_of().poster._staging._free)
        return posted, staged, output.unique().tolist(), [part.unique().tolist() for part in parts]


class ReduceScatterOnAGpu(DoubledGpuCase):
    def test_a_reduce_scatter_to_another_tensor_copies_nothing_that_can_be_shared(self):
        sums = [[2 * (i % 7) + 1 for i in range(40 * rank, 40 * rank + 40)] for rank in range(2)]
        for kind in KINDS:
            with self.subTest(kind):
                ranks = run_group(self.service, 2, reduce_scatter_to_another_tensor, kind)
                for rank, (found, staged) in enumerate(ranks):
                    self.assertEqual(found, [(sums[rank], True)] * 7)
                    self.assertEqual(staged, 7 if kind == "not shareable" else 0)

    def test_a_session_reduces_parts_of_any_size_to_another_tensor(self):
        ranks = run_group(self.service, 2, reduce_scatter_of_a_session)
        for rank, ((plain, on_stream, in_place), texts) in enumerate(ranks):
            begin, count = ((0, 30), (30, 70))[rank]
            sums = [2.0 * i + 1 for i in range(begin, begin + count)]
            self.assertEqual(plain, ([-1.0] * 5 + sums + [-1.0] * (95 - count), True))
            self.assertEqual(on_stream, plain)
            kept = [float(i + rank) for i in range(100)]
            self.assertEqual(in_place, kept[:begin] + sums + kept[begin + count :])
            self.assertIn("x is one of the inputs", texts[0])
            self.assertIn("only a headrace.Tensor", texts[1])

    def test_a_reduce_scatter_into_its_own_input_is_copied(self):
        ranks = run_group(self.service, 2, reduce_scatter_within_a_tensor)
        self.assertEqual(ranks[0], [1.0, 3.0, 5.0, 7.0, 4.0, 5.0, 6.0, 7.0])
        self.assertEqual(ranks[1], [9.0, 11.0, 13.0, 15.0, 5.0, 6.0, 7.0, 8.0])

    def test_tensors_of_a_reduce_scatter_may_begin_in_one_piece_of_a_segment(self):
        ranks = run_group(self.service, 2, reduce_scatter_of_one_piece)
        self.assertEqual(ranks, [([3.0], [1.0], 0, 0), ([3.0], [2.0], 0, 0)])

    def test_each_unequal_part_of_a_reduce_scatter_goes_to_its_rank_only(self):
        ranks = run_group(self.service, 3, reduce_scatter_of_unequal_parts)
        for rank, (posted, staged, output, parts) in enumerate(ranks):
            self.assertEqual(posted, [("hr_reduce", 4 * root + 3) for root in range(3)])
            self.assertEqual(staged, 0)
            self.assertEqual(output, [3.0 + 30.0 * rank])
            self.assertEqual(parts, [[rank + 10.0 * root] for root in range(3)])


class OnTwoNodes(unittest.TestCase):
    def test_nothing_is_copied_beside_what_goes_to_the_other_node(self):
        use_double()
        cluster = Cluster(nodes=2, loopback=True)
        self.addCleanup(cluster.close)
        flags = ("--rails", "lo", "--detection-ms", "20000", "--gpu", "on", "--cuda-library", LIBRARY)
        services, port = Services(cluster, *flags), free_port()

        def run(rank):
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), LOCAL_WORLD_SIZE="2",
                              HEADRACE_RENDEZVOUS=services.rendezvous,
                              HEADRACE_SOCKET=services[rank // 2].socket)  # fmt: skip
            dist.init_process_group("headrace", rank=rank, world_size=4)
            found = reduce_scatter_to_another_tensor(rank, "allocated")
            dist.barrier()
            dist.destroy_process_group()
            return found

        for rank, (found, staged) in enumerate([each.result() for each in [Rank(run, r) for r in range(4)]]):
            sums = [4 * (i % 7) + 6 for i in range(40 * rank, 40 * rank + 40)]
            self.assertEqual(found, [(sums, True)] * 7)
            self.assertEqual(staged, 0)


if __name__ == "__main__":
    main()
