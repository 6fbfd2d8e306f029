// Takes the planning of a job of two nodes through its plans, step by step.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <variant>

#include "service/cluster/planning.h"
#include "tests/unit/service/cluster/plans.h"

namespace headrace::support {

class PlanningTest : public testing::Test {
 public:
  static constexpr std::size_t kTensors = 6;

 protected:
  using Policy = plan::Policy;
  using MakePlan = service::MakePlan;
  using Planning = service::Planning;
  using PlanOffer = service::PlanOffer;
  using PlanSwitch = service::PlanSwitch;

  static constexpr transport::CostLine kCost{.startup_s = 1e-3, .s_per_byte = 1e-8};

  static service::JobShape TwoNodes() {
    return {.nodes = {{.name = "a", .ranks = {0}}, {.name = "b", .ranks = {1}}},
            .servers_count = 0,
            .agreed = {kCost}};
  }

  // The one step that there is now, which is of this kind.
  template <typename Kind>
  Kind Step() {
    const auto steps = planning_.DrainSteps();
    EXPECT_EQ(steps.size(), 1U);
    if (steps.size() != 1 || !std::holds_alternative<Kind>(steps[0])) {
      ADD_FAILURE() << "another step, of kind " << (steps.empty() ? 99 : steps[0].index());
      return {};
    }
    return std::get<Kind>(steps[0]);
  }
  void ExpectNothing() { EXPECT_TRUE(planning_.DrainSteps().empty()); }

  void HandIn(std::size_t node, std::optional<Policy> policy = std::nullopt) {
    planning_.OnLayout(node, Shared(LayoutOf(Elements(kTensors))), policy);
  }
  void ReportTimes(std::uint64_t iteration, double backward_s = 0.01,
                   transport::CostLine cost = kCost) {
    for (const std::size_t node : {0U, 1U}) {
      planning_.OnTimesSeen(node, SeenAt(iteration, kTensors, backward_s, 0.005, cost));
    }
  }
  // Makes what is wanted and offers it; the offer.
  PlanOffer Offered() {
    planning_.OnPlanMade(Made(Step<MakePlan>()));
    return Step<PlanOffer>();
  }
  void Hold(const PlanOffer& offer, std::uint64_t on_a, std::uint64_t on_b) {
    planning_.OnPlanAck(0, offer.plan->version, offer.hash, on_a);
    planning_.OnPlanAck(1, offer.plan->version, offer.hash, on_b);
  }
  // Up to plan 1 in force, and up to plan 2, by `exact`, from iteration 12 on.
  void Record() {
    HandIn(0);
    HandIn(1);
    Hold(Offered(), 0, 0);
    Step<PlanSwitch>();
  }
  void Run() {
    Record();
    ReportTimes(3);
    Hold(Offered(), 4, 4);
    EXPECT_EQ(Step<PlanSwitch>().from_iteration, 12U);
  }

  Planning planning_{{.job = "train", .policy = Policy::kExact, .token = 77, .shape = TwoNodes()}};
};

}  // namespace headrace::support
