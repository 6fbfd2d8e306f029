// Several jobs on one node: they share the lane by weight, and a small operation does not wait for
// another job's whole model. And what one uid may have open.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "service/dispatch/lanes/recent_users.h"
#include "tests/unit/service/dispatch/expect.h"

namespace headrace::support {
namespace {

constexpr std::size_t kMega = std::size_t{1} << 20;
const JobSpec kA{.id = JobId{1}, .name = "a", .world_size = 2};
const JobSpec kB{.id = JobId{2}, .name = "b", .world_size = 2};

struct Pair {
  Pair(HandDrivenNode& node, const JobSpec& job, std::size_t segment_size)
      : ranks{&node.Attach(job, 0, segment_size), &node.Attach(job, 1, segment_size)} {}
  std::uint64_t Post(const ipc::Record& record) {
    ranks[0]->Post(record);
    return ranks[1]->Post(record);
  }
  std::array<ClientEnd*, 2> ranks;
};

const ipc::Record kSmall = OnSegment(Collective::kAllReduce, DType::kFloat32, 16);

// So that others know it for one that moves.
void MoveSomething(HandDrivenNode& node, Pair& pair) {
  node.Advance(kMillisecond);  // its clock is not at its zero
  const std::uint64_t sequence = pair.Post(kSmall);
  node.Settle();
  node.Advance(kMillisecond);
  ExpectOk(*pair.ranks[0], sequence);
}

TEST(Sharing, GivesJobsTheirWeightsOfALaneUnderLoad) {
  HandDrivenNode node(Loopback({.piece_size = kMega, .ns_per_byte = 1}), 8 * kMega);
  constexpr std::uint64_t kOpen = 12;
  Pair a(node, kA, kOpen * kMega / 2);
  Pair b(node, kB, kOpen * kMega / 2);
  node.Send(service::SteerJob{kA.id, {.kind = service::Steering::Kind::kWeight, .value = 3}});
  node.Settle();
  // Each of those that are open has memory of its own.
  const auto half = [](std::uint64_t number) {
    return OnSegment(Collective::kAllReduce, DType::kFloat32, kMega / 8,
                     number % kOpen * kMega / 2);
  };
  std::uint64_t posted = 0;
  std::uint64_t ended_a = 0;
  std::uint64_t ended_b = 0;
  for (int i = 0; i < 400; ++i) {
    while (posted < ended_a + kOpen) a.Post(half(posted++));
    while (b.ranks[0]->posted() < ended_b + kOpen) b.Post(half(b.ranks[0]->posted()));
    node.Advance(kMillisecond / 2);
    ended_a = node.JobRow(kA.id)->operations_ended;
    ended_b = node.JobRow(kB.id)->operations_ended;
  }
  EXPECT_GT(ended_a + ended_b, 300U) << "the lane is always busy";
  EXPECT_NEAR(static_cast<double>(ended_a) / static_cast<double>(ended_b), 3, 0.15);
}

TEST(Sharing, ASmallOperationWaitsForABlockOfAnotherJobsLargeOne) {
  HandDrivenNode node(Loopback({.piece_size = kMega, .ns_per_byte = 1}), 64 * kMega);
  Pair a(node, kA, 32 * kMega);
  Pair b(node, kB, 4096);
  MoveSomething(node, b);
  a.Post(OnSegment(Collective::kAllReduce, DType::kFloat32, 8 * kMega));
  node.Settle();
  const std::uint64_t small = b.Post(kSmall);
  node.Settle();
  // Two blocks of 1 MiB were picked before it; the whole operation is 32 of them.
  for (int block = 0; block < 3; ++block) node.Advance(static_cast<TimeNs>(kMega) + kMicrosecond);
  ExpectOk(*b.ranks[0], small);
  ExpectOpen(*a.ranks[0], 1);
}

TEST(Sharing, AJobThatIsAloneMovesItsOperationsWhole) {
  HandDrivenNode node(Loopback({}), 64 * kMega);
  Pair a(node, kA, 8 * kMega);
  a.Post(OnSegment(Collective::kAllReduce, DType::kFloat32, 2 * kMega));
  node.Settle();
  ExpectOk(*a.ranks[0], 1);
  EXPECT_EQ(node.LaneRow().stages_ended, 1U);
}

TEST(Sharing, AJobBesideOneThatHangsMovesItsOperationsWhole) {
  HandDrivenNode node(Loopback({}), 64 * kMega);
  Pair a(node, kA, 8 * kMega);
  Pair hung(node, kB, 4096);
  MoveSomething(node, hung);
  hung.ranks[0]->Post(kSmall);  // and the other rank never does
  node.Advance(service::RecentUsers::kRecent);
  const std::uint64_t before = node.LaneRow().stages_ended;
  const std::uint64_t large = a.Post(OnSegment(Collective::kAllReduce, DType::kFloat32, 2 * kMega));
  node.Settle();
  ExpectOk(*a.ranks[0], large);
  EXPECT_EQ(node.LaneRow().stages_ended, before + 1);
}

// Cut into blocks, every collective still gives what it gives as a whole.
TEST(Sharing, CutsEveryCollectiveIntoBlocksThatTogetherAreIt) {
  constexpr std::size_t kCount = 3 * kMega / 4 - 2;  // elements: almost 3 MiB
  for (const Collective kind : {Collective::kAllReduce, Collective::kReduceScatter,
                                Collective::kAllGather, Collective::kBroadcast}) {
    std::array<std::array<std::vector<float>, 2>, 2> results;  // alone or not, by rank
    for (const bool shared : {false, true}) {
      HandDrivenNode node(Loopback({.piece_size = kMega}), 8 * kMega);
      Pair a(node, kA, 3 * kMega);
      Pair b(node, kB, 4096);
      node.Settle();  // both have come
      node.Advance(service::RecentUsers::kRecent);
      if (shared) MoveSomething(node, b);
      for (std::size_t rank = 0; rank < 2; ++rank) {
        const std::span<float> memory = a.ranks[rank]->Elements<float>();
        for (std::size_t i = 0; i < memory.size(); ++i) {
          memory[i] = static_cast<float>((i * 7 + rank * 13) % 1024);
        }
      }
      ipc::Record record = OnSegment(kind, DType::kFloat32, kCount);
      record.root = kind == Collective::kBroadcast ? 1 : 0;
      const std::uint64_t before = node.LaneRow().stages_ended;
      a.Post(record);
      node.Settle();
      const std::uint64_t stages = node.LaneRow().stages_ended - before;
      EXPECT_EQ(
          stages,
          shared ? (kind == Collective::kReduceScatter || kind == Collective::kAllGather ? 4U : 3U)
                 : 1U);
      for (std::size_t rank = 0; rank < 2; ++rank) {
        ExpectOk(*a.ranks[rank], 1);
        std::span<float> memory = a.ranks[rank]->Elements<float>();
        // Only the rank's own part is the result of a reduce-scatter.
        if (kind == Collective::kReduceScatter)
          memory = memory.subspan(rank * kCount / 2, kCount / 2);
        results[shared ? 1 : 0][rank].assign(memory.begin(), memory.end());
      }
    }
    EXPECT_EQ(results[0], results[1]) << Name(kind);
  }
}

TEST(Quota, RefusesAPostBeyondItAndSaysWhoseAndWhatToDo) {
  HandDrivenNode node(Loopback({.startup_ns = kMillisecond}));
  node.dispatch().LimitPosts(4);
  Pair a(node, kA, 4096);
  Pair b(node, kB, 4096);
  a.Post(kSmall);
  b.Post(kSmall);
  node.Settle();
  b.ranks[0]->Post(kSmall);
  node.Settle();
  ExpectFailed(*b.ranks[0], 2, Code::kExhausted, {"uid 0"});
  EXPECT_EQ(node.Counters().quota_refusals, 1U);
  node.Advance(5 * kMillisecond);
  ExpectOk(*a.ranks[0], 1);
  ExpectOk(*b.ranks[0], 1);
  b.ranks[1]->Post(kSmall);  // learns the same
  node.Settle();
  ExpectFailed(*b.ranks[1], 2, Code::kExhausted, {});
  const std::uint64_t again = b.Post(kSmall);
  node.Settle();
  node.Advance(5 * kMillisecond);
  ExpectOk(*b.ranks[0], again);
}

TEST(Ping, IsAnsweredByDispatchAndByEveryLane) {
  HandDrivenNode node;
  node.Send(service::Ping{77});
  node.Settle();
  const auto pongs = node.rpc().Of<service::Pong>();
  ASSERT_EQ(pongs.size(), 1U);
  EXPECT_EQ(pongs[0]->token, 77U);
  EXPECT_EQ(pongs[0]->lanes_count, 1U);
  const auto answers = node.rpc().Of<service::LaneAnswered>();
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(answers[0]->lane, 0U);
  EXPECT_EQ(answers[0]->token, 77U);
  EXPECT_TRUE(answers[0]->status);
}

}  // namespace
}  // namespace headrace::support
