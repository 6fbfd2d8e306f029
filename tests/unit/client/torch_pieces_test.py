"""How large the pieces are in which a rank that joins gets the others' state."""

from __future__ import annotations

import unittest

from headrace.torch.handover import PieceSize

MIB = 1 << 20


class Sizes(unittest.TestCase):
    def follow(self, pieces: PieceSize, sent_per_s: float, copied_per_s: float, count: int) -> None:
        """So many pieces of the size asked for, over a link and a memory of these bytes a second."""
        for _ in range(count):
            size = pieces.bytes
            pieces.follow(size, size / sent_per_s, size / copied_per_s, iteration_s=1.0)

    def test_a_piece_becomes_what_the_link_carries_in_its_share_of_an_iteration(self) -> None:
        for rate in (400 * MIB, 40 * MIB):
            pieces = PieceSize(128 * MIB)
            self.follow(pieces, rate, 1e12, 10)
            self.assertAlmostEqual(pieces.bytes / (PieceSize.SENT_SHARE * rate), 1, 3)

    def test_what_the_donor_copies_bounds_it_too(self) -> None:
        pieces = PieceSize(512 * MIB)
        self.follow(pieces, 1e12, 1000 * MIB, 10)
        self.assertAlmostEqual(pieces.bytes / (PieceSize.COPIED_SHARE * 1000 * MIB), 1, 3)

    def test_it_stays_between_its_bounds(self) -> None:
        pieces = PieceSize(64 * MIB)
        self.assertEqual(pieces.bytes, 8 * MIB)
        self.follow(pieces, 1e12, 1e12, 20)
        self.assertEqual(pieces.bytes, 64 * MIB)  # as much as the gradients
        self.follow(pieces, 1.0, 1e12, 40)
        self.assertEqual(pieces.bytes, PieceSize.MIN)
        pieces = PieceSize(1 << 40)
        self.follow(pieces, 1e15, 1e15, 20)
        self.assertEqual(pieces.bytes, PieceSize.MAX)

    def test_there_is_an_end_where_each_piece_takes_long(self) -> None:
        pieces = PieceSize(1 << 30, 3 << 30)
        for _ in range(40):
            pieces.follow(pieces.bytes, 10.0, 10.0, 1.0)
        self.assertEqual(pieces.bytes, (3 << 30) // PieceSize.COUNT_MAX)

    def test_it_changes_by_a_factor_at_a_time(self) -> None:
        pieces = PieceSize(64 * MIB)
        pieces.follow(pieces.bytes, 1e-6, 1e-6, 1.0)
        self.assertEqual(pieces.bytes, 16 * MIB)
        pieces.follow(pieces.bytes, 100.0, 1e-6, 1.0)
        self.assertEqual(pieces.bytes, 8 * MIB)

    def test_a_piece_smaller_than_asked_for_makes_none_smaller_that_was_quick(self) -> None:
        pieces = PieceSize(64 * MIB)
        pieces.follow(4096, 1e-3, 1e-6, 1.0)
        self.assertEqual(pieces.bytes, 8 * MIB)

    def test_one_larger_than_asked_for_counts_as_what_it_was(self) -> None:
        pieces = PieceSize(64 * MIB)
        pieces.follow(80 * MIB, 1.5, 1e-6, 1.0)  # ten times too long
        self.assertAlmostEqual(pieces.bytes / MIB, 8, 3)


if __name__ == "__main__":
    unittest.main(verbosity=2)
