// Silence is noticed in time, and one's own standing still is not taken for it.
#include "service/cluster/heartbeat.h"

#include <gtest/gtest.h>

namespace headrace::service {
namespace {

constexpr TimeNs kDetection = 3 * kSecond;

// Checks when the pulse wants to be checked, until `end`; when it found silence, kNever if not.
TimeNs WatchUntil(Heartbeat& pulse, TimeNs end) {
  while (pulse.NextCheck() <= end) {
    const TimeNs now = pulse.NextCheck();
    if (!pulse.Check(now)) return now;
  }
  return kNever;
}

TEST(Heartbeat, FindsSilenceAfterExactlyTheDetectionTime) {
  Heartbeat pulse(kDetection, 0);
  EXPECT_EQ(WatchUntil(pulse, 10 * kSecond), kDetection);
}

TEST(Heartbeat, CountsFromTheLastAnswerNotFromTheNextCheck) {
  Heartbeat pulse(kDetection, 0);
  EXPECT_EQ(WatchUntil(pulse, 700 * kMillisecond), kNever);
  pulse.Answered(710 * kMillisecond);
  EXPECT_EQ(WatchUntil(pulse, 10 * kSecond), 710 * kMillisecond + kDetection);
}

TEST(Heartbeat, LivesAsLongAsAnswersCome) {
  Heartbeat pulse(kDetection, 0);
  for (TimeNs now = 0; now < 60 * kSecond; now += 2 * kSecond) {
    pulse.Answered(now);
    EXPECT_EQ(WatchUntil(pulse, now + 2 * kSecond), kNever) << now;
  }
}

TEST(Heartbeat, ForgivesTheTimeInWhichThisProcessStoodStill) {
  Heartbeat pulse(kDetection, 0);
  pulse.Answered(400 * kMillisecond);
  // Stopped by a debugger for a minute, and no answer was read yet.
  EXPECT_TRUE(pulse.Check(60 * kSecond));
  // From then on it is as strict as before, less what had passed.
  EXPECT_LT(WatchUntil(pulse, 70 * kSecond), 63 * kSecond);
}

TEST(Heartbeat, SaysForAMomentThatThisProcessWasStoppedForTheDetectionTime) {
  Heartbeat pulse(kDetection, 0);
  const TimeNs due_ns = pulse.NextCheck();
  EXPECT_FALSE(pulse.WasStopped(due_ns + kDetection - 1));
  // Also when whoever asks comes before the check.
  const TimeNs woke_ns = due_ns + kDetection;
  EXPECT_TRUE(pulse.WasStopped(woke_ns));
  EXPECT_TRUE(pulse.Check(woke_ns));
  EXPECT_TRUE(pulse.WasStopped(woke_ns + pulse.interval_ns() - 1));
  EXPECT_FALSE(pulse.WasStopped(woke_ns + pulse.interval_ns()));
  // Not after a shorter time: the peer waits then.
  EXPECT_TRUE(pulse.Check(pulse.NextCheck() + kDetection - 1));
  EXPECT_FALSE(pulse.WasStopped(pulse.NextCheck()));
}

// Half of the detection time is left to find another way then.
TEST(Heartbeat, IsQuietAfterHalfOfTheDetectionTimeAndIsCheckedThen) {
  Heartbeat pulse(kDetection, 0);
  pulse.Answered(710 * kMillisecond);
  const TimeNs quiet_ns = 710 * kMillisecond + kDetection / 2;
  EXPECT_EQ(WatchUntil(pulse, quiet_ns - 1), kNever);
  EXPECT_FALSE(pulse.IsQuiet(quiet_ns - 1));
  EXPECT_EQ(pulse.NextCheck(), quiet_ns);
  EXPECT_TRUE(pulse.Check(quiet_ns));
  EXPECT_TRUE(pulse.IsQuiet(quiet_ns));
  pulse.Answered(quiet_ns);
  EXPECT_FALSE(pulse.IsQuiet(quiet_ns));
}

TEST(Heartbeat, AsksSixTimesInADetectionTime) {
  EXPECT_EQ(Heartbeat(kDetection, 0).interval_ns(), 500 * kMillisecond);
}

}  // namespace
}  // namespace headrace::service
