"""The Python package against a real service, with several rank processes."""

import os
import signal
import subprocess
import sys
import threading
import time
import unittest
from unittest import mock

import headrace
import numpy
from ranks import Service, ServiceCase, run_ranks, start_rank
from support.patience import SOON_S

EXAMPLE = os.path.join(
    os.path.dirname(os.path.abspath(__file__)), "../../../client/examples/numpy_example.py"
)


def reductions(session):
    results = {}
    for op in ("sum", "average", "min", "max", "product"):
        array = numpy.full(1000, session.rank + 1, numpy.float32)
        session.all_reduce(array, op)
        results[op] = set(array.tolist())
    return results


def moves(session):
    n, r = session.world_size, session.rank
    gathered = numpy.full(2 * n, -1, numpy.int32)
    session.part(gathered)[:] = r
    session.all_gather(gathered)
    scattered = numpy.arange(2 * n, dtype=numpy.int64)
    session.reduce_scatter(scattered)
    sent = numpy.full(5, r, numpy.uint8)
    session.broadcast(sent, root=n - 1)
    session.barrier()
    return gathered.tolist(), scattered.tolist(), sent.tolist()


def in_pieces(session):
    """Each kind on arrays that lie apart; nobody needs all of a result."""
    n, r = session.world_size, session.rank
    own, first, last = numpy.full(2, r, numpy.int32), numpy.zeros(2, numpy.int32), numpy.zeros(2, numpy.int32)
    session.all_gather(
        headrace.Pieces(2 * n, "int32", [(2 * r, own)], [(0, first), (2 * n - 2, last)])
    )
    parts = [numpy.full(3, r + part, numpy.float32) for part in range(n)]
    mine = numpy.zeros(3, numpy.float32)
    session.reduce_scatter(
        headrace.Pieces(3 * n, "float32", [(3 * i, part) for i, part in enumerate(parts)], [(3 * r, mine)])
    )
    sent = [(i, numpy.full(1, 10 + i, numpy.uint8)) for i in range(n)] if r == 1 else []
    got = numpy.zeros(1, numpy.uint8)
    session.broadcast(headrace.Pieces(n, "uint8", sent, [(r, got)]), root=1)
    low, high = numpy.full(4, r + 1.0), numpy.full(1, 2.0)
    session.all_reduce(headrace.Pieces(5, "float64", [(0, low), (4, high)], [(3, low[:2])] if r == 0 else []))
    refused = []
    for pieces in ([(0, own)], [(2 * n - 1, numpy.zeros(2, numpy.float32))]):
        try:
            session.all_gather(headrace.Pieces(2 * n, "float32", pieces, []))
        except (TypeError, headrace.Error) as error:
            refused.append(str(error))
    session.barrier()
    return first.tolist(), last.tolist(), mine.tolist(), got.tolist(), low.tolist(), refused


def registered(session):
    arena = session.arena(1 << 20)
    tensors = arena.tensors([((100, 10), "float32", "a", 0), ((7,), "float64", "b", 1)])
    for tensor in tensors:
        tensor.numpy()[:] = session.rank
    operations = [session.all_reduce(t, async_op=True) for t in tensors]
    for operation in operations:
        operation.wait()
    sums = [set(t.numpy().ravel().tolist()) for t in tensors]
    session.all_reduce(tensors[0].range(10, 5), "max")
    copied = session.counters()["copied_bytes"]
    for tensor in tensors:
        tensor.release()
    arena.release()
    return sums, copied


def many_in_flight(session):
    arrays = [numpy.full(10 + i, session.rank + i, numpy.float64) for i in range(3000)]
    operations = [session.all_reduce(a, async_op=True) for a in arrays]
    wrong = 0
    for i, operation in enumerate(operations):
        expected = sum(rank + i for rank in range(session.world_size))
        wrong += not (operation.wait() == expected).all()
    return wrong, session.counters()["staging_bytes"]


def discarded(session):
    for i in range(200):
        last = session.all_reduce(numpy.zeros(100_000, numpy.float32), async_op=True)
        # A job's operations of one kind end in their order, so 20 are open at most.
        if i % 20 == 19:
            last.wait()
    return session.counters()["staging_bytes"]


def wait_for_end(session):
    """Posts what the other side will not, and says how that ended and how long it took."""
    began = time.monotonic()
    try:
        session.barrier()
    except headrace.Error as error:
        return type(error).__name__, str(error), time.monotonic() - began
    return "no error", "", 0.0


def meet_and_wait(session):
    """wait_for_end, once all ranks are there: a rank that dies alone takes its job along."""
    session.barrier()
    return wait_for_end(session)


def meet_and_die(session):
    session.barrier()
    os.kill(os.getpid(), signal.SIGKILL)


class Collectives(ServiceCase):
    def test_reduce_with_every_operator(self):
        for result in run_ranks(self.service, 4, reductions):
            self.assertEqual(
                result,
                {
                    "sum": {10},
                    "average": {2.5},
                    "min": {1},
                    "max": {4},
                    "product": {24},
                },
            )

    def test_move_what_they_say(self):
        for rank, (gathered, scattered, sent) in enumerate(
            run_ranks(self.service, 3, moves)
        ):
            self.assertEqual(gathered, [0, 0, 1, 1, 2, 2])
            expected = list(range(6))
            expected[2 * rank : 2 * rank + 2] = [6 * rank, 6 * rank + 3]
            self.assertEqual(scattered, expected)
            self.assertEqual(sent, [2] * 5)

    def test_move_arrays_that_lie_in_pieces(self):
        n = 3
        results = run_ranks(self.service, n, in_pieces)
        for rank, (first, last, mine, got, low, refused) in enumerate(results):
            self.assertEqual((first, last), ([0, 0], [n - 1, n - 1]))
            self.assertEqual(mine, [float(sum(r + rank for r in range(n)))] * 3)
            self.assertEqual(got, [10 + rank])
            # The last two of the sums 6 6 6 6 6 became rank 0's first two.
            self.assertEqual(low, [6.0, 6.0, 1.0, 1.0] if rank == 0 else [rank + 1.0] * 4)
            for value in ("int32", "float32"):
                self.assertIn(value, refused[0])
            self.assertIn("6", refused[1])

    def test_take_registered_tensors_without_a_copy(self):
        for sums, copied in run_ranks(self.service, 4, registered):
            self.assertEqual(sums, [{6}, {6}])
            self.assertEqual(copied, 0)

    def test_keep_thousands_in_flight_apart(self):
        for wrong, staging in run_ranks(self.service, 3, many_in_flight):
            self.assertEqual(wrong, 0)
            self.assertLess(staging, 256 << 20)

    def test_use_the_memory_of_forgotten_operations_again(self):
        for staging in run_ranks(self.service, 2, discarded):
            # 200 arrays of 400 kB would be 80 MB.
            self.assertLess(staging, 40 << 20)

    def test_run_twice_to_the_same_bits(self):
        def noise(session):
            array = numpy.random.default_rng(session.rank).standard_normal(
                10_000, numpy.float32
            )
            session.all_reduce(array)
            return array.tobytes()

        first = run_ranks(self.service, 4, noise)
        self.assertEqual(len(set(first)), 1)
        self.assertEqual(run_ranks(self.service, 4, noise), first)

    def test_let_threads_wait_for_the_same_operation(self):
        def wait_in_threads(session):
            array = numpy.ones(1_000_000, numpy.float32)
            operation = session.all_reduce(array, async_op=True)
            seen = []
            threads = [
                threading.Thread(target=lambda: seen.append(operation.wait()[-1]))
                for _ in range(4)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return seen

        for seen in run_ranks(self.service, 2, wait_in_threads):
            self.assertEqual(seen, [2.0] * 4)

    def test_views_outlive_the_session(self):
        def view_after_close(session):
            tensor = session.arena(4096).tensor(8, "float32")
            view = tensor.numpy()
            view[:] = 1
            session.all_reduce(tensor)
            session.close()
            del tensor
            view += 1
            return view.tolist()

        for view in run_ranks(self.service, 2, view_after_close):
            self.assertEqual(view, [3.0] * 8)


class Example(unittest.TestCase):
    def test_says_what_it_did_also_into_a_pipe(self):
        with Service() as service:
            ended = subprocess.run(
                [sys.executable, "-B", EXAMPLE], capture_output=True, text=True, timeout=60,
                env={**os.environ, "HEADRACE_SOCKET": service.socket, "PYTHONUNBUFFERED": ""},
            )  # fmt: skip
        self.assertEqual(ended.returncode, 0, ended.stderr)
        first, second, third = ended.stdout.splitlines()
        self.assertIn("[1.5 1.5 1.5 1.5]", first)
        self.assertRegex(second, r"\[1.5 1.5 1.5 1.5\], .* 0 bytes$")
        self.assertRegex(third, r"^200 .* [0-9.]+ ms$")


class WhenThingsGoWrong(unittest.TestCase):
    def test_a_killed_rank_is_named_within_a_second(self):
        with Service() as service:
            waiting = start_rank(service, 0, 2, meet_and_wait)
            killed = start_rank(service, 1, 2, meet_and_die)
            name, text, seconds = waiting.result()
            killed.end()
            self.assertEqual(name, "PeerLost")
            self.assertLess(seconds, SOON_S)
            self.assertIn("rank 1", text)
            self.assertIn(str(killed.pid), text)

    def test_a_rank_whose_forked_child_lives_on_is_noticed(self):
        def leave_a_child(session, write):
            session.barrier()
            child = os.fork()
            if child == 0:
                time.sleep(600)
                os._exit(0)
            os.write(write, str(child).encode())
            os.kill(os.getpid(), signal.SIGKILL)

        read, write = os.pipe()
        with Service() as service:
            waiting = start_rank(service, 0, 2, meet_and_wait)
            killed = start_rank(service, 1, 2, leave_a_child, write)
            child = int(os.read(read, 20))
            try:
                self.assertEqual(waiting.result(50)[0], "PeerLost")  # before operations expire
            finally:
                os.kill(child, signal.SIGKILL)
            killed.end()
        os.close(read)
        os.close(write)

    def test_a_killed_service_ends_every_wait(self):
        def meet_and_tell(session, write):
            session.barrier()
            os.write(write, b"x")
            time.sleep(600)

        read, write = os.pipe()
        with Service() as service:
            waiting = [start_rank(service, r, 3, meet_and_wait) for r in range(2)]
            idle = start_rank(service, 2, 3, meet_and_tell, write)
            os.read(read, 1)
            service.process.kill()
            killed = time.monotonic()
            for rank in waiting:
                name, text, _ = rank.result()
                self.assertEqual(name, "Unavailable")
                gone = f"{service.socket} (pid {service.process.pid}) went away"
                self.assertIn(gone, text)
            self.assertLess(time.monotonic() - killed, SOON_S)
            idle.kill()
            idle.end()
        os.close(read)
        os.close(write)

    def test_a_session_comes_back_to_a_service_that_was_started_anew(self):
        with Service() as service:
            session = headrace.init("test", 0, 1, service.socket, reconnect=29.5)
            self.assertEqual(session.reconnect_seconds, 30)
            tensor = session.arena(4096).tensor(8, "float32")
            view = tensor.numpy()
            view[:] = 1
            with self.assertRaises(headrace.Error):
                session.reconnect()
            service.kill()
            with self.assertRaisesRegex(headrace.Unavailable, "reconnect"):
                session.barrier()
            with self.assertRaisesRegex(headrace.Timeout, "50 ms"):
                session.reconnect(0.05)
            service.start()
            session.reconnect()
            self.assertEqual(session.service_pid, service.pid)
            session.all_reduce(tensor)
            session.all_reduce(numpy.ones(3))
            self.assertEqual(view.tolist(), [1.0] * 8)
            session.close()

    def test_a_process_that_torchrun_has_started_again_joins_and_a_new_one_begins(self):
        with Service() as service, mock.patch.dict(os.environ):
            os.environ.pop("TORCHELASTIC_RESTART_COUNT", None)
            with headrace.init("test", 0, 1, service.socket, role="rejoin") as session:
                self.assertEqual((session.role, session.joins), ("rank", False))
            os.environ["TORCHELASTIC_RESTART_COUNT"] = "1"
            # There is no job that it could join.
            with self.assertRaises(headrace.Timeout):
                headrace.init("test", socket=service.socket, role="rejoin", reconnect=1)
            with self.assertRaisesRegex(ValueError, "rank, join, spare, rejoin"):
                headrace.init("test", 0, 1, service.socket, role="leader")

    def test_reconnecting_is_off_unless_somebody_says_for_how_long(self):
        with Service() as service:
            with (
                headrace.init("off", 0, 1, service.socket) as session,
                self.assertRaisesRegex(headrace.Error, "HEADRACE_RECONNECT"),
            ):
                session.reconnect()
            with (
                mock.patch.dict(os.environ, HEADRACE_RECONNECT="7"),
                headrace.init("on", 0, 1, service.socket) as session,
            ):
                self.assertEqual(session.reconnect_seconds, 7)
            # As with HEADRACE_SHRINK.
            with headrace.init("shrinks", 0, 1, service.socket, shrink=1) as session:
                self.assertEqual((session.reconnect_seconds, session.shrink_min_world), (30, 1))
            for said in (7, 0):
                with (
                    mock.patch.dict(os.environ, HEADRACE_RECONNECT=str(said)),
                    headrace.init(f"shrinks-{said}", 0, 1, service.socket, shrink=1) as session,
                ):
                    self.assertEqual(session.reconnect_seconds, said)

    def test_a_mismatch_names_both_sides_and_the_session_goes_on(self):
        def mismatch(session):
            try:
                session.all_reduce(numpy.zeros(10 + session.rank, numpy.float32))
            except headrace.Mismatch as error:
                session.barrier()
                return str(error)

        with Service() as service:
            for text in run_ranks(service, 2, mismatch):
                self.assertIn("10", text)
                self.assertIn("11", text)

    def test_an_operation_past_its_timeout_ends(self):
        read, write = os.pipe()
        with Service() as service:
            alone = start_rank(service, 0, 2, wait_for_end, timeout=0.3)
            # It stays until the other has been told.
            other = start_rank(service, 1, 2, lambda session: os.read(read, 1))
            name, text, seconds = alone.result()
            os.write(write, b"x")
            other.result()
            self.assertEqual(name, "Timeout", text)
            self.assertGreater(seconds, 0.25)
            self.assertLess(seconds, SOON_S)  # and not the service's minute
        os.close(read)
        os.close(write)

    def test_waiting_can_be_given_up_and_taken_up_again(self):
        def impatient(session, given_up):
            read, write = given_up
            if session.rank == 1:
                os.read(read, 1)
                session.barrier()
                return None
            operation = session.barrier(async_op=True)
            try:
                operation.wait(timeout=0.05)
            except headrace.Timeout:
                early = operation.done()
                os.write(write, b"x")
                operation.wait()
                return early, operation.done()

        given_up = os.pipe()
        with Service() as service:
            self.assertEqual(run_ranks(service, 2, impatient, given_up)[0], (False, True))
        for end in given_up:
            os.close(end)

    def test_a_rank_that_connects_twice_is_refused(self):
        def twice(session, socket):
            try:
                headrace.init("test", 0, 1, socket)
            except headrace.Error as error:
                return error.code, str(error)

        with Service() as service:
            code, text = run_ranks(service, 1, twice, service.socket)[0]
            self.assertEqual(code, "already exists")
            self.assertIn("rank 0", text)

    def test_another_world_size_is_refused(self):
        def other(session, socket):
            try:
                headrace.init("test", 1, 3, socket)
            except headrace.Error as error:
                return str(error)

        with Service() as service:
            text = run_ranks(service, 1, other, service.socket)[0]
            self.assertIn("3", text)

    def test_a_rendezvous_needs_a_service_that_others_reach(self):
        with (
            Service() as service,
            mock.patch.dict(os.environ, {"HEADRACE_RENDEZVOUS": "127.0.0.1"}),
        ):
            with self.assertRaisesRegex(
                headrace.Unavailable, "meets at 127.0.0.1.*--node-address"
            ):
                headrace.init("test", 0, 1, service.socket)
            # What is said overrides the environment: all ranks are here.
            with headrace.init("test", 0, 1, service.socket, rendezvous="") as session:
                session.barrier()

    def test_a_service_that_was_stopped_is_named(self):
        with Service() as service:
            service.suspend()
            options = headrace.session.library.Options()
            error = headrace.session.library.ErrorText()
            headrace.session.library.fill(options, error)
            options.job, options.rank, options.world_size = b"test", 0, 1
            options.socket_path = service.socket.encode()
            options.call_timeout_ms = 200
            with self.assertRaisesRegex(headrace.Timeout, r"0\.2 s"):
                headrace.Session(options)


if __name__ == "__main__":
    unittest.main()
