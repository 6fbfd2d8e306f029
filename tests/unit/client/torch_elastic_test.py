"""headrace.torch.elastic_run(): what a state may hold, when a commit ends, and what a step may raise."""

import os
import signal
import unittest
import warnings

import headrace
import headrace.torch
import torch
from headrace.torch import snapshot
from ranks import ServiceCase, start_rank
from torch_ranks import main


def model():
    torch.manual_seed(0)
    return torch.nn.Linear(4, 1)


def state_of(session, **options):
    plain = model()
    return headrace.torch.ElasticState(
        plain, torch.optim.SGD(plain.parameters(), 0.1, momentum=0.9), session=session, **options
    )


def commit_without_the_other(session, transaction):
    """Rank 0 commits twice, the other dies after the first time."""
    state = state_of(session, transaction=transaction)
    state.commit()
    if session.rank == 1:
        state._vote[0].wait()  # which it had a part in
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        state.commit()
        return "committed"
    except headrace.PeerLost:
        return "lost"


def train(session, kill_at, steps, commit_every):
    """Rank 1 dies; returns what steps rank 0 has made, its values, and what was resized."""
    scheduled = torch.optim.lr_scheduler
    plain = model()
    sgd = torch.optim.SGD(plain.parameters(), 0.1, momentum=0.9)
    scheduler = scheduled.StepLR(sgd, 2)
    state = headrace.torch.ElasticState(
        plain, sgd, session=session, scheduler=scheduler, seen=[], mark=torch.zeros(2)
    )
    made, rates, resizes = [], [], []

    def step(state):
        made.append(state.step)
        rates.append(state.optimizer.param_groups[0]["lr"])
        if state.step == kill_at and session.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        state.optimizer.zero_grad()
        state.model(torch.ones(1, 4)).sum().backward()
        for parameter in state.module.parameters():
            state.session.all_reduce(parameter.grad, op="average")
        state.optimizer.step()
        state.scheduler.step()
        state.seen.append(state.step)
        state.mark += 1

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done = headrace.torch.elastic_run(step, state, steps, commit_every, resizes.append)
    counts = [list(state.seen), state.mark.tolist(), done, state.world_size]
    return made, rates, counts, [vars(each) for each in resizes]


def furthest(session):
    """Rank 2 dies after the first step; in the second, rank 1 needs nobody, and rank 0 rank 2."""
    state = state_of(session, transaction=False, by=[])
    made = []

    def step(state):
        made.append(state.step)
        if state.step == 1 and session.members[session.rank] == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if state.step == 1 and session.rank == 0 and session.world_size == 3:
            session.receive(torch.zeros(1), 2)
        if state.step != 1:
            session.all_reduce(torch.zeros(1))
        state.by.append(session.members[session.rank])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        headrace.torch.elastic_run(step, state, 4)
    return made, state.by[:2]


def commit_in_a_step(session):
    """Steps commit when they have done their work; rank 1 dies in the step after."""
    own = torch.zeros(2)
    state = state_of(session, sum=own)
    made = []

    def step(state):
        made.append(state.step)
        if state.step == 2 and session.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        session.all_reduce(torch.zeros(1))
        state.sum += 1
        if state.step == 1:
            state.commit()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        headrace.torch.elastic_run(step, state, 4, commit_every=0)
        beyond = headrace.torch.elastic_run(step, state, 3, commit_every=0)
    return made, own.tolist(), beyond


def raise_of_its_own(session):
    """Rank 1's step has a mistake; the other hears that it has gone."""
    state = state_of(session)

    def step(state):
        if session.rank == 1:
            raise RuntimeError("shapes do not fit")
        state.session.all_reduce(torch.zeros(3))

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            headrace.torch.elastic_run(step, state, 2)
    except RuntimeError as error:
        return str(error)
    return f"went on with {state.world_size}"


def begin_alike(session):
    """Ranks begin with rank 0's values, and end when a step says so."""
    state = state_of(session, where=session.rank + 5)
    with torch.no_grad():
        state.module.weight.fill_(session.rank)

    def step(state):
        return state.step < 2

    done = headrace.torch.elastic_run(step, state, commit_every=0)
    return done, state.where, state.module.weight.tolist()


class Elastic(ServiceCase):
    def run_two(self, function, *arguments, lost=(), count=2):
        ranks = [
            start_rank(self.service, rank, count, function, *arguments, job="elastic") for rank in range(count)
        ]
        for rank in lost:
            ranks[rank].end()
        return [each.result() for rank, each in enumerate(ranks) if rank not in lost]

    def test_a_commit_ends_when_all_have_committed(self):
        self.assertEqual(self.run_two(commit_without_the_other, True, lost=[1]), ["lost"])

    def test_without_transaction_a_commit_is_each_ranks_own(self):
        self.assertEqual(self.run_two(commit_without_the_other, False, lost=[1]), ["committed"])

    def test_a_loop_goes_back_to_the_last_commit_with_all_that_belongs_to_it(self):
        ((made, rates, counts, resizes),) = self.run_two(train, 4, 6, 3, lost=[1])
        self.assertEqual(made, [0, 1, 2, 3, 4, 3, 4, 5], "the commit was after three steps")
        self.assertEqual(counts, [list(range(6)), [6.0, 6.0], 6, 1])
        self.assertEqual(rates[5:7], rates[3:5], "the schedule went back, too")
        wanted = {"rank": 0, "world_size": 1, "members": (0,), "lost": (1,), "iteration": 4, "joined": ()}
        self.assertEqual(resizes, [wanted])

    def test_all_go_on_from_the_commit_of_the_one_that_is_furthest(self):
        self.assertEqual(
            self.run_two(furthest, lost=[2], count=3), [([0, 1, 2, 3], [1, 1]), ([0, 1, 2, 2, 3], [1, 1])]
        )

    def test_a_step_that_commits_is_not_made_again(self):
        ((made, own, beyond),) = self.run_two(commit_in_a_step, lost=[1])
        self.assertEqual(made, [0, 1, 2, 2, 3])
        self.assertEqual(own, [4.0, 4.0], "a tensor stays where it is")
        self.assertEqual(beyond, 4, "more steps than are asked for are not too few")

    def test_a_mistake_of_a_step_is_raised(self):
        self.assertEqual(self.run_two(raise_of_its_own), ["went on with 1", "shapes do not fit"])

    def test_all_begin_with_the_values_of_rank_0(self):
        self.assertEqual(self.run_two(begin_alike), [(2, 5, [[0.0] * 4])] * 2)

    def test_what_a_state_cannot_hold_is_refused(self):
        def refuse(session):
            said = []
            plain = model()
            sgd = torch.optim.SGD(plain.parameters(), 0.1)
            for make in (
                lambda: headrace.torch.ElasticState(plain, sgd, session=session, step=3),
                lambda: headrace.torch.ElasticState(
                    plain, headrace.torch.ScheduledOptimizer(sgd, plain, session), session=session
                ),
                lambda: headrace.torch.ElasticState(
                    plain, sgd, session=session, data={"of": [object()]}
                ).commit(),
                lambda: headrace.torch.elastic_run(print, state_of(session), commit_every=-1),
            ):
                try:
                    make()
                except (TypeError, ValueError) as error:
                    said.append(str(error))
            return said

        said = start_rank(self.service, 0, 1, refuse, job="refuse").result()
        for words, text in zip(
            ("step is a name", "by itself", "['data']['of'][0] is a object", "commit_every=-1"), said, strict=True
        ):
            self.assertIn(words, text)


class Snapshot(unittest.TestCase):
    def test_a_value_comes_back_as_it_was(self):
        value = {
            "a": [1, 2.5, None, True, "text", (1, (2.0,))],
            3: {"t": torch.arange(4, dtype=torch.bfloat16), "e": torch.empty(0)},
            "nan": float("inf"),
        }
        copy = snapshot.copied(value)
        back = snapshot.unpacked(snapshot.packed(copy))
        self.assertTrue(torch.equal(back[3].pop("t"), value[3].pop("t")))
        self.assertEqual(back[3].pop("e").shape, (0,))
        del value[3]["e"]
        self.assertEqual(back, value)
        self.assertIsInstance(back["a"][5][1], tuple)

    def test_a_copy_has_the_memory_of_the_one_before(self):
        first = snapshot.copied({"x": torch.zeros(8), "y": [torch.zeros(2)]})
        before = first["x"].data_ptr(), first["y"][0].data_ptr()
        second = snapshot.copied({"x": torch.ones(8), "y": [torch.ones(3)]}, first)
        self.assertEqual(second["x"].data_ptr(), before[0])
        self.assertNotEqual(second["y"][0].data_ptr(), before[1])
        self.assertEqual(second["y"][0].tolist(), [1.0] * 3)


if __name__ == "__main__":
    main()
