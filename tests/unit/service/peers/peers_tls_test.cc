// Services that meet over mutual TLS, and those that may not.
#include <gtest/gtest.h>

#include "tests/support/expect_text.h"
#include "tests/unit/service/peers/certified_nodes.h"
#include "tests/unit/service/rpc/cluster.h"

namespace headrace::support {
namespace {

using service::JobFailed;
using service::JobFormed;
using service::JobForming;

class PeersTls : public CertifiedNodes {
 protected:
  ~PeersTls() noexcept override = default;

  AttachedRank Attach(ControlStand& stand, ControlStand& leader, std::uint32_t rank) {
    return AttachTo(loop_, stand, {.rank = rank, .rendezvous = leader.meeting()});
  }
  void ExpectRefused(ControlStand& stand, ControlStand& leader) {
    const AttachedRank rank = Attach(stand, leader, 1);
    ASSERT_TRUE(stand.dispatch().WaitFor<JobFailed>(1))
        << Last<JobForming>(stand.dispatch()).waits_for;
    const JobFailed failed = Last<JobFailed>(stand.dispatch());
    EXPECT_EQ(failed.code, Code::kPermissionDenied);
    EXPECT_VARYING_TEXT(failed.cause);
  }

  CallerLoop loop_;
};

TEST_F(PeersTls, NodesOfOneAuthorityFormAJob) {
  ControlStand a(Node("a"));
  ControlStand b(Node("b"));
  const AttachedRank first = Attach(a, a, 0);
  const AttachedRank second = Attach(b, a, 1);
  EXPECT_TRUE(a.dispatch().WaitFor<JobFormed>(1)) << Last<JobForming>(a.dispatch()).waits_for;
  EXPECT_TRUE(b.dispatch().WaitFor<JobFormed>(1)) << Last<JobForming>(b.dispatch()).waits_for;
}

TEST_F(PeersTls, ANodeOfAnotherAuthorityIsRefused) {
  MakeAuthority("other");
  ControlStand a(Node("a"));
  ControlStand b(Node("b", "other"));
  ExpectRefused(b, a);
}

TEST_F(PeersTls, ANodeWithoutACertificateIsRefused) {
  ControlStand a(Node("a"));
  ControlStand b(NodeNamed("b"));
  ExpectRefused(b, a);
}

}  // namespace
}  // namespace headrace::support
