// All-gather and reduce-scatter with a parts table: parts of any size, and results elsewhere. On
// one node and on several.
#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <vector>

#include "tests/support/hand_driven_cluster.h"
#include "tests/unit/service/dispatch/expect.h"
#include "tests/unit/service/dispatch/sends.h"

namespace headrace::support {
namespace {

// Parts of any size, and of none.
struct UnevenJob {
  explicit UnevenJob(const RanksOfNodes& places) : sends(places), counts(sends.world()) {
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
  // A reduce_scatter whose result goes to element kReceived of the rank's memory.
  ipc::Record RecordInto(std::uint32_t rank) const {
    ipc::Record record = Record(rank, Collective::kReduceScatter);
    record.flags |= ipc::kRecordHasResult;
    ipc::PartRow& own = Sends::TableOf(*sends.clients[rank])[rank];
    own.received_offset = kReceived;
    own.received_count = own.sent_count;
    return record;
  }
  // What the rank's memory holds of that, the part at kReceived included.
  void ExpectReducedInto(std::uint32_t rank) const {
    const auto world = static_cast<float>(sends.world());
    const ClientEnd& client = *sends.clients[rank];
    ExpectOk(client, client.posted());
    const std::span<const float> memory = client.Elements<float>();
    const ipc::PartRow own = Sends::TableOf(client)[rank];
    for (std::uint64_t i = 0; i < kTableAt; ++i) {
      float expected = 100.0F * static_cast<float>(rank) + static_cast<float>(i);
      if (i >= kReceived && i < kReceived + own.sent_count) {
        const auto place = static_cast<float>(i - kReceived + own.sent_offset);
        expected = 100 * world * (world - 1) / 2 + world * place;
      }
      ASSERT_EQ(memory[i], expected) << "rank " << rank << " at " << i;
    }
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
  for (const RanksOfNodes& places : kPlaces) {
    UnevenJob uneven(places);
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
  UnevenJob uneven(RanksOfNodes{{0, 1}, {2, 3}});
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
  for (const RanksOfNodes& places : {RanksOfNodes{{0, 1, 2}}, RanksOfNodes{{0}, {1}, {2}}}) {
    UnevenJob uneven(places);
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

// One node cuts by the count alone, and the other by its table.
TEST(UnevenParts, OfOneNodeDoNotMatchEqualOnesOfAnother) {
  for (const Collective kind : {Collective::kAllGather, Collective::kReduceScatter}) {
    UnevenJob job(RanksOfNodes{{0, 1}, {2}});
    std::ranges::fill(job.counts, 500);
    job.total = 1500;
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      if (rank == 2) job.counts = {400, 600, 500};
      job.sends.clients[rank]->Post(job.Record(rank, kind));
    }
    job.sends.cluster.Advance(30 * kSecond);
    // Whoever finds out tells the others, by way of their services.
    int found = 0;
    for (const ClientEnd* client : job.sends.clients) {
      found += client->HasEnded(1) && client->Read(1).code == Code::kMismatch ? 1 : 0;
    }
    EXPECT_GE(found, 1) << Name(kind);
  }
}

TEST(UnevenParts, ThatMakeNoSenseAreRefused) {
  UnevenJob uneven(RanksOfNodes{{0, 1, 2}});
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

TEST(ReduceScatterInto, LeavesTheInputAsItIs) {
  for (const RanksOfNodes& places : kPlaces) {
    UnevenJob job(places);
    for (const bool equal : {false, true}) {
      if (equal) {
        std::ranges::fill(job.counts, 500);
        job.total = 500 * job.counts.size();
      }
      for (std::uint32_t rank = 0; rank < job.sends.world(); ++rank) {
        job.sends.clients[rank]->Post(job.RecordInto(rank));
      }
      job.sends.cluster.Advance(kSecond);
      for (std::uint32_t rank = 0; rank < job.sends.world(); ++rank) {
        ASSERT_NO_FATAL_FAILURE(job.ExpectReducedInto(rank));
      }
    }
  }
}

// Where a rank wants its part is its own affair, and whether it has a table of equal parts, too.
TEST(ReduceScatterInto, MatchesRanksThatReduceInPlace) {
  for (const RanksOfNodes& places : kPlaces) {
    UnevenJob job(places);
    std::ranges::fill(job.counts, 500);
    job.total = 500 * job.counts.size();
    for (std::uint32_t rank = 0; rank < job.sends.world(); ++rank) {
      ipc::Record record =
          rank % 2 == 0 ? job.RecordInto(rank) : job.Record(rank, Collective::kReduceScatter);
      if (rank % 4 == 3) record.flags = 0;
      if (rank % 4 == 3) record.tag = 0;
      job.sends.clients[rank]->Post(record);
    }
    job.sends.cluster.Advance(kSecond);
    const auto world = static_cast<float>(job.sends.world());
    for (std::uint32_t rank = 0; rank < job.sends.world(); ++rank) {
      const ClientEnd& client = *job.sends.clients[rank];
      if (rank % 2 == 0) {
        ASSERT_NO_FATAL_FAILURE(job.ExpectReducedInto(rank));
        continue;
      }
      ExpectOk(client, client.posted());
      for (std::uint64_t i = 0; i < job.total; ++i) {
        const float own = 100.0F * static_cast<float>(rank) + static_cast<float>(i);
        const float sum = 100 * world * (world - 1) / 2 + world * static_cast<float>(i);
        ASSERT_EQ(client.Elements<float>()[i], i / 500 == rank ? sum : own) << rank << " at " << i;
      }
    }
  }
}

TEST(ReduceScatterInto, RefusesResultsThatMakeNoSense) {
  UnevenJob job(RanksOfNodes{{0, 1, 2}});
  const auto refuse = [&](auto spoil, Code code, std::initializer_list<std::string_view> values) {
    ipc::Record record = job.RecordInto(0);
    spoil(record, Sends::TableOf(*job.sends.clients[0])[0]);
    job.sends.clients[0]->Post(record);
    for (std::uint32_t rank = 1; rank < 3; ++rank) {
      job.sends.clients[rank]->Post(job.RecordInto(rank));
    }
    job.sends.cluster.Advance(kMillisecond);
    for (const ClientEnd* client : job.sends.clients) {
      ExpectFailed(*client, client->posted(), code, values);
    }
  };
  const Code invalid = Code::kInvalidArgument;
  refuse([](ipc::Record&, ipc::PartRow& own) { ++own.received_count; }, invalid, {"row 0", "8"});
  refuse([](ipc::Record&, ipc::PartRow& own) { own.received_count = 0; }, invalid, {"row 0"});
  refuse([](ipc::Record&, ipc::PartRow& own) { own.received_offset = 3; }, invalid, {"7"});
  refuse([](ipc::Record&, ipc::PartRow& own) { own.received_offset = UINT64_MAX; }, invalid, {});
  refuse([](ipc::Record& record, ipc::PartRow&) { record.root = 77; }, Code::kNotFound, {"77"});
  refuse([](ipc::Record& record, ipc::PartRow&) { record.kind = 4; }, invalid, {"all_gather"});
  refuse([](ipc::Record& record, ipc::PartRow&) { record.flags = ipc::kRecordHasResult; }, invalid,
         {"flags"});
}

// Else the service would write to memory that is gone.
TEST(ReduceScatterInto, KeepsTheSegmentOfItsResult) {
  UnevenJob job(RanksOfNodes{{0, 1}});
  HandDrivenNode& node = job.sends.cluster.node(0);
  ClientEnd& first = *job.sends.clients[0];
  const SegmentId segment = node.AddSegment(first, 4096);
  ipc::Record record = job.RecordInto(0);
  record.root = segment.value;
  Sends::TableOf(first)[0].received_offset = 0;
  first.Post(record);
  const auto remove = [&] {
    job.sends.cluster.Advance(kMillisecond);
    node.Send(service::RemoveSegment{.session = first.id(), .segment = segment, .token = 5});
    job.sends.cluster.Advance(kMillisecond);
    const Status& status = node.rpc().Of<service::SegmentRemoved>().back()->status;
    return status ? Code::kOk : status.error().code();
  };
  EXPECT_EQ(remove(), Code::kBusy);
  job.sends.clients[1]->Post(job.RecordInto(1));
  job.sends.cluster.Advance(kSecond);
  ExpectOk(first, 1);
  EXPECT_EQ(remove(), Code::kOk);
}

}  // namespace
}  // namespace headrace::support
