"""headrace.torch against a real service: the same training, by the hook, the arena and gloo."""

import os
import time
import unittest

import headrace
import headrace.torch
import torch
from ranks import Rank, Service, ServiceCase, run_ranks
from support.patience import SOON_S
from torch_ranks import free_port, main

STEPS = 12


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(16, 64),
        torch.nn.ReLU(),
        torch.nn.Linear(64, 64),
        torch.nn.Linear(64, 4),
    )


def batches(world_size: int) -> list:
    random = torch.Generator().manual_seed(1)
    inputs = torch.randn(STEPS, world_size, 8, 16, generator=random)
    targets = torch.randint(0, 4, (STEPS, world_size, 8), generator=random)
    return list(zip(inputs, targets, strict=True))


def train(model, rank, world_size, zero_grad=None, wait=lambda: None) -> list:
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for inputs, targets in batches(world_size):
        (zero_grad or optimizer.zero_grad)()
        loss = torch.nn.functional.cross_entropy(model(inputs[rank]), targets[rank])
        loss.backward()
        wait()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def alone(world_size: int) -> list:
    """The same global batches in one process: the average of the ranks' gradients."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for inputs, targets in batches(world_size):
        optimizer.zero_grad()
        for rank in range(world_size):
            loss = torch.nn.functional.cross_entropy(model(inputs[rank]), targets[rank])
            (loss / world_size).backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def with_arena(session):
    torch.set_num_threads(1)
    model = network()
    arena = headrace.torch.GradientArena(session, model.named_parameters())
    trained = train(
        model, session.rank, session.world_size, arena.zero_grad, arena.wait
    )
    return [p.numpy() for p in trained], arena.copies


def with_gradients_set_to_none(session):
    torch.set_num_threads(1)
    model = network()
    arena = headrace.torch.GradientArena(session, model.parameters())

    def forget():
        for parameter in model.parameters():
            parameter.grad = None

    trained = train(model, session.rank, session.world_size, forget, arena.wait)
    return [p.numpy() for p in trained], arena.copies


def with_unused_parameters(session):
    layers = torch.nn.ModuleList([torch.nn.Linear(3, 3, bias=False) for _ in range(3)])
    arena = headrace.torch.GradientArena(session, layers.named_parameters())
    gradients = []
    for step in range(6):
        arena.zero_grad()
        # Each rank uses another layer in each step; the third rank's share is zeros.
        layers[(session.rank + step) % 3](torch.ones(1, 3)).sum().backward()
        arena.wait(10)
        gradients.append([layer.weight.grad[0, 0].item() for layer in layers])
    return gradients


def with_micro_batches(session):
    layer = torch.nn.Linear(3, 1, bias=False)
    arena = headrace.torch.GradientArena(session, layer.parameters())
    posted = session.counters()["posted"]
    arena.zero_grad()
    with arena.no_sync():
        layer(torch.ones(1, 3)).sum().backward()
        layer(torch.ones(1, 3)).sum().backward()
    layer(torch.ones(1, 3)).sum().backward()
    arena.wait()
    posted = session.counters()["posted"] - posted
    twice = None
    layer(torch.ones(1, 3)).sum().backward()
    try:
        layer(torch.ones(1, 3)).sum().backward()
    except RuntimeError as error:
        twice = str(error)
    arena.wait()
    arena.close()
    return layer.weight.grad[0, 0].item(), posted, twice


def with_broadcast(session):
    torch.manual_seed(session.rank)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.BatchNorm1d(7))
    model[0].weight = torch.nn.Parameter(torch.randn(5, 7).t())  # not contiguous
    headrace.torch.broadcast_parameters(session, model, root=1)
    return [t.numpy().tolist() for t in (*model.state_dict().values(),)]


def swapped(rank: int) -> torch.nn.Module:
    """Equally large layers, which stand in another order on each rank."""
    model = torch.nn.Module()
    for name in ("a", "b") if rank == 0 else ("b", "a"):
        setattr(model, name, torch.nn.Linear(8, 8, bias=False))
    model.forward = lambda x: model.a(model.b(x))
    return model


def with_arena_of_another_order(session):
    """How making it ended, on a rank whose layers stand otherwise, and on the other."""
    try:
        named = swapped(session.rank).named_parameters()
        headrace.torch.GradientArena(session, named)
    except headrace.Mismatch as error:
        return str(error)
    return "no error"


class Arena(ServiceCase):
    @classmethod
    def setUpClass(cls):
        torch.set_num_threads(1)  # before forking: other threads do not survive it
        super().setUpClass()

    def check_like_alone(self, function, ranks):
        results = run_ranks(self.service, ranks, function)
        reference = alone(ranks)
        for parameters, _ in results:
            for one, other, expected in zip(parameters, results[0][0], reference, strict=True):
                self.assertEqual(one.tobytes(), other.tobytes())
                torch.testing.assert_close(
                    torch.from_numpy(one), expected, rtol=1e-4, atol=1e-6
                )
        return [copies for _, copies in results]

    def test_equally_large_layers_in_another_order_are_refused_by_name(self):
        for text in run_ranks(self.service, 2, with_arena_of_another_order):
            self.assertIn("a.weight", text)
            self.assertIn("b.weight", text)
            self.assertIn("rank 1", text)

    def test_trains_like_one_process_without_copies(self):
        self.assertEqual(self.check_like_alone(with_arena, 3), [0, 0, 0])

    def test_trains_alike_when_the_optimizer_takes_the_views_away(self):
        parameters = len(list(network().parameters()))
        self.assertEqual(
            self.check_like_alone(with_gradients_set_to_none, 2), [12 * parameters] * 2
        )

    def test_counts_unused_parameters_as_zeros(self):
        for gradients in run_ranks(self.service, 2, with_unused_parameters):
            for step, values in enumerate(gradients):
                expected = [0.0, 0.0, 0.0]
                for rank in range(2):
                    expected[(rank + step) % 3] += 0.5
                self.assertEqual(values, expected)

    def test_accumulates_micro_batches_before_it_posts(self):
        for gradient, posted, twice in run_ranks(self.service, 2, with_micro_batches):
            self.assertEqual(posted, 1)
            self.assertIn("no_sync", twice)
            self.assertGreaterEqual(gradient, 3)

    def test_broadcasts_parameters_and_buffers_of_any_layout(self):
        first, second = run_ranks(self.service, 2, with_broadcast)
        self.assertEqual(first, second)


def with_ddp(rank, world_size, port, path, die_at=None, compress=None):
    """Trains with DDP; path None: gloo's own all-reduce."""
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.distributed.init_process_group("gloo", rank=rank, world_size=world_size)
    model = torch.nn.parallel.DistributedDataParallel(network(), bucket_cap_mb=0.01)
    if path is None:
        return [p.numpy() for p in train(model, rank, world_size)]
    with headrace.init("ddp", rank, world_size, path) as session:
        if compress is None:
            model.register_comm_hook(session, headrace.torch.ddp_hook)
        else:
            state = headrace.torch.CompressedState(session, compress, model)
            model.register_comm_hook(state, headrace.torch.compressed_hook)
        parameters = train(model, rank, world_size)
        if compress is not None:
            assert state.layout is not None, "the last iterations went by the plan"
        if die_at is not None:
            if rank == die_at:
                os.kill(os.getpid(), 9)
            began = time.monotonic()
            try:
                train(model, rank, world_size)
            except RuntimeError as error:
                return str(error), time.monotonic() - began
        return [p.numpy() for p in parameters]


def with_ddp_of_another_order(rank, port, path, names):
    """How the first backward ended."""
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(swapped(rank))
    with headrace.init("ddp", rank, 2, path) as session:
        state = headrace.torch.DdpState(session, model) if names else session
        model.register_comm_hook(state, headrace.torch.ddp_hook)
        try:
            model(torch.ones(1, 8)).sum().backward()
        except RuntimeError as error:
            return str(error)
        except headrace.Error as error:
            return str(error)
    return "no error"


@unittest.skipUnless(
    torch.distributed.is_available(), "torch was built without distributed"
)
class DdpHook(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        torch.set_num_threads(1)

    def test_trains_to_gloos_bits(self):
        def run(path, compress=None):
            port = free_port()
            ranks = [Rank(with_ddp, r, 2, port, path, None, compress) for r in range(2)]
            return [rank.result() for rank in ranks]

        with Service() as service:
            # Within a node nothing is encoded.
            for hook in (None, "int8"):
                for hooked, plain in zip(run(service.socket, hook), run(None), strict=True):
                    for one, other in zip(hooked, plain, strict=True):
                        # The sum of two addends has no order, so even the bits agree.
                        self.assertEqual(one.tobytes(), other.tobytes())

    def test_equally_large_layers_in_another_order_end_backward_by_name(self):
        with Service() as service:
            for names in (True, False):
                with self.subTest(names=names):
                    port = free_port()
                    arguments = (port, service.socket, names)
                    ranks = [
                        Rank(with_ddp_of_another_order, r, *arguments) for r in range(2)
                    ]
                    texts = [rank.result() for rank in ranks]
                    for text in texts:
                        # Without the model nobody knows how they are called.
                        self.assertEqual("a.weight" in text, names, text)
                        self.assertEqual("b.weight" in text, names, text)

    def test_ends_backward_with_the_services_words_when_a_rank_dies(self):
        port = free_port()
        with Service() as service:
            ranks = [Rank(with_ddp, r, 2, port, service.socket, 1) for r in range(2)]
            text, seconds = ranks[0].result()
            ranks[1].end()
            self.assertIn("rank 1", text)
            self.assertIn(str(ranks[1].pid), text)
            self.assertLess(seconds, SOON_S)


if __name__ == "__main__":
    main()
