#include "service/dispatch/job/wire_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/service/dispatch/planned.h"

namespace headrace::support {
namespace {

using ::testing::ElementsAre;
using MemoryRun = transport::Run;

service::WirePlan Make(const Blocks& blocks, std::size_t runs_max = 1024) {
  return service::MakeWirePlan(PlanOf(blocks), 7, *PackedLayout({10, 20, 30}), runs_max);
}

TEST(WirePlan, JoinsNeighboursInMemoryWhateverTheirOrderInTheBlock) {
  const service::WirePlan wire = Make({{{2, 0, 30}, {0, 0, 10}, {1, 0, 20}}});
  ASSERT_EQ(wire.blocks.size(), 1U);
  EXPECT_THAT(wire.blocks[0].runs, ElementsAre(MemoryRun{0, 60}));
  EXPECT_THAT(wire.blocks[0].tensors, ElementsAre(0, 1, 2));
  EXPECT_EQ(wire.blocks[0].count, 60U);
}

TEST(WirePlan, KeepsWhatIsApartAsRunsOfOneBlock) {
  const service::WirePlan wire =
      Make({{{0, 2, 5}, {2, 20, 10}}, {{0, 0, 2}, {0, 7, 3}, {1, 0, 20}, {2, 0, 20}}});
  ASSERT_EQ(wire.blocks.size(), 2U);
  EXPECT_THAT(wire.blocks[0].runs, ElementsAre(MemoryRun{8, 5}, MemoryRun{200, 10}));
  EXPECT_THAT(wire.blocks[1].runs, ElementsAre(MemoryRun{0, 2}, MemoryRun{28, 43}));
  EXPECT_THAT(wire.blocks_of, ElementsAre(2, 1, 2));
}

// A layout of 5 bfloat16, 3 float32 and 4 bfloat16, for plans of units of 4 bytes.
service::Layout MixedLayout() {
  service::Layout layout;
  layout.tensors = {{.name = "a", .offset = 0, .count = 5, .dtype = DType::kBFloat16},
                    {.name = "b", .offset = 12, .count = 3, .dtype = DType::kFloat32},
                    {.name = "c", .offset = 24, .count = 4, .dtype = DType::kBFloat16}};
  return layout;
}

TEST(WirePlan, ABlockOfSeveralTypesIsOneForEach) {
  const service::WirePlan wire =
      service::MakeWirePlan(PlanOf({{{0, 0, 3}, {1, 0, 3}, {2, 0, 2}}}), 7, MixedLayout());
  ASSERT_EQ(wire.blocks.size(), 2U);
  EXPECT_EQ(wire.blocks[0].dtype, DType::kBFloat16);
  EXPECT_THAT(wire.blocks[0].runs, ElementsAre(MemoryRun{0, 5}, MemoryRun{24, 4}));
  EXPECT_THAT(wire.blocks[0].tensors, ElementsAre(0, 2));
  EXPECT_EQ(wire.blocks[0].Bytes(), 18U);
  EXPECT_EQ(wire.blocks[1].dtype, DType::kFloat32);
  EXPECT_THAT(wire.blocks[1].runs, ElementsAre(MemoryRun{12, 3}));
  EXPECT_EQ(wire.blocks[1].plan_block, 0U);
  EXPECT_THAT(wire.blocks_of, ElementsAre(1, 1, 1));
}

TEST(WirePlan, ABlockOfSeveralCodecsIsOneForEach) {
  plan::Plan plan = *PlanOf({{{0, 0, 10}, {1, 0, 20}, {2, 0, 30}}});
  plan.codecs = {{Codec::kInt8, 0, 1}, {Codec::kInt8, 2, 1}};
  const service::WirePlan wire = service::MakeWirePlan(std::make_shared<const plan::Plan>(plan), 7,
                                                       *PackedLayout({10, 20, 30}));
  ASSERT_EQ(wire.blocks.size(), 2U);
  EXPECT_EQ(wire.blocks[0].codec, Codec(Codec::kInt8));
  EXPECT_THAT(wire.blocks[0].runs, ElementsAre(MemoryRun{0, 10}, MemoryRun{120, 30}));
  EXPECT_EQ(wire.blocks[1].codec, Codec(Codec::kNone));
  EXPECT_THAT(wire.blocks[1].tensors, ElementsAre(1));
}

TEST(WirePlan, AMatrixThatCrossesAsFactorsIsAloneAndWhole) {
  constexpr std::uint64_t kCount = 64 * 70;
  service::Layout layout = *PackedLayout({kCount, kCount, kCount, kCount});
  for (std::size_t tensor : {0U, 1U, 3U}) layout.tensors[tensor].rows = 64;
  plan::Plan plan = *PlanOf(
      {{{0, 0, kCount}, {1, 0, kCount}, {2, 0, kCount}, {3, 0, 64}}, {{3, 64, kCount - 64}}});
  plan.codecs = {{Codec::kPowerSgd, 0, 4}};
  const service::WirePlan wire =
      service::MakeWirePlan(std::make_shared<const plan::Plan>(plan), 7, layout);
  ASSERT_EQ(wire.blocks.size(), 4U);
  for (std::size_t block : {0U, 1U}) {
    EXPECT_EQ(wire.blocks[block].codec, Codec(Codec::kPowerSgd));
    EXPECT_EQ(wire.blocks[block].rows, 64U);
    EXPECT_EQ(wire.blocks[block].matrix, block);
    EXPECT_THAT(wire.blocks[block].runs, ElementsAre(MemoryRun{block * kCount * 4, kCount}));
    EXPECT_THAT(wire.blocks[block].tensors, ElementsAre(block));
  }
  // One is no matrix, the other was cut apart.
  EXPECT_EQ(wire.blocks[2].codec, Codec(Codec::kNone));
  EXPECT_EQ(wire.blocks[2].rows, 0U);
  EXPECT_THAT(wire.blocks[2].tensors, ElementsAre(2, 3));
  EXPECT_EQ(wire.blocks[3].codec, Codec(Codec::kNone));
  EXPECT_THAT(wire.blocks_of, ElementsAre(1, 1, 1, 2));
}

TEST(WirePlan, APieceEndsWithItsGradientWithinThePlansLastUnit) {
  const service::WirePlan wire = service::MakeWirePlan(
      PlanOf({{{0, 0, 2}}, {{0, 2, 1}, {2, 0, 2}}, {{1, 0, 3}}}), 7, MixedLayout());
  ASSERT_EQ(wire.blocks.size(), 3U);
  EXPECT_THAT(wire.blocks[0].runs, ElementsAre(MemoryRun{0, 4}));
  EXPECT_THAT(wire.blocks[1].runs, ElementsAre(MemoryRun{8, 1}, MemoryRun{24, 4}));
  EXPECT_EQ(wire.blocks[1].count, 5U);
  EXPECT_THAT(wire.blocks_of, ElementsAre(2, 1, 1));
}

TEST(WirePlan, CutsABlockThatHasMoreRunsThanATransferMay) {
  const service::WirePlan wire =
      Make({{{0, 0, 4}, {1, 0, 20}, {2, 5, 5}}, {{0, 4, 6}, {2, 0, 5}, {2, 10, 20}}}, 1);
  ASSERT_EQ(wire.blocks.size(), 6U);
  EXPECT_EQ(wire.blocks[2].plan_block, 0U);
  EXPECT_EQ(wire.blocks[3].plan_block, 1U);
  EXPECT_THAT(wire.blocks[1].runs, ElementsAre(MemoryRun{40, 20}));
  EXPECT_THAT(wire.blocks_of, ElementsAre(2, 1, 3));
  std::uint64_t count = 0;
  for (const service::WireBlock& block : wire.blocks) {
    EXPECT_EQ(block.runs.size(), 1U);
    count += block.count;
  }
  EXPECT_EQ(count, 60U);
}

}  // namespace
}  // namespace headrace::support
