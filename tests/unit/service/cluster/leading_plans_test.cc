// Plans between a leader and its nodes: who hands in, who is told, what ends the job.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/expect_text.h"
#include "tests/unit/service/cluster/meeting.h"
#include "tests/unit/service/cluster/plans.h"

namespace headrace::support {
namespace {

using plan::Policy;
using service::PlanOffer;
using service::PlanSwitch;

constexpr std::size_t kTensorsLed = 5;
constexpr transport::CostLine kLedCost{.startup_s = 1e-3, .s_per_byte = 1e-8};

// Two nodes: ranks 0 and 2 on a, rank 1 on b, all linked.
class LeadingPlans : public testing::Test {
 protected:
  LeadingPlans() {
    meeting_.Attach(a_, Meeting::Rank(1, 0, 3));
    meeting_.Attach(a_, Meeting::Rank(1, 2, 3));
    meeting_.Attach(b_, Meeting::Rank(7, 1, 3));
    meeting_.Run();
  }
  void HandIn(MeetingNode& node, std::uint32_t rank, std::optional<Policy> policy = std::nullopt) {
    node.follower.OnLayoutSet(JobOf(node), rank, Shared(LayoutOf(Elements(kTensorsLed))), policy);
    meeting_.Run();
  }
  void HandInAll() {
    HandIn(a_, 0);
    HandIn(a_, 2);
    HandIn(b_, 1);
  }
  JobId JobOf(const MeetingNode& node) const { return JobId{&node == &a_ ? 1U : 7U}; }
  // Makes the one plan that is wanted.
  void Make() {
    ASSERT_EQ(meeting_.plans_wanted().size(), 1U);
    const service::MakePlan request = meeting_.plans_wanted()[0];
    meeting_.plans_wanted().clear();
    meeting_.leader().Handle(service::PlanMade{.token = request.token, .plan = Made(request)});
    meeting_.Run();
  }
  void Hold(MeetingNode& node, std::uint64_t iteration) {
    const PlanOffer offer = node.Told<PlanOffer>().back();
    node.follower.Handle(service::PlanAck{
        .job = JobOf(node), .version = offer.plan->version, .iteration = iteration});
    meeting_.Run();
  }
  void TellAll(std::uint64_t iteration) {
    for (MeetingNode* node : {&a_, &b_}) {
      const service::NodeSeen seen = SeenAt(iteration, kTensorsLed, 0.01, 0.005, kLedCost);
      node->follower.Handle(
          service::TimesSeen{.job = JobOf(*node), .times = seen.times, .costs = seen.costs});
    }
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

TEST_F(LeadingPlans, AllNodesGetTheSamePlanAndTheSameIteration) {
  HandIn(a_, 0);
  HandIn(b_, 1);
  EXPECT_TRUE(meeting_.plans_wanted().empty()) << "rank 2 is missing";
  HandIn(a_, 2);
  Make();
  ASSERT_EQ(a_.Told<PlanOffer>().size(), 1U);
  ASSERT_EQ(b_.Told<PlanOffer>().size(), 1U);
  const PlanOffer on_a = a_.Told<PlanOffer>()[0];
  const PlanOffer on_b = b_.Told<PlanOffer>()[0];
  EXPECT_EQ(on_a.job, JobId{1}) << "the node's own number of the job";
  EXPECT_EQ(on_b.job, JobId{7});
  EXPECT_EQ(*on_a.plan, *on_b.plan);
  EXPECT_EQ(on_a.hash, on_b.hash);
  Hold(a_, 0);
  EXPECT_TRUE(a_.Told<PlanSwitch>().empty());
  Hold(b_, 0);
  TellAll(3);
  Make();
  Hold(a_, 4);
  Hold(b_, 5);
  for (MeetingNode* node : {&a_, &b_}) {
    const auto changes = node->Told<PlanSwitch>();
    ASSERT_EQ(changes.size(), 2U);
    EXPECT_EQ(changes[0].from_iteration, 1U);
    EXPECT_EQ(changes[1].version, 2U);
    EXPECT_EQ(changes[1].from_iteration, 5 + service::kSwitchSlack);
    ASSERT_EQ(node->events.size(), 2U);
    EXPECT_TEXT(node->events[0], "plan 1", "iteration 1", "job train");
    EXPECT_TEXT(node->events[1], "plan 2", "job train");
  }
  EXPECT_EQ(a_.failure() + b_.failure(), "");
}

// Without the word of a rail a plan that is as good as the present one is none.
TEST_F(LeadingPlans, AreMadeAnewWhenEveryNodeHasReportedSinceARailWasLost) {
  const auto tell = [this](MeetingNode& node, std::uint64_t iteration, bool rails_changed) {
    const service::NodeSeen seen = SeenAt(iteration, kTensorsLed, 0.01, 0.005, kLedCost);
    node.follower.Handle(service::TimesSeen{.job = JobOf(node),
                                            .times = seen.times,
                                            .costs = seen.costs,
                                            .rails_changed = rails_changed});
    meeting_.Run();
  };
  HandInAll();
  Make();
  Hold(a_, 0);
  Hold(b_, 0);
  TellAll(3);
  Make();
  Hold(a_, 4);
  Hold(b_, 4);
  tell(b_, 32, false);
  tell(a_, 30, true);
  EXPECT_TRUE(meeting_.plans_wanted().empty()) << "b has reported before the loss";
  tell(b_, 31, true);
  ASSERT_EQ(meeting_.plans_wanted().size(), 1U);
  EXPECT_EQ(meeting_.plans_wanted()[0].present, nullptr) << "whatever the margin";
  Make();
  for (const MeetingNode* node : {&a_, &b_}) {
    ASSERT_EQ(node->Told<PlanOffer>().size(), 3U);
    EXPECT_EQ(node->Told<PlanOffer>()[2].plan->version, 3U);
  }
  Hold(a_, 40);
  Hold(b_, 40);
  TellAll(64);
  ASSERT_EQ(meeting_.plans_wanted().size(), 1U);
  EXPECT_NE(meeting_.plans_wanted()[0].present, nullptr) << "once";
}

TEST_F(LeadingPlans, TheMeasuredLinesMakeTheFirstRoute) {
  HandInAll();
  const service::MakePlan request = meeting_.plans_wanted().at(0);
  ASSERT_EQ(request.route.stages.size(), 3U) << "node a has two ranks";
  EXPECT_EQ(request.route.stages[1].rails[0].line, plan::Affine(1e-5, 1e-9)) << "as agreed";
}

// As for operations; a plan of them would be carried out.
TEST_F(LeadingPlans, ALayoutThatAveragesIntegersIsRefusedBetweenNodes) {
  MeetingNode& c = meeting_.AddNode("c");
  meeting_.Attach(c, Meeting::Rank(3, 0, 2, "second"));
  service::Layout layout = LayoutOf({8, 8});
  layout.tensors[1].dtype = DType::kInt32;
  layout.reduction = Reduction::kSum;
  EXPECT_TRUE(c.follower.CheckLayout(JobId{3}, 0, layout, std::nullopt).ok());
  layout.reduction = Reduction::kAverage;
  const Status refused = c.follower.CheckLayout(JobId{3}, 0, layout, std::nullopt);
  ASSERT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_TEXT(refused.error().text(), "gradient 1", "layer1", "int32");
}

TEST_F(LeadingPlans, LayoutsThatWereThereBeforeTheJobBeganAreHandedInThen) {
  MeetingNode& c = meeting_.AddNode("c");
  MeetingNode& d = meeting_.AddNode("d");
  meeting_.Attach(c, Meeting::Rank(3, 0, 2, "second"));
  meeting_.Run();
  c.follower.OnLayoutSet(JobId{3}, 0, Shared(LayoutOf({8})), std::nullopt);
  c.follower.SetPolicy(JobId{3}, Policy::kBsp);
  meeting_.Run();
  EXPECT_TRUE(meeting_.plans_wanted().empty());
  meeting_.Attach(d, Meeting::Rank(4, 1, 2, "second"));
  meeting_.Run();
  d.follower.OnLayoutSet(JobId{4}, 1, Shared(LayoutOf({8})), std::nullopt);
  meeting_.Run();
  Make();
  EXPECT_EQ(c.Told<PlanOffer>().size(), 1U);
  EXPECT_EQ(d.Told<PlanOffer>().size(), 1U);
}

// What people want of a job holds when its ranks come back, and not when others begin.
TEST_F(LeadingPlans, TheCodecThatAPersonWantsHoldsInTheNextEpoch) {
  HandInAll();
  Make();
  b_.follower.Steer(
      JobOf(b_),
      {.kind = SteeringKind::kCompress, .value = SteeringValue(Codec::kInt8), .uid = 1000});
  meeting_.Run();
  const std::vector<CodecChoice> wanted(kTensorsLed, CodecChoice(Codec::kInt8));
  for (const std::uint32_t epoch : {1U, 0U}) {
    meeting_.Cut(b_, "connection reset");
    meeting_.plans_wanted().clear();
    const JobId on_a{epoch == 1 ? 21U : 31U};
    const JobId on_b{epoch == 1 ? 27U : 37U};
    for (const std::uint32_t rank : {0U, 2U, 1U}) {
      auto identity = Meeting::Rank(rank == 1 ? on_b.value : on_a.value, rank, 3);
      identity.after_epoch = epoch;
      meeting_.Attach(rank == 1 ? b_ : a_, identity);
    }
    meeting_.Run();
    for (const std::uint32_t rank : {0U, 2U, 1U}) {
      (rank == 1 ? b_ : a_)
          .follower.OnLayoutSet(rank == 1 ? on_b : on_a, rank,
                                Shared(LayoutOf(Elements(kTensorsLed))), std::nullopt);
      meeting_.Run();
    }
    ASSERT_EQ(meeting_.plans_wanted().size(), 1U) << epoch << a_.failure() << b_.failure();
    EXPECT_EQ(meeting_.plans_wanted()[0].codecs, epoch == 1 ? wanted : std::vector<CodecChoice>());
  }
}

TEST_F(LeadingPlans, LayoutsThatDifferFailTheJobOnEveryNode) {
  HandIn(a_, 0);
  HandIn(a_, 2);
  b_.follower.OnLayoutSet(JobId{7}, 1, Shared(LayoutOf(Elements(kTensorsLed - 1))), std::nullopt);
  meeting_.Run();
  EXPECT_TEXT(a_.failure(), "rank 0", "rank 1", "node a", "node b");
  EXPECT_EQ(b_.failure(), a_.failure());
  EXPECT_EQ(b_.Told<service::JobFailed>().at(0).code, Code::kMismatch);
}

TEST_F(LeadingPlans, ANodeThatHoldsAnotherPlanFailsTheJobByName) {
  HandInAll();
  Make();
  Say(b_, service::ReportPlanAck{.job = 7, .version = 1, .hash = 1, .iteration = 0});
  EXPECT_TEXT(a_.failure(), "plan 1", "0000000000000001", "node b", "job train");
  EXPECT_EQ(b_.failure(), a_.failure());
}

TEST_F(LeadingPlans, APlanThatIsNoneOnItsNodeFailsTheJobByName) {
  HandInAll();
  const auto text = std::make_shared<const std::string>("headrace-plan/2\n");
  b_.follower.Handle(
      kMeetingPlace,
      service::PlanPiece{.job = 7, .version = 1, .index = 0, .last = true, .text = text},
      meeting_.now());
  meeting_.Run();
  EXPECT_NE(a_.failure().find("plan: line 1"), std::string::npos) << a_.failure();
  EXPECT_NE(a_.failure().find("(on node b)"), std::string::npos) << a_.failure();
}

TEST_F(LeadingPlans, ASwitchToAPlanThatNeverCameFailsTheJob) {
  HandInAll();
  b_.follower.Handle(kMeetingPlace,
                     service::AnnouncePlanSwitch{.job = 7, .version = 4, .from_iteration = 9},
                     meeting_.now());
  meeting_.Run();
  EXPECT_TEXT(a_.failure(), "plan 4");
  EXPECT_TRUE(b_.Told<PlanSwitch>().empty());
}

TEST_F(LeadingPlans, ANodeThatIsLostWhileItsPlanIsMadeEndsIt) {
  HandInAll();
  const service::MakePlan request = meeting_.plans_wanted().at(0);
  meeting_.Cut(b_, "does not answer for 3.0 s");
  meeting_.Run();
  meeting_.leader().Handle(service::PlanMade{.token = request.token, .plan = Made(request)});
  meeting_.Run();
  EXPECT_TEXT(a_.failure(), "node b");
  EXPECT_TRUE(a_.Told<PlanOffer>().empty());
}

TEST_F(LeadingPlans, ANodeThatIsLostWhileItsPlanIsOfferedEndsIt) {
  HandInAll();
  Make();
  Hold(a_, 0);
  meeting_.Cut(b_, "does not answer for 3.0 s");
  meeting_.Run();
  EXPECT_TEXT(a_.failure(), "node b");
  EXPECT_TRUE(a_.Told<PlanSwitch>().empty());
  a_.follower.Handle(service::PlanAck{.job = JobId{1}, .version = 1, .iteration = 0});
  EXPECT_EQ(meeting_.Run(), 0U) << "nothing is said of a job that has failed";
}

TEST_F(LeadingPlans, APolicyThatSomebodyWantsAnywhereReachesTheLeader) {
  HandInAll();
  Make();
  Hold(a_, 0);
  Hold(b_, 0);
  TellAll(3);
  meeting_.plans_wanted().clear();
  const auto known = b_.follower.FindJob("train");
  ASSERT_TRUE(known.has_value());
  EXPECT_EQ(known->uid, 1000U);
  b_.follower.SetPolicy(known->id, Policy::kBsp);
  meeting_.Run();
  meeting_.leader().Handle(
      service::PlanMade{.token = 1, .plan = std::shared_ptr<const plan::Plan>()});
  meeting_.Run();
  ASSERT_EQ(meeting_.plans_wanted().size(), 1U);
  EXPECT_EQ(meeting_.plans_wanted()[0].policy, Policy::kBsp);
}

TEST_F(LeadingPlans, ARankThatLeavesSaysHowManyIterationsItHadAndNoPlanIsBegun) {
  HandInAll();
  Make();
  Hold(a_, 0);
  Hold(b_, 0);
  b_.follower.Handle(service::RankLeft{.job = JobId{7}, .rank = 1, .posted = 42, .iterations = 6});
  meeting_.Run();
  const auto left = a_.Told<service::RankLeft>();
  ASSERT_EQ(left.size(), 1U);
  EXPECT_EQ(left[0].posted, 42U);
  EXPECT_EQ(left[0].iterations, 6U);
  TellAll(3);
  EXPECT_TRUE(meeting_.plans_wanted().empty());
}

TEST_F(LeadingPlans, WhatIsSaidTooEarlyOrOfOtherJobsIsIgnored) {
  MeetingNode& c = meeting_.AddNode("c");
  meeting_.Attach(c, Meeting::Rank(3, 0, 2, "second"));
  meeting_.Run();
  for (const std::uint32_t job : {3U, 99U}) {
    Say(c, service::ReportLayout{.job = job, .layout = Shared(LayoutOf({8})), .policy = {}});
    Say(c, service::ReportTimesSeen{.job = job, .seen = {}});
    Say(c, service::RequestPolicy{.job = job, .policy = Policy::kBsp});
    Say(c, service::ReportPlanAck{.job = job, .version = 1, .hash = 1, .iteration = 0});
  }
  meeting_.leader().Handle(
      service::PlanMade{.token = 99, .plan = std::shared_ptr<const plan::Plan>()});
  EXPECT_TRUE(meeting_.plans_wanted().empty());
  EXPECT_EQ(c.failure() + a_.failure(), "");
}

TEST(LeadingPlansWithServers, AServerHasNoPartInPlans) {
  Meeting meeting({.architecture = Architecture::kParameterServer});
  MeetingNode& a = meeting.AddNode("a");
  MeetingNode& s = meeting.AddServer("s");
  meeting.Attach(a, Meeting::Rank(1, 0, 1));
  meeting.Run();
  a.follower.OnLayoutSet(JobId{1}, 0, Shared(LayoutOf({8, 8})), Policy::kExact);
  meeting.Run();
  ASSERT_EQ(meeting.plans_wanted().size(), 1U) << a.waits() << a.failure();
  const service::MakePlan request = meeting.plans_wanted()[0];
  EXPECT_EQ(request.route.stages[0].rails[0].line, plan::Affine(1e-5, 1e-9));
  meeting.leader().Handle(service::PlanMade{.token = request.token, .plan = Made(request)});
  meeting.Run();
  a.follower.Handle(service::PlanAck{.job = JobId{1}, .version = 1, .iteration = 0});
  meeting.Run();
  EXPECT_EQ(a.Told<PlanSwitch>().size(), 1U);
  EXPECT_TRUE(s.dispatch.empty());
}

}  // namespace
}  // namespace headrace::support
