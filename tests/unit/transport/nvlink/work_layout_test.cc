// Who does what: each byte of a transfer is some GPU's, and one's only.
#include "transport/nvlink/work_layout.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace headrace::transport {
namespace {

constexpr std::size_t kPieceSize = std::size_t{256} << 10;

// Memory is never touched here: a member's is told by its number.
std::byte* Memory(std::uint32_t member) {
  return reinterpret_cast<std::byte*>(std::uintptr_t{member + 1} << 40);
}

Transfer Of(Collective kind, std::uint64_t count, const std::vector<int>& devices) {
  Transfer transfer{.kind = kind, .dtype = DType::kFloat32, .count = count};
  transfer.members_count = static_cast<std::uint32_t>(devices.size());
  for (std::uint32_t i = 0; i < devices.size(); ++i) {
    transfer.members[i] = Memory(i);
    transfer.devices[i] = static_cast<std::int8_t>(devices[i]);
  }
  transfer.output = Memory(60);
  return transfer;
}

struct Given {
  std::uint64_t piece;
  std::int8_t gpu;
  GpuRange span;
};

std::vector<Given> All(const Transfer& transfer, std::size_t piece_size = kPieceSize) {
  const WorkLayout layout(transfer, piece_size);
  std::vector<Given> given;
  for (std::uint64_t piece = 0; piece < layout.pieces_count(); ++piece) {
    for (std::uint32_t place = 0; place < layout.gpus_count(); ++place) {
      layout.ForEachRange(transfer, piece, place, [&](const GpuRange& span) {
        given.push_back({piece, layout.gpu(place), span});
      });
    }
  }
  return given;
}

// Bytes written, by output and offset, with who reads what for it; fails where one is written
// twice.
using Written = std::map<std::pair<const std::byte*, std::uint64_t>, std::uint32_t>;
Written WrittenBy(const Transfer& transfer, std::size_t piece_size) {
  const WorkLayout layout(transfer, piece_size);
  Written written;
  for (std::uint64_t piece = 0; piece < layout.pieces_count(); ++piece) {
    for (std::uint32_t place = 0; place < layout.gpus_count(); ++place) {
      const Buffers buffers = layout.BuffersOf(transfer, place);
      layout.ForEachRange(transfer, piece, place, [&](const GpuRange& span) {
        for (std::uint32_t o = span.first_output; o < span.first_output + span.outputs_count; ++o) {
          const bool packed = (buffers.packed_outputs >> o & 1U) != 0;
          const std::uint64_t offset = packed ? span.packed_offset : span.offset;
          for (std::uint64_t i = 0; i < span.size; i += 4) {
            const auto [at, fresh] =
                written.emplace(std::pair{buffers.outputs[o], offset + i}, span.first_input);
            EXPECT_TRUE(fresh) << "byte " << offset + i << " is written twice";
          }
        }
      });
    }
  }
  return written;
}

TEST(WorkLayout, GivesEveryGpuAnEqualShareOfALargeSum) {
  const auto given = All(Of(Collective::kAllReduce, kPieceSize / 4, {0, 1, 2, 3}));
  ASSERT_EQ(given.size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(given[i].gpu, static_cast<int>(i));
    EXPECT_EQ(given[i].span.size, kPieceSize / 4);
    EXPECT_EQ(given[i].span.offset, i * kPieceSize / 4);
    EXPECT_EQ(given[i].span.outputs_count, 4U);
  }
}

TEST(WorkLayout, CountsAGpuOnceHoweverManyMembersItHas) {
  const Transfer transfer = Of(Collective::kAllReduce, kPieceSize / 4, {3, 1, 3, 1, 1});
  const WorkLayout layout(transfer, kPieceSize);
  ASSERT_EQ(layout.gpus_count(), 2U);
  EXPECT_EQ(layout.gpu(0), 3);
  EXPECT_EQ(layout.gpu(1), 1);
  EXPECT_EQ(layout.BuffersOf(transfer, 1).inputs_count, 5U) << "one launch reads all";
}

TEST(WorkLayout, CallsNoSecondGpuForLittleAndNotAlwaysTheSame) {
  std::set<std::int8_t> called;
  for (std::uint64_t token = 0; token < 4; ++token) {
    Transfer transfer = Of(Collective::kAllReduce, 1000, {0, 1, 2, 3});
    transfer.token = token;
    std::uint64_t size = 0;
    std::set<std::int8_t> of_this;
    for (const Given& given : All(transfer)) {
      size += given.span.size;
      of_this.insert(given.gpu);
    }
    EXPECT_EQ(size, 4000U);
    EXPECT_EQ(of_this.size(), 1U);
    called.insert(of_this.begin(), of_this.end());
  }
  EXPECT_EQ(called.size(), 4U);
}

TEST(WorkLayout, KeepsBordersBetweenSharesAtWholeUnits) {
  for (const std::uint64_t count : {32769U, 50001U, 65535U}) {
    for (const Given& given : All(Of(Collective::kAllReduce, count, {0, 1, 2}))) {
      EXPECT_EQ(given.span.offset % kShareAlignment, 0U) << count;
    }
  }
}

TEST(WorkLayout, LetsTheOwnerOfAPartSumItAndAllAtTheSameTime) {
  const auto given = All(Of(Collective::kReduceScatter, kPieceSize, {1, 0, 1}), kPieceSize);
  std::map<std::uint64_t, std::set<std::uint32_t>> outputs_of_piece;
  for (const Given& g : given) {
    EXPECT_EQ(g.span.outputs_count, 1U);
    EXPECT_EQ(g.gpu, g.span.first_output == 1 ? 0 : 1);
    outputs_of_piece[g.piece].insert(g.span.first_output);
  }
  EXPECT_GT(outputs_of_piece.size(), 1U);
  for (const auto& [piece, outputs] : outputs_of_piece) EXPECT_EQ(outputs.size(), 3U);
}

// What a member has elsewhere begins with its part; the others' parts stay where they are.
TEST(WorkLayout, WritesEachPartWhereItsMemberWantsIt) {
  constexpr std::uint64_t kPart = kPieceSize / 4 + 5;
  Transfer transfer = Of(Collective::kReduceScatter, 3 * kPart, {1, 0, 1});
  transfer.outputs[0] = Memory(50);
  transfer.outputs[2] = Memory(52);
  const Written written = WrittenBy(transfer, kPieceSize);
  EXPECT_EQ(written.size(), 3 * kPart);
  for (std::uint64_t i = 0; i < kPart; ++i) {
    ASSERT_TRUE(written.contains({Memory(50), i * 4})) << i;
    ASSERT_TRUE(written.contains({Memory(1), (kPart + i) * 4})) << i;
    ASSERT_TRUE(written.contains({Memory(52), i * 4})) << i;
  }
}

TEST(WorkLayout, MovesNothingWhereNothingIsToMove) {
  EXPECT_EQ(WorkLayout(Of(Collective::kBarrier, 0, {0, 1}), kPieceSize).work(), Work::kNothing);
  EXPECT_EQ(WorkLayout(Of(Collective::kAllReduce, 0, {0, 1}), kPieceSize).work(), Work::kNothing);
  EXPECT_EQ(WorkLayout(Of(Collective::kAllReduce, 9, {0}), kPieceSize).work(), Work::kNothing);
  EXPECT_EQ(WorkLayout(Of(Collective::kBroadcast, 9, {0}), kPieceSize).work(), Work::kNothing);
  EXPECT_EQ(WorkLayout(Of(Collective::kReduce, 9, {0}), kPieceSize).work(), Work::kCopy);
  Transfer elsewhere = Of(Collective::kReduceScatter, 9, {0});
  EXPECT_EQ(WorkLayout(elsewhere, kPieceSize).work(), Work::kNothing);
  elsewhere.outputs[0] = Memory(50);
  EXPECT_EQ(WorkLayout(elsewhere, kPieceSize).work(), Work::kCopy);
  EXPECT_EQ(WrittenBy(elsewhere, kPieceSize).size(), 9U);
  Transfer transfer = Of(Collective::kReduce, 9, {0});
  transfer.output = transfer.members[0];
  EXPECT_EQ(WorkLayout(transfer, kPieceSize).work(), Work::kNothing);
  transfer.reduction = Reduction::kAverage;
  transfer.divisor = 2;
  EXPECT_EQ(WorkLayout(transfer, kPieceSize).work(), Work::kReduce) << "divided all the same";
}

TEST(WorkLayout, LetsEachGpuFetchWhatItsMembersGet) {
  const Transfer transfer = Of(Collective::kBroadcast, 100, {kHost, 0, 1, 1});
  const auto given = All(transfer);
  ASSERT_EQ(given.size(), 2U);
  EXPECT_EQ(given[0].span.outputs_count, 1U);
  EXPECT_EQ(given[1].span.outputs_count, 2U) << "the second is made from the first";
  EXPECT_EQ(given[1].span.first_input, 0U);
}

TEST(WorkLayout, KnowsWhatHasNoRuns) {
  const transport::Run runs[] = {{.offset = 4000, .count = 10}, {.offset = 400, .count = 10}};
  Transfer transfer = Of(Collective::kReduce, 12, {0, kHost});
  transfer.runs = runs;
  transfer.skip = 5;
  const WorkLayout layout(transfer, kPieceSize);
  const Buffers buffers = layout.BuffersOf(transfer, 0);
  EXPECT_EQ(buffers.packed_inputs, 0b10U);
  EXPECT_EQ(buffers.packed_outputs, 0b1U) << "an output outside is in one piece";
  const auto given = All(transfer);
  ASSERT_EQ(given.size(), 2U);
  EXPECT_EQ(given[0].span.offset, 4020U);
  EXPECT_EQ(given[0].span.packed_offset, 0U);
  EXPECT_EQ(given[1].span.offset, 400U);
  EXPECT_EQ(given[1].span.packed_offset, 20U);
  EXPECT_EQ(given[1].span.size, 28U);
  transfer.output = transfer.members[0];
  EXPECT_EQ(layout.BuffersOf(transfer, 0).packed_outputs, 0U) << "a member's has its runs";
}

// What must be written is, once, whatever the kind, and wherever members are.
TEST(WorkLayout, WritesEveryByteOnceInARandomMix) {
  std::mt19937_64 random(3);
  constexpr Collective kKinds[] = {Collective::kAllReduce, Collective::kBroadcast,
                                   Collective::kReduceScatter, Collective::kAllGather,
                                   Collective::kReduce};
  for (int round = 0; round < 200; ++round) {
    const Collective kind = kKinds[random() % 5];
    std::vector<int> devices(2 + random() % 6);
    for (int& device : devices) device = static_cast<int>(random() % 5) - 1;
    devices[random() % devices.size()] = 2;
    const std::uint64_t part = 1 + random() % 3000;
    Transfer transfer = Of(kind, part * devices.size(), devices);
    transfer.root = static_cast<std::uint32_t>(random() % devices.size());
    transfer.token = random();
    const Written written = WrittenBy(transfer, std::size_t{128} << random() % 8);
    std::size_t expected = 0;
    for (std::uint32_t member = 0; member < devices.size(); ++member) {
      for (std::uint64_t e = 0; e < transfer.count; ++e) {
        const auto owner = static_cast<std::uint32_t>(e / part);
        const bool is_own = owner == member;
        const bool is_written = kind == Collective::kAllReduce ||
                                (kind == Collective::kBroadcast && member != transfer.root) ||
                                (kind == Collective::kReduceScatter && is_own) ||
                                (kind == Collective::kAllGather && !is_own);
        if (!is_written) continue;
        ++expected;
        const auto found = written.find({Memory(member), e * 4});
        ASSERT_NE(found, written.end()) << "round " << round << " member " << member << " " << e;
        if (kind == Collective::kAllGather) {
          ASSERT_EQ(found->second, owner);
        }
        if (kind == Collective::kBroadcast) {
          ASSERT_EQ(found->second, transfer.root);
        }
      }
    }
    if (kind == Collective::kReduce) expected = transfer.count;
    ASSERT_EQ(written.size(), expected) << "round " << round;
  }
}

}  // namespace
}  // namespace headrace::transport
