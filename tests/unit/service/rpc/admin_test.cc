// Steering, probes and peers as an admin asks for them, over real sockets.
#include "service/rpc/admin.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "service/peers/job_settings.h"
#include "service/rpc/peers_requests.h"
#include "service/rpc/probe.h"
#include "tests/support/expect_text.h"
#include "tests/unit/service/peers/peer_caller.h"
#include "tests/unit/service/rpc/cluster.h"

namespace headrace::support {
namespace {

using service::Event;
using service::JobFailed;
using service::SteerJob;

class AdminTest : public testing::Test {
 protected:
  // The event loop's destructors may throw, a test's may not.
  ~AdminTest() noexcept override {}

  AttachedRank Attach(ControlStand& stand, std::uint32_t rank, const std::string& rendezvous) {
    AttachedRank attached = AttachTo(loop_, stand, {.rank = rank, .rendezvous = rendezvous});
    EXPECT_EQ(attached.attached.code, Code::kOk) << attached.attached.text;
    return attached;
  }
  Answered Steer(ControlStand& stand, SteeringKind kind, std::uint64_t value = 0) {
    return Caller(loop_, stand.socket_path()).Steer("train", kind, value);
  }
  // Whether people were told that, of all that they have been told so far.
  static bool Said(ControlStand& stand, const std::string& text) {
    bool found = false;
    const std::size_t count = stand.watch().Count<Event>();
    for (std::size_t i = 0; i < count; ++i) {
      stand.watch().Visit<Event>(i,
                                 [&](const Event& event) { found = found || event.text == text; });
    }
    return found;
  }

  CallerLoop loop_;
  const std::string uid_ = std::to_string(::getuid());
};

TEST_F(AdminTest, SteersAJobOnOneNode) {
  ControlStand stand;
  const AttachedRank rank = Attach(stand, 0, "");
  ASSERT_EQ(Steer(stand, SteeringKind::kWeight, 3).code, Code::kOk);
  ASSERT_EQ(Steer(stand, SteeringKind::kPause).code, Code::kOk);
  ASSERT_TRUE(stand.dispatch().WaitFor<SteerJob>(2));
  stand.dispatch().Visit<SteerJob>(0, [&](const SteerJob& steer) {
    EXPECT_EQ(steer.job.value, rank.attached.job_id);
    EXPECT_EQ(steer.steering.kind, SteeringKind::kWeight);
    EXPECT_EQ(steer.steering.value, 3U);
    EXPECT_EQ(steer.steering.uid, ::getuid());
    EXPECT_EQ(steer.steering.node, "");
  });
  EXPECT_TRUE(Said(stand, "job train: uid " + uid_ + " asks for weight 3"));
  EXPECT_TRUE(Said(stand, "job train: uid " + uid_ + " asks for pause"));
}

TEST_F(AdminTest, RefusesWhatCannotBeMeant) {
  ControlStand stand;
  const AttachedRank rank = Attach(stand, 0, "");
  const auto expect = [&](SteeringKind kind, std::uint64_t value, const std::string& part) {
    const Answered answer = Steer(stand, kind, value);
    EXPECT_EQ(answer.code, Code::kInvalidArgument) << part;
    EXPECT_NE(answer.text.find(part), std::string::npos) << answer.text;
  };
  expect(SteeringKind::kWeight, 0, "a weight of 0: 1 to 1000 are possible");
  expect(SteeringKind::kWeight, 1001, "a weight of 1001");
  expect(SteeringKind::kPriority, 16, "a priority of 16: 0 to 15 are possible");
  expect(SteeringKind::kLimit, 999, "a limit of 999 bytes/s: 1000 to 1000000000000 are possible");
  expect(SteeringKind::kLimit, UINT64_MAX, "and 0 for none");
  expect(SteeringKind::kPause, 1, "pause with the value 1: it takes none");
  expect(SteeringKind{0}, 0, "steering of kind 0: 1 to 9 and 20 are known");
  expect(SteeringKind{10}, 0, "steering of kind 10");
  expect(SteeringKind::kCompress, 99, "no codec has the number 99 (known: none, bf16");
  EXPECT_EQ(stand.dispatch().Count<SteerJob>(), 0U);
  Caller admin(loop_, stand.socket_path());
  const Answered unknown = admin.Steer("tra\nin", SteeringKind::kPause);
  EXPECT_EQ(unknown.code, Code::kNotFound);
  EXPECT_VARYING_TEXT(unknown.text);
}

TEST_F(AdminTest, AChangeWaitsForRoomInDispatch) {
  ControlStand stand;
  const AttachedRank rank = Attach(stand, 0, "");
  stand.dispatch().SetFull(true);
  const Answered answer = Steer(stand, SteeringKind::kPause);
  EXPECT_EQ(answer.code, Code::kTimeout);
  EXPECT_VARYING_TEXT(answer.text);
  stand.dispatch().SetFull(false);
  ASSERT_TRUE(stand.dispatch().WaitFor<SteerJob>(1));
}

TEST_F(AdminTest, OneUidCannotFloodTheServiceWithSettingChanges) {
  ControlStand stand;
  const AttachedRank rank = Attach(stand, 0, "");
  Caller admin(loop_, stand.socket_path());
  int passed = 0;
  Answered last;
  for (int i = 0; i < 4 * service::kAskedMax; ++i) {
    last = admin.Steer("train", SteeringKind::kWeight, 1);
    passed += last.code == Code::kOk ? 1 : 0;
  }
  EXPECT_GE(passed, service::kAskedMax);
  EXPECT_EQ(static_cast<int>(stand.dispatch().Count<SteerJob>()), passed);
}

TEST_F(AdminTest, ACancelledJobTakesNoRankUntilAllAreGone) {
  ControlStand stand;
  const AttachedRank rank = Attach(stand, 0, "");
  ASSERT_EQ(Steer(stand, SteeringKind::kCancel).code, Code::kOk);
  const AttachedRank late = AttachTo(loop_, stand, {.rank = 1});
  EXPECT_NE(late.attached.code, Code::kOk);
  EXPECT_VARYING_TEXT(late.attached.text, uid_);
}

TEST_F(AdminTest, SteersEveryNodeOfAJobFromAnyOfThem) {
  ControlStand a(NodeNamed("a"));
  ControlStand b(NodeNamed("b"));
  const AttachedRank first = Attach(a, 0, a.meeting());
  const AttachedRank second = Attach(b, 1, a.meeting());
  ASSERT_TRUE(b.dispatch().WaitFor<service::JobFormed>(1));
  ASSERT_TRUE(a.dispatch().WaitFor<service::JobFormed>(1));
  ASSERT_EQ(Steer(b, SteeringKind::kLimit, 5000).code, Code::kOk);
  ASSERT_TRUE(a.dispatch().WaitFor<SteerJob>(1));
  ASSERT_TRUE(b.dispatch().WaitFor<SteerJob>(1));
  const SteerJob on_a = Last<SteerJob>(a.dispatch());
  const SteerJob on_b = Last<SteerJob>(b.dispatch());
  EXPECT_EQ(on_a.job.value, first.attached.job_id);
  EXPECT_EQ(on_b.job.value, second.attached.job_id);
  EXPECT_EQ(on_a.steering.value, 5000U);
  EXPECT_EQ(on_a.steering.uid, ::getuid());
  EXPECT_EQ(on_a.steering.node, "b");
  EXPECT_EQ(on_b.steering.node, "") << "here";
  EXPECT_TRUE(Said(b, "job train: uid " + uid_ + " asks for limit 5000 bytes/s"));
  EXPECT_FALSE(Said(a, "job train: uid " + uid_ + " asks for limit 5000 bytes/s"));
}

TEST_F(AdminTest, CancelsAJobWhoseNodesHaveNotMet) {
  ControlStand a(NodeNamed("a"));
  const AttachedRank waiting = Attach(a, 0, a.meeting());
  ASSERT_TRUE(a.dispatch().WaitFor<service::JobForming>(2)) << "the leader has answered";
  ASSERT_EQ(Steer(a, SteeringKind::kCancel).code, Code::kOk);
  ASSERT_TRUE(a.dispatch().WaitFor<JobFailed>(1));
  EXPECT_EQ(Last<JobFailed>(a.dispatch()).code, Code::kCancelled);
  EXPECT_VARYING_TEXT(Last<JobFailed>(a.dispatch()).cause, "uid " + uid_, "node a");
}

TEST_F(AdminTest, WordsOfALateRankGoToTheOtherNodes) {
  ControlStand a(NodeNamed("a"));
  ControlStand b(NodeNamed("b"));
  const AttachedRank first = Attach(a, 0, a.meeting());
  const AttachedRank second = Attach(b, 1, a.meeting());
  ASSERT_TRUE(b.dispatch().WaitFor<service::JobFormed>(1));
  ASSERT_TRUE(a.dispatch().WaitFor<service::JobFormed>(1));
  ASSERT_TRUE(b.peers().Send(service::RankLate{JobId{second.attached.job_id}, "rank 1 is late"}));
  bool heard = false;
  for (int left = 1000; left > 0 && !heard; --left) {
    loop_.Wait(loop_.io.provider->getTimer().afterDelay(10 * kj::MILLISECONDS));
    heard = Said(a, "job train: reported by node b: rank 1 is late");
  }
  EXPECT_TRUE(heard);
  EXPECT_FALSE(Said(b, "job train: reported by node b: rank 1 is late"));
}

using ProbeResponse = capnp::Response<schema::Admin::ProbeResults>;

TEST_F(AdminTest, AProbeGoesThroughDispatchAndEveryLane) {
  ControlStand stand;
  Caller caller(loop_, stand.socket_path());
  auto admin = caller.Admin();
  const auto answer = loop_.Wait<ProbeResponse>(admin.probeRequest().send());
  EXPECT_GE(answer.getDispatchNs(), 0);
  ASSERT_EQ(answer.getLanes().size(), 2U);
  EXPECT_STREQ(answer.getLanes()[1].getName().cStr(), "ucx0");
  for (const auto lane : answer.getLanes()) {
    EXPECT_TRUE(lane.getAnswered());
    EXPECT_GE(lane.getNs(), 0);
    EXPECT_EQ(lane.getCode(), 0);
  }
}

TEST_F(AdminTest, AProbeNamesTheLanesThatDoNotAnswer) {
  ControlStand stand({.lanes_answer = false});
  Caller caller(loop_, stand.socket_path());
  auto admin = caller.Admin();
  const auto answer = loop_.Wait<ProbeResponse>(admin.probeRequest().send());
  EXPECT_GE(answer.getDispatchNs(), 0);
  ASSERT_EQ(answer.getLanes().size(), 2U);
  EXPECT_STREQ(answer.getLanes()[0].getName().cStr(), "shm0");
  EXPECT_FALSE(answer.getLanes()[0].getAnswered());
  EXPECT_EQ(answer.getLanes()[0].getNs(), -1);
}

TEST_F(AdminTest, AProbeSaysWhenDispatchDoesNotAnswer) {
  ControlStand stand({.pong = false});
  Caller caller(loop_, stand.socket_path());
  auto admin = caller.Admin();
  const auto answer = loop_.Wait<ProbeResponse>(admin.probeRequest().send());
  EXPECT_EQ(answer.getDispatchNs(), -1);
  EXPECT_EQ(answer.getLanes().size(), 2U);
  stand.dispatch().SetFull(true);
  EXPECT_EQ(loop_.Wait<ProbeResponse>(admin.probeRequest().send()).getDispatchNs(), -1);
}

TEST_F(AdminTest, AProbeNamesTheThreadsThatDoNotAnswer) {
  ControlStand stand({.watch_answers = false});
  Caller caller(loop_, stand.socket_path());
  auto admin = caller.Admin();
  const auto answer = loop_.Wait<ProbeResponse>(admin.probeRequest().send());
  ASSERT_EQ(answer.getParts().size(), 3U);
  EXPECT_STREQ(answer.getParts()[2].getName().cStr(), "mapping");
  EXPECT_STREQ(answer.getParts()[0].getName().cStr(), "peers");
  EXPECT_TRUE(answer.getParts()[0].getAnswered());
  EXPECT_GE(answer.getParts()[0].getNs(), 0);
  EXPECT_STREQ(answer.getParts()[1].getName().cStr(), "watch");
  EXPECT_FALSE(answer.getParts()[1].getAnswered());
  stand.FreezePeers();
  const auto later = loop_.Wait<ProbeResponse>(admin.probeRequest().send());
  EXPECT_FALSE(later.getParts()[0].getAnswered());
  EXPECT_GE(later.getDispatchNs(), 0);
  stand.Thaw();
}

TEST_F(AdminTest, ProbesAtTheSameTimeShareOneRoundTrip) {
  ControlStand stand({.lanes_answer = false});
  Caller caller(loop_, stand.socket_path());
  auto admin = caller.Admin();
  auto all = kj::heapArrayBuilder<kj::Promise<ProbeResponse>>(20);
  for (int i = 0; i < 20; ++i) all.add(admin.probeRequest().send());
  const auto answers = loop_.Wait(kj::joinPromises(all.finish()));
  EXPECT_EQ(answers.size(), 20U);
  for (const auto& answer : answers) EXPECT_GE(answer.getDispatchNs(), 0);
  EXPECT_EQ(stand.dispatch().Count<service::Ping>(), 1U);
  // What comes after the answer asks again.
  loop_.Wait<ProbeResponse>(admin.probeRequest().send());
  EXPECT_EQ(stand.dispatch().Count<service::Ping>(), 2U);
}

TEST(ProbeAnswer, ComplainsOfTheFirstPartThatIsNotWell) {
  service::ProbeAnswer answer;
  EXPECT_TEXT(answer.Complaint(), "dispatch");
  answer.dispatch_ns = 5;
  answer.lanes = {{.name = "shm0", .answered = true}, {.name = "ucx0"}};
  EXPECT_TEXT(answer.Complaint(), "lane ucx0");
  answer.lanes[1].answered = true;
  answer.lanes[1].status = Error(Code::kInternal, "summed wrongly");
  EXPECT_EQ(answer.Complaint(), "lane ucx0: summed wrongly");
  answer.lanes[1].status = {};
  EXPECT_EQ(answer.Complaint(), "");
  answer.parts = {{.name = "peers", .answered = true}, {.name = "watch"}};
  EXPECT_TEXT(answer.Complaint(), "watch");
}

using PeersResponse = capnp::Response<schema::Admin::PeersResults>;

class AdminPeers : public AdminTest {
 protected:
  PeersResponse Ask(ControlStand& stand) {
    Caller caller(loop_, stand.socket_path());
    return loop_.Wait<PeersResponse>(caller.Admin().peersRequest().send());
  }
  // Asks until the first of the peers has been measured.
  PeersResponse Measured(ControlStand& stand) {
    for (int left = 500; left > 0; --left) {
      auto answer = Ask(stand);
      if (answer.getPeers().size() > 0 && answer.getPeers()[0].getRoundTripNs() >= 0) return answer;
      loop_.Wait(loop_.io.provider->getTimer().afterDelay(10 * kj::MILLISECONDS));
    }
    return Ask(stand);
  }
};

TEST_F(AdminPeers, BothEndsOfAConnectionKnowTheOther) {
  ControlStand a(NodeNamed("a"));
  ControlStand b(NodeNamed("b"));
  const AttachedRank first = Attach(a, 0, a.meeting());
  const AttachedRank second = Attach(b, 1, a.meeting());
  ASSERT_TRUE(b.dispatch().WaitFor<service::JobFormed>(1));
  const auto on_b = Measured(b);
  ASSERT_EQ(on_b.getPeers().size(), 1U);
  EXPECT_STREQ(on_b.getPeers()[0].getName().cStr(), "a");
  EXPECT_EQ(on_b.getPeers()[0].getAddress().cStr(), a.meeting());
  EXPECT_TRUE(on_b.getPeers()[0].getLeads());
  EXPECT_TRUE(on_b.getPeers()[0].getConnected());
  EXPECT_GT(on_b.getPeers()[0].getRoundTripNs(), 0);
  const auto on_a = Measured(a);
  ASSERT_EQ(on_a.getPeers().size(), 1U) << "the connection to itself is left out";
  EXPECT_STREQ(on_a.getPeers()[0].getName().cStr(), "b");
  EXPECT_FALSE(on_a.getPeers()[0].getLeads());
}

TEST_F(AdminPeers, TheClockOfAnotherNodeIsMeasured) {
  ControlStand a(NodeNamed("a"));
  PeerCaller peer(loop_, a.peer_port());
  peer.SetClockAhead(3600 * kSecond);
  ASSERT_EQ(peer.Hello({.node = "x"}).code, Code::kOk);
  const auto answer = Measured(a);
  ASSERT_EQ(answer.getPeers().size(), 1U);
  const auto view = answer.getPeers()[0];
  ASSERT_GE(view.getRoundTripNs(), 0);
  EXPECT_LE(std::abs(view.getClockOffsetNs() - 3600 * kSecond), view.getRoundTripNs());
}

TEST_F(AdminPeers, AClockThatShowsNoTimeEndsTheConnection) {
  ControlStand a(NodeNamed("a"));
  PeerCaller peer(loop_, a.peer_port());
  peer.SetClockAhead(INT64_MAX - 2 * UnixNow());
  ASSERT_EQ(peer.Hello({.node = "x"}).code, Code::kOk);
  EXPECT_TRUE(peer.WaitForEnd());
}

TEST_F(AdminPeers, WhoIsNotConnectedIsListedWithTheReason) {
  StandOptions options = NodeNamed("a");
  options.peers.peers = {{"a", "127.0.0.1:1"}, {"b", "127.0.0.1:1"}, {"c", "127.0.0.1:2"}};
  ControlStand a(options);
  const AttachedRank rank = AttachTo(loop_, a, {.rank = 0, .rendezvous = "b"});
  ASSERT_TRUE(a.dispatch().WaitFor<service::JobForming>(2));
  const auto answer = Ask(a);
  ASSERT_EQ(answer.getPeers().size(), 2U);
  EXPECT_EQ(answer.getPeers()[0].getAddress().cStr(), std::string("127.0.0.1:1"));
  EXPECT_FALSE(answer.getPeers()[0].getConnected());
  EXPECT_VARYING_TEXT(std::string(answer.getPeers()[0].getWhy().cStr()));
  EXPECT_STREQ(answer.getPeers()[1].getName().cStr(), "c");
  EXPECT_STREQ(answer.getPeers()[1].getWhy().cStr(), "") << "no job needs it";
  EXPECT_EQ(answer.getPeers()[1].getRoundTripNs(), -1);
}

TEST(ReadPolicyName, KnowsAllPoliciesAndLeavesTheChoiceWhereNoneIsNamed) {
  for (const plan::Policy policy : plan::kPolicies) {
    EXPECT_EQ(*service::ReadPolicyName(plan::Name(policy)), policy);
  }
  EXPECT_EQ(*service::ReadPolicyName(""), std::nullopt);
}

}  // namespace
}  // namespace headrace::support
