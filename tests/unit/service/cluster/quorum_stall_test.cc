// Members that are attached and stand still while the others ask who is left.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/service/cluster/quorum_case.h"

namespace headrace::support {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using QuorumStall = QuorumTest;

TEST_F(QuorumStall, OneThatStandsStillIsWaitedForAsLongAsTheJobAllows) {
  // Attached anew, as ranks are that say how long one may stand still.
  for (std::uint32_t member = 0; member < 4; ++member) {
    auto identity = Identity(member);
    identity.slow_bound = {.seconds = 20, .least_world = 2};
    NodeOf(member).follower.OnRankAttached(identity);
  }
  Kill(1);
  Ask(0);
  Ask(2);
  Pass(kMillisecond);
  Pass(19 * kSecond);
  EXPECT_EQ(meeting_.leader().quorums_count(), 1U) << "member 3 may still notice";
  EXPECT_THAT(b_.evicted, IsEmpty());
  Pass(kSecond);
  AnswerTo(0);
  Ask(0, 2, true);
  const auto answer = AnswerTo(0);
  ASSERT_TRUE(answer && answer->quorum);
  EXPECT_THAT(answer->quorum->membership.members, ElementsAre(0, 2));
  ASSERT_EQ(answer->quorum->lost.size(), 2U);
  EXPECT_EQ(answer->quorum->lost.back().member, 3U);
  EXPECT_THAT(answer->quorum->lost.back().cause, HasSubstr("stands still"));
  // Else the others could not attach beside what is left of it.
  EXPECT_THAT(a_.evicted, IsEmpty());
  ASSERT_EQ(b_.evicted.size(), 1U);
  EXPECT_EQ(b_.evicted.front().session, Identity(3).id);
  EXPECT_TRUE(b_.evicted.front().evicted);
  EXPECT_THAT(b_.evicted.front().error.text(), HasSubstr("20000 ms"));
}

TEST_F(QuorumStall, AShortBoundLeavesRanksTheTimeToMeet) {
  for (std::uint32_t member = 0; member < 4; ++member) {
    auto identity = Identity(member);
    identity.slow_bound = {.seconds = 1, .least_world = 2};
    NodeOf(member).follower.OnRankAttached(identity);
  }
  Kill(1);
  Ask(0);
  Ask(2);
  Pass(kMillisecond);
  Pass(14 * kSecond);
  EXPECT_EQ(meeting_.leader().quorums_count(), 1U);
  Pass(kSecond);
  EXPECT_EQ(meeting_.leader().quorums_count(), 0U);
}

}  // namespace
}  // namespace headrace::support
