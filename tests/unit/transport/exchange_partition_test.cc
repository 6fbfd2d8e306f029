// How transfers are cut: every element in one piece, every owner with its share.
#include "transport/exchange/partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace headrace::transport {
namespace {

CollectiveSpec FloatsOf(std::uint64_t count) {
  return {.kind = Collective::kAllReduce, .dtype = DType::kFloat32, .count = count};
}

constexpr std::size_t kPieceSize = std::size_t{256} << 10;

TEST(Partition, CoversEveryElementOnceInAlignedPieces) {
  for (const DType dtype : {DType::kUInt8, DType::kFloat16, DType::kFloat32, DType::kFloat64}) {
    for (const std::uint64_t count : {0U, 1U, 4095U, 16384U, 16385U, 1000003U, 50000000U}) {
      const CollectiveSpec spec{.kind = Collective::kAllReduce, .dtype = dtype, .count = count};
      Partition partition(spec, Pattern::kScatter, 9, 5, 0, kPieceSize);
      std::uint64_t end = 0;
      ASSERT_GE(partition.pieces_count(), 1U);
      for (std::uint32_t piece = 0; piece < partition.pieces_count(); ++piece) {
        const Partition::Range range = partition.PieceRange(piece);
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

// However transfers are cut, and in whatever codec they cross.
TEST(Partition, GivesAPlaceToTheSameServerInEveryTransfer) {
  constexpr std::uint64_t kPlaces = 100'000;
  for (const std::size_t piece_size : {std::size_t{4096}, std::size_t{96} << 10}) {
    std::vector<std::uint32_t> owners(kPlaces, UINT32_MAX);
    std::vector<std::uint64_t> owned(5);
    for (const Codec codec : {Codec(Codec::kNone), Codec(Codec::kInt8), Codec(Codec::kTopK)}) {
      for (const std::uint64_t first : {0U, 1U, 255U, 16384U, 50001U}) {
        CollectiveSpec spec = FloatsOf(kPlaces - first);
        spec.codec = codec;
        spec.place = first + 1;
        const Partition partition(spec, Pattern::kServed, first * 77, 2, 3, piece_size);
        std::uint64_t end = 0;
        for (std::uint32_t piece = 0; piece < partition.pieces_count(); ++piece) {
          const Partition::Range range = partition.PieceRange(piece);
          ASSERT_EQ(range.begin, end);
          ASSERT_LE(range.count * sizeof(float), piece_size);
          end += range.count;
          const std::uint32_t owner = partition.Owner(piece);
          owned.at(owner) += range.count;
          for (std::uint64_t i = range.begin; i < end; ++i) {
            std::uint32_t& known = owners[first + i];
            if (known == UINT32_MAX) known = owner;
            ASSERT_EQ(known, owner) << "place " << first + i;
          }
        }
        ASSERT_EQ(end, spec.count);
      }
    }
    for (const std::uint32_t server : {2U, 3U, 4U}) EXPECT_GT(owned[server], 0U);
  }
}

TEST(Partition, GivesOwnersEqualSharesAndSeveralPiecesOfALargeTransfer) {
  Partition partition(FloatsOf(5 << 20), Pattern::kScatter, 0, 5, 0, kPieceSize);
  std::vector<std::uint32_t> owned(5);
  for (std::uint32_t piece = 0; piece < partition.pieces_count(); ++piece)
    ++owned.at(partition.Owner(piece));
  for (const std::uint32_t pieces : owned) EXPECT_GE(pieces, kPiecesPerOwner);
  EXPECT_LE(*std::ranges::max_element(owned) - *std::ranges::min_element(owned), 1U);
}

TEST(Partition, GivesEachOwnerSomeOfAHalfAndTheSameOfBoth) {
  for (const std::uint64_t count : {0U, 1U, 100U, 4099U, 100000U}) {
    const CollectiveSpec scatter{
        .kind = Collective::kReduceScatter, .dtype = DType::kFloat32, .count = count};
    CollectiveSpec gather = scatter;
    gather.kind = Collective::kAllGather;
    const Partition first(scatter, Pattern::kScatter, 5, 4, 0, kPieceSize);
    const Partition second(gather, Pattern::kScatter, 8, 4, 0, kPieceSize);
    ASSERT_EQ(first.pieces_count(), second.pieces_count());
    std::vector<std::uint32_t> owned(4);
    std::uint64_t end = 0;
    for (std::uint32_t piece = 0; piece < first.pieces_count(); ++piece) {
      ASSERT_EQ(first.Owner(piece), second.Owner(piece));
      ASSERT_EQ(first.PieceRange(piece).begin, end);
      end += first.PieceRange(piece).count;
      ++owned.at(first.Owner(piece));
    }
    EXPECT_EQ(end, count);
    EXPECT_GE(*std::ranges::min_element(owned), 1U);
  }
}

TEST(Partition, LetsSmallTransfersTakeTurnsAmongOwners) {
  std::vector<std::uint32_t> owned(3);
  for (std::uint64_t position = 0; position < 30; ++position) {
    Partition partition(FloatsOf(100), Pattern::kServed, position, 4, 3, kPieceSize);
    ASSERT_EQ(partition.pieces_count(), 1U);
    ++owned.at(partition.Owner(0) - 4);
  }
  EXPECT_EQ(owned, (std::vector<std::uint32_t>{10, 10, 10}));
}

// Names of transfers may leave room for other digits, and grow by powers of two.
TEST(Partition, LetsSmallTransfersTakeTurnsWhicheverDigitOfTheirPositionsGrows) {
  for (const std::uint32_t shift : {0U, 16U, 32U, 48U}) {
    for (const std::uint32_t owners : {2U, 4U, 8U}) {
      std::vector<std::uint32_t> owned(owners);
      for (std::uint64_t number = 0; number < 64; ++number) {
        const std::uint64_t position = (std::uint64_t{1} << 63 | number << shift) + 5;
        const Partition partition(FloatsOf(100), Pattern::kScatter, position, owners, 0,
                                  kPieceSize);
        ++owned.at(partition.Owner(0));
      }
      EXPECT_EQ(owned, std::vector<std::uint32_t>(owners, 64 / owners)) << "shift " << shift;
    }
  }
}

TEST(Partition, GivesTheRootOfABroadcastNothing) {
  for (std::uint32_t root = 0; root < 4; ++root) {
    const CollectiveSpec spec{.kind = Collective::kBroadcast, .root = root, .count = 1 << 20};
    Partition partition(spec, Pattern::kFromRootByOwners, 2, 4, 0, kPieceSize);
    for (std::uint32_t piece = 0; piece < partition.pieces_count(); ++piece) {
      EXPECT_NE(partition.Owner(piece), root);
      EXPECT_LT(partition.Owner(piece), 4U);
    }
  }
}

TEST(Partition, FindsTheNextPieceOfAnOwner) {
  Partition partition(FloatsOf(5 << 20), Pattern::kServed, 7, 4, 3, kPieceSize);
  for (std::uint32_t member = 4; member < 7; ++member) {
    std::uint32_t next = partition.NextOwned(0, member);
    for (std::uint32_t piece = 0; piece < partition.pieces_count(); ++piece) {
      if (partition.Owner(piece) != member) continue;
      EXPECT_EQ(next, piece);
      next = partition.NextOwned(piece + 1, member);
    }
    EXPECT_GE(next, partition.pieces_count());
  }
}

}  // namespace
}  // namespace headrace::transport
