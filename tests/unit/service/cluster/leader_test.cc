// Who may take part in a job, and what everyone is told.
#include "service/cluster/leader.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <limits>
#include <string>

#include "tests/support/expect_text.h"
#include "tests/unit/service/cluster/meeting.h"

namespace headrace::support {
namespace {

using service::CloseGroup;
using service::JobFormed;
using service::OpenGroup;
using service::RankLeft;

// Two nodes with a rank each, all of which has been said.
class Formed : public testing::Test {
 protected:
  Formed() {
    meeting_.Attach(a_, Meeting::Rank(1, 0, 2));
    meeting_.Attach(b_, Meeting::Rank(7, 1, 2));
    meeting_.Run();
  }
  void Say(MeetingNode& node, const service::PeerMessage& message) {
    meeting_.leader().Handle(node.id, message, meeting_.now());
    meeting_.Run();
  }

  Meeting meeting_;
  MeetingNode& a_ = meeting_.AddNode("a");
  MeetingNode& b_ = meeting_.AddNode("b");
};

TEST_F(Formed, EveryNodeIsToldOnceWithTheSameKeyAndEpoch) {
  ASSERT_EQ(a_.Told<JobFormed>().size(), 1U) << a_.waits() << a_.failure();
  ASSERT_EQ(b_.Told<JobFormed>().size(), 1U);
  const auto on_a = a_.Told<OpenGroup>().at(0).options;
  const auto on_b = b_.Told<OpenGroup>().at(0).options;
  EXPECT_EQ(on_a.group, 1U) << "the node's own number of the job";
  EXPECT_EQ(on_b.group, 7U);
  EXPECT_EQ(on_a.key, on_b.key);
  EXPECT_NE(on_a.key, 0U);
  EXPECT_EQ(on_a.epoch, 1U);
  EXPECT_EQ(on_b.epoch, 1U);
  EXPECT_EQ(on_b.self, 1U);
  EXPECT_EQ(on_b.members.at(0).address, "a lane 0");
}

TEST(Leader, RanksGoOnInAnEpochThatNoneOfThemWasIn) {
  Meeting meeting;
  MeetingNode& a = meeting.AddNode("a");
  MeetingNode& b = meeting.AddNode("b");
  auto zero = Meeting::Rank(1, 0, 2);
  auto one = Meeting::Rank(7, 1, 2);
  zero.after_epoch = 3;
  one.after_epoch = 8;
  meeting.Attach(a, zero);
  meeting.Attach(b, one);
  meeting.Run();
  ASSERT_EQ(a.Told<OpenGroup>().size(), 1U) << a.waits() << a.failure();
  EXPECT_EQ(a.Told<OpenGroup>().at(0).options.epoch, 9U);
  EXPECT_EQ(b.Told<OpenGroup>().at(0).options.epoch, 9U);
}

TEST(Leader, NeverMixesRanksThatGoOnWithRanksThatBegin) {
  Meeting meeting;
  MeetingNode& a = meeting.AddNode("a");
  MeetingNode& b = meeting.AddNode("b");
  auto again = Meeting::Rank(7, 1, 2);
  again.after_epoch = 1;
  meeting.Attach(a, Meeting::Rank(1, 0, 2));
  meeting.Run();
  meeting.Attach(b, again);
  meeting.Run();
  EXPECT_TEXT(b.failure(), "rank 1", "pid 101", "node b", "rank 0", "pid 100", "node a",
              "begin anew");
  EXPECT_EQ(a.failure(), b.failure()) << "who waits for it is told at once";
}

TEST(Leader, ANodeIsInAJobOnce) {
  Meeting meeting;
  MeetingNode& a = meeting.AddNode("a");
  meeting.Attach(a, Meeting::Rank(1, 0, 2));
  meeting.Run();
  const auto say = [&](const service::PeerMessage& message) {
    meeting.leader().Handle(a.id, message, meeting.now());
  };
  say(service::JoinJob{.job = 5, .name = "train", .world_size = 2, .uid = 1000});
  say(service::ReportRankAttached{.job = 5, .rank = 0});
  const auto told = meeting.leader().DrainMessages();
  ASSERT_EQ(told.size(), 1U) << "nothing forms of a rank that counts twice";
  EXPECT_EQ(std::get<service::AnnounceJobFailed>(told[0].message).code, Code::kAlreadyExists);
}

TEST(Leader, ANodeTakesPartInABoundedNumberOfJobs) {
  Meeting meeting;
  MeetingNode& a = meeting.AddNode("a");
  meeting.Attach(a, Meeting::Rank(1000, 0, 2));
  meeting.Run();
  for (std::uint32_t job = 1; job <= service::kJobsOfNodeMax; ++job) {
    meeting.leader().Handle(
        a.id,
        service::JoinJob{
            .job = job, .name = "job" + std::to_string(job), .world_size = 2, .uid = 1},
        meeting.now());
  }
  EXPECT_EQ(meeting.leader().jobs_count(), service::kJobsOfNodeMax);
  const auto told = meeting.leader().DrainMessages();
  EXPECT_EQ(std::get<service::AnnounceJobFailed>(told.back().message).code, Code::kExhausted);
}

TEST(Leader, ACostThatIsNoneIsTheNodesFault) {
  for (const double wrong : {-1.0, 1e300, std::numeric_limits<double>::quiet_NaN()}) {
    Meeting meeting;
    MeetingNode& a = meeting.AddNode("a");
    a.cost = Result<transport::CostLine>(transport::CostLine{.startup_s = wrong, .s_per_byte = 1});
    meeting.Attach(a, Meeting::Rank(1, 0, 1));
    meeting.Run();
    EXPECT_TEXT(a.failure(), "node a measured");
    EXPECT_EQ(a.Told<service::JobFailed>().back().code, Code::kCorrupt);
  }
}

TEST(Leader, WithoutALaneBetweenNodesNobodyComesIn) {
  Meeting meeting({.lanes_count = 0});
  MeetingNode& a = meeting.AddNode("a");
  EXPECT_EQ(meeting.Connect(a).code(), Code::kUnavailable);
}

TEST(Leader, AJobThatGathersTooLongEndsEverywhereAndBeginsAnew) {
  Meeting meeting;
  MeetingNode& a = meeting.AddNode("a");
  MeetingNode& b = meeting.AddNode("b");
  meeting.Attach(a, Meeting::Rank(1, 0, 3));
  meeting.Attach(b, Meeting::Rank(7, 1, 3));
  meeting.Run();
  a.follower.Expire(a.follower.NextDeadline());
  meeting.Run();
  for (const MeetingNode* node : {&a, &b}) {
    EXPECT_TEXT(node->failure(), "job train", "2 of 3 ranks", "rank 2");
    EXPECT_EQ(node->Told<service::JobFailed>().back().code, Code::kTimeout);
  }
  EXPECT_EQ(meeting.leader().jobs_count(), 0U) << "the name and its seats are free";
}

TEST_F(Formed, ARankThatComesAfterTheLossWaitsForAsLongAsAJobMayGather) {
  b_.follower.OnRankLost(JobId{7}, 1, "exited or was killed");
  meeting_.Run();
  // Nobody else comes: the others have heard of the loss.
  meeting_.Attach(a_, Meeting::Rank(2, 0, 2));
  meeting_.Run();
  EXPECT_TEXT(a_.waits(), "1 of 2 ranks", "rank 1");
  const TimeNs due = a_.follower.NextDeadline();
  EXPECT_EQ(due, service::kFormingDefault);
  a_.follower.Expire(due);
  meeting_.Run();
  EXPECT_EQ(a_.Told<service::JobFailed>().back().job, JobId{2});
  EXPECT_EQ(a_.Told<service::JobFailed>().back().code, Code::kTimeout);
  EXPECT_TEXT(a_.failure(), "1 of 2 ranks", "rank 1");
  EXPECT_EQ(meeting_.leader().jobs_count(), 0U);
}

TEST_F(Formed, ALostRankEndsTheJobEverywhereWithItsName) {
  b_.follower.OnRankLost(JobId{7}, 1, "exited or was killed");
  meeting_.Run();
  EXPECT_TEXT(a_.failure(), "rank 1", "pid 101", "node b");
  EXPECT_EQ(b_.failure(), a_.failure());
  EXPECT_EQ(a_.Told<CloseGroup>().size(), 1U);
  EXPECT_EQ(meeting_.leader().jobs_count(), 0U);
}

TEST_F(Formed, ANodeThatIsLostEndsTheJobOnTheOthers) {
  meeting_.Cut(b_, "does not answer for 3.0 s");
  meeting_.Run();
  EXPECT_TEXT(a_.failure(), "node b");
  EXPECT_TEXT(b_.failure(), "node a");
  EXPECT_EQ(b_.Told<CloseGroup>().size(), 1U);
}

TEST_F(Formed, WhatBrokeOnANodeIsToldWithItsName) {
  b_.follower.Handle(service::JobFailed{
      .job = JobId{7}, .code = Code::kMismatch, .cause = "rank 1 posted nonsense"});
  meeting_.Run();
  EXPECT_TEXT(a_.failure(), "rank 1", "node b");
  EXPECT_EQ(a_.Told<service::JobFailed>().at(0).code, Code::kMismatch);
}

TEST_F(Formed, TheFirstCauseIsTheOneThatIsTold) {
  b_.follower.OnRankLost(JobId{7}, 1, "exited or was killed");
  a_.follower.Handle(
      service::JobFailed{.job = JobId{1}, .code = Code::kPeerLost, .cause = "later"});
  meeting_.Run();
  ASSERT_EQ(a_.Told<service::JobFailed>().size(), 1U);
  ASSERT_EQ(b_.Told<service::JobFailed>().size(), 1U);
  EXPECT_EQ(a_.failure(), b_.failure());
}

TEST_F(Formed, ARankThatLeavesIsToldToTheOthersWithHowFarItWas) {
  b_.follower.Handle(service::RankLeft{.job = JobId{7}, .rank = 1, .posted = 42});
  meeting_.Run();
  ASSERT_EQ(a_.Told<RankLeft>().size(), 1U);
  const RankLeft left = a_.Told<RankLeft>().at(0);
  EXPECT_EQ(left.job, JobId{1});
  EXPECT_EQ(left.rank, 1U);
  EXPECT_EQ(left.posted, 42U);
  EXPECT_TEXT(left.cause, "rank 1", "pid 101", "node b");
  EXPECT_TRUE(b_.Told<RankLeft>().empty());
}

TEST_F(Formed, LinksStayUntilTheLastNodeHasForgottenTheJob) {
  b_.follower.Handle(service::RankLeft{.job = JobId{7}, .rank = 1, .posted = 42});
  b_.follower.Handle(service::JobEnded{JobId{7}});
  meeting_.Run();
  EXPECT_TRUE(b_.Told<CloseGroup>().empty()) << "a may still receive";
  a_.follower.Handle(service::RankLeft{.job = JobId{1}, .rank = 0, .posted = 42});
  a_.follower.Handle(service::JobEnded{JobId{1}});
  meeting_.Run();
  EXPECT_EQ(a_.Told<CloseGroup>().size(), 1U);
  ASSERT_EQ(b_.Told<CloseGroup>().size(), 1U);
  EXPECT_TEXT(b_.Told<CloseGroup>().at(0).cause);
  EXPECT_EQ(a_.failure(), "");
  EXPECT_EQ(b_.failure(), "");
  EXPECT_EQ(meeting_.leader().jobs_count(), 0U);
  EXPECT_EQ(a_.follower.jobs_count() + b_.follower.jobs_count(), 0U);
  EXPECT_FALSE(a_.wants_leader);
}

TEST_F(Formed, ANodeThatIsLostAfterItForgotTheJobHarmsNobody) {
  b_.follower.Handle(service::RankLeft{.job = JobId{7}, .rank = 1, .posted = 42});
  b_.follower.Handle(service::JobEnded{JobId{7}});
  meeting_.Run();
  meeting_.Cut(b_, "closed it");
  meeting_.Run();
  EXPECT_EQ(a_.failure(), "");
  a_.follower.Handle(service::JobEnded{JobId{1}});
  meeting_.Run();
  EXPECT_EQ(a_.Told<CloseGroup>().size(), 1U);
}

TEST_F(Formed, TheSameNameBeginsANewEpochWithANewKeyAfterAFailure) {
  b_.follower.OnRankLost(JobId{7}, 1, "exited or was killed");
  meeting_.Run();
  a_.follower.Handle(service::JobEnded{JobId{1}});
  b_.follower.Handle(service::JobEnded{JobId{7}});
  meeting_.Attach(b_, Meeting::Rank(8, 1, 2));
  meeting_.Attach(a_, Meeting::Rank(2, 0, 2));
  meeting_.Run();
  ASSERT_EQ(a_.Told<JobFormed>().size(), 2U) << a_.waits();
  ASSERT_EQ(b_.Told<JobFormed>().size(), 2U);
  EXPECT_GT(a_.Told<JobFormed>().at(1).nodes.epoch, a_.Told<JobFormed>().at(0).nodes.epoch);
  EXPECT_NE(a_.Told<OpenGroup>().at(1).options.key, a_.Told<OpenGroup>().at(0).options.key);
}

TEST_F(Formed, TheNextEpochGathersWhileTheLastOneEnds) {
  b_.follower.Handle(service::RankLeft{.job = JobId{7}, .rank = 1, .posted = 42});
  b_.follower.Handle(service::JobEnded{JobId{7}});
  meeting_.Attach(b_, Meeting::Rank(8, 1, 2));
  meeting_.Run();
  EXPECT_EQ(b_.failure(), "");
  EXPECT_TEXT(b_.waits(), "rank 0");
  a_.follower.Handle(service::JobEnded{JobId{1}});
  meeting_.Attach(a_, Meeting::Rank(2, 0, 2));
  meeting_.Run();
  EXPECT_EQ(a_.Told<JobFormed>().size(), 2U);
  EXPECT_EQ(b_.Told<JobFormed>().size(), 2U);
}

TEST_F(Formed, AJobThatGoesOnTakesNobodyIn) {
  MeetingNode& c = meeting_.AddNode("c");
  meeting_.Attach(c, Meeting::Rank(3, 1, 2));
  meeting_.Run();
  EXPECT_TEXT(c.failure(), "job train", "2 ranks");
  EXPECT_EQ(a_.failure(), "");
}

TEST_F(Formed, WhatIsSaidOfAJobThatIsOverIsIgnored) {
  const std::vector<service::PeerMessage> late = {
      service::ReportRankAttached{.job = 99, .rank = 1},
      service::ReportRankLost{.job = 99, .rank = 1, .cause = ""},
      service::ReportRankLeft{.job = 99, .rank = 1},
      service::ReportJobFailed{.job = 99, .cause = "late"},
      service::ForgetJob{99},
      service::JobOpened{.job = 99},
      service::JobMeasured{.job = 99},
      service::JobStarted{.job = 99},
      service::OpenJob{.job = 7},
      service::AnnounceJobFailed{.job = 7, .cause = "forged"}};
  for (const auto& message : late) Say(b_, message);
  EXPECT_EQ(a_.failure(), "");
  EXPECT_EQ(meeting_.leader().jobs_count(), 1U);
}

TEST_F(Formed, AnAnswerThatNobodyAskedForIsIgnored) {
  Say(b_, service::JobOpened{.job = 7, .code = Code::kInternal, .cause = "late"});
  Say(b_, service::JobStarted{.job = 7, .hash = 1});
  EXPECT_EQ(a_.failure(), "");
}

TEST_F(Formed, OneJobFailsAndTheOtherGoesOn) {
  meeting_.Attach(a_, Meeting::Rank(2, 0, 2, "second"));
  meeting_.Attach(b_, Meeting::Rank(8, 1, 2, "second"));
  meeting_.Run();
  ASSERT_EQ(a_.Told<JobFormed>().size(), 2U);
  b_.follower.OnRankLost(JobId{7}, 1, "exited or was killed");
  meeting_.Run();
  ASSERT_EQ(a_.Told<service::JobFailed>().size(), 1U);
  EXPECT_EQ(a_.Told<service::JobFailed>().at(0).job, JobId{1});
  EXPECT_EQ(meeting_.leader().jobs_count(), 1U);
}

TEST(Leader, SaysWhichRanksAreMissing) {
  Meeting meeting;
  MeetingNode& a = meeting.AddNode("a");
  MeetingNode& b = meeting.AddNode("b");
  meeting.Attach(a, Meeting::Rank(1, 0, 4));
  meeting.Run();
  EXPECT_TEXT(a.waits(), "ranks 1");
  meeting.Attach(b, Meeting::Rank(1, 2, 4));
  meeting.Run();
  EXPECT_TEXT(a.waits(), "ranks 1");
  EXPECT_EQ(b.waits(), a.waits());
  meeting.Cut(b, "closed it");
  EXPECT_EQ(a.to_node.size(), 1U);
  meeting.DeliverToNode(a);
  EXPECT_TEXT(a.waits(), "ranks 1");
}

TEST(Leader, OrdersNodesByTheirLowestRank) {
  Meeting meeting;
  MeetingNode& a = meeting.AddNode("a");
  MeetingNode& b = meeting.AddNode("b");
  meeting.Attach(a, Meeting::Rank(1, 3, 4));
  meeting.Attach(a, Meeting::Rank(1, 1, 4));
  meeting.Attach(b, Meeting::Rank(1, 2, 4));
  meeting.Attach(b, Meeting::Rank(1, 0, 4));
  meeting.Run();
  const auto formed = a.Told<JobFormed>();
  ASSERT_EQ(formed.size(), 1U) << a.waits();
  EXPECT_EQ(formed[0].nodes.nodes.at(0).name, "b");
  EXPECT_EQ(formed[0].nodes.nodes.at(0).ranks, (std::vector<std::uint32_t>{0, 2}));
  EXPECT_EQ(formed[0].nodes.nodes.at(1).ranks, (std::vector<std::uint32_t>{1, 3}));
  EXPECT_EQ(formed[0].nodes.self, 1U);
}

TEST(Leader, RefusesANodeByNameBeforeAnyJob) {
  Meeting meeting({.peers = {"a", "b"}});
  MeetingNode& a = meeting.AddNode("a");
  ASSERT_TRUE(meeting.Connect(a).ok());
  const auto refusal = [&](const service::NodeFacts& facts) {
    const Status status = meeting.leader().CheckNode(facts, "10.0.0.9:5");
    return status ? std::string() : status.error().text();
  };
  service::NodeFacts facts = a.facts;
  EXPECT_EQ(refusal(facts), "") << "the same service may connect twice";
  facts.instance += 1;
  EXPECT_TEXT(refusal(facts), "node name a", "10.0.0.9:5");
  facts.name = "b";
  EXPECT_EQ(refusal(facts), "");
  facts.name = "c";
  EXPECT_TEXT(refusal(facts), "node c", "node a");
  facts.name = "b";
  facts.protocol_version = 2;
  EXPECT_TEXT(refusal(facts), "0.1.0", "protocol 1", "node a", "node b speaks 2");
  facts.protocol_version = 1;
  facts.addresses.emplace_back("second");
  EXPECT_TEXT(refusal(facts), "node b", "node a has 1");
}

TEST(Leader, RefusesANodeThatCarriesGpuMemoryInAnotherWay) {
  Meeting meeting;
  MeetingNode& a = meeting.AddNode("a");
  service::NodeFacts facts = a.facts;
  facts.name = "b";
  EXPECT_TRUE(meeting.leader().CheckNode(facts, "b:1").ok());
  facts.nccl_lanes = 2;
  const Status refused = meeting.leader().CheckNode(facts, "b:1");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.code(), Code::kMismatch);
  EXPECT_TEXT(refused.error().text(), "node b", "node a");
  facts.server = true;
  EXPECT_TRUE(meeting.leader().CheckNode(facts, "b:1").ok()) << "it has no GPUs";
}

// A rank of a job of its own, of that user.
service::SessionIdentity LoneRank(std::uint32_t job, std::uint32_t uid) {
  auto rank = Meeting::Rank(job, 0, 2, "job" + std::to_string(job));
  rank.uid = uid;
  return rank;
}

TEST(Leader, TakesNoMoreJobsThanItCanLead) {
  Meeting meeting;
  MeetingNode* node = nullptr;
  for (std::uint32_t job = 0; job <= service::kJobsLedMax; ++job) {
    if (job % service::kJobsOfNodeMax == 0) node = &meeting.AddNode("n" + std::to_string(job));
    meeting.Attach(*node, LoneRank(job + 1, 1000 + job));
  }
  meeting.Run();
  EXPECT_EQ(meeting.leader().jobs_count(), service::kJobsLedMax);
  EXPECT_TEXT(node->failure(), "leads 256 of at most 256 jobs", "0 of them of uid 1256");
}

TEST(Leader, AUserWithManyJobsLeavesRoomForThoseOfOthers) {
  Meeting meeting;
  MeetingNode* node = nullptr;
  for (std::uint32_t job = 0; job <= service::kJobsLedMax; ++job) {
    if (job % service::kJobsOfNodeMax == 0) node = &meeting.AddNode("n" + std::to_string(job));
    meeting.Attach(*node, LoneRank(job + 1, 1001));
  }
  meeting.Run();
  EXPECT_EQ(meeting.leader().jobs_count(), service::kJobsLedMax / 2);
  EXPECT_TEXT(node->failure(), "128 of them of uid 1001", "another node as the rendezvous");
  MeetingNode& a = meeting.AddNode("a");
  MeetingNode& b = meeting.AddNode("b");
  meeting.Attach(a, Meeting::Rank(1, 0, 2));
  meeting.Attach(b, Meeting::Rank(1, 1, 2));
  meeting.Run();
  EXPECT_EQ(a.Told<JobFormed>().size(), 1U);
}

TEST(Leader, JobsOfTwoUsersAreApartWhateverTheirNames) {
  Meeting meeting;
  MeetingNode& a = meeting.AddNode("a");
  MeetingNode& b = meeting.AddNode("b");
  auto squatter = Meeting::Rank(1, 0, 1);
  squatter.uid = 65534;
  meeting.Attach(b, squatter);
  meeting.Run();
  ASSERT_EQ(b.Told<JobFormed>().size(), 1U);
  auto again = Meeting::Rank(1, 0, 2);
  again.after_epoch = 4;
  meeting.Attach(a, again);
  again = Meeting::Rank(2, 1, 2);
  again.after_epoch = 4;
  meeting.Attach(b, again);
  meeting.Run();
  EXPECT_EQ(a.failure(), "");
  ASSERT_EQ(a.Told<JobFormed>().size(), 1U);
  EXPECT_EQ(a.Told<JobFormed>().at(0).nodes.epoch, 5U);
  EXPECT_EQ(b.Told<JobFormed>().size(), 2U);
  EXPECT_EQ(b.failure(), "") << "nor is the other one's job ended";
}

TEST(Leader, AnotherUsersJobDoesNotHideThatAProcessWasLost) {
  Meeting meeting;
  MeetingNode& a = meeting.AddNode("a");
  MeetingNode& b = meeting.AddNode("b");
  meeting.Attach(a, Meeting::Rank(1, 0, 2));
  meeting.Attach(b, Meeting::Rank(1, 1, 2));
  meeting.Run();
  b.follower.OnRankLost(JobId{1}, 1, "exited or was killed", /*exited=*/true);
  meeting.Run();
  a.follower.Handle(service::JobEnded{JobId{1}});
  b.follower.Handle(service::JobEnded{JobId{1}});
  // It begins a job of that name, and loses more jobs than are remembered.
  for (std::uint32_t job = 10; job < 10 + 2 * service::LostEpochs::kMax; ++job) {
    auto other = job == 10 ? Meeting::Rank(job, 0, 1) : LoneRank(job, 65534);
    other.uid = 65534;
    meeting.Attach(b, other);
    meeting.Run();
    b.follower.OnRankLost(JobId{job}, 0, "exited or was killed", /*exited=*/true);
    meeting.Run();
    b.follower.Handle(service::JobEnded{JobId{job}});
  }
  auto again = Meeting::Rank(2, 0, 2);
  again.after_epoch = 1;
  meeting.Attach(a, again);
  meeting.Run();
  EXPECT_TEXT(a.failure(), "job train", "pid 101", "start them");
}

TEST(Leader, TakesTheSlowestLineOfEachLane) {
  Meeting meeting({.lanes_count = 2});
  MeetingNode& a = meeting.AddNode("a");
  MeetingNode& b = meeting.AddNode("b");
  a.cost = transport::CostLine{.startup_s = 4e-5, .s_per_byte = 1e-9};
  b.cost = transport::CostLine{.startup_s = 1e-5, .s_per_byte = 8e-9};
  meeting.Attach(a, Meeting::Rank(1, 0, 2));
  meeting.Attach(b, Meeting::Rank(1, 1, 2));
  meeting.Run();
  ASSERT_EQ(b.Told<service::SetCost>().size(), 2U);
  const transport::CostLine slowest{.startup_s = 4e-5, .s_per_byte = 8e-9};
  for (const service::SetCost& set : b.Told<service::SetCost>()) EXPECT_EQ(set.cost, slowest);
  ASSERT_EQ(a.Told<JobFormed>().size(), 1U);
  EXPECT_EQ(a.Told<JobFormed>().at(0).nodes.costs, std::vector(2, slowest));
}

TEST(Leader, EndsTheJobWhenANodeCannotOpenMeasureOrAgree) {
  struct Case {
    std::optional<Status> open = Status{};
    std::optional<Result<transport::CostLine>> cost =
        Result<transport::CostLine>(transport::CostLine{});
    std::uint64_t salt = 0;
    std::vector<std::string> parts;
  };
  const std::vector<Case> cases = {
      {.open = Status(Error(Code::kExhausted, "no memory")),
       .parts = {"node b cannot open its links: no memory"}},
      {.cost = Result<transport::CostLine>(Error(Code::kPeerLost, "a does not answer")),
       .parts = {"node b cannot measure its links: a does not answer"}},
      {.salt = 1, .parts = {"node b agreed on plan ", ", the leader on "}}};
  for (const Case& each : cases) {
    Meeting meeting;
    MeetingNode& a = meeting.AddNode("a");
    MeetingNode& b = meeting.AddNode("b", each.salt);
    b.open_answer = each.open;
    b.cost = each.cost;
    meeting.Attach(a, Meeting::Rank(1, 0, 2));
    meeting.Attach(b, Meeting::Rank(1, 1, 2));
    meeting.Run();
    for (const std::string& part : each.parts) {
      EXPECT_TEXT(a.failure(), part);
      EXPECT_TEXT(b.failure(), part);
    }
    EXPECT_EQ(b.Told<JobFormed>().size(), 0U);
    EXPECT_EQ(a.Told<OpenGroup>().size(), a.Told<CloseGroup>().size());
    EXPECT_EQ(b.Told<OpenGroup>().size(), b.Told<CloseGroup>().size());
    EXPECT_EQ(meeting.leader().jobs_count(), 0U);
  }
}

TEST(Leader, SaysWhoseAnswerAStepWaitsFor) {
  Meeting meeting;
  MeetingNode& a = meeting.AddNode("a");
  MeetingNode& b = meeting.AddNode("b");
  b.cost.reset();
  meeting.Attach(a, Meeting::Rank(1, 0, 2));
  meeting.Attach(b, Meeting::Rank(1, 1, 2));
  meeting.Run();
  EXPECT_TEXT(a.waits(), "node b");
}

TEST(Leader, AJobThatWantsServersWaitsForOne) {
  Meeting meeting;
  MeetingNode& a = meeting.AddNode("a");
  auto rank = Meeting::Rank(1, 0, 1);
  rank.architecture = Architecture::kParameterServer;
  meeting.Attach(a, rank);
  meeting.Run();
  EXPECT_TEXT(a.waits(), "node a", "--role server");
  MeetingNode& s = meeting.AddServer("s");
  meeting.Run();
  const auto formed = a.Told<JobFormed>();
  ASSERT_EQ(formed.size(), 1U) << a.waits() << a.failure();
  EXPECT_EQ(formed[0].nodes.servers_count, 1U);
  EXPECT_EQ(formed[0].nodes.nodes.at(1).name, "s");
  ASSERT_EQ(s.Told<OpenGroup>().size(), 1U);
  EXPECT_EQ(s.Told<OpenGroup>().at(0).options.self, 1U);
  EXPECT_GE(s.Told<OpenGroup>().at(0).options.group, 0x80000000U);
  EXPECT_EQ(s.Told<service::SetCost>().size(), 1U);
  EXPECT_TRUE(s.dispatch.empty()) << "it has no ranks to tell";
}

TEST(Leader, AServerTakesPartInSeveralJobsAndEndsWithEach) {
  Meeting meeting({.architecture = Architecture::kParameterServer});
  MeetingNode& a = meeting.AddNode("a");
  MeetingNode& t = meeting.AddServer("t");
  MeetingNode& s = meeting.AddServer("s");
  meeting.Run();
  meeting.Attach(a, Meeting::Rank(1, 0, 1, "one"));
  meeting.Attach(a, Meeting::Rank(2, 0, 1, "two"));
  meeting.Run();
  ASSERT_EQ(a.Told<JobFormed>().size(), 2U);
  EXPECT_EQ(a.Told<JobFormed>().at(0).nodes.nodes.at(1).name, "s") << "servers by name";
  ASSERT_EQ(s.Told<OpenGroup>().size(), 2U);
  EXPECT_NE(s.Told<OpenGroup>().at(0).options.group, s.Told<OpenGroup>().at(1).options.group);
  a.follower.OnRankLost(JobId{1}, 0, "exited or was killed");
  meeting.Run();
  EXPECT_EQ(s.Told<CloseGroup>().size(), 1U);
  EXPECT_EQ(s.follower.jobs_count(), 1U);
  meeting.Cut(t, "is lost");
  meeting.Run();
  EXPECT_TEXT(a.failure(), "node t");
  EXPECT_EQ(s.Told<CloseGroup>().size(), 2U);
  EXPECT_EQ(s.follower.jobs_count(), 0U);
}

TEST(Leader, ARankThatLeavesBeforeAllAreLinkedEndsTheJob) {
  Meeting meeting;
  MeetingNode& a = meeting.AddNode("a");
  MeetingNode& b = meeting.AddNode("b");
  meeting.Attach(a, Meeting::Rank(1, 0, 3));
  meeting.Attach(b, Meeting::Rank(1, 1, 3));
  meeting.Run();
  b.follower.Handle(service::RankLeft{.job = JobId{1}, .rank = 1, .posted = 0});
  meeting.Run();
  EXPECT_TEXT(a.failure(), "rank 1", "pid 101", "node b");
}

}  // namespace
}  // namespace headrace::support
