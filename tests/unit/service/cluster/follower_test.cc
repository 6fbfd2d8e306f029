// What a node tells its lanes and its dispatch, and in which order.
#include "service/cluster/follower.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/expect_text.h"
#include "tests/unit/service/cluster/meeting.h"

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
  agreement.block_bytes = 4096;
  agreement.nodes = {{.name = "b", .ranks = {0}, .addresses = {"B0"}}};
  return agreement;
}

class FollowerTest : public testing::Test {
 protected:
  void Join() {
    follower_.OnRankAttached(Meeting::Rank(7, 0, 1));
    follower_.OnLeaderUp(kMeetingPlace);
    follower_.DrainActions();
  }
  void Handle(const service::PeerMessage& message) {
    follower_.Handle(kMeetingPlace, message, now_);
  }
  void Form() {
    Join();
    service::Agreement agreement = AgreementOfOne();
    Handle(service::OpenJob{.job = 7, .self = 0, .agreement = agreement});
    follower_.Handle(service::GroupOpened{.lane = 1, .group = 7});
    Handle(service::MeasureJob{7});
    follower_.Handle(
        service::GroupMeasured{.lane = 1, .group = 7, .cost = transport::CostLine{1, 2}});
    agreement.costs = {{1, 2}};
    follower_.DrainActions();
    Handle(service::StartJob{.job = 7, .costs = agreement.costs, .hash = HashOf(agreement)});
  }
  // The code with which the node answered the last step.
  Code Answered() {
    for (const FollowerAction& action : follower_.DrainActions()) {
      const auto* told = std::get_if<service::ToLeader>(&action);
      if (told == nullptr) continue;
      if (const auto* opened = std::get_if<service::JobOpened>(&told->message)) return opened->code;
    }
    return Code::kNotFound;
  }

  // With another follower, which knows nothing of what was before.
  void BeginAnew(service::FollowerOptions options) {
    std::destroy_at(&follower_);
    std::construct_at(&follower_, std::move(options), directory_);
  }

  using Texts = std::map<std::uint64_t, std::string>;
  // What those who asked what the job waits for have heard since, by their tokens; "" is ok.
  Texts Heard() {
    Texts heard;
    for (const FollowerAction& action : follower_.DrainActions()) {
      const auto* answer = std::get_if<service::Answered>(&action);
      if (answer == nullptr) continue;
      heard[answer->token] = answer->status ? "" : answer->status.error().text();
    }
    return heard;
  }

  service::JobDirectory directory_;
  Follower follower_{{.node_name = "b", .lanes = {1}}, directory_};
  TimeNs now_ = kSecond;
};

TEST_F(FollowerTest, ReachesTheLeaderOnceForAllRanksOfAJob) {
  follower_.OnRankAttached(Meeting::Rank(7, 0, 2));
  EXPECT_EQ(Kinds(follower_.DrainActions()), (std::vector<std::string>{"reach", "forming"}));
  follower_.OnRankAttached(Meeting::Rank(7, 1, 2));
  EXPECT_TRUE(follower_.DrainActions().empty());
  follower_.OnLeaderUp(kMeetingPlace);
  EXPECT_EQ(follower_.DrainActions().size(), 3U) << "join and two seats";
}

TEST_F(FollowerTest, SetsTheCostBeforeDispatchIsTold) {
  Form();
  EXPECT_EQ(Kinds(follower_.DrainActions()),
            (std::vector<std::string>{"cost", "formed", "tell leader"}));
}

TEST_F(FollowerTest, TellsDispatchOfTheFailureBeforeItClosesTheLinks) {
  Form();
  follower_.DrainActions();
  Handle(service::AnnounceJobFailed{.job = 7, .code = Code::kPeerLost, .cause = "rank 3"});
  EXPECT_EQ(Kinds(follower_.DrainActions()),
            (std::vector<std::string>{"failed", "close", "leave"}));
  Handle(service::AnnounceJobFailed{.job = 7, .code = Code::kPeerLost, .cause = "again"});
  EXPECT_TRUE(follower_.DrainActions().empty()) << "a job fails once";
  follower_.Handle(service::JobEnded{JobId{7}});
  EXPECT_EQ(follower_.jobs_count(), 0U);
}

TEST_F(FollowerTest, SaysEveryChangeOfWhatItWaitsForOnce) {
  Join();
  Handle(service::AnnounceJobForming{.job = 7, .text = "rank 1 is missing"});
  Handle(service::AnnounceJobForming{.job = 7, .text = "rank 1 is missing"});
  EXPECT_EQ(Kinds(follower_.DrainActions()), (std::vector<std::string>{"forming"}));
}

TEST_F(FollowerTest, WaitsForTheLeaderAsLongAsTheRanksAllow) {
  auto rank = Meeting::Rank(7, 0, 2);
  rank.timeout_ms = 5000;
  follower_.OnRankAttached(rank);
  rank.rank = 1;
  rank.attached_ns = 2 * kSecond;
  follower_.OnRankAttached(rank);
  follower_.DrainActions();
  const std::string cause = "the service at 10.0.0.1:7733 does not answer: Connection refused";
  follower_.OnLeaderUnreachable(kMeetingPlace, cause, 6 * kSecond);
  EXPECT_EQ(Kinds(follower_.DrainActions()), (std::vector<std::string>{"forming"}));
  follower_.OnLeaderUnreachable(kMeetingPlace, cause, 7 * kSecond);
  const auto actions = follower_.DrainActions();
  EXPECT_EQ(Kinds(actions), (std::vector<std::string>{"failed", "leave"}));
  const auto failed = std::get<JobFailed>(std::get<service::ToDispatch>(actions[0]).message);
  EXPECT_EQ(failed.code, Code::kTimeout);
  EXPECT_NE(failed.cause.find(cause), std::string::npos) << failed.cause;
}

TEST_F(FollowerTest, JoinsAgainWhenTheLeaderIsLostBeforeAnythingWasAgreed) {
  Join();
  follower_.OnLeaderDown(kMeetingPlace, Error(Code::kPeerLost, "the connection broke"));
  EXPECT_EQ(Kinds(follower_.DrainActions()), (std::vector<std::string>{"forming"}));
  follower_.OnLeaderUp(kMeetingPlace);
  EXPECT_EQ(follower_.DrainActions().size(), 2U) << "join and seat";
}

TEST_F(FollowerTest, FailsWhenTheLeaderIsLostAfterTheLinksWereOpened) {
  Form();
  follower_.DrainActions();
  follower_.OnLeaderDown(kMeetingPlace, Error(Code::kPeerLost, "node a does not answer for 3.0 s"));
  EXPECT_EQ(Kinds(follower_.DrainActions()),
            (std::vector<std::string>{"failed", "close", "leave"}));
}

TEST_F(FollowerTest, FailsAtOnceWhenTheLeaderRefuses) {
  follower_.OnRankAttached(Meeting::Rank(7, 0, 1));
  follower_.DrainActions();
  follower_.OnLeaderRefused(kMeetingPlace, Error(Code::kVersionMismatch, "other release"));
  EXPECT_EQ(Kinds(follower_.DrainActions()), (std::vector<std::string>{"failed", "leave"}));
}

TEST_F(FollowerTest, ARankThatIsLostBeforeTheLeaderWasReachedEndsTheJobHere) {
  follower_.OnRankAttached(Meeting::Rank(7, 0, 2));
  follower_.DrainActions();
  follower_.OnRankLost(JobId{7}, 0, "exited or was killed");
  EXPECT_EQ(Kinds(follower_.DrainActions()), (std::vector<std::string>{"failed", "leave"}));
}

// Rank 0 is here, on node b; rank 1 on node c.
service::OpenJob OpenOfTwo() {
  service::OpenJob open{.job = 7, .self = 0, .agreement = AgreementOfOne()};
  open.agreement.world_size = 2;
  open.agreement.epoch = 4;
  open.agreement.nodes.push_back({.name = "c", .ranks = {1}, .addresses = {"C0"}});
  return open;
}

TEST_F(FollowerTest, RefusesAnAgreementThatMakesNoSense) {
  using service::OpenJob;
  struct Case {
    const char* what;
    void (*spoil)(OpenJob&);
  };
  const Case cases[] = {
      {"no nodes", [](OpenJob& open) { open.agreement.nodes.clear(); }},
      {"self beyond", [](OpenJob& open) { open.self = 2; }},
      {"another node's place", [](OpenJob& open) { open.self = 1; }},
      {"only servers", [](OpenJob& open) { open.agreement.servers_count = 2; }},
      {"more servers than nodes", [](OpenJob& open) { open.agreement.servers_count = UINT32_MAX; }},
      {"ranks on a server", [](OpenJob& open) { open.agreement.servers_count = 1; }},
      {"too many nodes",
       [](OpenJob& open) {
         open.agreement.nodes.resize(transport::kNodesMax + 1, open.agreement.nodes[0]);
       }},
      {"other lanes", [](OpenJob& open) { open.agreement.nodes[1].addresses.clear(); }},
      {"an empty address", [](OpenJob& open) { open.agreement.nodes[1].addresses[0].clear(); }},
      {"a long address",
       [](OpenJob& open) {
         open.agreement.nodes[1].addresses[0].assign(service::kLaneAddressMax + 1, 'x');
       }},
      {"other ranks", [](OpenJob& open) { open.agreement.nodes[0].ranks = {1}; }},
      {"a rank that never attached",
       [](OpenJob& open) {
         open.agreement.nodes[0].ranks = {0, 1};
       }},
      {"a rank beyond the world", [](OpenJob& open) { open.agreement.nodes[1].ranks = {2}; }},
      {"a rank twice", [](OpenJob& open) { open.agreement.nodes[1].ranks = {0}; }},
      {"a rank twice on one node",
       [](OpenJob& open) {
         open.agreement.nodes[1].ranks = {1, 1};
       }},
      {"a rank without a node", [](OpenJob& open) { open.agreement.nodes.pop_back(); }},
      {"a node without ranks", [](OpenJob& open) { open.agreement.nodes[1].ranks.clear(); }},
      {"nodes out of order",
       [](OpenJob& open) {
         std::swap(open.agreement.nodes[0], open.agreement.nodes[1]);
         open.self = 1;
       }},
      {"a name twice", [](OpenJob& open) { open.agreement.nodes[1].name = "b"; }},
      {"no name", [](OpenJob& open) { open.agreement.nodes[1].name.clear(); }},
      {"another's name", [](OpenJob& open) { open.agreement.nodes[0].name = "d"; }},
      {"blocks of nothing", [](OpenJob& open) { open.agreement.block_bytes = 0; }},
      {"blocks smaller than an element", [](OpenJob& open) { open.agreement.block_bytes = 7; }},
      {"blocks that overflow",
       [](OpenJob& open) { open.agreement.block_bytes = (UINT64_MAX >> 3U) + 2; }},
      {"no algorithm",
       [](OpenJob& open) { open.agreement.algorithm = static_cast<transport::Algorithm>(9); }},
      {"another world", [](OpenJob& open) { open.agreement.world_size = 3; }},
      {"another world whose ranks all have a node",
       [](OpenJob& open) {
         open.agreement.world_size = 3;
         open.agreement.nodes[1].ranks = {1, 2};
       }},
      {"a world of one", [](OpenJob& open) { open.agreement.world_size = 1; }},
      {"an epoch of before", [](OpenJob& open) { open.agreement.epoch = 3; }},
      {"no epoch", [](OpenJob& open) { open.agreement.epoch = 0; }},
      {"an epoch beyond all", [](OpenJob& open) { open.agreement.epoch = UINT32_MAX; }},
      {"no plan", [](OpenJob& open) { open.agreement.plan_version = 0; }},
      {"other job", [](OpenJob& open) { open.agreement.job = "other"; }},
      {"no key", [](OpenJob& open) { open.agreement.key = 0; }},
      {"another job's key", [](OpenJob& open) { open.agreement.key = 77; }}};
  auto rank = Meeting::Rank(7, 0, 2);
  rank.after_epoch = 3;
  for (const Case& each : cases) {
    BeginAnew({.node_name = "b", .lanes = {1}});
    follower_.OnRankAttached(Meeting::Rank(8, 0, 1, "beside"));
    follower_.OnRankAttached(rank);
    follower_.OnLeaderUp(kMeetingPlace);
    service::OpenJob beside{.job = 8, .self = 0, .agreement = AgreementOfOne()};
    beside.agreement.job = "beside";
    beside.agreement.key = 77;
    Handle(beside);
    EXPECT_EQ(Kinds(follower_.DrainActions()).back(), "open");
    service::OpenJob open = OpenOfTwo();
    each.spoil(open);
    Handle(open);
    const auto actions = follower_.DrainActions();
    EXPECT_EQ(Kinds(actions), (std::vector<std::string>{"tell leader", "failed"})) << each.what;
    const auto& told = std::get<service::ToLeader>(actions.at(0)).message;
    EXPECT_EQ(std::get<service::JobOpened>(told).code, Code::kCorrupt) << each.what;
    const auto failed = std::get<JobFailed>(std::get<service::ToDispatch>(actions.at(1)).message);
    EXPECT_EQ(failed.job, JobId{7});
    EXPECT_EQ(failed.code, Code::kCorrupt);
    EXPECT_NE(failed.cause.find(kMeetingPlace), std::string::npos) << failed.cause;
  }
  BeginAnew({.node_name = "b", .lanes = {1}});
  follower_.OnRankAttached(rank);
  follower_.OnLeaderUp(kMeetingPlace);
  follower_.DrainActions();
  Handle(OpenOfTwo());
  EXPECT_EQ(Kinds(follower_.DrainActions()), (std::vector<std::string>{"open"})) << "unspoiled";
}

TEST_F(FollowerTest, RefusesServersWhereItsRanksAskedForNone) {
  auto rank = Meeting::Rank(7, 0, 1);
  rank.architecture = Architecture::kAllReduce;
  follower_.OnRankAttached(rank);
  follower_.OnLeaderUp(kMeetingPlace);
  service::OpenJob open{.job = 7, .self = 0, .agreement = AgreementOfOne()};
  open.agreement.servers_count = 1;
  open.agreement.nodes.push_back({.name = "s", .ranks = {}, .addresses = {"S0"}});
  Handle(open);
  EXPECT_EQ(Answered(), Code::kCorrupt);
}

TEST_F(FollowerTest, AStepOutOfTurnEndsTheJobAndNotTheService) {
  using service::PeerMessage;
  const auto start = [](const std::vector<transport::CostLine>& costs) {
    service::Agreement agreement = AgreementOfOne();
    agreement.costs = costs;
    return service::StartJob{.job = 7, .costs = costs, .hash = HashOf(agreement)};
  };
  const double endless = std::numeric_limits<double>::infinity();
  const service::OpenJob open{.job = 7, .self = 0, .agreement = AgreementOfOne()};
  const PeerMessage honest[] = {open, service::MeasureJob{7}, start({{1, 2}})};
  struct Case {
    const char* what;
    std::size_t after;  // so many honest steps
    PeerMessage message;
  };
  const std::vector<Case> cases = {
      {"measured before open", 0, service::MeasureJob{7}},
      {"started before open", 0, start({{1, 2}})},
      {"opened twice", 1, open},
      {"started before measured", 1, start({{1, 2}})},
      {"measured twice", 2, service::MeasureJob{7}},
      {"opened after measured", 2, open},
      {"no costs", 2, start({})},
      {"costs of two lanes", 2, start({{1, 2}, {1, 2}})},
      {"a negative cost", 2, start({{-1, 2}})},
      {"an endless cost", 2, start({{1, endless}})},
      {"no number", 2, start({{std::numeric_limits<double>::quiet_NaN(), 2}})},
      {"an age", 2, start({{1e300, 2}})},
      {"bytes for nothing", 2, start({{1, 0}})},
      {"started twice", 3, start({{1, 2}})},
      {"a plan for no layout", 3, service::PlanPiece{.job = 7, .version = 1, .last = true}},
      {"an unknown plan", 3,
       service::AnnouncePlanSwitch{.job = 7, .version = 1, .from_iteration = 1}},
      {"our own rank left elsewhere", 3, service::AnnounceRankLeft{.job = 7, .rank = 0}},
      {"no rank left", 3, service::AnnounceRankLeft{.job = 7, .rank = 1}}};
  for (const Case& each : cases) {
    BeginAnew({.node_name = "b", .lanes = {1}});
    Join();
    for (std::size_t step = 0; step < each.after; ++step) {
      Handle(honest[step]);
      if (step == 0) follower_.Handle(service::GroupOpened{.lane = 1, .group = 7});
      if (step == 1) {
        follower_.Handle(
            service::GroupMeasured{.lane = 1, .group = 7, .cost = transport::CostLine{1, 2}});
      }
    }
    follower_.DrainActions();
    Handle(each.message);
    const auto actions = follower_.DrainActions();
    const auto kinds = Kinds(actions);
    ASSERT_GE(kinds.size(), 2U) << each.what;
    EXPECT_EQ(kinds[0], "tell leader") << each.what;
    EXPECT_EQ(kinds[1], "failed") << each.what;
    const auto failed = std::get<JobFailed>(std::get<service::ToDispatch>(actions.at(1)).message);
    EXPECT_EQ(failed.code, Code::kCorrupt) << each.what;
  }
}

TEST_F(FollowerTest, IgnoresWhatIsOfOtherLeadersAndJobs) {
  Join();
  Handle(service::AnnounceRankLeft{.job = 7, .rank = 3});
  Handle(service::AnnounceJobFailed{.job = 8, .cause = "unknown"});
  follower_.Handle("elsewhere:1", service::AnnounceJobFailed{.job = 7, .cause = "forged"}, now_);
  Handle(service::JoinJob{.job = 7});
  EXPECT_TRUE(follower_.DrainActions().empty());
}

TEST_F(FollowerTest, AServerSumsForABoundedNumberOfJobs) {
  BeginAnew({.node_name = "s", .lanes = {1}, .server = true});
  service::OpenJob open{.job = 0x80000000U, .self = 1, .agreement = AgreementOfOne()};
  open.agreement.servers_count = 1;
  open.agreement.nodes.push_back({.name = "s", .ranks = {}, .addresses = {"S0"}});
  for (std::size_t i = 0; i < service::kJobsServedMax; ++i) {
    ++open.agreement.key;
    ++open.job;
    Handle(open);
    EXPECT_EQ(Kinds(follower_.DrainActions()), (std::vector<std::string>{"open"}));
  }
  ++open.agreement.key;
  ++open.job;
  Handle(open);
  EXPECT_EQ(Answered(), Code::kExhausted);
  EXPECT_EQ(follower_.jobs_count(), service::kJobsServedMax);
}

TEST_F(FollowerTest, AServerTellsTheLeaderWhyItsGroupFailed) {
  BeginAnew({.node_name = "s", .lanes = {1}, .server = true});
  service::OpenJob open{.job = 0x80000000U, .self = 1, .agreement = AgreementOfOne()};
  open.agreement.servers_count = 1;
  open.agreement.nodes.push_back({.name = "s", .ranks = {}, .addresses = {"S0"}});
  Handle(open);
  const auto actions = follower_.DrainActions();
  ASSERT_EQ(Kinds(actions), (std::vector<std::string>{"open"}));
  const auto& to_lane = std::get<service::ToLane>(actions[0]);
  const std::uint32_t group = std::get<service::OpenGroup>(to_lane.message).options.group;
  follower_.Handle(service::GroupFailed{group + 1, Code::kMismatch, "of another job"});
  EXPECT_TRUE(follower_.DrainActions().empty());
  follower_.Handle(service::GroupFailed{group, Code::kMismatch, "node a sends nonsense"});
  const auto told = follower_.DrainActions();
  ASSERT_EQ(told.size(), 1U);
  const auto& message = std::get<service::ToLeader>(told[0]).message;
  const auto& failed = std::get<service::ReportJobFailed>(message);
  EXPECT_EQ(failed.job, 0x80000000U);
  EXPECT_EQ(failed.code, Code::kMismatch);
  EXPECT_EQ(failed.cause, "node a sends nonsense");
}

TEST_F(FollowerTest, TellsALeaderThatIsUpAlreadyAfterWhichEpochARankComes) {
  follower_.OnRankAttached(Meeting::Rank(8, 0, 1, "beside"));
  follower_.OnLeaderUp(kMeetingPlace);
  follower_.DrainActions();
  auto rank = Meeting::Rank(7, 0, 2);
  rank.after_epoch = 3;
  follower_.OnRankAttached(rank);
  std::vector<service::ReportRankAttached> seats;
  for (const FollowerAction& action : follower_.DrainActions()) {
    const auto* told = std::get_if<service::ToLeader>(&action);
    if (told == nullptr) continue;
    if (const auto* seat = std::get_if<service::ReportRankAttached>(&told->message))
      seats.push_back(*seat);
  }
  ASSERT_EQ(seats.size(), 1U) << "one seat for one rank";
  EXPECT_EQ(seats[0].after_epoch, 3U);
}

TEST_F(FollowerTest, AJobThatDoesNotFormInItsTimeEndsWithWhoIsMissing) {
  auto rank = Meeting::Rank(7, 0, 2);
  rank.timeout_ms = 5000;
  follower_.OnRankAttached(rank);
  EXPECT_EQ(follower_.NextDeadline(), service::kFormingDefault);
  rank.rank = 1;  // does not come; another of a longer patience does not move it
  follower_.OnLeaderUp(kMeetingPlace);
  Handle(service::AnnounceJobForming{.job = 7,
                                     .text = "1 of 2 ranks have attached: rank 1 is missing"});
  follower_.DrainActions();
  follower_.Expire(service::kFormingDefault - 1);
  EXPECT_TRUE(follower_.DrainActions().empty());
  follower_.Expire(service::kFormingDefault);
  const auto actions = follower_.DrainActions();
  EXPECT_EQ(Kinds(actions), (std::vector<std::string>{"tell leader", "failed", "leave"}));
  const auto& told = std::get<service::ToLeader>(actions.at(0)).message;
  EXPECT_EQ(std::get<service::ReportJobFailed>(told).code, Code::kTimeout);
  const auto failed = std::get<JobFailed>(std::get<service::ToDispatch>(actions.at(1)).message);
  EXPECT_EQ(failed.code, Code::kTimeout);
  EXPECT_TEXT(failed.cause, "rank 1");
  EXPECT_EQ(follower_.NextDeadline(), kNever);
}

TEST_F(FollowerTest, WhoAsksWhatAJobWaitsForHearsItInTime) {
  Join();
  Handle(service::AnnounceJobForming{.job = 7, .text = "rank 1 is missing"});
  follower_.Handle(service::AskForming{.token = 1, .job = JobId{7}, .until_ns = 5 * kSecond}, now_);
  follower_.Handle(service::AskForming{.token = 2, .job = JobId{7}, .until_ns = 6 * kSecond}, now_);
  EXPECT_TRUE(Heard().empty());
  EXPECT_EQ(follower_.NextDeadline(), 5 * kSecond);
  follower_.Expire(5 * kSecond);
  const Texts heard = Heard();
  ASSERT_EQ(heard.size(), 1U);
  EXPECT_EQ(heard.begin()->first, 1U);
  EXPECT_TEXT(heard.begin()->second, "job train", "rank 1");
  EXPECT_EQ(follower_.NextDeadline(), 6 * kSecond);
}

TEST_F(FollowerTest, WhoAsksWhatAJobWaitsForHearsOfARefusalAtOnce) {
  constexpr const char* kRefused = "rank 1 is missing; c is refused: another authority";
  Join();
  Handle(service::AnnounceJobForming{.job = 7, .text = "rank 1 is missing"});
  follower_.Handle(service::AskForming{.token = 1, .job = JobId{7}, .until_ns = 5 * kSecond}, now_);
  Handle(service::AnnounceJobForming{.job = 7, .text = kRefused, .refused = true});
  const std::string text = std::string("job train has not begun: ") + kRefused;
  EXPECT_EQ(Heard(), (Texts{{1, text}}));
  // So does who asks after it.
  follower_.Handle(service::AskForming{.token = 2, .job = JobId{7}, .until_ns = 5 * kSecond}, now_);
  EXPECT_EQ(Heard(), (Texts{{2, text}}));
}

TEST_F(FollowerTest, WhoAsksWhatAJobWaitsForHearsWhenItBeginsOrEnds) {
  follower_.Handle(service::AskForming{.token = 1, .job = JobId{7}, .until_ns = 5 * kSecond}, now_);
  EXPECT_EQ(Heard(), (Texts{{1, ""}})) << "not known, so it waits for nothing";
  follower_.OnRankAttached(Meeting::Rank(8, 0, 1));
  follower_.Handle(service::AskForming{.token = 2, .job = JobId{8}, .until_ns = 5 * kSecond}, now_);
  follower_.Handle(service::JobEnded{JobId{8}});
  EXPECT_EQ(Heard(), (Texts{{2, ""}}));
  Join();
  follower_.Handle(service::AskForming{.token = 3, .job = JobId{7}, .until_ns = 5 * kSecond}, now_);
  Handle(service::AnnounceJobFailed{.job = 7, .code = Code::kPeerLost, .cause = "rank 3"});
  EXPECT_EQ(Heard(), (Texts{{3, ""}}));
  EXPECT_EQ(follower_.NextDeadline(), kNever);
}

TEST_F(FollowerTest, WhoAsksWhatAJobWaitsForHearsThatItHasBegun) {
  Form();
  follower_.Handle(service::AskForming{.token = 4, .job = JobId{7}, .until_ns = 5 * kSecond}, now_);
  EXPECT_EQ(Heard(), (Texts{{4, ""}}));
}

TEST_F(FollowerTest, AJobMayFormForAsLongAsItsFirstRankWaits) {
  auto rank = Meeting::Rank(7, 0, 2);
  rank.timeout_ms = 600'000;
  follower_.OnRankAttached(rank);
  EXPECT_EQ(follower_.NextDeadline(), 600 * kSecond);
}

TEST_F(FollowerTest, AJobThatHasFormedHasNoDeadline) {
  Form();
  follower_.DrainActions();
  EXPECT_EQ(follower_.NextDeadline(), kNever);
  follower_.Expire(kNever - 1);
  EXPECT_TRUE(follower_.DrainActions().empty());
}

TEST_F(FollowerTest, AStandstillOfTheServiceIsNotHeldAgainstAJob) {
  follower_.OnRankAttached(Meeting::Rank(7, 0, 2));
  follower_.DrainActions();
  follower_.Expire(3600 * kSecond);
  EXPECT_TRUE(follower_.DrainActions().empty());
  EXPECT_GT(follower_.NextDeadline(), 3600 * kSecond);
  follower_.Expire(follower_.NextDeadline());
  EXPECT_EQ(Kinds(follower_.DrainActions()), (std::vector<std::string>{"failed", "leave"}));
}

TEST_F(FollowerTest, IgnoresAnswersOfLanesThatComeLate) {
  Join();
  Handle(service::OpenJob{.job = 7, .self = 0, .agreement = AgreementOfOne()});
  Handle(service::AnnounceJobFailed{.job = 7, .code = Code::kPeerLost, .cause = "rank 3"});
  follower_.DrainActions();
  follower_.Handle(service::GroupOpened{.lane = 1, .group = 7});
  follower_.Handle(service::GroupMeasured{.lane = 1, .group = 7, .cost = transport::CostLine{}});
  EXPECT_TRUE(follower_.DrainActions().empty());
}

TEST_F(FollowerTest, RefusesToAttachARankThatIsOnAnotherNode) {
  follower_.OnRankAttached(Meeting::Rank(7, 0, 2));
  follower_.OnLeaderUp(kMeetingPlace);
  EXPECT_TRUE(follower_.CheckAttach("train", 1000, 1).ok()) << "while the job gathers";
  service::Agreement agreement = AgreementOfOne();
  agreement.world_size = 2;
  agreement.nodes.push_back({.name = "c", .ranks = {1}, .addresses = {"C0"}});
  Handle(service::OpenJob{.job = 7, .self = 0, .agreement = agreement});
  const Status status = follower_.CheckAttach("train", 1000, 1);
  ASSERT_EQ(status.code(), Code::kAlreadyExists);
  EXPECT_TEXT(status.error().text(), "rank 1", "job train", "node c");
  EXPECT_TRUE(follower_.CheckAttach("other", 1000, 1).ok());
  EXPECT_TRUE(follower_.CheckAttach("train", 1001, 1).ok()) << "another user's job of that name";
}

TEST_F(FollowerTest, AClosedJobThatStillHasRanksIsAFailure) {
  Form();
  follower_.DrainActions();
  Handle(service::CloseJob{7});
  EXPECT_EQ(Kinds(follower_.DrainActions()),
            (std::vector<std::string>{"failed", "close", "leave"}));
}

}  // namespace
}  // namespace headrace::support
