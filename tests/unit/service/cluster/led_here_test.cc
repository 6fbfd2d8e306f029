// Jobs without a rendezvous: all of their ranks are here, and their leader too.
#include "service/cluster/follower.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/support/expect_text.h"
#include "tests/unit/service/cluster/plans.h"

namespace headrace::support {
namespace {

using plan::Policy;
using service::Event;
using service::Follower;
using service::JobFailed;
using service::MakePlan;
using service::PlanOffer;
using service::PlanSwitch;
using service::SteerJob;

constexpr JobId kJob{5};
constexpr std::size_t kTensorsHere = 4;

service::SessionIdentity Rank(std::uint32_t rank, JobId job = kJob) {
  service::SessionIdentity identity;
  identity.job = job;
  identity.job_name = "train" + std::to_string(job.value);
  identity.rank = rank;
  identity.world_size = 2;
  identity.uid = 1000;
  return identity;
}

class LedHereTest : public testing::Test {
 protected:
  LedHereTest() {
    plans_.OnRankAttached(Rank(0));
    plans_.OnRankAttached(Rank(1));
    EXPECT_TRUE(plans_.DrainActions().empty()) << "dispatch begins it by itself";
  }
  // The messages of that kind among what is to be done now; the others are dropped.
  template <typename Kind>
  std::vector<Kind> Told() {
    std::vector<Kind> found;
    const auto keep = [&found](const auto& each) {
      if constexpr (std::is_same_v<std::decay_t<decltype(each)>, Kind>) found.push_back(each);
    };
    for (const service::FollowerAction& action : plans_.DrainActions()) {
      if (const auto* dispatch = std::get_if<service::ToDispatch>(&action)) {
        std::visit(keep, dispatch->message);
      } else if (const auto* watch = std::get_if<service::ToWatch>(&action)) {
        std::visit(keep, watch->message);
      } else {
        ADD_FAILURE() << "something for others than dispatch and watch: " << action.index();
      }
    }
    return found;
  }
  void HandIn(std::uint32_t rank, std::optional<Policy> policy = std::nullopt) {
    plans_.OnLayoutSet(kJob, rank, Shared(LayoutOf(Elements(kTensorsHere))), policy);
  }
  service::PlanMade Answer(const MakePlan& request) {
    return {.token = request.token, .plan = Made(request)};
  }
  // Makes and offers the plan that is wanted, and answers for dispatch.
  void TakeOver(std::uint64_t iteration) {
    const auto requested = Told<MakePlan>();
    ASSERT_EQ(requested.size(), 1U);
    plans_.Handle(Answer(requested[0]));
    const auto offers = Told<PlanOffer>();
    ASSERT_EQ(offers.size(), 1U);
    EXPECT_EQ(offers[0].job, kJob);
    plans_.Handle(
        service::PlanAck{.job = kJob, .version = offers[0].plan->version, .iteration = iteration});
  }
  void Tell(std::uint64_t iteration, double longest_s = 0) {
    service::TimesSeen seen{.job = kJob, .times = {}, .costs = {}};
    const service::NodeSeen node = SeenAt(iteration, kTensorsHere, 0.01, 0.005, {});
    seen.times = node.times;
    if (longest_s != 0) seen.times.forward_s[0] = longest_s;
    seen.costs = {{.startup_s = 1e-4, .s_per_byte = 1e-9}};
    plans_.Handle(seen);
  }

  std::uint64_t numbers_ = 40;
  // Its lanes and the rest are of jobs of several nodes.
  service::JobDirectory directory_;
  Follower plans_{{.node_name = "a",
                   .lanes = {1, 2},
                   .nccl_lanes = 1,
                   .hash_salt = 1,
                   .policy = Policy::kExact,
                   .next_number = [this] { return ++numbers_; }},
                  directory_};
};

// A leader on another node would end the connection for them.
TEST_F(LedHereTest, BeginsWithTheClassOfSendsThatItsFirstRankAskedFor) {
  for (const std::uint32_t rank : {1U, 0U}) {
    service::SessionIdentity asking = Rank(rank, JobId{9});
    asking.sends_class = SendsClass::kSame;
    plans_.OnRankAttached(asking);
    const auto told = Told<SteerJob>();
    ASSERT_EQ(told.size(), rank == 0 ? 1U : 0U) << "what other ranks say does not count";
    if (rank != 0) continue;
    EXPECT_EQ(told[0].job, JobId{9});
    EXPECT_EQ(told[0].steering.kind, SteeringKind::kSends);
    EXPECT_EQ(told[0].steering.value, static_cast<std::uint64_t>(SendsClass::kSame));
    EXPECT_EQ(told[0].steering.uid, 1000U);
  }
}

TEST_F(LedHereTest, BeginsWithTheBoundOfSlowRanksThatItsFirstRankAskedFor) {
  const service::SlowBound bound{.seconds = 30, .least_world = 2};
  for (const std::uint32_t rank : {1U, 0U}) {
    service::SessionIdentity asking = Rank(rank, JobId{9});
    asking.slow_bound = bound;
    plans_.OnRankAttached(asking);
    const auto told = Told<SteerJob>();
    ASSERT_EQ(told.size(), rank == 0 ? 1U : 0U) << "what other ranks say does not count";
    if (rank != 0) continue;
    EXPECT_EQ(told[0].steering.kind, SteeringKind::kSlowBound);
    EXPECT_EQ(service::SlowBound::Of(told[0].steering.value), bound);
  }
}

TEST_F(LedHereTest, TimesThatNobodyCanHaveSeenStayOnTheirNode) {
  HandIn(1);
  HandIn(0);
  TakeOver(0);
  plans_.DrainActions();
  for (const double seconds : {-1.0, 1e10, std::nan("")}) {
    Tell(3, seconds);
    EXPECT_TRUE(plans_.DrainActions().empty()) << seconds;
  }
  Tell(3);
  EXPECT_FALSE(plans_.DrainActions().empty());
}

TEST_F(LedHereTest, PlansFromTheLastLayoutToThePlanInForce) {
  HandIn(1);
  EXPECT_TRUE(plans_.DrainActions().empty());
  HandIn(0);
  TakeOver(0);
  auto actions = plans_.DrainActions();
  ASSERT_EQ(actions.size(), 2U);
  const auto change = std::get<PlanSwitch>(std::get<service::ToDispatch>(actions[0]).message);
  EXPECT_EQ(change.job, kJob);
  EXPECT_EQ(change.from_iteration, 1U);
  EXPECT_TEXT(std::get<Event>(std::get<service::ToWatch>(actions[1]).message).text, "job train5",
              "plan 1", "iteration 1");
  Tell(3);
  TakeOver(4);
  actions = plans_.DrainActions();
  ASSERT_EQ(actions.size(), 2U);
  EXPECT_EQ(std::get<PlanSwitch>(std::get<service::ToDispatch>(actions[0]).message).from_iteration,
            4 + service::kSwitchSlack);
  const auto text = std::get<Event>(std::get<service::ToWatch>(actions[1]).message).text;
  EXPECT_TEXT(text, "job train5", "plan 2");
  EXPECT_NE(text.find("; was 1000 ms"), std::string::npos) << text;
}

TEST_F(LedHereTest, KnowsAJobByNameWhileItHasRanks) {
  ASSERT_TRUE(plans_.FindJob("train5").has_value());
  EXPECT_EQ(plans_.FindJob("train5")->id, kJob);
  EXPECT_EQ(plans_.FindJob("train5")->uid, 1000U);
  EXPECT_FALSE(plans_.FindJob("train6").has_value());
  plans_.OnRankEnded(kJob, 0);
  EXPECT_EQ(plans_.jobs_count(), 1U);
  plans_.OnRankEnded(kJob, 1);
  EXPECT_EQ(plans_.jobs_count(), 0U);
  EXPECT_FALSE(plans_.FindJob("train5").has_value());
}

TEST_F(LedHereTest, MakesPlansByThePolicyThatAPersonWants) {
  plans_.SetPolicy(kJob, Policy::kMgWfbp);
  HandIn(0);
  HandIn(1);
  TakeOver(0);
  plans_.DrainActions();
  Tell(3);
  EXPECT_EQ(Told<MakePlan>().at(0).policy, Policy::kMgWfbp);
}

TEST_F(LedHereTest, RefusesALayoutThatIsNotTheOtherRanks) {
  HandIn(0);
  EXPECT_EQ(plans_.CheckLayout(kJob, 1, LayoutOf({3}), std::nullopt).code(), Code::kMismatch);
  EXPECT_TRUE(plans_.CheckLayout(kJob, 1, LayoutOf(Elements(kTensorsHere)), std::nullopt).ok());
  EXPECT_TRUE(plans_.CheckLayout(JobId{9}, 1, LayoutOf({3}), std::nullopt).ok());
}

TEST_F(LedHereTest, AFirstPlanThatCannotBeMadeFailsTheJob) {
  HandIn(0);
  HandIn(1);
  const MakePlan request = Told<MakePlan>().at(0);
  plans_.Handle(service::PlanMade{.token = request.token, .plan = Error(Code::kInternal, "a bug")});
  const auto failures = Told<JobFailed>();
  ASSERT_EQ(failures.size(), 1U);
  EXPECT_EQ(failures[0].job, kJob);
  EXPECT_TEXT(failures[0].cause);
}

TEST_F(LedHereTest, ARankThatGoesWhileTheFirstPlanIsMadeLeavesItToTheOthers) {
  HandIn(0);
  HandIn(1);
  plans_.OnRankEnded(kJob, 0);
  TakeOver(0);
  EXPECT_EQ(Told<PlanSwitch>().size(), 1U);
  Tell(3);
  EXPECT_TRUE(plans_.DrainActions().empty()) << "and begins no other";
}

TEST_F(LedHereTest, IgnoresWhatIsSaidOfJobsThatAreOver) {
  HandIn(0);
  HandIn(1);
  const MakePlan request = Told<MakePlan>().at(0);
  plans_.OnRankEnded(kJob, 0);
  plans_.OnRankEnded(kJob, 1);
  plans_.OnRankEnded(kJob, 1);
  plans_.Handle(Answer(request));
  Tell(3);
  plans_.Handle(service::PlanAck{.job = kJob, .version = 1, .iteration = 0});
  plans_.SetPolicy(kJob, Policy::kBsp);
  HandIn(0);
  EXPECT_TRUE(plans_.DrainActions().empty());
}

TEST_F(LedHereTest, APlanIsOfTheJobWhoseNumberItHas) {
  HandIn(0);
  HandIn(1);
  MakePlan request = Told<MakePlan>().at(0);
  EXPECT_EQ(request.token, 41U);
  service::PlanMade made = Answer(request);
  made.token = ++numbers_;  // of another leader's job
  plans_.Handle(made);
  EXPECT_TRUE(plans_.DrainActions().empty());
  plans_.Handle(Answer(request));
  EXPECT_EQ(Told<PlanOffer>().size(), 1U);
}

TEST_F(LedHereTest, ARankThatLeavesBeforeTheLastOneComesEndsNothing) {
  constexpr JobId kOther{6};
  plans_.OnRankAttached(Rank(0, kOther));
  plans_.OnRankEnded(kOther, 0);
  EXPECT_TRUE(plans_.DrainActions().empty());
  EXPECT_EQ(plans_.jobs_count(), 1U) << "its last rank has gone";
  constexpr JobId kThird{7};
  auto rank = Rank(0, kThird);
  rank.world_size = 3;
  plans_.OnRankAttached(rank);
  rank.rank = 1;
  plans_.OnRankAttached(rank);
  plans_.OnRankEnded(kThird, 0);
  rank.rank = 2;
  plans_.OnRankAttached(rank);
  EXPECT_TRUE(plans_.DrainActions().empty());
  EXPECT_EQ(plans_.NextDeadline(), kNever) << "all three have come";
  plans_.OnRankEnded(kThird, 1);
  plans_.OnRankEnded(kThird, 2);
  EXPECT_TRUE(plans_.DrainActions().empty());
  EXPECT_EQ(plans_.jobs_count(), 1U);
}

TEST_F(LedHereTest, WhatPeopleAskGoesToDispatchAtOnce) {
  constexpr JobId kOther{6};
  plans_.OnRankAttached(Rank(0, kOther));
  plans_.Steer(kOther, {.kind = SteeringKind::kWeight, .value = 3, .uid = 1000});
  const auto steered = Told<SteerJob>();
  ASSERT_EQ(steered.size(), 1U);
  EXPECT_EQ(steered[0].job, kOther);
  EXPECT_EQ(steered[0].steering.value, 3U);
  plans_.Steer(kJob, {.kind = SteeringKind::kCancel, .value = 0, .uid = 1000});
  const auto failed = Told<JobFailed>();
  ASSERT_EQ(failed.size(), 1U);
  EXPECT_EQ(failed[0].job, kJob);
  EXPECT_EQ(failed[0].code, Code::kCancelled);
  EXPECT_TEXT(failed[0].cause, "uid 1000");
}

TEST_F(LedHereTest, ARankThatIsRefusedAJobOfThatNameElsewhereEndsNothing) {
  service::JobDirectory directory;
  Follower lonely{{.node_name = "a", .lanes = {}}, directory};
  lonely.OnRankAttached(Rank(0));
  service::RankRefused refused;
  refused.job = "train5";
  refused.uid = 1000;
  refused.code = Code::kMismatch;
  lonely.Handle(refused);
  EXPECT_TRUE(lonely.DrainActions().empty());
  EXPECT_TRUE(lonely.FindJob("train5").has_value());
}

// Whatever the environment of its ranks says: nobody sums for it.
TEST_F(LedHereTest, NeedsNoServer) {
  service::JobDirectory directory;
  Follower lonely{{.node_name = "a", .lanes = {}}, directory};
  auto rank = Rank(0);
  rank.world_size = 1;
  rank.architecture = Architecture::kParameterServer;
  lonely.OnRankAttached(rank);
  lonely.DrainActions();
  EXPECT_EQ(lonely.NextDeadline(), kNever);
}

TEST_F(LedHereTest, AJobWithAllOfItsRanksHasNoDeadline) {
  EXPECT_EQ(plans_.NextDeadline(), kNever);
}

TEST_F(LedHereTest, AJobSomeOfWhoseRanksNeverComeEndsWithTheirNumbers) {
  constexpr JobId kOther{6};
  auto rank = Rank(1, kOther);
  rank.attached_ns = 5 * kSecond;
  plans_.OnRankAttached(rank);
  EXPECT_TRUE(plans_.DrainActions().empty());
  const TimeNs due = 5 * kSecond + service::kFormingDefault;
  EXPECT_EQ(plans_.NextDeadline(), due);
  plans_.Expire(due - 1);
  EXPECT_TRUE(Told<JobFailed>().empty());
  plans_.Expire(due);
  const auto failed = Told<JobFailed>();
  ASSERT_EQ(failed.size(), 1U);
  EXPECT_EQ(failed[0].job, kOther);
  EXPECT_EQ(failed[0].code, Code::kTimeout);
  EXPECT_NE(failed[0].cause.find("1 of 2 ranks"), std::string::npos) << failed[0].cause;
  EXPECT_TEXT(failed[0].cause, "rank 0");
  EXPECT_EQ(plans_.NextDeadline(), kNever);
}

TEST_F(LedHereTest, AStandstillOfTheServiceIsNotHeldAgainstAJob) {
  plans_.OnRankAttached(Rank(0, JobId{6}));
  plans_.Expire(3600 * kSecond);
  EXPECT_TRUE(Told<JobFailed>().empty());
  plans_.Expire(plans_.NextDeadline());
  EXPECT_EQ(Told<JobFailed>().size(), 1U);
}

}  // namespace
}  // namespace headrace::support
