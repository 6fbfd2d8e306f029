// Services that meet over TCP: a job of several nodes forms, or says what it waits for.
#include <gtest/gtest.h>
#include <unistd.h>

#include <initializer_list>
#include <string>
#include <thread>
#include <utility>

#include "tests/support/expect_text.h"
#include "tests/unit/service/rpc/cluster.h"

namespace headrace::support {
namespace {

using service::JobFailed;
using service::JobFormed;
using service::JobForming;

class PeersForming : public testing::Test {
 protected:
  // The event loop's destructors may throw, a test's may not.
  ~PeersForming() noexcept override {}

  AttachedRank Attach(ControlStand& stand, std::uint32_t rank, std::uint32_t world_size = 2,
                      const std::string& architecture = "") {
    return AttachTo(loop_, stand,
                    {.job = "train",
                     .rank = rank,
                     .world_size = world_size,
                     .rendezvous = a_.meeting(),
                     .architecture = architecture});
  }

  CallerLoop loop_;
  ControlStand a_{NodeNamed("a")};
};

TEST_F(PeersForming, TwoServicesFormAJobWithTheSameAgreement) {
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

TEST_F(PeersForming, LanesGetOneKeyAndTheAddressesOfAll) {
  ControlStand b(NodeNamed("b"));
  const AttachedRank first = Attach(a_, 0);
  const AttachedRank second = Attach(b, 1);
  ASSERT_TRUE(a_.dispatch().WaitFor<JobFormed>(1));
  ASSERT_TRUE(b.dispatch().WaitFor<JobFormed>(1));
  const auto on_a = Last<service::OpenGroup>(a_.lane()).options;
  const auto on_b = Last<service::OpenGroup>(b.lane()).options;
  EXPECT_EQ(on_a.group, first.attached.job_id);
  EXPECT_NE(on_a.key, 0U);
  EXPECT_EQ(on_a.key, on_b.key);
  ASSERT_EQ(on_b.members.size(), 2U);
  EXPECT_EQ(on_b.members[0].address, "a lane 0");
  EXPECT_EQ(on_b.members[1].address, "b lane 0");
  EXPECT_EQ(a_.lane().Count<service::MeasureGroup>(), 1U);
  EXPECT_EQ(a_.lane().Count<service::SetCost>(), 1U);
}

TEST_F(PeersForming, RanksMaySpreadUnevenlyOverThreeNodesWithTwoLanes) {
  StandOptions two_lanes = NodeNamed("c");
  two_lanes.lanes_count = 2;
  ControlStand c(two_lanes);
  two_lanes.peers.node_name = "d";
  two_lanes.cost = {.startup_s = 7e-5, .s_per_byte = 1e-9};
  ControlStand d(two_lanes);
  two_lanes.peers.node_name = "e";
  two_lanes.cost = {.startup_s = 1e-5, .s_per_byte = 3e-8};
  ControlStand e(two_lanes);
  std::vector<AttachedRank> ranks;
  const std::pair<ControlStand*, std::uint32_t> seats[] = {{&e, 0}, {&d, 5}, {&e, 1},
                                                           {&c, 3}, {&e, 4}, {&d, 2}};
  for (const auto& [stand, rank] : seats) {
    ranks.push_back(AttachTo(
        loop_, *stand, {.job = "big", .rank = rank, .world_size = 6, .rendezvous = c.meeting()}));
    ASSERT_EQ(ranks.back().attached.code, Code::kOk) << ranks.back().attached.text;
  }
  for (ControlStand* stand : {&c, &d, &e}) {
    ASSERT_TRUE(stand->dispatch().WaitFor<JobFormed>(1));
    const auto nodes = Last<JobFormed>(stand->dispatch()).nodes;
    ASSERT_EQ(nodes.nodes.size(), 3U);
    EXPECT_EQ(nodes.nodes[0].name, "e");
    EXPECT_EQ(nodes.nodes[0].ranks, (std::vector<std::uint32_t>{0, 1, 4}));
    EXPECT_EQ(nodes.nodes[1].name, "d");
    EXPECT_EQ(nodes.nodes[2].name, "c");
    EXPECT_EQ(nodes.costs,
              std::vector(2, transport::CostLine{.startup_s = 7e-5, .s_per_byte = 3e-8}));
    EXPECT_EQ(stand->lane(1).Count<service::OpenGroup>(), 1U);
  }
}

TEST_F(PeersForming, AServiceWithAllRanksFormsAJobWithItself) {
  const AttachedRank first = Attach(a_, 0);
  const AttachedRank second = Attach(a_, 1);
  ASSERT_TRUE(a_.dispatch().WaitFor<JobFormed>(1));
  EXPECT_EQ(Last<JobFormed>(a_.dispatch()).nodes.nodes.size(), 1U);
}

TEST_F(PeersForming, AJobOfOneNodeDoesNotMeetAnybody) {
  const AttachedRank alone = AttachTo(loop_, a_, {.job = "alone"});
  ASSERT_EQ(alone.attached.code, Code::kOk);
  const AttachedRank other = Attach(a_, 0);
  ASSERT_TRUE(a_.dispatch().WaitFor<JobForming>(1));
  EXPECT_EQ(Last<JobForming>(a_.dispatch()).job.value, other.attached.job_id);
}

TEST_F(PeersForming, SaysWhichRanksAreMissing) {
  ControlStand b(NodeNamed("b"));
  const AttachedRank rank = Attach(b, 1, 4);
  // That it is being reached, and then what it waits for.
  ASSERT_TRUE(b.dispatch().WaitFor<JobForming>(3));
  EXPECT_EQ(Last<JobForming>(b.dispatch()).waits_for,
            "1 of 4 ranks have attached: ranks 0, 2, 3 are missing");
}

TEST_F(PeersForming, SaysThatTheLeaderDoesNotAnswerAndJoinsItWhenItDoes) {
  StandOptions late = NodeNamed("c");
  late.peers.address = "127.0.0.1:" + std::to_string(ControlStand(late).peer_port());
  const AttachedRank rank = AttachTo(
      loop_, a_, {.job = "late", .rank = 0, .world_size = 2, .rendezvous = late.peers.address});
  ASSERT_TRUE(a_.dispatch().WaitFor<JobForming>(2));
  EXPECT_EQ(Last<JobForming>(a_.dispatch()).waits_for,
            "the service at " + late.peers.address +
                " does not answer: Connection refused; the address is from its ranks: see that "
                "headraced runs there and can be reached, or set HEADRACE_RENDEZVOUS to host:port "
                "of the service of one of the job's nodes");
  ControlStand c(late);
  ASSERT_TRUE(a_.dispatch().WaitFor<JobForming>(4));
  EXPECT_EQ(Last<JobForming>(a_.dispatch()).waits_for,
            "1 of 2 ranks have attached: rank 1 is missing");
}

TEST_F(PeersForming, SaysThatALeaderThatStandsStillDoesNotAnswerAfterTheDetectionTime) {
  StandOptions quick = NodeNamed("b");
  quick.peers.detection_ns = 200 * kMillisecond;
  ControlStand b(quick);
  a_.FreezePeers();  // the kernel takes its connections all the same
  const AttachedRank rank = Attach(b, 1);
  ASSERT_TRUE(b.dispatch().WaitFor<JobForming>(2));
  EXPECT_VARYING_TEXT(Last<JobForming>(b.dispatch()).waits_for, "200 ms");
  a_.Thaw();
  const AttachedRank other = Attach(a_, 0);
  ASSERT_TRUE(b.dispatch().WaitFor<JobFormed>(1)) << Last<JobForming>(b.dispatch()).waits_for;
}

TEST_F(PeersForming, GivesTheLeaderUpAfterTheTimeThatTheRanksAllow) {
  const AttachedRank rank = AttachTo(
      loop_, a_,
      {.job = "late", .rank = 0, .world_size = 2, .timeout_ms = 200, .rendezvous = "127.0.0.1:1"});
  ASSERT_TRUE(a_.dispatch().WaitFor<JobFailed>(1));
  const JobFailed failed = Last<JobFailed>(a_.dispatch());
  EXPECT_EQ(failed.code, Code::kTimeout);
  EXPECT_VARYING_TEXT(failed.cause, "127.0.0.1:1");
}

TEST_F(PeersForming, AServerSumsForAJobThatAsksForServers) {
  StandOptions server = NodeNamed("s");
  server.peers.address.clear();
  server.peers.server = true;
  server.peers.rendezvous = a_.meeting();
  ControlStand s(server);
  const AttachedRank first = Attach(a_, 0, 2, "parameter-server");
  const AttachedRank second = Attach(a_, 1, 2, "parameter-server");
  ASSERT_TRUE(a_.dispatch().WaitFor<JobFormed>(1)) << Last<JobForming>(a_.dispatch()).waits_for;
  const auto nodes = Last<JobFormed>(a_.dispatch()).nodes;
  EXPECT_EQ(nodes.servers_count, 1U);
  ASSERT_EQ(nodes.nodes.size(), 2U);
  EXPECT_EQ(nodes.nodes[1].name, "s");
  ASSERT_TRUE(s.lane().WaitFor<service::SetCost>(1));
  EXPECT_GE(Last<service::OpenGroup>(s.lane()).options.group, 0x80000000U);
  EXPECT_EQ(s.dispatch().Count<JobFormed>(), 0U);
}

TEST_F(PeersForming, EndsTheJobWhenANodeUsesSomethingElse) {
  StandOptions other = NodeNamed("b");
  other.hash_salt = 1;
  ControlStand b(other);
  const AttachedRank first = Attach(a_, 0);
  const AttachedRank second = Attach(b, 1);
  for (ControlStand* stand : {&a_, &b}) {
    ASSERT_TRUE(stand->dispatch().WaitFor<JobFailed>(1));
    const JobFailed failed = Last<JobFailed>(stand->dispatch());
    EXPECT_EQ(failed.code, Code::kMismatch);
    EXPECT_VARYING_TEXT(failed.cause, "node b");
    ASSERT_TRUE(stand->lane().WaitFor<service::CloseGroup>(1));
  }
  EXPECT_EQ(b.dispatch().Count<JobFormed>(), 0U);
}

// What an attach that meets others is refused for, before dispatch hears of it.
TEST_F(PeersForming, RefusesAtAttachWhatCannotMeet) {
  struct Case {
    StandOptions options = NodeNamed("b");
    std::string rendezvous = "127.0.0.1:1";
    std::string architecture;
    Code code = Code::kUnavailable;
    std::vector<std::string> parts;
  };
  std::vector<Case> cases(6);
  cases[0].options.peers.address.clear();
  cases[0].parts = {"meets at 127.0.0.1:1", "no address for other nodes", "--node-address"};
  cases[1].options.lanes_count = 0;
  cases[1].parts = {"no lane between nodes"};
  cases[2].options.peers.server = true;
  cases[2].options.peers.rendezvous = "127.0.0.1:1";
  cases[2].parts = {"role of a server"};
  cases[3].architecture = "sorcery";
  cases[3].code = Code::kInvalidArgument;
  cases[3].parts = {"\"sorcery\"", "all-reduce", "parameter-server"};
  cases[4].rendezvous = std::string(256, 'x');
  cases[4].code = Code::kInvalidArgument;
  cases[4].parts = {"256 bytes", "at most 255"};
  cases[5].rendezvous = "a\nb";
  cases[5].code = Code::kInvalidArgument;
  cases[5].parts = {"control characters"};
  for (const Case& each : cases) {
    ControlStand stand(each.options);
    const AttachedRank rank =
        AttachTo(loop_, stand, {.rendezvous = each.rendezvous, .architecture = each.architecture});
    EXPECT_EQ(rank.attached.code, each.code) << rank.attached.text;
    for (const std::string& part : each.parts) {
      EXPECT_NE(rank.attached.text.find(part), std::string::npos) << rank.attached.text;
    }
    EXPECT_EQ(stand.dispatch().Count<service::OpenSession>(), 0U);
  }
}

TEST_F(PeersForming, RefusesARankThatWantsToMeetElsewhere) {
  const AttachedRank first = Attach(a_, 0);
  const AttachedRank second =
      AttachTo(loop_, a_, {.job = "train", .rank = 1, .rendezvous = "127.0.0.1:1"});
  EXPECT_EQ(second.attached.code, Code::kMismatch);
  EXPECT_VARYING_TEXT(second.attached.text, "\"127.0.0.1:1\"");
}

TEST_F(PeersForming, RefusesARankThatIsAttachedOnAnotherNode) {
  ControlStand b(NodeNamed("b"));
  const AttachedRank first = Attach(a_, 0);
  const AttachedRank second = Attach(b, 1);
  ASSERT_TRUE(a_.dispatch().WaitFor<JobFormed>(1));
  const AttachedRank third = Attach(a_, 1);
  EXPECT_EQ(third.attached.code, Code::kAlreadyExists);
  EXPECT_VARYING_TEXT(third.attached.text, "rank 1", "job train", "node b");
}

TEST_F(PeersForming, ANodeThatIsNotInTheListOfPeersIsRefusedByName) {
  StandOptions listed = NodeNamed("c");
  listed.peers.peers = {{"b", "127.0.0.1:1"}};
  ControlStand c(listed);
  const AttachedRank rank =
      AttachTo(loop_, a_, {.job = "closed", .rank = 0, .world_size = 2, .rendezvous = c.meeting()});
  ASSERT_TRUE(a_.dispatch().WaitFor<JobFailed>(1));
  const JobFailed failed = Last<JobFailed>(a_.dispatch());
  EXPECT_EQ(failed.code, Code::kPermissionDenied);
  EXPECT_VARYING_TEXT(failed.cause, "node a", "node c");
}

TEST_F(PeersForming, APeerOfTheListIsFoundByItsName) {
  StandOptions listed = NodeNamed("b");
  listed.peers.peers = {{"a", a_.meeting()}};
  ControlStand b(listed);
  const AttachedRank first = AttachTo(loop_, b, {.rank = 1, .rendezvous = "a"});
  const AttachedRank second = Attach(a_, 0);
  ASSERT_TRUE(b.dispatch().WaitFor<JobFormed>(1)) << Last<JobForming>(b.dispatch()).waits_for;
}

TEST_F(PeersForming, MeetsNowhereButAtAHostAndAPort) {
  for (const char* const place :
       {"unix:/run/docker.sock", "unix:1", "unix-abstract:x", "unix-abstract:7", "*", "*:7733",
        "127.0.0.1:0", "127.0.0.1:99999", "127.0.0.1:7733/x", "fe80::1", "[fe80::1", "a b", "@x:1",
        "127.0.0.1:7733,127.0.0.1:1"}) {
    const AttachedRank rank = AttachTo(loop_, a_, {.job = "odd", .rank = 0, .rendezvous = place});
    EXPECT_EQ(rank.attached.code, Code::kInvalidArgument) << place << ": " << rank.attached.text;
  }
  EXPECT_EQ(a_.dispatch().Count<service::OpenSession>(), 0U);
}

TEST_F(PeersForming, WithAListOfPeersNobodyElseIsDialled) {
  StandOptions listed = NodeNamed("b");
  listed.peers.peers = {{"a", a_.meeting()}};
  ControlStand b(listed);
  const AttachedRank stranger =
      AttachTo(loop_, b, {.job = "far", .rank = 0, .rendezvous = "127.0.0.1:1"});
  EXPECT_EQ(stranger.attached.code, Code::kPermissionDenied) << stranger.attached.text;
  EXPECT_VARYING_TEXT(stranger.attached.text, "node b");
  // By address it is the same peer.
  const AttachedRank first = AttachTo(loop_, b, {.rank = 1, .rendezvous = a_.meeting()});
  const AttachedRank second = Attach(a_, 0);
  ASSERT_TRUE(b.dispatch().WaitFor<JobFormed>(1)) << Last<JobForming>(b.dispatch()).waits_for;
}

TEST_F(PeersForming, APeerThatIsNotTheOneOfTheListIsRefused) {
  StandOptions listed = NodeNamed("b");
  listed.peers.peers = {{"trusted", a_.meeting()}};
  ControlStand b(listed);
  const AttachedRank rank = AttachTo(loop_, b, {.rank = 1, .rendezvous = "trusted"});
  ASSERT_TRUE(b.dispatch().WaitFor<JobFailed>(1)) << Last<JobForming>(b.dispatch()).waits_for;
  const JobFailed failed = Last<JobFailed>(b.dispatch());
  EXPECT_EQ(failed.code, Code::kPermissionDenied);
  EXPECT_VARYING_TEXT(failed.cause, "node a");
}

TEST_F(PeersForming, AJobThatDoesNotGatherInItsTimeEnds) {
  StandOptions hasty = NodeNamed("c");
  hasty.forming_ns = 200 * kMillisecond;
  ControlStand c(hasty);
  const AttachedRank alone = AttachTo(
      loop_, c,
      {.job = "few", .rank = 0, .world_size = 2, .timeout_ms = 100, .rendezvous = c.meeting()});
  ASSERT_TRUE(c.dispatch().WaitFor<JobFailed>(1)) << Last<JobForming>(c.dispatch()).waits_for;
  EXPECT_EQ(Last<JobFailed>(c.dispatch()).code, Code::kTimeout);
  EXPECT_VARYING_TEXT(Last<JobFailed>(c.dispatch()).cause, "rank 1");
  // The same where all ranks are to be on one node.
  const AttachedRank here =
      AttachTo(loop_, c, {.job = "here", .rank = 1, .world_size = 2, .timeout_ms = 100});
  ASSERT_TRUE(c.dispatch().WaitFor<JobFailed>(2));
  EXPECT_VARYING_TEXT(Last<JobFailed>(c.dispatch()).cause, "rank 0");
}

// Questions of several users take all connections but one.
TEST_F(PeersForming, AJobBeyondAllConnectionsFailsAndSaysWhy) {
  unsigned port = 1;
  const auto next = [&port] { return "127.0.0.1:" + std::to_string(port++); };
  for (std::uint32_t user = 0; user < 8; ++user) {
    for (std::uint32_t i = 0; i < 128U >> user; ++i) {
      const service::PeersMessage ask = service::AskQuorum{.token = UINT64_MAX - port,
                                                           .client = port,
                                                           .job = "job" + std::to_string(i),
                                                           .uid = 1000 + user,
                                                           .leader = next(),
                                                           .membership = {.members = {0}},
                                                           .epoch = 1,
                                                           .until_ns = kNever};
      while (!a_.peers().Send(service::PeersMessage(ask))) std::this_thread::yield();
    }
  }
  const AttachedRank last =
      AttachTo(loop_, a_, {.job = "last", .world_size = 2, .rendezvous = next()});
  const AttachedRank beyond =
      AttachTo(loop_, a_, {.job = "beyond", .world_size = 2, .rendezvous = next()});
  ASSERT_TRUE(a_.dispatch().WaitFor<JobFailed>(1));
  const JobFailed failed = Last<JobFailed>(a_.dispatch());
  EXPECT_EQ(failed.job.value, beyond.attached.job_id);
  EXPECT_EQ(failed.code, Code::kExhausted);
  EXPECT_VARYING_TEXT(failed.cause, "127.0.0.1:257", "256");
  EXPECT_EQ(a_.dispatch().Count<JobFailed>(), 1U);
}

}  // namespace
}  // namespace headrace::support
