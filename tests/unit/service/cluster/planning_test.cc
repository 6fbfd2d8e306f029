// When a job's plans are made, offered, switched to, and when it fails for them.
#include "service/cluster/planning.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "service/peers/messages.h"
#include "service/plan/canonical.h"
#include "tests/support/expect_text.h"
#include "tests/unit/service/cluster/planning_fixture.h"

namespace headrace::support {
namespace {

using service::kSwitchSlack;
using service::PlanFailure;
using service::PlanNote;

TEST_F(PlanningTest, BeginsWithWfbpWhenTheLastNodeHasHandedInItsLayout) {
  HandIn(1);
  ExpectNothing();
  HandIn(0);
  const auto request = Step<MakePlan>();
  EXPECT_EQ(request.policy, Policy::kWfbp);
  EXPECT_EQ(request.version, 1U);
  EXPECT_EQ(request.token, 77U);
  EXPECT_EQ(request.present, nullptr);
  ASSERT_EQ(request.profile.tensors.size(), kTensors);
  EXPECT_EQ(request.profile.tensors[0].backward_s, 0);
  const auto made = Made(request);
  ASSERT_TRUE(made.ok()) << made.error().text();
  EXPECT_EQ((*made)->blocks.size(), kTensors);
  EXPECT_EQ((*made)->blocks[0].ranges[0].tensor, kTensors - 1) << "as ready";
}

// Or one that encodes nothing seems to have fewer startups than it will.
TEST_F(PlanningTest, OverServersPlansKnowWhereGradientsLieWhateverTheyEncode) {
  service::JobShape shape = TwoNodes();
  shape.servers_count = 1;
  planning_ = Planning({.job = "train", .policy = Policy::kExact, .token = 77, .shape = shape});
  HandIn(0);
  HandIn(1);
  const auto request = Step<MakePlan>();
  EXPECT_TRUE(request.codecs.empty());
  EXPECT_EQ(request.route.stages[0].offsets_bytes.size(), kTensors);
}

TEST_F(PlanningTest, TheFirstPlanIsInForceFromTheFirstIterationOn) {
  HandIn(0);
  HandIn(1);
  const PlanOffer offer = Offered();
  EXPECT_EQ(offer.hash, plan::HashOf(*offer.plan));
  planning_.OnPlanAck(0, 1, offer.hash, 0);
  ExpectNothing();
  planning_.OnPlanAck(0, 1, offer.hash, 0);
  ExpectNothing();
  planning_.OnPlanAck(1, 1, offer.hash, 0);
  const auto change = Step<PlanSwitch>();
  EXPECT_EQ(change.version, 1U);
  EXPECT_EQ(change.from_iteration, 1U);
  EXPECT_EQ(change.before_s, 0);
}

TEST_F(PlanningTest, PlansByTheJobsPolicyWhenAllNodesHaveToldTheirTimes) {
  Record();
  planning_.OnTimesSeen(1, SeenAt(3, kTensors, 0.01, 0.005, kCost));
  ExpectNothing();
  planning_.OnTimesSeen(0, SeenAt(3, kTensors, 0.02, 0.005, kCost));
  const auto request = Step<MakePlan>();
  EXPECT_EQ(request.policy, Policy::kExact);
  EXPECT_EQ(request.version, 2U);
  EXPECT_EQ(request.present, nullptr) << "the first plan was made without times";
  EXPECT_NEAR(request.profile.tensors[0].backward_s, 0.02, 1e-12) << "the slower node counts";
}

TEST_F(PlanningTest, PlansOnTheIterationsThatAllNodesHaveRecorded) {
  Record();
  for (const std::size_t recorded : {service::kRecordedMin - 1, service::kRecordedMin}) {
    for (const std::size_t node : {0U, 1U}) {
      service::NodeSeen seen = SeenAt(20, kTensors, 0.01, 0.005, kCost);
      for (std::size_t i = 0; i < recorded; ++i) {
        // Node b releases everything later.
        const auto release_s = static_cast<float>(0.01 * static_cast<double>(1 + node));
        seen.times.iterations.push_back({.iteration = 10 + i,
                                         .offset_s = 0,
                                         .forward_begin_s = 0.1,
                                         .release_s = std::vector<float>(kTensors, release_s),
                                         .forward_s = std::vector<float>(kTensors, 0.005F)});
      }
      seen.times.contention = 0.25;
      planning_.OnTimesSeen(node, std::move(seen));
    }
    const auto request = Step<MakePlan>();
    if (recorded < service::kRecordedMin) {
      EXPECT_TRUE(request.recording.iterations.empty()) << "too few to go by";
      EXPECT_EQ(request.recording.contention, 0);
    } else {
      ASSERT_EQ(request.recording.iterations.size(), recorded);
      EXPECT_FLOAT_EQ(request.recording.iterations[0].release_s[0], 0.02F) << "the last node's";
      EXPECT_EQ(request.recording.contention, 0.25);
    }
    planning_.OnPlanMade(std::shared_ptr<const plan::Plan>());
  }
}

TEST_F(PlanningTest, TheFirstPlanIsReplacedEvenWhenWfbpIsWanted) {
  planning_.SetPolicy(Policy::kWfbp);
  Record();
  ReportTimes(3);
  const auto request = Step<MakePlan>();
  EXPECT_EQ(request.policy, Policy::kWfbp);
  EXPECT_EQ(request.present, nullptr) << "its predictions were for no times at all";
}

TEST_F(PlanningTest, SwitchesBeyondWhatAnyNodeHasBegun) {
  Record();
  ReportTimes(3);
  const PlanOffer offer = Offered();
  Hold(offer, 5, 7);
  const auto change = Step<PlanSwitch>();
  EXPECT_EQ(change.version, 2U);
  EXPECT_EQ(change.from_iteration, 7 + kSwitchSlack);
  EXPECT_EQ(change.before_s, 1);
}

TEST_F(PlanningTest, TimesThatComeWhileAPlanIsUnderWayBeginNoOther) {
  Record();
  ReportTimes(3);
  const auto request = Step<MakePlan>();
  ReportTimes(6);
  ExpectNothing();
  planning_.OnPlanMade(Made(request));
  const auto offer = Step<PlanOffer>();
  ReportTimes(6);
  ExpectNothing();
  Hold(offer, 4, 4);
  Step<PlanSwitch>();
  ReportTimes(8);
  ExpectNothing();
}

TEST_F(PlanningTest, LooksForAFasterPlanOnlyAfterIterationsUnderThePresentOne) {
  Run();
  ReportTimes(11);
  ExpectNothing();
  ReportTimes(22);
  const auto request = Step<MakePlan>();
  EXPECT_EQ(request.policy, Policy::kExact);
  EXPECT_EQ(request.version, 3U);
  ASSERT_NE(request.present, nullptr);
  EXPECT_EQ(request.present->version, 2U);
  EXPECT_EQ(request.margin, service::kPlanMargin);
}

TEST_F(PlanningTest, KeepsAPlanThatIsAsGoodAndGivesItsSuccessorTheSameVersion) {
  Run();
  ReportTimes(22);
  EXPECT_EQ(Step<MakePlan>().version, 3U);
  planning_.OnPlanMade(std::shared_ptr<const plan::Plan>());
  ExpectNothing();
  ReportTimes(38);
  EXPECT_EQ(Step<MakePlan>().version, 3U);
}

TEST_F(PlanningTest, DriftBeyondTheMarginMakesANewPlanAndLessDoesNot) {
  Run();
  ReportTimes(22, 0.0101);
  MakePlan request = Step<MakePlan>();
  const auto faster = [&request] {
    return plan::MakeFasterPlan(request.policy, request.profile, request.route, request.version,
                                {.plan = *request.present,
                                 .iteration_s = request.iteration_s,
                                 .running_s = request.running_s,
                                 .margin = request.margin});
  };
  ASSERT_TRUE(faster().ok());
  EXPECT_FALSE(faster()->has_value());
  planning_.OnPlanMade(std::shared_ptr<const plan::Plan>());
  // The startup has grown thirtyfold: the blocks that were good are far too many.
  ReportTimes(38, 0.0101, {.startup_s = 3e-2, .s_per_byte = 1e-8});
  request = Step<MakePlan>();
  ASSERT_TRUE(faster().ok());
  ASSERT_TRUE(faster()->has_value());
  EXPECT_LT((*faster())->blocks.size(), request.present->blocks.size());
  // Where nobody stands still for gradients now, there is nothing that another plan could save.
  request.running_s = request.iteration_s;
  EXPECT_FALSE(faster()->has_value());
  // Nor is it worth a change where the loop does something else nearly all the time.
  request.running_s = 0;
  request.iteration_s = 1e4;
  EXPECT_FALSE(faster()->has_value());
}

// A loop whose passes take 15 ms, and which does something else for 0.1 to 0.5 s before the next
// forward pass: gradients have arrived long before it, however often what a block costs seems to
// change.
class ElsewhereTest : public PlanningTest {
 protected:
  // The plans of a minute after the first one; `heeds_time`: whether the times of whole iterations
  // count, which they did not before there was such a thing as time elsewhere.
  int PlansOfAMinute(bool heeds_time) {
    Run();
    int plans = 0;
    std::uint64_t iteration = 12;
    double elsewhere_s = 0.1;
    for (double passed_s = 0; passed_s < 60;) {
      constexpr std::uint64_t kTold = 16;  // iterations whose times are told at once
      elsewhere_s = elsewhere_s < 0.5 ? elsewhere_s + 0.1 : 0.1;
      const double iteration_s = 0.015 + elsewhere_s;
      passed_s += kTold * iteration_s;
      iteration += kTold;
      const double startup_s = plans % 2 == 0 ? 3e-2 : 1e-3;
      auto seen =
          SeenAt(iteration, kTensors, 0.01, 0.005, {.startup_s = startup_s, .s_per_byte = 1e-8});
      seen.times.iteration_s = seen.times.running_s = iteration_s;
      for (const std::size_t node : {0U, 1U}) planning_.OnTimesSeen(node, seen);
      const auto request = Step<MakePlan>();
      const auto made =
          plan::MakeFasterPlan(request.policy, request.profile, request.route, request.version,
                               {.plan = *request.present,
                                .iteration_s = heeds_time ? request.iteration_s : 0,
                                .running_s = heeds_time ? request.running_s : 0,
                                .margin = request.margin});
      if (!made.ok() || !made->has_value()) {
        planning_.OnPlanMade(std::shared_ptr<const plan::Plan>());
        continue;
      }
      ++plans;
      planning_.OnPlanMade(std::make_shared<const plan::Plan>(**made));
      Hold(Step<PlanOffer>(), iteration, iteration);
      Step<PlanSwitch>();
    }
    return plans;
  }
};

TEST_F(ElsewhereTest, WouldBePlannedAgainAndAgainIfOnlyBlocksCounted) {
  EXPECT_GE(PlansOfAMinute(false), 10);
}

TEST_F(ElsewhereTest, IsNotPlannedAgainWhereNobodyStandsStill) {
  EXPECT_EQ(PlansOfAMinute(true), 0);
}

TEST_F(PlanningTest, AnotherPolicyNeedsNoNewTimes) {
  Run();
  ReportTimes(22);
  Step<MakePlan>();
  planning_.OnPlanMade(std::shared_ptr<const plan::Plan>());
  planning_.SetPolicy(Policy::kByteScheduler);
  const auto request = Step<MakePlan>();
  EXPECT_EQ(request.policy, Policy::kByteScheduler);
  EXPECT_EQ(request.present, nullptr) << "it comes whether it is faster or not";
}

// Tensors 0 and 2 as int8; of tensor 2 nobody else may say anything.
std::shared_ptr<const service::Layout> CompressedLayout(std::uint64_t after) {
  service::Layout layout = LayoutOf(Elements(PlanningTest::kTensors));
  layout.tensors[0].codec = layout.tensors[2].codec = Codec::kInt8;
  layout.tensors[2].keeps_codec = true;
  layout.compress_after = after;
  return Shared(std::move(layout));
}
using Runs = std::vector<plan::CodecRun>;
const Runs kAsRanksSay = {{Codec::kInt8, 0, 1}, {Codec::kInt8, 2, 1}};

TEST_F(PlanningTest, PlansCompressAsRanksAndThenAPersonSay) {
  for (const std::size_t node : {0U, 1U}) planning_.OnLayout(node, CompressedLayout(0), {});
  const auto request = Step<MakePlan>();
  planning_.OnPlanMade(Made(request));
  PlanOffer offer = Step<PlanOffer>();
  EXPECT_EQ(offer.plan->codecs, kAsRanksSay);
  Hold(offer, 0, 0);
  Step<PlanSwitch>();
  ReportTimes(3);
  Hold(Offered(), 4, 4);
  Step<PlanSwitch>();
  ReportTimes(22);
  EXPECT_NE(Step<MakePlan>().present, nullptr) << "codecs as they were";
  planning_.OnPlanMade(std::shared_ptr<const plan::Plan>());
  planning_.SetCodec(Codec::kBFloat16);
  const auto recoded = Step<MakePlan>();
  EXPECT_EQ(recoded.policy, Policy::kExact);
  EXPECT_EQ(recoded.present, nullptr) << "it comes whether it is faster or not";
  planning_.OnPlanMade(Made(recoded));
  offer = Step<PlanOffer>();
  EXPECT_EQ(
      offer.plan->codecs,
      (Runs{{Codec::kBFloat16, 0, 2}, {Codec::kInt8, 2, 1}, {Codec::kBFloat16, 3, kTensors - 3}}));
  Hold(offer, 24, 24);
  Step<PlanSwitch>();
  planning_.SetCodec(Codec::kBFloat16);
  ExpectNothing();
}

TEST_F(PlanningTest, CompressesOnlyAfterSoManyIterations) {
  for (const std::size_t node : {0U, 1U}) planning_.OnLayout(node, CompressedLayout(20), {});
  PlanOffer offer = Offered();
  EXPECT_TRUE(offer.plan->codecs.empty());
  Hold(offer, 0, 0);
  Step<PlanSwitch>();
  ReportTimes(3);
  offer = Offered();
  EXPECT_TRUE(offer.plan->codecs.empty());
  Hold(offer, 4, 4);
  Step<PlanSwitch>();
  ReportTimes(19);
  EXPECT_NE(Step<MakePlan>().present, nullptr);
  planning_.OnPlanMade(std::shared_ptr<const plan::Plan>());
  planning_.OnTimesSeen(0, SeenAt(20, kTensors, 0.01, 0.005, kCost));
  const auto request = Step<MakePlan>();
  EXPECT_EQ(request.present, nullptr);
  planning_.OnPlanMade(Made(request));
  EXPECT_EQ(Step<PlanOffer>().plan->codecs, kAsRanksSay);
}

// Also where servers sum.
TEST_F(PlanningTest, SaysWhyOneNodeCompressesNothing) {
  for (const std::uint32_t servers : {0U, 1U}) {
    service::JobShape shape = TwoNodes();
    shape.servers_count = servers;
    shape.nodes.pop_back();
    Planning planning({.job = "train", .policy = Policy::kExact, .token = 77, .shape = shape});
    planning.OnLayout(0, CompressedLayout(0), {});
    const auto begun = planning.DrainSteps();
    ASSERT_EQ(begun.size(), 1U);
    planning.OnPlanMade(Made(std::get<MakePlan>(begun[0])));
    const auto offered = planning.DrainSteps();
    ASSERT_EQ(offered.size(), 1U);
    EXPECT_TRUE(std::get<PlanOffer>(offered[0]).plan->codecs.empty());
    planning.SetCodec(Codec::kInt8);
    const auto noted = planning.DrainSteps();
    ASSERT_EQ(noted.size(), 1U);
    EXPECT_TEXT(std::get<PlanNote>(noted[0]).text, "one node");
  }
}

TEST_F(PlanningTest, EncodesWhatServersSum) {
  service::JobShape shape = TwoNodes();
  shape.servers_count = 1;
  Planning planning({.job = "train", .policy = Policy::kExact, .token = 77, .shape = shape});
  for (const std::size_t node : {0U, 1U}) planning.OnLayout(node, CompressedLayout(0), {});
  const auto begun = planning.DrainSteps();
  ASSERT_EQ(begun.size(), 1U);
  planning.OnPlanMade(Made(std::get<MakePlan>(begun[0])));
  const auto offered = planning.DrainSteps();
  ASSERT_EQ(offered.size(), 1U);
  EXPECT_EQ(std::get<PlanOffer>(offered[0]).plan->codecs, kAsRanksSay);
}

TEST_F(PlanningTest, ThePolicyInForceIsNoNews) {
  Run();
  ReportTimes(22);
  Step<MakePlan>();
  planning_.OnPlanMade(std::shared_ptr<const plan::Plan>());
  planning_.SetPolicy(Policy::kExact);
  ExpectNothing();
}

TEST_F(PlanningTest, APolicyThatIsWantedWhileAnOfferIsUnderWayComesAfterIt) {
  Record();
  ReportTimes(3);
  const PlanOffer offer = Offered();
  planning_.SetPolicy(Policy::kMgWfbp);
  ExpectNothing();
  Hold(offer, 4, 4);
  EXPECT_EQ(Step<PlanSwitch>().version, 2U);
  planning_.OnTimesSeen(0, SeenAt(22, kTensors, 0.01, 0.005, kCost));
  ExpectNothing();
  planning_.OnTimesSeen(1, SeenAt(22, kTensors, 0.01, 0.005, kCost));
  const auto request = Step<MakePlan>();
  EXPECT_EQ(request.policy, Policy::kMgWfbp);
  EXPECT_EQ(request.version, 3U);
}

TEST_F(PlanningTest, APolicyThatIsWantedWhileAnotherPlanIsMadeIsMadeNext) {
  Run();
  ReportTimes(22);
  Step<MakePlan>();
  planning_.SetPolicy(Policy::kBsp);
  ExpectNothing();
  planning_.OnPlanMade(std::shared_ptr<const plan::Plan>());
  EXPECT_EQ(Step<MakePlan>().policy, Policy::kBsp);
}

TEST_F(PlanningTest, WhatRanksSayGoesBeforeTheConfigurationAndAPersonBeforeBoth) {
  HandIn(0, Policy::kUsByte);
  HandIn(1);
  Hold(Offered(), 0, 0);
  Step<PlanSwitch>();
  ReportTimes(3);
  EXPECT_EQ(Step<MakePlan>().policy, Policy::kUsByte);
  planning_.SetPolicy(Policy::kBsp);
  planning_.OnPlanMade(Error(Code::kInternal, "a bug"));
  const auto steps = planning_.DrainSteps();
  ASSERT_EQ(steps.size(), 2U);
  EXPECT_TRUE(std::holds_alternative<PlanNote>(steps[0]));
  EXPECT_EQ(std::get<MakePlan>(steps[1]).policy, Policy::kBsp);
}

TEST_F(PlanningTest, ANodeThatHoldsAnotherPlanFailsTheJob) {
  HandIn(0);
  HandIn(1);
  const PlanOffer offer = Offered();
  planning_.OnPlanAck(1, 1, offer.hash ^ 1, 0);
  const auto failure = Step<PlanFailure>();
  EXPECT_EQ(failure.code, Code::kMismatch);
  EXPECT_TEXT(failure.cause, "plan 1", "node b", "job train");
  planning_.OnPlanAck(0, 1, offer.hash, 0);
  planning_.SetPolicy(Policy::kBsp);
  ExpectNothing();
}

TEST_F(PlanningTest, AnswersToAnotherPlanThanTheOfferedOneAreIgnored) {
  Record();
  ReportTimes(3);
  const PlanOffer offer = Offered();
  planning_.OnPlanAck(0, 1, 0, 0);
  planning_.OnPlanAck(1, 3, 0, 0);
  ExpectNothing();
  Hold(offer, 4, 4);
  Step<PlanSwitch>();
}

TEST_F(PlanningTest, LayoutsThatDifferFailTheJobWithRankTensorAndNumbers) {
  HandIn(0);
  auto counts = Elements(kTensors);
  counts[2] = 5;
  planning_.OnLayout(1, Shared(LayoutOf(counts)), std::nullopt);
  const auto failure = Step<PlanFailure>();
  EXPECT_EQ(failure.code, Code::kMismatch);
  EXPECT_TEXT(failure.cause, "rank 0", "rank 1", "tensor 2", "layer2", "262144", "byte 2097152");
}

TEST_F(PlanningTest, RanksThatNameDifferentPoliciesFailTheJob) {
  HandIn(0, Policy::kExact);
  HandIn(1, Policy::kWfbp);
  const auto failure = Step<PlanFailure>();
  EXPECT_EQ(failure.code, Code::kMismatch);
  EXPECT_TEXT(failure.cause, "rank 0", "rank 1", "node a", "policy exact", "node b");
}

TEST_F(PlanningTest, TimesThatAreNotOfThisLayoutFailTheJob) {
  Record();
  planning_.OnTimesSeen(1, SeenAt(3, kTensors - 1, 0.01, 0.005, kCost));
  const auto failure = Step<PlanFailure>();
  EXPECT_EQ(failure.code, Code::kCorrupt);
  EXPECT_TEXT(failure.cause, "node b");
}

TEST_F(PlanningTest, APlanThatCannotBeMadeIsSaidOnceAndThePresentOneStays) {
  Run();
  for (const std::uint64_t iteration : {22U, 38U, 54U}) {
    ReportTimes(iteration);
    Step<MakePlan>();
    planning_.OnPlanMade(Error(Code::kInternal, "a bug"));
    if (iteration == 22U) {
      EXPECT_TEXT(Step<PlanNote>().text, "plan 2", "job train");
    }
    ExpectNothing();
  }
}

TEST_F(PlanningTest, WithoutAFirstPlanTheJobFails) {
  HandIn(0);
  HandIn(1);
  Step<MakePlan>();
  planning_.OnPlanMade(Error(Code::kInternal, "a bug"));
  EXPECT_TEXT(Step<PlanFailure>().cause);
}

TEST_F(PlanningTest, APlanThatLeavesGradientsOutIsNotOffered) {
  HandIn(0);
  HandIn(1);
  plan::Plan plan = **Made(Step<MakePlan>());
  plan.blocks.pop_back();
  planning_.OnPlanMade(std::make_shared<const plan::Plan>(plan));
  EXPECT_EQ(Step<PlanFailure>().code, Code::kInternal);
}

TEST_F(PlanningTest, AJobThatComesToItsEndFinishesTheSwitchAndBeginsNoOther) {
  Record();
  ReportTimes(3);
  const PlanOffer offer = Offered();
  planning_.Stop();
  Hold(offer, 4, 4);
  EXPECT_EQ(Step<PlanSwitch>().version, 2U) << "iterations that wait for it go on";
  ReportTimes(22);
  planning_.SetPolicy(Policy::kBsp);
  ExpectNothing();
}

// Else what a rank posted before it left, and all that wait for it, would time out without a plan.
TEST_F(PlanningTest, AJobFromWhichARankHasGoneStillGetsItsFirstPlanAndNoSecond) {
  HandIn(0);
  planning_.Stop();
  HandIn(1);
  Hold(Offered(), 0, 0);
  EXPECT_EQ(Step<PlanSwitch>().version, 1U);
  ReportTimes(3);
  ExpectNothing();
}

TEST_F(PlanningTest, AFailedJobGetsNoFirstPlan) {
  HandIn(0, Policy::kBsp);
  HandIn(1, Policy::kExact);
  EXPECT_EQ(Step<PlanFailure>().code, Code::kMismatch);
  planning_.SetPolicy(Policy::kBsp);
  ExpectNothing();
}

TEST(DescribeSwitch, SaysWhatIsPredictedAndWhatWas) {
  plan::Plan plan;
  plan.version = 2;
  plan.policy = Policy::kExact;
  plan.predicted_s = 0.8124;
  plan.lower_bound_s = 0.0805;
  plan.blocks.resize(7);
  const service::PlanSwitch change{.version = 2, .from_iteration = 12, .before_s = 0.00099};
  EXPECT_TEXT(service::DescribeSwitch("x", plan, 9, change), "plan 2", "iteration 12", "812",
              "80.5", "0.990", "job x");
  plan.codecs = {{Codec::kInt8, 0, 2}, {Codec::kBFloat16, 2, 1}, {Codec::kInt8, 4, 3}};
  EXPECT_TEXT(service::DescribeSwitch("x", plan, 9, change), "7 blocks",
              "5 of 9 gradients as int8, 1 as bf16");
  plan.codecs.clear();
  plan.version = 1;
  plan.policy = Policy::kWfbp;
  plan.blocks.resize(1);
  EXPECT_TEXT(
      service::DescribeSwitch("x", plan, 9, {.version = 1, .from_iteration = 1, .before_s = 0}),
      "plan 1", "iteration 1", "job x");
}

}  // namespace
}  // namespace headrace::support
