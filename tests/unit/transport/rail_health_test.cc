// When a rail is given up, and when it is used again.
#include "transport/rails/rail_health.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace headrace::transport {
namespace {

constexpr TimeNs kMs = kMillisecond;

TEST(RailHealth, UsesTheFirstRailThatWorks) {
  RailHealth health(3);
  EXPECT_EQ(health.active(), 0U);
  health.OnFailed(0, 0);
  EXPECT_EQ(health.active(), 1U);
  health.OnFailed(2, 0);
  EXPECT_EQ(health.active(), 1U);
  health.OnFailed(1, 0);
  EXPECT_EQ(health.active(), std::nullopt);
  EXPECT_TRUE(health.OnAnswered(2, 1));
  EXPECT_EQ(health.active(), 2U);
  EXPECT_TRUE(health.OnAnswered(0, 2));
  EXPECT_EQ(health.active(), 0U);
}

TEST(RailHealth, AsksTheOthersAfterASilenceAndGivesUpOnlyWhatAnsweringPeersDoNotAcknowledge) {
  RailHealth health(2);
  EXPECT_EQ(health.NextDeadline(), kNever);
  health.OnWaiting(1000 * kMs);
  EXPECT_EQ(health.NextDeadline(), 1080 * kMs);
  EXPECT_FALSE(health.MustPing(1, 1079 * kMs));
  EXPECT_TRUE(health.MustPing(1, 1080 * kMs));
  EXPECT_TRUE(health.MustPing(0, 1080 * kMs));
  health.OnPinged(0, 1080 * kMs);
  health.OnPinged(1, 1080 * kMs);
  EXPECT_FALSE(health.MustPing(1, 1081 * kMs));
  // The peer stands still: nothing follows from that.
  EXPECT_EQ(health.IsSilent(1900 * kMs), std::nullopt);
  EXPECT_TRUE(health.MustPing(1, 2080 * kMs));
  health.OnPinged(0, 2080 * kMs);
  health.OnPinged(1, 2080 * kMs);
  EXPECT_FALSE(health.OnAnswered(1, 2081 * kMs));
  EXPECT_EQ(health.IsSilent(2095 * kMs), std::nullopt);
  EXPECT_EQ(health.NextDeadline(), 2096 * kMs);
  EXPECT_EQ(health.IsSilent(2096 * kMs), 1096 * kMs);
}

// From the moment at which the rail goes silent, driven by nothing but deadlines.
TimeNs LeavesAfter(TimeNs acknowledged_in_ns, TimeNs answered_in_ns) {
  RailHealth health(2);
  const TimeNs cut_ns = kSecond;
  health.OnAcknowledged(cut_ns, acknowledged_in_ns, true);
  TimeNs answer_ns = kNever;
  for (TimeNs now = cut_ns; now < cut_ns + 10 * kSecond;
       now = std::min(answer_ns, health.NextDeadline())) {
    if (answer_ns == now) {
      health.OnAnswered(1, now);
      answer_ns = kNever;
    }
    if (health.IsSilent(now)) {
      health.OnFailed(0, now);
      EXPECT_EQ(health.active(), 1U);
      return now - cut_ns;
    }
    if (health.MustPing(0, now)) health.OnPinged(0, now);
    if (!health.MustPing(1, now)) continue;
    health.OnPinged(1, now);
    answer_ns = now + answered_in_ns;
  }
  return kNever;
}

// What is promised: within 200 ms, where rails answer within 50 ms; or, where the silent one was
// slow for its load, 100 ms, if the others answer within 5 ms.
TEST(RailHealth, LeavesASilentRailWithin200Ms) {
  for (const TimeNs round_trip_ms : {0, 1, 5, 20, 50}) {
    EXPECT_LE(LeavesAfter(round_trip_ms * kMs, round_trip_ms * kMs), 200 * kMs) << round_trip_ms;
  }
  EXPECT_LE(LeavesAfter(100 * kMs, 5 * kMs), 200 * kMs);
  EXPECT_GE(LeavesAfter(0, 0), 80 * kMs) << "acknowledgements may be late";
}

TEST(RailHealth, TakesAnAcknowledgementForASignOfLife) {
  RailHealth health(2);
  health.OnWaiting(0);
  health.OnPinged(1, 80 * kMs);
  health.OnAnswered(1, 81 * kMs);
  health.OnAcknowledged(90 * kMs, 0, true);
  EXPECT_EQ(health.IsSilent(96 * kMs), std::nullopt);
  // Answers of before say nothing about the next silence.
  EXPECT_EQ(health.IsSilent(300 * kMs), std::nullopt);
  EXPECT_TRUE(health.MustPing(1, 170 * kMs));
  health.OnAcknowledged(200 * kMs, 0, false);
  EXPECT_EQ(health.NextDeadline(), kNever);
}

// What was not acknowledged is lost then, or came to a link that is closed there.
TEST(RailHealth, KeepsARailThatAnswersThoughNothingIsAcknowledged) {
  RailHealth health(2);
  health.OnWaiting(0);
  health.OnPinged(0, 80 * kMs);
  health.OnPinged(1, 80 * kMs);
  health.OnAnswered(1, 81 * kMs);
  EXPECT_FALSE(health.HasLost(81 * kMs));
  health.OnAnswered(0, 95 * kMs);
  EXPECT_TRUE(health.HasLost(95 * kMs));
  EXPECT_EQ(health.IsSilent(kSecond), std::nullopt);
  TimeNs now = 95 * kMs;
  for (const TimeNs silence_ms : {160, 320, 640, 1280, 2560}) {
    EXPECT_TRUE(health.HasLost(now));
    health.OnSentAgain(now);
    EXPECT_FALSE(health.HasLost(now));
    EXPECT_EQ(health.NextDeadline(), now + silence_ms * kMs);
    now += silence_ms * kMs;
    health.OnAnswered(0, now);
  }
  // Only pings come through.
  EXPECT_FALSE(health.HasLost(now));
  health.OnAnswered(1, now);
  EXPECT_EQ(health.IsSilent(now), std::nullopt);
  EXPECT_TRUE(health.IsSilent(now + RailHealth::kGrace));
  health.OnAcknowledged(now, 0, true);
  EXPECT_EQ(health.NextDeadline(), now + 80 * kMs);
}

TEST(RailHealth, WaitsLongerForAPeerThatTakesLonger) {
  RailHealth health(2);
  health.OnWaiting(0);
  health.OnAcknowledged(300 * kMs, 300 * kMs, true);
  EXPECT_EQ(health.NextDeadline(), 680 * kMs);
  for (int i = 0; i < 60; ++i) health.OnAcknowledged(300 * kMs, 1, true);
  EXPECT_LT(health.NextDeadline(), 382 * kMs);
  health.OnAcknowledged(300 * kMs, 3600 * kSecond, true);
  EXPECT_EQ(health.NextDeadline(), 380 * kMs + RailHealth::kRoundTripMax);
}

TEST(RailHealth, TriesARailThatIsDownLaterEachTime) {
  RailHealth health(2);
  TimeNs now = 5 * kSecond;
  health.OnFailed(0, now);
  TimeNs wait = RailHealth::kBackoffMin;
  for (int i = 0; i < 12; ++i) {
    EXPECT_FALSE(health.MustPing(0, now + wait - 1));
    EXPECT_TRUE(health.MustPing(0, now + wait));
    now += wait;
    health.OnPinged(0, now);
    health.OnFailed(0, now);
    wait = std::min(2 * wait, RailHealth::kBackoffMax);
  }
  EXPECT_EQ(wait, RailHealth::kBackoffMax);
  // Soon after it came back it is no better; after a while it is as new.
  health.OnAnswered(0, now);
  health.OnFailed(0, now + kSecond);
  EXPECT_FALSE(health.MustPing(0, now + kSecond + RailHealth::kBackoffMax - 1));
  now += 100 * kSecond;
  health.OnAnswered(0, now);
  now += RailHealth::kStable;
  health.OnFailed(0, now);
  EXPECT_TRUE(health.MustPing(0, now + RailHealth::kBackoffMin));
}

TEST(RailHealth, AsksARailThatIsDownAgainWhenNoAnswerComes) {
  RailHealth health(2);
  health.OnFailed(0, 0);
  health.OnPinged(0, RailHealth::kBackoffMin);
  EXPECT_FALSE(health.MustPing(0, RailHealth::kBackoffMin + RailHealth::kPingAgain - 1));
  EXPECT_TRUE(health.MustPing(0, RailHealth::kBackoffMin + RailHealth::kPingAgain));
}

TEST(RailHealth, HasNobodyToAskWithOneRail) {
  RailHealth health(1);
  health.OnWaiting(0);
  EXPECT_FALSE(health.MustPing(0, kSecond));
  EXPECT_EQ(health.IsSilent(kSecond), std::nullopt);
}

}  // namespace
}  // namespace headrace::transport
