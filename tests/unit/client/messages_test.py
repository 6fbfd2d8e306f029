"""Sends and receives of the Python package against a real service, with several rank processes."""

import os
import signal
import unittest

import headrace
import numpy
from ranks import ServiceCase, run_ranks, start_rank
from support.patience import await_equal, until


def arrays(session):
    """Each sends to the next and receives from the one before, in every way."""
    following = (session.rank + 1) % session.world_size
    before = (session.rank - 1) % session.world_size
    received = numpy.zeros(1000, numpy.float32)
    sent = session.send(
        numpy.full(1000, session.rank, numpy.float32), following, async_op=True
    )
    operation = session.receive(received, before)
    sent.wait()
    # Under tags, in another order than they were sent.
    late = [
        session.send(numpy.array([session.rank, tag]), following, tag, async_op=True)
        for tag in (5, 1 << 60)
    ]
    tagged = numpy.zeros(2, numpy.int64)
    session.receive(tagged, before, 1 << 60)
    session.receive(numpy.zeros(2, numpy.int64), before, 5)
    for each in late:
        each.wait()
    return set(received.tolist()), operation.source, tagged.tolist()


def tensors(session):
    """From one registered tensor's range to another: nothing is copied by the clients."""
    arena = session.arena(1 << 22)
    tensor = arena.tensor((1 << 18,), "float32", "activations", 0)
    tensor.numpy()[:] = session.rank
    if session.rank == 0:
        session.send(tensor.range(100, 200_000), 1, tag=3)
    else:
        session.receive(tensor.range(7, 200_000), 0, tag=3)
    view = tensor.numpy()
    return view[6:8].tolist(), view[200_006:200_008].tolist(), session.counters()["copied_bytes"]


def from_any(session):
    if session.rank != 0:
        for number in range(50):
            session.send(numpy.array([session.rank, number]), 0)
        return []
    seen = []
    for _ in range(50 * (session.world_size - 1)):
        array = numpy.zeros(2, numpy.int64)
        operation = session.receive(array)
        assert operation.source == array[0]
        seen.append(array.tolist())
    return seen


def refusals(session):
    texts = []

    def refused(call):
        try:
            call()
        except headrace.Error as error:
            texts.append((error.code, str(error)))

    array = numpy.zeros(4, numpy.float32)
    refused(lambda: session.send(array, session.rank))
    refused(lambda: session.receive(array, session.world_size))
    operation = session.barrier(async_op=True)
    operation.wait()
    # Both sides of one that differs.
    if session.rank == 0:
        refused(lambda: session.send(array, 1))
    elif session.rank == 1:
        refused(lambda: session.receive(numpy.zeros(5, numpy.float32), 0))
    session.barrier()
    return texts


def waits_for(session, end):
    """What waits for rank 2, which stays until something is written into the pipe."""
    array = numpy.zeros(4, numpy.float32)
    try:
        if session.rank == 0:
            session.send(array, 2, tag=7)
        elif session.rank == 1:
            session.receive(array, tag=9)
        else:
            os.read(end, 1)
    except headrace.Error as error:
        return error.code, str(error)
    return None


class Messages(ServiceCase):
    def pipe(self):
        ends = os.pipe()
        for end in ends:
            self.addCleanup(os.close, end)
        return ends

    def test_arrays_travel_by_source_target_and_tag(self):
        for rank, (values, source, tagged) in enumerate(run_ranks(self.service, 3, arrays)):
            before = (rank - 1) % 3
            self.assertEqual(values, {float(before)})
            self.assertEqual(source, before)
            self.assertEqual(tagged, [before, 1 << 60])

    def test_ranges_of_tensors_travel_without_a_copy_of_the_clients(self):
        (_, _, copied), (begin, end, copied_there) = run_ranks(self.service, 2, tensors)
        self.assertEqual((begin, end), ([1, 0], [0, 1]))
        self.assertEqual((copied, copied_there), (0, 0))

    def test_a_receive_from_any_rank_says_which_and_keeps_each_ones_order(self):
        seen = run_ranks(self.service, 4, from_any)[0]
        for source in (1, 2, 3):
            numbers = [number for rank, number in seen if rank == source]
            self.assertEqual(numbers, list(range(50)))

    def test_what_cannot_be_carried_out_is_refused_by_name(self):
        for rank, texts in enumerate(run_ranks(self.service, 3, refusals)):
            self.assertEqual(len(texts), 3 if rank < 2 else 2, texts)
            self.assertEqual(texts[0][0], "invalid argument")
            self.assertEqual(texts[1][0], "invalid argument")
            self.assertIn("3 ranks", texts[1][1])
            if rank < 2:
                self.assertEqual(texts[2][0], "mismatch")
                for value in ("4 float32", "rank 0", "rank 1", "5 float32"):
                    self.assertIn(value, texts[2][1])

    def test_the_queue_shows_who_waits_for_whom_and_a_death_ends_both(self):
        end, _ = self.pipe()
        ranks = [start_rank(self.service, r, 3, waits_for, end, job="pipe") for r in range(3)]

        def waiting():
            queue = self.service.ctl_json("queue", "--job", "pipe")["queue"]
            rows = [row for row in queue if row["wait_reason"] in ("no_receive", "no_send")]
            return {row["kind"]: row for row in rows} if len(rows) == 2 else None

        rows = until(waiting, "a send and a receive that wait")
        send, receive = rows["send"], rows["receive"]
        self.assertEqual((send["source"], send["target"], send["tag"]), (0, 2, 7))
        self.assertEqual(send["ranks_missing"], [2])
        for value in ("rank 2", "job pipe", "rank 0", "tag 7"):
            self.assertIn(value, send["why"])
        self.assertEqual((receive["source"], receive["target"], receive["tag"]), (None, 1, 9))
        for value in ("job pipe", "rank 1", "tag 9"):
            self.assertIn(value, receive["why"])
        metrics = self.service.ctl("queue", "--job", "pipe")[1]
        self.assertIn("0 to 2, tag 7", metrics)
        os.kill(ranks[2].pid, signal.SIGKILL)
        ranks[2].end()
        for rank in ranks[:2]:
            code, text = rank.result()
            self.assertEqual(code, "peer lost")
            self.assertIn("rank 2", text)

    def test_the_first_rank_says_when_they_go(self):
        with headrace.init(
            job="classed", rank=0, world_size=1, socket=self.service.socket, sends_class="same"
        ) as session:
            session.all_reduce(numpy.ones(4, numpy.float32))  # a border for the change
            await_equal(lambda: self.service.ctl_json("jobs", "classed")["jobs"][0]["sends"]["class"], "same")
        with self.assertRaisesRegex(headrace.Error, "above and same"):
            headrace.init(
                job="classed", rank=0, world_size=1, socket=self.service.socket, sends_class="below"
            )

    def test_a_timeout_names_who_is_missing(self):
        end, write = self.pipe()
        ranks = [
            start_rank(self.service, r, 3, waits_for, end, job="late", timeout=1.5)
            for r in range(3)
        ]
        (code, text), (other_code, other_text) = ranks[0].result(), ranks[1].result()
        os.write(write, b"x")
        self.assertEqual((code, other_code), ("timeout", "timeout"))
        self.assertIn("rank 2", text)
        self.assertNotIn("rank 2", other_text)
        ranks[2].result()


if __name__ == "__main__":
    unittest.main()
