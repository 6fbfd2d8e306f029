// Operations that move in messages (gather, scatter, all_to_all) and reduce, on one node and on
// several: the unchanged dispatch, queue, lanes and exchange of each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <vector>

#include "tests/support/hand_driven_cluster.h"
#include "tests/unit/service/dispatch/expect.h"
#include "tests/unit/service/dispatch/sends.h"

namespace headrace::support {
namespace {

std::uint64_t Even(std::uint32_t, std::uint32_t) { return 300; }
// Some ranks have nothing for others.
std::uint64_t Uneven(std::uint32_t source, std::uint32_t target) {
  return (source + 2 * target) % 4 == 0 ? 0 : 100 * source + 7 * target + 1;
}

TEST(MessageOperations, GiveEachRankWhatEveryOtherHasForIt) {
  for (const RanksOfNodes& places : kPlaces) {
    Sends sends(places);
    for (const auto& counts : {Even, Uneven}) {
      sends.PostAll(kAllToAll, 0, counts);
      sends.cluster.Advance(kSecond);
      ASSERT_NO_FATAL_FAILURE(sends.ExpectDelivered());
    }
  }
}

TEST(MessageOperations, GatherToEachRootAndScatterFromIt) {
  for (const RanksOfNodes& places : kPlaces) {
    Sends sends(places);
    for (std::uint32_t root = 0; root < sends.world(); ++root) {
      for (const Collective kind : {kGather, kScatter}) {
        sends.PostAll(kind, root, Uneven);
        sends.cluster.Advance(kSecond);
        ASSERT_NO_FATAL_FAILURE(sends.ExpectDelivered());
      }
    }
  }
}

// A message of nothing goes to other nodes too, so that they find out when they disagree.
TEST(MessageOperations, MoveNothingWhereNobodyHasAnything) {
  Sends here(RanksOfNodes{{0, 1}});
  here.PostAll(kAllToAll, 0, [](std::uint32_t, std::uint32_t) { return std::uint64_t{0}; });
  here.cluster.Advance(kMillisecond);
  here.ExpectDelivered();
  EXPECT_EQ(here.cluster.node(0).LaneRow().stages_ended, 0U);
  Sends apart(RanksOfNodes{{0}, {1}});
  apart.PostAll(kAllToAll, 0, [](std::uint32_t, std::uint32_t) { return std::uint64_t{0}; });
  apart.cluster.Advance(kMillisecond);
  apart.ExpectDelivered();
  EXPECT_EQ(apart.cluster.exchange(0).counters().bytes_sent, 0U);
}

TEST(MessageOperations, SendEachElementOnceToTheNodeThatNeedsIt) {
  Sends sends(RanksOfNodes{{0, 1}, {2, 3}});
  sends.PostAll(kAllToAll, 0, Even);
  sends.cluster.Advance(kSecond);
  sends.ExpectDelivered();
  EXPECT_EQ(sends.cluster.exchange(0).counters().bytes_sent, 4U * 300 * sizeof(float));
  sends.PostAll(kGather, 3, Even);
  sends.cluster.Advance(kSecond);
  sends.ExpectDelivered();
  EXPECT_EQ(sends.cluster.exchange(0).counters().bytes_sent, 6U * 300 * sizeof(float));
  EXPECT_EQ(sends.cluster.exchange(1).counters().bytes_sent, 4U * 300 * sizeof(float));
}

TEST(MessageOperations, ShareRailsBetweenNodes) {
  Sends sends(RanksOfNodes{{0}, {1}}, {.rails_count = 2});
  for (int i = 0; i < 3; ++i) {
    sends.PostAll(kAllToAll, 0, [](std::uint32_t, std::uint32_t) { return std::uint64_t{5000}; });
    sends.cluster.Advance(kSecond);
    ASSERT_NO_FATAL_FAILURE(sends.ExpectDelivered());
  }
  for (std::size_t rail = 0; rail < 2; ++rail) {
    EXPECT_GT(sends.cluster.exchange(0, rail).counters().bytes_sent, 0U) << rail;
  }
}

// However late each node is, and in whatever order its other operations end.
TEST(MessageOperations, KeepTheirPlaceAmongOtherOperations) {
  Sends sends(RanksOfNodes{{0, 1}, {2}, {3, 4}}, {.credit_bytes = 4096});
  for (std::uint32_t late = 0; late < sends.world(); ++late) {
    for (std::uint32_t rank = 0; rank < sends.world(); ++rank) {
      if (rank == late) continue;
      sends.clients[rank]->Post(sends.Fill(rank, kAllToAll, 0, Uneven));
      sends.clients[rank]->Post(Barrier());
    }
    sends.cluster.Advance(10 * kMillisecond);
    ExpectOpen(*sends.clients[(late + 1) % sends.world()],
               sends.clients[(late + 1) % sends.world()]->posted());
    sends.clients[late]->Post(sends.Fill(late, kAllToAll, 0, Uneven));
    sends.clients[late]->Post(Barrier());
    sends.cluster.Advance(kSecond);
    ASSERT_NO_FATAL_FAILURE(sends.ExpectDelivered());
  }
}

TEST(MessageOperations, TravelInPiecesBesideAnotherJob) {
  HandDrivenNode node(Loopback({.startup_ns = kMicrosecond}));
  constexpr std::uint64_t kMany = std::uint64_t{3} << 20;  // bytes for the other rank
  const JobSpec job{.world_size = 2};
  const JobSpec other{.id = JobId{2}, .name = "other", .world_size = 1};
  std::vector<ClientEnd*> ranks;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    ranks.push_back(&node.Attach(job, rank, 3 * kMany));
    std::ranges::fill(ranks[rank]->Memory().first(kMany), std::byte(rank + 1));
  }
  ClientEnd& beside = node.Attach(other, 0);
  beside.Post(kSum);
  node.Advance(kMillisecond);
  for (ClientEnd* rank : ranks) {
    ipc::PartRow rows[2]{};
    rows[1 - rank->rank()] = {
        .sent_offset = 0, .sent_count = kMany, .received_offset = kMany, .received_count = kMany};
    std::memcpy(rank->Memory().data() + 2 * kMany, rows, sizeof rows);
    ipc::Record record = OnSegment(kAllToAll, DType::kUInt8, 2 * kMany);
    record.flags = ipc::kRecordHasParts;
    record.tag = 2 * kMany;
    rank->Post(record);
  }
  for (int i = 0; i < 20; ++i) node.Advance(kMillisecond);
  for (const ClientEnd* rank : ranks) {
    ExpectOk(*rank, 1);
    EXPECT_EQ(rank->Memory()[kMany], std::byte(2 - rank->rank()));
    EXPECT_EQ(rank->Memory()[2 * kMany - 1], std::byte(2 - rank->rank()));
  }
  EXPECT_EQ(node.LaneRow().stages_ended, 1U + 2 * 3);
}

TEST(MessageOperations, EndWithAMismatchThatNamesBothRanksOfOneNode) {
  Sends sends(RanksOfNodes{{0, 1, 2}});
  const auto other = [](std::uint32_t source, std::uint32_t target) -> std::uint64_t {
    return source == 2 && target == 1 ? 5 : 4;
  };
  sends.clients[0]->Post(sends.Fill(0, kAllToAll, 0, other));
  sends.clients[1]->Post(
      sends.Fill(1, kAllToAll, 0, [](std::uint32_t, std::uint32_t) { return std::uint64_t{4}; }));
  sends.clients[2]->Post(sends.Fill(2, kAllToAll, 0, other));
  sends.cluster.Advance(kMillisecond);
  for (const ClientEnd* client : sends.clients) {
    ExpectFailed(*client, 1, Code::kMismatch, {"rank 2 (pid", "5", "rank 1 (pid", "expects 4"});
  }
  // Nothing is left of it.
  sends.PostAll(kAllToAll, 0, Even);
  sends.cluster.Advance(kMillisecond);
  sends.ExpectDelivered();
}

TEST(MessageOperations, EndWithAMismatchOfTheRanksOfTwoNodes) {
  Sends sends(RanksOfNodes{{0}, {1}});
  sends.clients[0]->Post(sends.Fill(0, kAllToAll, 0, Even));
  sends.clients[1]->Post(
      sends.Fill(1, kAllToAll, 0, [](std::uint32_t, std::uint32_t) { return std::uint64_t{0}; }));
  sends.cluster.Advance(100 * kMillisecond);
  EXPECT_FALSE(sends.Broken(0).empty() && sends.Broken(1).empty());
  const std::size_t found = sends.Broken(0).empty() ? 1 : 0;
  ExpectFailed(*sends.clients[found], 1, Code::kMismatch, {"node", "(position"});
}

TEST(MessageOperations, MatchByKindTypeAndRoot) {
  Sends sends(RanksOfNodes{{0, 1}});
  sends.clients[0]->Post(sends.Fill(0, kGather, 0, Even));
  sends.clients[1]->Post(sends.Fill(1, kGather, 1, Even));
  sends.cluster.Advance(kMillisecond);
  sends.clients[0]->Post(sends.Fill(0, kGather, 0, Even));
  sends.clients[1]->Post(sends.Fill(1, kScatter, 0, Even));
  sends.cluster.Advance(kMillisecond);
  ipc::Record ints = sends.Fill(0, kGather, 0, Even);
  ints.dtype = static_cast<std::uint8_t>(DType::kInt32);
  sends.clients[0]->Post(ints);
  sends.clients[1]->Post(sends.Fill(1, kGather, 0, Even));
  sends.cluster.Advance(kMillisecond);
  ExpectFailed(*sends.clients[0], 1, Code::kMismatch, {"to rank 0", "to rank 1"});
  ExpectFailed(*sends.clients[1], 2, Code::kMismatch, {"gather", "scatter"});
  ExpectFailed(*sends.clients[1], 3, Code::kMismatch, {"int32", "float32"});
}

TEST(MessageOperations, RefuseTablesThatMakeNoSense) {
  struct Case {
    const char* what;
    void (*spoil)(ipc::Record&, ipc::PartRow*);
    Code code;
  };
  const Case cases[] = {
      {"no segment", [](ipc::Record& r, ipc::PartRow*) { r.parts = 9; }, Code::kNotFound},
      {"not aligned", [](ipc::Record& r, ipc::PartRow*) { r.tag += 4; }, Code::kInvalidArgument},
      {"beyond", [](ipc::Record& r, ipc::PartRow*) { r.tag = 65536 - 32; }, Code::kInvalidArgument},
      {"far beyond", [](ipc::Record& r, ipc::PartRow*) { r.tag = UINT64_MAX - 7; },
       Code::kInvalidArgument},
      {"sends too much", [](ipc::Record&, ipc::PartRow* t) { t[1].sent_count = kCount + 1; },
       Code::kInvalidArgument},
      {"sends from beyond", [](ipc::Record&, ipc::PartRow* t) { t[1].sent_offset = UINT64_MAX; },
       Code::kInvalidArgument},
      {"receives beyond", [](ipc::Record&, ipc::PartRow* t) { t[1].received_offset = kCount; },
       Code::kInvalidArgument},
      {"to itself", [](ipc::Record&, ipc::PartRow* t) { t[0].sent_count = 1; },
       Code::kInvalidArgument},
      {"twice to one place",
       [](ipc::Record&, ipc::PartRow* t) { t[2].received_offset = t[1].received_offset; },
       Code::kInvalidArgument},
      {"into what is sent", [](ipc::Record&, ipc::PartRow* t) { t[1].received_offset = 0; },
       Code::kInvalidArgument},
      {"no table", [](ipc::Record& r, ipc::PartRow*) { r.flags = 0; }, Code::kInvalidArgument},
  };
  Sends sends(RanksOfNodes{{0, 1, 2}});
  for (const Case& each : cases) {
    ipc::Record record = sends.Fill(0, kAllToAll, 0, Even);
    each.spoil(record, Sends::TableOf(*sends.clients[0]));
    sends.clients[0]->Post(record);
    for (std::uint32_t rank = 1; rank < 3; ++rank) {
      sends.clients[rank]->Post(sends.Fill(rank, kAllToAll, 0, Even));
    }
    sends.cluster.Advance(kMillisecond);
    SCOPED_TRACE(each.what);
    for (const ClientEnd* client : sends.clients) {
      ExpectFailed(*client, client->posted(), each.code, {"rank 0 (pid"});
    }
  }
  sends.PostAll(kAllToAll, 0, Even);
  sends.cluster.Advance(kMillisecond);
  sends.ExpectDelivered();
}

TEST(MessageOperations, RefuseWhatTheKindDoesNotMove) {
  Sends sends(RanksOfNodes{{0, 1, 2}});
  ipc::Record record = sends.Fill(1, kGather, 0, Even);
  Sends::TableOf(*sends.clients[1])[2].sent_count = 3;
  sends.clients[1]->Post(record);
  sends.cluster.Advance(kMillisecond);
  record = sends.Fill(2, kScatter, 0, Even);
  Sends::TableOf(*sends.clients[2])[1].received_count = 3;
  sends.clients[1]->Post(sends.Fill(1, kScatter, 0, Even));
  sends.clients[2]->Post(Barrier());
  sends.clients[2]->Post(record);
  sends.cluster.Advance(kMillisecond);
  ExpectFailed(*sends.clients[1], 1, Code::kInvalidArgument, {"row 2", "gather"});
  ExpectFailed(*sends.clients[2], 2, Code::kInvalidArgument, {"row 1", "scatter"});
}

TEST(MessageOperations, RefuseMemoryThatAnotherOperationUses) {
  Sends sends(RanksOfNodes{{0, 1}});
  sends.clients[0]->Post(sends.Fill(0, kAllToAll, 0, Even));
  // What is sent may be read twice, what is received is written.
  sends.clients[0]->Post(SendTo(1, 10));
  ipc::Record send = SendTo(1, 10);
  send.offset = kReceived * sizeof(float);
  sends.clients[0]->Post(send);
  sends.cluster.Advance(kMillisecond);
  ExpectOpen(*sends.clients[0], 2);
  ExpectFailed(*sends.clients[0], 3, Code::kInvalidArgument, {"all_to_all", "overlap"});
}

TEST(MessageOperations, EndWhenARankDiesBeforeInAndAfterThem) {
  for (const RanksOfNodes& places : {RanksOfNodes{{0, 1, 2}}, RanksOfNodes{{0, 1}, {2}}}) {
    Sends sends(places, {.network = {.ns_per_byte = 1000},
                         .make = Loopback({.startup_ns = 100 * kMicrosecond})});
    sends.PostAll(kAllToAll, 0, Even);
    sends.cluster.Advance(kSecond);
    sends.ExpectDelivered();
    sends.PostAll(kAllToAll, 0, Even);
    sends.cluster.Advance(50 * kMicrosecond);
    sends.clients[0]->Post(Barrier());
    sends.cluster.node(0).Close(*sends.clients[1], false, kKilled);
    sends.cluster.Advance(10 * kMillisecond);
    ExpectFailed(*sends.clients[0], 2, Code::kPeerLost, {"rank 1 (pid"});
    ExpectFailed(*sends.clients[0], 3, Code::kPeerLost, {"rank 1 (pid"});
    sends.clients[0]->Post(sends.Fill(0, kAllToAll, 0, Even));
    sends.cluster.Advance(kMillisecond);
    ExpectFailed(*sends.clients[0], 4, Code::kPeerLost, {"rank 1 (pid"});
  }
}

TEST(MessageOperations, TimeOutWithTheRankThatHasNotPosted) {
  Sends sends(RanksOfNodes{{0, 1, 2}});
  for (const std::uint32_t rank : {0U, 2U}) {
    ipc::Record record = sends.Fill(rank, kAllToAll, 0, Even);
    record.timeout_ms = 50;
    sends.clients[rank]->Post(record);
  }
  sends.cluster.Advance(100 * kMillisecond);
  ExpectFailed(*sends.clients[0], 1, Code::kTimeout, {"rank 1 (pid", "50 ms"});
  sends.clients[1]->Post(sends.Fill(1, kAllToAll, 0, Even));
  sends.cluster.Advance(kMillisecond);
  ExpectFailed(*sends.clients[1], 1, Code::kTimeout, {"50 ms"});
}

TEST(MessageOperations, NameTheNodeTheyWaitFor) {
  Sends sends(RanksOfNodes{{0}, {1}});
  sends.cluster.node(0).dispatch().ReportLate(5 * kSecond);
  ipc::Record record = sends.Fill(0, kAllToAll, 0, Even);
  record.timeout_ms = 20'000;
  sends.clients[0]->Post(record);
  sends.cluster.Advance(10 * kSecond);
  const ipc::QueueRow row = *sends.cluster.node(0).QueueRow(sends.job.id, 1);
  EXPECT_EQ(row.reason, static_cast<std::uint32_t>(ipc::WaitReason::kPeer));
  EXPECT_EQ(ipc::GetText(row.peer), "b");
  sends.cluster.Advance(20 * kSecond);
  ExpectFailed(*sends.clients[0], 1, Code::kTimeout, {"node b"});
}

TEST(Reduce, GivesTheRootTheSumAndLeavesTheOthers) {
  for (const RanksOfNodes& places : kPlaces) {
    Sends sends(places);
    const std::uint32_t world = sends.world();
    for (std::uint32_t root = 0; root < world; ++root) {
      for (std::uint32_t rank = 0; rank < world; ++rank) {
        Fill(*sends.clients[rank], 100.0F * static_cast<float>(rank));
        ipc::Record record = OnSegment(Collective::kReduce, DType::kFloat32, 1200);
        record.root = root;
        sends.clients[rank]->Post(record);
      }
      sends.cluster.Advance(kSecond);
      const auto all = static_cast<float>(100 * world * (world - 1) / 2);
      for (std::uint32_t rank = 0; rank < world; ++rank) {
        ExpectOk(*sends.clients[rank], sends.clients[rank]->posted());
        for (std::uint64_t i = 0; i < 1200; ++i) {
          const float own = static_cast<float>(100 * rank) + static_cast<float>(i);
          const float sum = all + static_cast<float>(world) * static_cast<float>(i);
          ASSERT_EQ(sends.clients[rank]->Elements<float>()[i], rank == root ? sum : own)
              << "rank " << rank << " root " << root;
        }
      }
    }
  }
}

TEST(Reduce, ReadsTheMemoryOfAllButTheRoot) {
  Sends sends(RanksOfNodes{{0, 1}});
  ipc::Record record = OnSegment(Collective::kReduce, DType::kFloat32, 16);
  sends.clients[1]->Post(record);
  sends.clients[1]->Post(SendTo(0, 16));
  sends.clients[0]->Post(record);
  sends.cluster.Advance(kMillisecond);
  ExpectOk(*sends.clients[0], 1);
  ExpectOpen(*sends.clients[1], 2);
}

TEST(Reduce, SendsEachNodesSumOnce) {
  Sends sends(RanksOfNodes{{0, 1}, {2, 3}});
  for (ClientEnd* client : sends.clients) {
    client->Post(OnSegment(Collective::kReduce, DType::kFloat32, 1200));
  }
  sends.cluster.Advance(kSecond);
  ExpectOk(*sends.clients[0], 1);
  EXPECT_EQ(sends.cluster.exchange(0).counters().bytes_sent, 0U);
  EXPECT_EQ(sends.cluster.exchange(1).counters().bytes_sent, 1200 * sizeof(float));
}

}  // namespace
}  // namespace headrace::support
