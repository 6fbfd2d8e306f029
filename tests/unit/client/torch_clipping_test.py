"""ScheduledOptimizer's clip_norm against torch's own clipping of the same averages, to the bit."""

import headrace.torch
import torch
from ranks import ServiceCase, run_ranks
from torch_ranks import main
from torch_scheduled import batches, both_ways, loss_of


def scheduled(optimizer):
    return isinstance(optimizer, torch.optim.Optimizer)


def clipping_late(session, norm_type):
    """A layer that a rank does not use in one step and no rank in another; one in another order."""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.last = torch.nn.Linear(32, 4)
            self.first = torch.nn.Linear(8, 32)
            self.rarely = torch.nn.Linear(32, 32)
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            hidden = self.first(x).tanh()
            if self.calls % 3 == 0 or (self.calls % 3 == 1 and session.rank == 0):
                hidden = hidden + self.rarely(hidden)
            return self.last(hidden)

    def make():
        torch.manual_seed(6)
        model = Model()
        return model, torch.optim.AdamW(model.parameters(), 0.01)

    def train(model, optimizer, session):
        norms = []
        for step, batch in enumerate(batches(session)):
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            if scheduled(optimizer) and step > 0:
                norms.append(optimizer.grad_norm.item())  # of the step that this pass has made
            loss.backward()
            if not scheduled(optimizer):
                optimizer.average()
                norms.append(
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1, norm_type).item()
                )
            optimizer.step()
        if scheduled(optimizer):
            optimizer.synchronize()
            norms.append(optimizer.grad_norm.item())
        return norms

    return both_ways(session, make, train, clip_norm=0.1, clip_norm_type=norm_type)


class Clipping(ServiceCase):
    def test_with_clipping_behind_the_next_forward_pass(self):
        for norm_type in (2.0, 3.0, float("inf")):
            with self.subTest(norm_type):
                answers = run_ranks(
                    self.service, 2, clipping_late, norm_type, job=f"clip-late-{norm_type}"
                )
                for scheduled_bits, expected in answers:
                    self.assertEqual(scheduled_bits, expected)
                self.assertEqual(answers[0], answers[1])

    def test_clips_by_no_norm_that_is_none(self):
        with self.assertRaisesRegex(ValueError, "clip_norm=0"):
            headrace.torch.clipping.Clipping(0)


if __name__ == "__main__":
    main()
