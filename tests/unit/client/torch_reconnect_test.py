"""ScheduledOptimizer goes on after the service went away, with the numbers of a run without that."""

from __future__ import annotations

import os
import re
import select
import signal
import sys
import threading
import unittest
import unittest.mock
import warnings
from collections.abc import Callable
from typing import Any

import headrace
import headrace.torch
import torch
from doubled_gpu import DoubledGpu, as_torchs_gpu, gpu_service, use_double
from headrace.errors import Unavailable
from headrace.torch.recovery import Recovery
from ranks import Rank, Service
from torch_ranks import main
from torch_scheduled import batches, bits, loss_of, network

WAIT_S = 60.0
STEPS = 12
RANKS = 2


def adam(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), 1e-2)


def trained(
    session: headrace.Session,
    at: Callable[[int, str], None] = lambda step, when: None,
    reconnect: float = 0.0,
    clip: bool = False,
    steps: int = STEPS,
    given_up: int | None = None,
    flows: list | None = None,
) -> list:
    """[losses, parameters, state] as bits; ``at`` is called at three moments of each step.

    The iteration ``given_up`` ends without a step. What is inside the optimizer is put into ``flows``.
    """
    model = network()
    optimizer = adam(model)
    wrapped = headrace.torch.ScheduledOptimizer(
        optimizer, model, session, reconnect=reconnect
    )
    if flows is not None:
        flows.append(wrapped._flow)
    losses = []
    hooked = next(iter(model.parameters()))  # the last gradient that backward makes
    step = 0
    hooked.register_hook(lambda _: at(step, "backward"))
    for step, batch in enumerate(batches(session, steps)):
        wrapped.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        at(step, "step")
        if step == given_up:
            continue
        if clip:
            wrapped.clip_grad_norm_(0.1)
        wrapped.step()
        at(step, "forward")
        losses.append(loss.item())
    wrapped.synchronize()
    recoveries = wrapped._flow._recovery.recoveries if reconnect else 0
    return [recoveries, *bits([losses, list(model.parameters()), optimizer.state_dict()["state"]])]


class Restarter:
    """Ends the service and starts it anew when the ranks ask for it, each time once."""

    def __init__(self, service: Service, drains: bool) -> None:
        self._service = service
        self._drains = drains
        self._asked, self.ask = os.pipe()
        self.restarts = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while os.read(self._asked, 1) == b"k":
            self._service.stop() if self._drains else self._service.kill()
            self._service.start()
            self.restarts += 1

    def close(self) -> None:
        os.write(self.ask, b"q")
        self._thread.join()
        os.close(self._asked)
        os.close(self.ask)


class ReconnectCase(unittest.TestCase):
    def make_service(self) -> Service:
        return Service()

    def call(self, function: Callable, *arguments: Any) -> Any:
        """Calls it in a rank's process."""
        return function(*arguments)

    def setUp(self) -> None:
        self.service = self.make_service()
        self.addCleanup(self.service.close)
        self.service.start()

    def run_ranks(self, function: Callable, *arguments: Any, job: str = "train") -> list:
        def attached(rank: int) -> Any:
            session = headrace.init(job, rank, RANKS, self.service.socket)
            try:
                return self.call(function, session, *arguments)
            finally:
                session.close()

        ranks = [Rank(attached, rank) for rank in range(RANKS)]
        results, failures = [], []
        for rank in ranks:
            try:
                results.append(rank.result(timeout=150))
            except AssertionError as failure:
                failures.append(str(failure))
        self.assertEqual(failures, [])
        return results


class OnAGpu(ReconnectCase):
    """With gradients on a GPU, a double's, which torch takes for its own."""

    def make_service(self) -> Service:
        environment = unittest.mock.patch.dict(os.environ)
        environment.start()
        self.addCleanup(environment.stop)
        use_double()
        return gpu_service()

    def call(self, function: Callable, *arguments: Any) -> Any:
        with as_torchs_gpu(DoubledGpu()):
            return function(*arguments)


class ReconnectTest(ReconnectCase):
    def require_same(
        self, moments: dict[int, str], clip: bool = False, drains: bool = False
    ) -> None:
        """With the service killed at those moments, training is what it is without that."""
        plain = self.run_ranks(trained, lambda step, when: None, 0.0, clip, job="plain")
        restarter = Restarter(self.service, drains)

        def disturbed(session: headrace.Session) -> list:
            def at(step: int, when: str) -> None:
                if session.rank != 0 or moments.get(step) != when:
                    return
                os.write(restarter.ask, b"k")
                await_end_of(session.service_pid)

            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                result = trained(session, at, WAIT_S, clip)
            return [*result, [str(each.message) for each in caught]]

        try:
            results = self.run_ranks(disturbed, job="disturbed")
        finally:
            restarter.close()  # ranks may be done before the last start is counted
        self.assertEqual(restarter.restarts, len(moments))
        for rank, (recoveries, *result, said) in enumerate(results):
            # A loss that comes before the one before it is mended, or noticed, is mended with it.
            self.assertIn(recoveries, range(1, len(moments) + 1))
            self.assertEqual(result, plain[rank][1:], f"rank {rank}: other numbers")
            named = [text for text in said if re.search(r"iteration \d", text)]
            self.assertEqual(len(named), recoveries if rank == 0 else 0, said)

    def test_a_service_killed_in_backward_changes_no_number(self) -> None:
        self.require_same({3: "backward"})

    def test_a_service_killed_before_step_changes_no_number(self) -> None:
        self.require_same({4: "step"})

    def test_a_service_killed_before_the_next_forward_changes_no_number(self) -> None:
        self.require_same({2: "forward"})

    def test_a_service_killed_again_and_again_changes_no_number(self) -> None:
        self.require_same({1: "backward", 2: "forward", 5: "step", 6: "step", 9: "forward"})

    def test_a_service_that_is_drained_for_an_update_changes_no_number(self) -> None:
        self.require_same({3: "forward", 7: "step"}, drains=True)

    def test_clipping_all_gradients_sees_the_averages(self) -> None:
        self.require_same({3: "step", 6: "backward"}, clip=True)

    def test_without_the_option_the_loss_is_raised(self) -> None:
        def alone(session: headrace.Session) -> str:
            def at(step: int, when: str) -> None:
                if step == 2 and when == "step" and session.rank == 0:
                    os.kill(session.service_pid, signal.SIGKILL)

            try:
                trained(session, at)
            except Unavailable as loss:
                return str(loss)
            return ""

        for text in self.run_ranks(alone):
            self.assertTrue(text)

    def test_a_service_that_does_not_return_is_named_with_the_cause(self) -> None:
        def alone(session: headrace.Session) -> str:
            def at(step: int, when: str) -> None:
                if step == 2 and when == "step" and session.rank == 0:
                    os.kill(session.service_pid, signal.SIGKILL)

            try:
                trained(session, at, 1.0)
            except headrace.Timeout as failure:
                return f"{failure}; {failure.__cause__}"
            return ""

        for text in self.run_ranks(alone):
            self.assertRegex(text, r"(?s)1000 ms.*; .+")


class AgreementTest(ReconnectCase):
    """What ranks do that were told different things before the service went."""

    def test_a_rank_that_is_behind_takes_the_state_of_one_that_is_not(self) -> None:
        results = self.run_ranks(one_behind)
        self.assertEqual(results[0], results[1])

    def test_averages_that_only_some_have_go_to_the_others(self) -> None:
        for rank, values in enumerate(self.run_ranks(some_averages)):
            self.assertEqual(values, [10.0, 20.0, 1.5], f"rank {rank}")


class Untold:
    """An operation of whose end the service could not tell any more."""

    def __init__(self, loss: Unavailable) -> None:
        self._loss = loss

    def done(self) -> bool:
        return False

    def wait(self) -> None:
        raise self._loss


class BehindTest(ReconnectCase):
    """The service is killed when rank 0 is an iteration ahead: rank 1 was told of the first averages
    only of the one before."""

    TOLD = 3  # gradients; the others are those of a later module
    LAST = 4  # the step in which rank 1 is kept back

    def require_same(self, when: str, **options: Any) -> None:
        """``when`` rank 1 is about to wait in that step."""
        plain = self.run_ranks(lambda session: trained(session, **options), job="plain")
        restarter = Restarter(self.service, drains=False)
        ahead, tell = os.pipe()
        self.addCleanup(os.close, ahead)
        self.addCleanup(os.close, tell)

        def keep_back(session: headrace.Session, flow: Any) -> None:
            loss = Unavailable("the service went away", "unavailable", 6)
            layout = flow.layout
            wait = layout.wait

            def wait_or_lose(i: int) -> None:
                if i < self.TOLD:
                    return wait(i)
                self.assertEqual(os.read(ahead, 1), b"a")
                os.write(restarter.ask, b"k")
                await_end_of(session.service_pid)
                layout.wait = wait
                raise loss

            layout.wait = wait_or_lose
            for slot in flow.slots[self.TOLD :]:
                slot.operation = Untold(loss)

        def disturbed(session: headrace.Session) -> list:
            flows: list = []

            def at(step: int, moment: str) -> None:
                if session.rank == 1 and (step, moment) == (self.LAST, when):
                    keep_back(session, flows[0])
                if session.rank == 0 and (step, moment) == (self.LAST + 1, "step"):
                    os.write(tell, b"a")

            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return trained(session, at, WAIT_S, flows=flows, **options)

        try:
            results = self.run_ranks(disturbed, job="disturbed")
        finally:
            restarter.close()
        self.assertEqual(restarter.restarts, 1)
        for rank, (recoveries, *result) in enumerate(results):
            self.assertEqual(recoveries, 1)
            self.assertEqual(result, plain[rank][1:], f"rank {rank}: other numbers")

    def test_a_rank_that_has_made_a_part_of_its_updates_takes_the_rest(self) -> None:
        self.require_same("forward")

    def test_a_rank_before_its_step_takes_the_averages(self) -> None:
        self.require_same("step", clip=True)

    def test_a_rank_that_gives_the_iteration_up_needs_nothing(self) -> None:
        self.require_same("step", given_up=self.LAST)


class GpuReconnectTest(OnAGpu, ReconnectTest):
    pass


class GpuAgreementTest(OnAGpu, AgreementTest):
    pass


class GpuBehindTest(OnAGpu, BehindTest):
    pass


def trained_by_hand(session: headrace.Session, at: Callable[[int], None]) -> list:
    """A loop of one's own with a GradientArena; rank 0's step and parameters are all ranks'."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    arena = headrace.torch.GradientArena(session, model.named_parameters())
    last = next(iter(model.parameters()))  # whose gradient comes last
    all_batches = list(batches(session, STEPS))
    step = 0
    last.register_hook(lambda _: at(step))
    while step < STEPS:
        try:
            arena.zero_grad()
            loss_of(model, all_batches[step]).backward()
            arena.wait()
            optimizer.step()
            step += 1
        except (headrace.Unavailable, headrace.PeerLost):
            session.reconnect(WAIT_S)
            arena.restart()
            agreed = torch.tensor([step])
            session.broadcast(agreed)
            step = int(agreed[0])
            headrace.torch.broadcast_parameters(session, model)
    arena.close()
    return bits([list(model.parameters())])


class ArenaTest(ReconnectCase):
    def test_an_iteration_is_begun_anew_and_no_number_changes(self) -> None:
        plain = self.run_ranks(trained_by_hand, lambda step: None, job="plain")
        restarter = Restarter(self.service, drains=False)
        ended: set[int] = set()

        def disturbed(session: headrace.Session) -> list:
            def at(step: int) -> None:
                if session.rank == 0 and step in (3, 7) and step not in ended:
                    ended.add(step)
                    os.write(restarter.ask, b"k")
                    await_end_of(session.service_pid)

            return trained_by_hand(session, at)

        try:
            results = self.run_ranks(disturbed, job="disturbed")
        finally:
            restarter.close()
        self.assertEqual(restarter.restarts, 2)
        self.assertEqual(results, plain)


def await_end_of(pid: int) -> None:
    """Until all of its threads are gone: the one that is called as the process may end before another lets
    go of the sockets."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if not select.select([process], [], [], WAIT_S)[0]:
            raise TimeoutError(f"pid {pid} did not end")
    finally:
        os.close(process)


def lose(session: headrace.Session) -> None:
    """Has both ranks see the job fail, while the service lives: rank 1's connection breaks."""
    session.barrier()
    if session.rank == 1:
        shut_down_socket()
        return
    try:
        session.barrier()
    except headrace.Error:
        return
    raise AssertionError("the job did not fail")


def shut_down_socket() -> None:
    import socket

    for entry in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(entry))) as copy:
                if copy.family == socket.AF_UNIX and copy.getpeername():
                    copy.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # no socket, or gone with the listing


def recovered(session: headrace.Session, model: Any, optimizer: Any, prepare: Callable) -> Any:
    """A flow after one step, changed by ``prepare(flow)``, after a loss and its recovery."""
    wrapped = headrace.torch.ScheduledOptimizer(
        optimizer, model, session, reconnect=WAIT_S
    )
    for batch in batches(session, 2):
        wrapped.zero_grad()
        loss_of(model, batch).backward()
        wrapped.step()
    flow = wrapped._flow
    prepare(wrapped, flow)
    lose(session)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        flow._recover(Unavailable("lost by the test", "unavailable", 6))
    return wrapped


def one_behind(session: headrace.Session) -> list:
    model = network()
    optimizer = adam(model)

    def prepare(wrapped: Any, flow: Any) -> None:
        if session.rank == 0:  # it has made its updates, and has gradients of the next iteration
            wrapped.synchronize()
            flow._iteration += 1
            for slot in flow.slots:
                slot.kept.fill_(1.0)
                slot.open, slot.operation = True, None
        else:  # its service could not tell it any more
            wrapped.synchronize()
            for slot in flow.slots:
                slot.open, slot.operation, slot.due = True, None, flow._updates.options()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.zero_()
            optimizer.state.clear()

    # Rank 0 sums its next iteration again, in which rank 1 takes part as it would in training.
    if session.rank == 1:
        original = Recovery.run

        def run_and_post(self: Any, *arguments: Any) -> None:
            original(self, *arguments)
            slots, layout = arguments[-2:]
            assert all(not slot.open and slot.due is None for slot in slots)
            layout.begin_backward()
            for slot in slots:
                slot.memory.fill_(3.0)
                layout.post(slot.index)
            layout.wait_all()

        Recovery.run = run_and_post
    wrapped = recovered(session, model, optimizer, prepare)
    sums = [slot.memory.view(-1)[0].item() for slot in wrapped._flow.slots]
    assert sums == [2.0] * len(sums), sums
    return bits([list(model.parameters()), optimizer.state_dict()["state"]])


def some_averages(session: headrace.Session) -> list:
    model = network()
    optimizer = adam(model)

    def prepare(wrapped: Any, flow: Any) -> None:
        wrapped.synchronize()
        first, second = flow.slots[:2]
        for slot in flow.slots:
            slot.open, slot.operation, slot.due = True, None, flow._updates.options()
            slot.kept.fill_(float(session.rank + 1))
            slot.memory.fill_(-1.0)
        having = first if session.rank == 0 else second
        having.open = False
        having.memory.fill_(10.0 if session.rank == 0 else 20.0)

    wrapped = recovered(session, model, optimizer, prepare)
    return [slot.memory.view(-1)[0].item() for slot in wrapped._flow.slots[:3]]


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    main()
