"""torch.distributed's backend "headrace", each collective against what it should give."""

import os
import time
import unittest

import headrace
import torch
import torch.distributed as dist
from ranks import Service, ServiceCase
from support.patience import SOON_S
from torch_ranks import MODERN, free_port, main, run_group, start_group

RANKS = 3
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64]
DTYPES += [torch.int32, torch.int16, torch.int8, torch.uint8, torch.complex64]


def share(rank: int, dtype: torch.dtype, shape=(4, 3)) -> torch.Tensor:
    """What a rank brings along: small whole numbers, which every type adds up exactly."""
    count = torch.Size(shape).numel()
    return (torch.arange(count).reshape(shape) % 5 + rank).to(dtype)


def same(one: torch.Tensor, other: torch.Tensor, what: object = "") -> None:
    assert one.dtype == other.dtype and torch.equal(one, other), (what, one, other)


def reductions(rank):
    for dtype in DTYPES:
        tensor = share(rank, dtype)
        dist.all_reduce(tensor)
        same(tensor, sum(share(r, dtype) for r in range(RANKS)), dtype)
    shares = torch.stack([share(r, torch.float32) + 1 for r in range(RANKS)])
    expected = {
        dist.ReduceOp.AVG: shares.mean(0),
        dist.ReduceOp.PRODUCT: shares.prod(0),
        dist.ReduceOp.MIN: shares.min(0).values,
        dist.ReduceOp.MAX: shares.max(0).values,
    }
    for op, result in expected.items():
        tensor = shares[rank].clone()
        dist.all_reduce(tensor, op=op)
        torch.testing.assert_close(tensor, result)
    flags = torch.tensor([rank == 0, True, False])
    for op, result in ((dist.ReduceOp.SUM, [True, True, False]),
                       (dist.ReduceOp.MIN, [False, True, False])):  # fmt: skip
        tensor = flags.clone()
        dist.all_reduce(tensor, op=op)
        same(tensor, torch.tensor(result))


def layouts(rank):
    """With every layout of tensors, results stand where the caller's elements are."""
    turned = share(rank, torch.float32).t()
    dist.all_reduce(turned)
    same(turned, sum(share(r, torch.float32) for r in range(RANKS)).t())
    sliced = share(rank, torch.int16, (4, 6))[:, ::2]
    dist.broadcast(sliced, 1)
    same(sliced, share(1, torch.int16, (4, 6))[:, ::2])
    scalar = torch.tensor(float(rank))
    dist.all_reduce(scalar)
    same(scalar, torch.tensor(3.0))
    empty = torch.empty(0, 4)
    dist.all_reduce(empty)
    dist.broadcast(empty, 0)
    needs = torch.ones(3, requires_grad=True)
    dist.broadcast(needs, 0)
    return turned.is_contiguous()


def gathers(rank):
    for dtype in (*DTYPES, torch.bool):
        own = share(rank, dtype)
        outputs = [torch.zeros_like(own) for _ in range(RANKS)]
        dist.all_gather(outputs, own)
        for r, output in enumerate(outputs):
            same(output, share(r, dtype), dtype)
    whole = torch.zeros(RANKS * 4, 3)
    gather = getattr(dist, "all_gather_into_tensor", None) or dist._all_gather_base
    gather(whole, share(rank, torch.float32))
    same(whole, torch.cat([share(r, torch.float32) for r in range(RANKS)]))
    # The own share may be a part of the result, and sizes may differ.
    whole.zero_()
    part = whole[4 * rank : 4 * (rank + 1)]
    part.copy_(share(rank, torch.float32))
    gather(whole, part)
    same(whole, torch.cat([share(r, torch.float32) for r in range(RANKS)]))
    outputs = [torch.zeros(2 * r) for r in range(RANKS)]
    dist.all_gather(outputs, torch.full((2 * rank,), float(rank)))
    for r, output in enumerate(outputs):
        same(output, torch.full((2 * r,), float(r)))
    outputs = [torch.zeros(4, 3) for _ in range(RANKS)] if rank == 2 else None
    dist.gather(share(rank, torch.float32), outputs, dst=2)
    for r, output in enumerate(outputs or []):
        same(output, share(r, torch.float32))


def scatters(rank):
    def total(part):
        return sum(share(r + part, torch.float32) for r in range(RANKS))

    inputs = [share(rank + part, torch.float32) for part in range(RANKS)]
    output = torch.zeros(4, 3)
    dist.reduce_scatter(output, inputs)
    same(output, total(rank))
    for part, tensor in enumerate(inputs):
        same(tensor, share(rank + part, torch.float32), "inputs stay as they are")
    whole = torch.cat(inputs)
    scatter = getattr(dist, "reduce_scatter_tensor", None) or dist._reduce_scatter_base
    scatter(output.zero_(), whole, op=dist.ReduceOp.AVG)
    torch.testing.assert_close(output, total(rank) / RANKS)
    same(whole, torch.cat(inputs))
    uneven = [torch.full((r + 1,), float(rank)) for r in range(RANKS)]
    output = torch.zeros(rank + 1)
    dist.reduce_scatter(output, uneven)
    same(output, torch.full((rank + 1,), 3.0))
    tensor = share(rank, torch.float32)
    dist.reduce(tensor, 1)
    same(tensor, total(0) if rank == 1 else share(rank, torch.float32))
    output = torch.zeros(4, 3)
    dist.scatter(output, inputs if rank == 1 else None, src=1)
    same(output, share(1 + rank, torch.float32))
    tensor = share(rank, torch.bool)
    dist.broadcast(tensor, 2)
    same(tensor, share(2, torch.bool))


def all_to_all(rank):
    inputs = [torch.full((2,), 10.0 * rank + r) for r in range(RANKS)]
    outputs = [torch.zeros(2) for _ in range(RANKS)]
    dist.all_to_all(outputs, inputs)
    for r, output in enumerate(outputs):
        same(output, torch.full((2,), 10.0 * r + rank))
    output = torch.zeros(RANKS, 2, dtype=torch.int64)
    dist.all_to_all_single(output, torch.arange(2 * RANKS).view(RANKS, 2) + 10 * rank)
    same(
        output, torch.stack([torch.arange(2) + 2 * rank + 10 * r for r in range(RANKS)])
    )
    # Rank s sends s + r rows to rank r: of 0 and 0 nothing.
    rows = [rank + r for r in range(RANKS)]
    output = torch.zeros(sum(rows), 2)
    dist.all_to_all_single(output, torch.full((sum(rows), 2), float(rank)), rows, rows)
    same(output, torch.cat([torch.full((rank + r, 2), float(r)) for r in range(RANKS)]))


def messages(rank):
    following, before = (rank + 1) % RANKS, (rank - 1) % RANKS
    # Each sends twice to the next under two tags, and receives in the other order.
    works = [dist.isend(torch.full((3,), rank + 0.5), following, tag=7),
             dist.isend(torch.tensor([rank, 1]), following),
             dist.isend(torch.tensor([rank, 2]), following)]  # fmt: skip
    first, second = torch.zeros(2, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)
    assert dist.recv(first, before) == before
    dist.recv(second, before)
    tagged = torch.zeros(3)
    dist.recv(tagged, before, tag=7)
    same(first, torch.tensor([before, 1]))
    same(second, torch.tensor([before, 2]))
    same(tagged, torch.full((3,), before + 0.5))
    for work in works:
        work.wait()
    received = torch.zeros(3)
    operations = [dist.P2POp(dist.irecv, received, before),
                  dist.P2POp(dist.isend, torch.full((3,), float(rank)), following)]  # fmt: skip
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    same(received, torch.full((3,), float(before)))


def from_any(rank):
    """The first rank receives from whoever sends, one of them late; the others send in turn."""
    if rank != 0:
        time.sleep(0.2 * (rank - 1))
        for number in range(3):
            dist.send(torch.tensor([rank, number]), 0, tag=5)
        return []
    seen = []
    for _ in range(3 * (RANKS - 1)):
        received = torch.zeros(2, dtype=torch.int64)
        source = dist.recv(received, tag=5)
        assert received[0] == source
        seen.append((source, int(received[1])))
    for source in range(1, RANKS):
        assert [number for rank, number in seen if rank == source] == [0, 1, 2]
    return seen


def many_ways(rank):
    """More directions and tags than a group once had."""
    following, before = (rank + 1) % RANKS, (rank - 1) % RANKS
    works = [dist.isend(torch.tensor([rank, tag]), following, tag=tag) for tag in range(300)]
    received = [torch.zeros(2, dtype=torch.int64) for _ in range(300)]
    works += [dist.irecv(received[tag], before, tag=tag) for tag in reversed(range(300))]
    for work in works:
        work.wait()
    for tag, tensor in enumerate(received):
        same(tensor, torch.tensor([before, tag]))


def asynchronous(rank):
    tensors = [torch.full((i + 1,), float(rank)) for i in range(50)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in reversed(works):
        assert work.wait()
        assert work.is_completed() and work.is_success()
    for tensor in tensors:
        same(tensor, torch.full_like(tensor, 3.0))
    tensors = [torch.full((2,), float(rank)).to(torch.int8) for _ in range(20)]
    futures = [dist.all_reduce(t, async_op=True).get_future() for t in tensors]
    doubled = [future.then(lambda f: f.value()[0] * 2) for future in futures]
    for tensor in torch.futures.wait_all(doubled):
        same(tensor, torch.full((2,), 6, dtype=torch.int8))
    late = torch.zeros(2)
    found = torch.zeros(1)
    if rank == 0:
        for other in range(1, RANKS):
            dist.recv(found, other)  # it has found it open
    work = dist.all_reduce(late, async_op=True)
    if rank != 0:
        assert not work.is_completed()
        dist.send(found, 0)
    work.wait()


def objects(rank):
    gathered = [None] * RANKS
    dist.all_gather_object(gathered, {"rank": rank, "long": "x" * rank})
    assert [each["rank"] for each in gathered] == [0, 1, 2]
    objects = [("of", rank)]
    dist.broadcast_object_list(objects, src=2)
    assert objects == [("of", 2)]


def subgroups(rank):
    groups = [dist.new_group([0, 2]), dist.new_group([1, 2]), dist.new_group([0, 2])]
    members = [(0, 2), (1, 2), (0, 2)]
    results = []
    for group, ranks in zip(groups, members, strict=True):
        tensor = torch.tensor([10**rank])
        if rank in ranks:
            dist.all_reduce(tensor, group=group)
            same(tensor, torch.tensor([sum(10**r for r in ranks)]))
            dist.broadcast(tensor, ranks[1], group=group)
            results.append(group.session.job)
    # Rank 1 of the second group is rank 2 of all.
    if rank == 1:
        dist.send(torch.ones(2), 2, group=groups[1])
    if rank == 2:
        received = torch.zeros(2)
        dist.recv(received, 1, group=groups[1])
        same(received, torch.ones(2))
    return results


def again(rank, ports):
    jobs = []
    for port in ports:
        session = dist.distributed_c10d._get_default_group().session
        jobs.append(session.job)
        dist.barrier()
        dist.destroy_process_group()
        assert session.closed
        os.environ["MASTER_PORT"] = str(port)
        dist.init_process_group("headrace")
    return jobs


def refusals(rank):
    texts = []

    def refused(function):
        try:
            function()
        except (TypeError, ValueError, NotImplementedError, RuntimeError) as error:
            texts.append(str(error))

    refused(lambda: dist.all_reduce(torch.ones(2), op=dist.ReduceOp.BXOR))
    refused(lambda: dist.all_to_all_single(torch.ones(4), torch.ones(4)))
    refused(lambda: dist.all_to_all_single(torch.ones(3), torch.ones(3), [1, 1, 2]))
    return texts


def sparse(rank):
    """Rank r has r + 1 in row r of four; one row stays empty."""
    indices, values = torch.tensor([[rank]]), torch.full((1, 2), rank + 1.0)
    tensor = torch.sparse_coo_tensor(indices, values, (4, 2))
    dist.all_reduce(tensor)
    assert tensor.is_sparse and tensor.sparse_dim() == 1
    dense = torch.tensor([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0], [0.0, 0.0]])
    same(tensor.to_dense(), dense)
    assert tensor._nnz() == RANKS


def with_gloo(rank, ports):
    """No group of torch's holds headrace and another backend. One rank: each makes its own store."""
    texts = []
    for port, backends in zip(
        ports, ("cpu:gloo,cuda:headrace", "cpu:headrace,cuda:gloo", "headrace"), strict=True
    ):
        if dist.is_initialized():
            dist.destroy_process_group()
        os.environ["MASTER_PORT"] = str(port)
        try:
            dist.init_process_group(backends)
        except ValueError as error:
            texts.append(str(error))
    return texts


def beside_gloo(rank):
    tensor = torch.ones(2)
    dist.all_reduce(tensor, group=dist.new_group(backend="gloo"))
    dist.all_reduce(tensor)
    same(tensor, torch.full((2,), float(RANKS * RANKS)))


def mismatch(rank):
    try:
        dist.all_reduce(torch.ones(4 + rank))
    except headrace.Mismatch as error:
        return str(error)
    return ""


def dies(rank):
    if rank == 1:
        time.sleep(0.2)
        os._exit(9)
    began = time.monotonic()
    texts = []
    for _ in range(2):  # the group stays broken, and says so
        try:
            dist.all_reduce(torch.ones(4))
        except headrace.Error as error:
            texts.append(str(error))
    return texts, time.monotonic() - began


def dies_and_tells(rank):
    try:
        return dies(rank)
    finally:
        # Nothing that needs the dead rank may follow.
        dist.barrier = lambda: None


class Collectives(ServiceCase):
    def test_all_reduce_reduces_every_type_and_way(self):
        run_group(self.service, RANKS, reductions)

    def test_results_stand_in_tensors_of_any_layout(self):
        self.assertEqual(run_group(self.service, RANKS, layouts), [False] * RANKS)

    def test_gathers_take_lists_and_whole_tensors(self):
        run_group(self.service, RANKS, gathers)

    def test_scatters_take_lists_and_whole_tensors(self):
        run_group(self.service, RANKS, scatters)

    def test_all_to_all_takes_equal_and_unequal_parts(self):
        run_group(self.service, RANKS, all_to_all)

    def test_messages_keep_their_order_by_tag(self):
        run_group(self.service, RANKS, messages)

    def test_a_receive_from_any_rank_says_who_sent(self):
        self.assertEqual(len(run_group(self.service, RANKS, from_any)[0]), 3 * (RANKS - 1))

    def test_messages_need_no_job_of_two_ranks(self):
        run_group(self.service, RANKS, many_ways)

    def test_work_ends_in_its_own_time(self):
        run_group(self.service, RANKS, asynchronous)

    def test_objects_travel(self):
        run_group(self.service, RANKS, objects)

    def test_each_group_is_a_job_of_its_own(self):
        jobs = run_group(self.service, RANKS, subgroups)
        self.assertEqual(jobs[0], [jobs[2][0], jobs[2][2]])
        self.assertEqual(jobs[1], [jobs[2][1]])
        self.assertEqual(len(set(jobs[2])), 3)
        self.assertIn("0,2", jobs[0][0])

    def test_a_group_may_be_made_again(self):
        first, second = run_group(
            self.service, 2, again, [free_port() for _ in range(3)]
        )
        self.assertEqual(first, second)
        self.assertEqual(len(set(first)), 3)
        self.assertNotIn("live", self.service.ctl("jobs")[1])

    def test_what_is_refused_is_named(self):
        for texts in run_group(self.service, RANKS, refusals):
            self.assertEqual(len(texts), 3, texts)
            for text, word in zip(texts, ("BXOR", "4 rows", "[1, 1, 2]"), strict=True):
                self.assertIn(word, text)

    def test_sparse_tensors_are_summed(self):
        run_group(self.service, RANKS, sparse)

    @unittest.skipUnless(MODERN, "a group of torch 1.13 has one backend")
    def test_what_would_leave_another_backend_out_is_refused(self):
        ports = [free_port() for _ in range(3)]
        (texts,) = run_group(self.service, 1, with_gloo, ports)
        self.assertEqual(len(texts), 2, texts)
        for text in texts:
            self.assertIn("gloo", text)

    def test_a_group_of_gloos_works_beside_it(self):
        run_group(self.service, RANKS, beside_gloo)

    def test_errors_come_with_the_services_words(self):
        for text in run_group(self.service, 2, mismatch):
            self.assertIn("4", text)
            self.assertIn("5", text)

    def test_a_rank_that_dies_is_named_within_a_second(self):
        with Service() as service:
            ranks = start_group(service, 2, dies_and_tells)
            (first, second), seconds = ranks[0].result()
            ranks[1].end()
            self.assertIn("rank 1", first)
            self.assertIn(str(ranks[1].pid), first)
            self.assertIn("rank 1", second)
            self.assertLess(seconds, SOON_S)


if __name__ == "__main__":
    main()
