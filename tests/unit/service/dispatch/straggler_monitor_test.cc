// What waits longer than it should is reported once, by name, and once more when it goes on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/expect_text.h"
#include "tests/unit/service/dispatch/expect.h"
#include "tests/unit/service/dispatch/planned.h"

namespace headrace::support {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::uint32_t kOwner = 1001;

struct LateNode {
  explicit LateNode(std::uint32_t world_size = 3, const transport::LoopbackOptions& options = {},
                    std::uint64_t credit_bytes = 1 << 20)
      : node(Loopback(options), credit_bytes) {
    node.dispatch().ReportLate(5 * kSecond);
    for (std::uint32_t rank = 0; rank < world_size; ++rank) {
      ranks.push_back(&node.Attach(
          {.name = "bert", .world_size = world_size, .timeout_ms = 600'000, .uid = kOwner}, rank));
    }
    node.Settle();
  }
  const std::vector<std::string>& events() { return node.watch_tap().events; }

  HandDrivenNode node;
  std::vector<ClientEnd*> ranks;
};

TEST(StragglerMonitor, NamesTheRankThatHasNotPostedAnOperationOnce) {
  LateNode late;
  late.ranks[0]->PostApart(kSum);
  late.node.Settle();
  late.node.Advance(kSecond);
  late.ranks[1]->PostApart(kSum);
  late.node.Advance(4 * kSecond - 1);
  EXPECT_THAT(late.events(), IsEmpty());
  late.node.Advance(1);
  ASSERT_EQ(std::size(late.events()), 1U);
  EXPECT_TEXT(late.events()[0], "rank 2", "pid 1002", "operation 1", "float32", "job bert");
  for (int second = 0; second < 60; ++second) late.node.Advance(kSecond);
  EXPECT_EQ(late.events().size(), 1U);
  EXPECT_EQ(late.node.Counters().late_reports, 1U);
  late.ranks[2]->PostApart(kSum);
  late.node.Settle();
  ASSERT_EQ(late.events().size(), 2U);
  EXPECT_TEXT(late.events()[1], "operation 1", "float32", "65.0", "job bert");
  EXPECT_THAT(late.node.watch_tap().event_uids, testing::ElementsAre(kOwner, kOwner));
  ExpectOk(*late.ranks[0], 1);
}

TEST(StragglerMonitor, ReportsAHangOnceHoweverManyOperationsStandBehindIt) {
  LateNode late;
  for (int i = 0; i < 50; ++i) {
    late.ranks[0]->PostApart(kSum);
    late.ranks[1]->PostApart(kSum);
  }
  for (int second = 0; second < 30; ++second) late.node.Advance(kSecond);
  EXPECT_EQ(late.events().size(), 1U);
  for (int i = 0; i < 50; ++i) late.ranks[2]->PostApart(kSum);
  late.node.Settle();
  for (int second = 0; second < 30; ++second) late.node.Advance(kSecond);
  EXPECT_EQ(late.events().size(), 2U) << "it went on, and so did the others";
}

TEST(StragglerMonitor, NamesAllWhoAreMissing) {
  LateNode late;
  late.ranks[1]->PostApart(kSum);
  late.node.Settle();
  late.node.Advance(5 * kSecond);
  ASSERT_EQ(late.events().size(), 1U);
  EXPECT_TEXT(late.events()[0], "rank 0", "pid 1000", "rank 2", "pid 1002");
}

TEST(StragglerMonitor, SaysThatARankIsNotAttached) {
  HandDrivenNode node;
  node.dispatch().ReportLate(5 * kSecond);
  node.Attach({.world_size = 2}, 0).PostApart(kSum);
  node.Settle();
  node.Advance(5 * kSecond);
  ASSERT_EQ(node.watch_tap().events.size(), 1U);
  EXPECT_TEXT(node.watch_tap().events[0], "rank 1", "5.0 s");
}

TEST(StragglerMonitor, IsSilentWithoutABoundAndWhileNothingWaits) {
  LateNode late;
  late.node.dispatch().ReportLate(0);
  late.ranks[0]->PostApart(kSum);
  late.node.Settle();
  late.node.Advance(100 * kSecond);
  EXPECT_THAT(late.events(), IsEmpty());

  LateNode idle;
  for (ClientEnd* rank : idle.ranks) rank->PostApart(kSum);
  idle.node.Settle();
  ExpectOk(*idle.ranks[0], 1);
  idle.node.Advance(5 * kSecond);  // the look that was due
  EXPECT_THAT(idle.events(), IsEmpty());
  // The operations' own deadlines remain; a look is not among what is to come.
  EXPECT_GE(idle.node.dispatch().NextDeadline(), idle.node.now + 100 * kSecond);
}

TEST(StragglerMonitor, LeavesWhatFailsToItsFailure) {
  LateNode late;
  late.ranks[0]->PostApart(kSum);
  late.node.Settle();
  late.node.Advance(5 * kSecond);
  late.node.Close(*late.ranks[2], false, "exited or was killed");
  late.node.Settle();
  for (const std::string& event : late.events()) EXPECT_THAT(event, Not(HasSubstr("went on")));
}

TEST(StragglerMonitor, SaysLaneAndStageOfWhatMovesTooLong) {
  LateNode late(1, {.startup_ns = 8 * kSecond}, 64);
  late.ranks[0]->PostApart(kSum);
  late.ranks[0]->PostApart(kSum);
  late.node.Settle();
  late.node.Advance(5 * kSecond);
  ASSERT_EQ(late.events().size(), 1U);
  EXPECT_TEXT(late.events()[0], "operation 1", "lane0", "5.0 s");
  late.node.Advance(3 * kSecond);
  ASSERT_EQ(late.events().size(), 2U);
  EXPECT_TEXT(late.events()[1], "8.0 s");
}

TEST(StragglerMonitor, TellsOnlySoMuchButCountsAll) {
  LateNode late(2);
  for (int i = 0; i < 20; ++i) {
    late.ranks[0]->PostApart(kSum);
    late.node.Settle();
    late.node.Advance(5 * kSecond);
    late.ranks[1]->PostApart(kSum);
    late.node.Settle();
  }
  EXPECT_EQ(late.node.Counters().late_reports, 20U);
  // Eight, one more for each full minute, and as many that went on.
  EXPECT_EQ(late.events().size(), 2 * (8 + 1U));
}

struct LateTraining : LateNode {
  LateTraining() : LateNode(3) {
    for (ClientEnd* rank : ranks) HandIn(node, *rank, layout);
    Adopt(node, JobId{1}, PlanOf({{{1, 0, 16}}, {{0, 0, 8}}}));
    node.Settle();
  }
  std::shared_ptr<const service::Layout> layout = PackedLayout({8, 16});
};

TEST(StragglerMonitor, NamesTheRankAndTheGradientThatAPlanWaitsFor) {
  LateTraining late;
  for (const std::uint32_t rank : {0U, 2U}) PostGradient(*late.ranks[rank], *late.layout, 1);
  late.node.Settle();
  late.node.Advance(5 * kSecond);
  ASSERT_EQ(std::size(late.events()), 1U);
  EXPECT_TEXT(late.events()[0], "rank 1", "pid 1001", "gradient 1", "iteration 1", "job bert");
  for (int second = 0; second < 20; ++second) late.node.Advance(kSecond);
  EXPECT_EQ(late.events().size(), 1U);
  PostGradient(*late.ranks[1], *late.layout, 1);
  late.node.Settle();
  ASSERT_EQ(late.events().size(), 2U);
  EXPECT_TEXT(late.events()[1], "gradient 1", "iteration 1", "25.0", "job bert");
}

TEST(StragglerMonitor, LetsABackwardPassTakeItsTimeAsLongAsGradientsCome) {
  LateTraining late;
  for (ClientEnd* rank : late.ranks) PostGradient(*rank, *late.layout, 1);
  late.node.Settle();
  // Nothing is open: a rank computes as long as it likes.
  for (int second = 0; second < 60; ++second) late.node.Advance(kSecond);
  EXPECT_THAT(late.events(), IsEmpty());
  PostGradient(*late.ranks[0], *late.layout, 0);
  late.node.Settle();
  late.node.Advance(4 * kSecond);
  EXPECT_THAT(late.events(), IsEmpty());
  late.node.Advance(kSecond);
  EXPECT_EQ(late.events().size(), 1U);
}

TEST(StragglerMonitor, NamesWhoHasNotHandedInItsLayoutWhenThereIsNoPlan) {
  LateNode late;
  const auto layout = PackedLayout({8, 16});
  for (const std::uint32_t rank : {0U, 1U}) HandIn(late.node, *late.ranks[rank], layout);
  PostGradient(*late.ranks[0], *layout, 1);
  late.node.Settle();
  late.node.Advance(5 * kSecond);
  ASSERT_EQ(std::size(late.events()), 1U);
  EXPECT_TEXT(late.events()[0], "gradient 1", "iteration 1", "rank 2", "pid 1002", "job bert");
}

TEST(StragglerMonitor, DoesNotReportAJobWhileItIsPausedNorForTheTimeItWas) {
  LateNode late;
  const auto reported = [&late] {
    return testing::Matches(testing::Contains(HasSubstr("not posted")))(late.events());
  };
  late.node.Send(service::SteerJob{JobId{1}, {.kind = service::Steering::Kind::kPause}});
  late.node.Settle();
  late.ranks[0]->PostApart(kSum);
  late.node.Settle();
  for (int second = 0; second < 60; ++second) late.node.Advance(kSecond);
  EXPECT_FALSE(reported());
  late.node.Send(service::SteerJob{JobId{1}, {.kind = service::Steering::Kind::kResume}});
  late.node.Settle();
  late.node.Advance(5 * kSecond - 1);
  EXPECT_FALSE(reported());
  late.node.Advance(1);
  EXPECT_TRUE(reported());
}

}  // namespace
}  // namespace headrace::support
