"""client/examples/digits.py against a real service: ranks learn what one process does."""

import contextlib
import io
import os
import re
import subprocess
import sys
import unittest

from ranks import Service
from support.service import ROOT, client_environment

EXAMPLES = os.path.join(ROOT, "client", "examples")
RANKS = 2
TOLERANCE = 2e-4  # the program prints four digits, and sums have another order

sys.path.append(EXAMPLES)
sys.dont_write_bytecode = True
import digits


def start(service: Service, rank: int) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-B", os.path.join(EXAMPLES, "digits.py"), "--epochs", "1"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=client_environment(
            HEADRACE_SOCKET=service.socket, HEADRACE_JOB="digits",
            RANK=str(rank), WORLD_SIZE=str(RANKS), LOCAL_RANK=str(rank),
            LOCAL_WORLD_SIZE=str(RANKS),
        ),
    )  # fmt: skip


class DigitsExample(unittest.TestCase):
    def test_ranks_learn_what_one_process_learns(self) -> None:
        with Service() as service:
            ranks = [start(service, rank) for rank in range(RANKS)]
            try:
                said = [rank.communicate(timeout=120)[0] for rank in ranks]
            finally:
                for rank in ranks:
                    rank.kill()
                    rank.wait()
        self.assertEqual([rank.returncode for rank in ranks], [0, 0], "\n".join(said))
        self.assertEqual(said[1], "")

        digits.torch.set_num_threads(1)
        samples, model = digits.Digits(RANKS), digits.make_model()
        with contextlib.redirect_stdout(io.StringIO()):
            digits.train(model, samples, 1, 0, 1, model.zero_grad, lambda: None)
        loss, accuracy = digits.evaluate(model, samples)
        found = re.search(r"^test loss ([\d.]+), test accuracy ([\d.]+)%$", said[0], re.MULTILINE)
        self.assertIsNotNone(found, said[0])
        self.assertAlmostEqual(float(found[1]), loss, delta=TOLERANCE)
        self.assertAlmostEqual(float(found[2]) / 100, accuracy, delta=0.01)
        self.assertIn(f"step {samples.steps} of {samples.steps}, loss ", said[0])


if __name__ == "__main__":
    unittest.main()
