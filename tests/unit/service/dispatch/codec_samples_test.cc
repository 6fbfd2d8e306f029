#include "service/dispatch/job/codec_samples.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "ipc/base/clock.h"
#include "service/plan/coded.h"
#include "service/plan/planner.h"
#include "transport/probe/codec_probe.h"

namespace headrace::service {
namespace {

constexpr double kBytes = 8 << 20;
// Measured at the service's start: a fifth of what bytes cost on the wire below.
constexpr CodecCost kMeasured{
    .codec = Codec::kInt8, .share = 0.25, .encode_s_per_byte = 1e-9, .decode_s_per_byte = 5e-10};

// A transfer of which each byte was encoded and decoded in so long.
transport::CodecUse UseOf(double s_per_byte) {
  const auto ns = static_cast<TimeNs>(s_per_byte * kBytes * kSecond / 2);
  return {.encode_ns = ns,
          .decode_ns = ns,
          .plain_bytes = static_cast<std::uint64_t>(kBytes),
          .sent_bytes = static_cast<std::uint64_t>(kBytes / 4)};
}

CodecCost CostAt(const CodecSamples& samples, std::uint64_t iteration) {
  const std::vector<CodecCost> costs = samples.Costs({&kMeasured, 1}, 2, 0, iteration);
  EXPECT_EQ(costs.size(), 1U);
  return costs.empty() ? CodecCost() : costs.front();
}

TEST(CodecSamples, ComeBeforeWhatWasMeasuredAtFirst) {
  CodecSamples samples;
  EXPECT_EQ(CostAt(samples, 1).encode_s_per_byte, kMeasured.encode_s_per_byte);
  samples.Add(Codec::kInt8, kBytes, UseOf(4e-9), 1);
  EXPECT_NEAR(CostAt(samples, 2).encode_s_per_byte, 2e-9, 1e-11);
}

// What was measured at first is of this node alone; transfers take as long as servers make them.
TEST(CodecSamples, HaveTheWorkOfServersOnce) {
  CodecSamples samples;
  const auto cost = [&] { return samples.Costs({&kMeasured, 1}, 4, 1, 1).at(0); };
  EXPECT_EQ(cost(), transport::WithServers(kMeasured, 4, 1));
  EXPECT_GT(cost().decode_s_per_byte, 2e-9) << "of four nodes";
  samples.Add(Codec::kInt8, kBytes, UseOf(4e-9), 1);
  EXPECT_NEAR(cost().decode_s_per_byte, 2e-9, 1e-11);
  // Two of five transfers were slow, and count as they do for a wire's line.
  for (int i = 0; i < 2; ++i) samples.Add(Codec::kInt8, kBytes, UseOf(4e-9), 1);
  for (int i = 0; i < 2; ++i) samples.Add(Codec::kInt8, kBytes, UseOf(5e-9), 1);
  EXPECT_NEAR(cost().decode_s_per_byte, 2.5e-9, 1e-11);
}

TEST(CodecSamples, SayNothingLongAfterTheLast) {
  CodecSamples samples;
  samples.Add(Codec::kInt8, kBytes, UseOf(1e-7), 10);
  const std::uint64_t last = 10 + CodecSamples::kIterationsKept;
  EXPECT_NEAR(CostAt(samples, last).encode_s_per_byte, 5e-8, 1e-10);
  EXPECT_EQ(CostAt(samples, last + 1).encode_s_per_byte, kMeasured.encode_s_per_byte);
  // Nor do they weigh on those that come then.
  samples.Add(Codec::kInt8, kBytes, UseOf(4e-9), last + 1);
  EXPECT_NEAR(CostAt(samples, last + 2).encode_s_per_byte, 2e-9, 1e-11);
}

TEST(CodecSamples, SayWhatProcessorsTookOverServersAsPlansHaveIt) {
  CodecSamples samples;
  EXPECT_EQ(samples.ServedSecondsPerByte(Codec::kInt8, 1), std::nullopt);
  samples.Add(Codec::kInt8, kBytes, UseOf(4e-9), 1);
  samples.Add(Codec::kInt8, kBytes, UseOf(8e-9), 1);
  const CodecCost cost = samples.Costs({}, 2, 1, 1).at(0);
  EXPECT_NEAR(samples.ServedSecondsPerByte(Codec::kInt8, 1).value_or(0),
              cost.encode_s_per_byte + cost.decode_s_per_byte, 1e-15);
  EXPECT_EQ(samples.ServedSecondsPerByte(Codec::kInt8, 2 + CodecSamples::kIterationsKept),
            std::nullopt);
}

// A job's codec may be set anew for as long as it runs.
TEST(CodecSamples, OneThatSaysNothingAnyMoreMakesRoomForTheNext) {
  CodecSamples samples;
  const auto top = [](std::size_t keeps) {
    return Codec(Codec::kTopK, static_cast<std::uint8_t>(keeps));
  };
  for (std::size_t i = 0; i < kCodecCostsMax; ++i) samples.Add(top(i + 1), kBytes, UseOf(4e-9), 1);
  const auto has_int8 = [&samples](std::uint64_t iteration) {
    const std::vector<CodecCost> costs = samples.Costs({}, 2, 0, iteration);
    return std::ranges::find(costs, Codec(Codec::kInt8), &CodecCost::codec) != costs.end();
  };
  samples.Add(Codec::kInt8, kBytes, UseOf(4e-9), 2);
  EXPECT_FALSE(has_int8(2)) << "all others count";
  const std::uint64_t later = 2 + CodecSamples::kIterationsKept;
  samples.Add(Codec::kInt8, kBytes, UseOf(4e-9), later);
  EXPECT_TRUE(has_int8(later));
}

// A thread that encodes may be held up for long.
TEST(CodecSamples, FewSlowTransfersWeighNothing) {
  CodecSamples samples;
  for (std::uint64_t iteration = 1; iteration <= 5; ++iteration) {
    samples.Add(Codec::kInt8, kBytes, UseOf(iteration % 4 == 1 ? 2e-7 : 4e-9), iteration);
  }
  EXPECT_NEAR(CostAt(samples, 6).encode_s_per_byte, 2e-9, 1e-11);
  EXPECT_NEAR(CostAt(samples, 6).decode_s_per_byte, 2e-9, 1e-11);
  // As many bytes in one that is large as in all others.
  transport::CodecUse large = UseOf(4e-8);
  large.encode_ns *= 8;
  samples.Add(Codec::kInt8, 8 * kBytes, large, 6);
  EXPECT_NEAR(CostAt(samples, 7).encode_s_per_byte, 2e-8, 1e-10);
}

TEST(CodecSamples, FollowALoadThatStays) {
  CodecSamples samples;
  std::uint64_t iteration = 0;
  const auto add = [&](std::size_t count, double s_per_byte) {
    for (std::size_t i = 0; i < count; ++i) {
      samples.Add(Codec::kInt8, kBytes, UseOf(s_per_byte), ++iteration);
    }
    return CostAt(samples, iteration).encode_s_per_byte;
  };
  EXPECT_NEAR(add(100, 4e-9), 2e-9, 1e-11);
  EXPECT_NEAR(add(CodecSamples::kSamplesMax / 2, 4e-8), 2e-9, 1e-11);
  EXPECT_NEAR(add(1, 4e-8), 2e-8, 1e-10);
}

// Whether a job's plan encodes what it may, where that costs as samples tell.
bool Encodes(const CodecSamples& samples, std::uint64_t iteration) {
  plan::Profile profile;
  profile.model = "test";
  profile.dtype = DType::kFloat32;
  std::vector<CodecChoice> choices;
  for (int i = 0; i < 4; ++i) {
    profile.tensors.push_back({.name = "g" + std::to_string(i),
                               .elements = 1 << 18,
                               .backward_s = 1e-4,
                               .forward_s = 1e-4});
    choices.push_back(ChoiceNamed("auto:int8").value_or(CodecChoice()));
  }
  plan::Route route = plan::AllReduceRoute(plan::Affine(1e-4, 8e-9));
  const CodecCost cost = CostAt(samples, iteration);
  const plan::PiecewiseCost line =
      plan::EncodedLine(route.stages[0].rails[0].line.pieces.back(), cost, {});
  route.stages[0].coded.push_back({.cost = cost, .lines = {line}});
  const Result<plan::Plan> plan =
      plan::MakePlan(plan::Policy::kExact, profile, route, 1, {}, {}, choices);
  EXPECT_TRUE(plan.ok()) << plan.error().text();
  return plan.ok() && !plan->codecs.empty();
}

TEST(CodecSamples, LetPlansEncodeAgainAfterALoadPeak) {
  CodecSamples samples;
  EXPECT_TRUE(Encodes(samples, 1));
  // Others have loaded the processors: the plan stops, and no transfer tells that they are idle
  // now.
  samples.Add(Codec::kInt8, kBytes, UseOf(1e-7), 2);
  EXPECT_FALSE(Encodes(samples, 3));
  EXPECT_TRUE(Encodes(samples, 3 + CodecSamples::kIterationsKept));
}

}  // namespace
}  // namespace headrace::service
