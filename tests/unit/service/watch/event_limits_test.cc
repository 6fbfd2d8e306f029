// A client that attaches and leaves in a loop fills neither log nor board.
#include "service/watch/event_limits.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace headrace::service {
namespace {

constexpr TimeNs kBegin = 1000 * kSecond;

TEST(EventLimits, ShowsSoManyOfOneUidInAWindowAndThenSaysHowManyWereLeftOut) {
  EventLimits limits;
  for (int i = 0; i < kEventsPerUidMax; ++i) EXPECT_TRUE(limits.Allow(1000, false, kBegin + i));
  EXPECT_EQ(limits.next_deadline(), kNever) << "nothing was left out";
  for (int i = 0; i < 437; ++i) EXPECT_FALSE(limits.Allow(1000, false, kBegin + kSecond));
  EXPECT_TRUE(limits.Allow(1001, false, kBegin + kSecond)) << "another uid";
  EXPECT_TRUE(limits.Allow(1000, true, kBegin + kSecond)) << "failures count apart";
  EXPECT_EQ(limits.next_deadline(), kBegin + kEventsWindow);
  EXPECT_TRUE(limits.EndWindows(kBegin + kEventsWindow - 1).empty());
  EXPECT_EQ(limits.EndWindows(kBegin + kEventsWindow),
            (std::vector<std::string>{"uid 1000: 437 more events within 60 s were left out"}));
  EXPECT_EQ(limits.next_deadline(), kNever);
  EXPECT_TRUE(limits.Allow(1000, false, kBegin + kEventsWindow));
}

TEST(EventLimits, KeepsABoundedNumberOfUids) {
  EventLimits limits;
  for (std::uint32_t uid = 0; uid < kEventUidsMax; ++uid) {
    EXPECT_TRUE(limits.Allow(uid, false, kBegin));
  }
  int shown = 0;
  for (std::uint32_t uid = 100'000; uid < 101'000; ++uid) shown += limits.Allow(uid, false, kBegin);
  EXPECT_EQ(shown, kEventsPerUidMax) << "the rest share what one may";
  const std::vector<std::string> sentences = limits.EndWindows(kBegin + kEventsWindow);
  EXPECT_EQ(sentences,
            (std::vector<std::string>{"other uids: 936 more events within 60 s were left out"}));
}

}  // namespace
}  // namespace headrace::service
