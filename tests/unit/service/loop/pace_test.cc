// Who is faster than the rate waits, and nobody waits for longer than what stands before it.
#include "service/loop/message_pacer.h"

#include <gtest/gtest.h>

namespace headrace::service {
namespace {

constexpr TimeNs kStart = 1000 * kSecond;

TEST(MessagePacer, LetsABurstThroughAndThenTheRate) {
  MessagePacer pace(1000, 100);
  TimeNs now = kStart;
  for (int i = 0; i < 100; ++i) EXPECT_EQ(pace.Book(1, now), 0);
  // What is due in less than kWaitMin is not waited for.
  TimeNs wait_ns = 0;
  int handled = 0;
  for (; wait_ns == 0; ++handled) wait_ns = pace.Book(1, now);
  EXPECT_EQ(handled, MessagePacer::kWaitMin / kMillisecond);
  EXPECT_EQ(wait_ns, MessagePacer::kWaitMin);
  // A second of it, always waiting as told.
  handled = 0;
  for (const TimeNs end = now + kSecond; now < end; ++handled) now += pace.Book(1, now);
  EXPECT_NEAR(handled, 1000, 10);
}

TEST(MessagePacer, GivesTheBurstBackToWhoeverWasQuiet) {
  MessagePacer pace(1000, 100);
  for (int i = 0; i < 200; ++i) pace.Book(1, kStart);
  EXPECT_FALSE(pace.IsIdle(kStart));
  EXPECT_TRUE(pace.IsIdle(kStart + kSecond));
  for (int i = 0; i < 100; ++i) EXPECT_EQ(pace.Book(1, kStart + kSecond), 0);
}

TEST(MessagePacer, LargeMessagesCostMore) {
  MessagePacer pace(1000, 100);
  EXPECT_EQ(pace.Book(600, kStart), 500 * kMillisecond);
}

TEST(MessagePacer, SharersHaveTheirTurnsInTheOrderOfAsking) {
  MessagePacer pace(1000, 100);
  pace.Book(100, kStart);
  // Each of many floods; whoever comes then waits once for each of them, and no more.
  for (int flooder = 0; flooder < 50; ++flooder) pace.Book(1, kStart);
  EXPECT_EQ(pace.Book(1, kStart), 51 * kMillisecond);
}

}  // namespace
}  // namespace headrace::service
