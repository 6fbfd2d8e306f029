"""headrace.Layout against a real service: gradients that move by the plan of the job."""

import os
import signal
import time
import unittest
from unittest import mock

import headrace
import numpy
from ranks import Service, run_ranks, start_rank
from support.patience import SOON_S, until
from support.policies import POLICIES

SHAPES = [(64, 3, 7, 7), (64,), (100, 1000), (1,), (33, 5)]
SPECS = [(shape, "float32", f"layer{i}") for i, shape in enumerate(SHAPES)]


def iterate(layout, session, iteration):
    """One iteration; how many gradients hold the wrong average."""
    wrong = 0
    world = session.world_size
    for i in range(len(layout)):
        layout.wait(i)
        if iteration > 0:
            # The average over ranks of rank + i + iteration of the iteration before.
            expected = (world - 1) / 2 + i + iteration - 1
            wrong += not (layout.numpy(i) == expected).all()
    layout.end_forward()
    layout.begin_backward()
    for i in reversed(range(len(layout))):
        layout.numpy(i)[...] = session.rank + i + iteration
        layout.post(i)
    return wrong


def train(session, iterations, policy=None):
    layout = session.layout(SPECS, policy=policy)
    wrong = sum(iterate(layout, session, iteration) for iteration in range(iterations))
    layout.wait_all()
    return wrong


def train_until_told(session):
    """Trains until SIGUSR1 has come to rank 0; wrong averages."""
    layout = session.layout(SPECS)
    told = []
    signal.signal(signal.SIGUSR1, lambda *_: told.append(True))
    wrong = 0
    for iteration in range(1_000_000):
        wrong += iterate(layout, session, iteration)
        stop = numpy.array([len(told)], numpy.int32)
        session.all_reduce(stop, "max")
        if stop[0]:
            break
        time.sleep(0.001)
    layout.wait_all()
    return wrong


def sums(session):
    layout = session.layout([((10,), "int32", "a"), ((4,), "int32", "b")], op="sum")
    layout.begin_backward()
    for i in range(2):
        layout.numpy(i)[:] = session.rank + i
        layout.post(i)
    layout.wait_all(30)
    # Ordinary operations go on beside the layout.
    array = numpy.full(3, session.rank, numpy.float64)
    session.all_reduce(array)
    return [set(layout.numpy(i).tolist()) for i in range(2)], array.tolist()


def with_a_second(session):
    session.layout(SPECS)
    try:
        session.layout(SPECS)
    except headrace.Error as error:
        session.barrier()
        return error.code
    return "no error"


def with_another_shape(session):
    """Rank 1's second gradient has one element more; how that ended."""
    specs = [((10,), "float32", "a"), ((4 + session.rank,), "float32", "b")]
    try:
        layout = session.layout(specs)
        layout.begin_backward()
        for i in (1, 0):
            layout.post(i)
        layout.wait_all()
    except headrace.Error as error:
        return type(error).__name__, str(error)
    return "no error", ""


def with_another_order(session):
    """Both gradients are as large; on rank 1 they stand the other way round. How that ended."""
    names = ["first", "second"][:: 1 if session.rank == 0 else -1]
    try:
        layout = session.layout([((10,), "float32", name) for name in names])
        layout.begin_backward()
        for i in (1, 0):
            layout.post(i)
        layout.wait_all()
    except headrace.Error as error:
        return str(error)
    return "no error"


def with_a_wrong_policy(session):
    try:
        session.layout(SPECS, policy="fastest")
    except headrace.Error as error:
        return error.code, str(error)
    return "no error", ""


def until_the_end(session):
    """Trains until it fails; how, and how long after the last post that ended well."""
    layout = session.layout(SPECS)
    began = time.monotonic()
    try:
        for iteration in range(1_000_000):
            began = time.monotonic()
            iterate(layout, session, iteration)
    except headrace.Error as error:
        return type(error).__name__, str(error), time.monotonic() - began
    return "no error", "", 0.0


class Training(unittest.TestCase):
    def test_averages_every_gradient_in_every_iteration(self):
        with Service() as service:
            self.assertEqual(run_ranks(service, 3, train, 40), [0, 0, 0])

    def test_averages_under_every_policy(self):
        with Service() as service:
            for policy in POLICIES:
                with self.subTest(policy=policy):
                    results = run_ranks(service, 2, train, 30, policy, job=policy)
                    self.assertEqual(results, [0, 0])

    def test_sums_beside_ordinary_operations(self):
        with Service() as service:
            for values, array in run_ranks(service, 3, sums):
                self.assertEqual(values, [{3}, {6}])
                self.assertEqual(array, [3.0] * 3)


class Admin(unittest.TestCase):
    def plan_of(self, service):
        jobs = service.ctl_json("plan", "test")["jobs"]
        return jobs[0]["plan"] if jobs else None

    def await_policy(self, service, policy):
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            plan = self.plan_of(service)
            if plan and plan["policy"] == policy and plan["version"] > 1:
                return plan
            time.sleep(0.05)
        self.fail(f"no plan by {policy}: {self.plan_of(service)}\n{service.log()}")

    def test_changes_the_policy_of_a_job_that_trains(self):
        with Service() as service:
            ranks = [start_rank(service, r, 2, train_until_told) for r in range(2)]
            before = self.await_policy(service, "auto")
            code, text = service.ctl("policy", "test", "bsp")
            self.assertEqual(code, 0, text)
            after = self.await_policy(service, "bsp")
            self.assertGreater(after["version"], before["version"])
            self.assertTrue(after["barrier"])
            os.kill(ranks[0].pid, signal.SIGUSR1)
            self.assertEqual([rank.result() for rank in ranks], [0, 0])

    def test_names_a_job_that_is_not_there(self):
        with Service() as service:
            code, text = service.ctl("policy", "nobody", "bsp")
            self.assertEqual(code, 1)
            self.assertIn("nobody", text)


class Refusals(unittest.TestCase):
    def test_a_session_has_one_layout(self):
        with Service() as service:
            self.assertEqual(
                run_ranks(service, 2, with_a_second), ["already exists"] * 2
            )

    def test_unequal_layouts_are_named_on_every_rank(self):
        with Service() as service:
            ranks = [start_rank(service, r, 2, with_another_shape) for r in range(2)]
            for name, text in [rank.result() for rank in ranks]:
                self.assertNotEqual(name, "no error")
                self.assertRegex(text, "rank")
                self.assertRegex(text, "[45]")

    def test_equally_large_gradients_in_another_order_end_by_name(self):
        with Service() as service:
            ranks = [start_rank(service, r, 2, with_another_order) for r in range(2)]
            texts = [rank.result() for rank in ranks]
            self.assertNotIn("no error", texts)
            self.assertTrue(any("first" in t and "second" in t for t in texts), texts)

    def test_an_unknown_policy_is_refused_by_name(self):
        with Service() as service:
            for code, text in run_ranks(service, 1, with_a_wrong_policy):
                self.assertEqual(code, "invalid argument")
                self.assertIn("fastest", text)

    def test_the_environment_names_the_policy(self):
        with Service() as service, mock.patch.dict(
            os.environ, HEADRACE_POLICY="slowest"
        ):
            ranks = [start_rank(service, 0, 1, train, 1)]
            with self.assertRaisesRegex(AssertionError, "slowest"):
                ranks[0].result()


class Losses(unittest.TestCase):
    def await_training(self, service):
        until(lambda: any(job["blocks_ended"] for job in service.ctl_json("jobs")["jobs"]), "it trains")

    def test_a_dead_rank_ends_the_waits_of_the_others(self):
        with Service() as service:
            ranks = [start_rank(service, r, 3, until_the_end) for r in range(3)]
            self.await_training(service)
            ranks[1].kill()
            ranks[1].end()
            for rank in (ranks[0], ranks[2]):
                name, text, seconds = rank.result()
                self.assertEqual(name, "PeerLost")
                self.assertIn(str(ranks[1].pid), text)
                self.assertLess(seconds, SOON_S)

    def test_a_dead_service_ends_every_wait(self):
        with Service() as service:
            ranks = [start_rank(service, r, 2, until_the_end) for r in range(2)]
            self.await_training(service)
            service.kill()
            for rank in ranks:
                name, text, seconds = rank.result()
                self.assertEqual(name, "Unavailable", text)
                self.assertLess(seconds, SOON_S)


if __name__ == "__main__":
    unittest.main()
