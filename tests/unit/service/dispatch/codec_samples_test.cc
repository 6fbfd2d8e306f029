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

constexpr transport::CostLine kLine{.startup_s = 1e-4, .s_per_byte = 8e-9};

// A transfer of which each byte was encoded and decoded in so long, and of which nothing else is
// known.
EncodedSample UseOf(double s_per_byte) {
  const auto ns = static_cast<TimeNs>(s_per_byte * kBytes * kSecond / 2);
  return {.use = {.encode_ns = ns,
                  .decode_ns = ns,
                  .plain_bytes = static_cast<std::uint64_t>(kBytes),
                  .sent_bytes = static_cast<std::uint64_t>(kBytes / 4)}};
}
// As before, and in so long from its start to its end.
EncodedSample TookOf(double s_per_byte, double seconds) {
  EncodedSample sample = UseOf(s_per_byte);
  sample.wire_bytes = kBytes / 4;
  sample.seconds = seconds;
  sample.pieces = 16;
  return sample;
}

CodecCost CostAt(const CodecSamples& samples, std::uint64_t iteration) {
  const std::vector<CodecCost> costs = samples.Costs({&kMeasured, 1}, 2, 0, {&kLine, 1}, iteration);
  EXPECT_EQ(costs.size(), 1U);
  return costs.empty() ? CodecCost() : costs.front();
}

TEST(CodecSamples, ComeBeforeWhatWasMeasuredAtFirst) {
  CodecSamples samples;
  EXPECT_EQ(CostAt(samples, 1).encode_s_per_byte, kMeasured.encode_s_per_byte);
  samples.Add(Codec::kInt8, kBytes, UseOf(4e-9), 0, 1);
  EXPECT_NEAR(CostAt(samples, 2).encode_s_per_byte, 2e-9, 1e-11);
}

// What was measured at first is of this node alone; transfers take as long as servers make them.
TEST(CodecSamples, HaveTheWorkOfServersOnce) {
  CodecSamples samples;
  const auto cost = [&] { return samples.Costs({&kMeasured, 1}, 4, 1, {&kLine, 1}, 1).at(0); };
  EXPECT_EQ(cost(), transport::WithServers(kMeasured, 4, 1));
  EXPECT_GT(cost().decode_s_per_byte, 2e-9) << "of four nodes";
  samples.Add(Codec::kInt8, kBytes, UseOf(4e-9), 0, 1);
  EXPECT_NEAR(cost().decode_s_per_byte, 2e-9, 1e-11);
}

// What a plan is made from with the same line comes to the median of what they took.
TEST(CodecSamples, AreAsLongAsTransfersTookWithTheLineThatAPlanGoesBy) {
  for (const double seconds : {20e-3, 40e-3}) {
    CodecSamples samples;
    for (const double times : {0.8, 1.3, 1.0, 0.9, 1.6}) {
      samples.Add(Codec::kInt8, kBytes, TookOf(1e-10, times * seconds), 0, 1);
    }
    for (const double s_per_byte : {1e-10, 4e-9, 8e-9}) {
      const transport::CostLine line{1e-4, s_per_byte};
      const CodecCost cost = samples.Costs({}, 2, 0, {&line, 1}, 1).at(0);
      EXPECT_TRUE(cost.of_transfers);
      EXPECT_NEAR(cost.encode_s_per_byte, 5e-11, 1e-15);
      const double wire_s = s_per_byte * kBytes / 4;
      const double coding_s = kBytes * (cost.encode_s_per_byte + cost.decode_s_per_byte);
      EXPECT_NEAR(1e-4 + std::max(wire_s, coding_s) + std::min(wire_s, coding_s) / 16, seconds,
                  1e-6)
          << s_per_byte;
    }
    // Where the wire explains all, processors took what this node's did.
    const transport::CostLine slow{1e-4, 1e-7};
    const CodecCost cost = samples.Costs({}, 2, 0, {&slow, 1}, 1).at(0);
    EXPECT_NEAR(cost.encode_s_per_byte + cost.decode_s_per_byte, 1e-10, 1e-14);
  }
}

// Else the node that puts its waits down to the wire would seem to have waited least.
TEST(CodecSamples, AreOfTransfersOnlyWhereMostOfThemSayHowLongTheyTook) {
  CodecSamples samples;
  samples.Add(Codec::kInt8, kBytes, UseOf(1e-10), 0, 1);
  EXPECT_FALSE(CostAt(samples, 1).of_transfers);
  samples.Add(Codec::kInt8, kBytes, TookOf(1e-10, 40e-3), 0, 1);
  EXPECT_FALSE(CostAt(samples, 1).of_transfers) << "half of them";
  EXPECT_NEAR(CostAt(samples, 1).decode_s_per_byte, 5e-11, 1e-14);
  samples.Add(Codec::kInt8, kBytes, TookOf(1e-10, 40e-3), 0, 1);
  EXPECT_TRUE(CostAt(samples, 1).of_transfers);
  EXPECT_GT(CostAt(samples, 1).decode_s_per_byte, 4e-9);
}

// 64 KiB more than the bytes of each, as plans have it.
TEST(CodecSamples, HaveAPieceMoreWherePiecesHaveTheirPlaces) {
  CodecSamples samples;
  for (const double bytes : {4 << 20, 32 << 20}) {
    EncodedSample sample = UseOf(1e-11);
    sample.seconds = kLine.startup_s + 3e-9 * (bytes + 65536);
    sample.placed_bytes = 65536;
    samples.Add(Codec::kInt8, bytes, sample, 0, 1);
    const CodecCost cost = samples.Costs({}, 2, 1, {&kLine, 1}, 1).at(0);
    EXPECT_NEAR(cost.encode_s_per_byte + cost.decode_s_per_byte, 3e-9, 1e-13) << bytes;
  }
}

// Which nothing is known of yet.
TEST(CodecSamples, KeepWhatProcessorsTookBesideAnotherWire) {
  CodecSamples samples;
  samples.Add(Codec::kInt8, kBytes, TookOf(1e-10, 40e-3), 0, 1);
  const CodecCost before = CostAt(samples, 1);
  EXPECT_GT(before.decode_s_per_byte, 4e-9);
  samples.OnWiresChanged({&kLine, 1});
  const transport::CostLine slow{1e-4, 1e-7};
  const CodecCost after = samples.Costs({}, 2, 0, {&slow, 1}, 1).at(0);
  EXPECT_NEAR(after.decode_s_per_byte, before.decode_s_per_byte, 1e-13);
  EXPECT_TRUE(after.of_transfers);
}

TEST(CodecSamples, SayNothingLongAfterTheLast) {
  CodecSamples samples;
  samples.Add(Codec::kInt8, kBytes, UseOf(1e-7), 0, 10);
  const std::uint64_t last = 10 + CodecSamples::kIterationsKept;
  EXPECT_NEAR(CostAt(samples, last).encode_s_per_byte, 5e-8, 1e-10);
  EXPECT_EQ(CostAt(samples, last + 1).encode_s_per_byte, kMeasured.encode_s_per_byte);
  // Nor do they weigh on those that come then.
  samples.Add(Codec::kInt8, kBytes, UseOf(4e-9), 0, last + 1);
  EXPECT_NEAR(CostAt(samples, last + 2).encode_s_per_byte, 2e-9, 1e-11);
}

TEST(CodecSamples, SayHowLongProcessorsTakeForATransfer) {
  CodecSamples samples;
  const auto seconds = [&samples](std::uint64_t iteration) {
    return samples.ProcessorSecondsOf(Codec::kInt8, kBytes / 2, {&kLine, 1}, iteration);
  };
  EXPECT_EQ(seconds(1), std::nullopt);
  samples.Add(Codec::kInt8, kBytes, UseOf(4e-9), 0, 1);
  EXPECT_NEAR(seconds(1).value_or(0), 4e-9 * kBytes / 2, 1e-8);
  for (int i = 0; i < 2; ++i) samples.Add(Codec::kInt8, kBytes, TookOf(4e-9, 60e-3), 0, 1);
  EXPECT_NEAR(seconds(1).value_or(0), 0.5 * (60e-3 - 1e-4 - kBytes / 64 * kLine.s_per_byte), 1e-8);
  EXPECT_EQ(seconds(2 + CodecSamples::kIterationsKept), std::nullopt);
}

// A job's codec may be set anew for as long as it runs.
TEST(CodecSamples, OneThatSaysNothingAnyMoreMakesRoomForTheNext) {
  CodecSamples samples;
  const auto top = [](std::size_t keeps) {
    return Codec(Codec::kTopK, static_cast<std::uint8_t>(keeps));
  };
  for (std::size_t i = 0; i < kCodecCostsMax; ++i)
    samples.Add(top(i + 1), kBytes, UseOf(4e-9), 0, 1);
  const auto has_int8 = [&samples](std::uint64_t iteration) {
    const std::vector<CodecCost> costs = samples.Costs({}, 2, 0, {&kLine, 1}, iteration);
    return std::ranges::find(costs, Codec(Codec::kInt8), &CodecCost::codec) != costs.end();
  };
  samples.Add(Codec::kInt8, kBytes, UseOf(4e-9), 0, 2);
  EXPECT_FALSE(has_int8(2)) << "all others count";
  const std::uint64_t later = 2 + CodecSamples::kIterationsKept;
  samples.Add(Codec::kInt8, kBytes, UseOf(4e-9), 0, later);
  EXPECT_TRUE(has_int8(later));
}

// A thread that encodes may be held up for long.
TEST(CodecSamples, FewSlowTransfersWeighNothing) {
  CodecSamples samples;
  for (std::uint64_t iteration = 1; iteration <= 5; ++iteration) {
    samples.Add(Codec::kInt8, kBytes, UseOf(iteration % 4 == 1 ? 2e-7 : 4e-9), 0, iteration);
  }
  EXPECT_NEAR(CostAt(samples, 6).encode_s_per_byte, 2e-9, 1e-11);
  EXPECT_NEAR(CostAt(samples, 6).decode_s_per_byte, 2e-9, 1e-11);
  // As many bytes in one that is large as in all others.
  EncodedSample large = UseOf(4e-8);
  large.use.encode_ns *= 8;
  samples.Add(Codec::kInt8, 8 * kBytes, large, 0, 6);
  EXPECT_NEAR(CostAt(samples, 7).encode_s_per_byte, 2e-8, 1e-10);
}

TEST(CodecSamples, FollowALoadThatStays) {
  CodecSamples samples;
  std::uint64_t iteration = 0;
  const auto add = [&](std::size_t count, double s_per_byte) {
    for (std::size_t i = 0; i < count; ++i) {
      samples.Add(Codec::kInt8, kBytes, UseOf(s_per_byte), 0, ++iteration);
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
  samples.Add(Codec::kInt8, kBytes, UseOf(1e-7), 0, 2);
  EXPECT_FALSE(Encodes(samples, 3));
  EXPECT_TRUE(Encodes(samples, 3 + CodecSamples::kIterationsKept));
}

}  // namespace
}  // namespace headrace::service
