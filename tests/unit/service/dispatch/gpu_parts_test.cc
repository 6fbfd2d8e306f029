// Reduce-scatters of GPUs' memory from one tensor to another, and in parts of any size: on one node
// and on several, by way of the host and from GPU to GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "tests/support/hand_driven_cluster.h"
#include "tests/support/loopback/reference.h"
#include "tests/unit/service/dispatch/gpu_world.h"

namespace headrace::support {
namespace {

constexpr std::size_t kSegmentSize = 65536;
// The segments of every rank: what is reduced, what the result is written to, and the parts table.
constexpr std::uint32_t kInput = 0;
constexpr std::uint32_t kOutput = 1;
constexpr std::uint32_t kTable = 2;
// Of the result, in elements from the start of its segment.
constexpr std::uint64_t kResultAt = 24;

constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16,
                             DType::kInt32,   DType::kInt64,   DType::kUInt8};

template <class T>
void Store(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof(T));
}

// Small numbers, which every type sums exactly in any order.
void Put(DType dtype, std::byte* at, int value) {
  switch (dtype) {
    case DType::kFloat32:
      return Store(at, static_cast<float>(value));
    case DType::kFloat64:
      return Store(at, static_cast<double>(value));
    case DType::kFloat16:
      return Store(at, transport::EncodeFloat16(static_cast<float>(value)));
    case DType::kBFloat16:
      return Store(at, transport::EncodeBFloat16(static_cast<float>(value)));
    case DType::kInt32:
      return Store(at, std::int32_t{value});
    case DType::kInt64:
      return Store(at, std::int64_t{value});
    case DType::kUInt8:
      return Store(at, static_cast<std::uint8_t>(value));
  }
}

int ValueOf(std::uint32_t rank, std::uint64_t element) {
  return static_cast<int>((rank * 5 + element) % 11);
}

using Bytes = std::vector<std::byte>;

Bytes ContentOf(const ClientEnd& client, std::uint32_t segment) {
  const auto memory = client.Memory(segment);
  return {memory.begin(), memory.end()};
}

class GpuParts : public GpuTest, public ::testing::WithParamInterface<Spread> {
 protected:
  ~GpuParts() override { world_.reset(); }

  void Open(const Spread& spread) {
    world_ =
        std::make_unique<NodesOfGpus>(spread.ranks, NodesOptions{.gpus = gpus_.get(),
                                                                 .nccl_lanes = spread.nccl_lanes,
                                                                 .segment_size = kSegmentSize});
    for (std::size_t node = 0; node < spread.ranks.size(); ++node) {
      for (const std::uint32_t rank : spread.ranks[node]) {
        HandDrivenNode& at = world_->cluster.node(node);
        ClientEnd& client = *world_->clients[rank];
        const int gpu = static_cast<int>(rank % 2);
        HR_CHECK(at.AddDeviceSegment(client, gpu, kSegmentSize) == SegmentId{kOutput});
        HR_CHECK(at.AddSegment(client, kSegmentSize) == SegmentId{kTable});
      }
    }
    if (spread.ranks.size() > 1) world_->Form(spread.ranks);
    world_->cluster.Advance(kMillisecond);
  }
  std::uint32_t world() const { return world_->job.world_size; }
  ClientEnd& Client(std::uint32_t rank) { return *world_->clients[rank]; }
  ipc::PartRow* TableOf(std::uint32_t rank) {
    return reinterpret_cast<ipc::PartRow*>(Client(rank).Memory(kTable).data());
  }

  // Parts of any size, and of none, the first among them; or equal ones.
  std::vector<std::uint64_t> CountsOf(bool equal) const {
    std::vector<std::uint64_t> counts(world(), 413);
    for (std::uint32_t rank = 0; !equal && rank < world(); ++rank) {
      counts[rank] = rank % 3 == 0 && world() > 1 ? 0 : 700 * rank + 13;
    }
    return counts;
  }
  // Fills the rank's memory and table, and makes the record.
  ipc::Record Record(std::uint32_t rank, DType dtype, const std::vector<std::uint64_t>& counts,
                     bool into = true) {
    ClientEnd& client = Client(rank);
    const std::size_t size = SizeOf(dtype);
    std::ranges::fill(client.Memory(kInput), std::byte{0xA5});
    std::ranges::fill(client.Memory(kOutput), std::byte{0xA5});
    std::uint64_t total = 0;
    for (std::uint32_t part = 0; part < world(); ++part) {
      TableOf(rank)[part] = {.sent_offset = total, .sent_count = counts[part]};
      total += counts[part];
    }
    for (std::uint64_t i = 0; i < total; ++i) {
      Put(dtype, client.Memory(kInput).data() + i * size, ValueOf(rank, i));
    }
    ipc::Record record = OnSegment(Collective::kReduceScatter, dtype, total);
    record.flags = ipc::kRecordHasParts;
    record.parts = kTable;
    if (!into) return record;
    record.flags |= ipc::kRecordHasResult;
    record.root = kOutput;
    TableOf(rank)[rank].received_offset = kResultAt;
    TableOf(rank)[rank].received_count = counts[rank];
    return record;
  }
  // The memory that the rank's part is reduced to, which was as `before`.
  void ExpectReduced(std::uint32_t rank, DType dtype, const std::vector<std::uint64_t>& counts,
                     std::uint32_t segment, std::uint64_t at, Bytes before) {
    const ipc::PartRow own = TableOf(rank)[rank];
    for (std::uint64_t i = 0; i < counts[rank]; ++i) {
      int sum = 0;
      for (std::uint32_t other = 0; other < world(); ++other) {
        sum += ValueOf(other, own.sent_offset + i);
      }
      Put(dtype, before.data() + (at + i) * SizeOf(dtype), sum);
    }
    ASSERT_EQ(ContentOf(Client(rank), segment), before) << "rank " << rank << " " << Name(dtype);
  }
  // Posts `records`, by rank, and expects what each of them asks for.
  void ExpectCarriedOut(const std::vector<ipc::Record>& records, DType dtype,
                        const std::vector<std::uint64_t>& counts) {
    std::vector<Bytes> inputs;
    std::vector<Bytes> outputs;
    for (std::uint32_t rank = 0; rank < world(); ++rank) {
      inputs.push_back(ContentOf(Client(rank), kInput));
      outputs.push_back(ContentOf(Client(rank), kOutput));
      Client(rank).Post(records[rank]);
    }
    world_->cluster.Advance(kSecond);
    for (std::uint32_t rank = 0; rank < world(); ++rank) {
      ExpectOk(Client(rank), Client(rank).posted());
      if (ipc::HasResult(records[rank])) {
        ASSERT_EQ(ContentOf(Client(rank), kInput), inputs[rank]) << "rank " << rank;
        ASSERT_NO_FATAL_FAILURE(
            ExpectReduced(rank, dtype, counts, kOutput, kResultAt, outputs[rank]));
      } else {
        ASSERT_EQ(ContentOf(Client(rank), kOutput), outputs[rank]) << "rank " << rank;
        const std::uint64_t at = TableOf(rank)[rank].sent_offset;
        ASSERT_NO_FATAL_FAILURE(ExpectReduced(rank, dtype, counts, kInput, at, inputs[rank]));
      }
    }
  }
  const std::vector<transport::Transfer>& CarriedOut(std::size_t node) {
    return world_->cluster.node(node).gpu_transport().taken;
  }

  std::unique_ptr<NodesOfGpus> world_;
};

TEST_P(GpuParts, AreReducedToAnotherTensorAndTheirsStaysAsItIs) {
  Open(GetParam());
  for (const DType dtype : kDTypes) {
    for (const bool equal : {false, true}) {
      const auto counts = CountsOf(equal);
      std::vector<ipc::Record> records;
      for (std::uint32_t rank = 0; rank < world(); ++rank) {
        records.push_back(Record(rank, dtype, counts));
      }
      ASSERT_NO_FATAL_FAILURE(ExpectCarriedOut(records, dtype, counts));
    }
  }
}

// Where a rank wants its part is its own affair, and whether it has a table of equal parts, too.
TEST_P(GpuParts, MatchRanksThatReduceInPlace) {
  Open(GetParam());
  for (const bool equal : {false, true}) {
    const auto counts = CountsOf(equal);
    std::vector<ipc::Record> records;
    for (std::uint32_t rank = 0; rank < world(); ++rank) {
      records.push_back(Record(rank, DType::kInt32, counts, rank % 2 == 0));
      if (!equal || rank % 4 != 3) continue;
      records.back().flags = 0;
      records.back().parts = 0;
    }
    ASSERT_NO_FATAL_FAILURE(ExpectCarriedOut(records, DType::kInt32, counts));
  }
}

INSTANTIATE_TEST_SUITE_P(Spreads, GpuParts,
                         ::testing::Values(Spread{{{0}}}, Spread{{{0, 1}}}, Spread{{{0, 1, 2, 3}}},
                                           Spread{{{0}, {1}}}, Spread{{{0, 1}, {2}}},
                                           Spread{{{0, 3}, {1, 2}}}, Spread{{{0}, {1}, {2}}},
                                           Spread{{{0}, {1}}, 2}, Spread{{{0, 3}, {1, 2}}, 2}),
                         NameOfSpread);

using GpuResults = GpuParts;

// Each GPU reads what the others have of its own part: all parts at once, and no copy.
TEST_F(GpuResults, OfEqualPartsAreOneTransferInsideANode) {
  Open({{{0, 1, 2, 3}}});
  const auto counts = CountsOf(true);
  std::vector<ipc::Record> records;
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    records.push_back(Record(rank, DType::kFloat32, counts));
  }
  ExpectCarriedOut(records, DType::kFloat32, counts);
  ASSERT_EQ(CarriedOut(0).size(), 1U);
  const transport::Transfer& transfer = CarriedOut(0)[0];
  EXPECT_EQ(transfer.kind, Collective::kReduceScatter);
  for (std::uint32_t i = 0; i < 4; ++i) EXPECT_NE(transfer.outputs[i], nullptr) << i;
}

TEST_F(GpuResults, OfOtherNodesCrossOnceEach) {
  Open({{{0, 1}, {2, 3}}});
  const auto counts = CountsOf(true);
  std::vector<ipc::Record> records;
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    records.push_back(Record(rank, DType::kFloat32, counts));
  }
  ExpectCarriedOut(records, DType::kFloat32, counts);
  for (std::size_t node = 0; node < 2; ++node) {
    EXPECT_EQ(world_->cluster.exchange(node).counters().bytes_sent, 2 * counts[0] * sizeof(float));
  }
}

// What is only read may be read twice; what is written may not, and the stream says when it begins.
TEST_F(GpuResults, AreWrittenOnceEveryReadyWordIsThere) {
  Open({{{0, 1}}});
  const auto counts = CountsOf(true);
  std::vector<Bytes> outputs;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    const ipc::Record record = Awaiting(Record(rank, DType::kFloat32, counts));
    outputs.push_back(ContentOf(Client(rank), kOutput));
    Client(rank).Post(record);
  }
  WriteReadyWord(Client(0), 1);
  world_->cluster.Advance(kMillisecond);
  for (std::uint32_t rank = 0; rank < 2; ++rank) ExpectOpen(Client(rank), 1);
  EXPECT_TRUE(CarriedOut(0).empty());
  Client(0).Post(OnSegment(Collective::kAllReduce, DType::kFloat32, 4));
  Client(1).Post(OnSegment(Collective::kAllReduce, DType::kFloat32, 4));
  world_->cluster.Advance(kMillisecond);
  ExpectFailed(Client(0), 2, Code::kInvalidArgument, {"overlap"});
  WriteReadyWord(Client(1), 1);
  world_->cluster.Advance(kMillisecond);
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    ExpectOk(Client(rank), 1);
    ExpectReduced(rank, DType::kFloat32, counts, kOutput, kResultAt, outputs[rank]);
  }
}

TEST_F(GpuResults, ThatMakeNoSenseAreRefusedAndNothingIsWritten) {
  Open({{{0, 1, 2}}});
  HandDrivenNode& node = world_->cluster.node(0);
  const SegmentId elsewhere = node.AddDeviceSegment(Client(0), 1, kSegmentSize);
  const SegmentId on_host = node.AddSegment(Client(0), kSegmentSize);
  world_->cluster.Advance(kMillisecond);
  const auto counts = CountsOf(true);
  const auto refuse = [&](auto spoil, Code code, std::initializer_list<std::string_view> values) {
    std::vector<Bytes> before;
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      ipc::Record record = Record(rank, DType::kFloat32, counts);
      for (const std::uint32_t segment : {kInput, kOutput}) {
        before.push_back(ContentOf(Client(rank), segment));
      }
      if (rank == 0) spoil(record, TableOf(0)[0]);
      Client(rank).Post(record);
    }
    world_->cluster.Advance(kMillisecond);
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      ExpectFailed(Client(rank), Client(rank).posted(), code, values);
      EXPECT_EQ(ContentOf(Client(rank), kInput), before[rank * 2]);
      EXPECT_EQ(ContentOf(Client(rank), kOutput), before[rank * 2 + 1]);
    }
  };
  const Code invalid = Code::kInvalidArgument;
  const auto into = [](SegmentId segment) {
    return [segment](ipc::Record& record, ipc::PartRow&) { record.root = segment.value; };
  };
  refuse(into(elsewhere), invalid, {"on GPU 0", "on GPU 1", "segment 3"});
  refuse(into(on_host), invalid, {"on GPU 0", "in host memory", "segment 4"});
  refuse(into(SegmentId{77}), Code::kNotFound, {"77"});
  refuse(into(SegmentId{kInput}), invalid, {"413", "1239"});
  refuse([](ipc::Record&, ipc::PartRow& own) { ++own.received_count; }, invalid, {"row 0"});
  refuse([](ipc::Record&, ipc::PartRow& own) { own.received_offset = UINT64_MAX; }, invalid, {});
  refuse([](ipc::Record& record, ipc::PartRow&) { record.parts = kOutput; }, invalid,
         {"parts table", "on GPU 0"});
  refuse(
      [&](ipc::Record& record, ipc::PartRow&) {
        record.segment = on_host.value;
        record.count = 0;
        std::fill_n(TableOf(0), 3, ipc::PartRow{});
      },
      invalid, {"in host memory", "on GPU 0"});
}

// Else the service would write to memory that is gone.
TEST_F(GpuResults, KeepTheSegmentThatTheyAreWrittenTo) {
  Open({{{0, 1}}});
  HandDrivenNode& node = world_->cluster.node(0);
  const auto counts = CountsOf(true);
  std::vector<ipc::Record> records;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    records.push_back(Record(rank, DType::kFloat32, counts));
  }
  Client(0).Post(records[0]);
  const auto remove = [&] {
    world_->cluster.Advance(kMillisecond);
    node.Send(service::RemoveSegment{
        .session = Client(0).id(), .segment = SegmentId{kOutput}, .token = 5});
    world_->cluster.Advance(kMillisecond);
    const Status& status = node.rpc().Of<service::SegmentRemoved>().back()->status;
    return status ? Code::kOk : status.error().code();
  };
  EXPECT_EQ(remove(), Code::kBusy);
  Client(1).Post(records[1]);
  world_->cluster.Advance(kSecond);
  ExpectOk(Client(0), 1);
  EXPECT_EQ(remove(), Code::kOk);
}

}  // namespace
}  // namespace headrace::support
