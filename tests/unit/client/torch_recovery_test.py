"""What ranks of one meeting do, without a service: all of them post the same operations, whoever is new or behind."""

from __future__ import annotations

import threading
import unittest
from collections.abc import Callable, Sequence
from typing import Any

import torch
from headrace.errors import make as make_error
from headrace.torch.handover import Donor
from headrace.torch.recovery import Recovery
from headrace.torch.resize import Lack
from headrace.torch.slots import Member, Slot
from headrace.torch.updates import Updates

MIB = 1 << 20
MISSED_S = 30.0  # a rank that has not posted by then is not going to


class Meeting:
    """The operations of some ranks, each of which is a thread."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._posted: dict[int, dict[int, tuple[tuple[Any, ...], Any]]] = {}
        self._changed = threading.Condition()

    def post(self, rank: int, number: int, kind: tuple[Any, ...], data: Any) -> list[Any]:
        """What each rank gave to its operation of that number. AssertionError where they differ in its kind."""
        with self._changed:
            operation = self._posted.setdefault(number, {})
            operation[rank] = (kind, data)
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: len(operation) == self._ranks, MISSED_S):
                raise AssertionError(f"operation {number}: only ranks {sorted(operation)} have posted {kind}")
            kinds = {rank: posted[0] for rank, posted in operation.items()}
            if len(set(kinds.values())) != 1:
                raise AssertionError(f"operation {number} differs: {kinds}")
            return [operation[rank][1] for rank in range(self._ranks)]


class Session:
    """One rank of it."""

    service_pid = 1

    def __init__(self, meeting: Meeting, rank: int, ranks: int, joins: bool) -> None:
        self.rank, self.world_size, self.members, self.joins = rank, ranks, tuple(range(ranks)), joins
        self._meeting = meeting
        self._posted = 0

    def post(self, kind: tuple[Any, ...], data: torch.Tensor | None = None) -> list[Any]:
        self._posted += 1
        copy = None if data is None else data.clone()
        return self._meeting.post(self.rank, self._posted, kind, copy)

    def all_gather(self, rows: torch.Tensor) -> None:
        for rank, given in enumerate(self.post(("all_gather", tuple(rows.shape)), rows)):
            rows[rank] = given[rank]

    def broadcast(self, tensor: torch.Tensor, root: int) -> None:
        tensor.copy_(self.post(("broadcast", tensor.numel() * tensor.element_size(), root), tensor)[root])

    def all_reduce(self, tensor: torch.Tensor, op: str = "sum") -> None:
        tensor.copy_(sum(self.post(("all_reduce", op, tensor.numel()), tensor)))

    def barrier(self) -> None:
        self.post(("barrier",))


class Layout:
    """Of one slot."""

    device = None
    size = 64

    def __init__(self, session: Session, slot: Slot) -> None:
        self._session = session
        self._slot = slot

    def begin_backward(self) -> None:
        pass

    def post(self, index: int, stream: Any) -> None:
        pass

    def wait(self, index: int) -> None:
        given = self._session.post(("gradient", index), self._slot.memory)
        self._slot.memory.copy_(sum(given) / len(given))

    def set_contributors(self, count: int) -> None:
        pass


class NobodyHandsOver:
    """The listener of a rank that is to get everything at once."""

    def attach(self, *unused: Any) -> None:
        pass

    def run(self, *unused: Any) -> None:
        raise AssertionError("it listens, and nobody hands over")

    def close(self) -> None:
        pass


class Meetings(unittest.TestCase):
    def setUp(self) -> None:
        self.failures: list[str] = []
        self.ended: dict[str, Any] = {}

    def rank(self, meeting: Meeting, number: int, joins: bool) -> tuple[Recovery, Slot, Layout, Updates]:
        torch.manual_seed(number)
        parameter = torch.nn.Parameter(torch.randn(4))
        updates = Updates(torch.optim.SGD([parameter], 0.1, momentum=0.9))
        session = Session(meeting, number, 3, joins)
        recovery = Recovery(session, updates, 30, 1, transaction=True)
        recovery.order = [] if joins else [0]
        slot = Slot(0, [Member("p", parameter)])
        slot.take_views(torch.randn(4))
        slot.kept = slot.memory.clone()
        slot.open = True
        return recovery, slot, Layout(session, slot), updates

    def run_all(self, programs: dict[str, Callable[[], Any]]) -> None:
        def run(name: str) -> None:
            try:
                self.ended[name] = programs[name]()
            except Exception as error:  # noqa: BLE001
                self.failures.append(f"{name}: {type(error).__name__}: {error}")

        threads = [threading.Thread(target=run, args=(name,)) for name in programs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(self.failures, [])

    def test_a_newcomer_meets_a_rank_that_is_an_iteration_behind(self) -> None:
        """The newcomer gets the state at once, and has its part in the iteration that is summed again."""
        meeting = Meeting(3)

        def ahead() -> None:
            recovery, slot, layout, _ = self.rank(meeting, 0, joins=False)
            recovery._agree(5, Lack.AVERAGES, [slot], layout)

        def behind() -> None:
            recovery, slot, layout, updates = self.rank(meeting, 1, joins=False)
            slot.due = updates.options()
            recovery._agree(4, Lack.STATE, [slot], layout)
            self.train(recovery, slot, layout)

        def newcomer() -> int:
            recovery, slot, layout, _ = self.rank(meeting, 2, joins=True)

            def lay_out(order: Sequence[int]) -> tuple[Sequence[Slot], Layout]:
                return [slot], layout

            entered = recovery.enter(1, lay_out, NobodyHandsOver())
            self.train(recovery, slot, layout)
            return entered

        self.run_all({"ahead": ahead, "behind": behind, "newcomer": newcomer})
        self.assertEqual(self.ended["newcomer"], 4)

    def train(self, recovery: Recovery, slot: Slot, layout: Layout) -> None:
        """Its part in the iteration that one rank has summed already."""
        slot.memory.copy_(torch.ones(4))
        layout.wait(0)
        recovery._session.barrier()


class Memory:
    """A session whose user may have so many bytes."""

    def __init__(self, most: int) -> None:
        self._most = most

    def arena(self, size: int) -> Any:
        if size > self._most:
            raise make_error(f"a segment of {size} bytes: memory_per_uid", "exhausted", 12)
        return Arena()


class Arena:
    def tensor(self, count: int, dtype: str) -> Tensor:
        return Tensor(count)

    def release(self) -> None:
        pass


class Tensor:
    def __init__(self, count: int) -> None:
        self.count = count
        self._memory = torch.zeros(count, dtype=torch.uint8)

    def torch(self) -> torch.Tensor:
        return self._memory

    def range(self, begin: int, end: int) -> torch.Tensor:
        return self._memory[begin:end]

    def release(self) -> None:
        pass


class Pieces(unittest.TestCase):
    def donor(self, most: int) -> Donor:
        parameters = [torch.nn.Parameter(torch.randn(1 << 20)) for _ in range(2)]
        optimizer = torch.optim.AdamW(parameters, 1e-3)
        for parameter in parameters:
            parameter.grad = torch.randn(1 << 20)
        optimizer.step()
        updates = Updates(optimizer)
        updates.parameters()
        return Donor(Memory(most), updates, [], [1], 32 * MIB, 1)

    def test_they_are_as_large_as_the_user_may_have_memory_for(self) -> None:
        donor = self.donor(MIB)
        sent = []
        while not donor.has_sent_all:
            sent.append(donor._fill()[1])
        self.assertLessEqual(max(sent), MIB)
        self.assertGreaterEqual(sum(sent), 2 * 3 * 4 * MIB)

    def test_a_user_who_may_have_none_is_told_so(self) -> None:
        with self.assertRaisesRegex(Exception, "memory_per_uid"):
            self.donor(1024)._fill()


if __name__ == "__main__":
    unittest.main(verbosity=2)
