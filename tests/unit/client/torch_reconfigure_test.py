"""A process group of the backend headrace that goes on with other ranks, by torch's calls for it."""

import json
import os
import tempfile
import types
import unittest
from datetime import timedelta

import headrace
import headrace.torch
import torch
import torch.distributed as dist
from ranks import Rank, ServiceCase
from support.cluster import Cluster, Services
from torch_ranks import main

COUNT = 3
LIMIT = timedelta(seconds=60)
HAS_CALLS = hasattr(dist.ProcessGroup, "reconfigure")
GRADIENTS = [[[3.0, 3.0]]] if HAS_CALLS else []


def options(uuid, handles, timeout=LIMIT, hints=None):
    """torch 2.14's ReconfigureOptions, for any version."""
    return types.SimpleNamespace(uuid=uuid, handles=handles, timeout=timeout, hints=hints or {})


def all_reduced(group, value):
    tensor = torch.tensor([float(value)])
    group.allreduce([tensor]).wait()
    return tensor.item()


class Handles:
    """Exchanges the members' handles in some tests: each gives the others its own, and waits for theirs."""

    def __init__(self, folder, rank, handle):
        self._folder = folder
        with open(os.path.join(folder, f".{rank}"), "w", encoding="utf-8") as file:
            file.write(handle)
        os.rename(file.name, os.path.join(folder, str(rank)))

    def of(self, ranks):
        texts = []
        for rank in ranks:
            path = os.path.join(self._folder, str(rank))
            while not os.path.exists(path):
                pass
            with open(path, encoding="utf-8") as file:
                texts.append(file.read())
        return texts


def run_all(folder, sockets, function, *arguments, environment=None):
    """``function(rank, group, handles)`` by so many members as there are sockets; results by rank."""

    def run(rank):
        os.environ.update(environment or {}, HEADRACE_SOCKET=sockets[rank], HEADRACE_JOB="elastic")
        torch.set_num_threads(1)
        group = headrace.torch.ProcessGroup.reconfigurable(LIMIT)
        result = function(rank, group, Handles(folder, rank, group.get_reconfigure_handle()), *arguments)
        group.shutdown()
        return result

    return [each.result() for each in [Rank(run, rank) for rank in range(len(sockets))]]


def through_several(rank, group, handles):
    """By turns of all, of two in another order, and of all again after an abort."""
    told = []
    for uuid, members in enumerate(([0, 1, 2], [2, 0], [1, 2, 0])):
        texts = handles.of(members)
        if rank in members:
            work = group.reconfigure(options(uuid, texts))
            assert work.wait() and work.is_success()
            told.append((group.rank(), group.size(), all_reduced(group, rank + 1)))
    group.abort()
    group.reconfigure(options(99, set(handles.of(range(COUNT)))))
    told.append((group.size(), all_reduced(group, 1)))
    if not HAS_CALLS:  # C++ then knows the ranks of the beginning only
        return told
    parameters = torch.nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        parameters.weight.fill_(1.0)
    model = torch.nn.parallel.DistributedDataParallel(parameters, process_group=group)
    model(torch.full((1, 2), 3.0 * rank)).sum().backward()
    told.append(parameters.weight.grad.tolist())
    return told


def refusals(rank, group, handles):
    """What is wrong is said, and leaves the group as it was."""
    own = handles.of([0])[0]
    other = json.dumps({**json.loads(own), "identity": "another"})
    said = []

    def refuse(uuid, texts, hints=None):
        try:
            group.reconfigure(options(uuid, texts, hints=hints))
        except ValueError as error:
            said.append(str(error))

    try:
        all_reduced(group, 1)
    except RuntimeError as error:
        said.append(str(error))
    group.reconfigure(options(1, [own]))
    refuse(2, [other])
    refuse(2, [own, own])
    refuse(2, [])
    refuse(2, [own, "127.0.0.1:1234"])
    refuse(2, [own, "[" * 5000])
    refuse(2, [own], hints={"speed": "high"})
    assert all_reduced(group, 2) == 2.0, "as it was"
    try:
        group.reconfigure(options(3, [own, other], timedelta(milliseconds=300)))
    except headrace.Timeout as error:
        said.append(str(error))
    try:
        all_reduced(group, 1)
    except RuntimeError as error:
        said.append(str(error))
    group.reconfigure(options(4, [own]))
    assert all_reduced(group, 3) == 3.0, "after a reconfigure that failed"
    return said


def futures_and_memory(rank, group, handles):
    """Futures of ended work, and shared memory of a group that has had other ranks."""
    texts = handles.of(range(2))
    group.reconfigure(options(1, texts))
    old = headrace.torch.empty(8, group=group)
    group.reconfigure(options(2, texts))
    new = headrace.torch.empty(8, group=group)
    before = group.session.counters()["copied_bytes"]
    copied = []
    for tensor in (old, new):
        work = group.allreduce([tensor.fill_(rank + 1.0)])
        work.wait()
        assert work.get_future().wait()[0] is tensor
        assert tensor.tolist() == [3.0] * 8
        copied.append(group.session.counters()["copied_bytes"] - before)
    return copied


class Reconfigure(ServiceCase):
    def run_members(self, count, function):
        with tempfile.TemporaryDirectory() as folder:
            return run_all(folder, [self.service.socket] * count, function)

    def test_a_group_goes_on_with_other_ranks_in_any_order(self):
        told = self.run_members(COUNT, through_several)
        last = [(3, 3.0), *GRADIENTS]
        self.assertEqual(told[0], [(0, 3, 6.0), (1, 2, 4.0), (2, 3, 6.0), *last])
        self.assertEqual(told[1], [(1, 3, 6.0), (0, 3, 6.0), *last])
        self.assertEqual(told[2], [(2, 3, 6.0), (0, 2, 4.0), (1, 3, 6.0), *last])

    def test_wrong_handles_are_refused_and_a_missing_member_is_named(self):
        (said,) = self.run_members(1, refusals)
        for words, text in zip(
            (
                "no ranks: all members are to call reconfigure()",
                "none of the 1 handles",
                "stands twice",
                "0 handles",
                "not a handle of the backend headrace",
                "5000 letters",
                "speed",
                "not all of the 2 ranks",
                "no ranks",
            ),
            said,
            strict=True,
        ):
            self.assertIn(words, text)

    def test_work_and_shared_memory_are_those_of_the_present_ranks(self):
        copied = self.run_members(2, futures_and_memory)
        self.assertEqual(copied, [[64, 64], [64, 64]], "in and out, once, of the old memory only")


class Nodes(unittest.TestCase):
    def test_members_on_two_nodes_meet_where_the_first_says(self):
        cluster = Cluster(nodes=2, loopback=True)
        self.addCleanup(cluster.close)
        services = Services(cluster, "--rails", "lo", "--detection-ms", "20000")
        sockets = [services[index % 2].socket for index in range(COUNT)]
        with tempfile.TemporaryDirectory() as folder:
            told = run_all(
                folder, sockets, through_several, environment={"HEADRACE_RENDEZVOUS": services.rendezvous}
            )
        self.assertEqual([each[-1] for each in told], [[(3, 3.0), *GRADIENTS][-1]] * COUNT)


def native(rank, port):
    os.environ["HEADRACE_JOB"] = "native"
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("headrace", store=store, rank=rank, world_size=2, enable_reconfigure=True)
    group = dist.group.WORLD
    assert dist.distributed_c10d._supports_reconfigure()
    store.set(f"handle{rank}", dist.distributed_c10d._get_reconfigure_handle())
    texts = [store.get(f"handle{each}").decode() for each in (1, 0)]
    dist.distributed_c10d._reconfigure(7, texts).wait()
    tensor = torch.tensor([rank + 1.0])
    dist.all_reduce(tensor)
    ranks = (dist.get_rank(), dist.get_world_size(), group is dist.group.WORLD, tensor.item())
    dist.destroy_process_group()
    return ranks


@unittest.skipUnless(HAS_CALLS, "torch before 2.14 has no calls for it")
class Native(ServiceCase):
    def test_the_default_group_gets_its_ranks_by_torchs_functions(self):
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        os.environ["HEADRACE_SOCKET"] = self.service.socket
        ranks = [Rank(native, rank, store.port) for rank in range(2)]
        self.assertEqual([each.result() for each in ranks], [(1, 2, True, 3.0), (0, 2, True, 3.0)])


if __name__ == "__main__":
    main()
