// Jobs whose ranks are on several nodes: the unchanged dispatch, queue, lanes and exchange of each,
// over a simulated network.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "service/dispatch/job/block.h"
#include "tests/support/expect_text.h"
#include "tests/support/hand_driven_cluster.h"
#include "tests/unit/service/dispatch/expect.h"

namespace headrace::support {
namespace {

using Ranks = std::vector<std::vector<std::uint32_t>>;

constexpr std::uint64_t kLargest = 1200;  // elements of the largest operation, in several blocks

// A job over the nodes of a cluster, with all ranks attached and its links open.
struct Spread {
  explicit Spread(Ranks ranks_of_nodes, bool form = true, ClusterSpec spec = {})
      : ranks(std::move(ranks_of_nodes)), cluster(With(spec, ranks.size())) {
    for (const auto& node : ranks) job.world_size += static_cast<std::uint32_t>(node.size());
    clients.resize(job.world_size);
    for (std::size_t node = 0; node < ranks.size(); ++node) {
      for (const std::uint32_t rank : ranks[node]) {
        clients[rank] = &cluster.node(node).Attach(job, rank);
        Fill(*clients[rank], static_cast<float>(100 * rank));
      }
    }
    if (form) cluster.Form(job, ranks);
    cluster.Advance(kMillisecond);
  }

  static ClusterSpec With(ClusterSpec spec, std::size_t nodes_count) {
    spec.nodes_count = static_cast<std::uint32_t>(nodes_count);
    return spec;
  }
  void PostAll(const ipc::Record& record) {
    for (ClientEnd* client : clients) client->Post(record);
  }
  std::vector<float> Values(std::uint32_t rank, std::size_t begin, std::size_t count) const {
    const std::span<float> all = clients[rank]->Elements<float>();
    return {all.begin() + static_cast<std::ptrdiff_t>(begin),
            all.begin() + static_cast<std::ptrdiff_t>(begin + count)};
  }
  std::vector<const service::JobFailed*> Broken(std::size_t node) {
    return cluster.node(node).peers().Of<service::JobFailed>();
  }

  Ranks ranks;
  JobSpec job{.world_size = 0, .rendezvous = "a:7733"};
  HandDrivenCluster cluster;
  std::vector<ClientEnd*> clients;  // by rank
};

const std::vector<Ranks> kSpreads = {
    {{0}, {1}}, {{0, 1}, {2}}, {{0, 3}, {1, 2, 4}}, {{0}, {1}, {2}}, {{0, 1, 2}, {3}, {4, 5}}};

TEST(Nodes, SumAnAllReduceOverEveryRankOfEveryNode) {
  for (const Ranks& ranks : kSpreads) {
    Spread spread(ranks);
    spread.PostAll(OnSegment(Collective::kAllReduce, DType::kFloat32, kLargest));
    spread.cluster.Advance(kSecond);
    const auto world = static_cast<float>(spread.job.world_size);
    for (const ClientEnd* client : spread.clients) {
      ExpectOk(*client, 1);
      for (std::uint64_t i = 0; i < kLargest; ++i) {
        ASSERT_EQ(client->Elements<float>()[i],
                  100 * world * (world - 1) / 2 + world * static_cast<float>(i));
      }
      EXPECT_EQ(client->Elements<float>()[kLargest],
                100 * static_cast<float>(client->rank()) + kLargest);
    }
  }
}

TEST(Nodes, AreNamedToPeopleWhenTheyHaveMet) {
  Spread spread(Ranks{{0, 1}, {2}});
  ASSERT_EQ(spread.cluster.node(1).watch_tap().events.size(), 1U);
  EXPECT_TEXT(spread.cluster.node(1).watch_tap().events[0], "a (ranks 0, 1)", "b (rank 2)");
}

TEST(Nodes, DivideAnAverageByAllRanks) {
  Spread spread(Ranks{{0, 1}, {2}});
  ipc::Record record = OnSegment(Collective::kAllReduce, DType::kFloat32, kLargest);
  record.reduction = static_cast<std::uint8_t>(Reduction::kAverage);
  spread.PostAll(record);
  spread.cluster.Advance(kSecond);
  for (const ClientEnd* client : spread.clients) {
    ExpectOk(*client, 1);
    EXPECT_EQ(client->Elements<float>()[0], 100);
    EXPECT_EQ(client->Elements<float>()[kLargest - 1], 100 + kLargest - 1);
  }
}

TEST(Nodes, ReduceScatterGivesEachRankItsPartAndLeavesTheOthers) {
  for (const Ranks& ranks : kSpreads) {
    Spread spread(ranks);
    const std::uint32_t world = spread.job.world_size;
    const std::uint64_t part = 400;
    spread.PostAll(OnSegment(Collective::kReduceScatter, DType::kFloat32, part * world));
    spread.cluster.Advance(kSecond);
    const auto ranks_sum = static_cast<float>(100 * world * (world - 1) / 2);
    for (std::uint32_t rank = 0; rank < world; ++rank) {
      ExpectOk(*spread.clients[rank], 1);
      for (std::uint64_t i = 0; i < part * world; ++i) {
        const float own = static_cast<float>(100 * rank) + static_cast<float>(i);
        const float sum = ranks_sum + static_cast<float>(world) * static_cast<float>(i);
        ASSERT_EQ(spread.clients[rank]->Elements<float>()[i], i / part == rank ? sum : own)
            << "rank " << rank << " element " << i;
      }
    }
  }
}

// Parts of ranks elsewhere are summed in memory of the service's own.
TEST(Nodes, BookScratchForSumsOfOtherNodesRanksOnce) {
  Spread spread({{0, 1}, {2}});
  spread.PostAll(OnSegment(Collective::kAllReduce, DType::kFloat32, 300));
  spread.cluster.Advance(kSecond);
  HandDrivenNode& node = spread.cluster.node(0);
  EXPECT_TRUE(node.rpc().Of<service::BookScratch>().empty()) << "nothing has needed it";
  for (int i = 0; i < 2; ++i) {
    spread.PostAll(OnSegment(Collective::kReduceScatter, DType::kFloat32, 1200));
    spread.cluster.Advance(kSecond);
  }
  const auto booked = node.rpc().Of<service::BookScratch>();
  ASSERT_EQ(booked.size(), 1U);
  EXPECT_EQ(booked[0]->session, spread.clients[0]->id());
  EXPECT_EQ(booked[0]->bytes, 8U * 1024) << "eight blocks";
  EXPECT_TRUE(spread.cluster.node(1).rpc().Of<service::BookScratch>().empty())
      << "one rank sums in its own memory";
}

TEST(Nodes, EndTheJobByNameWhereItsUserMayNotHaveScratch) {
  Spread spread({{0, 1}, {2}});
  spread.cluster.node(0).LimitScratch(100);
  spread.PostAll(OnSegment(Collective::kReduceScatter, DType::kFloat32, 1200));
  spread.cluster.Advance(kSecond);
  ExpectFailed(*spread.clients[0], 1, Code::kExhausted,
               {"sum for ranks of other nodes", "memory_per_uid"});
}

TEST(Nodes, AllGatherAndBroadcastReachEveryRank) {
  for (const Ranks& ranks : kSpreads) {
    Spread spread(ranks);
    const std::uint32_t world = spread.job.world_size;
    const std::uint64_t part = 400;
    spread.PostAll(OnSegment(Collective::kAllGather, DType::kFloat32, part * world));
    spread.cluster.Advance(kSecond);
    for (std::uint32_t rank = 0; rank < world; ++rank) {
      ExpectOk(*spread.clients[rank], 1);
      for (std::uint64_t i = 0; i < part * world; ++i) {
        ASSERT_EQ(spread.clients[rank]->Elements<float>()[i],
                  static_cast<float>(100 * (i / part)) + static_cast<float>(i));
      }
      Fill(*spread.clients[rank], static_cast<float>(100 * rank));
    }
    for (std::uint32_t root = 0; root < world; ++root) {
      ipc::Record record = OnSegment(Collective::kBroadcast, DType::kFloat32, kLargest);
      record.root = root;
      for (std::uint32_t rank = 0; rank < world; ++rank) {
        Fill(*spread.clients[rank], static_cast<float>(100 * rank));
      }
      spread.PostAll(record);
      spread.cluster.Advance(kSecond);
      for (const ClientEnd* client : spread.clients) {
        ExpectOk(*client, client->posted());
        EXPECT_EQ(client->Elements<float>()[kLargest - 1],
                  static_cast<float>(100 * root) + kLargest - 1);
      }
    }
  }
}

// A broadcast has no step before the one between nodes, a sum of several ranks has. Sums keep the
// order of their posts, and so do broadcasts.
TEST(Nodes, CarryOutCollectivesOfDifferentStagesInTheOrderOfTheirPosts) {
  Spread spread(Ranks{{0, 1}, {2}}, true, {.make = Loopback({.startup_ns = 100 * kMicrosecond})});
  for (unsigned i = 0; i < 3; ++i) {
    spread.PostAll(OnSegment(Collective::kAllReduce, DType::kFloat32, 10, 400U * i));
    spread.PostAll(OnSegment(Collective::kBroadcast, DType::kFloat32, 10, 4000 + 40U * i));
    spread.PostAll(Barrier());
  }
  spread.cluster.Advance(kSecond);
  for (const ClientEnd* client : spread.clients) {
    for (std::uint64_t sequence = 1; sequence <= 9; ++sequence) ExpectOk(*client, sequence);
    EXPECT_EQ(client->Elements<float>()[9], 300 + 3 * 9);
    EXPECT_EQ(client->Elements<float>()[1009], 1009);
  }
}

// The sum has a step inside node a to begin with.
TEST(Nodes, LetCopiesCrossBeforeASumThatWasPostedBefore) {
  Spread spread(Ranks{{0, 1}, {2}}, true, {.make = Loopback({.startup_ns = 100 * kMillisecond})});
  spread.PostAll(kSum);
  spread.PostAll(OnSegment(Collective::kAllGather, DType::kFloat32, 30, 4000));
  spread.PostAll(OnSegment(Collective::kBroadcast, DType::kFloat32, 10, 4400));
  spread.cluster.Advance(10 * kMillisecond);
  for (const std::uint64_t sequence : {2U, 3U}) {
    const ipc::QueueRow row = *spread.cluster.node(0).QueueRow(spread.job.id, sequence);
    EXPECT_EQ(row.stage, static_cast<std::uint8_t>(service::BlockStage::kToRanks)) << sequence;
  }
  spread.cluster.Advance(2 * kSecond);
  for (const ClientEnd* client : spread.clients) {
    for (std::uint64_t sequence = 1; sequence <= 3; ++sequence) ExpectOk(*client, sequence);
  }
}

// Node b has posted nothing yet, so that no block of the sum or of the broadcast ends.
TEST(Nodes, LeaveBlocksToSendsHoweverManySumsAndCopiesHave) {
  Spread spread(Ranks{{0, 1}, {2}}, false);
  spread.cluster.Form(spread.job, spread.ranks, 64);
  const ipc::Record sum = OnSegment(Collective::kAllReduce, DType::kFloat32, 16'384);
  ipc::Record copy = OnSegment(Collective::kBroadcast, DType::kFloat32, 16'384);
  for (const std::uint32_t rank : {0U, 1U, 2U}) {
    copy.segment = spread.cluster.node(rank / 2).AddSegment(*spread.clients[rank], 65'536).value;
  }
  for (const std::uint32_t rank : {0U, 1U}) {
    spread.clients[rank]->Post(sum);
    spread.clients[rank]->Post(copy);
  }
  spread.cluster.Advance(100 * kMillisecond);
  ipc::Record send = SendTo(1, 10, 7);
  ipc::Record receive = ReceiveFrom(0, 10, 7);
  for (const std::uint32_t rank : {0U, 1U}) {
    send.segment = receive.segment =
        spread.cluster.node(0).AddSegment(*spread.clients[rank], 4096).value;
  }
  spread.clients[0]->Post(send);
  spread.clients[1]->Post(receive);
  spread.cluster.Advance(100 * kMillisecond);
  for (const std::uint32_t rank : {0U, 1U}) {
    ExpectOpen(*spread.clients[rank], 1);
    ExpectOk(*spread.clients[rank], 3);
  }
  spread.clients[2]->Post(sum);
  spread.clients[2]->Post(copy);
  spread.cluster.Advance(kSecond);
  for (const ClientEnd* client : spread.clients) {
    for (const std::uint64_t sequence : {1U, 2U}) ExpectOk(*client, sequence);
  }
}

TEST(Nodes, SayWhatHoldsABlockBackFromTheNetwork) {
  Spread spread(Ranks{{0, 1}, {2}}, true, {.make = Loopback({.startup_ns = 100 * kMillisecond})});
  spread.PostAll(kSum);
  spread.PostAll(Barrier());
  spread.cluster.Advance(10 * kMillisecond);
  const ipc::QueueRow row = *spread.cluster.node(0).QueueRow(spread.job.id, 2);
  EXPECT_EQ(row.state, static_cast<std::uint32_t>(ipc::StageState::kWaiting));
  EXPECT_EQ(row.reason, static_cast<std::uint32_t>(ipc::WaitReason::kBehindBlock));
  EXPECT_EQ(row.wait_argument, 1U);
  EXPECT_EQ(row.stage, static_cast<std::uint8_t>(service::BlockStage::kBetweenNodes));
  spread.cluster.Advance(kSecond);
  for (const ClientEnd* client : spread.clients) {
    ExpectOk(*client, 1);
    ExpectOk(*client, 2);
  }
}

TEST(Nodes, TakeAnyRootWhereTheCollectiveHasNone) {
  Spread spread(Ranks{{0, 1}, {2}});
  for (const Collective kind :
       {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather}) {
    ipc::Record record = OnSegment(kind, DType::kFloat32, 12, static_cast<unsigned>(kind) * 48U);
    record.root = 2;
    spread.PostAll(record);
  }
  ipc::Record barrier = Barrier();
  barrier.root = 2;
  spread.PostAll(barrier);
  spread.cluster.Advance(kSecond);
  for (const ClientEnd* client : spread.clients) {
    for (std::uint64_t sequence = 1; sequence <= 4; ++sequence) ExpectOk(*client, sequence);
  }
}

TEST(Nodes, HoldABarrierUntilTheLastRankAnywhereHasCome) {
  Spread spread(Ranks{{0, 1}, {2}});
  spread.clients[0]->Post(Barrier());
  spread.clients[2]->Post(Barrier());
  spread.cluster.Advance(100 * kMillisecond);
  ExpectOpen(*spread.clients[0], 1);
  ExpectOpen(*spread.clients[2], 1);
  spread.clients[1]->Post(Barrier());
  spread.cluster.Advance(100 * kMillisecond);
  for (const ClientEnd* client : spread.clients) ExpectOk(*client, 1);
}

TEST(Nodes, SendOneMessageStreamPerNodeHoweverManyRanksItHas) {
  Spread one(Ranks{{0}, {1}});
  Spread two(Ranks{{0, 1}, {2, 3}});
  for (Spread* spread : {&one, &two}) {
    spread->PostAll(OnSegment(Collective::kAllReduce, DType::kFloat32, kLargest));
    spread->cluster.Advance(kSecond);
    ExpectOk(*spread->clients[0], 1);
  }
  EXPECT_EQ(one.cluster.exchange(0).counters().bytes_sent, kLargest * 4);
  EXPECT_EQ(two.cluster.exchange(0).counters().bytes_sent, kLargest * 4);
}

TEST(Nodes, CarryOutWhatWasPostedBeforeTheyMet) {
  Spread spread(Ranks{{0, 1}, {2}}, false);
  for (unsigned i = 0; i < 3; ++i) {
    spread.PostAll(OnSegment(Collective::kAllReduce, DType::kFloat32, 10, 40U * i));
  }
  spread.cluster.Advance(100 * kMillisecond);
  ExpectOpen(*spread.clients[0], 1);
  EXPECT_EQ(spread.cluster.node(0).QueueRow(spread.job.id, 1)->reason,
            static_cast<std::uint32_t>(ipc::WaitReason::kNodesNotReady));
  spread.cluster.Form(spread.job, spread.ranks);
  spread.cluster.Advance(kSecond);
  for (const ClientEnd* client : spread.clients) {
    for (std::uint64_t i = 1; i <= 3; ++i) ExpectOk(*client, i);
    EXPECT_EQ(client->Elements<float>()[29], 300 + 3 * 29);
  }
}

TEST(Nodes, SayWhatTheyWaitForWhenAnOperationTimesOutBeforeTheyMet) {
  Spread spread(Ranks{{0}, {1}}, false);
  spread.cluster.node(0).Send(
      service::JobForming{spread.job.id, "the service at b:7733 does not answer"});
  ipc::Record record = OnSegment(Collective::kAllReduce, DType::kFloat32, 10);
  record.timeout_ms = 50;
  spread.clients[0]->Post(record);
  spread.cluster.Advance(100 * kMillisecond);
  ExpectFailed(*spread.clients[0], 1, Code::kTimeout, {"50 ms", "7733"});
}

TEST(Nodes, EndTheJobEverywhereWhenARankPostsSomethingElse) {
  Spread spread(Ranks{{0, 1}, {2}});
  spread.clients[0]->Post(OnSegment(Collective::kAllReduce, DType::kFloat32, 10));
  spread.clients[1]->Post(OnSegment(Collective::kAllReduce, DType::kFloat32, 11));
  spread.clients[2]->Post(OnSegment(Collective::kAllReduce, DType::kFloat32, 10));
  spread.cluster.Advance(10 * kMillisecond);
  ExpectFailed(*spread.clients[0], 1, Code::kMismatch, {"rank 0", "rank 1"});
  ASSERT_EQ(spread.Broken(0).size(), 1U);
  EXPECT_EQ(spread.Broken(0)[0]->code, Code::kMismatch);
  // What control does with it.
  spread.cluster.node(1).Send(
      service::JobFailed{spread.job.id, Code::kMismatch, spread.Broken(0)[0]->cause});
  spread.cluster.CloseLinks(0, spread.job.id, "the job has failed");
  spread.cluster.CloseLinks(1, spread.job.id, "the job has failed");
  spread.cluster.Advance(10 * kMillisecond);
  ExpectFailed(*spread.clients[2], 1, Code::kMismatch, {"rank 0", "rank 1"});
  EXPECT_TRUE(spread.Broken(1).empty()) << "it was not found there";
  spread.clients[2]->Post(Barrier());
  spread.cluster.Advance(10 * kMillisecond);
  ExpectFailed(*spread.clients[2], 2, Code::kMismatch, {"rank 1"});
}

TEST(Nodes, FindOutWhenNodesPostDifferentThings) {
  Spread spread(Ranks{{0}, {1}});
  spread.clients[0]->Post(OnSegment(Collective::kAllReduce, DType::kFloat32, 10));
  spread.clients[1]->Post(OnSegment(Collective::kAllReduce, DType::kFloat32, 11));
  spread.cluster.Advance(100 * kMillisecond);
  EXPECT_FALSE(spread.Broken(0).empty() && spread.Broken(1).empty());
  const std::size_t found = spread.Broken(0).empty() ? 1 : 0;
  ExpectFailed(*spread.clients[found], 1, Code::kMismatch, {"10", "11"});
}

// Also where neither applies: what is small crosses as it is.
TEST(Nodes, FindOutWhenTheyAskForDifferentCodecs) {
  for (const std::uint64_t count : {100U, 8000U}) {
    for (const Codec other : {Codec(Codec::kNone), Codec(Codec::kFloat16)}) {
      Spread spread(Ranks{{0}, {1}});
      ipc::Record record = OnSegment(Collective::kAllReduce, DType::kFloat32, count);
      record.tag = SteeringValue(Codec::kBFloat16);
      spread.clients[0]->Post(record);
      record.tag = SteeringValue(other);
      spread.clients[1]->Post(record);
      spread.cluster.Advance(100 * kMillisecond);
      EXPECT_FALSE(spread.Broken(0).empty() && spread.Broken(1).empty()) << count << Name(other);
      const std::size_t found = spread.Broken(0).empty() ? 1 : 0;
      ExpectFailed(*spread.clients[found], 1, Code::kMismatch, {"bf16"});
    }
  }
}

TEST(Nodes, AskForTheSameCodecWhereItDoesNotApply) {
  Spread spread(Ranks{{0}, {1}});
  ipc::Record record = OnSegment(Collective::kAllReduce, DType::kFloat32, 100);
  record.tag = SteeringValue(Codec::kBFloat16);
  for (ClientEnd* client : spread.clients) client->Post(record);
  spread.cluster.Advance(100 * kMillisecond);
  for (const ClientEnd* client : spread.clients) ExpectOk(*client, 1);
}

// Each rail moves a share of a block, and shares of unequal blocks may be equal.
TEST(Nodes, FindOutWhenUnequalOperationsHaveEqualSharesOfRails) {
  for (std::uint64_t count = 2; count <= 80; count += 2) {
    Spread spread(Ranks{{0}, {1}}, true, {.rails_count = 2});
    spread.clients[0]->Post(OnSegment(Collective::kAllGather, DType::kFloat16, count));
    spread.clients[1]->Post(OnSegment(Collective::kAllGather, DType::kFloat16, count + 2));
    spread.cluster.Advance(100 * kMillisecond);
    for (const ClientEnd* client : spread.clients) {
      EXPECT_FALSE(client->HasEnded(1) && client->Read(1).code == Code::kOk) << count;
    }
    EXPECT_FALSE(spread.Broken(0).empty() && spread.Broken(1).empty()) << count;
  }
}

TEST(Nodes, SayThatTheySendOverAnotherRailAndThatTheFirstIsBack) {
  Spread spread(
      Ranks{{0}, {1}}, true,
      {.exchange = {.name = "net0", .piece_size = 8192}, .rails_count = 2, .rails_stand_in = true});
  const std::vector<std::string>& events = spread.cluster.node(0).watch_tap().events;
  const std::size_t before = events.size();
  spread.cluster.CutRail(0, 1, 1, transport::Silence::kSilent);
  spread.PostAll(OnSegment(Collective::kAllReduce, DType::kFloat32, kLargest));
  spread.cluster.Advance(kSecond);
  for (const ClientEnd* client : spread.clients) {
    ExpectOk(*client, 1);
    EXPECT_EQ(client->Elements<float>()[kLargest - 1], 100 + 2 * (kLargest - 1));
  }
  ASSERT_EQ(events.size(), before + 1);
  EXPECT_TEXT(events.back(), "to node b", "acknowledged nothing", "nothing has ended");
  EXPECT_EQ(ipc::GetText(spread.cluster.node(0).LaneRow(2).transport), "simulated for simulated");
  spread.cluster.MendRail(0, 1, 1);
  spread.cluster.Advance(5 * kSecond);
  ASSERT_EQ(events.size(), before + 2);
  EXPECT_TEXT(events.back(), "to node b", "again");
  EXPECT_EQ(ipc::GetText(spread.cluster.node(0).LaneRow(2).transport), "simulated");
}

TEST(Nodes, FindOutWhenTheyMeanDifferentRootsOnOneNode) {
  Spread spread(Ranks{{0}, {1, 2}});
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    ipc::Record record = OnSegment(Collective::kBroadcast, DType::kFloat32, 10);
    record.root = rank == 0 ? 1 : 2;
    spread.clients[rank]->Post(record);
  }
  spread.cluster.Advance(100 * kMillisecond);
  ExpectFailed(*spread.clients[0], 1, Code::kMismatch, {"(rank 1)", "(rank 2)"});
  ASSERT_EQ(spread.Broken(0).size(), 1U);
}

TEST(Nodes, TellOneFailureOfAJobAndNoMore) {
  Spread spread(Ranks{{0}, {1}});
  for (int i = 0; i < 5; ++i) {
    spread.clients[0]->PostApart(OnSegment(Collective::kAllReduce, DType::kFloat32, 1000));
  }
  spread.cluster.Advance(10 * kMillisecond);
  spread.cluster.node(0).Close(*spread.clients[0], false, "exited or was killed");
  spread.cluster.Advance(10 * kMillisecond);
  ASSERT_EQ(spread.Broken(0).size(), 1U);
  EXPECT_TEXT(spread.Broken(0)[0]->cause, "rank 0", "pid 1000");
}

TEST(Nodes, EndOperationsBeyondWhatARankElsewherePostedBeforeItLeft) {
  Spread spread(Ranks{{0}, {1}});
  spread.PostAll(OnSegment(Collective::kAllReduce, DType::kFloat32, 10));
  spread.clients[0]->PostApart(OnSegment(Collective::kAllReduce, DType::kFloat32, 10));
  spread.cluster.Advance(10 * kMillisecond);
  ExpectOk(*spread.clients[0], 1);
  spread.cluster.node(1).Close(*spread.clients[1], true, "left the job");
  spread.cluster.Advance(kMillisecond);
  ASSERT_EQ(spread.cluster.node(1).peers().Of<service::RankLeft>().size(), 1U);
  EXPECT_EQ(spread.cluster.node(1).peers().Of<service::RankLeft>()[0]->posted, 1U);
  spread.cluster.node(0).Send(
      service::RankLeft{spread.job.id, 1, 1, 0, "rank 1 (pid 1001) on node b left the job"});
  spread.cluster.Advance(10 * kMillisecond);
  ExpectFailed(*spread.clients[0], 2, Code::kPeerLost, {"rank 1", "node b", "after operation 1"});
}

TEST(Nodes, NameTheNodeWhoseLinkFailedAndLetTheMemoryGo) {
  Spread spread(Ranks{{0, 1}, {2}}, true,
                {.network = {.ns_per_byte = 1000, .detection_ns = 10 * kMillisecond}});
  spread.PostAll(OnSegment(Collective::kAllReduce, DType::kFloat32, kLargest));
  spread.cluster.Advance(kMillisecond);
  ExpectOpen(*spread.clients[0], 1);
  spread.cluster.Vanish(1, transport::Silence::kTold);
  spread.cluster.Advance(100 * kMillisecond);
  ExpectFailed(*spread.clients[0], 1, Code::kPeerLost, {"node b", "net0"});
  ExpectFailed(*spread.clients[1], 1, Code::kPeerLost, {"node b"});
  spread.cluster.node(0).Close(*spread.clients[0], true, "left");
  spread.cluster.node(0).Close(*spread.clients[1], true, "left");
  spread.cluster.Advance(10 * kMillisecond);
  EXPECT_TRUE(spread.cluster.node(0).Discarded(*spread.clients[0]));
  EXPECT_EQ(spread.cluster.node(0).discarded_in_use(), 0U);
  EXPECT_EQ(spread.cluster.node(0).peers().Of<service::JobEnded>().size(), 1U);
  EXPECT_EQ(spread.cluster.node(0).RowsInUse(), 0U);
}

TEST(Nodes, LeaveAnotherJobOnTheSameNodesAlone) {
  Spread spread(Ranks{{0}, {1}});
  const JobSpec other{.id = JobId{2}, .name = "other", .world_size = 2, .rendezvous = "a:7733"};
  ClientEnd& zero = spread.cluster.node(0).Attach(other, 0);
  ClientEnd& one = spread.cluster.node(1).Attach(other, 1);
  spread.cluster.Form(other, {{0}, {1}});
  spread.clients[0]->Post(OnSegment(Collective::kAllReduce, DType::kFloat32, kLargest));
  zero.Post(OnSegment(Collective::kAllReduce, DType::kFloat32, kLargest));
  spread.cluster.Advance(kMillisecond);
  spread.cluster.node(1).Close(*spread.clients[1], false, "exited or was killed");
  spread.cluster.node(0).Send(service::JobFailed{spread.job.id, Code::kPeerLost, "rank 1 is gone"});
  spread.cluster.CloseLinks(0, spread.job.id, "the job has failed");
  spread.cluster.CloseLinks(1, spread.job.id, "the job has failed");
  spread.cluster.Advance(10 * kMillisecond);
  ExpectFailed(*spread.clients[0], 1, Code::kPeerLost, {"rank 1"});
  one.Post(OnSegment(Collective::kAllReduce, DType::kFloat32, kLargest));
  spread.cluster.Advance(100 * kMillisecond);
  ExpectOk(zero, 1);
  ExpectOk(one, 1);
}

TEST(Nodes, RefuseAveragesOfIntegersByName) {
  Spread spread(Ranks{{0}, {1}});
  ipc::Record record = OnSegment(Collective::kAllReduce, DType::kInt32, 10);
  record.reduction = static_cast<std::uint8_t>(Reduction::kAverage);
  spread.clients[0]->Post(record);
  spread.cluster.Advance(kMillisecond);
  ExpectFailed(*spread.clients[0], 1, Code::kInvalidArgument, {"rank 0", "int32", "post a sum"});
}

TEST(Nodes, AreOneNodeWhenOnlyOneCame) {
  Spread spread(Ranks{{0, 1}});
  spread.PostAll(OnSegment(Collective::kAllReduce, DType::kFloat32, kLargest));
  spread.cluster.Advance(kMillisecond);
  for (const ClientEnd* client : spread.clients) ExpectOk(*client, 1);
  EXPECT_EQ(spread.cluster.exchange(0).counters().messages_sent, 0U);
}

// What another service has agreed on reaches dispatch only checked; should a check be missing
// there, it costs the job and not the service.
TEST(Nodes, WhatNodesCannotHaveAgreedOnEndsTheJobAndNothingElse) {
  using service::JobNodes;
  struct Case {
    const char* what;
    void (*spoil)(JobNodes&);
  };
  const Case cases[] = {
      {"a server's place", [](JobNodes& nodes) { nodes.servers_count = 2; }},
      {"self beyond", [](JobNodes& nodes) { nodes.self = 9; }},
      {"a rank twice", [](JobNodes& nodes) { nodes.nodes[1].ranks = {0}; }},
      {"a rank that shifts too far", [](JobNodes& nodes) { nodes.nodes[1].ranks = {77}; }},
      {"another's ranks",
       [](JobNodes& nodes) { std::swap(nodes.nodes[0].ranks, nodes.nodes[1].ranks); }},
      {"a missing rank", [](JobNodes& nodes) { nodes.nodes.pop_back(); }},
      {"blocks that overflow", [](JobNodes& nodes) { nodes.block_bytes = UINT64_MAX / 8 + 2; }},
      {"bytes for nothing",
       [](JobNodes& nodes) {
         nodes.costs = {{1, 0}};
       }},
      {"bytes for nearly nothing", [](JobNodes& nodes) {
         nodes.costs = {{1, 5e-324}};
       }}};
  for (const Case& each : cases) {
    Spread spread({{0}, {1}}, false);
    JobNodes nodes{.nodes = {{.name = "a", .ranks = {0}}, {.name = "b", .ranks = {1}}},
                   .block_bytes = 1024,
                   .costs = {{20e-6, 1e-9}}};
    each.spoil(nodes);
    spread.cluster.node(0).Send(service::JobFormed{spread.job.id, nodes});
    spread.cluster.Advance(kMillisecond);
    const auto broken = spread.Broken(0);
    ASSERT_EQ(broken.size(), 1U) << each.what;
    EXPECT_EQ(broken[0]->code, Code::kCorrupt) << each.what;
  }
}

}  // namespace
}  // namespace headrace::support
