// Short messages between nodes, which travel with their announcements; what comes early; and ranks
// and links that end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/unit/service/dispatch/expect.h"
#include "tests/unit/service/dispatch/remote_world.h"

namespace headrace::support {
namespace {

using service::SendNoticeKind;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(RemoteShortPairs, TravelWithTheirAnnouncementWhenTheyAreShort) {
  RemoteWorld world;
  constexpr std::uint64_t kShort = service::kSendDataMax / sizeof(float);
  world.Post(0, SendTo(3, kShort, 7));
  world.Advance();
  EXPECT_THAT(world.Told(), ElementsAre(SendNoticeKind::kAnnounced));
  ExpectOk(world[0], 1);
  EXPECT_EQ(world.Open(0), 0U);
  EXPECT_EQ(world.Open(1), 1U);
  // The sender goes on with its memory.
  std::ranges::fill(world[0].Elements<float>().first(kShort), -1.0F);
  world.Post(3, ReceiveFrom(0, kShort, 7), 8000);
  world.Advance();
  EXPECT_THAT(world.Told(), ElementsAre(SendNoticeKind::kReceived));
  ExpectOk(world[0], 1);
  ExpectOk(world[3], 1);
  for (std::uint64_t i = 0; i < kShort; ++i) {
    ASSERT_EQ(world.Element(3, 8000 + i), static_cast<float>(i));
  }
  world.ExpectNothingLeft();
  EXPECT_EQ(world.cluster.node(0).JobRow(world.job.id)->sends_ended, 1U);
}

// Only so many bytes that travel like that are on their way to a node; the others wait for
// their receives at home.
TEST(RemoteShortPairs, TravelAtOnceOnlyAsFarAsTheOtherNodeKeepsThem) {
  RemoteWorld world;
  constexpr std::uint64_t kShort = service::kSendDataMax / sizeof(float);
  constexpr std::uint64_t kFit = service::kSendDataOpenMax / service::kSendDataMax;
  for (std::uint64_t i = 0; i < kFit + 4; ++i) world.Post(0, SendTo(2, kShort, 7), i);
  world.Advance();
  const auto with_data = [&world] {
    return std::ranges::count_if(world.told, [](const auto& each) { return !each.data.empty(); });
  };
  EXPECT_EQ(with_data(), static_cast<std::ptrdiff_t>(kFit));
  for (std::uint64_t i = 0; i < kFit + 4; ++i) {
    world.Post(2, ReceiveFrom(0, kShort, 7), 8192);
    world.Advance();
    ExpectOk(world[2], i + 1);
    ASSERT_EQ(world.Element(2, 8192), static_cast<float>(i));
  }
  world.told.clear();
  world.Post(0, SendTo(2, kShort, 7));
  world.Advance();
  EXPECT_EQ(with_data(), 1) << "what was received has made room";
  world.Post(2, ReceiveFrom(0, kShort, 7), 8192);
  world.Advance();
  world.ExpectNothingLeft();
}

// A limit on what the job sends holds for them, too.
TEST(RemoteShortPairs, OfAJobWithALimitWaitForTheirTurn) {
  RemoteWorld world;
  for (std::size_t node = 0; node < 2; ++node) {
    world.cluster.node(node).Send(
        service::SteerJob{world.job.id, {.kind = SteeringKind::kLimit, .value = 1'000'000}});
  }
  world.Advance();
  world.Post(0, SendTo(2, 100, 7));
  world.Post(2, ReceiveFrom(0, 100, 7), 500);
  world.Advance(100 * kMillisecond);
  ASSERT_FALSE(world.told.empty());
  EXPECT_TRUE(world.told[0].data.empty());
  EXPECT_EQ(world.Element(2, 500), 0);
  ExpectOk(world[0], 1);
}

TEST(RemoteShortPairs, ThatAreAnnouncedBeforeTheOtherNodeKnowsOfItsStartAreKept) {
  RemoteWorld world({{0, 1}, {2, 3}}, {}, false);
  world.cluster.OpenLinks(world.job, 2);
  world.cluster.TellFormed(0, world.job, world.ranks, 1024);
  world.Post(0, SendTo(2, 4, 7), 1);
  world.Post(0, SendTo(2, RemoteWorld::kLong, 7), 2);
  world.Post(2, ReceiveFrom(0, 4, 7), 6000);
  world.Post(2, ReceiveFrom(0, RemoteWorld::kLong, 7), 8000);
  world.Advance();
  ExpectOpen(world[2], 1);
  world.cluster.TellFormed(1, world.job, world.ranks, 1024);
  world.Advance();
  ExpectOk(world[2], 1);
  ExpectOk(world[2], 2);
  EXPECT_EQ(world.Element(2, 6000), 1);
  EXPECT_EQ(world.Element(2, 8000), 2);
  world.ExpectNothingLeft();
}

// The links may fail while nothing of the job is on them.
TEST(RemoteShortPairs, EndByNameWhenTheLinksFail) {
  RemoteWorld world;
  world.Post(2, ReceiveFrom(0, 4, 7));
  world.Advance();
  world.cluster.Vanish(0, transport::Silence::kTold);
  world.cluster.Advance(kSecond);
  const auto failed = world.cluster.node(1).peers().Of<service::JobFailed>();
  ASSERT_EQ(failed.size(), 1U);
  EXPECT_EQ(failed[0]->code, Code::kPeerLost);
  EXPECT_THAT(failed[0]->cause, HasSubstr("node a"));
  ExpectFailed(world[2], 1, Code::kPeerLost, {"node a"});
}

TEST(RemoteShortPairs, ARankThatLeavesEndsWhatWaitsForItOnTheOtherNode) {
  RemoteWorld world;
  world.Post(0, SendTo(2, RemoteWorld::kLong, 3));  // nobody will receive it
  world.Post(1, ReceiveFrom(2, 4, 3));              // nor send this
  world.Advance();
  world.Post(2, SendTo(0, 4, 3), 5);  // this is received
  world.cluster.node(1).Close(world[2], true, "left the job");
  ASSERT_TRUE(world.cluster.node(1).peers().Of<service::RankLeft>().empty());
  // The leader's word may be there before its last sends are.
  world.cluster.node(0).Send(
      service::RankLeft{world.job.id, 2, 0, 0, "rank 2 (pid 9) on node b left the job"});
  world.Post(0, ReceiveFrom(2, 4, 3), 20'000);
  world.Advance();
  ExpectOk(world[0], 2);
  EXPECT_EQ(world.Element(0, 20'000), 2005);
  ExpectFailed(world[0], 1, Code::kPeerLost, {"rank 2 (pid", "left"});
  ExpectFailed(world[1], 1, Code::kPeerLost, {"rank 2 (pid 1002)", "left the job", "on node b"});
  world.Post(0, SendTo(2, 4, 3));
  world.Advance();
  ExpectFailed(world[0], 3, Code::kPeerLost, {"left the job"});
  world.ExpectNothingLeft();
}

TEST(RemoteShortPairs, ASendToANodeThatAllRanksHaveLeftIsRefused) {
  RemoteWorld world(RemoteWorld::Ranks{{0}, {1}});
  world.cluster.node(1).Close(world[1], true, "left the job");
  world.Post(0, SendTo(1, RemoteWorld::kLong, 3));  // before it knows
  world.Advance();
  EXPECT_FALSE(world.cluster.node(1).JobRow(world.job.id).has_value());
  ExpectFailed(world[0], 1, Code::kPeerLost, {"rank 1 has left the job"});
  world.Post(0, SendTo(1, 4, 3));
  world.Advance();
  ExpectFailed(world[0], 2, Code::kPeerLost, {"rank 1 on node b left the job"});
}

}  // namespace
}  // namespace headrace::support
