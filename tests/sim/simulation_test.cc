// Runs the simulation for many seeds. What fails is named with its seed and mood; run it again with
//
//   simulation_test --seed=SEED --gtest_filter='*/MOOD'     (or HEADRACE_SIM_SEED=SEED)
//
// which prints the last actions too. --seeds=COUNT runs that many seeds from 1, --minutes=MINUTES
// explores new ones for so long, as each run does for two seconds.
#include "tests/sim/simulation.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/sim/seeds.h"
#include "tests/support/cuda_double/doubled_driver.h"
#include "transport/memory/gpus.h"

namespace headrace::sim {
namespace {

#if defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kSeeds = 20;  // one thread: there is little for it to find
#elif defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t kSeeds = 150;
#else
constexpr std::uint64_t kSeeds = 1000;
#endif
const char* MoodName(Mood mood) {
  switch (mood) {
    case Mood::kCalm:
      return "Calm";
    case Mood::kQuarrel:
      return "Quarrel";
    case Mood::kLoss:
      return "Loss";
    case Mood::kHostile:
      return "Hostile";
  }
  return "";
}

class SimulationTest : public ::testing::TestWithParam<Mood> {
 protected:
  void KeepsEveryPromise(const transport::Gpus* gpus);
};

void SimulationTest::KeepsEveryPromise(const transport::Gpus* gpus) {
  std::uint64_t ended_ok = 0;
  std::uint64_t ended_failed = 0;
  std::uint64_t received = 0;
  SeedWalk seeds(MoodName(GetParam()), ::testing::UnitTest::GetInstance()->test_to_run_count());
  while (const std::optional<std::uint64_t> next = seeds.Next()) {
    const std::uint64_t seed = *next;
    Simulation simulation(seed, GetParam(), gpus);
    const std::optional<std::string> wrong = simulation.Run();
    ended_ok += simulation.checker().ended_ok();
    ended_failed += simulation.checker().ended_failed();
    received += simulation.messages().received();
    ASSERT_FALSE(wrong) << *wrong << "\n"
                        << HowToReplay(seed, MoodName(GetParam()), simulation.trace());
  }
  // A run in which nothing happens proves nothing.
  EXPECT_TRUE(ended_ok >= seeds.count() || seeds.IsOne()) << ended_ok;
  EXPECT_TRUE(2 * received >= seeds.count() || seeds.IsOne()) << received;
  EXPECT_EQ(ended_failed != 0, GetParam() != Mood::kCalm || seeds.IsOne());
  RecordProperty("ended_ok", std::to_string(ended_ok));
  RecordProperty("ended_failed", std::to_string(ended_failed));
}

TEST_P(SimulationTest, KeepsEveryPromiseForEverySeed) { KeepsEveryPromise(nullptr); }

// On the double of CUDA's driver, of which nothing must be left.
TEST_P(SimulationTest, KeepsEveryPromiseWithMemoryOfGpus) {
  const auto double_of_driver = cuda_double::LoadDouble();
  {
    const auto gpus = transport::Gpus::Open(cuda_double::LibraryPath()).value();
    KeepsEveryPromise(gpus.get());
    EXPECT_EQ(gpus->driver().releases_failed(), 0U);
  }
  const auto counts = cuda_double::CountsOf(double_of_driver);
  EXPECT_EQ(counts, std::vector<std::uint64_t>(counts.size(), 0)) << "something was left behind";
}

INSTANTIATE_TEST_SUITE_P(Moods, SimulationTest,
                         ::testing::Values(Mood::kCalm, Mood::kQuarrel, Mood::kLoss,
                                           Mood::kHostile),
                         [](const auto& test) { return MoodName(test.param); });

}  // namespace
}  // namespace headrace::sim

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (!headrace::sim::ReadSeeds(argc, argv, headrace::sim::kSeeds)) return 2;
  headrace::sim::TellTheSeedOfACrash();
  return RUN_ALL_TESTS();
}
