// A node whose connection broke goes on over another one, and nobody else does in its place: played
// by hand, to say what no honest service says.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "service/peers/peer_channel.h"
#include "tests/unit/service/peers/peer_caller.h"
#include "tests/unit/service/rpc/cluster.h"

namespace headrace::support {
namespace {

using service::JobFailed;
using service::JobFormed;

constexpr TimeNs kResumeDetection = 6 * kSecond;
constexpr TimeNs kGrace = service::LinkGrace(kResumeDetection);  // 1.25 s

StandOptions Patient(const std::string& name) {
  StandOptions options = NodeNamed(name);
  options.peers.detection_ns = kResumeDetection;
  return options;
}

class PeersResume : public testing::Test {
 protected:
  PeersResume() {
    rank_a_ = AttachTo(loop_, a_,
                       {.job = "train", .rank = 0, .world_size = 2, .rendezvous = a_.meeting()});
  }
  ~PeersResume() noexcept override {}

  // The job runs on a and c, which says that it listens at `control`.
  void Form(const std::string& control = "") {
    hello_.control = control;
    c_ = std::make_unique<PeerCaller>(loop_, a_.peer_port());
    ASSERT_EQ(c_->Hello(hello_).code, Code::kOk);
    ASSERT_TRUE(c_->SendMessages(
        {service::JoinJob{.job = 5, .name = "train", .world_size = 2, .uid = ::getuid()},
         service::ReportRankAttached{.job = 5, .rank = 1, .pid = 77}}));
    ASSERT_TRUE(a_.lane().WaitFor<service::OpenGroup>(1));
    ASSERT_TRUE(c_->SendMessages({service::JobOpened{.job = 5}}));
    ASSERT_TRUE(a_.lane().WaitFor<service::MeasureGroup>(1));
    ASSERT_TRUE(c_->SendMessages({service::JobMeasured{.job = 5, .costs = {{1e-5, 1e-9}}}}));
    ASSERT_TRUE(a_.dispatch().WaitFor<JobFormed>(1));
  }
  // Breaks c's connection; what the next one says.
  PeerHelloCall Break() {
    PeerHelloCall next = hello_;
    next.channel = c_->Resuming();
    c_.reset();
    broke_ns_ = MonotonicNow();
    return next;
  }
  // Somebody connects with that hello.
  Answered Greet(const PeerHelloCall& hello) {
    c_ = std::make_unique<PeerCaller>(loop_, a_.peer_port());
    return c_->Hello(hello);
  }
  void Run(TimeNs time_ns) {
    loop_.Wait(loop_.io.provider->getTimer().afterDelay(time_ns * kj::NANOSECONDS));
  }
  std::size_t failed() { return a_.dispatch().Count<JobFailed>(); }
  // The channel is lost by then, and not before.
  void ExpectLost(TimeNs after_ns, TimeNs before_ns) {
    ASSERT_TRUE(a_.dispatch().WaitFor<JobFailed>(1));
    EXPECT_GE(MonotonicNow() - broke_ns_, after_ns);
    EXPECT_LT(MonotonicNow() - broke_ns_, before_ns);
    EXPECT_EQ(Last<JobFailed>(a_.dispatch()).cause,
              "the connection to node c broke: its service exited, was killed or closed it");
  }

  PeerHelloCall hello_{.node = "c", .instance = 3, .addresses = {"C0"}};
  CallerLoop loop_;
  ControlStand a_{Patient("a")};
  AttachedRank rank_a_;
  std::unique_ptr<PeerCaller> c_;
  TimeNs broke_ns_ = 0;
};

TEST_F(PeersResume, TheJobGoesOnOverAnotherConnection) {
  Form();
  ASSERT_EQ(Greet(Break()).code, Code::kOk);
  EXPECT_EQ(c_->received(), 4U);
  Run(2 * kGrace);
  EXPECT_EQ(failed(), 0U);
  // It is heard as before.
  ASSERT_TRUE(c_->SendMessages(
      {service::ReportJobFailed{.job = 5, .code = Code::kInternal, .cause = "x"}}));
  ASSERT_TRUE(a_.dispatch().WaitFor<JobFailed>(1));
  EXPECT_EQ(Last<JobFailed>(a_.dispatch()).cause, "x (on node c)");
}

TEST_F(PeersResume, WhatTheOtherSideDoesNotHaveIsSentAgain) {
  Form();
  // Some of what a has sent is not read yet.
  std::vector<service::PeerMessage> told = c_->WaitForMessages(0);
  const auto starts = [&told] {
    return std::ranges::count_if(told, [](const service::PeerMessage& each) {
      return std::holds_alternative<service::StartJob>(each);
    });
  };
  ASSERT_EQ(starts(), 0);
  PeerHelloCall next = Break();
  ASSERT_EQ(Greet(next).code, Code::kOk);
  Run(50 * kMillisecond);
  const auto& more = c_->WaitForMessages(1);
  told.insert(told.end(), more.begin(), more.end());
  EXPECT_EQ(starts(), 1);
  // What was answered is not kept: it cannot be had again.
  ASSERT_EQ(Greet(next).code, Code::kOk);
  Run(50 * kMillisecond);
  EXPECT_EQ(c_->WaitForMessages(0).size(), 0U);
  EXPECT_EQ(failed(), 0U);
}

TEST_F(PeersResume, MessagesThatCameBeforeAreNotDeliveredAgain) {
  Form();
  ASSERT_EQ(Greet(Break()).code, Code::kOk);
  const service::ReportJobFailed forged{.job = 5, .code = Code::kInternal, .cause = "again"};
  for (std::uint64_t number = 1; number <= 4; ++number) {
    ASSERT_TRUE(c_->SendMessages({forged}, number));
  }
  ASSERT_TRUE(c_->Ping());
  Run(50 * kMillisecond);
  EXPECT_EQ(failed(), 0U);
}

TEST_F(PeersResume, MessagesThatAreMissingEndTheChannel) {
  Form();
  ASSERT_EQ(Greet(Break()).code, Code::kOk);
  c_->SendMessages({service::ForgetJob{9}}, 6);
  EXPECT_TRUE(c_->WaitForEnd());
  ASSERT_TRUE(a_.dispatch().WaitFor<JobFailed>(1));
  EXPECT_EQ(Last<JobFailed>(a_.dispatch()).cause, "node c sent message 6 after message 4");
}

TEST_F(PeersResume, NobodyGoesOnWithAnIdThatHeGuessed) {
  Form();
  PeerHelloCall next = Break();
  PeerHelloCall guessed = next;
  guessed.channel->id.back() ^= 1U;
  EXPECT_EQ(Greet(guessed).code, Code::kNotFound);
  guessed.channel->id = {};
  EXPECT_EQ(Greet(guessed).code, Code::kNotFound);
  // Whose it is goes on.
  EXPECT_EQ(Greet(next).code, Code::kOk);
  EXPECT_EQ(failed(), 0U);
}

TEST_F(PeersResume, NobodyElseGoesOnWithTheIdOfANode) {
  Form();
  PeerHelloCall next = Break();
  PeerHelloCall other = next;
  other.node = "d";
  EXPECT_EQ(Greet(other).code, Code::kPermissionDenied);
  other = next;
  other.instance = 4;
  EXPECT_EQ(Greet(other).code, Code::kPermissionDenied);
  other = next;
  other.node = "d";
  other.channel->resumes = false;
  other.channel->received = 0;
  EXPECT_EQ(Greet(other).code, Code::kPermissionDenied);
  EXPECT_EQ(Greet(next).code, Code::kOk);
  EXPECT_EQ(failed(), 0U);
}

// Nor while the connection is there: whoever knows the id is the node, and no one else does.
TEST_F(PeersResume, AChannelWithAConnectionIsNotTakenOver) {
  Form();
  PeerHelloCall other = hello_;
  other.channel = c_->Resuming();
  other.channel->id.front() ^= 1U;
  PeerCaller liar(loop_, a_.peer_port());
  EXPECT_EQ(liar.Hello(other).code, Code::kNotFound);
  ASSERT_TRUE(c_->Ping());
  EXPECT_EQ(failed(), 0U);
}

TEST_F(PeersResume, WhoeverHasReceivedWhatWasNeverSentIsLost) {
  Form();
  PeerHelloCall next = Break();
  next.channel->received = 1000;
  EXPECT_EQ(Greet(next).code, Code::kCorrupt);
  ASSERT_TRUE(a_.dispatch().WaitFor<JobFailed>(1));
  EXPECT_EQ(Last<JobFailed>(a_.dispatch()).code, Code::kCorrupt);
}

TEST_F(PeersResume, AHelloWithoutAnIdIsRefused) {
  PeerCaller caller(loop_, a_.peer_port());
  EXPECT_EQ(caller.HelloWithId("short").code, Code::kCorrupt);
  PeerHelloCall begins{.node = "c"};
  begins.channel = service::ChannelHello{.id = service::DrawChannelId(), .received = 1};
  EXPECT_EQ(Greet(begins).code, Code::kCorrupt);
}

TEST_F(PeersResume, ANodeThatNobodyCanReachIsLostAfterTheGraceTime) {
  Form();
  Break();
  ExpectLost(kGrace, kResumeDetection);
}

TEST_F(PeersResume, ANodeWhereNobodyListensAnyMoreIsLostAtOnce) {
  Form("127.0.0.1:1");
  Break();
  ExpectLost(0, kGrace);
}

TEST_F(PeersResume, ANodeWhoseServiceAnswersHasTheDetectionTimeToComeBack) {
  ControlStand there(Patient("c"));
  Form("127.0.0.1:" + std::to_string(there.peer_port()));
  Break();
  ExpectLost(kResumeDetection - 2 * (kResumeDetection / 6), kResumeDetection + 2 * kSecond);
}

TEST_F(PeersResume, ANodeThatBeginsAnewIsNotWaitedFor) {
  Form();
  Break();
  PeerHelloCall begins = hello_;
  begins.instance = 4;
  EXPECT_EQ(Greet(begins).code, Code::kOk);
  ExpectLost(0, kGrace);
}

TEST_F(PeersResume, AStrangerDoesNotEndTheChannelOfANodeThatLives) {
  ControlStand there(Patient("c"));
  Form("127.0.0.1:" + std::to_string(there.peer_port()));
  PeerHelloCall next = Break();
  Run(100 * kMillisecond);
  PeerHelloCall begins = hello_;
  begins.instance = 4;
  EXPECT_EQ(Greet(begins).code, Code::kAlreadyExists);
  EXPECT_EQ(Greet(next).code, Code::kOk);
  EXPECT_EQ(failed(), 0U);
}

}  // namespace
}  // namespace headrace::support
