#include "client/cli/replay/replay_rank.h"

#include <gtest/gtest.h>

namespace headrace::replay {
namespace {

ipc::PlanRow Plan(std::uint32_t version, std::uint64_t from, const char* policy) {
  ipc::PlanRow plan{};
  plan.version = version;
  plan.from_iteration = from;
  ipc::SetText(plan.policy, policy);
  return plan;
}

TEST(PlanInForce, IsTheOneThatIsAskedFor) {
  EXPECT_TRUE(IsInForce(Plan(2, 10, "exact"), "exact", 11));
  EXPECT_TRUE(IsInForce(Plan(3, 10, "wfbp"), "", 11));
  EXPECT_FALSE(IsInForce(Plan(2, 10, "exact"), "us-byte", 11));
  EXPECT_FALSE(IsInForce(std::nullopt, "", 11));
}

TEST(PlanInForce, KnowsTimes) {
  EXPECT_FALSE(IsInForce(Plan(1, 1, "wfbp"), "wfbp", 11)) << "that plan is for recording";
  EXPECT_FALSE(IsInForce(Plan(0, 0, ""), "", 11));
}

TEST(PlanInForce, MovedTheIterationBeforeToo) {
  EXPECT_FALSE(IsInForce(Plan(2, 11, "exact"), "exact", 11));
  ipc::PlanRow next_waits = Plan(2, 10, "exact");
  next_waits.next_version = 3;
  EXPECT_FALSE(IsInForce(next_waits, "exact", 20));
}

}  // namespace
}  // namespace headrace::replay
