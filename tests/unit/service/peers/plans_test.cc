// From the layouts of all ranks to a plan in force, over real sockets, and the request for another.
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "ipc/sealed_memory.h"
#include "tests/support/expect_text.h"
#include "tests/unit/service/rpc/cluster.h"

namespace headrace::support {
namespace {

using service::JobFailed;
using service::MakePlan;
using service::PlanOffer;
using service::PlanSwitch;

constexpr std::uint64_t kSize = 4 * ipc::kPageSize;

class PlansTest : public testing::Test {
 protected:
  // The event loop's destructors may throw, a test's may not.
  ~PlansTest() noexcept override {}

  AttachedRank Attach(ControlStand& stand, std::uint32_t rank, const std::string& rendezvous) {
    AttachedRank attached = AttachTo(loop_, stand, {.rank = rank, .rendezvous = rendezvous});
    EXPECT_EQ(attached.attached.code, Code::kOk) << attached.attached.text;
    return attached;
  }
  Answered HandIn(AttachedRank& rank, std::uint64_t count = 64, const std::string& policy = "") {
    auto& session = rank.attached.session;
    EXPECT_EQ(rank.caller->RegisterSegment(session, memory_.fd.get(), kSize).code, Code::kOk);
    std::vector<service::Tensor> tensors;
    for (std::uint64_t i = 0; i < 4; ++i) {
      tensors.push_back({.name = "w",
                         .segment = {},
                         .offset = 4 * count * i,
                         .count = count,
                         .dtype = DType::kFloat32});
    }
    EXPECT_EQ(rank.caller->RegisterTensors(session, tensors).code, Code::kOk);
    return rank.caller->SetLayout(session, {.first = 0, .count = 4, .policy = policy});
  }
  void Tell(ControlStand& stand, std::uint32_t job) {
    service::TimesSeen seen{.job = JobId{job}, .times = {}, .costs = {}};
    seen.times = {.iteration = 3,
                  .release_s = {4e-3, 3e-3, 2e-3, 1e-3},
                  .forward_s = {1e-3, 1e-3, 1e-3, 1e-3},
                  .iteration_s = 1e-2};
    ASSERT_TRUE(stand.peers().Send(std::move(seen)));
  }

  CallerLoop loop_;
  ipc::SealedMemory memory_ = ipc::CreateSealedMemory("segment", kSize).value();
  ControlStand a_{NodeNamed("a")};
};

TEST_F(PlansTest, AJobOnOneNodeIsPlannedWithoutALeader) {
  AttachedRank first = Attach(a_, 0, "");
  AttachedRank second = Attach(a_, 1, "");
  ASSERT_EQ(HandIn(first).code, Code::kOk);
  EXPECT_EQ(a_.watch().Count<MakePlan>(), 0U);
  ASSERT_EQ(HandIn(second).code, Code::kOk);
  ASSERT_TRUE(a_.dispatch().WaitFor<PlanSwitch>(1));
  EXPECT_EQ(Last<PlanOffer>(a_.dispatch()).plan->policy, plan::Policy::kWfbp);
  EXPECT_EQ(Last<PlanSwitch>(a_.dispatch()).from_iteration, 1U);
  Tell(a_, first.attached.job_id);
  ASSERT_TRUE(a_.dispatch().WaitFor<PlanSwitch>(2));
  EXPECT_EQ(Last<PlanOffer>(a_.dispatch()).plan->policy, plan::Policy::kAuto);
  EXPECT_EQ(Last<PlanSwitch>(a_.dispatch()).version, 2U);
}

TEST_F(PlansTest, NodesGetOnePlanOverTheNetwork) {
  ControlStand b(NodeNamed("b"));
  AttachedRank first = Attach(a_, 0, a_.meeting());
  AttachedRank second = Attach(b, 1, a_.meeting());
  ASSERT_EQ(HandIn(second, 64, "mg-wfbp").code, Code::kOk);
  ASSERT_EQ(HandIn(first).code, Code::kOk);
  ASSERT_TRUE(a_.dispatch().WaitFor<PlanSwitch>(1)) << Last<JobFailed>(a_.dispatch()).cause;
  ASSERT_TRUE(b.dispatch().WaitFor<PlanSwitch>(1)) << Last<JobFailed>(b.dispatch()).cause;
  const PlanOffer on_a = Last<PlanOffer>(a_.dispatch());
  const PlanOffer on_b = Last<PlanOffer>(b.dispatch());
  EXPECT_EQ(*on_a.plan, *on_b.plan);
  EXPECT_EQ(on_a.hash, on_b.hash);
  EXPECT_EQ(on_b.job.value, second.attached.job_id);
  EXPECT_EQ(b.watch().Count<MakePlan>(), 0U) << "the leader makes plans";
  Tell(a_, first.attached.job_id);
  Tell(b, second.attached.job_id);
  ASSERT_TRUE(a_.dispatch().WaitFor<PlanSwitch>(2));
  ASSERT_TRUE(b.dispatch().WaitFor<PlanSwitch>(2));
  EXPECT_EQ(Last<PlanOffer>(b.dispatch()).plan->policy, plan::Policy::kMgWfbp);
  EXPECT_EQ(b.dispatch().Count<JobFailed>() + a_.dispatch().Count<JobFailed>(), 0U);
}

TEST_F(PlansTest, LayoutsThatDifferBetweenNodesFailTheJob) {
  ControlStand b(NodeNamed("b"));
  AttachedRank first = Attach(a_, 0, a_.meeting());
  AttachedRank second = Attach(b, 1, a_.meeting());
  ASSERT_EQ(HandIn(first, 64).code, Code::kOk);
  ASSERT_EQ(HandIn(second, 65).code, Code::kOk);
  ASSERT_TRUE(a_.dispatch().WaitFor<JobFailed>(1));
  ASSERT_TRUE(b.dispatch().WaitFor<JobFailed>(1));
  EXPECT_EQ(Last<JobFailed>(a_.dispatch()).code, Code::kMismatch);
  // Whichever node's came first stands first.
  const std::string cause = Last<JobFailed>(b.dispatch()).cause;
  for (const char* part : {"rank 0 on node a", "rank 1 on node b", "tensor 0", "64", "65"}) {
    EXPECT_NE(cause.find(part), std::string::npos) << cause;
  }
}

TEST_F(PlansTest, LayoutsThatDifferOnOneNodeFailTheJobOnTheOthersToo) {
  ControlStand b(NodeNamed("b"));
  const auto attach = [this](ControlStand& stand, std::uint32_t rank) {
    return AttachTo(loop_, stand, {.rank = rank, .world_size = 3, .rendezvous = a_.meeting()});
  };
  AttachedRank first = attach(b, 0);
  AttachedRank second = attach(b, 1);
  const AttachedRank third = attach(a_, 2);
  ASSERT_TRUE(a_.dispatch().WaitFor<service::JobFormed>(1));
  ASSERT_EQ(HandIn(first, 64).code, Code::kOk);
  EXPECT_EQ(HandIn(second, 65).code, Code::kMismatch);
  ASSERT_TRUE(a_.dispatch().WaitFor<JobFailed>(1));
  EXPECT_VARYING_TEXT(Last<JobFailed>(a_.dispatch()).cause, "rank 0", "rank 1", "tensor 0");
}

TEST_F(PlansTest, APolicyCanBeSetWhereverTheJobHasRanks) {
  ControlStand b(NodeNamed("b"));
  AttachedRank first = Attach(a_, 0, a_.meeting());
  AttachedRank second = Attach(b, 1, a_.meeting());
  ASSERT_EQ(HandIn(first).code, Code::kOk);
  ASSERT_EQ(HandIn(second).code, Code::kOk);
  ASSERT_TRUE(b.dispatch().WaitFor<PlanSwitch>(1));
  Caller admin(loop_, b.socket_path());
  const Answered answer = admin.SetPolicy("train", "bytescheduler");
  EXPECT_EQ(answer.code, Code::kOk) << answer.text;
  // Told in order, on one connection.
  Tell(b, second.attached.job_id);
  Tell(a_, first.attached.job_id);
  ASSERT_TRUE(b.dispatch().WaitFor<PlanSwitch>(2));
  EXPECT_EQ(Last<PlanOffer>(b.dispatch()).plan->policy, plan::Policy::kByteScheduler);
}

TEST_F(PlansTest, APolicyIsSetForAJobOnOneNodeToo) {
  AttachedRank first = Attach(a_, 0, "");
  AttachedRank second = Attach(a_, 1, "");
  Caller admin(loop_, a_.socket_path());
  EXPECT_EQ(admin.SetPolicy("train", "bsp").code, Code::kOk) << "before there is a plan";
  ASSERT_EQ(HandIn(first, 64, "exact").code, Code::kOk);
  ASSERT_EQ(HandIn(second).code, Code::kOk);
  ASSERT_TRUE(a_.dispatch().WaitFor<PlanSwitch>(1));
  Tell(a_, first.attached.job_id);
  ASSERT_TRUE(a_.dispatch().WaitFor<PlanSwitch>(2));
  EXPECT_EQ(Last<PlanOffer>(a_.dispatch()).plan->policy, plan::Policy::kBsp);
}

TEST_F(PlansTest, RefusesPoliciesAndJobsThatThereAreNot) {
  const AttachedRank first = Attach(a_, 0, "");
  Caller admin(loop_, a_.socket_path());
  const Answered policy = admin.SetPolicy("train", "fast");
  EXPECT_EQ(policy.code, Code::kInvalidArgument);
  EXPECT_VARYING_TEXT(policy.text, "\"fast\"");
  EXPECT_EQ(admin.SetPolicy("train", "").code, Code::kInvalidArgument);
  const Answered job = admin.SetPolicy("tra\x1bin", "bsp");
  EXPECT_EQ(job.code, Code::kNotFound);
  EXPECT_VARYING_TEXT(job.text);
}

TEST_F(PlansTest, EndsWithTheRanksWhateverIsUnderWay) {
  ControlStand stand({.takes_plans = false});
  {
    AttachedRank first = Attach(stand, 0, "");
    AttachedRank second = Attach(stand, 1, "");
    ASSERT_EQ(HandIn(first).code, Code::kOk);
    ASSERT_EQ(HandIn(second).code, Code::kOk);
    ASSERT_TRUE(stand.dispatch().WaitFor<PlanOffer>(1));
  }
  ASSERT_TRUE(stand.dispatch().WaitFor<service::CloseSession>(2));
  const PlanOffer offer = Last<PlanOffer>(stand.dispatch());
  ASSERT_TRUE(stand.peers().Send(
      service::PlanAck{.job = offer.job, .version = offer.plan->version, .iteration = 0}));
  Caller admin(loop_, stand.socket_path());
  EXPECT_EQ(admin.SetPolicy("train", "bsp").code, Code::kNotFound);
  EXPECT_EQ(stand.dispatch().Count<PlanSwitch>(), 0U);
}

}  // namespace
}  // namespace headrace::support
