// What people ask of jobs: checked, kept until the job runs, brought to every node with ranks.
#include "service/cluster/setting_changes.h"
#include "service/session/slow_rank.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "service/cluster/allowance.h"
#include "service/cluster/round_trips.h"
#include "tests/support/expect_text.h"
#include "tests/unit/service/cluster/meeting.h"

namespace headrace::support {
namespace {

using service::JobFailed;
using service::Steering;
using service::SteerJob;

Steering SteeringOf(SteeringKind kind, std::uint64_t value = 0, std::uint32_t uid = 1000) {
  return {.kind = kind, .value = value, .uid = uid};
}

TEST(PendingSteering, KeepTheLastOfEachKindInTheOrderInWhichTheyCame) {
  service::PendingSteering kept;
  kept.Keep(SteeringOf(SteeringKind::kPause));
  kept.Keep(SteeringOf(SteeringKind::kWeight, 3));
  kept.Keep(SteeringOf(SteeringKind::kResume));
  kept.Keep(SteeringOf(SteeringKind::kWeight, 5));
  kept.Keep(SteeringOf(SteeringKind::kPause));
  EXPECT_EQ(kept.Find(SteeringKind::kCancel), nullptr);
  ASSERT_NE(kept.Find(SteeringKind::kWeight), nullptr);
  EXPECT_EQ(kept.Find(SteeringKind::kWeight)->value, 5U);
  const std::vector<Steering> taken = kept.PopAll();
  ASSERT_EQ(taken.size(), 3U);
  EXPECT_EQ(taken[0].kind, SteeringKind::kResume);
  EXPECT_EQ(taken[1].kind, SteeringKind::kWeight);
  EXPECT_EQ(taken[2].kind, SteeringKind::kPause) << "it stays paused";
  EXPECT_TRUE(kept.PopAll().empty());
}

TEST(CheckSteering, TakesEveryValueThatThereIs) {
  const std::pair<SteeringKind, std::uint64_t> allowed[] = {
      {SteeringKind::kPause, 0},
      {SteeringKind::kResume, 0},
      {SteeringKind::kDrain, 0},
      {SteeringKind::kCancel, 0},
      {SteeringKind::kWeight, 1},
      {SteeringKind::kWeight, kWeightMax},
      {SteeringKind::kPriority, 0},
      {SteeringKind::kPriority, kPriorityMax},
      {SteeringKind::kLimit, 0},
      {SteeringKind::kLimit, kLimitMin},
      {SteeringKind::kLimit, kLimitMax},
      {SteeringKind::kSends, 0},
      {SteeringKind::kSends, kSendsClassMax},
      {SteeringKind::kCompress, SteeringValue({Codec::kTopK, 16})},
      {SteeringKind::kCompress, SteeringValue(Codec::kNone)},
      {SteeringKind::kCompress, ChoiceValue(*ChoiceNamed("auto:int8,bf16"))},
      {SteeringKind::kEvict, 0},
      {SteeringKind::kEvict, transport::kMembersMax - 1},
  };
  for (const auto& [kind, value] : allowed) {
    EXPECT_TRUE(service::CheckSteering(static_cast<std::uint8_t>(kind), value).ok())
        << service::DescribeSteering(SteeringOf(kind, value));
  }
}

TEST(DescribeSteering, ReadsLikeWhatWasAsked) {
  EXPECT_EQ(service::DescribeSteering(SteeringOf(SteeringKind::kDrain)), "drain");
  EXPECT_EQ(service::DescribeSteering(SteeringOf(SteeringKind::kPriority, 2)), "priority 2");
  EXPECT_EQ(service::DescribeSteering(SteeringOf(SteeringKind::kLimit, 2000)),
            "limit 2000 bytes/s");
  EXPECT_EQ(service::DescribeSteering(SteeringOf(SteeringKind::kLimit)), "no limit");
  EXPECT_EQ(service::DescribeSteering(SteeringOf(SteeringKind::kSends, 1)),
            "sends before other blocks");
}

TEST(CheckSteering, RefusesARankThatNoJobHas) {
  const auto kind = static_cast<std::uint8_t>(SteeringKind::kEvict);
  EXPECT_FALSE(service::CheckSteering(kind, transport::kMembersMax).ok());
  EXPECT_FALSE(service::CheckSteering(kind + 1, 0).ok());
  EXPECT_FALSE(service::CheckSteering(kind - 1, 0).ok());
  EXPECT_EQ(service::DescribeSteering(SteeringOf(SteeringKind::kEvict, 3)), "evict rank 3");
}

TEST(CheckSteering, LetsOnlyServicesSayHowManyApplicantsWait) {
  using service::WaitingApplicants;
  constexpr std::uint32_t kMax = WaitingApplicants::kCountMax;
  const auto kind = static_cast<std::uint8_t>(SteeringKind::kApplicants);
  const auto check = [](const WaitingApplicants& waiting) {
    return service::CheckNodeSteering(kind, waiting.Value()).ok();
  };
  EXPECT_FALSE(service::CheckSteering(kind, 0).ok());
  EXPECT_TRUE(check({.joiners = kMax, .spares = kMax}));
  EXPECT_FALSE(check({.joiners = kMax + 1}));
  EXPECT_FALSE(check({.spares = kMax + 1}));
}

TEST(CheckSteering, RefusesAClassOfSendsThatIsNone) {
  const auto kind = static_cast<std::uint8_t>(SteeringKind::kSends);
  const Status checked = service::CheckSteering(kind, kSendsClassMax + 1);
  ASSERT_FALSE(checked.ok());
  EXPECT_EQ(checked.error().code(), Code::kInvalidArgument);
}

TEST(CheckSteering, RefusesACodecThatIsNone) {
  const auto kind = static_cast<std::uint8_t>(SteeringKind::kCompress);
  for (const std::uint64_t value : {99U, 0x100U, 0xA0AU << 8U, 0x10003U}) {
    const Status checked = service::CheckSteering(kind, value);
    ASSERT_FALSE(checked.ok()) << value;
    EXPECT_EQ(checked.error().code(), Code::kInvalidArgument);
  }
}

TEST(Allowance, GivesSoManyInEachWindow) {
  service::Allowance allowance(2, kSecond);
  EXPECT_TRUE(allowance.TryAcquire(5));
  EXPECT_TRUE(allowance.TryAcquire(6));
  EXPECT_FALSE(allowance.TryAcquire(kSecond));
  EXPECT_FALSE(allowance.TryAcquire(kSecond + 4));
  EXPECT_TRUE(allowance.TryAcquire(kSecond + 5));
}

TEST(RoundTrips, TheShortestOfTheLastFewCounts) {
  service::RoundTrips trips;
  EXPECT_EQ(trips.Best().taken_ns, -1);
  trips.Add(1000, 10, 1000 + 5 + 77);
  trips.Add(2000, 100, 2000 + 500);
  EXPECT_EQ(trips.Best().taken_ns, 10);
  EXPECT_EQ(trips.Best().offset_ns, 77);
  for (std::size_t i = 0; i < service::RoundTrips::kKept - 1; ++i) trips.Add(3000, 40, 3000);
  EXPECT_EQ(trips.Best().taken_ns, 40) << "the first is too long ago";
  EXPECT_EQ(trips.Best().offset_ns, -20);
}

TEST(RoundTrips, KnowWhatAClockMayShow) {
  EXPECT_TRUE(service::RoundTrips::IsClock(0));
  EXPECT_TRUE(service::RoundTrips::IsClock(UnixNow()));
  EXPECT_FALSE(service::RoundTrips::IsClock(-1));
  EXPECT_FALSE(service::RoundTrips::IsClock(INT64_MAX));
}

class SteeringTest : public testing::Test {
 protected:
  // Job 1 of node a and job 7 of node b are the same.
  void Attach() {
    meeting_.Attach(a_, Meeting::Rank(1, 0, 2));
    meeting_.Attach(b_, Meeting::Rank(7, 1, 2));
  }
  void Begin() {
    Attach();
    meeting_.Run();
    ASSERT_EQ(b_.Told<service::JobFormed>().size(), 1U) << b_.failure();
  }
  void Late(int times, const std::string& text = "rank 1 is late") {
    for (int i = 0; i < times; ++i) b_.follower.Handle(service::RankLate{JobId{7}, text});
    meeting_.Run();
  }

  Meeting meeting_;
  MeetingNode& a_ = meeting_.AddNode("a");
  MeetingNode& b_ = meeting_.AddNode("b");
};

TEST_F(SteeringTest, EveryNodeHearsOfItAndWhoAskedWhere) {
  Begin();
  b_.follower.Steer(JobId{7}, SteeringOf(SteeringKind::kWeight, 3));
  meeting_.Run();
  ASSERT_EQ(a_.Told<SteerJob>().size(), 1U);
  ASSERT_EQ(b_.Told<SteerJob>().size(), 1U);
  const SteerJob on_a = a_.Told<SteerJob>()[0];
  EXPECT_EQ(on_a.job, JobId{1});
  EXPECT_EQ(on_a.steering.value, 3U);
  EXPECT_EQ(on_a.steering.uid, 1000U);
  EXPECT_EQ(on_a.steering.node, "b");
  EXPECT_EQ(b_.Told<SteerJob>()[0].job, JobId{7});
  EXPECT_EQ(b_.Told<SteerJob>()[0].steering.node, "");
}

// Plans say what is compressed, so nobody else is to hear of it.
TEST_F(SteeringTest, ACodecIsTheLeadersToPlan) {
  Begin();
  b_.follower.Steer(JobId{7}, SteeringOf(SteeringKind::kCompress, SteeringValue(Codec::kInt8)));
  meeting_.Run();
  EXPECT_TRUE(a_.Told<SteerJob>().empty());
  EXPECT_TRUE(b_.Told<SteerJob>().empty());
}

TEST_F(SteeringTest, AllNodesHearInTheSameOrder) {
  Begin();
  a_.follower.Steer(JobId{1}, SteeringOf(SteeringKind::kPause));
  b_.follower.Steer(JobId{7}, SteeringOf(SteeringKind::kResume));
  a_.follower.Steer(JobId{1}, SteeringOf(SteeringKind::kWeight, 9));
  meeting_.Run();
  const auto kinds = [](const MeetingNode& node) {
    std::vector<SteeringKind> heard;
    for (const SteerJob& each : node.Told<SteerJob>()) heard.push_back(each.steering.kind);
    return heard;
  };
  EXPECT_EQ(kinds(a_).size(), 3U);
  EXPECT_EQ(kinds(a_), kinds(b_));
}

TEST_F(SteeringTest, WhatIsAskedBeforeTheJobRunsIsKept) {
  meeting_.Attach(b_, Meeting::Rank(7, 1, 2));
  b_.follower.Steer(JobId{7}, SteeringOf(SteeringKind::kWeight, 3));
  b_.follower.Steer(JobId{7}, SteeringOf(SteeringKind::kWeight, 4));
  b_.follower.Steer(JobId{7}, SteeringOf(SteeringKind::kPause));
  meeting_.Run();
  EXPECT_TRUE(b_.Told<SteerJob>().empty());
  meeting_.Attach(a_, Meeting::Rank(1, 0, 2));
  meeting_.Run();
  for (const MeetingNode* node : {&a_, &b_}) {
    const auto told = node->Told<SteerJob>();
    ASSERT_EQ(told.size(), 2U) << node->name;
    EXPECT_EQ(told[0].steering.value, 4U);
    EXPECT_EQ(told[1].steering.kind, SteeringKind::kPause);
  }
}

TEST_F(SteeringTest, ACancelledJobEndsOnEveryNode) {
  Begin();
  a_.follower.Steer(JobId{1}, SteeringOf(SteeringKind::kCancel));
  meeting_.Run();
  for (const MeetingNode* node : {&a_, &b_}) {
    const auto failed = node->Told<JobFailed>();
    ASSERT_EQ(failed.size(), 1U);
    EXPECT_EQ(failed[0].code, Code::kCancelled);
    EXPECT_TEXT(failed[0].cause, "uid 1000", "node a");
  }
  EXPECT_EQ(meeting_.leader().jobs_count(), 0U);
}

TEST_F(SteeringTest, AJobThatIsFormingCanBeCancelled) {
  meeting_.Attach(b_, Meeting::Rank(7, 1, 2));
  meeting_.Run();
  b_.follower.Steer(JobId{7}, SteeringOf(SteeringKind::kCancel));
  meeting_.Run();
  EXPECT_TEXT(b_.failure(), "uid 1000", "node b");
  EXPECT_EQ(meeting_.leader().jobs_count(), 0U);
}

TEST_F(SteeringTest, AJobWhoseLeaderIsOutOfReachCanBeCancelled) {
  b_.follower.OnRankAttached(Meeting::Rank(7, 1, 2));
  b_.follower.Steer(JobId{7}, SteeringOf(SteeringKind::kCancel));
  meeting_.Collect();
  EXPECT_TEXT(b_.failure(), "uid 1000");
}

TEST_F(SteeringTest, ACancelOutlivesTheConnectionThatShouldHaveCarriedIt) {
  meeting_.Attach(b_, Meeting::Rank(7, 1, 2));
  meeting_.Run();
  b_.follower.Steer(JobId{7}, SteeringOf(SteeringKind::kCancel));
  meeting_.Collect();
  meeting_.Cut(b_, "broke");
  EXPECT_TEXT(b_.failure(), "uid 1000");
}

// Neither half of the job would know of the other. Within a node nobody is cut off.
TEST(LeastWorld, OfHalfOfTheRanksOrLessIsWarnedOfOnceWhereTheJobBegins) {
  struct Case {
    std::uint32_t min_world = 0;
    std::uint32_t after_epoch = 0;
    bool spans_nodes = true;
    std::size_t warnings = 0;
  };
  for (const Case& each :
       {Case{.min_world = 2, .warnings = 1}, Case{.min_world = 1, .warnings = 1},
        Case{.min_world = 3}, Case{.min_world = 0}, Case{.min_world = 2, .after_epoch = 1},
        Case{.min_world = 2, .spans_nodes = false}}) {
    Meeting meeting;
    MeetingNode& node = meeting.AddNode("a");
    for (const std::uint32_t rank : {0U, 1U}) {
      service::SessionIdentity identity = Meeting::Rank(1, rank, 4);
      identity.min_world = each.min_world;
      identity.after_epoch = each.after_epoch;
      if (!each.spans_nodes) identity.rendezvous.clear();
      meeting.Attach(node, identity);
    }
    std::vector<std::string> warnings;
    for (const std::string& event : node.events) {
      if (event.find("two halves") != std::string::npos) warnings.push_back(event);
    }
    ASSERT_EQ(warnings.size(), each.warnings) << each.min_world << " " << each.after_epoch;
    if (each.warnings == 0) continue;
    EXPECT_TEXT(warnings[0], "job train", std::to_string(each.min_world) + " of 4 ranks",
                "3 or more");
  }
}

TEST_F(SteeringTest, ADrainedJobEndsWhenEveryNodeIsDone) {
  Begin();
  a_.follower.Steer(JobId{1}, SteeringOf(SteeringKind::kDrain));
  meeting_.Run();
  ASSERT_EQ(b_.Told<SteerJob>().size(), 1U);
  const auto drained = [](std::uint32_t job) {
    return service::JobFailed{.job = JobId{job}, .code = Code::kCancelled, .cause = "drained"};
  };
  a_.follower.Handle(drained(1));
  meeting_.Run();
  EXPECT_EQ(b_.failure(), "") << "its last operation may still move";
  b_.follower.Handle(drained(7));
  meeting_.Run();
  EXPECT_TEXT(a_.failure(), "uid 1000", "node a");
  EXPECT_EQ(b_.failure(), a_.failure());
  EXPECT_EQ(b_.Told<JobFailed>()[0].code, Code::kCancelled);
}

TEST_F(SteeringTest, HowFarEachNodeIsWithADrainReachesAllOfThem) {
  Begin();
  a_.follower.Steer(JobId{1}, SteeringOf(SteeringKind::kDrain));
  meeting_.Run();
  b_.follower.Handle(
      service::SteerJob{JobId{7}, SteeringOf(SteeringKind::kDrainOperations, UINT64_MAX)});
  meeting_.Run();
  ASSERT_EQ(a_.Told<SteerJob>().size(), 2U);
  EXPECT_EQ(a_.Told<SteerJob>()[1].steering.node, "b");
  EXPECT_EQ(a_.Told<SteerJob>()[1].steering.value, UINT64_MAX);
  ASSERT_EQ(b_.Told<SteerJob>().size(), 2U);
  EXPECT_EQ(b_.Told<SteerJob>()[1].steering.node, "");
}

TEST_F(SteeringTest, PeopleMayNotSayHowFarADrainIs) {
  const auto kind = static_cast<std::uint8_t>(SteeringKind::kDrainOperations);
  EXPECT_FALSE(service::CheckSteering(kind, 1).ok());
  EXPECT_TRUE(service::CheckNodeSteering(kind, 1).ok());
  EXPECT_FALSE(service::CheckNodeSteering(17, 0).ok());
  EXPECT_FALSE(
      service::CheckNodeSteering(static_cast<std::uint8_t>(SteeringKind::kWeight), 0).ok());
}

TEST_F(SteeringTest, SharesAndStatesOfRanksGoToTheNodeOfRankZeroAndWhoIsSlowToAll) {
  Begin();
  const service::OwnShare own{.rank = 1, .share = 700};
  b_.follower.Handle(service::SteerJob{JobId{7}, SteeringOf(SteeringKind::kOwnShare, own.Value())});
  meeting_.Run();
  ASSERT_EQ(a_.Told<SteerJob>().size(), 1U);
  EXPECT_EQ(a_.Told<SteerJob>()[0].steering.node, "b");
  EXPECT_EQ(service::OwnShare::Of(a_.Told<SteerJob>()[0].steering.value), own);
  const service::RankState state{
      .rank = 1, .kind = service::RankState::Kind::kStalled, .seconds = 30};
  b_.follower.Handle(
      service::SteerJob{JobId{7}, SteeringOf(SteeringKind::kRankState, state.Value())});
  meeting_.Run();
  ASSERT_EQ(a_.Told<SteerJob>().size(), 2U);
  EXPECT_EQ(service::RankState::Of(a_.Told<SteerJob>()[1].steering.value), state);
  EXPECT_TRUE(b_.Told<SteerJob>().empty());
  const service::SlowRank slow{.rank = 1, .percent = 200, .seconds = 30};
  a_.follower.Handle(
      service::SteerJob{JobId{1}, SteeringOf(SteeringKind::kSlowRank, slow.Value())});
  meeting_.Run();
  EXPECT_EQ(a_.Told<SteerJob>().size(), 3U);
  ASSERT_EQ(b_.Told<SteerJob>().size(), 1U);
  EXPECT_EQ(b_.Told<SteerJob>()[0].steering.node, "a");
}

// Two wait, then the node of one is gone, then the other gives up.
TEST_F(SteeringTest, TheLeaderTellsAllNodesHowManyWaitForTheJobWheneverThatChanges) {
  using service::WaitingApplicants;
  Begin();
  MeetingNode& c = meeting_.AddNode("c");
  const auto apply = [this](MeetingNode& node, std::uint64_t client, service::MemberRole role) {
    node.follower.Handle(service::AskQuorum{.token = client,
                                            .client = client,
                                            .job = "train",
                                            .uid = 1000,
                                            .pid = 5,
                                            .leader = kMeetingPlace,
                                            .role = role,
                                            .membership = {},
                                            .rules = {},
                                            .until_ns = meeting_.now() + 60 * kSecond},
                         meeting_.now());
    meeting_.Run();
  };
  apply(b_, 1001, service::MemberRole::kSpare);
  apply(c, 1002, service::MemberRole::kJoins);
  meeting_.Cut(c, "broke");
  meeting_.Run();
  b_.follower.Handle(service::QuorumClientLost{.client = 1001, .exited = true});
  meeting_.Run();
  for (const MeetingNode* node : {&a_, &b_}) {
    std::vector<WaitingApplicants> told;
    for (const SteerJob& each : node->Told<SteerJob>()) {
      EXPECT_EQ(each.steering.kind, SteeringKind::kApplicants);
      told.push_back(WaitingApplicants::Of(each.steering.value));
    }
    // The connection of c comes about again, since somebody waits there.
    const std::vector<WaitingApplicants> wanted = {{.spares = 1},
                                                   {.joiners = 1, .spares = 1},
                                                   {.spares = 1},
                                                   {.joiners = 1, .spares = 1},
                                                   {.joiners = 1}};
    EXPECT_EQ(told, wanted) << node->name;
  }
}

TEST_F(SteeringTest, OnlyTheLeaderSaysHowManyWait) {
  Begin();
  const service::WaitingApplicants waiting{.joiners = 7};
  b_.follower.Handle(
      service::SteerJob{JobId{7}, SteeringOf(SteeringKind::kApplicants, waiting.Value())});
  meeting_.Run();
  EXPECT_TRUE(a_.Told<SteerJob>().empty());
}

TEST_F(SteeringTest, PeopleMayNotSayWhoIsSlow) {
  for (const SteeringKind kind :
       {SteeringKind::kSlowBound, SteeringKind::kOwnShare, SteeringKind::kSlowRank}) {
    EXPECT_FALSE(service::CheckSteering(static_cast<std::uint8_t>(kind), 1).ok());
    EXPECT_TRUE(service::CheckNodeSteering(static_cast<std::uint8_t>(kind), 1).ok());
    EXPECT_FALSE(service::CheckNodeSteering(static_cast<std::uint8_t>(kind), UINT64_MAX).ok());
  }
}

TEST_F(SteeringTest, ARankThatIsLostInADrainSaysThatTheJobWasDrained) {
  Begin();
  a_.follower.Steer(JobId{1}, SteeringOf(SteeringKind::kDrain));
  meeting_.Run();
  b_.follower.OnRankLost(JobId{7}, 1, "exited or was killed");
  meeting_.Run();
  EXPECT_TEXT(a_.failure(), "rank 1", "pid 101", "uid 1000", "node b", "node a");
}

TEST_F(SteeringTest, ServersGetNothing) {
  Meeting meeting({.architecture = Architecture::kParameterServer});
  MeetingNode& a = meeting.AddNode("a");
  MeetingNode& s = meeting.AddServer("s");
  meeting.Attach(a, Meeting::Rank(1, 0, 1));
  meeting.Run();
  ASSERT_EQ(a.Told<service::JobFormed>().size(), 1U) << a.failure();
  a.follower.Steer(JobId{1}, SteeringOf(SteeringKind::kWeight, 2));
  a.follower.Handle(service::RankLate{JobId{1}, "late"});
  meeting.Run();
  EXPECT_EQ(a.Told<SteerJob>().size(), 1U);
  EXPECT_TRUE(s.Told<SteerJob>().empty());
  EXPECT_TRUE(s.events.empty());
  // Nor may they ask: the leader knows the job on a server's connection by a number of its own.
  for (std::uint32_t job : {0x80000001U, 1U}) {
    meeting.leader().Handle(
        s.id, service::RequestSteering{.job = job, .steering = SteeringOf(SteeringKind::kCancel)},
        meeting.now());
  }
  meeting.Run();
  EXPECT_EQ(a.failure(), "");
}

TEST_F(SteeringTest, LateWordsReachTheOtherNodesAndNotTheOneThatTold) {
  Begin();
  Late(1);
  ASSERT_EQ(a_.events.size(), 1U);
  EXPECT_TEXT(a_.events[0], "rank 1", "job train", "node b");
  EXPECT_TRUE(b_.events.empty());
}

TEST_F(SteeringTest, LateWordsReachANodeThatIsTheLastToStart) {
  Attach();
  for (bool more = true; more && b_.Told<service::JobFormed>().empty();) {
    for (MeetingNode* node : {&a_, &b_}) {
      const bool wants = node->wants_leader && node->id == 0;
      ASSERT_TRUE(!wants || meeting_.Connect(*node).ok());
    }
    meeting_.Collect();
    while (meeting_.DeliverToLeader(b_) || meeting_.DeliverToNode(b_)) meeting_.Collect();
    more = meeting_.DeliverToLeader(a_) || meeting_.DeliverToNode(a_);
  }
  ASSERT_EQ(b_.Told<service::JobFormed>().size(), 1U) << b_.failure();
  ASSERT_TRUE(a_.Told<service::JobFormed>().empty()) << "the leader has not heard from it";
  Late(1);
  EXPECT_EQ(a_.Told<service::JobFormed>().size(), 1U);
  ASSERT_EQ(a_.events.size(), 1U);
  EXPECT_TEXT(a_.events[0], "rank 1", "job train", "node b");
}

TEST_F(SteeringTest, ANodeThatTellsEndlesslyIsHeardAFewTimes) {
  Begin();
  Late(100);
  EXPECT_EQ(a_.events.size(), static_cast<std::size_t>(service::kLateReportsMax));
  meeting_.Pass(service::kLateReportsWindow);
  Late(1, "rank 1 is still late");
  EXPECT_TEXT(a_.events.back(), "rank 1", "job train", "node b");
}

TEST_F(SteeringTest, ALeaderThatTellsEndlesslyIsHeardAFewTimes) {
  Begin();
  for (int i = 0; i < 100; ++i) {
    b_.follower.Handle(kMeetingPlace, service::AnnounceRankLate{.job = 7, .text = "x"},
                       meeting_.now());
  }
  meeting_.Collect();
  EXPECT_EQ(b_.events.size(), static_cast<std::size_t>(service::kLateEventsMax));
}

TEST_F(SteeringTest, FindsTheNewestJobOfAName) {
  Begin();
  ASSERT_EQ(b_.follower.FindJobs("train").size(), 1U);
  auto next = Meeting::Rank(9, 0, 1);
  next.uid = 1001;
  b_.follower.OnRankAttached(next);
  ASSERT_EQ(b_.follower.FindJobs("train").size(), 2U);
  EXPECT_EQ(b_.follower.FindJob("train")->id, JobId{9});
  EXPECT_EQ(b_.follower.FindJobs("train")[0].uid, 1000U);
}

}  // namespace
}  // namespace headrace::support
