// Memory of GPUs that is encoded for other nodes where it is, by the kernels of the driver's
// double: the bits of nodes that encode on the host, which may take part in the same sums.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "ipc/board.h"
#include "ipc/sealed_memory.h"
#include "tests/support/expect_text.h"
#include "tests/support/hand_driven_cluster.h"
#include "tests/unit/service/dispatch/gpu_world.h"
#include "tests/unit/service/dispatch/planned.h"
#include "transport/nvlink/gpu_codec.h"

namespace headrace::support {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::uint64_t kSummedCount = 9000;  // elements: a block of operations and a part of one
constexpr std::uint64_t kCodedBlockBytes = 1 << 15;

// Ends what was started whenever it is asked: the nodes' time is not that of GPUs.
class PromptCodec final : public transport::DeviceCodec {
 public:
  // `without`: a codec that it has no kernels for.
  explicit PromptCodec(std::unique_ptr<transport::GpuCodec> codec, Codec::Kind without)
      : codec_(std::move(codec)), without_(without) {}

  std::uint32_t codecs() const override { return codec_->codecs() & ~(1U << without_); }
  bool HasRoom(std::int8_t device) const override { return codec_->HasRoom(device); }
  Status Encode(std::int8_t device, const transport::EncodedRange& from, std::byte* out) override {
    return codec_->Encode(device, from, out);
  }
  Status DecodeSum(std::int8_t device, std::span<const std::byte* const> inputs, bool onto,
                   std::uint32_t divisor, const transport::EncodedRange& to) override {
    return codec_->DecodeSum(device, inputs, onto, divisor, to);
  }
  Status AddResidual(std::int8_t device, const transport::EncodedRange& range) override {
    return codec_->AddResidual(device, range);
  }
  Status EncodeLossless(std::int8_t device, const transport::EncodedRange& from, bool as_it_is,
                        std::byte* out, std::uint32_t* table) override {
    return codec_->EncodeLossless(device, from, as_it_is, out, table);
  }
  Status DecodeLossless(std::int8_t device, std::span<const transport::LosslessMessage> messages,
                        std::size_t own, std::uint32_t divisor,
                        const transport::EncodedRange& to) override {
    return codec_->DecodeLossless(device, messages, own, divisor, to);
  }
  Status MakeLeftFactor(std::int8_t device, const transport::DeviceMatrix& matrix) override {
    return codec_->MakeLeftFactor(device, matrix);
  }
  Status MakeRightFactor(std::int8_t device, const transport::DeviceMatrix& matrix,
                         const transport::RowRange& rows) override {
    return codec_->MakeRightFactor(device, matrix, rows);
  }
  Status WriteProduct(std::int8_t device, const transport::DeviceMatrix& matrix,
                      std::uint32_t divisor, bool is_finite) override {
    return codec_->WriteProduct(device, matrix, divisor, is_finite);
  }
  std::uint64_t TicketOf(std::int8_t device) const override { return codec_->TicketOf(device); }
  std::optional<Status> Ended(std::int8_t device, std::uint64_t ticket) const override {
    return codec_->Ended(device, ticket);
  }
  // What is started is marked by the first, and found done by the second.
  bool Poll() override {
    const bool marked = codec_->Poll();
    codec_->Wait();
    return codec_->Poll() || marked;
  }
  void Wait() override { codec_->Wait(); }

 private:
  std::unique_ptr<transport::GpuCodec> codec_;
  const Codec::Kind without_;
};

class GpuCodecs : public GpuTest {
 protected:
  ~GpuCodecs() override { worlds_.clear(); }

  NodesOfGpus& OnHosts(const Ranks& ranks, const NodesOptions& options = {}) {
    worlds_.push_back(std::make_unique<NodesOfGpus>(ranks, options));
    return *worlds_.back();
  }
  // Nodes from the first on that encode on their GPUs; the others have GPUs and encode on the host.
  NodesOfGpus& OnGpus(const Ranks& ranks, std::size_t coding_nodes, NodesOptions options = {}) {
    options.gpus = gpus_.get();
    options.device_codec =
        [this, coding_nodes](std::size_t node) -> std::shared_ptr<transport::DeviceCodec> {
      if (node >= coding_nodes) return nullptr;
      return std::make_shared<PromptCodec>(transport::GpuCodec::Open(*gpus_, 2).value(), without_);
    };
    return OnHosts(ranks, options);
  }
  static void ExpectSameMemory(const NodesOfGpus& one, const NodesOfGpus& other,
                               const std::string& what) {
    for (std::size_t rank = 0; rank < one.clients.size(); ++rank) {
      const auto memory = one.clients[rank]->Memory();
      const auto others = other.clients[rank]->Memory();
      // A GPU's are whole units of the driver's.
      const std::size_t size = std::min(memory.size(), others.size());
      ASSERT_EQ(std::memcmp(memory.data(), others.data(), size), 0) << what << ", rank " << rank;
    }
  }
  static ipc::JobRow JobRow(NodesOfGpus& world, std::size_t node) {
    return *world.cluster.node(node).JobRow(world.job.id);
  }
  // By which processors the blocks of the node's operations were encoded.
  static std::vector<std::uint16_t> CodedOn(NodesOfGpus& world, std::size_t node) {
    std::vector<std::uint16_t> coded_on;
    for (const auto& slot : world.cluster.node(node).board().flights[0]) {
      const auto row = ipc::ReadRow(slot);
      if (row && row->number != 0 && row->codec != 0) coded_on.push_back(row->coded_on);
    }
    return coded_on;
  }

  Codec::Kind without_ = Codec::kNone;
  std::vector<std::unique_ptr<NodesOfGpus>> worlds_;
};

void SumInCodecs(NodesOfGpus& world, const Ranks& ranks, std::span<const Codec> codecs) {
  world.Form(ranks, kCodedBlockBytes);
  for (ClientEnd* client : world.clients) {
    for (std::size_t i = 0; i < kSummedCount; ++i) {
      client->Elements<float>()[i] = std::sin(static_cast<float>(i * (client->rank() + 3)));
    }
  }
  for (const Codec codec : codecs) {
    ipc::Record record = OnSegment(Collective::kAllReduce, DType::kFloat32, kSummedCount, 0);
    record.reduction = static_cast<std::uint8_t>(Reduction::kAverage);
    record.tag = SteeringValue(codec);
    world.PostAll(record);
    world.cluster.Advance(100 * kMillisecond);
  }
  for (const ClientEnd* client : world.clients) {
    for (std::uint64_t i = 1; i <= codecs.size(); ++i) ExpectOk(*client, i);
  }
}

TEST_F(GpuCodecs, EncodeOperationsToTheBitsOfNodesThatEncodeOnTheHost) {
  constexpr Codec kCodecs[] = {Codec::kBFloat16, Codec::kInt8Stochastic, Codec::kInt4Stochastic,
                               Codec::kLossless};
  for (const Ranks& ranks : {Ranks{{0}, {1}}, Ranks{{0, 1}, {2}}, Ranks{{0, 3}, {1, 2}, {4}}}) {
    for (const std::uint32_t rails : {1U, 2U}) {
      NodesOfGpus& hosts = OnHosts(ranks, {.rails = rails});
      SumInCodecs(hosts, ranks, kCodecs);
      for (const std::size_t coding : {std::size_t{1}, ranks.size()}) {
        NodesOfGpus& gpus = OnGpus(ranks, coding, {.rails = rails});
        SumInCodecs(gpus, ranks, kCodecs);
        ExpectSameMemory(gpus, hosts,
                         std::to_string(ranks.size()) + " nodes, " + std::to_string(coding) +
                             " of them coding on GPUs, over " + std::to_string(rails) + " rails");
        for (std::size_t node = 0; node < ranks.size(); ++node) {
          const ipc::JobRow row = JobRow(gpus, node);
          EXPECT_GT(row.encoded_bytes, 0U);
          EXPECT_EQ(row.encoded_gpu_bytes, node < coding ? row.encoded_bytes : 0U) << node;
        }
        worlds_.pop_back();
      }
    }
  }
}

TEST_F(GpuCodecs, TakeTheGpusOfTheRanksInTurn) {
  NodesOfGpus& gpus = OnGpus({{0, 1}, {2}}, 2);
  constexpr Codec kCodecs[] = {Codec::kBFloat16};
  SumInCodecs(gpus, {{0, 1}, {2}}, kCodecs);
  std::vector<std::uint16_t> coded_on = CodedOn(gpus, 0);
  std::ranges::sort(coded_on);
  EXPECT_EQ(coded_on, (std::vector<std::uint16_t>{1, 2}));
  EXPECT_EQ(CodedOn(gpus, 1), (std::vector<std::uint16_t>{1, 1})) << "rank 2 is on GPU 0";
}

TEST_F(GpuCodecs, LeaveToTheHostWhatTheyHaveNoKernelsFor) {
  const Ranks ranks{{0}, {1}};
  constexpr Codec kCodecs[] = {Codec::kLossless};
  without_ = Codec::kLossless;
  NodesOfGpus& hosts = OnHosts(ranks);
  SumInCodecs(hosts, ranks, kCodecs);
  NodesOfGpus& gpus = OnGpus(ranks, 2);
  SumInCodecs(gpus, ranks, kCodecs);
  ExpectSameMemory(gpus, hosts, "lossless");
  EXPECT_GT(JobRow(gpus, 0).encoded_bytes, 0U);
  EXPECT_EQ(JobRow(gpus, 0).encoded_gpu_bytes, 0U);
}

TEST_F(GpuCodecs, TakeScratchOfTheGpuWhichIsSaidAndGivenBackWithTheJob) {
  const Ranks ranks{{0}, {1}};
  constexpr Codec kCodecs[] = {Codec::kBFloat16, Codec::kBFloat16};
  NodesOfGpus& gpus = OnGpus(ranks, 2);
  CudaDoubleCounts before{};
  doubled_.counts(&before);
  SumInCodecs(gpus, ranks, kCodecs);
  EXPECT_TEXTS(gpus.cluster.node(0).watch_tap().events);
  CudaDoubleCounts counts{};
  doubled_.counts(&counts);
  EXPECT_EQ(counts.mappings, before.mappings + 2) << "one for each node";
  for (std::size_t node = 0; node < 2; ++node) {
    gpus.cluster.node(node).Close(*gpus.clients[node], true, "left");
  }
  gpus.cluster.Advance(kMillisecond);
  doubled_.counts(&counts);
  EXPECT_LT(counts.mappings, before.mappings);
}

TEST_F(GpuCodecs, BookScratchInTheUnitsInWhichGpusGiveTheirMemoryAndStaging) {
  const Ranks ranks{{0}, {1}};
  constexpr Codec kCodecs[] = {Codec::kBFloat16, Codec::kBFloat16};
  NodesOfGpus& gpus = OnGpus(ranks, 1);
  SumInCodecs(gpus, ranks, kCodecs);
  const auto of_gpu = gpus.cluster.node(0).rpc().Of<service::BookScratch>();
  ASSERT_EQ(of_gpu.size(), 2U);
  EXPECT_EQ(std::get<service::MakeScratch>(of_gpu[0]->request).gpu, 0);
  EXPECT_EQ(of_gpu[0]->bytes, std::uint64_t{2} << 20);
  const auto& staging = std::get<service::PinStaging>(of_gpu[1]->request);
  EXPECT_GT(staging.memory.size(), 0U);
  EXPECT_EQ(of_gpu[1]->bytes, staging.memory.size());
  for (const service::BookScratch* each : of_gpu) {
    EXPECT_EQ(each->session, gpus.clients[0]->id());
  }
  const auto of_host = gpus.cluster.node(1).rpc().Of<service::BookScratch>();
  ASSERT_EQ(of_host.size(), 1U);
  EXPECT_EQ(of_host[0]->bytes, 8 * kCodedBlockBytes);
}

TEST_F(GpuCodecs, NameTheRemedyWhereTheirUserMayNotHaveStaging) {
  const Ranks ranks{{0}, {1}};
  NodesOfGpus& gpus = OnGpus(ranks, 2);
  gpus.cluster.node(0).LimitScratch((std::uint64_t{2} << 20) + 1);
  gpus.Form(ranks, kCodedBlockBytes);
  ipc::Record record = OnSegment(Collective::kAllReduce, DType::kFloat32, kSummedCount, 0);
  record.tag = SteeringValue(Codec(Codec::kBFloat16));
  gpus.PostAll(record);
  gpus.cluster.Advance(kSecond);
  ExpectFailed(*gpus.clients[0], 1, Code::kExhausted,
               {"scratch memory for GPUs", "encode on the host instead"});
  gpus.cluster.CloseLinks(0, gpus.job.id, "the job has failed");
  gpus.cluster.CloseLinks(1, gpus.job.id, "the job has failed");
  gpus.cluster.Advance(kMillisecond);
  CudaDoubleCounts counts{};
  doubled_.counts(&counts);
  EXPECT_EQ(counts.host_registrations, 0U);
}

TEST_F(GpuCodecs, HaveTheirStagingPinnedAsLongAsTheirLinksAreOpen) {
  const Ranks ranks{{0}, {1}};
  constexpr Codec kCodecs[] = {Codec::kBFloat16};
  NodesOfGpus& gpus = OnGpus(ranks, 2, {.rails = 2});
  SumInCodecs(gpus, ranks, kCodecs);
  CudaDoubleCounts counts{};
  doubled_.counts(&counts);
  EXPECT_EQ(counts.host_registrations, 4U) << "on either lane of either node";
  gpus.cluster.CloseLinks(0, gpus.job.id, "the job is over");
  gpus.cluster.Advance(kMillisecond);
  doubled_.counts(&counts);
  EXPECT_EQ(counts.host_registrations, 2U);
  gpus.cluster.CloseLinks(1, gpus.job.id, "the job is over");
  gpus.cluster.Advance(kMillisecond);
  doubled_.counts(&counts);
  EXPECT_EQ(counts.host_registrations, 0U);
}

// What was booked has been returned by then.
TEST_F(GpuCodecs, HaveNoStagingPinnedForAJobThatEndedWhileItWasBooked) {
  const Ranks ranks{{0}, {1}};
  constexpr Codec kCodecs[] = {Codec::kBFloat16};
  NodesOfGpus& gpus = OnGpus(ranks, 1);
  SumInCodecs(gpus, ranks, kCodecs);
  CudaDoubleCounts before{};
  doubled_.counts(&before);
  alignas(ipc::kPageSize) static std::array<std::byte, ipc::kPageSize> memory;
  HandDrivenNode& node = gpus.cluster.node(0);
  const auto booked = node.rpc().Of<service::BookScratch>();
  ASSERT_FALSE(booked.empty());
  service::PinStaging staging = std::get<service::PinStaging>(booked.back()->request);
  staging.job = JobId{staging.job.value + 1};
  staging.memory = memory;
  node.Send(service::ScratchBooked{.request = staging, .status = {}});
  gpus.cluster.Advance(kMillisecond);
  CudaDoubleCounts after{};
  doubled_.counts(&after);
  EXPECT_EQ(after.host_registrations, before.host_registrations);
}

TEST_F(GpuCodecs, LeaveToTheHostWhatAGpuHasNoMemoryForAndSayWhy) {
  const Ranks ranks{{0}, {1}};
  constexpr Codec kCodecs[] = {Codec::kBFloat16, Codec::kInt8Stochastic};
  NodesOfGpus& hosts = OnHosts(ranks);
  SumInCodecs(hosts, ranks, kCodecs);
  NodesOfGpus& gpus = OnGpus(ranks, 1);
  doubled_.fail("cuMemCreate", 1, transport::CuResult::kOutOfMemory);
  SumInCodecs(gpus, ranks, kCodecs);
  ExpectSameMemory(gpus, hosts, "without memory of the GPU");
  EXPECT_EQ(JobRow(gpus, 0).encoded_gpu_bytes, 0U);
  EXPECT_THAT(gpus.cluster.node(0).watch_tap().events, Contains(HasSubstr("OUT_OF_MEMORY")));
  EXPECT_TEXTS(gpus.cluster.node(0).watch_tap().events);
}

// Two large gradients in a codec and a small one beside them, in blocks of several runs.
constexpr std::uint32_t kLongCount = 6000;
constexpr std::uint32_t kShortCount = 300;
constexpr std::uint32_t kAllCount = 2 * kLongCount + kShortCount;
// Not where a page begins.
constexpr std::uint64_t kResidualsAt = 4096 + 64;

std::shared_ptr<const plan::Plan> CodedPlan(Codec codec, std::uint32_t version = 1) {
  plan::Plan plan = *PlanOf(
      {{{2, 1000, kLongCount - 1000}, {0, 0, kLongCount}}, {{1, 0, kShortCount}, {2, 0, 1000}}},
      version);
  if (codec != Codec::kNone) plan.codecs = {{codec, 0, 3}};
  return std::make_shared<const plan::Plan>(std::move(plan));
}

class GpuCodedGradients : public GpuCodecs {
 protected:
  static constexpr std::size_t kSegmentSize = std::size_t{1} << 17;

  void Begin(NodesOfGpus& world, const Ranks& ranks, Codec codec, bool in_ranks) {
    Begin(world, ranks, CodedPlan(codec), in_ranks);
  }
  // Ranks keep residuals in a segment of the host's of their own, or the service does. Where long
  // gradients have rows they keep right factors, too.
  void Begin(NodesOfGpus& world, const Ranks& ranks, const std::shared_ptr<const plan::Plan>& plan,
             bool in_ranks, std::uint64_t rows = 0, std::uint32_t factors_rank = 0) {
    service::Layout packed = *PackedLayout({kLongCount, kShortCount, kLongCount});
    packed.tensors[0].rows = packed.tensors[2].rows = rows;
    const auto layout = std::make_shared<const service::Layout>(std::move(packed));
    for (std::size_t node = 0; node < ranks.size(); ++node) {
      for (const std::uint32_t rank : ranks[node]) {
        ClientEnd& client = *world.clients[rank];
        service::ResidualsPlace place;
        if (in_ranks) {
          place = {.segment = world.cluster.node(node).AddSegment(client, kSegmentSize),
                   .offset = kResidualsAt,
                   .factors_rank = factors_rank};
        }
        HandIn(world.cluster.node(node), client, layout, place);
      }
    }
    world.Form(ranks, kCodedBlockBytes);
    AdoptOn(world, plan, 1);
  }
  static void AdoptOn(NodesOfGpus& world, const std::shared_ptr<const plan::Plan>& plan,
                      std::uint64_t from) {
    for (std::size_t node = 0; node < world.cluster.nodes_count(); ++node) {
      if (world.cluster.node(node).JobRow(world.job.id)) {
        Adopt(world.cluster.node(node), world.job.id, plan, from);
      }
    }
    world.cluster.Advance(kMillisecond);
  }
  static void Iterate(NodesOfGpus& world, std::uint64_t iteration) {
    const auto layout = PackedLayout({kLongCount, kShortCount, kLongCount});
    for (ClientEnd* client : world.clients) {
      for (std::uint32_t i = 0; i < kAllCount; ++i) {
        client->Elements<float>()[i] = std::sin(static_cast<float>(i * (client->rank() + 3)));
      }
      for (std::uint32_t tensor = 0; tensor < 3; ++tensor) PostGradient(*client, *layout, tensor);
    }
    world.cluster.Advance(100 * kMillisecond);
    for (const ClientEnd* client : world.clients) {
      for (std::uint64_t i = 0; i < 3; ++i) ExpectOk(*client, 3 * iteration - i);
    }
  }
  static std::vector<std::byte> ResidualsOf(const NodesOfGpus& world, std::uint32_t rank) {
    const auto memory = world.clients[rank]->Memory(1);
    return {memory.begin(), memory.end()};
  }
  // One job: on hosts, and with GPUs on one node or on both; the latter over two rails,
  // as hosts_by_two.
  struct Worlds {
    NodesOfGpus& hosts;
    NodesOfGpus& mixed;
    NodesOfGpus& gpus;
    NodesOfGpus& hosts_by_two;
  };
  Worlds OnHostsAndGpus(const Ranks& ranks) {
    return {.hosts = OnHosts(ranks, {.segment_size = kSegmentSize}),
            .mixed = OnGpus(ranks, 1, {.segment_size = kSegmentSize}),
            .gpus = OnGpus(ranks, 2, {.segment_size = kSegmentSize, .rails = 2}),
            .hosts_by_two = OnHosts(ranks, {.segment_size = kSegmentSize, .rails = 2})};
  }
  // Sums and, where ranks keep them, residuals.
  void ExpectHostsBits(const Worlds& worlds, bool in_ranks, const std::string& when) {
    for (const auto& [one, other] :
         {std::pair(&worlds.mixed, &worlds.hosts), std::pair(&worlds.gpus, &worlds.hosts_by_two)}) {
      ExpectSameMemory(*one, *other, when);
      for (const std::uint32_t first : {0U, 2U}) {
        if (!in_ranks) continue;
        EXPECT_EQ(ResidualsOf(*one, first), ResidualsOf(*other, first)) << when;
      }
    }
  }
  std::uint64_t HostRegistrations() const {
    CudaDoubleCounts counts{};
    doubled_.counts(&counts);
    return counts.host_registrations;
  }
};

// Also where they go on to another codec, and to exact sums, which get back what was left out.
TEST_F(GpuCodedGradients, KeepWhatIsLeftOutOfThemToTheBitsOfTheHost) {
  const Ranks ranks{{0, 1}, {2}};
  for (const Codec codec : {Codec(Codec::kInt8), Codec(Codec::kBFloat16), Codec(Codec::kTopK),
                            Codec(Codec::kInt4Stochastic)}) {
    for (const bool in_ranks : {true, false}) {
      const Worlds worlds = OnHostsAndGpus(ranks);
      for (const auto& world : worlds_) {
        Begin(*world, ranks, codec, in_ranks);
        for (std::uint64_t iteration = 1; iteration <= 4; ++iteration) Iterate(*world, iteration);
      }
      ExpectHostsBits(worlds, in_ranks, Name(codec) + " encoded");
      const ipc::JobRow row = JobRow(worlds.gpus, 1);
      EXPECT_GT(row.encoded_bytes, 0U);
      EXPECT_EQ(row.encoded_gpu_bytes, row.encoded_bytes) << Name(codec);
      EXPECT_EQ(JobRow(worlds.mixed, 1).encoded_gpu_bytes, 0U);
      if (in_ranks) {
        const auto kept = ResidualsOf(worlds.gpus, 2);
        EXPECT_TRUE(std::ranges::any_of(kept, [](std::byte each) { return each != std::byte{}; }));
      }
      for (const auto& world : worlds_) {
        AdoptOn(*world, CodedPlan(Codec::kNone, 2), 5);
        for (std::uint64_t iteration = 5; iteration <= 6; ++iteration) Iterate(*world, iteration);
      }
      ExpectHostsBits(worlds, in_ranks, Name(codec) + " exact");
      worlds_.clear();
    }
  }
}

TEST_F(GpuCodedGradients, HaveTheBitsOfTheHostOverServers) {
  const Ranks ranks{{0, 1}, {2}};
  NodesOfGpus& hosts = OnHosts(ranks, {.segment_size = kSegmentSize, .servers = 2});
  NodesOfGpus& gpus = OnGpus(ranks, 2, {.segment_size = kSegmentSize, .servers = 2});
  for (const auto& world : worlds_) {
    Begin(*world, ranks, Codec::kInt8, true);
    for (std::uint64_t iteration = 1; iteration <= 3; ++iteration) Iterate(*world, iteration);
  }
  ExpectSameMemory(gpus, hosts, "servers");
  EXPECT_EQ(JobRow(gpus, 0).encoded_gpu_bytes, JobRow(gpus, 0).encoded_bytes);
  EXPECT_GT(JobRow(gpus, 0).encoded_bytes, 0U);
}

TEST_F(GpuCodedGradients, ArePinnedAsLongAsTheirMemoryIsMapped) {
  const Ranks ranks{{0}, {1}};
  for (const bool in_ranks : {true, false}) {
    NodesOfGpus& gpus = OnGpus(ranks, 2, {.segment_size = kSegmentSize});
    Begin(gpus, ranks, Codec::kInt8, in_ranks);
    EXPECT_EQ(HostRegistrations(), 2U) << "residuals of either node";
    Iterate(gpus, 1);
    for (std::size_t node = 0; node < 2; ++node) {
      gpus.cluster.CloseLinks(node, gpus.job.id, "the job is over");
      gpus.cluster.node(node).Close(*gpus.clients[node], true, "left");
    }
    gpus.cluster.Advance(kMillisecond);
    EXPECT_EQ(HostRegistrations(), 0U);
    worlds_.clear();
  }
}

// Mapping waits while collectives of NCCL are under way.
TEST_F(GpuCodedGradients, AreNotUnmappedWhileTheyAreBeingPinned) {
  const Ranks ranks{{0}, {1}};
  NodesOfGpus& gpus = OnGpus(ranks, 2, {.segment_size = kSegmentSize});
  ASSERT_TRUE(gpus_->memory_gate().TryBeginCollective());
  Begin(gpus, ranks, Codec::kInt8, true);
  HandDrivenNode& node = gpus.cluster.node(0);
  node.Close(*gpus.clients[0], true, "left");
  gpus.cluster.Advance(10 * kMillisecond);
  EXPECT_FALSE(node.Discarded(*gpus.clients[0]));
  EXPECT_EQ(HostRegistrations(), 0U);
  gpus_->memory_gate().EndCollective();
  gpus.cluster.Advance(10 * kMillisecond);
  EXPECT_TRUE(node.Discarded(*gpus.clients[0]));
  EXPECT_EQ(HostRegistrations(), 1U) << "of the other node";
  EXPECT_EQ(node.discarded_in_use(), 0U);
  EXPECT_THAT(node.watch_tap().events, Not(Contains(HasSubstr("compressed by the host"))))
      << "nobody needs them any more";
}

TEST_F(GpuCodedGradients, AreEncodedByTheHostWhereGpusDoNotReachWhatIsLeftOut) {
  const Ranks ranks{{0}, {1}};
  NodesOfGpus& hosts = OnHosts(ranks, {.segment_size = kSegmentSize});
  NodesOfGpus& gpus = OnGpus(ranks, 1, {.segment_size = kSegmentSize});
  doubled_.fail("cuMemHostRegister", 1, transport::CuResult::kOutOfMemory);
  for (const auto& world : worlds_) {
    Begin(*world, ranks, Codec::kInt8, true);
    for (std::uint64_t iteration = 1; iteration <= 3; ++iteration) Iterate(*world, iteration);
  }
  ExpectSameMemory(gpus, hosts, "not pinned");
  EXPECT_GT(JobRow(gpus, 0).encoded_bytes, 0U);
  EXPECT_EQ(JobRow(gpus, 0).encoded_gpu_bytes, 0U);
  EXPECT_TEXTS(gpus.cluster.node(0).watch_tap().events);
}

// Plans are made of what GPUs take for it, where they encode.
TEST_F(GpuCodedGradients, ReportWhatCodecsCostOnGpus) {
  const Ranks ranks{{0}, {1}};
  const CodecCost of_host{
      .codec = Codec::kInt4, .share = 0.125, .encode_s_per_byte = 1e-9, .decode_s_per_byte = 1e-9};
  CodecCost of_gpu = of_host;
  of_gpu.encode_s_per_byte = 1e-11;
  for (const bool on_gpus : {true, false}) {
    NodesOfGpus& world = on_gpus ? OnGpus(ranks, 2, {.segment_size = kSegmentSize})
                                 : OnHosts(ranks, {.segment_size = kSegmentSize});
    world.cluster.node(0).dispatch().SetCodecCosts({of_host}, {&of_gpu, 1});
    Begin(world, ranks, Codec::kInt8, true);
    for (std::uint64_t iteration = 1; iteration <= 3; ++iteration) Iterate(world, iteration);
    const auto seen = world.cluster.node(0).peers().Of<service::TimesSeen>();
    ASSERT_FALSE(seen.empty());
    const auto cost =
        std::ranges::find(seen.back()->codecs, Codec(Codec::kInt4), &CodecCost::codec);
    ASSERT_NE(cost, seen.back()->codecs.end());
    EXPECT_EQ(cost->encode_s_per_byte, on_gpus ? 1e-11 : 1e-9);
  }
}

// The long gradients as matrices, each of which is a transfer of its own.
constexpr std::uint64_t kRows = 60;
constexpr Codec kOfRankThree(Codec::kPowerSgd, 3);

std::shared_ptr<const plan::Plan> MatrixPlan(Codec codec, std::uint32_t version = 1) {
  plan::Plan plan =
      *PlanOf({{{0, 0, kLongCount}, {2, 0, kLongCount}}, {{1, 0, kShortCount}}}, version);
  if (codec != Codec::kNone) plan.codecs = {{codec, 0, 3}};
  return std::make_shared<const plan::Plan>(std::move(plan));
}

using GpuMatrices = GpuCodedGradients;

// Also where other codecs, other ranks and exact sums come in between.
TEST_F(GpuMatrices, CrossAsFactorsToTheBitsOfTheHost) {
  const Ranks ranks{{0, 1}, {2}};
  const Codec codecs[] = {kOfRankThree,          {Codec::kPowerSgd, 1}, kOfRankThree, Codec::kInt8,
                          {Codec::kPowerSgd, 3}, Codec::kNone,          kOfRankThree};
  for (const bool in_ranks : {true, false}) {
    const Worlds worlds = OnHostsAndGpus(ranks);
    for (const auto& world : worlds_) {
      Begin(*world, ranks, MatrixPlan(codecs[0]), in_ranks, kRows, 3);
    }
    std::uint64_t iteration = 0;
    for (std::uint32_t version = 1; version <= std::size(codecs); ++version) {
      for (const auto& world : worlds_) {
        if (version > 1) {
          AdoptOn(*world, MatrixPlan(codecs[version - 1], version), iteration + 1);
        }
        for (std::uint64_t i = 1; i <= 2; ++i) Iterate(*world, iteration + i);
      }
      iteration += 2;
      ExpectHostsBits(worlds, in_ranks, std::to_string(version));
    }
    EXPECT_GT(JobRow(worlds.gpus, 1).encoded_bytes, 0U);
    EXPECT_EQ(JobRow(worlds.gpus, 1).encoded_gpu_bytes, JobRow(worlds.gpus, 1).encoded_bytes);
    EXPECT_GT(JobRow(worlds.mixed, 0).encoded_gpu_bytes, 0U);
    EXPECT_EQ(JobRow(worlds.mixed, 1).encoded_gpu_bytes, 0U);
    worlds_.clear();
  }
}

TEST_F(GpuMatrices, HaveMemoryForTheirFactorsThatOthersHaveNoPartIn) {
  const Ranks ranks{{0}, {1}};
  NodesOfGpus& gpus = OnGpus(ranks, 2, {.segment_size = kSegmentSize});
  Begin(gpus, ranks, MatrixPlan(kOfRankThree), true, kRows, 3);
  for (std::uint64_t iteration = 1; iteration <= 3; ++iteration) Iterate(gpus, iteration);
  EXPECT_TEXTS(gpus.cluster.node(0).watch_tap().events);
}

// Then no memory is pinned for factors either.
TEST_F(GpuMatrices, AreLeftToTheHostWhereAGpuHasNoMemoryForThem) {
  const Ranks ranks{{0}, {1}};
  NodesOfGpus& hosts = OnHosts(ranks, {.segment_size = kSegmentSize});
  NodesOfGpus& gpus = OnGpus(ranks, 1, {.segment_size = kSegmentSize});
  for (const auto& world : worlds_) {
    Begin(*world, ranks, MatrixPlan(kOfRankThree), true, kRows, 3);
    if (world.get() == &gpus) doubled_.fail("cuMemCreate", 1, transport::CuResult::kOutOfMemory);
    for (std::uint64_t iteration = 1; iteration <= 3; ++iteration) Iterate(*world, iteration);
  }
  ExpectSameMemory(gpus, hosts, "without memory of the GPU");
  EXPECT_GT(JobRow(gpus, 0).encoded_bytes, 0U);
  EXPECT_EQ(JobRow(gpus, 0).encoded_gpu_bytes, 0U);
}

}  // namespace
}  // namespace headrace::support
