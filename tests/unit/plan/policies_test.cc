// What every policy promises on every route, on random instances.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "service/plan/bound.h"
#include "service/plan/policies.h"
#include "service/plan/simulate.h"
#include "tests/unit/plan/support.h"

namespace headrace::plan {
namespace {

constexpr int kInstances = 150;

struct Instance {
  std::uint64_t seed = 0;
  Profile profile;
  Route route;
};

Instance InstanceOf(std::uint64_t seed) {
  Random random(seed);
  Instance instance{seed, RandomProfile(random, 1 + Below(random, 40), 3'000'000), {}};
  instance.route = RandomRoute(random, instance.profile);
  return instance;
}

Plan PlanOf(Policy policy, const Instance& instance) {
  Result<Plan> plan = MakePlan(policy, instance.profile, instance.route);
  EXPECT_TRUE(plan.ok()) << plan.error().text();
  return std::move(plan.value());
}

class EachPolicy : public testing::TestWithParam<Policy> {};

TEST_P(EachPolicy, TilesEveryTensorExactlyOnce) {
  for (std::uint64_t seed = 0; seed < kInstances; ++seed) {
    const Instance instance = InstanceOf(seed);
    const Plan plan = PlanOf(GetParam(), instance);
    const Status status = CheckCoverage(plan, MakeWorkload(instance.profile));
    ASSERT_TRUE(status.ok()) << "seed " << seed << ": " << status.error().text();
  }
}

TEST_P(EachPolicy, StartsNoBlockBeforeItsBytesAreReady) {
  for (std::uint64_t seed = 0; seed < kInstances; ++seed) {
    const Instance instance = InstanceOf(seed);
    const Workload work = MakeWorkload(instance.profile);
    for (const PlannedBlock& block : PlanOf(GetParam(), instance).blocks) {
      for (const TensorRange& range : block.ranges) {
        ASSERT_GE(block.begin_s, work.release_s[range.tensor]) << "seed " << seed;
      }
    }
  }
}

TEST_P(EachPolicy, UsesALaneForOneBlockAtATime) {
  for (std::uint64_t seed = 0; seed < kInstances; ++seed) {
    const Instance instance = InstanceOf(seed);
    const Plan plan = PlanOf(GetParam(), instance);
    Simulation simulation = *Simulate(instance.profile, instance.route, plan, {});
    auto& spans = simulation.spans;
    std::stable_sort(spans.begin(), spans.end(), [](const Span& left, const Span& right) {
      return left.lane != right.lane ? left.lane < right.lane : left.begin_s < right.begin_s;
    });
    for (std::size_t index = 1; index < spans.size(); ++index) {
      if (spans[index].lane != spans[index - 1].lane) continue;
      ASSERT_GE(spans[index].begin_s, spans[index - 1].end_s) << "seed " << seed;
    }
  }
}

TEST_P(EachPolicy, PredictsWhatTheEventSimulationGives) {
  for (std::uint64_t seed = 0; seed < kInstances; ++seed) {
    const Instance instance = InstanceOf(seed);
    const Plan plan = PlanOf(GetParam(), instance);
    const Simulation simulation = *Simulate(instance.profile, instance.route, plan, {});
    ASSERT_NEAR(simulation.iteration_s, plan.predicted_s, plan.predicted_s * kRounding)
        << "seed " << seed;
    std::vector<double> begin_s(plan.blocks.size(), 1e9);
    std::vector<double> end_s(plan.blocks.size(), 0);
    for (const Span& span : simulation.spans) {
      begin_s[span.block] = std::min(begin_s[span.block], span.begin_s);
      end_s[span.block] = std::max(end_s[span.block], span.end_s);
    }
    for (std::size_t block = 0; block < plan.blocks.size(); ++block) {
      ASSERT_NEAR(begin_s[block], plan.blocks[block].begin_s, kRounding) << "seed " << seed;
      ASSERT_NEAR(end_s[block], plan.blocks[block].end_s, kRounding) << "seed " << seed;
    }
  }
}

TEST_P(EachPolicy, IsNotFasterThanTheBound) {
  for (std::uint64_t seed = 0; seed < kInstances; ++seed) {
    const Instance instance = InstanceOf(seed);
    const Plan plan = PlanOf(GetParam(), instance);
    ASSERT_EQ(plan.lower_bound_s,
              LowerBound(MakeWorkload(instance.profile), instance.route, HasHalves(plan)));
    ASSERT_GE(plan.predicted_s, plan.lower_bound_s * (1 - kRounding)) << "seed " << seed;
    const Simulation jittered = *Simulate(instance.profile, instance.route, plan, {0.3, seed});
    ASSERT_GE(jittered.iteration_s, jittered.lower_bound_s * (1 - kRounding)) << "seed " << seed;
  }
}

TEST_P(EachPolicy, IsNotFasterThanExact) {
  if (TraitsOf(GetParam()).halves) return;  // saves startups
  for (std::uint64_t seed = 0; seed < kInstances; ++seed) {
    const Instance instance = InstanceOf(seed);
    const double exact_s = PlanOf(Policy::kExact, instance).predicted_s;
    ASSERT_GE(PlanOf(GetParam(), instance).predicted_s, exact_s * (1 - 1e-12)) << "seed " << seed;
  }
}

TEST_P(EachPolicy, IsNotFasterThanExactOnTensorsOfAFewElements) {
  if (TraitsOf(GetParam()).halves) return;  // saves startups
  for (std::uint64_t seed = 0; seed < 4 * kInstances; ++seed) {
    Random random(seed);
    Instance instance{seed, RandomProfile(random, 6, 8, DType::kUInt8), {}};
    instance.route = Below(random, 2) == 0
                         ? RandomRoute(random, instance.profile)
                         : AllReduceRoute({{RandomLine(random, instance.profile)}});
    const double exact_s = PlanOf(Policy::kExact, instance).predicted_s;
    ASSERT_GE(PlanOf(GetParam(), instance).predicted_s, exact_s * (1 - 1e-12)) << "seed " << seed;
  }
}

// Over servers: a block of tensors that do not lie side by side has a startup for each run.
TEST_P(EachPolicy, IsNotFasterThanExactWhereTransfersHoldNeighboursOnly) {
  if (TraitsOf(GetParam()).halves) return;  // servers sum whole
  for (std::uint64_t seed = 0; seed < kInstances; ++seed) {
    Random random(seed);
    Instance instance{seed, RandomProfile(random, 1 + Below(random, 40), 3'000'000), {}};
    instance.route = AllReduceRoute({{RandomLine(random, instance.profile)}});
    std::vector<std::uint64_t>& offsets = instance.route.stages[0].offsets_bytes;
    std::uint64_t end = 0;
    for (const std::uint64_t bytes : MakeWorkload(instance.profile).bytes) {
      offsets.push_back(end + 64 * Below(random, 2));
      end = offsets.back() + bytes;
    }
    const double exact_s = PlanOf(Policy::kExact, instance).predicted_s;
    ASSERT_GE(PlanOf(GetParam(), instance).predicted_s, exact_s * (1 - 1e-12)) << "seed " << seed;
  }
}

std::vector<std::uint64_t> SizesOf(const Plan& plan) {
  std::vector<std::uint64_t> sizes;
  for (const PlannedBlock& block : plan.blocks) sizes.push_back(block.bytes);
  std::ranges::sort(sizes);
  return sizes;
}

// Whatever is planned for codecs, for `exact` on a route and for `auto` goes by these.
TEST_P(EachPolicy, HasTheTraitsOfItsPlans) {
  PolicyTraits seen = {
      .barrier = false, .sizes_by_cost = false, .halves = false, .from_others = false};
  for (std::uint64_t seed = 0; seed < kInstances; ++seed) {
    Instance instance = InstanceOf(seed);
    const Plan plan = PlanOf(GetParam(), instance);
    seen.barrier = seen.barrier || plan.barrier;
    seen.halves = seen.halves || HasHalves(plan);
    if (HasHalves(plan)) {
      ASSERT_TRUE(instance.route.halves) << "seed " << seed;
    }
    if (TraitsOf(GetParam()).barrier) {
      ASSERT_TRUE(plan.barrier) << "seed " << seed;
    }
    // As many stages, with other lines.
    for (Stage& stage : instance.route.stages) {
      for (Rail& rail : stage.rails) {
        for (CostPiece& piece : rail.line.pieces) piece.startup_s = piece.startup_s * 30 + 1e-3;
      }
    }
    seen.sizes_by_cost =
        seen.sizes_by_cost || SizesOf(PlanOf(GetParam(), instance)) != SizesOf(plan);
  }
  EXPECT_EQ(seen.barrier, TraitsOf(GetParam()).barrier);
  EXPECT_EQ(seen.halves, TraitsOf(GetParam()).halves);
  EXPECT_EQ(seen.sizes_by_cost, TraitsOf(GetParam()).sizes_by_cost);
}

// What is made from others is made by none of them: they would make each other without end.
TEST(Policies, MadeFromOthersAreExactAndAuto) {
  for (const Policy policy : kPolicies) {
    const bool known = policy == Policy::kExact || policy == Policy::kAuto;
    EXPECT_EQ(TraitsOf(policy).from_others, known) << Name(policy);
  }
}

TEST_P(EachPolicy, MakesTheSamePlanTwice) {
  const Instance instance = InstanceOf(7);
  EXPECT_EQ(PlanOf(GetParam(), instance), PlanOf(GetParam(), instance));
}

TEST_P(EachPolicy, HasANameThatReadsBack) { EXPECT_EQ(PolicyNamed(Name(GetParam())), GetParam()); }

std::string TestName(const testing::TestParamInfo<Policy>& info) {
  std::string name(Name(info.param));
  std::erase(name, '-');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Policies, EachPolicy, testing::ValuesIn(kPolicies), TestName);

TEST(Planner, RefusesABadProfile) {
  const Result<Plan> plan = MakePlan(Policy::kExact, Profile{}, AllReduceRoute(Affine(1e-3, 1e-9)));
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.error().code(), Code::kInvalidArgument);
  EXPECT_TRUE(plan.error().text().starts_with("tensors: ")) << plan.error().text();
}

TEST(Planner, RefusesABadRoute) {
  const Profile profile = ProfileOf({{1, 1, 1}});
  const Result<Plan> plan = MakePlan(Policy::kExact, profile, AllReduceRoute(Affine(-1, 1e-9)));
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.error().code(), Code::kInvalidArgument);
  EXPECT_TRUE(plan.error().text().starts_with("all-reduce: cost line: ")) << plan.error().text();
}

TEST(Planner, GivesThePlanItsVersion) {
  const Profile profile = ProfileOf({{1, 1, 1}});
  EXPECT_EQ(MakePlan(Policy::kBsp, profile, AllReduceRoute(Affine(0, 0)), 9)->version, 9u);
}

TEST(Planner, CutsIntoUnitsOfTheSizeItIsGiven) {
  const Profile profile = ProfileOf({{10, 1, 1}, {5, 1, 1}});  // elements of 4 bytes
  const Route route = AllReduceRoute(Affine(0, 1));
  const Plan plan = *MakePlan(Policy::kByteScheduler, profile, route, 1, {.unit_bytes = 16});
  EXPECT_EQ(plan.blocks.size(), 3u + 2u);
  for (const PlannedBlock& block : plan.blocks) EXPECT_LE(block.bytes, 16u);
  // The gap of a second until the input's gradient takes one byte: one unit of tensor 1.
  const Plan us_byte = *MakePlan(Policy::kUsByte, profile, route, 1, {.unit_bytes = 16});
  EXPECT_EQ(us_byte.blocks.front().bytes, 16u);
}

TEST(Planner, HoldsTheForwardPassBackWhereItIsTold) {
  const Profile profile = ProfileOf({{10, 1, 1}, {5, 1, 1}});
  const Route route = AllReduceRoute(Affine(1, 0));
  const Plan free = *MakePlan(Policy::kByteScheduler, profile, route);
  const Plan held = *MakePlan(Policy::kByteScheduler, profile, route, 1, {.barrier = true});
  EXPECT_FALSE(free.barrier);
  EXPECT_TRUE(held.barrier);
  EXPECT_DOUBLE_EQ(held.predicted_s, held.blocks.back().end_s + 2);
}

TEST(Planner, RefusesUnitsThatAreNoWholeElements) {
  const Profile profile = ProfileOf({{10, 1, 1}});
  const Result<Plan> plan =
      MakePlan(Policy::kUsByte, profile, AllReduceRoute(Affine(0, 1)), 1, {.unit_bytes = 6});
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.error().code(), Code::kInvalidArgument);
}

TEST(Planner, KnowsNoOtherPolicyNames) { EXPECT_EQ(PolicyNamed("fastest"), std::nullopt); }

}  // namespace
}  // namespace headrace::plan
