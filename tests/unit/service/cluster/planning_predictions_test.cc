// When the prediction of the plan in force is held against what was recorded.
#include <algorithm>
#include <memory>

#include "tests/unit/service/cluster/planning_fixture.h"

namespace headrace::support {
namespace {

// Short iterations differ by more than that all the time.
TEST_F(PlanningTest, LooksAtAPredictionOnlyAfterThePlanWasInForceForAWhile) {
  Record();
  for (const double iteration_s : {0.001, 1.0}) {
    for (const std::size_t node : {0U, 1U}) {
      service::NodeSeen seen = SeenAt(40, kTensors, 0.01, 0.005, kCost);
      seen.times.iteration_s = iteration_s;
      planning_.OnTimesSeen(node, std::move(seen));
    }
    const double tolerance = Step<MakePlan>().tolerance;
    if (iteration_s < 1) {
      EXPECT_GT(tolerance, 1) << "40 ms";
    } else {
      EXPECT_EQ(tolerance, service::kPredictionTolerance) << "40 s";
    }
    planning_.OnPlanMade(std::shared_ptr<const plan::Plan>());
  }
}

// The first ones are made from few iterations, so they are looked at soon.
TEST_F(PlanningTest, LooksAtEachPredictionAfterTwiceTheTimeOfTheLast) {
  Run();
  double holds_s = service::kFirstPredictionHoldsSeconds;
  std::uint64_t from = 12;
  for (std::uint32_t version = 2; version < 12; ++version) {
    // Looked at a little too early, and in time.
    for (const double in_force_s : {0.9 * holds_s, holds_s}) {
      for (const std::size_t node : {0U, 1U}) {
        service::NodeSeen seen = SeenAt(from + 10, kTensors, 0.01, 0.005, kCost);
        seen.times.iteration_s = in_force_s / 10;
        planning_.OnTimesSeen(node, std::move(seen));
      }
      const auto request = Step<MakePlan>();
      ASSERT_EQ(request.version, version + 1);
      if (in_force_s < holds_s) {
        EXPECT_GT(request.tolerance, 1) << version;
        planning_.OnPlanMade(std::shared_ptr<const plan::Plan>());
      } else {
        EXPECT_EQ(request.tolerance, service::kPredictionTolerance) << version;
        planning_.OnPlanMade(Made(request));
      }
    }
    Hold(Step<PlanOffer>(), from + 10, from + 10);
    from = Step<PlanSwitch>().from_iteration;
    holds_s = std::min(2 * holds_s, service::kPredictionHoldsSeconds);
  }
  EXPECT_EQ(holds_s, service::kPredictionHoldsSeconds);
}

}  // namespace
}  // namespace headrace::support
