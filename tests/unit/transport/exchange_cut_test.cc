// How transfers are cut: every element in one piece, every owner with its share.
#include "transport/exchange/cut.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "tests/contract/scattered.h"

namespace headrace::transport {
namespace {

Shape FloatsOf(std::uint64_t count) {
  return {.kind = Collective::kAllReduce, .dtype = DType::kFloat32, .count = count};
}

constexpr std::size_t kPieceSize = std::size_t{256} << 10;

TEST(Cut, CoversEveryElementOnceInAlignedPieces) {
  for (const DType dtype : {DType::kUInt8, DType::kFloat16, DType::kFloat32, DType::kFloat64}) {
    for (const std::uint64_t count : {0U, 1U, 4095U, 16384U, 16385U, 1000003U, 50000000U}) {
      const Shape shape{.kind = Collective::kAllReduce, .dtype = dtype, .count = count};
      Cut cut(shape, Pattern::kScatter, 9, 5, 0, kPieceSize);
      std::uint64_t end = 0;
      ASSERT_GE(cut.pieces_count(), 1U);
      for (std::uint32_t piece = 0; piece < cut.pieces_count(); ++piece) {
        const Cut::Range range = cut.PieceRange(piece);
        ASSERT_EQ(range.begin, end);
        ASSERT_TRUE(range.count > 0 || count == 0);
        ASSERT_EQ(range.begin * SizeOf(dtype) % kPieceAlignment, 0U);
        ASSERT_LE(range.count * SizeOf(dtype), kPieceSize);
        end += range.count;
      }
      ASSERT_EQ(end, count);
    }
  }
}

TEST(Cut, GivesOwnersEqualSharesAndSeveralPiecesOfALargeTransfer) {
  Cut cut(FloatsOf(5 << 20), Pattern::kScatter, 0, 5, 0, kPieceSize);
  std::vector<std::uint32_t> owned(5);
  for (std::uint32_t piece = 0; piece < cut.pieces_count(); ++piece) ++owned.at(cut.Owner(piece));
  for (const std::uint32_t pieces : owned) EXPECT_GE(pieces, kPiecesPerOwner);
  EXPECT_LE(*std::ranges::max_element(owned) - *std::ranges::min_element(owned), 1U);
}

TEST(Cut, LetsSmallTransfersTakeTurnsAmongOwners) {
  std::vector<std::uint32_t> owned(3);
  for (std::uint64_t position = 0; position < 30; ++position) {
    Cut cut(FloatsOf(100), Pattern::kServed, position, 4, 3, kPieceSize);
    ASSERT_EQ(cut.pieces_count(), 1U);
    ++owned.at(cut.Owner(0) - 4);
  }
  EXPECT_EQ(owned, (std::vector<std::uint32_t>{10, 10, 10}));
}

TEST(Cut, GivesTheRootOfABroadcastNothing) {
  for (std::uint32_t root = 0; root < 4; ++root) {
    const Shape shape{.kind = Collective::kBroadcast, .root = root, .count = 1 << 20};
    Cut cut(shape, Pattern::kFromRootByOwners, 2, 4, 0, kPieceSize);
    for (std::uint32_t piece = 0; piece < cut.pieces_count(); ++piece) {
      EXPECT_NE(cut.Owner(piece), root);
      EXPECT_LT(cut.Owner(piece), 4U);
    }
  }
}

TEST(Cut, FindsTheNextPieceOfAnOwner) {
  Cut cut(FloatsOf(5 << 20), Pattern::kServed, 7, 4, 3, kPieceSize);
  for (std::uint32_t member = 4; member < 7; ++member) {
    std::uint32_t next = cut.NextOwned(0, member);
    for (std::uint32_t piece = 0; piece < cut.pieces_count(); ++piece) {
      if (cut.Owner(piece) != member) continue;
      EXPECT_EQ(next, piece);
      next = cut.NextOwned(piece + 1, member);
    }
    EXPECT_GE(next, cut.pieces_count());
  }
}

// ---- memory of several runs ----

// The runs of a network whose layers have a large matrix and two short vectors each.
std::vector<std::uint64_t> LayerCounts(std::size_t layers_count, std::uint64_t matrix) {
  std::vector<std::uint64_t> counts;
  for (std::size_t layer = 0; layer < layers_count; ++layer) {
    counts.insert(counts.end(), {matrix + 17 * layer, 64, 65});
  }
  return counts;
}

std::vector<std::vector<std::uint64_t>> AllCounts() {
  return {{1},
          {1000003},
          {5, 1, 70000, 3, 65536, 65537, 2},
          RunCounts(600, 9, 1),
          RunCounts(kRunsMax, 30000, 2),
          LayerCounts(50, 9001)};
}

// Where element `element` of the runs lies, in the slowest and plainest way.
std::uint64_t OffsetOf(const std::vector<Run>& runs, std::uint64_t element, DType dtype) {
  for (const Run& run : runs) {
    if (element < run.count) return run.offset + element * SizeOf(dtype);
    element -= run.count;
  }
  ADD_FAILURE() << "the runs have no such element";
  return 0;
}

TEST(CutOfRuns, CoversEveryElementOnceInPiecesOfOneRunEach) {
  for (const DType dtype : {DType::kUInt8, DType::kBFloat16, DType::kFloat64}) {
    for (const auto& counts : AllCounts()) {
      const Scattered place(dtype, counts, 7);
      for (const std::uint64_t skip : {std::uint64_t{0}, place.count() / 3, place.count() - 1}) {
        const std::uint64_t count = (place.count() - skip + 1) / 2;
        const Shape shape{.kind = Collective::kAllReduce, .dtype = dtype, .count = count};
        Cut cut(shape, Pattern::kScatter, 1, 4, 0, kPieceSize, place.runs(), skip);
        std::uint64_t end = 0;
        for (std::uint32_t piece = 0; piece < cut.pieces_count(); ++piece) {
          const Cut::Range range = cut.PieceRange(piece);
          ASSERT_EQ(range.begin, end);
          ASSERT_GT(range.count, 0U);
          ASSERT_LE(range.count * SizeOf(dtype), kPieceSize);
          ASSERT_EQ(range.offset, OffsetOf(place.runs(), skip + range.begin, dtype));
          const std::uint64_t last = range.begin + range.count - 1;
          ASSERT_EQ(range.offset + (range.count - 1) * SizeOf(dtype),
                    OffsetOf(place.runs(), skip + last, dtype));
          end += range.count;
        }
        ASSERT_EQ(end, count);
      }
    }
  }
}

TEST(CutOfRuns, AnswersAlikeInWhateverOrderItIsAsked) {
  const Scattered place(DType::kFloat32, LayerCounts(100, 40000), 3);
  const Shape shape = FloatsOf(place.count() - 100);
  Cut in_order(shape, Pattern::kScatter, 1, 3, 0, kPieceSize, place.runs(), 100);
  std::mt19937 random(1);
  Cut jumping = in_order;
  for (std::uint32_t piece = 0; piece < in_order.pieces_count(); ++piece) {
    const auto elsewhere = static_cast<std::uint32_t>(random() % in_order.pieces_count());
    jumping.PieceRange(elsewhere);
    const Cut::Range range = jumping.PieceRange(piece);
    const Cut::Range expected = in_order.PieceRange(piece);
    ASSERT_EQ(range.begin, expected.begin);
    ASSERT_EQ(range.count, expected.count);
    ASSERT_EQ(range.offset, expected.offset);
    ASSERT_EQ(jumping.Owner(piece), in_order.Owner(piece));
  }
}

// Turns by pieces would give one of three owners all matrices, and the others the vectors.
TEST(CutOfRuns, GivesOwnersEqualSharesOfTheBytesWhateverTheRunsAre) {
  for (const auto& counts : AllCounts()) {
    for (const std::uint32_t owners : {2U, 3U, 4U, 8U}) {
      const Scattered place(DType::kFloat32, counts, 9);
      Cut cut(FloatsOf(place.count()), Pattern::kScatter, 0, owners, 0, kPieceSize, place.runs());
      std::vector<std::uint64_t> owned(owners);
      std::uint64_t piece_max = 0;
      for (std::uint32_t piece = 0; piece < cut.pieces_count(); ++piece) {
        owned.at(cut.Owner(piece)) += cut.PieceRange(piece).count;
      }
      Cut whole(FloatsOf(place.count()), Pattern::kScatter, 0, owners, 0, kPieceSize);
      piece_max = whole.PieceRange(0).count;
      EXPECT_LE(*std::ranges::max_element(owned) - *std::ranges::min_element(owned), piece_max);
    }
  }
}

TEST(CutOfRuns, CutsOneRunLikeMemoryOfOnePieceForServersToo) {
  const transport::Run run{.offset = 400, .count = 6 << 20};
  for (const Pattern pattern : {Pattern::kScatter, Pattern::kServed}) {
    Cut whole(FloatsOf(5 << 20), pattern, 7, 4, 3, kPieceSize);
    Cut cut(FloatsOf(5 << 20), pattern, 7, 4, 3, kPieceSize, {&run, 1}, 1000);
    ASSERT_EQ(cut.pieces_count(), whole.pieces_count());
    for (std::uint32_t piece = 0; piece < cut.pieces_count(); ++piece) {
      const Cut::Range range = cut.PieceRange(piece);
      ASSERT_EQ(range.begin, whole.PieceRange(piece).begin);
      ASSERT_EQ(range.count, whole.PieceRange(piece).count);
      ASSERT_EQ(range.offset, whole.PieceRange(piece).offset + 400 + 1000 * sizeof(float));
      ASSERT_EQ(cut.Owner(piece), whole.Owner(piece));
      ASSERT_EQ(cut.NextOwned(piece, 5), whole.NextOwned(piece, 5));
    }
  }
}

TEST(RunWalk, LeavesOutWhatIsSkippedAndWhatIsEmpty) {
  const transport::Run runs[] = {{.offset = 80, .count = 3},
                                 {.offset = 0, .count = 0},
                                 {.offset = 40, .count = 4},
                                 {.offset = 8, .count = 2}};
  RunWalk walk(DType::kInt64, 3, runs, 5);
  ASSERT_FALSE(walk.over());
  EXPECT_EQ(walk.stretch().begin, 0U);
  EXPECT_EQ(walk.stretch().end, 2U);
  EXPECT_EQ(walk.stretch().offset, 40U + 2 * 8);
  EXPECT_EQ(walk.OffsetOf(1), 40U + 3 * 8);
  walk.Next();
  EXPECT_EQ(walk.stretch().begin, 2U);
  EXPECT_EQ(walk.stretch().end, 3U);
  EXPECT_EQ(walk.stretch().offset, 8U);
  walk.Next();
  EXPECT_TRUE(walk.over());
}

TEST(RunWalk, IsOverAtOnceWhereThereIsNothing) {
  EXPECT_TRUE(RunWalk().over());
  EXPECT_TRUE(RunWalk(DType::kFloat32, 0, {}, 0).over());
  const transport::Run runs[] = {{.offset = 0, .count = 4}};
  EXPECT_TRUE(RunWalk(DType::kFloat32, 0, runs, 4).over());
}

}  // namespace
}  // namespace headrace::transport
