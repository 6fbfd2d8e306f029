// Who may not take part in a job, and who hears of it.
#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <vector>

#include "service/cluster/leader.h"
#include "tests/support/expect_text.h"
#include "tests/unit/service/cluster/meeting.h"

namespace headrace::support {
namespace {

using service::JobFormed;

TEST(Refusals, RanksThatDifferInTheJobsSizeAreAllToldAtOnce) {
  Meeting meeting;
  MeetingNode& a = meeting.AddNode("a");
  MeetingNode& b = meeting.AddNode("b");
  MeetingNode& c = meeting.AddNode("c");
  meeting.Attach(a, Meeting::Rank(1, 0, 3));
  meeting.Attach(b, Meeting::Rank(7, 1, 3));
  meeting.Run();
  meeting.Attach(c, Meeting::Rank(3, 2, 4));
  meeting.Run();
  EXPECT_TEXT(c.failure(), "job train", "node a", "node c", "WORLD_SIZE");
  for (const MeetingNode* node : {&a, &b}) {
    EXPECT_EQ(node->failure(), c.failure());
    EXPECT_EQ(node->Told<service::JobFailed>().back().code, Code::kMismatch);
  }
  EXPECT_EQ(meeting.leader().jobs_count(), 0U);
  EXPECT_EQ(meeting.leader().DrainRefused().size(), 2U) << "b and c: a is the leader's own node";
  ASSERT_EQ(b.refusals.size(), 1U);
  EXPECT_EQ(b.refusals.front(), c.failure());
}

TEST(Refusals, AJobOfAnotherUserIsNotEndedByOneOfItsName) {
  Meeting meeting;
  MeetingNode& a = meeting.AddNode("a");
  MeetingNode& b = meeting.AddNode("b");
  auto stranger = Meeting::Rank(7, 1, 4);
  stranger.uid += 1;
  meeting.Attach(a, Meeting::Rank(1, 0, 2));
  meeting.Run();
  meeting.Attach(b, stranger);
  meeting.Run();
  EXPECT_EQ(b.failure(), "");
  EXPECT_EQ(a.failure(), "");
  EXPECT_TEXT(a.waits(), "rank 1");
  EXPECT_TEXT(b.waits(), "ranks 0, 2, 3");
}

TEST(Refusals, ANodeThatIsNotLetInIsNamedToThoseWhoWait) {
  Meeting meeting;
  MeetingNode& a = meeting.AddNode("a");
  meeting.Attach(a, Meeting::Rank(1, 0, 2));
  meeting.Run();
  meeting.leader().OnNodeRefused("10.0.0.2:4711 is refused: another authority");
  meeting.Run();
  EXPECT_TEXT(a.waits(), "rank 1", "10.0.0.2", "4711");
}

TEST(Refusals, WhoWaitsHearsAtOnceOfANodeThatIsNotLetIn) {
  Meeting meeting;
  MeetingNode& a = meeting.AddNode("a");
  meeting.Attach(a, Meeting::Rank(1, 0, 2));
  meeting.Run();
  a.follower.Handle(service::AskForming{.token = 1, .job = JobId{1}, .until_ns = kNever}, 0);
  meeting.Run();
  EXPECT_TRUE(a.answers.empty());
  meeting.leader().OnNodeRefused("10.0.0.2:4711 is refused: another authority");
  meeting.Run();
  ASSERT_EQ(a.answers.size(), 1U);
  EXPECT_TEXT(a.answers[0].status.error().text(), "rank 1", "another authority");
}

TEST(Refusals, ANodeThatIsNotLetInIsNamedUntilTheWaitEnds) {
  constexpr const char* kWhy = "10.0.0.2:4711 is refused: another authority";
  Meeting meeting;
  MeetingNode& a = meeting.AddNode("a");
  MeetingNode& b = meeting.AddNode("b");
  meeting.Attach(a, Meeting::Rank(1, 0, 2));
  meeting.Run();
  meeting.leader().OnNodeRefused(kWhy);
  meeting.leader().OnNodeRefused("");
  service::SessionIdentity later = Meeting::Rank(2, 0, 2);
  later.job_name = "later";
  meeting.Attach(b, later);
  meeting.Run();
  EXPECT_TEXT(a.waits(), "rank 1", kWhy);
  EXPECT_TEXT(b.waits(), "rank 1");
}

TEST(Refusals, ARankThatItsServiceRefusedEndsTheJobForAllThatWait) {
  Meeting meeting;
  MeetingNode& a = meeting.AddNode("a");
  MeetingNode& b = meeting.AddNode("b");
  meeting.Attach(a, Meeting::Rank(1, 0, 3));
  meeting.Attach(b, Meeting::Rank(7, 1, 3));
  meeting.Run();
  const service::RankRefused of_another{
      .job = "train", .uid = 77, .rank = 2, .pid = 9, .code = Code::kMismatch, .cause = "no"};
  b.follower.Handle(of_another);
  meeting.Run();
  EXPECT_EQ(a.failure(), "") << "another user's rank is no rank of this job";
  service::RankRefused refused = of_another;
  refused.uid = Meeting::Rank(7, 1, 3).uid;
  b.follower.Handle(refused);
  meeting.Run();
  EXPECT_TEXT(a.failure(), "rank 2", "pid 9", "node b");
  EXPECT_EQ(b.failure(), a.failure());
}

service::RankRefused Refused(std::uint32_t rank, const std::string& cause) {
  const service::SessionIdentity asker = Meeting::Rank(1, rank, 2);
  return {.job = asker.job_name,
          .leader = asker.rendezvous,
          .world_size = asker.world_size,
          .uid = asker.uid,
          .rank = rank,
          .pid = 9,
          .code = Code::kExhausted,
          .cause = cause};
}

TEST(Refusals, ANodesFirstRankThatIsRefusedEndsTheJobOfThoseWhoWaitElsewhere) {
  for (const bool connected : {false, true}) {
    Meeting meeting;
    MeetingNode& a = meeting.AddNode("a");
    MeetingNode& b = meeting.AddNode("b");
    if (connected) {
      meeting.Attach(b, Meeting::Rank(5, 0, 2, "another"));
      meeting.Run();
    }
    meeting.Attach(a, Meeting::Rank(1, 0, 2));
    meeting.Run();
    auto of_another = Refused(1, "too many sessions");
    of_another.uid = 77;
    b.follower.Handle(of_another);
    meeting.Run();
    EXPECT_EQ(a.failure(), "") << "another user's rank is no rank of this job";
    b.follower.Handle(Refused(1, "too many sessions"));
    meeting.Run();
    EXPECT_TEXT(a.failure(), "rank 1", "pid 9", "node b");
    EXPECT_EQ(a.Told<service::JobFailed>().back().code, Code::kExhausted);
    EXPECT_EQ(b.failure(), "") << "nobody waits there";
    // Doctor on both nodes tells of it.
    const auto refused = meeting.leader().DrainRefused();
    ASSERT_FALSE(refused.empty());
    EXPECT_EQ(refused.back().name, "b");
    EXPECT_EQ(refused.back().why, a.failure());
    ASSERT_FALSE(b.refusals.empty());
    EXPECT_EQ(b.refusals.back(), a.failure());
    EXPECT_EQ(b.follower.jobs_count(), connected ? 1U : 0U);
    EXPECT_EQ(b.wants_leader, connected) << "the leader is left again";
  }
}

TEST(Refusals, ANodeThatOnlyTellsOfARefusedRankGivesUpWhereNobodyListens) {
  Meeting meeting;
  MeetingNode& b = meeting.AddNode("b");
  b.follower.Handle(Refused(1, "no"));
  meeting.Collect();
  EXPECT_TRUE(b.wants_leader);
  b.follower.OnLeaderUnreachable(kMeetingPlace, "connection refused", meeting.now());
  meeting.Collect();
  EXPECT_EQ(b.follower.jobs_count(), 0U);
  EXPECT_FALSE(b.wants_leader);
}

TEST(Refusals, LeadersAreToldOfSoManyRefusedRanksAtOneTime) {
  Meeting meeting;
  MeetingNode& b = meeting.AddNode("b");
  for (int count = 0; count < 100; ++count) b.follower.Handle(Refused(1, "no"));
  EXPECT_EQ(b.follower.jobs_count(), static_cast<std::size_t>(service::kRefusedMax) / 2);
}

TEST(Refusals, WhoComesAfterARankWasRefusedIsToldUntilANodeHasOneThatIsNot) {
  Meeting meeting;
  MeetingNode& a = meeting.AddNode("a");
  MeetingNode& b = meeting.AddNode("b");
  b.follower.Handle(Refused(1, "too many sessions"));
  meeting.Run();
  auto of_another = Meeting::Rank(2, 0, 2);
  of_another.uid += 1;
  meeting.Attach(a, of_another);
  meeting.Run();
  EXPECT_TEXT(a.waits(), "rank 1");
  a.follower.Handle(service::JobEnded{JobId{2}});
  meeting.Attach(a, Meeting::Rank(1, 0, 2));
  meeting.Run();
  EXPECT_TEXT(a.waits(), "rank 1", "pid 9", "node b");
  EXPECT_EQ(a.failure(), "") << "it may come again, mended";
  meeting.Attach(b, Meeting::Rank(7, 1, 2));
  meeting.Run();
  EXPECT_EQ(a.Told<JobFormed>().size(), 1U);
  a.follower.Handle(service::JobEnded{JobId{1}});
  b.follower.Handle(service::JobEnded{JobId{7}});
  meeting.Run();
  meeting.Attach(a, Meeting::Rank(3, 0, 2));
  meeting.Run();
  EXPECT_TEXT(a.waits(), "rank 1");
}

TEST(Refusals, WhoComesAMinuteAfterARankWasRefusedIsNotToldOfIt) {
  Meeting meeting;
  MeetingNode& a = meeting.AddNode("a");
  MeetingNode& b = meeting.AddNode("b");
  b.follower.Handle(Refused(1, "no"));
  meeting.Run();
  meeting.Pass(61 * kSecond);
  meeting.Attach(a, Meeting::Rank(1, 0, 2));
  meeting.Run();
  EXPECT_TEXT(a.waits(), "rank 1");
}

TEST(Refusals, ARankThatFollowsADecisionHasToAskAgainWhereAnotherWasLostSince) {
  Meeting meeting;
  MeetingNode& a = meeting.AddNode("a");
  MeetingNode& b = meeting.AddNode("b");
  auto decided = Meeting::Rank(1, 0, 2);
  decided.after_epoch = 1;
  decided.members_hash = 5;
  auto late = Meeting::Rank(7, 1, 2);
  late.after_epoch = 1;
  late.members_hash = 5;
  meeting.Attach(a, decided);
  meeting.Run();
  a.follower.OnRankLost(JobId{1}, 0, "exited or was killed", /*exited=*/true);
  meeting.Run();
  a.follower.Handle(service::JobEnded{JobId{1}});
  meeting.Attach(b, late);
  meeting.Run();
  EXPECT_TEXT(b.failure(), "job train", "rank 0", "ask again");
  EXPECT_EQ(b.Told<service::JobFailed>().back().code, Code::kPeerLost);
}

TEST(Refusals, AnEpochThatLostARankWithItsProcessHasNoNextOne) {
  for (const bool exited : {true, false}) {
    Meeting meeting;
    MeetingNode& a = meeting.AddNode("a");
    MeetingNode& b = meeting.AddNode("b");
    meeting.Attach(a, Meeting::Rank(1, 0, 2));
    meeting.Attach(b, Meeting::Rank(7, 1, 2));
    meeting.Run();
    b.follower.OnRankLost(JobId{7}, 1, "exited or was killed", exited);
    meeting.Run();
    a.follower.Handle(service::JobEnded{JobId{1}});
    b.follower.Handle(service::JobEnded{JobId{7}});
    auto again = Meeting::Rank(2, 0, 2);
    again.after_epoch = 1;
    meeting.Attach(a, again);
    meeting.Run();
    if (exited) {
      EXPECT_TEXT(a.failure(), "job train", "rank 1", "pid 101", "node b");
      EXPECT_EQ(a.Told<service::JobFailed>().back().code, Code::kMismatch);
      meeting.Attach(a, Meeting::Rank(3, 0, 2));
      meeting.Attach(b, Meeting::Rank(8, 1, 2));
      meeting.Run();
      EXPECT_EQ(a.Told<JobFormed>().size(), 2U) << "begun anew";
    } else {
      EXPECT_TEXT(a.waits(), "rank 1");
    }
  }
}

TEST(Refusals, NamesBothNodesAndPidsOfARankThatIsTakenTwice) {
  Meeting meeting;
  MeetingNode& a = meeting.AddNode("a");
  MeetingNode& b = meeting.AddNode("b");
  MeetingNode& c = meeting.AddNode("c");
  meeting.Attach(a, Meeting::Rank(1, 1, 3));
  meeting.Run();
  auto twice = Meeting::Rank(1, 1, 3);
  twice.pid = 555;
  meeting.Attach(b, twice);
  meeting.Run();
  EXPECT_TEXT(b.failure(), "rank 1", "pid 101", "node a", "pid 555", "node b");
  EXPECT_EQ(a.failure(), b.failure()) << "who waits is told at once";
  meeting.Attach(a, Meeting::Rank(2, 1, 3));
  meeting.Attach(c, Meeting::Rank(1, 0, 3));
  meeting.Attach(c, Meeting::Rank(1, 2, 3));
  meeting.Run();
  EXPECT_EQ(a.Told<JobFormed>().size(), 1U) << "the name is free again";
}

TEST(Refusals, RefusesWhoeverDisagreesOnTheJob) {
  struct Case {
    service::SessionIdentity request;
    Code code;
    std::vector<std::string> parts;
  };
  auto other_way = Meeting::Rank(1, 1, 3);
  other_way.architecture = Architecture::kParameterServer;
  const std::vector<Case> cases = {
      {Meeting::Rank(1, 1, 4), Code::kMismatch, {"on node a they say 3", "on node b 4"}},
      {other_way, Code::kMismatch, {"on node a they say \"\"", "on node b \"parameter-server\""}}};
  for (const Case& each : cases) {
    Meeting meeting;
    MeetingNode& a = meeting.AddNode("a");
    MeetingNode& b = meeting.AddNode("b");
    meeting.Attach(a, Meeting::Rank(1, 0, 3));
    meeting.Run();
    meeting.Attach(b, each.request);
    meeting.Run();
    ASSERT_EQ(b.Told<service::JobFailed>().size(), 1U);
    EXPECT_EQ(b.Told<service::JobFailed>().at(0).code, each.code);
    for (const std::string& part : each.parts) EXPECT_TEXT(b.failure(), part);
    EXPECT_EQ(a.failure(), each.code == Code::kMismatch ? b.failure() : "");
  }
}

TEST(Refusals, RanksThatCameAsAnotherUserOnAnotherNodeAreNamed) {
  Meeting meeting;
  MeetingNode& a = meeting.AddNode("a");
  MeetingNode& b = meeting.AddNode("b");
  meeting.Attach(a, Meeting::Rank(1, 0, 2));
  meeting.Run();
  auto stranger = Meeting::Rank(1, 1, 2);
  stranger.uid = 1001;
  meeting.Attach(b, stranger);
  meeting.Run();
  EXPECT_TEXT(a.waits(), "rank 1", "node b", "uid 1001", "uid 1000", "same uid");
  EXPECT_TEXT(b.waits(), "rank 0", "node a", "uid 1000", "same uid");
  auto smaller = Meeting::Rank(2, 0, 4, "other");
  meeting.Attach(a, smaller);
  smaller = Meeting::Rank(3, 0, 3, "other");
  smaller.uid = 1001;
  meeting.Attach(a, smaller);
  meeting.Run();
  EXPECT_EQ(a.waits().find("uid"), std::string::npos) << "that is another job: " << a.waits();
}

TEST(Refusals, AUserWithManyRefusedRanksLeavesThoseOfOthersTold) {
  Meeting meeting;
  MeetingNode& b = meeting.AddNode("b");
  auto other = Refused(1, "no");
  other.uid = 65534;
  for (int count = 0; count < 100; ++count) b.follower.Handle(other);
  const std::size_t before = b.follower.jobs_count();
  EXPECT_EQ(before, static_cast<std::size_t>(service::kRefusedMax) / 2);
  b.follower.Handle(Refused(1, "no"));
  EXPECT_EQ(b.follower.jobs_count(), before + 1);
}

TEST(Refusals, AUserWithManyRefusedRanksLeavesThoseOfOthersKnown) {
  Meeting meeting;
  MeetingNode& a = meeting.AddNode("a");
  MeetingNode& b = meeting.AddNode("b");
  b.follower.Handle(Refused(1, "too many sessions"));
  meeting.Run();
  for (std::size_t count = 0; count < 2 * service::RefusedRanks::kMax; ++count) {
    auto other = Refused(1, "no");
    other.job += std::to_string(count);
    other.uid = 65534;
    b.follower.Handle(other);
    meeting.Run();
  }
  meeting.Attach(a, Meeting::Rank(1, 0, 2));
  meeting.Run();
  EXPECT_TEXT(a.waits(), "pid 9", "node b", "too many sessions");
}

}  // namespace
}  // namespace headrace::support
