// Runs the simulation for many seeds. What fails is named with its seed and mood; run it again with
//
//   simulation_test --seed=SEED --gtest_filter='*/MOOD'     (or HEADRACE_SIM_SEED=SEED)
//
// which prints the last actions too. --seeds=COUNT runs more seeds than usual, from 1.
#include "tests/sim/simulation.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

// Present when a sanitizer is linked in.
extern "C" void __sanitizer_set_death_callback(void (*callback)()) __attribute__((weak));

namespace headrace::sim {
namespace {

#if defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kSeeds = 20;  // one thread: there is little for it to find
#elif defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t kSeeds = 150;
#else
constexpr std::uint64_t kSeeds = 1000;
#endif
constexpr std::size_t kActionsShown = 60;

struct Wanted {
  std::uint64_t first = 1;
  std::uint64_t last = kSeeds;
};
Wanted wanted;
// What is running, for a crash to tell.
char running[96] = "no seed has begun\n";

void SayWhatIsRunning() {
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, running, std::strlen(running));
}

struct sigaction segv_before;
struct sigaction abort_before;

// Tells the seed, then lets whoever was there before do the rest.
void OnCrash(int signal) {
  SayWhatIsRunning();
  ::sigaction(SIGSEGV, &segv_before, nullptr);
  ::sigaction(SIGABRT, &abort_before, nullptr);
  if (signal == SIGABRT) ::raise(SIGABRT);
}

void TellTheSeedOfACrash() {
  struct sigaction action {};
  action.sa_handler = OnCrash;
  ::sigaction(SIGSEGV, &action, &segv_before);
  ::sigaction(SIGABRT, &action, &abort_before);
  if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(SayWhatIsRunning);
}

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

class SimulationTest : public ::testing::TestWithParam<Mood> {};

TEST_P(SimulationTest, KeepsEveryPromiseForEverySeed) {
  std::uint64_t ended_ok = 0;
  std::uint64_t ended_failed = 0;
  for (std::uint64_t seed = wanted.first; seed <= wanted.last; ++seed) {
    std::snprintf(running, sizeof running, "\nsimulation: seed %llu, mood %s\n",
                  static_cast<unsigned long long>(seed), MoodName(GetParam()));
    Simulation simulation(seed, GetParam());
    const std::optional<std::string> wrong = simulation.Run();
    ended_ok += simulation.ledger().ended_ok();
    ended_failed += simulation.ledger().ended_failed();
    if (!wrong) continue;
    std::string actions;
    if (wanted.first == wanted.last) {
      const std::vector<std::string>& trace = simulation.trace();
      const std::size_t first = trace.size() > kActionsShown ? trace.size() - kActionsShown : 0;
      for (std::size_t i = first; i < trace.size(); ++i) actions += "\n  " + trace[i];
    }
    FAIL() << *wrong << "\nwith " << running + 1 << "replay with --seed=" << seed
           << " --gtest_filter='*/" << MoodName(GetParam()) << "'" << actions;
  }
  // A run in which nothing happens proves nothing.
  EXPECT_GT(ended_ok, wanted.last - wanted.first);
  EXPECT_EQ(ended_failed != 0, GetParam() != Mood::kCalm || wanted.first == wanted.last);
  RecordProperty("ended_ok", std::to_string(ended_ok));
  RecordProperty("ended_failed", std::to_string(ended_failed));
}

INSTANTIATE_TEST_SUITE_P(Moods, SimulationTest,
                         ::testing::Values(Mood::kCalm, Mood::kQuarrel, Mood::kLoss,
                                           Mood::kHostile),
                         [](const auto& test) { return MoodName(test.param); });

bool ReadSeeds(int count, char** arguments) {
  const auto read = [](std::string_view text, std::string_view name, std::uint64_t& value) {
    if (text.substr(0, name.size()) != name) return false;
    value = std::strtoull(text.data() + name.size(), nullptr, 10);
    return true;
  };
  std::uint64_t seed = 0;
  if (const char* text = std::getenv("HEADRACE_SIM_SEED")) seed = std::strtoull(text, nullptr, 10);
  for (int i = 1; i < count; ++i) {
    if (!read(arguments[i], "--seed=", seed) && !read(arguments[i], "--seeds=", wanted.last)) {
      std::fprintf(stderr, "usage: %s [--seed=SEED | --seeds=COUNT]\n", arguments[0]);
      return false;
    }
  }
  if (seed != 0) wanted = {.first = seed, .last = seed};
  return true;
}

}  // namespace
}  // namespace headrace::sim

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (!headrace::sim::ReadSeeds(argc, argv)) return 2;
  headrace::sim::TellTheSeedOfACrash();
  return RUN_ALL_TESTS();
}
