// Operations that move in messages (gather, scatter, all_to_all) and reduce, on one node and on
// several: the unchanged dispatch, queue, lanes and exchange of each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <vector>

#include "tests/support/hand_driven_cluster.h"
#include "tests/unit/service/dispatch/expect.h"

namespace headrace::support {
namespace {

using Ranks = std::vector<std::vector<std::uint32_t>>;
// Elements that the first rank has for the second.
using Counts = std::function<std::uint64_t(std::uint32_t, std::uint32_t)>;

// In the memory of every rank, in elements of float32: what it sends, what it receives, the table.
constexpr std::uint64_t kReceived = 6000;
constexpr std::uint64_t kTableAt = 15000;
constexpr std::uint64_t kCount = 12000;  // of the record
constexpr float kUntouched = -1;

struct Sends {
  explicit Sends(Ranks ranks_of_nodes, ClusterSpec spec = {})
      : ranks(std::move(ranks_of_nodes)), cluster(With(spec, ranks.size())) {
    for (const auto& node : ranks) job.world_size += static_cast<std::uint32_t>(node.size());
    clients.resize(job.world_size);
    if (ranks.size() == 1) job.rendezvous.clear();
    for (std::size_t node = 0; node < ranks.size(); ++node) {
      for (const std::uint32_t rank : ranks[node]) {
        clients[rank] = &cluster.node(node).Attach(job, rank);
      }
    }
    if (ranks.size() > 1) cluster.Form(job, ranks);
    cluster.Advance(kMillisecond);
  }
  static ClusterSpec With(ClusterSpec spec, std::size_t nodes_count) {
    spec.nodes_count = static_cast<std::uint32_t>(nodes_count);
    return spec;
  }
  std::uint32_t world() const { return job.world_size; }

  static float Value(std::uint32_t source, std::uint32_t target, std::uint64_t i) {
    return static_cast<float>(10000 * source + 1000 * target) + static_cast<float>(i);
  }
  static ipc::PartRow* TableOf(const ClientEnd& client) {
    return reinterpret_cast<ipc::PartRow*>(client.Elements<float>().data() + kTableAt);
  }

  // Fills the rank's memory and table, with parts one behind the other, and makes the record.
  ipc::Record Fill(std::uint32_t rank, Collective kind, std::uint32_t root, const Counts& counts) {
    const std::span<float> memory = clients[rank]->Elements<float>();
    std::ranges::fill(memory.first(kTableAt), kUntouched);
    ipc::PartRow* const table = TableOf(*clients[rank]);
    std::uint64_t sent = 0;
    std::uint64_t received = kReceived;
    for (std::uint32_t other = 0; other < world(); ++other) {
      table[other] = {};
      const auto is_of = [&](std::uint32_t source, std::uint32_t target) {
        if (source == target) return false;
        return kind == kGather ? target == root : kind != kScatter || source == root;
      };
      if (is_of(rank, other)) {
        table[other].sent_offset = sent;
        table[other].sent_count = counts(rank, other);
        for (std::uint64_t i = 0; i < counts(rank, other); ++i) {
          memory[sent++] = Value(rank, other, i);
        }
      }
      if (is_of(other, rank)) {
        table[other].received_offset = received;
        table[other].received_count = counts(other, rank);
        received += counts(other, rank);
      }
    }
    ipc::Record record = OnSegment(kind, DType::kFloat32, kCount);
    record.flags = ipc::kRecordHasParts;
    record.root = root;
    record.parts = 0;
    record.tag = kTableAt * sizeof(float);
    return record;
  }
  void PostAll(Collective kind, std::uint32_t root, const Counts& counts) {
    for (std::uint32_t rank = 0; rank < world(); ++rank) {
      clients[rank]->Post(Fill(rank, kind, root, counts));
    }
  }
  // What each rank has got, and that nothing else was written.
  void ExpectDelivered() const {
    for (std::uint32_t rank = 0; rank < world(); ++rank) {
      ExpectOk(*clients[rank], clients[rank]->posted());
      const std::span<float> memory = clients[rank]->Elements<float>();
      const ipc::PartRow* const table = TableOf(*clients[rank]);
      std::uint64_t at = kReceived;
      for (std::uint32_t source = 0; source < world(); ++source) {
        for (std::uint64_t i = 0; i < table[source].received_count; ++i) {
          ASSERT_EQ(memory[at++], Value(source, rank, i)) << "rank " << rank << " of " << source;
        }
      }
      for (; at < kTableAt; ++at) ASSERT_EQ(memory[at], kUntouched) << "rank " << rank;
    }
  }
  std::vector<const service::JobFailed*> Broken(std::size_t node) {
    return cluster.node(node).peers().Of<service::JobFailed>();
  }

  Ranks ranks;
  JobSpec job{.world_size = 0, .rendezvous = "a:7733"};
  HandDrivenCluster cluster;
  std::vector<ClientEnd*> clients;  // by rank
};

const std::vector<Ranks> kPlaces = {{{0}},
                                    {{0, 1}},
                                    {{0, 1, 2, 3}},
                                    {{0}, {1}},
                                    {{0, 3}, {1, 2}},
                                    {{0}, {1}, {2}},
                                    {{0, 1, 2}, {3}, {4, 5}}};

std::uint64_t Even(std::uint32_t, std::uint32_t) { return 300; }
// Some ranks have nothing for others.
std::uint64_t Uneven(std::uint32_t source, std::uint32_t target) {
  return (source + 2 * target) % 4 == 0 ? 0 : 100 * source + 7 * target + 1;
}

TEST(MessageOperations, GiveEachRankWhatEveryOtherHasForIt) {
  for (const Ranks& places : kPlaces) {
    Sends sends(places);
    for (const auto& counts : {Even, Uneven}) {
      sends.PostAll(kAllToAll, 0, counts);
      sends.cluster.Advance(kSecond);
      ASSERT_NO_FATAL_FAILURE(sends.ExpectDelivered());
    }
  }
}

TEST(MessageOperations, GatherToEachRootAndScatterFromIt) {
  for (const Ranks& places : kPlaces) {
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
  Sends here(Ranks{{0, 1}});
  here.PostAll(kAllToAll, 0, [](std::uint32_t, std::uint32_t) { return std::uint64_t{0}; });
  here.cluster.Advance(kMillisecond);
  here.ExpectDelivered();
  EXPECT_EQ(here.cluster.node(0).LaneRow().stages_ended, 0U);
  Sends apart(Ranks{{0}, {1}});
  apart.PostAll(kAllToAll, 0, [](std::uint32_t, std::uint32_t) { return std::uint64_t{0}; });
  apart.cluster.Advance(kMillisecond);
  apart.ExpectDelivered();
  EXPECT_EQ(apart.cluster.exchange(0).counters().bytes_sent, 0U);
}

TEST(MessageOperations, SendEachElementOnceToTheNodeThatNeedsIt) {
  Sends sends(Ranks{{0, 1}, {2, 3}});
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
  Sends sends(Ranks{{0}, {1}}, {.rails_count = 2});
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
  Sends sends(Ranks{{0, 1}, {2}, {3, 4}}, {.credit_bytes = 4096});
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
  Sends sends(Ranks{{0, 1, 2}});
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
  Sends sends(Ranks{{0}, {1}});
  sends.clients[0]->Post(sends.Fill(0, kAllToAll, 0, Even));
  sends.clients[1]->Post(
      sends.Fill(1, kAllToAll, 0, [](std::uint32_t, std::uint32_t) { return std::uint64_t{0}; }));
  sends.cluster.Advance(100 * kMillisecond);
  EXPECT_FALSE(sends.Broken(0).empty() && sends.Broken(1).empty());
  const std::size_t found = sends.Broken(0).empty() ? 1 : 0;
  ExpectFailed(*sends.clients[found], 1, Code::kMismatch, {"node", "(position"});
}

TEST(MessageOperations, MatchByKindTypeAndRoot) {
  Sends sends(Ranks{{0, 1}});
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
  Sends sends(Ranks{{0, 1, 2}});
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
  Sends sends(Ranks{{0, 1, 2}});
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
  Sends sends(Ranks{{0, 1}});
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
  for (const Ranks& places : {Ranks{{0, 1, 2}}, Ranks{{0, 1}, {2}}}) {
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
  Sends sends(Ranks{{0, 1, 2}});
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
  Sends sends(Ranks{{0}, {1}});
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

// Parts of any size, and of none.
struct UnevenFleet {
  explicit UnevenFleet(const Ranks& places) : sends(places), counts(sends.world()) {
    for (std::uint32_t rank = 0; rank < sends.world(); ++rank) {
      counts[rank] = rank % 3 == 1 ? 0 : 400 * rank + 7;
      total += counts[rank];
    }
  }
  ipc::Record Record(std::uint32_t rank, Collective kind) const {
    Fill(*sends.clients[rank], 100.0F * static_cast<float>(rank));
    ipc::PartRow* const table = Sends::TableOf(*sends.clients[rank]);
    std::uint64_t begin = 0;
    for (std::uint32_t part = 0; part < sends.world(); ++part) {
      table[part] = {.sent_offset = begin, .sent_count = counts[part]};
      begin += counts[part];
    }
    ipc::Record record = OnSegment(kind, DType::kFloat32, total);
    record.flags = ipc::kRecordHasParts;
    record.tag = kTableAt * sizeof(float);
    return record;
  }
  void Post(Collective kind) {
    for (std::uint32_t rank = 0; rank < sends.world(); ++rank) {
      sends.clients[rank]->Post(Record(rank, kind));
    }
    sends.cluster.Advance(kSecond);
  }
  std::uint32_t PartOf(std::uint64_t element) const {
    std::uint32_t part = 0;
    while (element >= counts[part]) element -= counts[part++];
    return part;
  }

  Sends sends;
  std::vector<std::uint64_t> counts;
  std::uint64_t total = 0;
};

TEST(UnevenParts, AreGatheredAndReducedWhereTheyBelong) {
  for (const Ranks& places : kPlaces) {
    UnevenFleet uneven(places);
    const std::uint32_t world = uneven.sends.world();
    const auto all = static_cast<float>(100 * world * (world - 1) / 2);
    for (const Collective kind : {Collective::kAllGather, Collective::kReduceScatter}) {
      uneven.Post(kind);
      for (std::uint32_t rank = 0; rank < world; ++rank) {
        const ClientEnd& client = *uneven.sends.clients[rank];
        ExpectOk(client, client.posted());
        for (std::uint64_t i = 0; i <= uneven.total; ++i) {
          const auto place = static_cast<float>(i);
          const std::uint32_t part = i == uneven.total ? rank : uneven.PartOf(i);
          float expected = static_cast<float>(100 * rank) + place;
          if (i < uneven.total && kind == Collective::kAllGather) {
            expected = static_cast<float>(100 * part) + place;
          } else if (i < uneven.total && part == rank) {
            expected = all + static_cast<float>(world) * place;
          }
          ASSERT_EQ(client.Elements<float>()[i], expected) << Name(kind) << " at " << i;
        }
      }
    }
  }
}

TEST(UnevenParts, CrossOnceEach) {
  UnevenFleet uneven(Ranks{{0, 1}, {2, 3}});
  uneven.Post(Collective::kAllGather);
  const std::uint64_t first = uneven.counts[0] + uneven.counts[1];
  const std::uint64_t second = uneven.counts[2] + uneven.counts[3];
  EXPECT_EQ(uneven.sends.cluster.exchange(0).counters().bytes_sent, first * sizeof(float));
  EXPECT_EQ(uneven.sends.cluster.exchange(1).counters().bytes_sent, second * sizeof(float));
  uneven.Post(Collective::kReduceScatter);
  for (std::size_t node = 0; node < 2; ++node) {
    EXPECT_EQ(uneven.sends.cluster.exchange(node).counters().bytes_sent,
              (first + second) * sizeof(float));
  }
}

TEST(UnevenParts, ThatDifferBetweenRanksAreAMismatch) {
  for (const Ranks& places : {Ranks{{0, 1, 2}}, Ranks{{0}, {1}, {2}}}) {
    UnevenFleet uneven(places);
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      ipc::Record record = uneven.Record(rank, Collective::kAllGather);
      ipc::PartRow* const table = Sends::TableOf(*uneven.sends.clients[rank]);
      if (rank == 1) table[0].sent_count = table[1].sent_offset = table[0].sent_count - 1;
      if (rank == 1) table[1].sent_count += 1;
      uneven.sends.clients[rank]->Post(record);
    }
    uneven.sends.cluster.Advance(100 * kMillisecond);
    int found = 0;
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      const ClientEnd& client = *uneven.sends.clients[rank];
      found += client.HasEnded(1) && client.Read(1).code == Code::kMismatch ? 1 : 0;
    }
    EXPECT_GE(found, 1);
  }
}

TEST(UnevenParts, ThatMakeNoSenseAreRefused) {
  UnevenFleet uneven(Ranks{{0, 1, 2}});
  const auto refuse = [&](auto spoil, std::initializer_list<std::string_view> values) {
    ipc::Record record = uneven.Record(0, Collective::kReduceScatter);
    spoil(record, Sends::TableOf(*uneven.sends.clients[0]));
    uneven.sends.clients[0]->Post(record);
    for (std::uint32_t rank = 1; rank < 3; ++rank) {
      uneven.sends.clients[rank]->Post(uneven.Record(rank, Collective::kReduceScatter));
    }
    uneven.sends.cluster.Advance(kMillisecond);
    for (const ClientEnd* client : uneven.sends.clients) {
      ExpectFailed(*client, client->posted(), Code::kInvalidArgument, values);
    }
  };
  refuse([](ipc::Record&, ipc::PartRow* t) { ++t[0].sent_offset; }, {"row 0"});
  refuse([](ipc::Record&, ipc::PartRow* t) { --t[2].sent_count; }, {"row 2"});
  refuse([](ipc::Record&, ipc::PartRow* t) { t[2].sent_count = UINT64_MAX; }, {"row 2"});
  refuse([](ipc::Record&, ipc::PartRow* t) { t[1].received_count = 1; }, {"row 1"});
  refuse([](ipc::Record& r, ipc::PartRow*) { r.kind = 1; }, {"flags", "all_reduce"});
}

TEST(Reduce, GivesTheRootTheSumAndLeavesTheOthers) {
  for (const Ranks& places : kPlaces) {
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
  Sends sends(Ranks{{0, 1}});
  ipc::Record record = OnSegment(Collective::kReduce, DType::kFloat32, 16);
  sends.clients[1]->Post(record);
  sends.clients[1]->Post(SendTo(0, 16));
  sends.clients[0]->Post(record);
  sends.cluster.Advance(kMillisecond);
  ExpectOk(*sends.clients[0], 1);
  ExpectOpen(*sends.clients[1], 2);
}

TEST(Reduce, SendsEachNodesSumOnce) {
  Sends sends(Ranks{{0, 1}, {2, 3}});
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
