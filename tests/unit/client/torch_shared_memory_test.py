"""Tensors that lie in shared memory are used in place by the backend: the same numbers, and nothing is copied."""

import gc
import random
import time
import weakref

import headrace
import headrace.torch
import torch
import torch.distributed as dist
from ranks import ServiceCase
from torch.nn.parallel import DistributedDataParallel
from torch_ranks import main, run_group


def group_of(group=None):
    return group or dist.distributed_c10d._get_default_group()


def copied():
    """Bytes that this rank's default group has copied so far."""
    return group_of().session.counters()["copied_bytes"]


def collectives(rank, make):
    """Results, and the bytes that were copied for them."""
    before, results = copied(), []

    def filled(*shape, dtype=torch.float32):
        tensor = make(*shape, dtype=dtype)
        values = torch.arange(tensor.numel(), dtype=torch.float32) * (rank + 1)
        return tensor.copy_(values.view(shape).to(dtype))

    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        tensor = filled(100, 10, dtype=dtype)
        dist.all_reduce(tensor)
        dist.broadcast(tensor[20:40], 1)  # a part of it, at an offset
        results.append(tensor)
    tensor = filled(64)
    if rank == 0:
        dist.send(tensor, 1)
    else:
        dist.recv(tensor, 0)
    results.append(tensor)
    whole = make(200, dtype=torch.float32)
    dist.all_gather_into_tensor(whole, torch.full((100,), float(rank)))
    results.append(whole)
    results += messages(rank, make, filled)
    output, inputs = make(100, dtype=torch.float32), filled(200)
    parts = list(inputs.split(100))
    dist.reduce_scatter(output, parts)
    results += [output, inputs]
    spared = copied() - before
    dist.reduce_scatter(parts[rank], parts)  # of which this rank's is a copy meanwhile
    results += [inputs]
    return [(str(t.dtype), t.tolist()) for t in results], spared


def messages(rank, make, filled):
    """What goes from each rank to others, in lists and in parts of one tensor, of one size and of several."""
    inputs = [filled(100 + rank + 2 * other) for other in range(2)]
    outputs = [make(100 + other + 2 * rank) for other in range(2)]
    dist.all_to_all(outputs, inputs)
    results = [*outputs, *inputs]
    output, whole = make(60, 3), filled(60, 3)
    dist.all_to_all_single(output, whole)
    results += [output, whole]
    sent, received = [[10, 20], [5, 25]][rank], [[10, 5], [20, 25]][rank]
    output, whole = make(sum(received), dtype=torch.int64), filled(sum(sent), dtype=torch.int64)
    dist.all_to_all_single(output, whole, received, sent)
    results += [output, whole]
    gathered = [make(50), make(50)] if rank == 1 else None
    dist.gather(filled(50), gathered, 1)
    results += gathered or []
    scattered, own = [filled(70), filled(70)] if rank == 0 else None, make(70)
    dist.scatter(own, scattered, 0)
    results += [own, *(scattered or [])]
    whole = make(100)
    parts = list(whole.split([30, 70]))
    dist.all_gather(parts, filled([30, 70][rank]))
    # This rank's own may stand in its place already.
    whole = make(100)
    parts = list(whole.split([30, 70]))
    parts[rank].fill_(rank + 5.0)
    dist.all_gather(parts, parts[rank])
    return [*results, whole]


def as_it_is_not_taken(rank):
    """Results where memory is shared and the service would not take it as it lies, which is copied then."""
    tensors, plain = [headrace.torch.empty(8) for _ in range(3)], torch.empty(8)
    addresses = [tensor.data_ptr() for tensor in tensors]
    assert addresses == sorted(addresses)
    results, before = [], copied()
    for outputs in (tensors[::-1], [tensors[0], plain, tensors[2]]):
        sent = [headrace.torch.empty(8).fill_(10.0 * rank + other) for other in range(3)]
        dist.all_to_all(outputs, sent)
        results.append([output.unique().tolist() for output in outputs])
    mixed = headrace.torch.empty(48).split(8)  # what is received stands between what is sent
    for other in range(3):
        mixed[2 * other].fill_(10.0 * rank + other)
    dist.all_to_all(list(mixed[1::2]), list(mixed[::2]))
    results.append([output.unique().tolist() for output in mixed[1::2]])
    return results, copied() > before


def in_shared_memory(rank):
    return collectives(rank, headrace.torch.empty)


def anywhere(rank):
    return collectives(rank, torch.empty)


def train(rank, is_shared, rebuilds):
    """Parameters after training by DDP, and the bytes that each iteration copied."""
    ways = {"gradient_as_bucket_view": True, "find_unused_parameters": not rebuilds}

    def shared():
        return headrace.torch.shared_memory() if is_shared else torch.enable_grad()

    torch.manual_seed(0)
    with shared():
        layers = [torch.nn.Linear(16, 64), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 4)]
        model = torch.nn.Sequential(*layers)
        ddp = DistributedDataParallel(model, bucket_cap_mb=0.001, **ways)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    bytes_copied = []
    for step in range(5):
        before = copied()
        x = torch.randn(8, 16, generator=torch.Generator().manual_seed(step + 10 * rank))
        optimizer.zero_grad()
        if rebuilds and step == 1:
            with shared():
                loss = ddp(x).square().sum()
        else:
            loss = ddp(x).square().sum()
        loss.backward()
        bytes_copied.append(copied() - before)
        optimizer.step()
    return [p.detach().numpy().tobytes() for p in model.parameters()], bytes_copied


def used_again(rank):
    """Arenas after many tensors came and went, and whether a view keeps what it lies in."""
    places = group_of().poster.places
    kept = headrace.torch.empty(1 << 18)
    view = kept.fill_(7.0)[10:20]
    del kept
    for turn in range(200):
        headrace.torch.empty(1 << 18).fill_(float(turn))
    gc.collect()
    return len(places._host[1]), view.tolist()


def gathered_into_fresh_memory(rank):
    """Arenas after many all-gathers whose outputs nobody keeps, and which outputs outlive their work's end."""
    places, alive = group_of().poster.places, []
    own = torch.full((1 << 18,), float(rank))
    for turn in range(200):
        whole = headrace.torch.empty(2 << 18)
        work = dist.all_gather_into_tensor(whole, own, async_op=True)
        if turn % 4 == 1:
            assert work.get_future().wait()[0] is whole
        if turn % 4 == 2:
            while not work.is_completed():
                pass
            assert work.result()[0] is whole
        if turn % 4 != 1:
            work.wait()
        assert work.result()[0] is whole and whole[-1] == 1.0
        reference = weakref.ref(whole)
        del whole
        alive.append((turn % 4, reference() is not None or work.result() != []))
    in_time = [turn for turn, is_alive in alive if is_alive and turn != 1]
    return len(places._host[1]), in_time


def in_tensors_that_only_work_has(rank):
    """Memory of works that have ended and were not waited for."""
    works = [dist.all_reduce(torch.full((4,), float(turn)), async_op=True) for turn in range(8)]
    while not all(work.is_completed() for work in works):
        pass
    values = [work.result()[0].tolist() for work in works[::2]]
    return values + [work.get_future().wait()[0].tolist() for work in works[1::2]]


def future_is_of_what_is_left(rank):
    """What a future gives that is asked for when the work has ended, with its tensors there and gone."""
    kept, gone, small = torch.full((2000,), 1.0), torch.full((2000,), 1.0), torch.full((4,), 1.0)
    works = [dist.all_reduce(tensor, async_op=True) for tensor in (kept, gone, small)]
    for work in works:
        work.wait()
    del gone, small  # torch's join() has such a small one by its work only
    assert [len(work.result()) for work in works] == [1, 0, 1]
    return [[tensor.unique().tolist() for tensor in work.get_future().wait()] for work in works]


def never_waited_for(rank):
    """How many tensors of collectives that nobody waits for are alive when many more were posted."""
    references = []
    for _ in range(300):
        tensor = torch.ones(16)
        references.append(weakref.ref(tensor))
        dist.all_reduce(tensor, async_op=True)
        del tensor
    dist.barrier()
    for _ in range(300):
        dist.all_reduce(torch.ones(1))
    return sum(reference() is not None for reference in references)


def of_random_sizes(rank):
    """The most that tensors took at a time, the most that the arenas had, and what is left in the end."""
    memory = headrace.torch.shared_memory()._memory
    random_sizes, live = random.Random(7), []
    most_used, most_had = 0, 0
    for _ in range(4000):
        if len(live) >= 8:
            del live[random_sizes.randrange(8)]
        live.append(headrace.torch.empty(random_sizes.randrange(1, 3 << 20)))
        most_used = max(most_used, sum(4 * tensor.numel() for tensor in live))
        most_had = max(most_had, memory.size)
    live.clear()
    for _ in range(2100):
        headrace.torch.empty(1000)
    places = group_of().poster.places
    return most_used, most_had, memory.size, len(places._host[1])


def let_go_while_it_is_read(rank):
    """A reduce-scatter whose input nobody has any more, while its memory could be used again."""
    output, whole = headrace.torch.empty(1 << 16), headrace.torch.empty(1 << 17).fill_(rank + 1.0)
    if rank == 1:
        time.sleep(0.5)  # so that the other one waits
    work = dist.reduce_scatter_tensor(output, whole, async_op=True)
    address = whole.data_ptr()
    del whole
    gc.collect()
    others = [headrace.torch.empty(1 << 17).fill_(100.0) for _ in range(4)]
    while_open = address in [other.data_ptr() for other in others]
    work.wait()
    del work
    gc.collect()
    afterwards = [headrace.torch.empty(1 << 17) for _ in range(8)]
    return output.unique().tolist(), while_open, address in [other.data_ptr() for other in afterwards]


def other_groups_and_types(rank):
    other = dist.new_group()
    gloo = dist.new_group(backend="gloo")
    tensor = headrace.torch.empty(10, 3).fill_(rank + 1.0)
    dist.all_reduce(tensor, group=other)  # which copies
    texts = []
    for wrong in ({"dtype": torch.bool}, {"group": gloo}):
        try:
            headrace.torch.empty(4, **wrong)
        except TypeError as error:
            texts.append(str(error))
    with headrace.torch.shared_memory():
        mask = torch.zeros(4, dtype=torch.bool)
        made = torch.ones(3, 5), torch.zeros(2), torch.empty(0)
    values = [made[0].sum().item(), made[1].sum().item(), made[2].shape, mask.any().item()]
    own = headrace.torch.empty((4, 5), dtype=torch.float64, group=other).fill_(1.0)
    before = other.session.counters()["copied_bytes"]
    dist.all_reduce(own, group=other)
    return (
        tensor.unique().tolist(),
        texts,
        values,
        own.unique().tolist(),
        other.session.counters()["copied_bytes"] - before,
    )


def after_the_group(rank):
    tensor = headrace.torch.empty(8).fill_(3.0)
    dist.all_reduce(tensor)
    group_of().shutdown()
    dist.barrier = lambda: None
    return tensor.fill_(4.0).tolist()


def posted_twice(rank):
    """A tensor that is under way is the service's, which says so."""
    tensor = headrace.torch.empty(8).fill_(3.0)
    if rank == 0:
        first = dist.all_reduce(tensor, async_op=True)
        second = dist.all_reduce(tensor, async_op=True)
        try:
            second.wait()
            first.wait()
        except headrace.Error as error:
            dist.barrier = lambda: None
            return str(error)
    else:
        dist.barrier = lambda: None
        try:
            dist.recv(torch.zeros(1), 0)
        except headrace.Error as error:
            return str(error)
    return ""


class InSharedMemory(ServiceCase):
    def test_collectives_give_the_same_and_copy_nothing(self):
        ours = run_group(self.service, 2, in_shared_memory)
        plain = run_group(self.service, 2, anywhere)
        for (found, spared), (expected, copies) in zip(ours, plain, strict=True):
            self.assertEqual(found, expected)
            self.assertEqual(spared, 0)
            self.assertGreater(copies, 2 * 14000)

    def test_what_the_service_would_not_take_as_it_lies_is_copied(self):
        for rank, (results, copies) in enumerate(run_group(self.service, 3, as_it_is_not_taken)):
            self.assertEqual(results, [[[float(rank)], [10.0 + rank], [20.0 + rank]]] * 3)
            self.assertTrue(copies)

    def test_ddp_sums_its_buckets_in_place(self):
        for rebuilds in (False, True):
            with self.subTest(rebuilds=rebuilds):
                ours = run_group(self.service, 2, train, True, rebuilds)
                plain = run_group(self.service, 2, train, False, rebuilds)
                self.assertEqual([each[0] for each in ours], [each[0] for each in plain])
                for (_, in_place), (_, copies) in zip(ours, plain, strict=True):
                    # What else DDP sends are BatchNorm's buffers, in a tensor of its own.
                    self.assertLess(max(in_place), min(copies) / 2)

    def test_memory_is_used_again_when_the_last_view_has_gone(self):
        for arenas, view in run_group(self.service, 2, used_again):
            self.assertEqual(arenas, 1)
            self.assertEqual(view, [7.0] * 10)

    def test_what_is_read_is_kept_until_it_has_ended(self):
        for values, while_open, afterwards in run_group(self.service, 2, let_go_while_it_is_read):
            self.assertEqual(values, [3.0])
            self.assertFalse(while_open)
            self.assertTrue(afterwards)

    def test_an_operation_that_has_ended_keeps_no_memory(self):
        for arenas, alive in run_group(self.service, 2, gathered_into_fresh_memory):
            self.assertLessEqual(arenas, 2)
            self.assertEqual(alive, [])

    def test_results_stay_until_somebody_has_waited(self):
        values = [[2.0 * turn] * 4 for turn in (0, 2, 4, 6, 1, 3, 5, 7)]
        self.assertEqual(run_group(self.service, 2, in_tensors_that_only_work_has), [values] * 2)

    def test_a_future_of_work_that_has_ended_has_the_tensors_that_are_left(self):
        ours = run_group(self.service, 2, future_is_of_what_is_left)
        self.assertEqual(ours, [[[[2.0]], [], [[2.0]]]] * 2)

    def test_what_nobody_waits_for_keeps_nothing_when_it_has_ended(self):
        self.assertEqual(run_group(self.service, 2, never_waited_for), [0, 0])

    def test_tensors_of_changing_sizes_take_a_bounded_amount_of_memory_and_give_it_back(self):
        for most_used, most_had, left, arenas in run_group(self.service, 2, of_random_sizes):
            self.assertLess(most_had, 2 * most_used)
            self.assertLessEqual((left, arenas), (16 << 20, 1))

    def test_other_groups_copy_and_other_types_are_named(self):
        for summed, texts, values, own, copies in run_group(
            self.service, 2, other_groups_and_types
        ):
            self.assertEqual(summed, [3.0])
            self.assertEqual(len(texts), 2, texts)
            self.assertIn("bool", texts[0])
            self.assertIn("headrace", texts[1])
            self.assertEqual(values, [15.0, 0.0, (0,), False])
            self.assertEqual((own, copies), ([2.0], 0))

    def test_it_stays_when_the_group_has_gone(self):
        self.assertEqual(run_group(self.service, 2, after_the_group), [[4.0] * 8] * 2)

    def test_a_tensor_that_is_under_way_may_not_be_posted_again(self):
        first, _ = run_group(self.service, 2, posted_twice)
        self.assertIn("overlap", first)


if __name__ == "__main__":
    main()
