// How jobs share a lane: by weight, by class, with limits and pauses, and without starving.
#include <gtest/gtest.h>

#include <string>

#include "tests/unit/service/schedule/load.h"
#include "tests/unit/service/schedule/why_head_waits.h"

namespace headrace::schedule {
namespace {

constexpr JobId kJobA{1};
constexpr JobId kJobB{2};
constexpr JobId kJobC{3};
constexpr std::uint64_t kMega = 1'000'000;
constexpr std::uint64_t kLaneRate = 10'000 * kMega;  // what a node sums in a second

LaneTerms InNode() { return {8U << 20U, true}; }

double Ratio(const Load& load, JobId a, JobId b) {
  return static_cast<double>(load.moved.at(a)) / static_cast<double>(load.moved.at(b));
}

// Each test of shares runs with these: stages of unequal sizes, other ones for each seed.
class Share : public testing::TestWithParam<std::uint64_t> {
 protected:
  UnifiedQueue queue_{{InNode()}};
  Load load_{queue_, kLaneRate, GetParam()};
};

TEST_P(Share, EqualJobsGetEqualBytesWhateverTheirSizesAndOrders) {
  queue_.AddJob(kJobA, {});
  queue_.AddJob(kJobB, {});
  load_[kJobA] = {.bytes_min = 100'000, .bytes_max = 1'000'000};
  load_[kJobB] = {.bytes_min = 50'000, .bytes_max = 900'000, .both_classes = true};
  load_.Run(2 * kSecond);
  EXPECT_NEAR(Ratio(load_, kJobA, kJobB), 1, 0.05);
  EXPECT_EQ(load_.idle_ns, 0);
}

TEST_P(Share, ThreeToOneIsThreeToOne) {
  queue_.AddJob(kJobA, {.weight = 3});
  queue_.AddJob(kJobB, {.weight = 1});
  load_[kJobA] = {.bytes_min = 200'000, .bytes_max = 1'000'000, .both_classes = true};
  load_[kJobB] = {.bytes_min = 200'000, .bytes_max = 1'000'000};
  load_.Run(2 * kSecond);
  EXPECT_NEAR(Ratio(load_, kJobA, kJobB), 3, 0.15);
  EXPECT_EQ(load_.idle_ns, 0);
}

TEST_P(Share, AJobThatOnlyTrainsGetsItsWeightToo) {
  queue_.AddJob(kJobA, {.weight = 3});
  queue_.AddJob(kJobB, {.weight = 1});
  load_[kJobB] = {.bytes_min = 900'000, .bytes_max = 1'000'000};
  // Its plan lets one block at a time onto a lane; here there is always one behind it.
  std::uint64_t position = 0;
  std::uint64_t planned = 0;
  for (int i = 0; i < 2000; ++i) {
    while (planned < 8) {
      queue_.Push({.token = ++position << 20U,
                   .position = position,
                   .job = kJobA,
                   .traffic_class = TrafficClass::kPlanned,
                   .bytes = kMega});
      ++planned;
    }
    const std::uint64_t before = load_.moved[kJobA];
    load_.Run(100 * kMicrosecond);
    planned -= (load_.moved[kJobA] - before) / kMega;
  }
  EXPECT_NEAR(Ratio(load_, kJobA, kJobB), 3, 0.15);
}

TEST_P(Share, WhoComesLateOrWasLimitedHasNotSavedUpTurns) {
  queue_.AddJob(kJobA, {});
  queue_.AddJob(kJobB, {});
  load_[kJobA] = {};
  load_[kJobB] = {.waiting = 0};
  load_.Run(kSecond);
  load_[kJobB] = {};
  load_.moved.clear();
  load_.Run(kSecond / 10);
  EXPECT_NEAR(Ratio(load_, kJobB, kJobA), 1, 0.05) << "late";

  queue_.SetShare(kJobB, {.limit_bytes_per_s = kMega}, load_.now);
  load_.Run(kSecond);
  queue_.SetShare(kJobB, {}, load_.now);
  load_.moved.clear();
  load_.Run(kSecond / 10);
  EXPECT_NEAR(Ratio(load_, kJobB, kJobA), 1, 0.05) << "after a limit";
}

TEST_P(Share, ALaneIsNeverIdleWhileAnybodyMayUseIt) {
  queue_.AddJob(kJobA, {.weight = 1});
  queue_.AddJob(kJobB, {.weight = 1000});
  queue_.AddJob(kJobC, {.weight = 1, .priority = 3});
  load_[kJobA] = {};
  load_[kJobB] = {.waiting = 0};
  load_[kJobC] = {.waiting = 0};
  load_.Run(kSecond);
  EXPECT_EQ(load_.idle_ns, 0);
  EXPECT_NEAR(static_cast<double>(load_.moved[kJobA]), kLaneRate, 0.01 * kLaneRate);
}

TEST_P(Share, AHigherClassHasEverythingButOneStageASecond) {
  queue_.AddJob(kJobA, {.weight = 1000, .priority = 0});
  queue_.AddJob(kJobB, {.weight = 1, .priority = 1});
  load_[kJobA] = {};
  load_[kJobB] = {};
  load_.Run(10 * kSecond);
  EXPECT_GT(load_.moved[kJobA], 0U);
  EXPECT_LE(load_.moved[kJobA], 10U << 20U);
}

TEST_P(Share, AWeightThatChangesOnTheWayKeepsTheJobsPlace) {
  queue_.AddJob(kJobA, {});
  queue_.AddJob(kJobB, {});
  load_[kJobA] = {};
  load_[kJobB] = {};
  load_.Run(kSecond);
  queue_.SetShare(kJobA, {.weight = 3}, load_.now);
  load_.moved.clear();
  load_.Run(kSecond / 10);
  EXPECT_NEAR(Ratio(load_, kJobA, kJobB), 3, 0.15);
  queue_.SetShare(kJobA, {.weight = 1}, load_.now);
  load_.moved.clear();
  load_.Run(kSecond / 10);
  EXPECT_NEAR(Ratio(load_, kJobA, kJobB), 1, 0.05);
}

TEST_P(Share, AJobThatChangesItsClassStartsThereBesideTheOthers) {
  queue_.AddJob(kJobA, {});
  queue_.AddJob(kJobB, {.priority = 1});
  load_[kJobA] = {};
  load_[kJobB] = {};
  load_.Run(kSecond);
  queue_.SetShare(kJobB, {.priority = 0}, load_.now);
  load_.moved.clear();
  load_.Run(kSecond / 10);
  EXPECT_NEAR(Ratio(load_, kJobA, kJobB), 1, 0.05);
}

TEST_P(Share, ALimitIsTheAverageRateAndTheOthersHaveTheRest) {
  queue_.AddJob(kJobA, {.limit_bytes_per_s = 250 * kMega});
  queue_.AddJob(kJobB, {});
  load_[kJobA] = {.both_classes = true};
  load_[kJobB] = {};
  load_.Run(kSecond);  // what it had saved up before goes
  load_.moved.clear();
  load_.Run(10 * kSecond);
  EXPECT_NEAR(static_cast<double>(load_.moved[kJobA]), 2500 * kMega, 2 << 20)
      << "a stage at each end";
  EXPECT_EQ(load_.idle_ns, 0);
}

TEST_P(Share, ManyJobsThatComeAndGoGetTheirWeights) {
  std::mt19937_64 random(GetParam());
  constexpr std::uint32_t kJobs = 16;
  std::map<JobId, std::uint32_t> weights;
  for (std::uint32_t i = 1; i <= kJobs; ++i) {
    weights[JobId{i}] = static_cast<std::uint32_t>(1 + random() % 4);
    queue_.AddJob(JobId{i}, {.weight = weights[JobId{i}]});
    load_[JobId{i}] = {.both_classes = i % 2 == 0};
  }
  for (int round = 0; round < 5; ++round) {
    double sum = 0;
    for (const auto& [job, weight] : weights) {
      load_[job].waiting = random() % 4 == 0 ? 0 : 8;
      if (load_[job].waiting > 0) sum += weight;
    }
    load_.Run(kSecond / 5);  // what idle ones had waiting goes
    load_.moved.clear();
    load_.Run(kSecond);
    for (const auto& [job, weight] : weights) {
      if (load_[job].waiting == 0) continue;
      const double share = static_cast<double>(load_.moved[job]) / static_cast<double>(kLaneRate);
      EXPECT_NEAR(share / (weight / sum), 1, 0.05) << "job " << job.value << " round " << round;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, Share, testing::Range<std::uint64_t>(1, 9));

// The adversary keeps a better class full of the largest stages there are.
TEST(Starving, AHeadThatCouldGoIsPassedOverForASecondAtMost) {
  UnifiedQueue queue({InNode()});
  queue.AddJob(kJobA, {.weight = 1000, .priority = 15});
  queue.AddJob(kJobB, {.weight = 1000, .priority = 7});
  queue.AddJob(kJobC, {.weight = 1, .priority = 0});
  Load load(queue, kLaneRate, 1);
  load[kJobA] = {.bytes_min = 8U << 20U, .bytes_max = 8U << 20U};
  load[kJobB] = {.bytes_min = 8U << 20U, .bytes_max = 8U << 20U};
  load[kJobC] = {.bytes_min = 1000, .bytes_max = 1000, .waiting = 1};
  TimeNs longest = 0;
  for (TimeNs last = load.now; load.now < 20 * kSecond;) {
    load.Run(kMillisecond);
    longest = std::max(longest, load.now - last);
    if (load.last_end.contains(kJobC)) last = load.last_end[kJobC];
  }
  // The bound, what was picked before it (two stages), and the one of the other that is overdue
  // too.
  const TimeNs stage_ns = (8 << 20) * kSecond / static_cast<TimeNs>(kLaneRate);
  EXPECT_LE(longest, kWaitMaxNs + 4 * stage_ns + kMillisecond);
  EXPECT_GT(longest, kWaitMaxNs - kMillisecond) << "not sooner: the class is strict";
}

TEST(OwnPace, ALaneTakesTwoStagesOrAsManyAsAreSmallTogether) {
  UnifiedQueue queue({InNode()});
  queue.AddJob(kJobA, {});
  queue.AddJob(kJobB, {});
  for (std::uint64_t i = 1; i <= 20; ++i) {
    queue.Push({.token = i, .position = i, .job = kJobA, .bytes = 700'000});
    queue.Push({.token = 100 + i, .position = i, .job = kJobB, .bytes = 700'000});
  }
  EXPECT_EQ(queue.Pick(0, 0)->job, kJobA);
  const QueuedStage second = *queue.Pick(0, 0);
  EXPECT_EQ(second.job, kJobB);
  EXPECT_FALSE(queue.Pick(0, 0).has_value());
  EXPECT_EQ(WhyHeadWaits(queue, kJobA, TrafficClass::kPosted, 0, 0).reason,
            Wait::Reason::kLaneFull);
  EXPECT_EQ(WhyHeadWaits(queue, kJobB, TrafficClass::kPosted, 0, 0).reason,
            Wait::Reason::kBehindJob);
  queue.Return(second);
  EXPECT_EQ(queue.Pick(0, 0)->job, kJobA);
}

TEST(OwnPace, ALaneIsFilledWithSmallStagesOfAllJobs) {
  UnifiedQueue queue({InNode()});
  queue.AddJob(kJobA, {});
  queue.AddJob(kJobB, {});
  for (std::uint64_t i = 1; i <= 20; ++i) {
    queue.Push({.token = i, .position = i, .job = kJobA, .bytes = 50'000});
    queue.Push({.token = 100 + i, .position = i, .job = kJobB, .bytes = 50'000});
  }
  std::map<JobId, int> picked;
  while (const std::optional<QueuedStage> stage = queue.Pick(0, 0)) ++picked[stage->job];
  EXPECT_EQ(picked, (std::map<JobId, int>{{kJobA, 10}, {kJobB, 10}}));
}

TEST(OwnPace, NoOtherLaneIsLimitedForAllJobsTogether) {
  UnifiedQueue queue({8U << 20U});
  queue.AddJob(kJobA, {});
  queue.AddJob(kJobB, {});
  for (std::uint64_t i = 1; i <= 3; ++i) {
    queue.Push({.token = i, .position = i, .job = kJobA, .bytes = 2 * kMega});
    queue.Push({.token = 100 + i, .position = i, .job = kJobB, .bytes = 2 * kMega});
  }
  int picked = 0;
  while (queue.Pick(0, 0)) ++picked;
  EXPECT_EQ(picked, 6);
}

TEST(Limit, SaysWhenItsJobMayGoOn) {
  UnifiedQueue queue({8U << 20U});
  queue.AddJob(kJobA, {.limit_bytes_per_s = 1000});
  for (std::uint64_t i = 1; i <= 3; ++i) {
    queue.Push({.token = i, .position = i, .job = kJobA, .bytes = 1, .wire_bytes = 500});
  }
  EXPECT_TRUE(queue.Pick(0, kSecond).has_value());  // it had saved 20 bytes
  EXPECT_FALSE(queue.Pick(0, kSecond).has_value());
  const TimeNs next = kSecond + kSecond * 480 / 1000;
  EXPECT_EQ(queue.NextTime(0), next);
  const Wait wait = WhyHeadWaits(queue, kJobA, TrafficClass::kPosted, 0, kSecond);
  EXPECT_EQ(wait.reason, Wait::Reason::kRateLimit);
  EXPECT_EQ(wait.argument, 480U * kMillisecond);
  EXPECT_FALSE(queue.Pick(0, next - 1).has_value());
  EXPECT_TRUE(queue.Pick(0, next).has_value());
  EXPECT_FALSE(queue.Pick(0, next).has_value());
  EXPECT_EQ(queue.NextTime(0), next + kSecond / 2);
}

TEST(Limit, WhatIsOwedStaysOwedWhenTheLimitChanges) {
  RateLimit limit;
  limit.Set(1000, 0);
  limit.Consume(1000, kSecond);  // 20 were saved
  EXPECT_EQ(limit.ReadyAt(), kSecond + kSecond * 980 / 1000);
  limit.Set(2000, kSecond);
  EXPECT_EQ(limit.ReadyAt(), kSecond + kSecond * 490 / 1000);
  limit.Set(0, kSecond);
  EXPECT_EQ(limit.ReadyAt(), 0);
}

TEST(Orders, OfOneJobTakeTurnsAndDoNotShareTwice) {
  UnifiedQueue queue({InNode()});
  queue.AddJob(kJobA, {});
  queue.AddJob(kJobB, {});
  for (std::uint64_t i = 1; i <= 100; ++i) {
    queue.Push({.token = i, .position = i, .job = kJobA, .bytes = kMega});
    queue.Push({.token = 200 + i,
                .position = i,
                .job = kJobA,
                .traffic_class = TrafficClass::kPlanned,
                .bytes = kMega});
    queue.Push({.token = 400 + i, .position = i, .job = kJobB, .bytes = kMega});
  }
  std::map<JobId, int> of_job;
  std::map<TrafficClass, int> of_a;
  for (int i = 0; i < 80; ++i) {
    const QueuedStage stage = *queue.Pick(0, 0);
    queue.Return(stage);
    ++of_job[stage.job];
    if (stage.job == kJobA) ++of_a[stage.traffic_class];
  }
  EXPECT_NEAR(of_job[kJobA], 40, 1);
  EXPECT_NEAR(of_a[TrafficClass::kPosted], 20, 1);
}

}  // namespace
}  // namespace headrace::schedule
