// What is lost between services is named on all of them, and harms nobody else.
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <string>

#include "tests/support/expect_text.h"
#include "tests/unit/service/peers/peer_caller.h"
#include "tests/unit/service/rpc/cluster.h"

namespace headrace::support {
namespace {

std::string StoppingText(const std::string& node) {
  return "the service on node " + node +
         " is stopping: ranks with HEADRACE_RECONNECT wait for it, others start again when it is "
         "back";
}

using service::CloseGroup;
using service::JobFailed;
using service::JobFormed;
using service::JobForming;
using service::RankLeft;

constexpr TimeNs kQuickDetection = 300 * kMillisecond;

StandOptions Quick(const std::string& name) {
  StandOptions options = NodeNamed(name);
  options.peers.detection_ns = kQuickDetection;
  return options;
}

class PeersLoss : public testing::Test {
 protected:
  PeersLoss() : b_(std::make_unique<ControlStand>(Quick("b"))) {
    rank_a_ = Attach(a_, 0);
    rank_b_ = Attach(*b_, 1);
  }
  // The event loop's destructors may throw, a test's may not.
  ~PeersLoss() noexcept override {}

  void SetUp() override {
    ASSERT_EQ(rank_a_.attached.code, Code::kOk) << rank_a_.attached.text;
    ASSERT_TRUE(a_.dispatch().WaitFor<JobFormed>(1));
    ASSERT_TRUE(b_->dispatch().WaitFor<JobFormed>(1));
  }
  AttachedRank Attach(ControlStand& stand, std::uint32_t rank, const std::string& job = "train") {
    return AttachTo(loop_, stand,
                    {.job = job, .rank = rank, .world_size = 2, .rendezvous = a_.meeting()});
  }
  // The job has failed there, with this cause, and its links are closed.
  void ExpectFailed(ControlStand& stand, const std::string& cause) {
    ASSERT_TRUE(stand.dispatch().WaitFor<JobFailed>(1)) << cause;
    EXPECT_EQ(Last<JobFailed>(stand.dispatch()).cause, cause);
    ASSERT_TRUE(stand.lane().WaitFor<CloseGroup>(1)) << cause;
    EXPECT_EQ(Last<CloseGroup>(stand.lane()).cause, cause);
  }
  // Tells control what dispatch would.
  template <typename Message>
  void FromDispatch(ControlStand& stand, Message message) {
    ASSERT_TRUE(stand.peers().Send(message));
  }
  JobId JobOf(const AttachedRank& rank) { return JobId{rank.attached.job_id}; }

  const std::string pid_ = "pid " + std::to_string(::getpid());
  CallerLoop loop_;
  ControlStand a_{Quick("a")};
  std::unique_ptr<ControlStand> b_;
  AttachedRank rank_a_;
  AttachedRank rank_b_;
};

TEST_F(PeersLoss, ALostRankIsNamedOnTheOtherNodeWithinASecond) {
  const TimeNs lost_ns = MonotonicNow();
  rank_b_ = {};
  ExpectFailed(a_, "rank 1 (" + pid_ + ") on node b closed its connection");
  EXPECT_LT(MonotonicNow() - lost_ns, kSecond);
  ExpectFailed(*b_, "rank 1 (" + pid_ + ") on node b closed its connection");
}

TEST_F(PeersLoss, WhatDispatchFindsBrokenIsToldEverywhere) {
  FromDispatch(*b_, service::JobFailed{
                        .job = JobOf(rank_b_), .code = Code::kTimeout, .cause = "took too long"});
  ExpectFailed(a_, "took too long (on node b)");
  ExpectFailed(*b_, "took too long (on node b)");
}

TEST_F(PeersLoss, AServiceThatStopsSaysSo) {
  b_->Signal(SIGTERM);
  ASSERT_EQ(b_->WaitForExit(), 0);
  ExpectFailed(a_, StoppingText("b"));
}

TEST_F(PeersLoss, TheLeaderThatStopsSaysSo) {
  a_.Signal(SIGTERM);
  ASSERT_EQ(a_.WaitForExit(), 0);
  ExpectFailed(*b_, StoppingText("a"));
}

TEST_F(PeersLoss, ANodeThatFallsSilentIsNamedAfterTheDetectionTime) {
  const TimeNs silent_ns = MonotonicNow();
  b_->Freeze();
  ExpectFailed(a_, "node b does not answer for 0.3 s");
  EXPECT_GE(MonotonicNow() - silent_ns, kQuickDetection - kQuickDetection / 6);
  EXPECT_LT(MonotonicNow() - silent_ns, kQuickDetection + kSecond);
  b_->Thaw();
  ExpectFailed(*b_, "the connection to node a broke: its service exited, was killed or closed it");
}

TEST_F(PeersLoss, ALeaderThatFallsSilentIsNamedAfterTheDetectionTime) {
  a_.Freeze();
  ExpectFailed(*b_, "node a does not answer for 0.3 s");
  a_.Thaw();
  ASSERT_TRUE(a_.dispatch().WaitFor<JobFailed>(1));
}

TEST_F(PeersLoss, WhateverKeepsRpcBusyDelaysNoHeartbeat) {
  b_->FreezeRpc();
  a_.FreezeRpc();
  ::usleep(4 * kQuickDetection / kMicrosecond);
  EXPECT_EQ(a_.dispatch().Count<JobFailed>(), 0U);
  EXPECT_EQ(b_->dispatch().Count<JobFailed>(), 0U);
  b_->Thaw();
  a_.Thaw();
}

TEST_F(PeersLoss, NothingIsLostWhileAllAnswer) {
  ::usleep(4 * kQuickDetection / kMicrosecond);
  EXPECT_EQ(a_.dispatch().Count<JobFailed>(), 0U);
  EXPECT_EQ(b_->dispatch().Count<JobFailed>(), 0U);
}

TEST_F(PeersLoss, LinksStayUntilAllNodesHaveForgottenTheJob) {
  FromDispatch(*b_, service::RankLeft{.job = JobOf(rank_b_), .rank = 1, .posted = 42});
  ASSERT_TRUE(a_.dispatch().WaitFor<RankLeft>(1));
  const RankLeft left = Last<RankLeft>(a_.dispatch());
  EXPECT_EQ(left.rank, 1U);
  EXPECT_EQ(left.posted, 42U);
  EXPECT_VARYING_TEXT(left.cause, "rank 1", pid_, "node b");
  FromDispatch(*b_, service::JobEnded{JobOf(rank_b_)});
  FromDispatch(a_, service::RankLeft{.job = JobOf(rank_a_), .rank = 0, .posted = 42});
  ASSERT_TRUE(b_->dispatch().WaitFor<service::Ping>(0));
  EXPECT_EQ(b_->lane().Count<CloseGroup>(), 0U);
  FromDispatch(a_, service::JobEnded{JobOf(rank_a_)});
  ASSERT_TRUE(a_.lane().WaitFor<CloseGroup>(1));
  ASSERT_TRUE(b_->lane().WaitFor<CloseGroup>(1));
  EXPECT_TEXT(Last<CloseGroup>(b_->lane()).cause);
  EXPECT_EQ(a_.dispatch().Count<JobFailed>() + b_->dispatch().Count<JobFailed>(), 0U);
}

TEST_F(PeersLoss, AfterAFailureTheSameNameBeginsANewEpoch) {
  rank_b_ = {};
  ASSERT_TRUE(a_.dispatch().WaitFor<JobFailed>(1));
  const AttachedRank early = Attach(a_, 1);
  EXPECT_EQ(early.attached.code, Code::kPeerLost) << "the old rank is there still";
  EXPECT_VARYING_TEXT(early.attached.text, "node b");
  const std::uint32_t old_job = rank_a_.attached.job_id;
  rank_a_ = {};
  ASSERT_TRUE(a_.dispatch().WaitFor<service::CloseSession>(1));
  FromDispatch(a_, service::JobEnded{JobId{old_job}});
  const AttachedRank again_b = Attach(*b_, 1);
  const AttachedRank again_a = Attach(a_, 0);
  ASSERT_TRUE(a_.dispatch().WaitFor<JobFormed>(2)) << Last<JobForming>(a_.dispatch()).waits_for;
  ASSERT_TRUE(b_->dispatch().WaitFor<JobFormed>(2));
  EXPECT_EQ(Last<JobFormed>(a_.dispatch()).nodes.epoch, 2U);
  EXPECT_EQ(Last<JobFormed>(b_->dispatch()).nodes.epoch, 2U);
  EXPECT_EQ(Last<JobFormed>(a_.dispatch()).job.value, again_a.attached.job_id);
}

TEST_F(PeersLoss, OneJobFailsAndTheOtherGoesOn) {
  const AttachedRank other_a = Attach(a_, 0, "other");
  AttachedRank other_b = Attach(*b_, 1, "other");
  ASSERT_TRUE(a_.dispatch().WaitFor<JobFormed>(2));
  ASSERT_TRUE(b_->dispatch().WaitFor<JobFormed>(2));
  rank_b_ = {};
  ASSERT_TRUE(a_.dispatch().WaitFor<JobFailed>(1));
  EXPECT_EQ(Last<JobFailed>(a_.dispatch()).job, JobOf(rank_a_));
  // The connection still carries the other one.
  FromDispatch(*b_, service::RankLeft{.job = JobOf(other_b), .rank = 1, .posted = 1});
  ASSERT_TRUE(a_.dispatch().WaitFor<RankLeft>(1));
  EXPECT_EQ(Last<RankLeft>(a_.dispatch()).job, JobOf(other_a));
  EXPECT_EQ(a_.dispatch().Count<JobFailed>(), 1U);
}

// A node whose service is killed, or whose answers get lost: played by hand, to end as it must.
class PeersLossByHand : public testing::Test {
 protected:
  PeersLossByHand() {
    rank_a_ = AttachTo(loop_, a_,
                       {.job = "train", .rank = 0, .world_size = 2, .rendezvous = a_.meeting()});
    c_ = std::make_unique<PeerCaller>(loop_, a_.peer_port());
    EXPECT_EQ(c_->Hello({.node = "c", .addresses = {"C0"}}).code, Code::kOk);
    EXPECT_TRUE(c_->SendMessages(
        {service::JoinJob{.job = 5, .name = "train", .world_size = 2, .uid = ::getuid()},
         service::ReportRankAttached{.job = 5, .rank = 1, .pid = 77}}));
  }
  ~PeersLossByHand() noexcept override {}

  template <typename Answer>
  void AnswerStep(const Answer& answer) {
    EXPECT_TRUE(c_->SendMessages({answer}));
  }
  void Form() {
    ASSERT_TRUE(a_.lane().WaitFor<service::OpenGroup>(1));
    AnswerStep(service::JobOpened{.job = 5});
    ASSERT_TRUE(a_.lane().WaitFor<service::MeasureGroup>(1));
    AnswerStep(service::JobMeasured{.job = 5, .costs = {{1e-5, 1e-9}}});
    ASSERT_TRUE(a_.dispatch().WaitFor<JobFormed>(1));
  }
  void ExpectFailed(const std::string& cause) {
    ASSERT_TRUE(a_.dispatch().WaitFor<JobFailed>(1));
    EXPECT_EQ(Last<JobFailed>(a_.dispatch()).cause, cause);
    EXPECT_TRUE(a_.lane().WaitFor<CloseGroup>(1));
  }

  CallerLoop loop_;
  ControlStand a_{Quick("a")};
  AttachedRank rank_a_;
  std::unique_ptr<PeerCaller> c_;
};

TEST_F(PeersLossByHand, ABrokenConnectionIsALossAtOnce) {
  Form();
  const TimeNs broken_ns = MonotonicNow();
  c_.reset();
  ExpectFailed("the connection to node c broke: its service exited, was killed or closed it");
  EXPECT_LT(MonotonicNow() - broken_ns, kQuickDetection);
}

TEST_F(PeersLossByHand, ANodeWhosePingsComeButWhoseAnswersDoNotIsLost) {
  Form();
  c_->StopAnswering();
  // Its own questions are answered all the time: one direction is fine.
  for (int i = 0; i < 100 && a_.dispatch().Count<JobFailed>() == 0; ++i) {
    loop_.Wait(loop_.io.provider->getTimer().afterDelay(20 * kj::MILLISECONDS));
    if (!c_->Ping()) break;
  }
  ExpectFailed("node c does not answer for 0.3 s");
}

TEST_F(PeersLossByHand, ALossWhileTheLinksAreOpenedEndsTheJob) {
  ASSERT_TRUE(a_.lane().WaitFor<service::OpenGroup>(1));
  c_.reset();
  ExpectFailed("the connection to node c broke: its service exited, was killed or closed it");
}

TEST_F(PeersLossByHand, ANodeThatCannotOpenItsLinksIsNamed) {
  ASSERT_TRUE(a_.lane().WaitFor<service::OpenGroup>(1));
  AnswerStep(service::JobOpened{.job = 5, .code = Code::kExhausted, .cause = "no memory"});
  ExpectFailed("node c cannot open its links: no memory");
}

}  // namespace
}  // namespace headrace::support
