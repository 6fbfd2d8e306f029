#include "client/cli/replay/pace.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace headrace::replay {
namespace {

TEST(Pace, SleepsOnceForManyShortComputations) {
  Pace pace;
  pace.Start(1000);
  for (int i = 0; i < 100; ++i) {
    pace.Compute(kMicrosecond);
    EXPECT_FALSE(pace.SleepUntil(1000));
  }
  pace.Compute(kMicrosecond);
  EXPECT_EQ(pace.SleepUntil(1000), 1000 + 101 * kMicrosecond);
}

TEST(Pace, MakesUpForASleepThatEndedLate) {
  Pace pace;
  pace.Start(0);
  pace.Compute(kMillisecond);
  pace.Compute(kMillisecond);
  EXPECT_EQ(pace.SleepUntil(kMillisecond + 300 * kMicrosecond), 2 * kMillisecond);
  EXPECT_FALSE(pace.SleepUntil(5 * kMillisecond));
  pace.Compute(kMillisecond);
  EXPECT_EQ(pace.due_ns(), 3 * kMillisecond);
}

TEST(Pace, MovesWhatFollowsAWait) {
  Pace pace;
  pace.Start(0);
  pace.Compute(kMillisecond);
  pace.StandStillUntil(10 * kMillisecond);
  pace.Compute(kMillisecond);
  EXPECT_EQ(pace.due_ns(), 11 * kMillisecond);
  pace.StandStillUntil(5 * kMillisecond);  // the wait was over before the computation
  EXPECT_EQ(pace.due_ns(), 11 * kMillisecond);
}

TEST(Pace, NeverWakesBeforeTheDeadline) {
  WakeOnTime();
  const TimeNs deadline = MonotonicNow() + 3 * kMillisecond;
  SleepUntil(deadline);
  EXPECT_GE(MonotonicNow(), deadline);
  SleepUntil(deadline);  // has passed
}

TEST(Jitter, IsNoneWhereNoneIsAskedFor) { EXPECT_EQ(Jittered(12345, 0, 1, 2, 3, 0, 4), 12345); }

TEST(Jitter, IsTheSameFromRunToRunAndOtherwiseDiffers) {
  std::set<TimeNs> times;
  const TimeNs time = kSecond;
  EXPECT_EQ(Jittered(time, 0.2, 1, 2, 3, 0, 4), Jittered(time, 0.2, 1, 2, 3, 0, 4));
  times.insert(Jittered(time, 0.2, 1, 2, 3, 0, 4));
  times.insert(Jittered(time, 0.2, 2, 2, 3, 0, 4));
  times.insert(Jittered(time, 0.2, 1, 3, 3, 0, 4));
  times.insert(Jittered(time, 0.2, 1, 2, 4, 0, 4));
  times.insert(Jittered(time, 0.2, 1, 2, 3, 1, 4));
  times.insert(Jittered(time, 0.2, 1, 2, 3, 0, 5));
  EXPECT_EQ(times.size(), 6U);
}

TEST(Jitter, IsEvenlyDistributedAroundTheTime) {
  constexpr int kCount = 10'000;
  double sum = 0;
  double squares = 0;
  for (int i = 0; i < kCount; ++i) {
    const auto iteration = static_cast<std::uint64_t>(i);
    const TimeNs time = Jittered(kSecond, 0.2, 7, 0, iteration, 0, 0);
    EXPECT_GE(time, 8 * kSecond / 10);
    EXPECT_LE(time, 12 * kSecond / 10);
    const double deviation = static_cast<double>(time - kSecond) / kSecond;
    sum += deviation;
    squares += deviation * deviation;
  }
  EXPECT_NEAR(sum / kCount, 0, 0.005);
  EXPECT_NEAR(std::sqrt(squares / kCount), 0.2 / std::sqrt(3.0), 0.003);
}

}  // namespace
}  // namespace headrace::replay
