"""Tensors that lie in shared memory are used in place by the backend: the same numbers, and nothing is copied."""

import gc

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
    spared = copied() - before
    parts = list(inputs.split(100))
    dist.reduce_scatter(output, parts)
    results += [output, inputs]
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
    return len(places._host), view.tolist()


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
