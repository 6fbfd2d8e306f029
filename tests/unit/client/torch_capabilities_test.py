"""What a backend of torch.distributed is asked for beyond float32: few elements or none, rare types, late ends."""

import gc
import inspect
import random
import threading
import time
import unittest

import headrace
import headrace.torch
import torch
import torch.distributed as dist
from headrace.torch.work import Completer, Work
from ranks import ServiceCase
from torch_ranks import MODERN, main, run_group

# Some versions (2.11) refuse to broadcast conjugated tensors themselves, whatever the backend is.
BROADCASTS_VIEWS = "view_as_real" not in inspect.getsource(dist.broadcast)


def failure_of(call):
    """The error of a collective that fails on all ranks; the group has no barrier after it."""
    try:
        call()
    except headrace.Error as error:
        return type(error).__name__, str(error)
    return "", ""


def collectives_of_nothing(rank):
    """Each waits for the other ranks, and moves nothing."""
    size = dist.get_world_size()
    nothing = torch.empty(0)
    posted = group_of().session.counters()["posted"]
    dist.all_reduce(nothing)
    dist.all_reduce(torch.empty(3, 0, dtype=torch.complex64))
    dist.broadcast(nothing, 1)
    dist.reduce(nothing, 0)
    dist.all_gather([torch.empty(0) for _ in range(size)], nothing)
    dist.reduce_scatter(nothing, [torch.empty(0) for _ in range(size)])
    dist.gather(nothing, [torch.empty(0) for _ in range(size)] if rank == 0 else None, 0)
    dist.scatter(nothing, [torch.empty(0) for _ in range(size)] if rank == 0 else None, 0)
    dist.all_to_all([torch.empty(0) for _ in range(size)], [torch.empty(0) for _ in range(size)])
    dist.all_to_all_single(nothing, torch.empty(0))
    return group_of().session.counters()["posted"] - posted


def a_collective_of_nothing_waits(rank):
    """Whether one had ended before the other rank had posted it."""
    if rank == 1:
        dist.recv(torch.zeros(1), 0)  # so the other one has looked
        dist.all_reduce(torch.empty(0))
        return False
    work = dist.all_reduce(torch.empty(0), async_op=True)
    ended = work.is_completed()
    dist.send(torch.ones(1), 1)
    work.wait()
    return ended


def messages_of_nothing(rank):
    """Whether a receive had ended before its send, and whose it took."""
    if rank == 1:
        dist.recv(torch.zeros(1), 0)
        dist.send(torch.empty(0), 0, tag=1)
        dist.send(torch.empty(0), 0, tag=2)
        return None
    work = dist.irecv(torch.empty(0), 1, tag=1)
    ended = work.is_completed()
    dist.send(torch.ones(1), 1)
    work.wait()
    return ended, dist.recv(torch.empty(0), tag=2)


def one_gives_nothing(rank, how):
    """What becomes of a collective in which rank 0 has no elements and rank 1 has four."""
    tensor = torch.full((4 * rank,), 1.0)
    later = torch.full((4,), rank + 1.0)
    parts = [torch.empty(4 * rank) for _ in range(2)]
    calls = {
        "all_reduce": lambda: dist.all_reduce(tensor),
        "broadcast": lambda: dist.broadcast(tensor, 1),
        "reduce": lambda: dist.reduce(tensor, 1),
        "all_gather": lambda: dist.all_gather(parts, tensor),
        "reduce_scatter": lambda: dist.reduce_scatter(tensor, parts),
        "send of none": lambda: dist.send(tensor, 1) if rank == 0 else dist.recv(tensor, 0),
        "receive of none": lambda: dist.send(tensor, 0) if rank == 1 else dist.recv(tensor, 1),
    }
    failed = failure_of(calls[how])
    dist.all_reduce(later)  # the next one pairs with the next one
    return failed, later.tolist()


def group_of():
    return dist.distributed_c10d._get_default_group()


class OfNothing(ServiceCase):
    def test_collectives_of_nothing_are_posted(self):
        self.assertEqual(run_group(self.service, 2, collectives_of_nothing), [10, 10])

    def test_a_collective_of_nothing_waits_for_the_other_ranks(self):
        self.assertEqual(run_group(self.service, 2, a_collective_of_nothing_waits), [False] * 2)

    def test_a_receive_of_nothing_waits_for_its_send_and_says_whose_it_was(self):
        self.assertEqual(run_group(self.service, 2, messages_of_nothing)[0], (False, 1))

    def test_nothing_on_one_rank_and_something_on_another_is_a_mismatch_on_both(self):
        hows = ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "send of none", "receive of none")
        for how in hows:
            with self.subTest(how):
                for (error, text), later in run_group(self.service, 2, one_gives_nothing, how):
                    self.assertEqual(error, "Mismatch", text)
                    self.assertIn("0", text)
                    self.assertEqual(later, [3.0] * 4)


class Operation:
    """An operation that ends when the test says so."""

    def __init__(self):
        self.ended = threading.Event()

    def wait(self, limit=None):
        if not self.ended.wait(limit):
            raise headrace.Timeout("still open", "timeout", 8)

    def done(self):
        return self.ended.is_set()


class EndsAfterTheWait(Operation):
    """One that ends when a wait for it has just given up."""

    def wait(self, limit=None):
        try:
            super().wait(limit)
        finally:
            self.ended.set()


def in_time(call):
    """What a call returns or raises in a thread of its own, which must end soon."""
    found = []

    def run():
        try:
            found.append(call())
        except Exception as error:  # noqa: BLE001 - the test looks at it
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(20)
    assert found, "the call has not returned"
    return found[0]


def wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "nothing happened for a minute"
        time.sleep(0.001)


def a_receive_is_open(rank):
    """Rank 1 sends what rank 0 receives only after rank 0 has seen the future of a later all_reduce."""
    tensor, received = torch.full((3,), rank + 1.0), torch.zeros(2)
    if rank == 1:
        dist.all_reduce(tensor)
        dist.recv(torch.zeros(1), 0)
        dist.send(torch.ones(2), 0)
        return tensor.tolist()
    receiving = dist.irecv(received, 1).get_future()
    summed = dist.all_reduce(tensor, async_op=True).get_future()
    wait_until(summed.done)
    assert not receiving.done()
    dist.send(torch.ones(1), 1)
    receiving.wait()
    assert received.tolist() == [1.0, 1.0]
    return tensor.tolist()


class Ends(ServiceCase):
    def test_an_open_receive_keeps_no_other_future_waiting(self):
        self.assertEqual(run_group(self.service, 2, a_receive_is_open), [[3.0] * 3] * 2)


class WorkAndFutures(unittest.TestCase):
    def test_a_wait_in_another_thread_keeps_nobody_from_an_answer(self):
        operation = Operation()
        work = Work([operation], [])
        waiting = threading.Thread(target=work.wait, daemon=True)
        waiting.start()
        self.assertIs(in_time(work.is_completed), False)
        self.assertIs(in_time(work.is_success), False)
        self.assertIsNone(in_time(work.exception))
        self.assertIsInstance(in_time(lambda: work.wait(0.01)), headrace.Timeout)
        operation.ended.set()
        waiting.join(60)
        self.assertTrue(work.is_completed())

    def test_work_has_not_ended_before_its_results_are_in_their_places(self):
        operation, goes_on = Operation(), threading.Event()
        operation.ended.set()
        entered = threading.Event()

        def finish():
            entered.set()
            goes_on.wait()

        work = Work([operation], [], finish)
        waiting = threading.Thread(target=work.wait, daemon=True)
        waiting.start()
        self.assertTrue(entered.wait(60))
        self.assertIs(in_time(work.is_completed), False)
        self.assertIsInstance(in_time(lambda: work.wait(0.01)), headrace.Timeout)
        goes_on.set()
        waiting.join(60)
        self.assertTrue(work.is_completed())

    def test_an_operation_that_ends_well_when_a_wait_has_given_up_has_no_error(self):
        work = Work([EndsAfterTheWait()], [])
        self.assertTrue(work.settle(0.001))
        self.assertIsNone(work.exception())

    def test_futures_end_in_the_order_in_which_work_does(self):
        completer = Completer("test")
        operations = [Operation() for _ in range(40)]
        works = [Work([operation], [], None, completer) for operation in operations]
        futures = [work.get_future() for work in works]
        for at in random.Random(7).sample(range(40), 40):
            self.assertFalse(futures[at].done())
            operations[at].ended.set()
            wait_until(futures[at].done)
        completer.close()

    def test_a_callback_may_wait_for_another_future(self):
        completer = Completer("test")
        first, second = Operation(), Operation()
        others = Work([second], [], None, completer)
        future = Work([first], [], None, completer).get_future().then(lambda _: others.get_future().wait())
        first.ended.set()
        self.assertFalse(future.done())
        second.ended.set()
        wait_until(future.done)
        completer.close()

    def test_what_is_open_when_the_group_goes_ends_with_an_error(self):
        completer = Completer("test")
        works = [Work([Operation()], [], None, completer) for _ in range(20)]
        futures = [work.get_future() for work in works]
        completer.close()
        for future in futures:
            with self.assertRaisesRegex(RuntimeError, "shut down"):
                future.wait()

    def test_threads_are_used_again(self):
        completer = Completer("test")
        for _ in range(50):
            operation = Operation()
            operation.ended.set()
            Work([operation], [], None, completer).get_future().wait()
            # Its thread runs callbacks first, however long a busy machine lets it wait.
            wait_until(lambda: completer._free == len(completer._threads))
        self.assertEqual(len(completer._threads), 1)
        completer.close()


def values(rank, dtype, count=12):
    """Elements with a rank's bytes, of which some are NaN in types that have it."""
    size = torch.empty(0, dtype=dtype).element_size()
    content = (torch.arange(count * size) * 37 + 101 * rank) % (2 if dtype == torch.bool else 256)
    return content.to(torch.uint8).view(dtype)


def rare_types():
    names = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")
    names += ("bool", "int8", "int16", "uint16", "uint32", "uint64", "complex64", "complex128")
    return [getattr(torch, name) for name in names if hasattr(torch, name)]


def copies(rank):
    """Whether each operation that only copies keeps every bit of every type."""
    size, other = dist.get_world_size(), 1 - rank

    def same(tensor, expected, what):
        assert tensor.dtype == expected.dtype, what
        assert torch.equal(tensor.view(torch.uint8), expected.view(torch.uint8)), (what, tensor)

    for dtype in rare_types():
        mine, theirs = values(rank, dtype), values(other, dtype)
        by_rank = [values(each, dtype) for each in range(size)]
        new = mine.clone()
        dist.broadcast(new, 1)
        same(new, by_rank[1], dtype)
        parts = [torch.empty_like(mine) for _ in range(size)]
        dist.all_gather(parts, mine)
        for part, expected in zip(parts, by_rank, strict=True):
            same(part, expected, dtype)
        whole = torch.empty(12 * size, dtype=dtype)
        (getattr(dist, "all_gather_into_tensor", None) or dist._all_gather_base)(whole, mine)
        for part, expected in zip(whole.split(12), by_rank, strict=True):
            same(part, expected, dtype)
        new = torch.empty_like(mine)
        dist.all_to_all_single(new, mine)
        same(new[6 * other : 6 * other + 6], theirs[6 * rank : 6 * rank + 6], dtype)
        parts = [torch.empty_like(mine) for _ in range(size)]
        dist.gather(mine, parts if rank == 0 else None, 0)
        for part, expected in zip(parts if rank == 0 else by_rank, by_rank, strict=True):
            same(part, expected, dtype)
        new = torch.empty_like(mine)
        dist.scatter(new, by_rank if rank == 0 else None, 0)
        same(new, mine, dtype)
        new = torch.empty_like(mine)
        works = [dist.isend(mine, other), dist.irecv(new, other)]
        for work in works:
            work.wait()
        same(new, theirs, dtype)
    return len(rare_types())


def complex_sums(rank):
    results = []
    for dtype in (torch.complex64, torch.complex128):
        tensor = torch.tensor([[1 + 2j, 3 - 1j], [0.5j, -4 + rank]], dtype=dtype).t()
        dist.all_reduce(tensor)
        average = torch.tensor([2.0 + 4j * rank], dtype=dtype)
        dist.all_reduce(average, op=dist.ReduceOp.AVG)
        part = torch.empty(1, dtype=dtype)
        dist.reduce_scatter(part, [torch.tensor([rank + 1j * each], dtype=dtype) for each in range(2)])
        results.append((tensor.tolist(), average.tolist(), part.tolist()))
    return results


def conjugated_and_negated(rank):
    """Views whose memory holds something else than their elements."""
    numbers = torch.tensor([1 + 2j, 3 - 1j]) * (rank + 1)
    conjugated, negated = numbers.clone().conj(), numbers.clone().conj().imag
    assert conjugated.is_conj() and negated.is_neg()
    if BROADCASTS_VIEWS:
        dist.broadcast(conjugated, 0)  # torch itself refuses to reduce such
    dist.all_reduce(negated)
    return conjugated.tolist(), negated.tolist()


def booleans(rank):
    found = {}
    for name in ("SUM", "MAX", "BOR", "PRODUCT", "MIN", "BAND"):
        tensor = torch.tensor([False, rank == 0, True])
        dist.all_reduce(tensor, op=getattr(dist.ReduceOp, name))
        found[name] = tensor.tolist()
    return found


def refused_reductions(rank):
    """What the text names of each reduction that there is not."""
    texts = []
    wrong = [(torch.int32, "BAND"), (torch.int64, "BOR"), (torch.uint8, "BXOR"), (torch.float32, "BXOR")]
    wrong += [(torch.bool, "AVG"), (torch.bool, "BXOR")]  # of complex numbers torch itself refuses some
    wrong += [(dtype, "SUM") for dtype in rare_types() if "float8" in str(dtype)]
    for dtype, name in wrong:
        try:
            dist.all_reduce(torch.ones(4).to(dtype), op=getattr(dist.ReduceOp, name))
        except TypeError as error:
            assert str(dtype) in str(error) and (name in str(error) or name == "SUM"), error
            texts.append(str(error))
    after = torch.ones(2)
    dist.all_reduce(after)  # the group has posted nothing of these
    return len(wrong) - len(texts), after.tolist()


def coalesced(rank):
    manager, cpu = dist.distributed_c10d._coalescing_manager, torch.device("cpu")
    sums = [torch.full((3 + i,), rank + 1.0 + i) for i in range(3)]
    with manager(async_ops=True) as works:
        for tensor in sums:
            dist.all_reduce(tensor)
    works.wait()
    wholes, parts = [torch.zeros(4), torch.zeros(6)], [torch.zeros(2), torch.zeros(3)]
    with manager():
        for whole, part in zip(wholes, parts, strict=True):
            dist.all_gather_into_tensor(whole, torch.full_like(part, rank + 1.0))
    with manager(device=cpu):
        for whole, part in zip(wholes, parts, strict=True):
            dist.reduce_scatter_tensor(part, whole)
    received = [torch.zeros(2), torch.zeros(0)]
    pairs = [dist.P2POp(dist.irecv, tensor, 1 - rank) for tensor in received]
    pairs += [dist.P2POp(dist.isend, torch.full_like(tensor, rank), 1 - rank) for tensor in received]
    for work in dist.batch_isend_irecv(pairs):
        work.wait()
    return [tensor.tolist() for tensor in (*sums, *wholes, *parts, *received)]


def dropped(rank):
    """Work that nobody keeps ends all the same, and leaves no error and no memory that grows."""
    for _ in range(300):
        dist.all_reduce(torch.ones(1 << 10), async_op=True)
        dist.isend(torch.ones(8), 1 - rank, tag=3)
        dist.irecv(torch.ones(8), 1 - rank, tag=3)
    gc.collect()
    last = torch.ones(2)
    dist.all_reduce(last)
    return last.tolist()


def dropped_sends(rank):
    """MiB of memory that copies of sends take up, none of which is waited for."""
    sizes = []
    for _ in range(300):
        if rank == 0:
            dist.isend(torch.ones(1 << 18), 1)
            dist.recv(torch.zeros(1), 1)
        else:
            dist.recv(torch.zeros(1 << 18), 0)
            dist.send(torch.ones(1), 0)
        sizes.append(group_of().session.counters()["staging_bytes"] >> 20)
    return max(sizes)


def sequence_numbers(rank):
    group, seen = group_of(), []
    for count in range(3):
        before = group._get_sequence_number_for_group()
        for _ in range(count):
            dist.all_reduce(torch.ones(2))
        if rank == 0:
            dist.send(torch.ones(1), 1)
        else:
            dist.recv(torch.ones(1), 0)
        seen.append(group._get_sequence_number_for_group() - before)
    dist.barrier()
    dist.broadcast(torch.ones(2), 0)
    return seen, group._get_sequence_number_for_group()


class Capabilities(ServiceCase):
    def test_operations_that_copy_keep_every_bit_of_rare_types(self):
        for count in run_group(self.service, 2, copies):
            self.assertGreaterEqual(count, 13 if MODERN else 5)

    def test_conjugated_and_negated_views_are_what_they_say(self):
        for results in run_group(self.service, 2, conjugated_and_negated):
            if BROADCASTS_VIEWS:
                self.assertEqual(results[0], [1 - 2j, 3 + 1j])
            self.assertEqual(results[1], [-6, 3])

    def test_complex_numbers_are_summed_and_averaged(self):
        for rank, results in enumerate(run_group(self.service, 2, complex_sums)):
            summed = [[2 + 4j, 1j], [6 - 2j, -7]]
            self.assertEqual(results, [(summed, [2 + 2j], [1 + 2j * rank])] * 2)

    def test_booleans_are_reduced_as_in_torch(self):
        some, every = [False, True, True], [False, False, True]
        expected = {"SUM": some, "MAX": some, "BOR": some, "PRODUCT": every, "MIN": every, "BAND": every}
        self.assertEqual(run_group(self.service, 2, booleans), [expected] * 2)

    def test_reductions_that_there_are_not_are_refused_by_name(self):
        self.assertEqual(run_group(self.service, 2, refused_reductions), [(0, [2.0, 2.0])] * 2)

    @unittest.skipUnless(MODERN, "torch 1.13 coalesces sends and receives only")
    def test_the_coalescing_manager_makes_one_work_of_several(self):
        sums = [[3.0] * 3, [5.0] * 4, [7.0] * 5]
        wholes = [[1.0, 1.0, 2.0, 2.0], [1.0] * 3 + [2.0] * 3]
        for rank, found in enumerate(run_group(self.service, 2, coalesced)):
            parts = [[2.0 * (rank + 1)] * 2, [2.0 * (rank + 1)] * 3]
            self.assertEqual(found, [*sums, *wholes, *parts, [1.0 - rank] * 2, []])

    def test_work_may_be_dropped(self):
        self.assertEqual(run_group(self.service, 2, dropped), [[2.0, 2.0]] * 2)

    def test_memory_of_sends_that_nobody_waits_for_is_used_again(self):
        for largest in run_group(self.service, 2, dropped_sends):
            self.assertLess(largest, 16)

    def test_collectives_are_counted_the_same_on_all_ranks(self):
        first, second = run_group(self.service, 2, sequence_numbers)
        self.assertEqual(first, second)
        self.assertEqual(first[0], [0, 1, 2])


if __name__ == "__main__":
    main()
