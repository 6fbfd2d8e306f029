"""All-to-all, gather, scatter and reduce of the Python package against a real service."""

import os
import signal
import time
import unittest

import headrace
import numpy
from ranks import ServiceCase, run_ranks, start_rank
from support.patience import until


def count_of(source, target):
    """Elements that a rank has for another; some have none."""
    return (3 * source + 5 * target) % 7 * 1000


def value_of(source, target):
    return 100 * source + target


def arrays(session):
    """Every kind of it, of numpy arrays of any size; what each rank has got of each."""
    ranks, own = range(session.world_size), session.rank
    inputs = [numpy.full(count_of(own, r), value_of(own, r), numpy.int32) for r in ranks]
    outputs = [numpy.full(count_of(r, own), -1, numpy.int32) for r in ranks]
    session.all_to_all(outputs, inputs)
    got = [sorted(set(each.tolist())) for each in outputs]
    gathered, scattered = [], []
    for root in ranks:
        mine = numpy.full(1000 * own + 1, value_of(own, root), numpy.int64)
        parts = [numpy.zeros(1000 * r + 1, numpy.int64) for r in ranks]
        session.gather(mine, parts if root == own else None, root)
        if root == own:
            gathered = [set(part.tolist()) for part in parts]
        parts = [numpy.full(100 * r, value_of(root, r), numpy.uint8) for r in ranks]
        mine = numpy.zeros(100 * own, numpy.uint8)
        session.scatter(mine, parts if root == own else None, root)
        scattered.append(sorted(set(mine.tolist())))
    return got, gathered, scattered


def tensors(session):
    """From one registered tensor's ranges to another's: the clients copy nothing."""
    ranks, own = range(session.world_size), session.rank
    count = 5000
    arena = session.arena(1 << 22)
    source = arena.tensor((count * len(ranks),), "float32", "tokens")
    target = arena.tensor((count * len(ranks),), "float32", "experts")
    for r in ranks:
        source.numpy()[count * r : count * (r + 1)] = value_of(own, r)
    target.numpy()[:] = -1
    parts = [source.range(count * r, count - r) for r in ranks]
    places = [target.range(count * r, count - own) for r in ranks]
    session.all_to_all(places, parts)
    moved = [sorted(set(target.numpy()[count * r : count * (r + 1)].tolist())) for r in ranks]
    target.numpy()[:] = -1
    all_of = [target.range(count * r, count) for r in ranks]
    session.gather(source.range(0, count), all_of if own == 0 else None, 0)
    gathered = target.numpy()[::count].tolist()
    session.scatter(target.range(0, 10), [source.range(count * r, 10) for r in ranks] if own == 1 else None, 1)
    return moved, gathered, target.numpy()[:10].tolist(), session.counters()["copied_bytes"]


def reduce(session):
    array = numpy.full(100_000, session.rank + 1, numpy.float32)
    session.reduce(array, "sum", root=2)
    arena = session.arena(1 << 16)
    tensor = arena.tensor((1000,), "float32")
    tensor.numpy()[:] = session.rank + 1
    session.reduce(tensor, "max", root=0)
    return array[0], array[-1], tensor.numpy()[999]


def parts(session):
    """All-gather and reduce-scatter of parts of any size."""
    ranks, own = range(session.world_size), session.rank
    mine = numpy.full(1000 * own, value_of(own, 7), numpy.float32)
    gathered = [numpy.zeros(1000 * r, numpy.float32) for r in ranks]
    session.all_gather_parts(gathered, mine)
    inputs = [numpy.full(500 * r, own + r, numpy.float64) for r in ranks]
    reduced = numpy.zeros(500 * own)
    session.reduce_scatter_parts(reduced, inputs)
    return [sorted(set(each.tolist())) for each in gathered], sorted(set(reduced.tolist()))


def parts_in_place(session):
    """An all-gather of parts of any size where they lie, and what is refused of such."""
    tensor = session.arena(1 << 16).tensor((6000,), "float32")
    ranges = [tensor.range(1000, 0), tensor.range(1000, 1000), tensor.range(2000, 2000)]
    mine = ranges[session.rank]
    tensor.numpy()[mine.offset : mine.offset + mine.count] = session.rank + 1
    before = session.counters()["copied_bytes"]
    session.all_gather_parts(ranges, mine)
    copied = session.counters()["copied_bytes"] - before
    texts = []
    apart = [*ranges[:2], tensor.range(2500, 2000)]
    try:
        session.all_gather_parts(apart, apart[session.rank])
    except ValueError as error:
        texts.append(str(error))
    return tensor.numpy().tolist(), copied, texts


def parts_elsewhere(session):
    """From one tensor to another of another arena, of any size, and with other ranks in place."""
    ranks, own = range(session.world_size), session.rank
    whole = session.arena(1 << 16).tensor((6000,), "float32")
    part = session.arena(1 << 16).tensor((3001,), "float32")
    before = session.counters()["copied_bytes"]
    results = []
    for counts in ([1000, 0, 3000], [500] * 3):
        starts = [sum(counts[:r]) for r in ranks]
        ranges = [whole.range(at, n) for at, n in zip(starts, counts, strict=True)]
        mine = part.range(0, counts[own])
        part.numpy()[:] = own + 1
        session.all_gather_parts(ranges, mine)
        results.append([sorted(set(whole.numpy()[at : at + n].tolist())) for at, n in zip(starts, counts, strict=True)])
        part.numpy()[:] = -1
        if own == 1 and counts[1]:  # in place, and of arrays, is the same to the others
            session.reduce_scatter(whole.range(0, sum(counts)))
            part.numpy()[: counts[1]] = whole.numpy()[500:1000]
            whole.numpy()[500:1000] = 2
        else:
            session.reduce_scatter_parts(mine, ranges, "sum")
        unchanged = [sorted(set(whole.numpy()[at : at + n].tolist())) for at, n in zip(starts, counts, strict=True)]
        results.append(
            (unchanged == results[-1], sorted(set(part.numpy()[: counts[own]].tolist())), part.numpy()[3000])
        )
    return results, session.counters()["copied_bytes"] - before


def released_while_open(session):
    """What a rank hears that releases the tensors of an open reduce-scatter; and in place by a whole tensor."""
    whole, part = (session.arena(1 << 16).tensor((n,), "float32") for n in (400, 200))
    whole.numpy()[:] = session.rank + 1
    ranges, texts = [whole.range(0, 200), whole.range(200, 200)], []
    if session.rank == 1:
        session.receive(numpy.zeros(1, numpy.float32), 0)
    operation = session.reduce_scatter_parts(part, ranges, async_op=True)
    if session.rank == 0:
        for tensor in (whole, part):
            try:
                tensor.release()
            except headrace.Error as error:
                texts.append((error.code, str(error)))
        session.send(numpy.zeros(1, numpy.float32), 1)
    operation.wait()
    result = part.numpy()[0], part.numpy()[199]
    part.release()
    return texts, result


def whole_tensor_in_place(session):
    tensor = session.arena(1 << 16).tensor((4,), "float32")
    tensor.numpy()[:] = 7
    session.reduce_scatter_parts(tensor, [tensor.range(0, 4)])
    session.all_gather_parts([tensor], tensor.range(0, 4))
    return tensor.numpy().tolist()


def elsewhere_refused(session):
    session.barrier()  # who is refused at once may leave before another has come, which would begin a job
    whole = session.arena(1 << 16).tensor((600,), "float32")
    ranges = [whole.range(200 * r, 200) for r in range(session.world_size)]
    texts = []
    double = session.arena(1 << 16).tensor((200,), "float64")
    short = session.arena(1 << 16).tensor((199,), "float32")
    within = ranges[2] if session.rank == 2 else whole.range(200 * session.rank + 1, 200)
    for x in (short, double, within):
        try:
            session.reduce_scatter_parts(x, ranges)
        except headrace.Error as error:
            texts.append((error.code, str(error)))
    return texts


def refusals(session):
    texts = []

    def refused(call):
        try:
            call()
        except (headrace.Error, ValueError, TypeError) as error:
            texts.append((getattr(error, "code", type(error).__name__), str(error)))

    ranks, own = range(session.world_size), session.rank
    array = numpy.zeros(4, numpy.float32)
    refused(lambda: session.all_to_all([array], [array]))
    refused(lambda: session.gather(array, None, own))
    refused(lambda: session.reduce(array, "sum", 99))
    refused(lambda: session.scatter(array, None, 99))
    refused(lambda: session.all_to_all([array] * len(ranks), [array[:3]] * len(ranks)))
    refused(lambda: session.all_to_all([array] * len(ranks), [array.astype("float64")] * len(ranks)))
    # Rank 2 has more for rank 1 than that expects.
    inputs = [numpy.zeros(5 if (own, r) == (2, 1) else 4, numpy.float32) for r in ranks]
    outputs = [numpy.zeros(4, numpy.float32) for r in ranks]
    refused(lambda: session.all_to_all(outputs, inputs))
    session.barrier()
    return texts


def waits(session, seconds):
    try:
        if session.rank == 2:
            time.sleep(seconds)
        else:
            array = numpy.zeros(4, numpy.float32)
            parts = [array.copy() for _ in range(session.world_size)]
            session.all_to_all([each.copy() for each in parts], parts)
    except headrace.Error as error:
        return error.code, str(error)
    return None


class AllToAll(ServiceCase):
    def test_arrays_of_any_size_reach_the_ranks_they_are_for(self):
        for own, (got, gathered, scattered) in enumerate(run_ranks(self.service, 4, arrays)):
            for r in range(4):
                self.assertEqual(got[r], [value_of(r, own)] if count_of(r, own) else [])
                self.assertEqual(gathered[r], {value_of(r, own)})
                self.assertEqual(scattered[r], [value_of(r, own) % 256] if own else [])

    def test_one_rank_alone_gives_itself_its_part(self):
        got, gathered, _ = run_ranks(self.service, 1, arrays)[0]
        self.assertEqual((got, gathered), ([[]], [{0}]))

    def test_ranges_of_tensors_move_without_a_copy_of_the_clients(self):
        for own, (moved, gathered, scattered, copied) in enumerate(run_ranks(self.service, 3, tensors)):
            for r in range(3):
                rest = [-1] if own else []
                self.assertEqual(moved[r], [*rest, value_of(r, own)])
            if own == 0:
                self.assertEqual(gathered, [value_of(r, 0) for r in range(3)])
            self.assertEqual(scattered, [value_of(1, own)] * 10)
            self.assertEqual(copied, 0)

    def test_parts_of_any_size_are_gathered_and_reduced(self):
        for own, (gathered, reduced) in enumerate(run_ranks(self.service, 3, parts)):
            self.assertEqual(gathered, [[value_of(r, 7)] if r else [] for r in range(3)])
            self.assertEqual(reduced, [3 + 3 * own] if own else [])

    def test_parts_of_one_tensor_are_gathered_without_a_copy_of_the_clients(self):
        for values, copied, texts in run_ranks(self.service, 3, parts_in_place):
            self.assertEqual(values, [0] * 1000 + [2] * 1000 + [3] * 2000 + [0] * 2000)
            self.assertEqual(copied, 0)
            self.assertEqual(len(texts), 1)
            self.assertIn("2500", texts[0])

    def test_parts_of_one_tensor_are_gathered_from_and_reduced_into_another(self):
        for own, (results, copied) in enumerate(run_ranks(self.service, 3, parts_elsewhere)):
            self.assertEqual(results[0], [[1], [], [3]])
            self.assertEqual(results[1], (True, [[3], [], [9]][own], -1))
            self.assertEqual(results[2], [[1], [2], [3]])
            self.assertEqual(results[3], (True, [[3], [6], [9]][own], -1))
            self.assertEqual(copied, 0)

    def test_neither_tensor_is_released_while_the_operation_is_open(self):
        for own, (texts, result) in enumerate(run_ranks(self.service, 2, released_while_open)):
            self.assertEqual([code for code, _ in texts], [] if own else ["busy", "busy"], texts)
            self.assertEqual(result, (3, 3))

    def test_a_whole_tensor_is_the_range_of_all_its_elements(self):
        self.assertEqual(run_ranks(self.service, 1, whole_tensor_in_place), [[7] * 4])

    def test_a_part_elsewhere_that_does_not_fit_is_refused(self):
        for texts in run_ranks(self.service, 3, elsewhere_refused):
            self.assertEqual([code for code, _ in texts], ["invalid argument"] * 3)
            self.assertIn("199", texts[0][1])
            self.assertIn("element type", texts[1][1])
            self.assertIn("overlap", texts[2][1])

    def test_a_reduce_changes_the_root_only(self):
        for own, (first, last, most) in enumerate(run_ranks(self.service, 3, reduce)):
            self.assertEqual((first, last), (6, 6) if own == 2 else (own + 1, own + 1))
            self.assertEqual(most, 3 if own == 0 else own + 1)

    def test_what_cannot_be_carried_out_is_refused_by_name(self):
        for texts in run_ranks(self.service, 3, refusals):
            self.assertEqual(len(texts), 7, texts)
            codes = ["ValueError"] * 2 + ["invalid argument"] * 3 + ["TypeError", "mismatch"]
            self.assertEqual([code for code, _ in texts], codes, texts)
            # 3 is how many ranks there are, and how many elements one of them has for itself.
            for values, (_, text) in zip(("3", "3", "3", "3", "34", "", "51"), texts, strict=True):
                for value in values:
                    self.assertRegex(text, rf"\b{value}\b")

    def test_a_death_ends_it_everywhere_by_name(self):
        ranks = [start_rank(self.service, r, 3, waits, 60, job="exchange") for r in range(3)]

        def waiting():
            queue = self.service.ctl_json("queue", "--job", "exchange")["queue"]
            return [row for row in queue if row["ranks_missing"] == [2]]

        rows = until(waiting, "two ranks wait for the third")
        self.assertEqual(rows[0]["kind"], "all_to_all")
        os.kill(ranks[2].pid, signal.SIGKILL)
        ranks[2].end()
        for rank in ranks[:2]:
            code, text = rank.result()
            self.assertEqual(code, "peer lost")
            self.assertIn("rank 2", text)


if __name__ == "__main__":
    unittest.main()
