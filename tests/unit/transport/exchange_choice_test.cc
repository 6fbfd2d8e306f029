// What every node must decide alike: the pattern, the cut, the limits.
#include <gtest/gtest.h>

#include <algorithm>

#include "transport/exchange/choose.h"
#include "transport/exchange/limits.h"
#include "transport/exchange/partition.h"

namespace headrace::transport {
namespace {

constexpr CostLine kGigabit{.startup_s = 100e-6, .s_per_byte = 8e-9};

CollectiveSpec AllReduceOf(std::uint64_t bytes) {
  return {.kind = Collective::kAllReduce, .dtype = DType::kUInt8, .count = bytes};
}

Pattern Choose(std::uint64_t bytes, std::uint32_t nodes, const CostLine& cost = kGigabit) {
  return ChoosePattern(AllReduceOf(bytes), {.data_count = nodes, .cost = cost});
}

TEST(Choose, PredictsEachPatternByStepsAndBytes) {
  const Choice choice{.data_count = 4, .cost = {.startup_s = 1e-3, .s_per_byte = 1e-6}};
  const auto seconds = [&choice](Pattern pattern) { return PredictSeconds(pattern, 1000, choice); };
  constexpr double kSums = 1e-6;  // what summing may add
  EXPECT_NEAR(seconds(Pattern::kExchange), 1e-3 + 3e-3, kSums);
  EXPECT_NEAR(seconds(Pattern::kDoubling), 2e-3 + 2e-3, kSums);
  EXPECT_NEAR(seconds(Pattern::kScatter), 2e-3 + 1.5e-3, kSums);
  EXPECT_NEAR(seconds(Pattern::kRing), 6e-3 + 1.5e-3, kSums);
  EXPECT_NEAR(seconds(Pattern::kFromRoot), 1e-3 + 3e-3, kSums);
  EXPECT_NEAR(seconds(Pattern::kFromRootByOwners), 2e-3 + 1e-3, kSums);
  EXPECT_NEAR(seconds(Pattern::kBarrier), 2e-3, kSums);
}

TEST(Choose, CountsTheFoldOfADoublingAmongOddNodes) {
  const Choice choice{.data_count = 5, .cost = {.startup_s = 1, .s_per_byte = 0}};
  EXPECT_NEAR(PredictSeconds(Pattern::kDoubling, 0, choice), 4, 1e-9);
  EXPECT_NEAR(PredictSeconds(Pattern::kBarrier, 0, choice), 3, 1e-9);
}

TEST(Choose, TakesOneStepForSmallAndSharesForLargeTransfers) {
  for (const std::uint32_t nodes : {2U, 3U, 4U, 8U, 9U, 64U}) {
    EXPECT_EQ(Choose(64, nodes), Pattern::kExchange) << nodes;
    EXPECT_EQ(Choose(64 << 20, nodes), Pattern::kScatter) << nodes;
  }
}

TEST(Choose, TakesDoublingWhereStartupAndBytesBothCount) {
  // Exchange: 1 + 7 x; doubling: 3 + 3 x; shares: 2 + 1.75 x. Startup dear: steps decide.
  EXPECT_EQ(Choose(1000, 8, {.startup_s = 1, .s_per_byte = 1e-9}), Pattern::kExchange);
  EXPECT_EQ(Choose(1000, 8, {.startup_s = 1e-9, .s_per_byte = 1}), Pattern::kScatter);
}

TEST(Choose, IsMonotoneInSize) {
  for (const std::uint32_t nodes : {2U, 3U, 4U, 8U, 16U}) {
    bool shares = false;
    for (std::uint64_t bytes = 1; bytes < (1U << 30); bytes *= 2) {
      const bool now = Choose(bytes, nodes) == Pattern::kScatter;
      EXPECT_TRUE(now || !shares) << nodes << " " << bytes;
      shares = now;
    }
    EXPECT_TRUE(shares);
  }
}

TEST(Choose, DoesWhatTheGroupForces) {
  const auto forced = [](Algorithm algorithm) {
    return ChoosePattern(AllReduceOf(64 << 20), {.data_count = 4, .algorithm = algorithm});
  };
  EXPECT_EQ(forced(Algorithm::kDirectExchange), Pattern::kExchange);
  EXPECT_EQ(forced(Algorithm::kRecursiveDoubling), Pattern::kDoubling);
  EXPECT_EQ(forced(Algorithm::kDirectScatter), Pattern::kScatter);
  EXPECT_EQ(forced(Algorithm::kRing), Pattern::kRing);
}

// More nodes: as many encoded bytes as plain ones cost the same, however many elements they are.
TEST(Choose, LetsTwoNodesExchangeWhatIsEncoded) {
  CollectiveSpec spec{.kind = Collective::kAllReduce, .dtype = DType::kFloat32};
  spec.codec = Codec::kInt8;
  for (const std::uint64_t count : {std::uint64_t{1} << 10, std::uint64_t{16} << 20}) {
    spec.count = count;
    EXPECT_EQ(ChoosePattern(spec, {.data_count = 2, .cost = kGigabit}), Pattern::kExchange);
  }
  const Choice forced{.data_count = 2, .algorithm = Algorithm::kDirectScatter, .cost = kGigabit};
  EXPECT_EQ(ChoosePattern(spec, forced), Pattern::kScatter);
  EXPECT_EQ(ChoosePattern(spec, {.data_count = 4, .cost = kGigabit}), Pattern::kScatter);
  // 6 kB as int8 are 24 kB of float32, which four nodes would not exchange.
  spec.count = 6'000;
  EXPECT_EQ(ChoosePattern(spec, {.data_count = 4, .cost = kGigabit}), Pattern::kExchange);
  EXPECT_EQ(Choose(spec.count * sizeof(float), 4), Pattern::kScatter);
  spec.codec = Codec::kLossless;
  spec.count = std::uint64_t{16} << 20;
  EXPECT_EQ(ChoosePattern(spec, {.data_count = 2, .cost = kGigabit}), Pattern::kScatter);
}

TEST(Choose, LetsServersSumButNotBroadcast) {
  const Choice choice{.data_count = 4, .servers_count = 2, .algorithm = Algorithm::kRing};
  CollectiveSpec spec = AllReduceOf(100);
  EXPECT_EQ(ChoosePattern(spec, choice), Pattern::kServed);
  spec.kind = Collective::kReduce;
  EXPECT_EQ(ChoosePattern(spec, choice), Pattern::kServed);
  spec.kind = Collective::kBroadcast;
  EXPECT_EQ(ChoosePattern(spec, choice), Pattern::kFromRootByOwners);  // as the ring would
  spec.kind = Collective::kBarrier;
  EXPECT_EQ(ChoosePattern(spec, choice), Pattern::kBarrier);
}

TEST(Choose, SparesTheRootOfALargeBroadcast) {
  CollectiveSpec spec{.kind = Collective::kBroadcast, .dtype = DType::kUInt8, .count = 1000};
  const Choice choice{.data_count = 4, .cost = kGigabit};
  EXPECT_EQ(ChoosePattern(spec, choice), Pattern::kFromRoot);
  spec.count = 64 << 20;
  EXPECT_EQ(ChoosePattern(spec, choice), Pattern::kFromRootByOwners);
  EXPECT_EQ(ChoosePattern(spec, {.data_count = 2, .cost = kGigabit}), Pattern::kFromRoot);
}

TEST(Limits, KeepStagingWithinItsSizeAndFitForEveryScript) {
  const ExchangeOptions options;
  for (std::uint32_t data = 1; data <= kNodesMax; ++data) {
    for (std::uint32_t servers = 0; servers + data <= kNodesMax; ++servers) {
      const GroupLimits limits = LimitsOf(options, data, servers);
      ASSERT_LE(limits.slot_size * limits.slots_count, options.staging_size);
      ASSERT_GE(limits.slot_size, 4096U);
      // A server has room for a whole window, others for the largest schedule at least.
      ASSERT_GE(limits.slots_count, servers > 0 ? limits.window * data : data - 1);
      ASSERT_GE(limits.window, servers > 0 ? servers : data);
    }
  }
}

// Every other node may be ahead by two windows in each order: network.h has three orders, and the
// limits were once computed for two.
TEST(Limits, HoldAllThatHonestNodesMayBeAheadBy) {
  for (std::uint32_t data = 1; data <= kNodesMax; ++data) {
    const GroupLimits limits = LimitsOf({}, data, 0);
    ASSERT_LT(limits.window, limits.shared_window);
    ASSERT_LE(2 * (limits.shared_window + limits.window) * (data - 1), limits.held_max);
  }
}

}  // namespace
}  // namespace headrace::transport
