// Operations that end well: once per rank, with the right bytes, in order, without disturbing
// others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "service/dispatch/job/block.h"
#include "tests/unit/service/dispatch/expect.h"

namespace headrace::support {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr std::uint64_t kElementsEach = 512;

std::vector<ClientEnd*> AttachAll(HandDrivenNode& node, const JobSpec& job) {
  std::vector<ClientEnd*> ranks;
  for (std::uint32_t rank = 0; rank < job.world_size; ++rank) {
    ranks.push_back(&node.Attach(job, rank));
    Fill(*ranks.back(), static_cast<float>(100 * rank));
  }
  return ranks;
}

TEST(Dispatch, EndsAnAllReduceOnEveryRankWithTheSum) {
  HandDrivenNode node;
  const std::vector<ClientEnd*> ranks = AttachAll(node, {.world_size = 4});
  for (ClientEnd* rank : ranks)
    rank->Post(OnSegment(Collective::kAllReduce, DType::kFloat32, kElementsEach));
  node.Settle();
  for (const ClientEnd* rank : ranks) {
    ExpectOk(*rank, 1);
    for (std::uint64_t i = 0; i < kElementsEach; ++i) {
      ASSERT_EQ(rank->Elements<float>()[i], 600 + 4 * static_cast<float>(i));
    }
    EXPECT_EQ(rank->Elements<float>()[kElementsEach],
              100 * static_cast<float>(rank->rank()) + kElementsEach);
  }
  EXPECT_EQ(node.Counters().operations_ended, 1U);
  EXPECT_EQ(node.Counters().operations_failed, 0U);
  EXPECT_EQ(node.Counters().bytes_moved, kElementsEach * 4);
}

TEST(Dispatch, EndsAnAllReduceOverTheSharedMemoryTransport) {
  HandDrivenNode node(SharedMemory(1));
  const std::vector<ClientEnd*> ranks = AttachAll(node, {.world_size = 3});
  for (ClientEnd* rank : ranks)
    rank->Post(OnSegment(Collective::kAllReduce, DType::kFloat32, kElementsEach));
  node.Settle();
  for (const ClientEnd* rank : ranks) {
    ExpectOk(*rank, 1);
    EXPECT_EQ(rank->Elements<float>()[7], 321);
  }
}

TEST(Dispatch, KeepsAnOperationOpenUntilTheLastRankHasPosted) {
  HandDrivenNode node;
  const std::vector<ClientEnd*> ranks = AttachAll(node, {.world_size = 3});
  ranks[2]->Post(OnSegment(Collective::kAllReduce, DType::kFloat32, kElementsEach));
  ranks[0]->Post(OnSegment(Collective::kAllReduce, DType::kFloat32, kElementsEach));
  node.Settle();
  ExpectOpen(*ranks[0], 1);
  ExpectOpen(*ranks[2], 1);
  EXPECT_TRUE(node.transport().accepted.empty());
  ranks[1]->Post(OnSegment(Collective::kAllReduce, DType::kFloat32, kElementsEach));
  node.Settle();
  for (const ClientEnd* rank : ranks) ExpectOk(*rank, 1);
}

TEST(Dispatch, CarriesOutEveryKindOfCollective) {
  HandDrivenNode node;
  const std::vector<ClientEnd*> ranks = AttachAll(node, {.world_size = 2});
  const auto all = [&](ipc::Record record) {
    for (ClientEnd* rank : ranks) rank->Post(record);
    node.Settle();
    for (const ClientEnd* rank : ranks) ExpectOk(*rank, rank->posted());
  };
  ipc::Record broadcast = OnSegment(Collective::kBroadcast, DType::kFloat32, 4);
  broadcast.root = 1;
  all(broadcast);
  EXPECT_THAT(ranks[0]->Elements<float>().first(5), ElementsAre(100, 101, 102, 103, 4));

  all(OnSegment(Collective::kReduceScatter, DType::kFloat32, 4));
  EXPECT_THAT(ranks[0]->Elements<float>().first(4), ElementsAre(200, 202, 102, 103));
  EXPECT_THAT(ranks[1]->Elements<float>().first(4), ElementsAre(100, 101, 204, 206));

  all(OnSegment(Collective::kAllGather, DType::kFloat32, 4));
  for (const ClientEnd* rank : ranks) {
    EXPECT_THAT(rank->Elements<float>().first(4), ElementsAre(200, 202, 204, 206));
  }
  const std::size_t transfers = node.transport().accepted.size();
  all(Barrier());
  EXPECT_EQ(node.transport().accepted.size(), transfers) << "a barrier moves nothing";
}

TEST(Dispatch, ReducesTheRangeOfATensorThatTheRecordNames) {
  HandDrivenNode node;
  const std::vector<ClientEnd*> ranks = AttachAll(node, {.world_size = 2});
  for (ClientEnd* rank : ranks) {
    node.AddTensor(
        *rank, TensorId{3},
        {.name = "w", .segment = {}, .offset = 16, .count = 8, .dtype = DType::kFloat32});
    ipc::Record record = OnTensor(Collective::kAllReduce, DType::kFloat32, 2, TensorId{3});
    record.offset = 24;
    rank->Post(record);
  }
  node.Settle();
  EXPECT_THAT(ranks[0]->Elements<float>().subspan(9, 4), ElementsAre(9, 120, 122, 12));
}

TEST(Dispatch, EndsAnEmptyOperationWithoutALane) {
  HandDrivenNode node;
  const std::vector<ClientEnd*> ranks = AttachAll(node, {.world_size = 2});
  for (ClientEnd* rank : ranks) rank->Post(OnSegment(Collective::kAllReduce, DType::kFloat32, 0));
  node.Settle();
  for (const ClientEnd* rank : ranks) ExpectOk(*rank, 1);
  EXPECT_TRUE(node.transport().accepted.empty());
}

TEST(Dispatch, EndsAJobOfOneRankByItself) {
  HandDrivenNode node;
  ClientEnd& rank = node.Attach({.world_size = 1}, 0);
  Fill(rank, 5);
  rank.Post(OnSegment(Collective::kAllReduce, DType::kFloat32, kElementsEach));
  node.Settle();
  ExpectOk(rank, 1);
  EXPECT_EQ(rank.Elements<float>()[1], 6);
}

TEST(Dispatch, CarriesOutAWholeRingOfOperationsInTheirOrder) {
  HandDrivenNode node(Loopback({.transfers_max = 2}));
  const std::vector<ClientEnd*> ranks = AttachAll(node, {.world_size = 2});
  for (ClientEnd* rank : ranks) {
    for (std::uint64_t i = 0; i < ipc::kOperationsMax; ++i) {
      ASSERT_TRUE(rank->HasRoom());
      rank->Post(OnSegment(Collective::kAllReduce, DType::kFloat32, 1, i * 4));
    }
    EXPECT_FALSE(rank->HasRoom());
  }
  node.Settle();
  for (std::uint64_t i = 0; i < ipc::kOperationsMax; ++i) {
    for (const ClientEnd* rank : ranks) ExpectOk(*rank, i + 1);
    EXPECT_EQ(ranks[0]->Elements<float>()[i], 100 + 2 * static_cast<float>(i));
  }
  const std::vector<std::uint64_t>& positions = node.transport().positions;
  ASSERT_EQ(positions.size(), ipc::kOperationsMax);
  for (std::size_t i = 0; i < positions.size(); ++i) {
    EXPECT_EQ(service::SequenceOf(positions[i]), i + 1);
  }
}

TEST(Dispatch, GoesRoundTheRingManyTimes) {
  HandDrivenNode node;
  const std::vector<ClientEnd*> ranks = AttachAll(node, {.world_size = 2});
  constexpr std::uint64_t kRounds = 5 * ipc::kOperationsMax + 3;
  for (std::uint64_t i = 0; i < kRounds; ++i) {
    for (ClientEnd* rank : ranks) {
      rank->PostApart(i % 3 == 0 ? Barrier() : OnSegment(Collective::kBroadcast, DType::kUInt8, 8));
    }
    if (i % 7 == 0) node.Settle();
  }
  node.Settle();
  for (const ClientEnd* rank : ranks) {
    ExpectOk(*rank, kRounds);
    EXPECT_EQ(node.RankRow(JobId{1}, rank->rank())->operations_ended, kRounds);
  }
}

TEST(Dispatch, HandsALaneNoMoreThanTheJobsCredit) {
  HandDrivenNode node(Loopback({.startup_ns = kMillisecond}), 4096);
  const std::vector<ClientEnd*> ranks = AttachAll(node, {.world_size = 2});
  for (ClientEnd* rank : ranks) {
    for (std::uint64_t i = 0; i < 5; ++i) {
      rank->Post(OnSegment(Collective::kAllReduce, DType::kUInt8, 2048, i * 2048));
    }
  }
  node.Settle();
  EXPECT_EQ(node.transport().open().size(), 2U);
  EXPECT_EQ(node.LaneRow().in_flight_bytes, 4096U);
  EXPECT_EQ(node.LaneRow().queued_stages, 3U);
  node.Advance(kMillisecond);
  EXPECT_EQ(node.transport().open().size(), 2U);
  node.Advance(kMillisecond);
  node.Advance(kMillisecond);
  node.Advance(kMillisecond);
  node.Advance(kMillisecond);
  for (const ClientEnd* rank : ranks) ExpectOk(*rank, 5);
  EXPECT_EQ(node.LaneRow().in_flight_bytes, 0U);
  EXPECT_EQ(node.LaneRow().in_flight_stages, 0U);
}

TEST(Dispatch, KeepsTwoJobsApart) {
  HandDrivenNode node(Loopback({.startup_ns = kMillisecond}));
  const std::vector<ClientEnd*> a = AttachAll(node, {.id = {7}, .name = "a", .world_size = 2});
  const std::vector<ClientEnd*> b = AttachAll(node, {.id = {8}, .name = "b", .world_size = 3});
  for (ClientEnd* rank : a) rank->Post(OnSegment(Collective::kAllReduce, DType::kFloat32, 2));
  for (ClientEnd* rank : b) rank->Post(OnSegment(Collective::kAllReduce, DType::kFloat32, 2));
  b[0]->PostApart(OnSegment(Collective::kAllReduce, DType::kFloat32, 2));
  node.Settle();
  node.Close(*b[1], false, "exited or was killed");
  node.Settle();
  for (const ClientEnd* rank : a) ExpectOpen(*rank, 1);
  node.Advance(2 * kMillisecond);
  for (const ClientEnd* rank : a) ExpectOk(*rank, 1);
  EXPECT_EQ(a[0]->Elements<float>()[1], 102);
  ExpectFailed(*b[0], 1, Code::kPeerLost, {"rank 1 (pid 1001)"});
  ExpectFailed(*b[0], 2, Code::kPeerLost, {"rank 1 (pid 1001)"});
  EXPECT_EQ(node.JobRow(JobId{7})->operations_failed, 0U);
  for (ClientEnd* rank : a) rank->Post(Barrier());
  node.Settle();
  for (const ClientEnd* rank : a) ExpectOk(*rank, 2);
}

TEST(Dispatch, GivesEveryRingItsTurn) {
  HandDrivenNode node;
  ClientEnd& busy = node.Attach({.id = {1}, .world_size = 1}, 0);
  ClientEnd& other = node.Attach({.id = {2}, .world_size = 1}, 0);
  for (std::uint64_t i = 0; i < 500; ++i) busy.Post(Barrier());
  other.Post(Barrier());
  node.TurnDispatch();
  ExpectOk(other, 1);
  ExpectOpen(busy, 500);
  node.Settle();
  ExpectOk(busy, 500);
}

TEST(Dispatch, SaysThatItHasNothingToDo) {
  HandDrivenNode node;
  ClientEnd& rank = node.Attach({.world_size = 2}, 0);
  node.Settle();
  EXPECT_FALSE(node.TurnDispatch());
  EXPECT_EQ(node.dispatch().NextDeadline(), kNever);
  EXPECT_TRUE(node.dispatch().PrepareToSleep());
  EXPECT_EQ(rank.layout().header.service_sleeps.load(), 1U) << "the client is to ring the doorbell";
  rank.Post(Barrier());
  EXPECT_EQ(rank.layout().header.service_sleeps.load(), 0U);
  EXPECT_FALSE(node.dispatch().PrepareToSleep()) << "a record came in the meantime";
  node.dispatch().Awake();
  EXPECT_TRUE(node.TurnDispatch());
  EXPECT_NE(node.dispatch().NextDeadline(), kNever);
}

}  // namespace
}  // namespace headrace::support
