// What a node tells its lanes and its dispatch, and in which order.
#include "service/membership/follower.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/unit/service/membership/meeting.h"

namespace headrace::support {
namespace {

using service::Follower;
using service::FollowerAction;
using service::JobFailed;
using service::JobForming;

// The kinds of what a follower wants done, in order: "reach", "tell leader", "JobFormed", ...
std::vector<std::string> Kinds(const std::vector<FollowerAction>& actions) {
  std::vector<std::string> kinds;
  for (const FollowerAction& action : actions) {
    if (std::holds_alternative<service::ReachLeader>(action)) kinds.emplace_back("reach");
    if (std::holds_alternative<service::LeaveLeader>(action)) kinds.emplace_back("leave");
    if (std::holds_alternative<service::ToLeader>(action)) kinds.emplace_back("tell leader");
    if (const auto* lane = std::get_if<service::ToLane>(&action)) {
      const bool opens = std::holds_alternative<service::OpenGroup>(lane->message);
      const bool costs = std::holds_alternative<service::SetCost>(lane->message);
      const bool closes = std::holds_alternative<service::CloseGroup>(lane->message);
      kinds.emplace_back(opens ? "open" : costs ? "cost" : closes ? "close" : "measure");
    }
    if (const auto* dispatch = std::get_if<service::ToDispatch>(&action)) {
      const bool forms = std::holds_alternative<JobForming>(dispatch->message);
      const bool formed = std::holds_alternative<service::JobFormed>(dispatch->message);
      const bool failed = std::holds_alternative<JobFailed>(dispatch->message);
      kinds.emplace_back(forms ? "forming" : formed ? "formed" : failed ? "failed" : "left");
    }
  }
  return kinds;
}

service::Agreement AgreementOfOne() {
  service::Agreement agreement;
  agreement.job = "train";
  agreement.world_size = 1;
  agreement.key = 9;
  agreement.nodes = {{.name = "b", .ranks = {0}, .addresses = {"B0"}}};
  return agreement;
}

class FollowerTest : public testing::Test {
 protected:
  void Join() {
    follower_.RankAttached(Meeting::Rank(7, 0, 1));
    follower_.LeaderUp(kMeetingPlace);
    follower_.TakeActions();
  }
  void Take(const service::PeerMessage& message) { follower_.Take(kMeetingPlace, message, now_); }
  void Form() {
    Join();
    service::Agreement agreement = AgreementOfOne();
    Take(service::OpenJob{.job = 7, .self = 0, .agreement = agreement});
    follower_.Take(service::GroupOpened{.lane = 1, .group = 7});
    Take(service::MeasureJob{7});
    follower_.Take(
        service::GroupMeasured{.lane = 1, .group = 7, .cost = transport::CostLine{1, 2}});
    agreement.costs = {{1, 2}};
    follower_.TakeActions();
    Take(service::StartJob{.job = 7, .costs = agreement.costs, .hash = HashOf(agreement)});
  }
  // The code with which the node answered the last step.
  Code Answered() {
    for (const FollowerAction& action : follower_.TakeActions()) {
      const auto* told = std::get_if<service::ToLeader>(&action);
      if (told == nullptr) continue;
      if (const auto* opened = std::get_if<service::JobOpened>(&told->message)) return opened->code;
    }
    return Code::kNotFound;
  }

  Follower follower_{{.lanes = {1}}};
  TimeNs now_ = kSecond;
};

TEST_F(FollowerTest, ReachesTheLeaderOnceForAllRanksOfAJob) {
  follower_.RankAttached(Meeting::Rank(7, 0, 2));
  EXPECT_EQ(Kinds(follower_.TakeActions()), (std::vector<std::string>{"reach", "forming"}));
  follower_.RankAttached(Meeting::Rank(7, 1, 2));
  EXPECT_TRUE(follower_.TakeActions().empty());
  follower_.LeaderUp(kMeetingPlace);
  EXPECT_EQ(follower_.TakeActions().size(), 3U) << "join and two seats";
}

TEST_F(FollowerTest, SetsTheCostBeforeDispatchIsTold) {
  Form();
  EXPECT_EQ(Kinds(follower_.TakeActions()),
            (std::vector<std::string>{"cost", "formed", "tell leader"}));
}

TEST_F(FollowerTest, TellsDispatchOfTheFailureBeforeItClosesTheLinks) {
  Form();
  follower_.TakeActions();
  Take(service::FailJob{.job = 7, .code = Code::kPeerLost, .cause = "rank 3"});
  EXPECT_EQ(Kinds(follower_.TakeActions()), (std::vector<std::string>{"failed", "close", "leave"}));
  Take(service::FailJob{.job = 7, .code = Code::kPeerLost, .cause = "again"});
  EXPECT_TRUE(follower_.TakeActions().empty()) << "a job fails once";
  follower_.Take(service::JobEnded{JobId{7}});
  EXPECT_EQ(follower_.jobs_count(), 0U);
}

TEST_F(FollowerTest, SaysEveryChangeOfWhatItWaitsForOnce) {
  Join();
  Take(service::TellWaits{.job = 7, .text = "rank 1 is missing"});
  Take(service::TellWaits{.job = 7, .text = "rank 1 is missing"});
  EXPECT_EQ(Kinds(follower_.TakeActions()), (std::vector<std::string>{"forming"}));
}

TEST_F(FollowerTest, WaitsForTheLeaderAsLongAsTheRanksAllow) {
  auto rank = Meeting::Rank(7, 0, 2);
  rank.timeout_ms = 5000;
  follower_.RankAttached(rank);
  rank.rank = 1;
  rank.attached_ns = 2 * kSecond;
  follower_.RankAttached(rank);
  follower_.TakeActions();
  const std::string cause = "the service at 10.0.0.1:7733 does not answer: Connection refused";
  follower_.LeaderSilent(kMeetingPlace, cause, 6 * kSecond);
  EXPECT_EQ(Kinds(follower_.TakeActions()), (std::vector<std::string>{"forming"}));
  follower_.LeaderSilent(kMeetingPlace, cause, 7 * kSecond);
  const auto actions = follower_.TakeActions();
  EXPECT_EQ(Kinds(actions), (std::vector<std::string>{"failed", "leave"}));
  const auto failed = std::get<JobFailed>(std::get<service::ToDispatch>(actions[0]).message);
  EXPECT_EQ(failed.code, Code::kTimeout);
  EXPECT_NE(failed.cause.find(cause), std::string::npos) << failed.cause;
}

TEST_F(FollowerTest, JoinsAgainWhenTheLeaderIsLostBeforeAnythingWasAgreed) {
  Join();
  follower_.LeaderDown(kMeetingPlace, Error(Code::kPeerLost, "the connection broke"));
  EXPECT_EQ(Kinds(follower_.TakeActions()), (std::vector<std::string>{"forming"}));
  follower_.LeaderUp(kMeetingPlace);
  EXPECT_EQ(follower_.TakeActions().size(), 2U) << "join and seat";
}

TEST_F(FollowerTest, FailsWhenTheLeaderIsLostAfterTheLinksWereOpened) {
  Form();
  follower_.TakeActions();
  follower_.LeaderDown(kMeetingPlace, Error(Code::kPeerLost, "node a does not answer for 3.0 s"));
  EXPECT_EQ(Kinds(follower_.TakeActions()), (std::vector<std::string>{"failed", "close", "leave"}));
}

TEST_F(FollowerTest, FailsAtOnceWhenTheLeaderRefuses) {
  follower_.RankAttached(Meeting::Rank(7, 0, 1));
  follower_.TakeActions();
  follower_.LeaderRefused(kMeetingPlace, Error(Code::kVersionMismatch, "other release"));
  EXPECT_EQ(Kinds(follower_.TakeActions()), (std::vector<std::string>{"failed", "leave"}));
}

TEST_F(FollowerTest, ARankThatIsLostBeforeTheLeaderWasReachedEndsTheJobHere) {
  follower_.RankAttached(Meeting::Rank(7, 0, 2));
  follower_.TakeActions();
  follower_.RankLost(JobId{7}, 0, "exited or was killed");
  EXPECT_EQ(Kinds(follower_.TakeActions()), (std::vector<std::string>{"failed", "leave"}));
}

TEST_F(FollowerTest, RefusesARosterThatMakesNoSense) {
  struct Case {
    const char* what;
    void (*spoil)(service::OpenJob&);
  };
  const Case cases[] = {
      {"no nodes", [](service::OpenJob& open) { open.agreement.nodes.clear(); }},
      {"self beyond", [](service::OpenJob& open) { open.self = 1; }},
      {"only servers", [](service::OpenJob& open) { open.agreement.servers_count = 1; }},
      {"too many nodes",
       [](service::OpenJob& open) {
         open.agreement.nodes.resize(transport::kNodesMax + 1, open.agreement.nodes[0]);
       }},
      {"other lanes", [](service::OpenJob& open) { open.agreement.nodes[0].addresses.clear(); }},
      {"other ranks", [](service::OpenJob& open) { open.agreement.nodes[0].ranks = {1}; }},
      {"other job", [](service::OpenJob& open) { open.agreement.job = "other"; }},
      {"no key", [](service::OpenJob& open) { open.agreement.key = 0; }}};
  for (const Case& each : cases) {
    follower_ = Follower({.lanes = {1}});
    Join();
    service::OpenJob open{.job = 7, .self = 0, .agreement = AgreementOfOne()};
    each.spoil(open);
    Take(open);
    EXPECT_EQ(Answered(), Code::kCorrupt) << each.what;
  }
}

TEST_F(FollowerTest, IgnoresStepsOutOfOrderAndOfOtherLeaders) {
  Join();
  Take(service::MeasureJob{7});
  Take(service::StartJob{.job = 7});
  Take(service::RankGone{.job = 7, .rank = 3});
  Take(service::FailJob{.job = 8, .cause = "unknown"});
  follower_.Take("elsewhere:1", service::FailJob{.job = 7, .cause = "forged"}, now_);
  Take(service::JoinJob{.job = 7});
  EXPECT_TRUE(follower_.TakeActions().empty());
}

TEST_F(FollowerTest, IgnoresAnswersOfLanesThatComeLate) {
  Join();
  Take(service::OpenJob{.job = 7, .self = 0, .agreement = AgreementOfOne()});
  Take(service::FailJob{.job = 7, .code = Code::kPeerLost, .cause = "rank 3"});
  follower_.TakeActions();
  follower_.Take(service::GroupOpened{.lane = 1, .group = 7});
  follower_.Take(service::GroupMeasured{.lane = 1, .group = 7, .cost = transport::CostLine{}});
  EXPECT_TRUE(follower_.TakeActions().empty());
}

TEST_F(FollowerTest, RefusesToAttachARankThatIsOnAnotherNode) {
  follower_.RankAttached(Meeting::Rank(7, 0, 2));
  follower_.LeaderUp(kMeetingPlace);
  EXPECT_TRUE(follower_.CheckAttach("train", 1).ok()) << "while the job gathers";
  service::Agreement agreement = AgreementOfOne();
  agreement.world_size = 2;
  agreement.nodes.push_back({.name = "c", .ranks = {1}, .addresses = {"C0"}});
  Take(service::OpenJob{.job = 7, .self = 0, .agreement = agreement});
  const Status status = follower_.CheckAttach("train", 1);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().text().find("rank 1 of job train is on node c"), std::string::npos);
  EXPECT_TRUE(follower_.CheckAttach("other", 1).ok());
}

TEST_F(FollowerTest, AClosedJobThatStillHasRanksIsAFailure) {
  Form();
  follower_.TakeActions();
  Take(service::CloseJob{7});
  EXPECT_EQ(Kinds(follower_.TakeActions()), (std::vector<std::string>{"failed", "close", "leave"}));
}

}  // namespace
}  // namespace headrace::support
