// What people ask of a job takes effect where its next iteration begins, and is told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/expect_text.h"
#include "tests/unit/service/dispatch/expect.h"
#include "tests/unit/service/dispatch/planned.h"

namespace headrace::support {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using Kind = service::Steering::Kind;

const JobSpec kBertFor1s{.name = "bert", .world_size = 2, .timeout_ms = 1000};

service::SteerJob Ask(Kind kind, std::uint64_t value = 0) {
  return {JobId{1}, {.kind = kind, .value = value, .uid = 1000, .node = "a"}};
}

ipc::WaitReason ReasonOf(const ipc::QueueRow& row) {
  return static_cast<ipc::WaitReason>(row.reason);
}

// Two ranks of a job that has handed in two gradients, one block each.
struct SteeredTraining {
  explicit SteeredTraining(const MakeTransport& make = Loopback({})) : node(make) {
    for (const std::uint32_t rank : {0U, 1U}) {
      ranks[rank] = &node.Attach(kBertFor1s, rank);
      HandIn(node, *ranks[rank], layout);
    }
    Adopt(node, JobId{1}, PlanOf({{{1, 0, 100}}, {{0, 0, 100}}}));
    node.Settle();
  }
  // One gradient on both ranks; the number of the record.
  std::uint64_t Post(std::uint32_t tensor) {
    PostGradient(*ranks[0], *layout, tensor);
    return PostGradient(*ranks[1], *layout, tensor);
  }
  void ExpectEnded(std::uint64_t record) {
    for (const ClientEnd* rank : ranks) ExpectOk(*rank, record);
  }

  HandDrivenNode node;
  std::shared_ptr<const service::Layout> layout = PackedLayout({100, 100});
  std::array<ClientEnd*, 2> ranks{};
};

TEST(Steering, TakesEffectAtOnceWhereNothingIsOpen) {
  HandDrivenNode node;
  node.Attach(kBertFor1s, 0);
  node.Send(Ask(Kind::kWeight, 3));
  node.Send(Ask(Kind::kPriority, 2));
  node.Send(Ask(Kind::kLimit, 1'000'000));
  node.Settle();
  const ipc::JobRow row = *node.JobRow(JobId{1});
  EXPECT_EQ(row.weight, 3U);
  EXPECT_EQ(row.priority, 2U);
  EXPECT_EQ(row.limit_bytes_per_s, 1'000'000U);
  EXPECT_THAT(node.watch_tap().events,
              Contains(AllOf(HasSubstr("job bert"), HasSubstr("weight 3"), HasSubstr("operation 1"),
                             HasSubstr("uid 1000"), HasSubstr("node a"))));
  EXPECT_TEXTS(node.watch_tap().events);
}

// An owner who pauses and resumes for ever must not fill the log, nor hide what others ask.
TEST(Steering, IsAnEventOfWhoeverAsks) {
  HandDrivenNode node;
  node.Attach({.name = "bert", .world_size = 1, .timeout_ms = 1000, .uid = 1001}, 0);
  node.watch_tap().event_uids.clear();
  node.Send(Ask(Kind::kPause));
  node.Send(Ask(Kind::kResume));
  node.Send(Ask(Kind::kWeight, 3));
  node.Settle();
  EXPECT_THAT(node.watch_tap().event_uids, testing::ElementsAre(1000, 1000, 1000));
}

TEST(Steering, TakesEffectWithTheNextOperationThatOpens) {
  HandDrivenNode node(Loopback({.startup_ns = kMillisecond}));
  ClientEnd& a = node.Attach(kBertFor1s, 0);
  ClientEnd& b = node.Attach(kBertFor1s, 1);
  a.PostApart(kSum);
  node.Settle();
  node.Send(Ask(Kind::kWeight, 3));
  node.Settle();
  EXPECT_EQ(node.JobRow(JobId{1})->weight, 1U);
  b.PostApart(kSum);
  node.Settle();
  EXPECT_EQ(node.JobRow(JobId{1})->weight, 1U) << "the operation was open already";
  b.PostApart(kSum);
  node.Settle();
  EXPECT_EQ(node.JobRow(JobId{1})->weight, 3U);
  EXPECT_THAT(node.watch_tap().events,
              Contains(AllOf(HasSubstr("weight 3"), HasSubstr("operation 2"))));
}

TEST(Steering, TakesEffectWhereTheNextIterationBegins) {
  SteeredTraining training;
  training.Post(1);
  training.node.Settle();
  training.ranks[0]->Post(OnSegment(Collective::kAllReduce, DType::kFloat32, 4, 4096));
  PostGradient(*training.ranks[0], *training.layout, 0);
  training.node.Send(Ask(Kind::kWeight, 3));
  training.node.Settle();
  EXPECT_EQ(training.node.JobRow(JobId{1})->weight, 1U);
  PostGradient(*training.ranks[1], *training.layout, 0);
  training.node.Settle();
  EXPECT_EQ(training.node.JobRow(JobId{1})->weight, 3U);
  EXPECT_THAT(training.node.watch_tap().events,
              Contains(AllOf(HasSubstr("weight 3"), HasSubstr("iteration 2"))));
}

TEST(Steering, PutsSendsInTurnWithOtherBlocksAndBeforeThemAgain) {
  HandDrivenNode node;
  node.Attach(kBertFor1s, 0);
  node.Settle();
  const auto row = [&node] { return *node.JobRow(JobId{1}); };
  EXPECT_EQ(row().sends_class, static_cast<std::uint32_t>(SendsClass::kAbove));
  node.Send(Ask(Kind::kSends, static_cast<std::uint64_t>(SendsClass::kSame)));
  node.Settle();
  EXPECT_EQ(row().sends_class, static_cast<std::uint32_t>(SendsClass::kSame));
  node.Send(Ask(Kind::kSends, static_cast<std::uint64_t>(SendsClass::kAbove)));
  node.Settle();
  EXPECT_EQ(row().sends_class, static_cast<std::uint32_t>(SendsClass::kAbove));
  EXPECT_TEXTS(node.watch_tap().events);
}

TEST(Steering, OnlyTheLastRequestOfAKindCounts) {
  HandDrivenNode node;
  ClientEnd& a = node.Attach(kBertFor1s, 0);
  a.PostApart(kSum);
  node.Settle();
  node.Send(Ask(Kind::kWeight, 3));
  node.Send(Ask(Kind::kWeight, 5));
  node.Settle();
  a.PostApart(kSum);
  node.Settle();
  EXPECT_EQ(node.JobRow(JobId{1})->weight, 5U);
  EXPECT_THAT(node.watch_tap().events, testing::Not(Contains(HasSubstr("weight 3"))));
}

TEST(Steering, EndsWithAJobWhoseRanksMayComeBackAndIsToldThen) {
  HandDrivenNode node;
  ClientEnd& a = node.Attach(kBertFor1s, 0);
  node.Send(Ask(Kind::kWeight, 3));
  node.Send(Ask(Kind::kLimit, 1'000'000));
  node.Settle();
  node.Close(a, false, "exited or was killed");
  node.Settle();
  EXPECT_THAT(node.watch_tap().events,
              Contains(AllOf(HasSubstr("weight 3"), HasSubstr("1000000 bytes/s"))));
  EXPECT_TEXTS(node.watch_tap().events);
}

TEST(Steering, EndsWithAJobWhoseRanksHaveLeftWithoutAWord) {
  HandDrivenNode node;
  ClientEnd& a = node.Attach(kBertFor1s, 0);
  node.Send(Ask(Kind::kWeight, 3));
  node.Settle();
  node.Close(a, true, "left the job");
  node.Settle();
  EXPECT_THAT(node.watch_tap().events, Not(Contains(HasSubstr("settings"))));
  EXPECT_TEXTS(node.watch_tap().events);
}

TEST(Pause, LetsWhatIsOpenEndAndNothingBegin) {
  HandDrivenNode node(Loopback({.startup_ns = kMillisecond}));
  ClientEnd& a = node.Attach(kBertFor1s, 0);
  ClientEnd& b = node.Attach(kBertFor1s, 1);
  a.PostApart(kSum);
  b.PostApart(kSum);
  node.Settle();
  node.Send(Ask(Kind::kPause));
  node.Settle();
  for (ClientEnd* rank : {&a, &b}) {
    rank->PostApart(kSum);
    rank->Post(Barrier());
  }
  node.Advance(kMillisecond);
  ExpectOk(a, 1);
  EXPECT_EQ(node.JobRow(JobId{1})->paused, 1U);
  const ipc::QueueRow row = *node.QueueRow(JobId{1}, 2);
  EXPECT_EQ(ReasonOf(row), ipc::WaitReason::kPaused);
  EXPECT_EQ(row.wait_argument, 1000U);
  // Its timeout of a second passes ten times.
  node.Advance(10 * kSecond);
  ExpectOpen(a, 2);
  ExpectOpen(a, 3);
  EXPECT_EQ(node.dispatch().NextDeadline(), kNever);

  node.Send(Ask(Kind::kResume));
  node.Settle();
  node.Advance(kMillisecond);
  for (const ClientEnd* rank : {&a, &b}) {
    ExpectOk(*rank, 2);
    ExpectOk(*rank, 3);
  }
  EXPECT_EQ(node.JobRow(JobId{1})->paused, 0U);
  EXPECT_THAT(node.watch_tap().events,
              Contains(AllOf(HasSubstr("paused"), HasSubstr("operation 2"))));
  EXPECT_THAT(node.watch_tap().events, Contains(HasSubstr("10001 ms")));
  EXPECT_TEXTS(node.watch_tap().events);
}

TEST(Pause, PushesDeadlinesBackByItsLength) {
  HandDrivenNode node;
  ClientEnd& a = node.Attach(kBertFor1s, 0);
  node.Attach(kBertFor1s, 1);
  a.PostApart(kSum);
  node.Settle();
  node.Advance(300 * kMillisecond);
  node.Send(Ask(Kind::kPause));
  node.Settle();
  node.Advance(5 * kSecond);
  a.PostApart(kSum);  // opens, so that the pause is in force
  node.Advance(kSecond);
  node.Send(Ask(Kind::kResume));
  node.Settle();
  node.Advance(700 * kMillisecond - 1);
  ExpectOpen(a, 1);
  node.Advance(1);
  ExpectFailed(a, 1, Code::kTimeout, {"rank 1"});
  ExpectOpen(a, 2);
  node.Advance(300 * kMillisecond);
  ExpectFailed(a, 2, Code::kTimeout, {"rank 1"});
}

TEST(Pause, OfAJobThatTrainsLetsTheIterationEnd) {
  SteeredTraining training;
  training.Post(1);
  training.node.Settle();
  PostGradient(*training.ranks[0], *training.layout, 0);
  training.node.Settle();
  training.node.Send(Ask(Kind::kPause));
  training.node.Settle();
  PostGradient(*training.ranks[1], *training.layout, 0);
  training.node.Settle();
  training.ExpectEnded(2);
  const std::uint64_t next = training.Post(1);
  training.Post(0);
  training.node.Advance(10 * kSecond);
  for (const ClientEnd* rank : training.ranks) ExpectOpen(*rank, next);
  EXPECT_EQ(ReasonOf(*training.node.QueueRow(JobId{1}, 1)), ipc::WaitReason::kPaused);
  training.node.Send(Ask(Kind::kResume));
  training.node.Settle();
  training.ExpectEnded(next);
  training.ExpectEnded(next + 1);
  EXPECT_THAT(training.node.watch_tap().events,
              Contains(AllOf(HasSubstr("paused"), HasSubstr("iteration 2"))));
  EXPECT_TEXTS(training.node.watch_tap().events);
}

TEST(Pause, CanBeTakenBackBeforeItIsInForce) {
  SteeredTraining training;
  training.Post(1);
  training.node.Settle();
  PostGradient(*training.ranks[0], *training.layout, 0);
  training.node.Send(Ask(Kind::kPause));
  training.node.Send(Ask(Kind::kResume));
  training.node.Settle();
  PostGradient(*training.ranks[1], *training.layout, 0);
  const std::uint64_t next = training.Post(1);
  training.node.Settle();
  training.ExpectEnded(next);
}

TEST(Cancel, EndsWhatIsOpenAndWhatComesWhateverIsPaused) {
  HandDrivenNode node(Loopback({.startup_ns = kSecond / 2}));
  ClientEnd& a = node.Attach(kBertFor1s, 0);
  ClientEnd& b = node.Attach(kBertFor1s, 1);
  node.Send(Ask(Kind::kPause));
  a.PostApart(kSum);
  b.PostApart(kSum);
  a.PostApart(kSum);
  node.Settle();
  node.Send(Ask(Kind::kCancel));
  node.Send(Ask(Kind::kCancel));
  node.Settle();
  a.PostApart(kSum);
  node.Settle();
  for (std::uint64_t operation = 1; operation <= 3; ++operation) {
    ExpectFailed(a, operation, Code::kCancelled, {"uid 1000", "node a"});
  }
  ExpectFailed(b, 1, Code::kCancelled, {"uid 1000", "node a"});
  EXPECT_EQ(node.JobRow(JobId{1})->state, static_cast<std::uint32_t>(ipc::JobState::kFailed));
}

TEST(Evict, HasRpcEndTheLeaseOfThatRankOnly) {
  HandDrivenNode node;
  node.Attach(kBertFor1s, 0);
  ClientEnd& b = node.Attach(kBertFor1s, 1);
  node.Settle();
  node.Send(Ask(Kind::kEvict, 2));  // another node's, or nobody's
  node.Send(Ask(Kind::kEvict, 1));
  node.Settle();
  const auto broken = node.rpc().Of<service::SessionBroken>();
  ASSERT_EQ(broken.size(), 1U);
  EXPECT_EQ(broken[0]->session, b.id());
  EXPECT_TRUE(broken[0]->evicted);
  EXPECT_EQ(broken[0]->error.code(), Code::kPeerLost);
  EXPECT_THAT(broken[0]->error.text(), AllOf(HasSubstr("evicted"), HasSubstr("uid 1000")));
  EXPECT_EQ(node.JobRow(JobId{1})->state, static_cast<std::uint32_t>(ipc::JobState::kRunning))
      << "it fails with the lease's end";
}

TEST(Limit, LetsAJobMoveNoMoreThanItMay) {
  HandDrivenNode node;
  ClientEnd& a = node.Attach({.name = "bert", .world_size = 1}, 0, std::size_t{4} << 20);
  node.Send(Ask(Kind::kLimit, 1'000'000));
  const ipc::Record large = OnSegment(Collective::kAllReduce, DType::kFloat32, 10'000);
  for (int i = 0; i < 100; ++i) a.PostApart(large);
  const TimeNs begin = node.now;
  node.Settle();
  EXPECT_EQ(ReasonOf(*node.QueueRow(JobId{1}, 2)), ipc::WaitReason::kRateLimit);
  while (!a.HasEnded(100)) {
    ASSERT_LT(node.dispatch().NextDeadline(), node.now + kSecond);
    node.Advance(node.dispatch().NextDeadline() - node.now);
  }
  // The last of 100 times 40 ms goes when the others are paid for.
  EXPECT_NEAR(static_cast<double>(node.now - begin), 99 * 40e6, 1e3);
}

}  // namespace
}  // namespace headrace::support
