// Services that meet over mutual TLS, and those that may not.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <ctime>
#include <filesystem>
#include <string>

#include "client/cli/ctl/certs.h"
#include "tests/support/expect_text.h"
#include "tests/unit/service/rpc/cluster.h"

namespace headrace::support {
namespace {

using service::JobFailed;
using service::JobFormed;
using service::JobForming;

class PeersTls : public testing::Test {
 protected:
  PeersTls() : folder_(std::filesystem::temp_directory_path() / "headrace-peers-XXXXXX") {
    HR_CHECK(::mkdtemp(folder_.data()) != nullptr, folder_);
    MakeAuthority("ca");
  }
  ~PeersTls() noexcept override { std::filesystem::remove_all(folder_); }

  void MakeAuthority(const std::string& name) const {
    const auto made = ctl::MakeAuthority(
        {.out = folder_ + "/" + name, .days = 30, .now_unix_s = std::time(nullptr)});
    HR_CHECK(made.ok(), made.error().text());
  }
  StandOptions Node(const std::string& name, const std::string& authority = "ca") const {
    const auto made = ctl::MakeNodeCertificate({.name = name,
                                                .authority = folder_ + "/" + authority,
                                                .out = folder_ + "/" + authority + "-" + name,
                                                .hosts = {},
                                                .days = 30,
                                                .force = false,
                                                .now_unix_s = std::time(nullptr)});
    HR_CHECK(made.ok(), made.error().text());
    StandOptions options = NodeNamed(name);
    options.peers.tls_authority = made->authority;
    options.peers.tls_certificate = made->certificate;
    options.peers.tls_key = made->key;
    return options;
  }
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

  std::string folder_;
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
