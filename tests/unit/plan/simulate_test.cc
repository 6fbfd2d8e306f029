// The event simulation and the lower bound.
#include "service/plan/simulate.h"

#include <gtest/gtest.h>

#include "service/plan/bound.h"
#include "tests/support/expect_text.h"
#include "tests/unit/plan/support.h"

namespace headrace::plan {
namespace {

// Elements of one byte; r_1 = 4, r_0 = 8; tails 2 and 1. wfbp sends [4, 10] and [10, 13].
const Route kLane = AllReduceRoute(Affine(1, 1));

TEST(Simulation, TellsWhatLanesAndBlocksDid) {
  const Plan plan = *MakePlan(Policy::kWfbp, kTwo, kLane);
  const Simulation simulation = *Simulate(kTwo, kLane, plan, {});
  EXPECT_DOUBLE_EQ(simulation.iteration_s, 15);
  EXPECT_DOUBLE_EQ(simulation.lanes[0].busy_s, 9);
  EXPECT_DOUBLE_EQ(simulation.lanes[0].utilisation, 0.6);
  EXPECT_DOUBLE_EQ(simulation.forward_wait_s, 5);  // from 8 to 13
  EXPECT_EQ(simulation.forward_begin_s, (std::vector<double>{13, 14}));
  EXPECT_EQ(simulation.release_s, (std::vector<double>{8, 4}));
  ASSERT_EQ(simulation.spans.size(), 2u);
  EXPECT_DOUBLE_EQ(simulation.spans[1].begin_s, 10);
}

// The bound: T_B + T_F = 10; T_B + a + b*M_0 + T_F = 8 + 3 + 2 = 13; the preemptive schedule sends
// 4 bytes of tensor 1, tensor 0 until 10 (+2), the last byte until 11 (+1): 12, + a = 13.
TEST(LowerBound, IsTheLargestOfItsThreeParts) {
  EXPECT_DOUBLE_EQ(LowerBound(MakeWorkload(kTwo), kLane), 13);
  EXPECT_DOUBLE_EQ(LowerBound(MakeWorkload(kTwo), AllReduceRoute(Affine(0, 0))), 10);
}

// On servers of their own a byte also passes the other lane: its startup and one byte's time.
// Either lane alone takes 15 at the least, as SplitsATensorAtTheEndOfTheBackwardPass says.
TEST(LowerBound, AddsTheOtherStagesOfAPipeline) {
  const Route route = ParameterServerRoute(Affine(1, 1), Affine(1, 1), Placement::kExtra);
  EXPECT_NEAR(LowerBound(MakeWorkload(kTwo), route), 15 + 2, 1e-9);
}

TEST(LowerBound, AddsUpTheStagesOfOneLane) {
  const Route route = ParameterServerRoute(Affine(1, 1), Affine(1, 1), Placement::kColocated);
  EXPECT_EQ(LowerBound(MakeWorkload(kTwo), route),
            LowerBound(MakeWorkload(kTwo), AllReduceRoute(Affine(2, 2))));
}

TEST(Jitter, StaysWithinItsFraction) {
  const Profile profile = NetworkProfile(200, 1);
  const Profile jittered = Jittered(profile, {0.1, 5});
  bool any_slower = false;
  for (std::size_t l = 0; l < profile.tensors.size(); ++l) {
    const double ratio = jittered.tensors[l].backward_s / profile.tensors[l].backward_s;
    ASSERT_GE(ratio, 0.9 - 1e-12);
    ASSERT_LE(ratio, 1.1 + 1e-12);
    any_slower = any_slower || ratio > 1.05;
  }
  EXPECT_TRUE(any_slower);
}

TEST(Jitter, DependsOnTheSeedAlone) {
  const Profile profile = NetworkProfile(20, 1);
  EXPECT_EQ(Jittered(profile, {0.1, 5}), Jittered(profile, {0.1, 5}));
  EXPECT_NE(Jittered(profile, {0.1, 5}), Jittered(profile, {0.1, 6}));
  EXPECT_EQ(Jittered(profile, {0, 5}), profile);
}

TEST(Simulation, KeepsThePlansOrderWhenALaterBlockIsReadyFirst) {
  Plan plan = *MakePlan(Policy::kWfbp, kTwo, kLane);
  std::swap(plan.blocks[0], plan.blocks[1]);
  const Simulation simulation = *Simulate(kTwo, kLane, plan, {});
  ASSERT_EQ(simulation.spans.size(), 2u);
  EXPECT_EQ(simulation.spans[0].block, 0u);
  EXPECT_DOUBLE_EQ(simulation.spans[0].begin_s, 8);  // tensor 0, though tensor 1 was ready at 4
}

TEST(Simulation, RefusesAPlanThatDoesNotTileTheTensors) {
  Plan plan = *MakePlan(Policy::kWfbp, kTwo, kLane);
  const auto reason = [&] {
    const Error error = Simulate(kTwo, kLane, plan, {}).error();
    EXPECT_EQ(error.code(), Code::kInvalidArgument) << error.text();
    return error.text();
  };
  Plan good = plan;
  plan.blocks.pop_back();
  EXPECT_TEXT(reason(), "tensor 0", "byte 0");
  plan = good;
  plan.blocks[0].ranges[0].offset_bytes = 1;
  EXPECT_TEXT(reason(), "block 0", "tensor 1");
  plan = good;
  plan.blocks.push_back(plan.blocks[0]);
  EXPECT_TEXT(reason(), "tensor 1", "byte 5");
  plan = good;
  plan.blocks[0].bytes = 9;
  EXPECT_TEXT(reason(), "block 0");
  plan = good;
  plan.blocks[0].ranges.clear();
  EXPECT_TEXT(reason(), "block 0");
  plan = good;
  plan.blocks[0].ranges[0].tensor = 2;
  EXPECT_TEXT(reason(), "block 0");
}

TEST(Simulation, RefusesCutElements) {
  const Profile profile = ProfileOf({{2, 4, 1}});
  Plan plan = *MakePlan(Policy::kBsp, profile, kLane);
  plan.blocks[0].ranges = {{0, 0, 2}, {0, 2, 6}};
  const Error error = Simulate(profile, kLane, plan, {}).error();
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_TEXT(error.text(), "block 0", "tensor 0");
}

TEST(Simulation, RefusesJitterOutOfRange) {
  const Plan plan = *MakePlan(Policy::kBsp, kTwo, kLane);
  EXPECT_FALSE(Simulate(kTwo, kLane, plan, {1.5, 1}).ok());
  EXPECT_FALSE(Simulate(kTwo, kLane, plan, {-0.1, 1}).ok());
}

}  // namespace
}  // namespace headrace::plan
