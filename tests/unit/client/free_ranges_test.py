"""Which free range a request takes, and how what comes back joins its neighbours."""

import itertools
import random
import unittest

try:
    from headrace.torch.free_ranges import FreeRanges
except ImportError as error:
    raise SystemExit(77) from error


class Free(unittest.TestCase):
    def test_a_request_takes_the_smallest_range_that_holds_it(self):
        free = FreeRanges()
        free.add(1, 100)
        free.add(2, 60)
        self.assertEqual(free.take(50), (2, 0))
        self.assertEqual(free.take(50), (1, 0))
        self.assertEqual(free.take(10), (2, 50))
        self.assertIsNone(free.take(51))
        self.assertEqual((free.free, free.total), (50, 160))

    def test_neighbours_join_in_whatever_order_they_come_back(self):
        for order in ((0, 1, 2, 3), (3, 2, 1, 0), (0, 2, 1, 3), (1, 3, 0, 2)):
            free = FreeRanges()
            free.add(7, 40)
            for index in range(4):
                self.assertEqual(free.take(10), (7, 10 * index))
            self.assertEqual(free.unused(), [])
            for index in order:
                free.give_back(7, 10 * index, 10)
            self.assertEqual(free.unused(), [7])
            self.assertEqual(free.take(40), (7, 0))

    def test_ranges_of_two_pieces_do_not_join(self):
        free = FreeRanges()
        free.add(1, 10)
        free.add(2, 10)
        self.assertIsNone(free.take(20))
        self.assertEqual(free.unused(), [1, 2])
        free.remove(1)
        self.assertEqual(free.take(10), (2, 0))
        self.assertIsNone(free.take(10))

    def test_what_is_taken_never_overlaps_and_everything_comes_back(self):
        chance = random.Random(3)
        free, taken = FreeRanges(), []
        for piece in range(3):
            free.add(piece, 1000)
        for _ in range(3000):
            size = chance.randrange(1, 200)
            found = free.take(size)
            if found is not None:
                taken.append((*found, size))
            if found is None or chance.random() < 0.4:
                free.give_back(*taken.pop(chance.randrange(len(taken))))
            ordered = sorted(taken)
            for (piece, offset, size), (other, begin, _) in itertools.pairwise(ordered):
                self.assertTrue(piece != other or offset + size <= begin)
            self.assertEqual(free.free, 3000 - sum(size for _, _, size in taken))
        for each in taken:
            free.give_back(*each)
        self.assertEqual(sorted(free.unused()), [0, 1, 2])


if __name__ == "__main__":
    unittest.main()
