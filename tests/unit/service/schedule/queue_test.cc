// The unified queue: order, credits, weights and reasons, without any clock.
#include "service/schedule/queue.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

#include "tests/unit/service/schedule/why_head_waits.h"

namespace headrace::schedule {
namespace {

using Reason = Wait::Reason;

constexpr JobId kA{1};
constexpr JobId kB{2};
constexpr JobId kC{3};

QueuedStage Make(JobId job, std::uint64_t position, std::uint64_t bytes, std::uint8_t lane = 0) {
  return {.token = std::uint64_t{job.value} << 32 | position,
          .position = position,
          .job = job,
          .lane = lane,
          .bytes = bytes};
}

void ExpectWait(const Wait& wait, Reason reason, std::uint64_t argument) {
  EXPECT_EQ(static_cast<int>(wait.reason), static_cast<int>(reason));
  EXPECT_EQ(wait.argument, argument);
}

// Picks and gives the credit back at once, `count` times; how often each job had its turn.
std::map<JobId, int> Serve(UnifiedQueue& queue, int count) {
  std::map<JobId, int> turns;
  for (int i = 0; i < count; ++i) {
    const std::optional<QueuedStage> stage = queue.Pick(0, 0);
    if (!stage) break;
    queue.Return(*stage);
    ++turns[stage->job];
  }
  return turns;
}

TEST(UnifiedQueue, PicksAJobsStagesInTheOrderOfTheirPositions) {
  UnifiedQueue queue({1000});
  queue.AddJob(kA, {});
  for (const std::uint64_t position : {5U, 2U, 9U, 1U, 7U}) queue.Push(Make(kA, position, 1));
  for (const std::uint64_t position : {1U, 2U, 5U, 7U, 9U}) {
    EXPECT_EQ(queue.Pick(0, 0)->position, position);
  }
  EXPECT_FALSE(queue.Pick(0, 0).has_value());
}

TEST(UnifiedQueue, SaysWhichStageOneStandsBehindWhenItIsPushed) {
  UnifiedQueue queue({1000});
  queue.AddJob(kA, {});
  ExpectWait(queue.Push(Make(kA, 5, 1)), Reason::kNone, 0);
  ExpectWait(queue.Push(Make(kA, 8, 1)), Reason::kBehindStage, 5);
  ExpectWait(queue.Push(Make(kA, 6, 1)), Reason::kBehindStage, 5);
  ExpectWait(queue.Push(Make(kA, 1, 1)), Reason::kNone, 0);
}

TEST(UnifiedQueue, StopsAJobAtItsCreditAndGoesOnWhenCreditComesBack) {
  UnifiedQueue queue({100});
  queue.AddJob(kA, {});
  for (std::uint64_t i = 1; i <= 3; ++i) queue.Push(Make(kA, i, 50));
  const QueuedStage first = *queue.Pick(0, 0);
  const QueuedStage second = *queue.Pick(0, 0);
  EXPECT_FALSE(queue.Pick(0, 0).has_value());
  ExpectWait(WhyHeadWaits(queue, kA, TrafficClass::kPosted, 0, 0), Reason::kNoCredit, 0);
  queue.Return(second);
  EXPECT_EQ(queue.Pick(0, 0)->position, 3U);
  queue.Return(first);
}

TEST(UnifiedQueue, KeepsTheOrderWhenTheHeadIsTooLargeForTheCreditThatIsLeft) {
  UnifiedQueue queue({100});
  queue.AddJob(kA, {});
  queue.Push(Make(kA, 1, 60));
  queue.Push(Make(kA, 2, 60));
  queue.Push(Make(kA, 3, 10));  // would fit, but goes behind 2
  const QueuedStage first = *queue.Pick(0, 0);
  EXPECT_FALSE(queue.Pick(0, 0).has_value());
  queue.Return(first);
  EXPECT_EQ(queue.Pick(0, 0)->position, 2U);
  EXPECT_EQ(queue.Pick(0, 0)->position, 3U);
}

TEST(UnifiedQueue, GivesEachJobItsOwnCredit) {
  UnifiedQueue queue({100});
  queue.AddJob(kA, {});
  queue.AddJob(kB, {});
  queue.Push(Make(kA, 1, 100));
  queue.Push(Make(kA, 2, 100));
  queue.Push(Make(kB, 1, 100));
  EXPECT_EQ(queue.Pick(0, 0)->job, kA);
  EXPECT_EQ(queue.Pick(0, 0)->job, kB) << "A has no credit left, which is not B's concern";
  EXPECT_FALSE(queue.Pick(0, 0).has_value());
}

TEST(UnifiedQueue, GivesEachLaneItsOwnCreditAndOrder) {
  UnifiedQueue queue({10, 100});
  queue.AddJob(kA, {});
  queue.Push(Make(kA, 1, 10, 0));
  queue.Push(Make(kA, 2, 10, 0));
  queue.Push(Make(kA, 3, 60, 1));
  EXPECT_EQ(queue.Pick(1, 0)->position, 3U);
  EXPECT_EQ(queue.Pick(0, 0)->position, 1U);
  EXPECT_FALSE(queue.Pick(0, 0).has_value());
  EXPECT_EQ(queue.Waiting(0), 1U);
  EXPECT_EQ(queue.Waiting(1), 0U);
}

TEST(UnifiedQueue, LetsAStageLargerThanTheCreditGoAlone) {
  UnifiedQueue queue({100});
  queue.AddJob(kA, {});
  queue.Push(Make(kA, 1, 10));
  queue.Push(Make(kA, 2, 1000));
  queue.Push(Make(kA, 3, 1));
  const QueuedStage small = *queue.Pick(0, 0);
  EXPECT_FALSE(queue.Pick(0, 0).has_value()) << "not while another is in flight";
  queue.Return(small);
  const QueuedStage large = *queue.Pick(0, 0);
  EXPECT_EQ(large.position, 2U);
  EXPECT_FALSE(queue.Pick(0, 0).has_value()) << "nothing beside it";
  queue.Return(large);
  EXPECT_EQ(queue.Pick(0, 0)->position, 3U);
}

TEST(UnifiedQueue, LimitsTheNumberOfStagesInFlight) {
  UnifiedQueue queue({1 << 20});
  queue.AddJob(kA, {});
  for (std::uint64_t i = 0; i < kStagesMax; ++i) queue.Push(Make(kA, i, 1));
  std::vector<QueuedStage> picked;
  while (const std::optional<QueuedStage> stage = queue.Pick(0, 0)) picked.push_back(*stage);
  EXPECT_EQ(picked.size(), kInFlightStagesMax);
  ExpectWait(WhyHeadWaits(queue, kA, TrafficClass::kPosted, 0, 0), Reason::kInFlight,
             kInFlightStagesMax);
  queue.Return(picked.front());
  EXPECT_EQ(queue.Pick(0, 0)->position, kInFlightStagesMax);
}

TEST(UnifiedQueue, SharesALaneByWeightInTheLongRun) {
  UnifiedQueue queue({1 << 20});
  queue.AddJob(kA, {.weight = 1});
  queue.AddJob(kB, {.weight = 3});
  for (std::uint64_t i = 0; i < 1000; ++i) {
    queue.Push(Make(kA, i, 10'000));
    queue.Push(Make(kB, i, 10'000));
  }
  std::map<JobId, int> turns = Serve(queue, 400);
  EXPECT_NEAR(turns[kA], 100, 2);
  EXPECT_NEAR(turns[kB], 300, 2);
}

TEST(UnifiedQueue, SharesBytesRatherThanTurnsAmongEqualJobs) {
  UnifiedQueue queue({1 << 30});
  queue.AddJob(kA, {});
  queue.AddJob(kB, {});
  for (std::uint64_t i = 0; i < 1000; ++i) {
    queue.Push(Make(kA, i, 1'000'000));
    queue.Push(Make(kB, i, 100'000));
  }
  std::map<JobId, int> turns = Serve(queue, 550);
  EXPECT_NEAR(turns[kA], 52, 3);  // a stage costs a little besides its bytes
  EXPECT_NEAR(turns[kB], 498, 3);
}

TEST(UnifiedQueue, ServesAHigherClassFirstWhateverTheWeights) {
  UnifiedQueue queue({1000});
  queue.AddJob(kA, {.weight = 1000, .priority = 0});
  queue.AddJob(kB, {.weight = 1, .priority = 2});
  for (std::uint64_t i = 0; i < 10; ++i) {
    queue.Push(Make(kA, i, 100));
    queue.Push(Make(kB, i, 100));
  }
  ExpectWait(WhyHeadWaits(queue, kA, TrafficClass::kPosted, 0, 0), Reason::kBehindJob, kB.value);
  ExpectWait(WhyHeadWaits(queue, kB, TrafficClass::kPosted, 0, 0), Reason::kNone, 0);
  EXPECT_EQ(Serve(queue, 10), (std::map<JobId, int>{{kB, 10}}));
  EXPECT_EQ(Serve(queue, 100), (std::map<JobId, int>{{kA, 10}}));
}

TEST(UnifiedQueue, DoesNotLetAnIdleJobSaveTurns) {
  UnifiedQueue queue({1 << 20});
  queue.AddJob(kA, {});
  queue.AddJob(kB, {});
  for (std::uint64_t i = 0; i < 1000; ++i) queue.Push(Make(kA, i, 1000));
  EXPECT_EQ(Serve(queue, 500)[kA], 500);
  for (std::uint64_t i = 0; i < 1000; ++i) queue.Push(Make(kB, i, 1000));
  std::map<JobId, int> turns = Serve(queue, 100);
  EXPECT_NEAR(turns[kA], 50, 1);
  EXPECT_NEAR(turns[kB], 50, 1);
}

TEST(UnifiedQueue, DoesNotLetAnIdleJobSaveTurnsWhileAllWereIdle) {
  UnifiedQueue queue({1 << 20});
  queue.AddJob(kA, {});
  queue.AddJob(kB, {});
  for (std::uint64_t i = 0; i < 500; ++i) queue.Push(Make(kA, i, 1000));
  EXPECT_EQ(Serve(queue, 500)[kA], 500);
  for (std::uint64_t i = 0; i < 100; ++i) {
    queue.Push(Make(kB, i, 1000));
    queue.Push(Make(kA, 500 + i, 1000));
  }
  EXPECT_NEAR(Serve(queue, 100)[kA], 50, 1);
}

TEST(UnifiedQueue, DoesNotLetAJobGainTurnsBecauseAnotherClassWasServedLast) {
  UnifiedQueue queue({1 << 20});
  queue.AddJob(kA, {});
  queue.AddJob(kB, {});
  queue.AddJob(kC, {.weight = 1, .priority = 1});
  for (std::uint64_t i = 0; i < 1000; ++i) queue.Push(Make(kA, i, 1000));
  EXPECT_EQ(Serve(queue, 500)[kA], 500);
  queue.Push(Make(kC, 0, 1));  // has had nothing yet, and goes first
  EXPECT_EQ(Serve(queue, 1)[kC], 1);
  for (std::uint64_t i = 0; i < 1000; ++i) queue.Push(Make(kB, i, 1000));
  EXPECT_NEAR(Serve(queue, 100)[kA], 50, 1);
}

TEST(UnifiedQueue, DoesNotStarveALateJobBecauseAHigherClassHasHadMuch) {
  UnifiedQueue queue({1 << 20});
  queue.AddJob(kC, {.weight = 1, .priority = 1});
  for (std::uint64_t i = 0; i < 500; ++i) queue.Push(Make(kC, i, 100'000));
  EXPECT_EQ(Serve(queue, 500)[kC], 500);
  queue.AddJob(kA, {});
  queue.AddJob(kB, {});
  for (std::uint64_t i = 0; i < 500; ++i) queue.Push(Make(kA, i, 1000));
  for (std::uint64_t i = 0; i < 500; ++i) queue.Push(Make(kB, i, 1000));
  EXPECT_NEAR(Serve(queue, 100)[kB], 50, 1);
}

TEST(UnifiedQueue, TakesAWaitingStageOut) {
  UnifiedQueue queue({100});
  queue.AddJob(kA, {});
  for (std::uint64_t i = 1; i <= 3; ++i) queue.Push(Make(kA, i, 40));
  const QueuedStage first = *queue.Pick(0, 0);
  EXPECT_TRUE(queue.Remove(Make(kA, 2, 40)));
  EXPECT_FALSE(queue.Remove(Make(kA, 2, 40))) << "it is gone";
  EXPECT_FALSE(queue.Remove(first)) << "it is in flight";
  EXPECT_FALSE(queue.Remove(Make(kB, 2, 40))) << "no such job";
  EXPECT_EQ(queue.Pick(0, 0)->position, 3U);
}

TEST(UnifiedQueue, TellsTheHeadOfALine) {
  UnifiedQueue queue({100});
  queue.AddJob(kA, {});
  EXPECT_FALSE(queue.Head(kA, TrafficClass::kPosted, 0).has_value());
  EXPECT_FALSE(queue.Head(kB, TrafficClass::kPosted, 0).has_value());
  ExpectWait(WhyHeadWaits(queue, kA, TrafficClass::kPosted, 0, 0), Reason::kNone, 0);
  ExpectWait(WhyHeadWaits(queue, kB, TrafficClass::kPosted, 0, 0), Reason::kNone, 0);
  queue.Push(Make(kA, 7, 1));
  EXPECT_EQ(queue.Head(kA, TrafficClass::kPosted, 0)->position, 7U);
  ExpectWait(WhyHeadWaits(queue, kA, TrafficClass::kPosted, 0, 0), Reason::kNone, 0);
}

TEST(UnifiedQueue, ForgetsAJob) {
  UnifiedQueue queue({100});
  queue.AddJob(kA, {});
  queue.AddJob(kB, {});
  queue.Push(Make(kB, 1, 1));
  queue.RemoveJob(kA);
  EXPECT_EQ(queue.Pick(0, 0)->job, kB);
  queue.AddJob(kC, {});
  queue.Push(Make(kC, 1, 1));
  EXPECT_EQ(queue.Pick(0, 0)->job, kC);
}

TEST(UnifiedQueueDeathTest, ChecksTheRulesOfItsCaller) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  UnifiedQueue queue({100});
  queue.AddJob(kA, {});
  queue.Push(Make(kA, 1, 1));
  EXPECT_DEATH(queue.RemoveJob(kA), "active");
  EXPECT_DEATH(queue.Push(Make(kB, 1, 1)), "check failed");
  EXPECT_DEATH(queue.Return(Make(kA, 1, 1)), "in_flight_stages > 0");
  EXPECT_DEATH(queue.AddJob(kC, {.weight = 0}), "weight");
}

// Any sequence of calls: credits balance, order holds within a job, nothing is lost.
TEST(UnifiedQueue, KeepsItsPromisesUnderRandomUse) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    std::mt19937_64 random(seed);
    const auto draw = [&random](std::uint64_t below) { return random() % below; };
    constexpr std::uint64_t kCredit = 1000;
    UnifiedQueue queue({kCredit});
    const std::vector<JobId> jobs{kA, kB, kC};
    std::map<JobId, std::uint64_t> next;
    std::map<JobId, std::uint64_t> last_picked;
    std::map<JobId, std::uint64_t> in_flight;
    for (const JobId job : jobs) {
      queue.AddJob(job, {.weight = static_cast<std::uint32_t>(1 + draw(5)),
                         .priority = static_cast<std::uint32_t>(draw(2))});
    }
    std::vector<QueuedStage> picked;
    std::size_t waiting = 0;
    for (int step = 0; step < 500; ++step) {
      const JobId job = jobs[draw(jobs.size())];
      if (draw(2) == 0) {
        queue.Push(Make(job, ++next[job], 1 + draw(1500)));
        ++waiting;
      } else if (const std::optional<QueuedStage> stage = queue.Pick(0, 0)) {
        EXPECT_GT(stage->position, last_picked[stage->job]) << "seed " << seed;
        last_picked[stage->job] = stage->position;
        EXPECT_TRUE(in_flight[stage->job] == 0 || in_flight[stage->job] + stage->bytes <= kCredit)
            << "seed " << seed;
        in_flight[stage->job] += stage->bytes;
        picked.push_back(*stage);
        --waiting;
      } else if (!picked.empty()) {
        const std::size_t index = draw(picked.size());
        queue.Return(picked[index]);
        in_flight[picked[index].job] -= picked[index].bytes;
        picked.erase(picked.begin() + static_cast<std::ptrdiff_t>(index));
      }
      ASSERT_EQ(queue.Waiting(0), waiting) << "seed " << seed;
    }
    for (const QueuedStage& stage : picked) queue.Return(stage);
    Serve(queue, 1000);
    EXPECT_EQ(queue.Waiting(0), 0U) << "seed " << seed;
    for (const JobId job : jobs) queue.RemoveJob(job);  // which checks that all credit is back
  }
}

QueuedStage Planned(std::uint64_t position, std::uint64_t bytes) {
  return {.token = 1000 + position,
          .position = position,
          .job = kA,
          .traffic_class = TrafficClass::kPlanned,
          .bytes = bytes};
}

TEST(UnifiedQueue, ThePlansBlocksGoOneAtATimeUnlessThePlanSaysOtherwise) {
  UnifiedQueue queue({1000});
  queue.AddJob(kA, {});
  for (std::uint64_t position = 1; position <= 3; ++position) queue.Push(Planned(position, 10));
  const QueuedStage first = *queue.Pick(0, 0);
  EXPECT_FALSE(queue.Pick(0, 0).has_value());
  ExpectWait(WhyHeadWaits(queue, kA, TrafficClass::kPlanned, 0, 0), Reason::kInFlight, 1);
  queue.SetPlannedInFlightMax(kA, 2);
  EXPECT_EQ(queue.Pick(0, 0)->position, 2U);
  EXPECT_FALSE(queue.Pick(0, 0).has_value());
  queue.Return(first);
  EXPECT_EQ(queue.Pick(0, 0)->position, 3U);
}

QueuedStage MakePair(std::uint64_t position, std::uint64_t bytes) {
  QueuedStage stage = Make(kA, std::uint64_t{1} << 62 | position, bytes);
  stage.traffic_class = TrafficClass::kPaired;
  return stage;
}

TEST(UnifiedQueue, SendsOvertakeAJobsOtherBlocksAndHaveCreditOfTheirOwn) {
  UnifiedQueue queue({1000});
  queue.AddJob(kA, {});
  for (const std::uint64_t position : {1U, 2U, 3U}) queue.Push(Make(kA, position, 800));
  EXPECT_EQ(queue.Pick(0, 0)->position, 1U);
  EXPECT_FALSE(queue.Pick(0, 0).has_value()) << "no credit is left";
  queue.Push(MakePair(7, 600));
  queue.Push(MakePair(8, 600));
  const std::optional<QueuedStage> pair = queue.Pick(0, 0);
  ASSERT_TRUE(pair.has_value());
  EXPECT_EQ(pair->traffic_class, TrafficClass::kPaired);
  EXPECT_FALSE(queue.Pick(0, 0).has_value()) << "neither of them has any";
  queue.Return(*pair);
  queue.Return(Make(kA, 1, 800));
  EXPECT_EQ(queue.Pick(0, 0)->position, MakePair(8, 600).position) << "although 2 waits for longer";
  EXPECT_EQ(queue.Pick(0, 0)->position, 2U);
}

QueuedStage MakeCopy(std::uint64_t position, std::uint64_t bytes) {
  QueuedStage stage = Make(kA, position, bytes);
  stage.traffic_class = TrafficClass::kCopied;
  return stage;
}

TEST(UnifiedQueue, CopiesOvertakeSumsAndPlansBehindSendsAndHaveCreditOfTheirOwn) {
  UnifiedQueue queue({1000});
  queue.AddJob(kA, {});
  queue.Push(Make(kA, 1, 800));
  EXPECT_EQ(queue.Pick(0, 0)->position, 1U);
  queue.Push(Make(kA, 2, 800));
  queue.Push(Planned(3, 10));
  queue.Push(MakeCopy(4, 600));
  queue.Push(MakeCopy(5, 600));
  queue.Push(MakePair(7, 10));
  EXPECT_EQ(queue.Pick(0, 0)->traffic_class, TrafficClass::kPaired);
  EXPECT_EQ(queue.Pick(0, 0)->position, 4U) << "although sums have no credit left";
  EXPECT_EQ(queue.Pick(0, 0)->traffic_class, TrafficClass::kPlanned)
      << "the other copy has no credit";
  queue.Return(MakeCopy(4, 600));
  queue.Return(Make(kA, 1, 800));
  EXPECT_EQ(queue.Pick(0, 0)->position, 5U) << "although 2 waits for longer";
  EXPECT_EQ(queue.Pick(0, 0)->position, 2U);
}

TEST(UnifiedQueue, CopiesGoInTurnWithSumsWhereTheJobWantsIt) {
  UnifiedQueue queue({10'000});
  queue.AddJob(kA, {.by_urgency = false});
  queue.Push(Make(kA, 1, 1));
  queue.Push(MakeCopy(2, 1));
  EXPECT_EQ(queue.Pick(0, 0)->traffic_class, TrafficClass::kPosted);
}

TEST(UnifiedQueue, SendsGoInTurnWithOtherBlocksWhereTheJobWantsIt) {
  UnifiedQueue queue({10'000});
  queue.AddJob(kA, {.by_urgency = false});
  queue.Push(Make(kA, 1, 1));
  queue.Push(MakePair(7, 1));
  EXPECT_EQ(queue.Pick(0, 0)->traffic_class, TrafficClass::kPosted);
  EXPECT_EQ(queue.Pick(0, 0)->traffic_class, TrafficClass::kPaired);
  queue.SetShare(kA, {}, 0);
  queue.Push(Make(kA, 2, 1));
  queue.Push(MakePair(8, 1));
  EXPECT_EQ(queue.Pick(0, 0)->traffic_class, TrafficClass::kPaired);
}

TEST(UnifiedQueue, SendsThatNeverEndKeepNoOtherBlockWaitingForGood) {
  UnifiedQueue queue({10'000});
  queue.AddJob(kA, {});
  queue.Push(Make(kA, 1, 1));
  queue.Push(Make(kA, 2, 1));
  std::vector<TimeNs> others;
  constexpr TimeNs kStep = 100 * kMillisecond;
  for (TimeNs now = 0; now < 4 * kWaitMaxNs; now += kStep) {
    queue.Push(MakePair(static_cast<std::uint64_t>(now / kStep) + 1, 1));
    queue.Push(MakePair(static_cast<std::uint64_t>(now / kStep) + 1'000'000, 1));
    const QueuedStage stage = *queue.Pick(0, now);
    queue.Return(stage);
    if (stage.traffic_class == TrafficClass::kPosted) others.push_back(now);
  }
  EXPECT_EQ(others, (std::vector<TimeNs>{kWaitMaxNs, 2 * kWaitMaxNs + kStep}));
}

TEST(UnifiedQueue, CopiesThatNeverEndKeepNoSumWaitingForGood) {
  UnifiedQueue queue({10'000});
  queue.AddJob(kA, {});
  queue.Push(Make(kA, 1, 1));
  std::uint64_t position = 1;
  for (TimeNs now = 0; now < kWaitMaxNs; now += 100 * kMillisecond) {
    for (int i = 0; i < 2; ++i) queue.Push(MakeCopy(++position, 1));
    const QueuedStage stage = *queue.Pick(0, now);
    queue.Return(stage);
    EXPECT_EQ(stage.traffic_class, TrafficClass::kCopied);
  }
  EXPECT_EQ(queue.Pick(0, kWaitMaxNs)->position, 1U);
}

TEST(UnifiedQueue, NeitherOrderOfAJobHoldsTheOthersCredit) {
  UnifiedQueue queue({100});
  queue.AddJob(kA, {});
  queue.Push(Planned(1, 500));
  ASSERT_TRUE(queue.Pick(0, 0).has_value());
  queue.Push({.token = 1, .position = 1, .job = kA, .bytes = 60});
  queue.Push({.token = 2, .position = 2, .job = kA, .bytes = 60});
  EXPECT_EQ(queue.Pick(0, 0)->traffic_class, TrafficClass::kPosted);
  EXPECT_FALSE(queue.Pick(0, 0).has_value());
}

}  // namespace
}  // namespace headrace::schedule
