// Runs the simulation of a job that loses ranks and takes others in for many seeds, as
// cluster_simulation_test.cc does with its moods, in one program with these.
#include "tests/sim/elastic_simulation.h"

#include <gtest/gtest.h>

#include "tests/sim/seeds.h"

namespace headrace::sim {
namespace {

constexpr const char* kMood = "Elastic";
constexpr std::uint64_t kSeedsWithoutVotes = 1500;
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t kNewSeeds = 0;
#else
constexpr std::uint64_t kNewSeeds = 1000;  // in each run of the tests
#endif

class ElasticSimulationTest : public ::testing::TestWithParam<const char*> {};

TEST_P(ElasticSimulationTest, KeepsEveryPromiseForEverySeed) {
  ElasticTraining::Counts done;
  ElasticBooks::Counts changes;
  std::uint64_t applied = 0;
  std::uint64_t evicted = 0;
  std::uint64_t strangers = 0;
  std::uint64_t switches = 0;
  std::uint64_t gave_up = 0;
  SeedWalk seeds(GetParam(), ::testing::UnitTest::GetInstance()->test_to_run_count(), kNewSeeds);
  while (const std::optional<std::uint64_t> seed = seeds.Next()) {
    ElasticSimulation simulation({.seed = *seed});
    const std::optional<std::string> wrong = simulation.Run();
    ASSERT_FALSE(wrong) << *wrong << "\n" << HowToReplay(*seed, kMood, simulation.run().trace);
    const ElasticTraining::Counts counts = simulation.counts();
    done.summed_again += counts.summed_again;
    done.handed_on += counts.handed_on;
    done.beside += counts.beside;
    done.caught_up += counts.caught_up;
    done.received += counts.received;
    done.listened += counts.listened;
    const ElasticBooks::Counts& books = simulation.run().books.counts();
    changes.shrinks += books.shrinks;
    changes.joins += books.joins;
    changes.spares += books.spares;
    changes.moves += books.moves;
    applied += simulation.run().books.applied();
    evicted += simulation.run().evicted;
    strangers += simulation.faults().strangers_count();
    switches += simulation.run().agreements.switches_count();
    gave_up += simulation.faults().gave_up() ? 1 : 0;
  }
  const auto record = [](const char* what, std::uint64_t count) {
    RecordProperty(what, std::to_string(count));
  };
  record("applied", applied);
  record("shrinks", changes.shrinks);
  record("joins", changes.joins);
  record("spares", changes.spares);
  record("moves", changes.moves);
  record("evicted", evicted);
  record("summed_again", done.summed_again);
  record("handed_on", done.handed_on);
  record("beside", done.beside);
  record("caught_up", done.caught_up);
  record("received", done.received);
  record("listened", done.listened);
  record("strangers", strangers);
  record("switches", switches);
  record("gave_up", gave_up);
  if (seeds.IsOne() || seeds.count() < 250) return;
  // A run in which nothing happens proves nothing.
  for (const std::uint64_t each :
       {changes.shrinks, changes.joins, changes.spares, changes.moves, evicted, done.summed_again,
        done.handed_on, done.beside, done.caught_up, done.received, done.listened, strangers,
        switches}) {
    EXPECT_GT(each, 0U);
  }
  EXPECT_GT(applied, 3 * seeds.count());
  EXPECT_LT(gave_up, seeds.count() / 3);
}

// Without the barrier behind its gradients an iteration is applied by ranks that die, and another
// one by those that remain: it is there for that, and the check notices where it is missing.
TEST(ElasticSimulation, NoticesWhereIterationsAreNoTransactions) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "one thread: there is nothing to find for the thread sanitizer";
#endif
  for (std::uint64_t seed = 1; seed <= kSeedsWithoutVotes; ++seed) {
    const std::optional<std::string> wrong =
        ElasticSimulation(
            {.seed = seed, .votes = false, .faults = {ElasticFault::kKill, ElasticFault::kMachine}})
            .Run();
    if (wrong && wrong->find("and others summed it over") != std::string::npos) return;
  }
  ADD_FAILURE() << "no iteration was applied by some and not by others";
}

INSTANTIATE_TEST_SUITE_P(Moods, ElasticSimulationTest, ::testing::Values(kMood),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace headrace::sim
