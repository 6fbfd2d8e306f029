// Runs the simulation of a cluster for many seeds. What fails is named with its seed and mood; run
// it again with
//
//   cluster_simulation_test --seed=SEED --gtest_filter='*/MOOD'     (or HEADRACE_SIM_SEED=SEED)
//
// which prints the last actions too. --seeds=COUNT runs more seeds than usual, from 1.
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
  }
  return "";
}

class ClusterSimulationTest : public ::testing::TestWithParam<ClusterMood> {};

TEST_P(ClusterSimulationTest, KeepsEveryPromiseForEverySeed) {
  std::uint64_t ended_ok = 0;
  std::uint64_t ended_failed = 0;
  std::uint64_t iterations = 0;
  std::uint64_t switches = 0;
  const Seeds seeds = Wanted();
  for (std::uint64_t seed = seeds.first; seed <= seeds.last; ++seed) {
    NowRuns(seed, MoodName(GetParam()));
    ClusterSimulation simulation(seed, GetParam());
    const std::optional<std::string> wrong = simulation.Run();
    ended_ok += simulation.ledger().ended_ok();
    ended_failed += simulation.ledger().ended_failed();
    iterations += simulation.ledger().iterations_ok();
    switches += simulation.agreements().switches_count();
    ASSERT_FALSE(wrong) << *wrong << "\n"
                        << HowToReplay(seed, MoodName(GetParam()), simulation.trace());
  }
  // A run in which nothing happens proves nothing.
  EXPECT_GT(ended_ok, seeds.last - seeds.first);
  EXPECT_TRUE(iterations > seeds.last - seeds.first || seeds.IsOne()) << iterations;
  EXPECT_TRUE(2 * switches > seeds.last - seeds.first || seeds.IsOne()) << switches;
  EXPECT_EQ(ended_failed != 0, GetParam() != ClusterMood::kCalm || seeds.IsOne());
  RecordProperty("iterations", std::to_string(iterations));
  RecordProperty("switches", std::to_string(switches));
  RecordProperty("ended_ok", std::to_string(ended_ok));
  RecordProperty("ended_failed", std::to_string(ended_failed));
}

INSTANTIATE_TEST_SUITE_P(Moods, ClusterSimulationTest,
                         ::testing::Values(ClusterMood::kCalm, ClusterMood::kQuarrel,
                                           ClusterMood::kLoss, ClusterMood::kNodes,
                                           ClusterMood::kStrangers),
                         [](const auto& test) { return MoodName(test.param); });

}  // namespace
}  // namespace headrace::sim

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (!headrace::sim::ReadSeeds(argc, argv, headrace::sim::kSeeds)) return 2;
  headrace::sim::TellTheSeedOfACrash();
  return RUN_ALL_TESTS();
}
