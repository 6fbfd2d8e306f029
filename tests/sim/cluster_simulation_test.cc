// Runs the simulation of a cluster for many seeds. What fails is named with its seed and mood; run
// it again with
//
//   cluster_simulation_test --seed=SEED --gtest_filter='*/MOOD'     (or HEADRACE_SIM_SEED=SEED)
//
// which prints the last actions too. --seeds=COUNT runs that many seeds from 1, --minutes=MINUTES
// explores new ones for so long, as each run does for two seconds.
#include "tests/sim/cluster_simulation.h"

#include <gtest/gtest.h>

#include "tests/sim/seeds.h"

namespace headrace::sim {
namespace {

#if defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kSeeds = 10;  // one thread: there is little for it to find
#elif defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t kSeeds = 60;
#else
constexpr std::uint64_t kSeeds = 300;
#endif

const char* MoodName(ClusterMood mood) {
  switch (mood) {
    case ClusterMood::kCalm:
      return "Calm";
    case ClusterMood::kQuarrel:
      return "Quarrel";
    case ClusterMood::kLoss:
      return "Loss";
    case ClusterMood::kNodes:
      return "Nodes";
    case ClusterMood::kStrangers:
      return "Strangers";
    case ClusterMood::kSteering:
      return "Steering";
    case ClusterMood::kReconnect:
      return "Reconnect";
    case ClusterMood::kStandstill:
      return "Standstill";
    case ClusterMood::kRails:
      return "Rails";
    case ClusterMood::kSlow:
      return "Slow";
    case ClusterMood::kControl:
      return "Control";
  }
  return "";
}

class ClusterSimulationTest : public ::testing::TestWithParam<ClusterMood> {};

TEST_P(ClusterSimulationTest, KeepsEveryPromiseForEverySeed) {
  std::uint64_t ended_ok = 0;
  std::uint64_t ended_failed = 0;
  std::uint64_t iterations = 0;
  std::uint64_t switches = 0;
  std::uint64_t messages = 0;
  std::uint64_t decisions = 0;
  std::uint64_t resumes = 0;
  SeedWalk seeds(MoodName(GetParam()), ::testing::UnitTest::GetInstance()->test_to_run_count());
  while (const std::optional<std::uint64_t> next = seeds.Next()) {
    const std::uint64_t seed = *next;
    ClusterSimulation simulation(seed, GetParam());
    const std::optional<std::string> wrong = simulation.Run();
    ended_ok += simulation.checker().ended_ok();
    ended_failed += simulation.checker().ended_failed();
    iterations += simulation.checker().iterations_ok();
    switches += simulation.agreements().switches_count();
    messages += simulation.messages().received();
    decisions += simulation.decisions();
    resumes += simulation.lines().resumes_count();
    ASSERT_FALSE(wrong) << *wrong << "\n"
                        << HowToReplay(seed, MoodName(GetParam()), simulation.trace());
  }
  // A run in which nothing happens proves nothing.
  EXPECT_TRUE(ended_ok >= seeds.count() || seeds.IsOne()) << ended_ok;
  EXPECT_TRUE(iterations >= seeds.count() || seeds.IsOne()) << iterations;
  EXPECT_TRUE(2 * messages >= seeds.count() || seeds.IsOne()) << messages;
  const bool harms_control = GetParam() == ClusterMood::kControl;
  EXPECT_TRUE(!harms_control || 2 * resumes >= seeds.count() || seeds.IsOne()) << resumes;
  EXPECT_TRUE(2 * switches >= seeds.count() || seeds.IsOne()) << switches;
  // Ranks between their iterations, and ranks that stand still, for which others wait.
  const bool evicts = GetParam() == ClusterMood::kSlow;
  EXPECT_TRUE(!evicts || 10 * decisions >= seeds.count() || seeds.IsOne()) << decisions;
  const bool is_calm = GetParam() == ClusterMood::kCalm || GetParam() == ClusterMood::kRails ||
                       GetParam() == ClusterMood::kControl;
  EXPECT_TRUE(evicts || (ended_failed != 0) == !is_calm || seeds.IsOne());
  RecordProperty("iterations", std::to_string(iterations));
  RecordProperty("messages", std::to_string(messages));
  RecordProperty("decisions", std::to_string(decisions));
  RecordProperty("resumes", std::to_string(resumes));
  RecordProperty("switches", std::to_string(switches));
  RecordProperty("ended_ok", std::to_string(ended_ok));
  RecordProperty("ended_failed", std::to_string(ended_failed));
}

INSTANTIATE_TEST_SUITE_P(Moods, ClusterSimulationTest,
                         ::testing::Values(ClusterMood::kCalm, ClusterMood::kQuarrel,
                                           ClusterMood::kLoss, ClusterMood::kNodes,
                                           ClusterMood::kStrangers, ClusterMood::kSteering,
                                           ClusterMood::kReconnect, ClusterMood::kStandstill,
                                           ClusterMood::kRails, ClusterMood::kSlow,
                                           ClusterMood::kControl),
                         [](const auto& test) { return MoodName(test.param); });

}  // namespace
}  // namespace headrace::sim

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (!headrace::sim::ReadSeeds(argc, argv, headrace::sim::kSeeds)) return 2;
  headrace::sim::TellTheSeedOfACrash();
  return RUN_ALL_TESTS();
}
