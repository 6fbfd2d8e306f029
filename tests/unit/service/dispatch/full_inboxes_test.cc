// Rpc, peers, watch or a lane is a whole inbox behind, as clients can bring it about: what must
// arrive waits, what may be lost is counted, and nothing ends the service.
#include <gtest/gtest.h>

#include <string>
#include <variant>

#include "tests/unit/service/dispatch/expect.h"

namespace headrace::support {
namespace {

const JobSpec kSpanning{.id = JobId{2}, .name = "far", .rendezvous = "b:1"};

TEST(FullInboxes, OfRpcAndPeersDelayWhatTheyMustKnow) {
  HandDrivenNode node;
  ClientEnd& a = node.Attach(kPairFor1s, 0);
  ClientEnd& b = node.Attach(kPairFor1s, 1);
  ClientEnd& far = node.Attach(kSpanning, 0);
  node.Settle();
  node.rpc().full = true;
  node.peers().full = true;
  node.Send(service::RemoveSegment{.session = a.id(), .segment = SegmentId{0}, .token = 5});
  b.PostGarbage(77);
  node.Close(far, true, "left the job");
  node.Send(service::JobFailed{.job = kSpanning.id, .code = Code::kPeerLost, .cause = "gone"});
  node.Settle();
  EXPECT_TRUE(node.rpc().messages.empty());
  EXPECT_TRUE(node.peers().messages.empty());
  EXPECT_EQ(node.dispatch().NextDeadline(), node.now + kMillisecond) << "tries again by itself";
  node.rpc().full = false;
  node.peers().full = false;
  node.Advance(kMillisecond);
  EXPECT_EQ(node.rpc().Of<service::SegmentRemoved>().size(), 1U);
  EXPECT_EQ(node.rpc().Of<service::SessionBroken>().size(), 1U);
  EXPECT_EQ(node.peers().Of<service::RankLeft>().size(), 1U);
  EXPECT_EQ(node.peers().Of<service::JobEnded>().size(), 1U);
  // In the order in which they came about.
  EXPECT_TRUE(std::holds_alternative<service::JobEnded>(node.peers().messages.back()));
  EXPECT_EQ(node.dispatch().NextDeadline(), kNever);
}

TEST(FullInboxes, OfRpcLoseAnswersToPingsAndSaySo) {
  HandDrivenNode node;
  node.Settle();
  node.rpc().full = true;
  for (service::RequestToken token = 1; token <= 100; ++token) node.Send(service::Ping{token});
  node.Advance(2 * kSecond);
  node.rpc().full = false;
  node.Send(service::Ping{101});
  node.Advance(2 * kSecond);
  ASSERT_EQ(node.rpc().Of<service::Pong>().size(), 1U) << "nothing piled up";
  EXPECT_EQ(node.rpc().Of<service::Pong>()[0]->token, 101U);
  std::size_t dropped = 0;
  for (const std::string& event : node.watch_tap().events) {
    if (event.find("were dropped") != std::string::npos) dropped += std::stoul(event);
  }
  EXPECT_EQ(dropped, 200U) << "a pong and a lane's answer each";
}

TEST(FullInboxes, OfWatchLeaveMemoryMappedForAWhile) {
  HandDrivenNode node;
  ClientEnd& a = node.Attach(kPairFor1s, 0);
  node.Settle();
  node.watch_tap().full = true;
  node.AddSegment(a, 4096);
  node.Settle();
  node.Send(service::RemoveSegment{.session = a.id(), .segment = SegmentId{1}, .token = 5});
  node.Close(a, false, "exited or was killed");
  node.Settle();
  EXPECT_FALSE(node.Discarded(a));
  EXPECT_EQ(node.watch_tap().mappings_discarded, 0U);
  EXPECT_FALSE(node.ServiceMemory(a, 0).empty());
  EXPECT_EQ(node.dispatch().NextDeadline(), node.now + kMillisecond);
  node.watch_tap().full = false;
  node.Advance(kMillisecond);
  EXPECT_TRUE(node.Discarded(a)) << "by watch, not by the data path";
  EXPECT_EQ(node.watch_tap().mappings_discarded, 1U);
  EXPECT_EQ(node.RowsInUse(), 0U);
}

TEST(FullInboxes, OfALaneDelayStages) {
  HandDrivenNode node;
  ClientEnd& a = node.Attach({.world_size = 1}, 0);
  node.Settle();
  // Pings, as anybody may send them, while the lane has no turn.
  service::RequestToken token = 0;
  for (const std::size_t count : {service::kInboxMax, std::size_t{10}}) {
    for (std::size_t i = 0; i < count; ++i) node.Send(service::Ping{++token});
    node.TurnDispatch();
  }
  const auto refused = node.rpc().Of<service::LaneAnswered>();
  ASSERT_EQ(refused.size(), 10U);
  EXPECT_EQ(refused[0]->status.error().code(), Code::kBusy);
  EXPECT_NE(refused[0]->status.error().text().find("lane lane0"), std::string::npos);
  a.Post(OnSegment(Collective::kAllReduce, DType::kFloat32, 16));
  node.TurnDispatch();
  ExpectOpen(a, 1);
  node.Settle();
  node.Advance(kMillisecond);
  ExpectOk(a, 1);
}

}  // namespace
}  // namespace headrace::support
