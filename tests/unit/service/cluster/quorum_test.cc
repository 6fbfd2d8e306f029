// Who is left of a job: what nodes say, what their leader decides, who is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/unit/service/cluster/quorum_case.h"

namespace headrace::support {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST_F(QuorumTest, ThoseThatAreLeftGoOnWithoutOneWhoseProcessIsGone) {
  Kill(2);
  for (const std::uint32_t member : {0U, 1U, 3U}) Ask(member);
  for (const std::uint32_t member : {0U, 1U, 3U}) {
    const auto answer = AnswerTo(member);
    ASSERT_TRUE(answer && answer->quorum);
    EXPECT_THAT(answer->quorum->membership.members, ElementsAre(0, 1, 3));
    EXPECT_EQ(answer->quorum->membership.generation, 1U);
    EXPECT_GT(answer->quorum->epoch, 1U);
    ASSERT_EQ(answer->quorum->lost.size(), 1U);
    EXPECT_EQ(answer->quorum->lost.front().member, 2U);
    EXPECT_THAT(answer->quorum->lost.front().cause, AllOf(HasSubstr("pid 102"), HasSubstr("node b"),
                                                          HasSubstr("exited or was killed")));
  }
  EXPECT_EQ(meeting_.leader().quorums_count(), 0U);
}

TEST_F(QuorumTest, OneThatHasYetToNoticeIsWaitedForLongerThanTheGrace) {
  Kill(1);
  Ask(0);
  Ask(2);  // by whose node it is known that member 3 is attached
  Pass(4 * kQuorumGraceMs * kMillisecond);
  const auto waits = AnswerTo(0);
  ASSERT_TRUE(waits);
  EXPECT_THAT(waits->waits, AllOf(HasSubstr("member 3"), HasSubstr("notice")));
  AnswerTo(2);
  Ask(3);
  Ask(0, 2, true);
  const auto third = AnswerTo(3);
  ASSERT_TRUE(third && third->quorum);
  const auto answer = AnswerTo(0);
  ASSERT_TRUE(answer && answer->quorum) << "it was kept for the next question";
  EXPECT_THAT(answer->quorum->membership.members, ElementsAre(0, 2, 3));
}

TEST_F(QuorumTest, OneThatBecomesUnknownLateHasAGraceOfItsOwn) {
  EndLease(3, false, "closed its connection");
  Ask(0);
  Ask(1);
  Pass(kMillisecond);
  Pass(2 * kQuorumGraceMs * kMillisecond);
  // Member 2 notices: its connection closes, and then it asks.
  b_.follower.OnLeaseEnded(Identity(2), false, "closed its connection", false);
  meeting_.Run();
  EXPECT_EQ(meeting_.leader().quorums_count(), 1U) << "nobody decides between the two";
  Ask(2, 2, true);
  const auto answer = AnswerTo(2);
  ASSERT_TRUE(answer && answer->quorum);
  EXPECT_THAT(answer->quorum->membership.members, ElementsAre(0, 1, 2));
}

TEST_F(QuorumTest, SeveralThatWereLeftOutAreRefusedByOneAnswer) {
  for (const std::uint32_t member : {2U, 3U}) EndLease(member, false, "closed its connection");
  Ask(0);
  Ask(1);
  Pass(kMillisecond);
  Pass(kQuorumGraceMs * kMillisecond);
  ASSERT_EQ(meeting_.leader().quorums_count(), 0U);
  b_.quorums.clear();
  Post(2, 2, true, Everybody({0, 1, 2, 3}));
  Post(3, 2, true, Everybody({0, 1, 2, 3}));
  meeting_.Run();
  for (const std::uint32_t member : {2U, 3U}) {
    const auto answer = AnswerTo(member);
    ASSERT_TRUE(answer && !answer->quorum);
    EXPECT_EQ(answer->quorum.error().code(), Code::kMismatch);
  }
  EXPECT_EQ(b_.follower.quorums_count(), 0U);
  EXPECT_EQ(meeting_.leader().quorums_count(), 0U);
}

// What a process may ask beside the honest ranks.
AskQuorum AskOf(const std::string& job, std::uint64_t client, std::uint32_t uid, TimeNs until_ns) {
  return {.token = 1000 + client,
          .client = client,
          .job = job,
          .uid = uid,
          .pid = 7,
          .leader = kMeetingPlace,
          .member = 0,
          .membership = {.generation = 0, .members = {0, 1}},
          .epoch = 1,
          .rules = {.min_world = 1, .grace_ms = kQuorumGraceMs},
          .until_ns = until_ns};
}

TEST_F(QuorumTest, AConnectionAsksForOneMemberOfOneJob) {
  const TimeNs until_ns = meeting_.now() + 2 * kSecond;
  b_.follower.Handle(AskOf("one", 500, 1001, until_ns), meeting_.now());
  b_.follower.Handle(AskOf("two", 500, 1001, until_ns), meeting_.now());
  meeting_.Run();
  ASSERT_EQ(b_.quorums.size(), 1U);
  EXPECT_EQ(b_.quorums.front().quorum.error().code(), Code::kAlreadyExists);
  b_.follower.Handle(QuorumClientLost{.client = 500, .exited = true});
  meeting_.Run();
  EXPECT_EQ(b_.follower.quorums_count(), 0U) << "it leaves nothing behind";
  EXPECT_EQ(meeting_.leader().quorums_count(), 0U);
}

TEST_F(QuorumTest, AUserWithManyQuestionsKeepsNobodyElseFromAsking) {
  const TimeNs until_ns = meeting_.now() + 2 * kSecond;
  for (std::uint64_t i = 0; i < 2 * service::kQuorumsAskedMax; ++i) {
    b_.follower.Handle(AskOf("job" + std::to_string(i), 500 + i, 1001, until_ns), meeting_.now());
  }
  // Before the leader, which has such a limit itself, has refused any.
  EXPECT_EQ(b_.follower.quorums_count(), service::kQuorumsAskedMax / 2);
  meeting_.Run();
  b_.quorums.clear();
  Kill(1);
  Ask(0);
  Ask(2);
  Ask(3);
  const auto answer = AnswerTo(3);
  ASSERT_TRUE(answer && answer->quorum);
  EXPECT_THAT(answer->quorum->membership.members, ElementsAre(0, 2, 3));
}

TEST_F(QuorumTest, ManyJobsOfOthersLeaveWhatIsKnownOfARunningOne) {
  for (std::uint64_t i = 0; i < 2 * service::kJobsRememberedMax; ++i) {
    const std::uint64_t client = 500 + i;
    b_.follower.Handle(AskOf("job" + std::to_string(i), client, 1001, meeting_.now() + kSecond),
                       meeting_.now());
    b_.follower.Handle(QuorumClientLost{.client = client, .exited = true});
    meeting_.Run();
  }
  b_.quorums.clear();
  Kill(1);
  Ask(0);
  Ask(2);
  Pass(4 * kQuorumGraceMs * kMillisecond);
  const auto waits = AnswerTo(2);
  ASSERT_TRUE(waits);
  EXPECT_THAT(waits->waits, AllOf(HasSubstr("member 3"), HasSubstr("notice")))
      << "it is attached, and so waited for longer than the grace";
}

TEST_F(QuorumTest, ManyDecisionsOfOthersLeaveThatOfAJob) {
  EndLease(3, false, "closed its connection");
  for (const std::uint32_t member : {0U, 1U, 2U}) Ask(member);
  Pass(kMillisecond);
  Pass(kQuorumGraceMs * kMillisecond);
  ASSERT_EQ(meeting_.leader().quorums_count(), 0U);
  for (std::uint64_t i = 0; i < 2 * service::kQuorumsRememberedMax; ++i) {
    auto ask = AskOf("job" + std::to_string(i), 500 + i, 1001, meeting_.now() + kSecond);
    ask.membership.members = {0};
    b_.follower.Handle(ask, meeting_.now());
    meeting_.Run();
  }
  b_.quorums.clear();
  Ask(3);
  const auto answer = AnswerTo(3);
  ASSERT_TRUE(answer && !answer->quorum);
  EXPECT_EQ(answer->quorum.error().code(), Code::kMismatch) << "it was left out";
}

TEST_F(QuorumTest, OneThatIsBusyIsWaitedForThoughNobodyOnItsNodeAsks) {
  Kill(1);
  Ask(0);
  Pass(4 * kQuorumGraceMs * kMillisecond);
  const auto waits = AnswerTo(0);
  ASSERT_TRUE(waits);
  EXPECT_THAT(waits->waits, AllOf(HasSubstr("members 2, 3"), HasSubstr("notice")));
  Ask(2);
  Ask(3);
  Ask(0, 2, true);
  const auto answer = AnswerTo(0);
  ASSERT_TRUE(answer && answer->quorum);
  EXPECT_THAT(answer->quorum->membership.members, ElementsAre(0, 2, 3));
}

TEST_F(QuorumTest, RanksThatDieWithTheirWholeNodesProcessesCostNoGrace) {
  Kill(2);
  Kill(3);
  Ask(0);
  Ask(1);
  const auto answer = AnswerTo(0);
  ASSERT_TRUE(answer && answer->quorum);
  EXPECT_THAT(answer->quorum->membership.members, ElementsAre(0, 1));
  ASSERT_EQ(answer->quorum->lost.size(), 2U);
  EXPECT_THAT(answer->quorum->lost.back().cause, HasSubstr("pid 103"));
  EXPECT_EQ(b_.follower.quorums_count(), 0U);
}

TEST_F(QuorumTest, WhatBecameOfRanksIsForgottenWhereNobodyAsks) {
  for (const std::uint32_t member : {0U, 1U, 2U, 3U}) Kill(member);
  EXPECT_EQ(meeting_.leader().quorums_count(), 1U);
  Pass(kMillisecond);
  Pass(service::kLostMembersToldNs);
  EXPECT_EQ(meeting_.leader().quorums_count(), 0U);
  EXPECT_EQ(a_.follower.quorums_count() + b_.follower.quorums_count(), 0U);
  EXPECT_FALSE(a_.wants_leader || b_.wants_leader);
}

TEST_F(QuorumTest, AJobThatGoesOnAsBeforeAsksNobody) {
  EndLease(1, false, "closed its connection");
  EXPECT_EQ(b_.follower.quorums_count(), 1U) << "its ranks have yet to notice";
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    auto identity = Identity(rank);
    identity.id = SessionId{rank + 100};
    identity.after_epoch = 1;
    identity.job = JobId{rank < 2 ? 11U : 17U};
    meeting_.Attach(NodeOf(rank), identity);
  }
  meeting_.Run();
  EXPECT_EQ(meeting_.leader().quorums_count(), 0U);
  EXPECT_EQ(a_.follower.quorums_count() + b_.follower.quorums_count(), 0U);
}

TEST_F(QuorumTest, OneOfWhichNothingIsKnownIsLostAfterTheGrace) {
  EndLease(3, false, "closed its connection");
  for (const std::uint32_t member : {0U, 1U, 2U}) Ask(member);
  Pass(kQuorumGraceMs * kMillisecond / 2);
  EXPECT_FALSE(AnswerTo(0));
  Pass(kQuorumGraceMs * kMillisecond);
  const auto answer = AnswerTo(0);
  ASSERT_TRUE(answer && answer->quorum);
  EXPECT_THAT(answer->quorum->membership.members, ElementsAre(0, 1, 2));
  EXPECT_THAT(answer->quorum->lost.front().cause, HasSubstr("500 ms"));
}

TEST_F(QuorumTest, ANodeThatIsGoneTakesItsRanksWithIt) {
  Ask(0);
  Ask(1);
  Ask(2);
  meeting_.Cut(b_, "lost power");
  b_.wants_leader = false;
  Pass(kQuorumGraceMs * kMillisecond / 2);
  EXPECT_FALSE(AnswerTo(0)) << "the grace begins with the loss";
  Pass(kQuorumGraceMs * kMillisecond);
  const auto answer = AnswerTo(0);
  ASSERT_TRUE(answer && answer->quorum);
  EXPECT_THAT(answer->quorum->membership.members, ElementsAre(0, 1));
}

TEST_F(QuorumTest, ADecisionThatWasLostWithTheLinkIsRepeated) {
  Kill(2);
  Ask(0);
  Ask(1);
  LoseDecisionFor(3, 2);
  meeting_.Run();
  const auto first = AnswerTo(0);
  const auto repeated = AnswerTo(3);
  ASSERT_TRUE(first && first->quorum);
  ASSERT_TRUE(repeated && repeated->quorum);
  EXPECT_EQ(repeated->quorum->membership, Everybody({0, 1, 3}, 1));
  EXPECT_EQ(repeated->quorum->membership, first->quorum->membership);
  EXPECT_EQ(repeated->quorum->epoch, first->quorum->epoch);
  EXPECT_EQ(repeated->quorum->lost, first->quorum->lost);
  Pass(2 * kQuorumGraceMs * kMillisecond);
  EXPECT_FALSE(AnswerTo(0));
  EXPECT_FALSE(AnswerTo(3));
  EXPECT_EQ(meeting_.leader().quorums_count(), 0U);
}

TEST_F(QuorumTest, ARefusalThatWasLostWithTheLinkIsRepeated) {
  Kill(2);
  Ask(0, 4);
  Ask(1, 4);
  LoseDecisionFor(3, 4);
  meeting_.Run();
  const auto repeated = AnswerTo(3);
  ASSERT_TRUE(repeated);
  ASSERT_FALSE(repeated->quorum);
  EXPECT_EQ(repeated->quorum.error().code(), Code::kMismatch);
  EXPECT_THAT(repeated->quorum.error().text(), HasSubstr("min_world"));
  EXPECT_EQ(meeting_.leader().quorums_count(), 0U);
}

TEST_F(QuorumTest, NobodyBeingLostAllGoOn) {
  for (const std::uint32_t member : {0U, 1U, 2U, 3U}) Ask(member);
  const auto answer = AnswerTo(3);
  ASSERT_TRUE(answer && answer->quorum);
  EXPECT_THAT(answer->quorum->membership.members, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(answer->quorum->lost, IsEmpty());
}

TEST_F(QuorumTest, OneThatJoinsIsToldThatItsJobDoesNotRun) {
  Apply(b_, 0, service::MemberRole::kJoins, "other");
  Pass(3 * kSecond);
  const auto waits = AnswerTo(b_, 0);
  ASSERT_TRUE(waits);
  EXPECT_THAT(waits->waits, HasSubstr("a running job other, and node a leads none"));
}

// Who was lost is remembered for longer than the job runs.
TEST_F(QuorumTest, OneThatJoinsIsToldThatNobodyIsLeft) {
  for (const std::uint32_t member : {0U, 1U, 2U, 3U}) Kill(member);
  Apply(b_, 0, service::MemberRole::kJoins);
  Pass(3 * kSecond);
  const auto waits = AnswerTo(b_, 0);
  ASSERT_TRUE(waits);
  EXPECT_THAT(waits->waits, HasSubstr("a running job train, and node a leads none"));
}

// Which knows none of the job's ranks, as where a job grows by a node.
TEST_F(QuorumTest, OneThatJoinsOnAFurtherNodeIsToldToWaitForTheRanks) {
  MeetingNode& further = meeting_.AddNode("c");
  Apply(further, 0, service::MemberRole::kJoins);
  Pass(3 * kSecond);
  further.follower.Expire(meeting_.now());
  meeting_.Run();
  const auto waits = AnswerTo(further, 0);
  ASSERT_TRUE(waits);
  EXPECT_THAT(waits->waits, HasSubstr("let others in"));
}

TEST_F(QuorumTest, OneThatJoinsIsToldOfAndComesInWhenAllMembersMeet) {
  Apply(b_, 0, service::MemberRole::kJoins);
  EXPECT_THAT(a_.members_wait, ElementsAre(JobId{1}));
  EXPECT_THAT(b_.members_wait, ElementsAre(JobId{7})) << "once";
  Pass(4 * kQuorumGraceMs * kMillisecond);
  const auto waits = AnswerTo(b_, 0);
  ASSERT_TRUE(waits);
  EXPECT_THAT(waits->waits, HasSubstr("let others in"));
  Apply(b_, 0, service::MemberRole::kJoins);  // over the same connection
  for (const std::uint32_t member : {0U, 1U, 2U, 3U}) Ask(member);
  const std::uint32_t joined = service::Quorum::FirstNew(1);
  const auto own = AnswerTo(b_, 0);
  ASSERT_TRUE(own && own->quorum);
  EXPECT_EQ(own->quorum->own, joined);
  for (const std::uint32_t member : {0U, 1U, 2U, 3U}) {
    const auto answer = AnswerTo(member);
    ASSERT_TRUE(answer && answer->quorum);
    EXPECT_EQ(answer->quorum->membership, own->quorum->membership);
    EXPECT_THAT(answer->quorum->membership.members, ElementsAre(0, 1, 2, 3, joined));
  }
  EXPECT_EQ(meeting_.leader().quorums_count(), 0U);
}

TEST_F(QuorumTest, ASpareTakesTheFirstLostPlaceAndAnotherWaitsOn) {
  Apply(a_, 0, service::MemberRole::kSpare);
  Apply(b_, 1, service::MemberRole::kSpare);
  EXPECT_THAT(a_.members_wait, IsEmpty()) << "nobody is called for a spare";
  Kill(2);
  for (const std::uint32_t member : {0U, 1U, 3U}) Ask(member, 4);
  const auto first = AnswerTo(a_, 0);
  ASSERT_TRUE(first && first->quorum) << "and the job has four ranks, as it must";
  const std::uint32_t joined = first->quorum->own;
  const auto answer = AnswerTo(3);
  ASSERT_TRUE(answer && answer->quorum);
  EXPECT_THAT(answer->quorum->membership.members, ElementsAre(0, 1, 3, joined));
  EXPECT_FALSE(AnswerTo(b_, 1));
  EXPECT_EQ(meeting_.leader().quorums_count(), 1U) << "the other spare's";
  b_.follower.Handle(QuorumClientLost{.client = 1001, .exited = true});
  meeting_.Run();
  EXPECT_EQ(meeting_.leader().quorums_count(), 0U);
}

TEST_F(QuorumTest, OneThatJoinsComesInWithADecisionAfterALoss) {
  Apply(a_, 0, service::MemberRole::kJoins);
  Kill(3);
  for (const std::uint32_t member : {0U, 1U, 2U}) Ask(member);
  const auto own = AnswerTo(a_, 0);
  ASSERT_TRUE(own && own->quorum);
  EXPECT_THAT(own->quorum->membership.members, ElementsAre(0, 1, 2, service::Quorum::FirstNew(1)));
}

TEST_F(QuorumTest, AMemberThatIsTakenInHasANumberThatNobodyHad) {
  Kill(3);
  for (const std::uint32_t member : {0U, 1U, 2U}) Ask(member);
  AnswerTo(0);
  Apply(a_, 0, service::MemberRole::kJoins);
  for (const std::uint32_t member : {0U, 1U, 2U}) {
    Post(member, 2, true, Everybody({0, 1, 2}, 1));
    meeting_.Run();
  }
  const auto own = AnswerTo(a_, 0);
  ASSERT_TRUE(own && own->quorum);
  EXPECT_EQ(own->quorum->membership.generation, 2U);
  EXPECT_EQ(own->quorum->own, service::Quorum::FirstNew(2));
}

TEST_F(QuorumTest, BelowTheLeastWorldTheJobEndsWithAllThatAreLost) {
  Kill(1);
  Kill(2);
  Ask(0, 3);
  Ask(3, 3);
  for (const std::uint32_t member : {0U, 3U}) {
    const auto answer = AnswerTo(member);
    ASSERT_TRUE(answer);
    ASSERT_FALSE(answer->quorum);
    EXPECT_EQ(answer->quorum.error().code(), Code::kMismatch);
    EXPECT_THAT(answer->quorum.error().text(),
                AllOf(HasSubstr("2 of 4"), HasSubstr("min_world"), HasSubstr("member 1"),
                      HasSubstr("pid 101"), HasSubstr("member 2"), HasSubstr("pid 102")));
  }
  EXPECT_EQ(meeting_.leader().quorums_count(), 0U);
}

TEST_F(QuorumTest, OneThatWasLeftOutIsRefusedAndTheOthersAreNot) {
  EndLease(3, false, "closed its connection");
  for (const std::uint32_t member : {0U, 1U, 2U}) Ask(member);
  Pass(kMillisecond);  // from now on the grace time runs
  Pass(kQuorumGraceMs * kMillisecond);
  const auto decided = AnswerTo(0);
  ASSERT_TRUE(decided && decided->quorum);
  AnswerTo(2);
  Ask(3);
  const auto answer = AnswerTo(3);
  ASSERT_TRUE(answer);
  ASSERT_FALSE(answer->quorum);
  EXPECT_EQ(answer->quorum.error().code(), Code::kMismatch);
  EXPECT_THAT(answer->quorum.error().text(), HasSubstr("without member 3"));
  EXPECT_EQ(meeting_.leader().quorums_count(), 0U) << "it is no question of the others";
}

TEST_F(QuorumTest, OneWhoseProcessIsGoneBeforeTheDecisionIsNotSeated) {
  Ask(0);
  Ask(2);
  NodeOf(2).follower.Handle(QuorumClientLost{.client = 102, .exited = true});
  meeting_.Run();
  Ask(1);
  Ask(3);
  const auto answer = AnswerTo(0);
  ASSERT_TRUE(answer && answer->quorum);
  EXPECT_THAT(answer->quorum->membership.members, ElementsAre(0, 1, 3));
}

TEST_F(QuorumTest, TheNewestDecisionCountsWhereRanksHaveMissedOne) {
  Kill(2);
  Ask(0, 2, false, Everybody({0, 1, 3}, 4));
  Ask(1);
  Ask(3);
  const auto answer = AnswerTo(1);
  ASSERT_TRUE(answer && answer->quorum);
  EXPECT_EQ(answer->quorum->membership.generation, 5U);
  EXPECT_THAT(answer->quorum->lost, IsEmpty()) << "member 2 was lost before";
}

TEST_F(QuorumTest, CountsThatNobodyCanHaveComeToAreRefused) {
  Kill(2);
  for (const std::uint32_t member : {0U, 1U, 3U}) {
    Ask(member, 2, false, Everybody({0, 1, 3}, service::kEpochMax - 1));
  }
  const auto answer = AnswerTo(0);
  ASSERT_TRUE(answer);
  ASSERT_FALSE(answer->quorum);
  EXPECT_EQ(answer->quorum.error().code(), Code::kInvalidArgument);
}

TEST_F(QuorumTest, AJobThatBeginsAnewKnowsNothingOfLostMembers) {
  Kill(2);
  for (const std::uint32_t member : {0U, 1U, 3U}) Ask(member);
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    auto identity = Identity(rank);
    identity.id = SessionId{rank + 100};
    identity.job = JobId{rank < 2 ? 11U : 17U};
    meeting_.Attach(NodeOf(rank), identity);
  }
  meeting_.Run();
  a_.quorums.clear();
  b_.quorums.clear();
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    auto identity = Identity(rank);
    identity.id = SessionId{rank + 100};
    NodeOf(rank).follower.OnLeaseEnded(identity, false, "closed its connection", false);
  }
  for (const std::uint32_t member : {0U, 1U, 2U, 3U}) Ask(member, 2, true);
  const auto answer = AnswerTo(2);
  ASSERT_TRUE(answer && answer->quorum);
  EXPECT_THAT(answer->quorum->membership.members, ElementsAre(0, 1, 2, 3));
}

TEST(Memberships, AreCheckedWhereStrangersSayThem) {
  EXPECT_TRUE(service::CheckMembership({.members = {0}}).ok());
  EXPECT_TRUE(service::CheckMembership({.generation = 3, .members = {1, 4, 9}}).ok());
  EXPECT_FALSE(service::CheckMembership({.members = {}}).ok());
  EXPECT_FALSE(service::CheckMembership({.members = {2, 1}}).ok());
  EXPECT_FALSE(service::CheckMembership({.members = {1, 1}}).ok());
  EXPECT_FALSE(service::CheckMembership({.members = {service::kEpochMax}}).ok());
  EXPECT_FALSE(service::CheckMembership({.generation = service::kEpochMax, .members = {0}}).ok());
  std::vector<std::uint32_t> many(transport::kMembersMax + 1);
  for (std::uint32_t i = 0; i < many.size(); ++i) many[i] = i;
  EXPECT_FALSE(service::CheckMembership({.members = many}).ok());
}

TEST(Memberships, AreOrderedWhoeverSaysThemFirst) {
  const Membership older{.generation = 1, .members = {0, 1, 2}};
  const Membership newer{.generation = 2, .members = {0, 1}};
  const Membership other{.generation = 2, .members = {1, 2}};
  EXPECT_TRUE(IsNewer(newer, older));
  EXPECT_FALSE(IsNewer(older, newer));
  EXPECT_NE(IsNewer(newer, other), IsNewer(other, newer));
  EXPECT_FALSE(IsNewer(newer, newer));
}

}  // namespace
}  // namespace headrace::support
