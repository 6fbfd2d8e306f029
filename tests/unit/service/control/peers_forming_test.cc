// Services that meet over TCP: a job of several nodes forms, or says what it waits for.
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "tests/unit/service/control/cluster.h"

namespace headrace::support {
namespace {

using service::JobFailed;
using service::JobFormed;
using service::JobForming;

class PeersForming : public testing::Test {
 protected:
  // The event loop's destructors may throw, a test's may not.
  ~PeersForming() noexcept override {}

  AttachedRank Attach(ControlStand& stand, std::uint32_t rank, std::uint32_t world_size = 2) {
    return AttachTo(
        loop_, stand,
        {.job = "train", .rank = rank, .world_size = world_size, .rendezvous = a_.meeting()});
  }

  CallerLoop loop_;
  ControlStand a_{NodeNamed("a")};
};

TEST_F(PeersForming, TwoServicesFormAJobWithTheSameRoster) {
  ControlStand b(NodeNamed("b"));
  const AttachedRank first = Attach(b, 1);
  ASSERT_EQ(first.attached.code, Code::kOk) << first.attached.text;
  const AttachedRank second = Attach(a_, 0);
  ASSERT_EQ(second.attached.code, Code::kOk) << second.attached.text;
  ASSERT_TRUE(a_.dispatch().WaitFor<JobFormed>(1)) << Last<JobForming>(a_.dispatch()).waits_for;
  ASSERT_TRUE(b.dispatch().WaitFor<JobFormed>(1)) << Last<JobForming>(b.dispatch()).waits_for;
  const JobFormed on_a = Last<JobFormed>(a_.dispatch());
  const JobFormed on_b = Last<JobFormed>(b.dispatch());
  EXPECT_EQ(on_a.job.value, second.attached.job_id);
  EXPECT_EQ(on_b.job.value, first.attached.job_id);
  ASSERT_EQ(on_a.nodes.nodes.size(), 2U);
  EXPECT_EQ(on_a.nodes.nodes[0].name, "a");
  EXPECT_EQ(on_a.nodes.nodes[1].name, "b");
  EXPECT_EQ(on_b.nodes.nodes[1].ranks, std::vector<std::uint32_t>{1});
  EXPECT_EQ(on_a.nodes.self, 0U);
  EXPECT_EQ(on_b.nodes.self, 1U);
  EXPECT_EQ(on_a.nodes.costs, on_b.nodes.costs);
}

}  // namespace
}  // namespace headrace::support
