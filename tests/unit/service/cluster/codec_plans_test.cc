// Codecs that are left to a job's plans.
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "service/cluster/planning.h"
#include "tests/support/expect_text.h"
#include "tests/unit/service/cluster/plans.h"

namespace headrace::support {
namespace {

using service::MakePlan;
using service::Planning;
using service::PlanOffer;

constexpr std::size_t kCodedTensors = 6;
constexpr transport::CostLine kSlowLine{.startup_s = 1e-3, .s_per_byte = 1e-8};

template <typename Kind>
Kind NextStep(Planning& planning) {
  const auto steps = planning.DrainSteps();
  EXPECT_EQ(steps.size(), 1U);
  const Kind* const step = steps.empty() ? nullptr : std::get_if<Kind>(&steps[0]);
  EXPECT_NE(step, nullptr);
  return step == nullptr ? Kind{} : *step;
}

Planning PlanningOfTwoNodes() {
  return Planning({.job = "train",
                   .policy = plan::Policy::kExact,
                   .token = 77,
                   .shape = {.nodes = {{.name = "a", .ranks = {0}}, {.name = "b", .ranks = {1}}},
                             .servers_count = 0,
                             .agreed = {kSlowLine}}});
}

// Whose gradients may cross as int8.
Planning PlanningWithAChoice() {
  Planning planning = PlanningOfTwoNodes();
  service::Layout layout = LayoutOf(Elements(kCodedTensors));
  for (service::LayoutTensor& tensor : layout.tensors) {
    tensor.allowed = ChoiceNamed("auto:int8").value_or(CodecChoice()).allowed;
  }
  for (const std::size_t node : {0U, 1U}) planning.OnLayout(node, Shared(layout), {});
  return planning;
}

// Gradients that all are to cross as factors, of which one is a matrix and one has a single row.
TEST(CodecPlans, SendOnlyMatricesAsFactors) {
  Planning planning = PlanningOfTwoNodes();
  service::Layout layout =
      LayoutOf(std::vector<std::uint64_t>(kCodedTensors, std::uint64_t{64} * 100));
  for (service::LayoutTensor& tensor : layout.tensors) tensor.codec = Codec::kPowerSgd;
  layout.tensors[0].rows = 64;
  layout.tensors[1].rows = 1;
  for (const std::size_t node : {0U, 1U}) planning.OnLayout(node, Shared(layout), {});
  const auto request = NextStep<MakePlan>(planning);
  EXPECT_EQ(request.profile.tensors.at(0).rows, 64U);
  planning.OnPlanMade(Made(request));
  const auto offer = NextStep<PlanOffer>(planning);
  ASSERT_NE(offer.plan, nullptr);
  EXPECT_EQ(offer.plan->codecs, (std::vector<plan::CodecRun>{{Codec::kPowerSgd, 0, 1}}));
}

TEST(CodecPlans, SayWhereNoGradientIsAMatrix) {
  Planning planning = PlanningOfTwoNodes();
  for (const std::size_t node : {0U, 1U}) {
    planning.OnLayout(node, Shared(LayoutOf(Elements(kCodedTensors))), {});
  }
  planning.OnPlanMade(Made(NextStep<MakePlan>(planning)));
  const auto offer = NextStep<PlanOffer>(planning);
  for (const std::size_t node : {0U, 1U}) planning.OnPlanAck(node, 1, offer.hash, 0);
  NextStep<service::PlanSwitch>(planning);
  planning.SetCodec(Codec::kPowerSgd);
  EXPECT_TEXT(NextStep<service::PlanNote>(planning).text, "none is a matrix that powersgd:4 takes");
}

// After a reconnect: the node that has counted most is right, and compress_after is over.
TEST(CodecPlans, CountIterationsOfEarlierEpochs) {
  Planning planning = PlanningOfTwoNodes();
  service::Layout layout = LayoutOf(Elements(kCodedTensors));
  layout.tensors[0].codec = Codec::kInt8;
  layout.compress_after = 20;
  for (const std::size_t node : {0U, 1U}) {
    layout.iterations_before = 19 + node;
    planning.OnLayout(node, Shared(layout), {});
  }
  planning.OnPlanMade(Made(NextStep<MakePlan>(planning)));
  const auto offer = NextStep<PlanOffer>(planning);
  ASSERT_NE(offer.plan, nullptr);
  EXPECT_FALSE(offer.plan->codecs.empty()) << "from the first iteration on";
  for (const std::size_t node : {0U, 1U}) planning.OnPlanAck(node, 1, offer.hash, 0);
  const auto change = NextStep<service::PlanSwitch>(planning);
  EXPECT_EQ(change.from_iteration, 1U);
  EXPECT_EQ(change.iterations_before, 20U);
}

// One that every node has measured may be chosen, with the slowest node's cost.
TEST(CodecPlans, EncodeWhatTheyMayOnceTimesAreKnown) {
  Planning planning = PlanningWithAChoice();
  planning.OnPlanMade(Made(NextStep<MakePlan>(planning)));
  const auto first = NextStep<PlanOffer>(planning);
  ASSERT_NE(first.plan, nullptr);
  EXPECT_TRUE(first.plan->codecs.empty());
  EXPECT_FALSE(first.plan->verdict.exists());
  for (const std::size_t node : {0U, 1U}) planning.OnPlanAck(node, 1, first.hash, 0);
  planning.DrainSteps();
  for (const std::size_t node : {0U, 1U}) {
    service::NodeSeen seen = SeenAt(3, kCodedTensors, 0.01, 0.005, kSlowLine);
    seen.codecs = {{.codec = Codec::kInt8,
                    .share = 0.25,
                    .encode_s_per_byte = node == 1 ? 4e-10 : 1e-10,
                    .decode_s_per_byte = node == 0 ? 3e-10 : 1e-10}};
    planning.OnTimesSeen(node, std::move(seen));
  }
  const auto request = NextStep<MakePlan>(planning);
  ASSERT_EQ(request.route.stages.size(), 1U);
  ASSERT_EQ(request.route.stages[0].coded.size(), 1U);
  EXPECT_EQ(request.route.stages[0].coded[0].cost, (CodecCost{.codec = Codec::kInt8,
                                                              .share = 260.0 / 1024,
                                                              .encode_s_per_byte = 4e-10,
                                                              .decode_s_per_byte = 3e-10}));
  planning.OnPlanMade(Made(request));
  const auto offer = NextStep<PlanOffer>(planning);
  ASSERT_NE(offer.plan, nullptr);
  EXPECT_TRUE(offer.plan->verdict.pays);
  EXPECT_FALSE(offer.plan->codecs.empty());
  EXPECT_LT(offer.plan->predicted_s, offer.plan->verdict.plain_s);
}

// What each makes of the job from that iteration on, until the plan asked for is in force.
MakePlan Replanned(Planning& planning, std::uint64_t iteration, double s_per_byte) {
  for (const std::size_t node : {0U, 1U}) {
    service::NodeSeen seen = SeenAt(iteration, kCodedTensors, 0.01, 0.005,
                                    {.startup_s = 1e-3, .s_per_byte = s_per_byte});
    seen.codecs = {{.codec = Codec::kInt8,
                    .share = 0.25,
                    .encode_s_per_byte = 2e-10,
                    .decode_s_per_byte = 2e-10}};
    planning.OnTimesSeen(node, std::move(seen));
  }
  auto request = NextStep<MakePlan>(planning);
  planning.OnPlanMade(Made(request));
  const auto offer = NextStep<PlanOffer>(planning);
  for (const std::size_t node : {0U, 1U}) {
    planning.OnPlanAck(node, request.version, offer.hash, iteration);
  }
  planning.DrainSteps();
  return request;
}

TEST(CodecPlans, CountHowOftenTheyStopped) {
  Planning planning = PlanningWithAChoice();
  planning.OnPlanMade(Made(NextStep<MakePlan>(planning)));
  const auto first = NextStep<PlanOffer>(planning);
  for (const std::size_t node : {0U, 1U}) planning.OnPlanAck(node, 1, first.hash, 0);
  planning.DrainSteps();
  constexpr double kSlow = 1e-8;
  constexpr double kFast = 1e-11;
  std::uint64_t iteration = 3;
  std::vector<std::uint32_t> stops;
  for (const double s_per_byte : {kSlow, kFast, kSlow, kSlow, kFast, kFast}) {
    stops.push_back(Replanned(planning, iteration, s_per_byte).codec_stops);
    iteration += 16;
  }
  EXPECT_EQ(stops, (std::vector<std::uint32_t>{0, 0, 1, 1, 1, 2}));
  // Who chooses anew begins anew.
  planning.SetCodec(ChoiceNamed("auto:bf16").value_or(CodecChoice()));
  Replanned(planning, iteration, kFast);
  EXPECT_EQ(Replanned(planning, iteration + 16, kFast).codec_stops, 0U);
}

TEST(CodecPlans, SayThatNoGradientMayBeCompressedOtherwise) {
  Planning planning = PlanningOfTwoNodes();
  service::Layout layout = LayoutOf(Elements(kCodedTensors));
  for (service::LayoutTensor& tensor : layout.tensors) tensor.keeps_codec = true;
  for (const std::size_t node : {0U, 1U}) planning.OnLayout(node, Shared(layout), {});
  (void)planning.DrainSteps();
  planning.SetCodec(Codec::kNone);
  EXPECT_TEXT(NextStep<service::PlanNote>(planning).text, "by name", "on a GPU");
}

}  // namespace
}  // namespace headrace::support
