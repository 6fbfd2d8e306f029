// Sums between nodes whose memory is a GPU's, on a double of CUDA's driver: the bits, and what is
// left out, of nodes that encode on the host, which may take part in the same sum.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/expect_text.h"
#include "tests/unit/transport/nvlink/codecs_of_gpus.h"
#include "transport/codec/lossless.h"
#include "transport/codec/lossless_layout.h"

namespace headrace::transport {
namespace {

struct SumCase {
  Codec codec = Codec::kInt8;
  std::uint32_t nodes = 2;
  Algorithm algorithm = Algorithm::kAuto;
  std::uint64_t count = 9000;
  std::uint32_t servers = 0;
  std::uint32_t on_gpu = 0;  // nodes from the first on; the others encode on the host
  bool has_residual = true;

  std::string Text() const {
    return Name(codec) + " nodes " + std::to_string(nodes) + " algorithm " +
           std::to_string(static_cast<int>(algorithm)) + " count " + std::to_string(count) +
           " servers " + std::to_string(servers) + " on GPUs " + std::to_string(on_gpu);
  }
};

constexpr std::uint64_t kResidualGap = 5;  // elements between one run of a residual and the next

// By node: what a sum has left it, and what was left out of it, gaps included.
struct Outcome {
  std::vector<std::vector<std::uint32_t>> results;
  std::vector<std::vector<std::uint32_t>> residuals;
  CodecUse use;
  friend bool operator==(const Outcome& one, const Outcome& other) {
    return one.results == other.results && one.residuals == other.residuals;
  }
};

// A GPU of which nothing is heard while it is `busy`.
class BusyCodec final : public DeviceCodec {
 public:
  explicit BusyCodec(std::shared_ptr<DeviceCodec> codec) : codec_(std::move(codec)) {}

  std::uint32_t codecs() const override { return codec_->codecs(); }
  bool HasRoom(std::int8_t device) const override { return codec_->HasRoom(device); }
  Status Encode(std::int8_t device, const EncodedRange& from, std::byte* out) override {
    return codec_->Encode(device, from, out);
  }
  Status DecodeSum(std::int8_t device, std::span<const std::byte* const> inputs, bool onto,
                   std::uint32_t divisor, const EncodedRange& to) override {
    return codec_->DecodeSum(device, inputs, onto, divisor, to);
  }
  Status AddResidual(std::int8_t device, const EncodedRange& range) override {
    return codec_->AddResidual(device, range);
  }
  Status EncodeLossless(std::int8_t device, const EncodedRange& from, bool as_it_is, std::byte* out,
                        std::uint32_t* table) override {
    return codec_->EncodeLossless(device, from, as_it_is, out, table);
  }
  Status DecodeLossless(std::int8_t device, std::span<const LosslessMessage> messages,
                        std::size_t own, std::uint32_t divisor, const EncodedRange& to) override {
    return codec_->DecodeLossless(device, messages, own, divisor, to);
  }
  Status MakeLeftFactor(std::int8_t device, const DeviceMatrix& matrix) override {
    return codec_->MakeLeftFactor(device, matrix);
  }
  Status MakeRightFactor(std::int8_t device, const DeviceMatrix& matrix,
                         const RowRange& rows) override {
    return codec_->MakeRightFactor(device, matrix, rows);
  }
  Status WriteProduct(std::int8_t device, const DeviceMatrix& matrix, std::uint32_t divisor,
                      bool is_finite) override {
    return codec_->WriteProduct(device, matrix, divisor, is_finite);
  }
  std::uint64_t TicketOf(std::int8_t device) const override { return codec_->TicketOf(device); }
  std::optional<Status> Ended(std::int8_t device, std::uint64_t ticket) const override {
    if (busy) return std::nullopt;
    return codec_->Ended(device, ticket);
  }
  bool Poll() override { return !busy && codec_->Poll(); }
  void Wait() override { codec_->Wait(); }

  bool busy = true;

 private:
  const std::shared_ptr<DeviceCodec> codec_;  // owners: this and the test
};

class GpuExchange : public CodecsOfNodes {
 protected:
  // Residuals lie in runs of 1000 elements.
  static std::vector<transport::Run> RunsOf(std::uint64_t count) {
    std::vector<transport::Run> runs;
    for (std::uint64_t begin = 0; begin < count; begin += 1000) {
      runs.push_back({.offset = (begin + begin / 1000 * kResidualGap) * sizeof(float),
                      .count = std::min<std::uint64_t>(1000, count - begin)});
    }
    return runs;
  }

  Outcome SumsOf(const SumCase& test, int iterations) {
    Outcome outcome;
    const auto runs = RunsOf(test.count);
    const std::size_t residual_count = runs.back().offset / sizeof(float) + runs.back().count;
    std::vector<std::byte*> memory;
    std::vector<std::byte*> residuals;
    for (std::uint32_t node = 0; node < test.nodes; ++node) {
      memory.push_back(OnGpu(node % 2, std::vector<float>(test.count)));
      residuals.push_back(OnHost(residual_count * sizeof(float)));
    }
    {
      Fleet fleet(OptionsOf(test));
      // On so slow a wire a lossless code always pays.
      for (std::uint32_t node = 0; node < fleet.nodes_count(); ++node) {
        fleet.node(node).SetCost(1, {.startup_s = 0, .s_per_byte = 1});
      }
      std::mt19937_64 random(7);
      for (int iteration = 1; iteration <= iterations; ++iteration) {
        for (std::byte* const of_node : memory) Fill(of_node, test.count, random);
        if (iteration == 1) FillResiduals(residuals, residual_count);
        for (std::uint32_t node = 0; node < test.nodes; ++node) {
          Transfer transfer = TransferOf(test, node, static_cast<std::uint64_t>(iteration), runs);
          transfer.members[node] = memory[node];
          if (test.has_residual) transfer.residual = residuals[node];
          if (node < test.on_gpu) {
            transfer.devices[node] = static_cast<std::int8_t>(node % 2);
            transfer.residual_on_gpus = transfer.residual;
          }
          fleet.Post(node, transfer);
        }
        fleet.RunToTheEnd();
      }
      for (std::uint32_t node = 0; node < test.nodes; ++node) {
        EXPECT_EQ(fleet.completions(node).size(), static_cast<std::size_t>(iterations));
        for (const Completion& completion : fleet.completions(node)) {
          EXPECT_EQ(completion.code, Code::kOk) << test.Text() << ": " << completion.cause;
        }
      }
      outcome.use = fleet.completions(0).back().codec;
    }
    for (std::uint32_t node = 0; node < test.nodes; ++node) {
      outcome.results.push_back(Read<std::uint32_t>(memory[node], test.count));
      outcome.residuals.push_back(Read<std::uint32_t>(residuals[node], residual_count));
    }
    FreeMemory();
    return outcome;
  }

  // What an encoding before has left out.
  static void FillResiduals(const std::vector<std::byte*>& residuals, std::size_t count) {
    std::mt19937_64 random(11);
    for (std::byte* const residual : residuals) Fill(residual, count, random);
  }
  static void Fill(std::byte* memory, std::uint64_t count, std::mt19937_64& random) {
    std::normal_distribution<float> normal;
    std::vector<float> values(count);
    for (float& value : values) value = normal(random);
    std::memcpy(memory, values.data(), count * sizeof(float));
  }
  static Transfer TransferOf(const SumCase& test, std::uint32_t /*node*/, std::uint64_t position,
                             const std::vector<transport::Run>& runs) {
    Transfer transfer{.token = position,
                      .kind = Collective::kAllReduce,
                      .dtype = DType::kFloat32,
                      .reduction = Reduction::kAverage,
                      .count = test.count,
                      .divisor = 2 * test.nodes,
                      .position = position,
                      .members_count = test.nodes,
                      .codec = test.codec};
    transfer.seed = position;
    if (test.has_residual) transfer.residual_runs = runs;
    if (test.servers > 0) transfer.place = 1;
    return transfer;
  }
};

constexpr Codec kSomeCodecs[] = {Codec::kBFloat16,       Codec::kFloat8E4M3, Codec::kInt8,
                                 Codec::kInt4Stochastic, Codec::kSign,       Codec::kTopK,
                                 Codec::kRandomK,        Codec::kLossless};

// Lossless sums go the way that they go without a codec.
std::vector<Algorithm> AlgorithmsOf(Codec codec) {
  std::vector<Algorithm> all = {Algorithm::kDirectExchange, Algorithm::kDirectScatter};
  if (codec == Codec::kLossless) {
    all.insert(all.end(), {Algorithm::kRecursiveDoubling, Algorithm::kRing});
  }
  return all;
}

void ExpectLikeOnTheHost(GpuExchange& /*of*/, const SumCase& test, const Outcome& on_host,
                         const Outcome& on_gpus) {
  ASSERT_EQ(on_gpus.results, on_host.results) << test.Text();
  ASSERT_EQ(on_gpus.residuals, on_host.residuals) << test.Text();
  EXPECT_EQ(on_gpus.use.sent_bytes, on_host.use.sent_bytes) << test.Text();
  EXPECT_EQ(on_gpus.use.plain_bytes, on_host.use.plain_bytes) << test.Text();
  // Pieces end in another order, and are added up in it.
  EXPECT_NEAR(on_gpus.use.sum_squares, on_host.use.sum_squares, on_host.use.sum_squares * 1e-9)
      << test.Text();
  EXPECT_NEAR(on_gpus.use.residual_squares, on_host.use.residual_squares,
              on_host.use.residual_squares * 1e-9)
      << test.Text();
  for (const auto& result : on_gpus.results) ASSERT_EQ(result, on_gpus.results[0]) << test.Text();
}

TEST_F(GpuExchange, GivesTheBitsOfTheHostAmongNodes) {
  for (const Codec codec : kSomeCodecs) {
    for (const std::uint32_t nodes : {2U, 3U}) {
      for (const Algorithm algorithm : AlgorithmsOf(codec)) {
        for (const std::uint64_t count : {1U, 257U, 9000U, 60001U}) {
          SumCase test{.codec = codec, .nodes = nodes, .algorithm = algorithm, .count = count};
          const Outcome on_host = SumsOf(test, 3);
          // Some nodes on GPUs, and all of them.
          for (const std::uint32_t on_gpu : {1U, nodes}) {
            test.on_gpu = on_gpu;
            const Outcome on_gpus = SumsOf(test, 3);
            ASSERT_NO_FATAL_FAILURE(ExpectLikeOnTheHost(*this, test, on_host, on_gpus));
          }
        }
      }
    }
  }
}

TEST_F(GpuExchange, GivesTheBitsOfTheHostOverServers) {
  for (const Codec codec : kSomeCodecs) {
    SumCase test{.codec = codec, .nodes = 2, .servers = 2};
    const Outcome on_host = SumsOf(test, 3);
    test.on_gpu = 2;
    const Outcome on_gpus = SumsOf(test, 3);
    ASSERT_NO_FATAL_FAILURE(ExpectLikeOnTheHost(*this, test, on_host, on_gpus));
  }
}

TEST_F(GpuExchange, EncodesWithoutResiduals) {
  SumCase test{.codec = Codec::kInt8Stochastic, .nodes = 3, .has_residual = false};
  const Outcome on_host = SumsOf(test, 2);
  test.on_gpu = 3;
  EXPECT_EQ(SumsOf(test, 2), on_host);
}

// The other node's message for a piece that is not encoded here yet.
TEST_F(GpuExchange, HoldsAMessageThatComesWhileAKernelIsAtWorkOnItsPiece) {
  const SumCase test{.nodes = 2, .count = 257, .has_residual = false};
  const Outcome on_host = SumsOf(test, 1);
  const auto busy = std::make_shared<BusyCodec>(codecs_[0]);
  FleetOptions options = OptionsOf(test);
  options.device_codecs[0] = busy;
  std::vector<std::byte*> memory = {OnGpu(0, std::vector<float>(test.count)),
                                    OnGpu(1, std::vector<float>(test.count))};
  {
    Fleet fleet(options);
    std::mt19937_64 random(7);
    for (std::byte* const of_node : memory) Fill(of_node, test.count, random);
    for (std::uint32_t node = 0; node < 2; ++node) {
      Transfer transfer = TransferOf(test, node, 1, {});
      transfer.members[node] = memory[node];
      if (node == 0) transfer.devices[0] = 0;
      fleet.Post(node, transfer);
    }
    const std::uint64_t sent = fleet.node(1).counters().messages_sent;
    // A node that asks its GPU is always at work, and time goes on only where all are idle.
    for (int step = 0; step < 1000; ++step) {
      fleet.Step();
      const TimeNs due = fleet.network().NextDue();
      if (due != kNever) fleet.network().AdvanceTo(due);
    }
    EXPECT_GT(fleet.node(1).counters().messages_sent, sent);
    EXPECT_EQ(fleet.node(0).counters().messages_sent, 0U) << "nothing is encoded yet";
    EXPECT_TRUE(fleet.completions(0).empty());
    busy->busy = false;
    fleet.RunToTheEnd();
    EXPECT_EQ(fleet.node(0).counters().messages_dropped, 0U);
    for (std::uint32_t node = 0; node < 2; ++node) {
      ASSERT_EQ(fleet.completions(node).size(), 1U);
      EXPECT_EQ(fleet.completions(node)[0].code, Code::kOk) << fleet.completions(node)[0].cause;
      EXPECT_EQ(Read<std::uint32_t>(memory[node], test.count), on_host.results[node]);
    }
  }
  FreeMemory();
}

TEST_F(GpuExchange, ReportsWhatTheCodecsCameTo) {
  const SumCase test{.nodes = 3, .algorithm = Algorithm::kDirectScatter, .on_gpu = 3};
  const CodecUse use = SumsOf(test, 2).use;
  EXPECT_GT(use.encode_ns, 0);
  EXPECT_GT(use.decode_ns, 0);
  EXPECT_GT(use.residual_squares, 0);
  EXPECT_GT(use.sum_squares, use.residual_squares);
}

TEST_F(GpuExchange, EndsTheGroupWithTheNameOfAGpuThatFails) {
  // Where it is the only one, too.
  for (const std::uint64_t nth : {0U, 1U, 2U, 5U}) {
    const SumCase test{.nodes = 2, .count = nth == 0 ? 200U : 200'000U};
    std::byte* const on_gpu = OnGpu(0, std::vector<float>(test.count, 1));
    std::byte* const on_host = OnHost(test.count * sizeof(float));
    {
      Fleet fleet(OptionsOf(test));
      doubled_.fail("cuLaunchKernel", std::max<std::uint64_t>(1, nth), CuResult::kOutOfMemory);
      for (std::uint32_t node = 0; node < 2; ++node) {
        Transfer transfer = TransferOf(test, node, 1, {});
        transfer.members[node] = node == 0 ? on_gpu : on_host;
        if (node == 0) transfer.devices[0] = 0;
        fleet.Post(node, transfer);
      }
      while (fleet.completions(0).empty() && fleet.Step()) {
      }
      ASSERT_EQ(fleet.completions(0).size(), 1U);
      EXPECT_EQ(fleet.completions(0)[0].code, Code::kExhausted);
      EXPECT_VARYING_TEXT(fleet.completions(0)[0].cause, "GPU 0");
    }
    FreeMemory();
  }
}

// Whatever a GPU is at work on then.
TEST_F(GpuExchange, LeavesMemoryAloneOnceTheLaneIsGone) {
  for (int steps = 0; steps < 40; steps += 3) {
    const SumCase test{.nodes = 2, .count = 100'000};
    std::vector<std::byte*> memory = {OnGpu(0, std::vector<float>(test.count, 1)),
                                      OnGpu(1, std::vector<float>(test.count, 1))};
    {
      Fleet fleet(OptionsOf(test));
      for (std::uint32_t node = 0; node < 2; ++node) {
        Transfer transfer = TransferOf(test, node, 1, {});
        transfer.members[node] = memory[node];
        transfer.devices[node] = static_cast<std::int8_t>(node);
        fleet.Post(node, transfer);
      }
      for (int step = 0; step < steps; ++step) fleet.Step();
    }
    FreeMemory();
  }
}

// Others' transfers go on while a group's staging is being pinned; its own wait.
TEST_F(GpuExchange, WaitsForItsStagingAlone) {
  const SumCase test{.nodes = 2, .has_residual = false};
  const Outcome on_host = SumsOf(test, 1);
  std::vector<std::byte*> memory = {OnGpu(0, std::vector<float>(test.count)),
                                    OnGpu(1, std::vector<float>(test.count))};
  std::vector<std::byte*> of_others = {OnHost(test.count * sizeof(float)),
                                       OnHost(test.count * sizeof(float))};
  {
    Fleet fleet(OptionsOf(test));
    fleet.OpenGroup(2);
    fleet.HoldStaging(true);
    std::mt19937_64 random(7);
    for (std::byte* const of_node : memory) Fill(of_node, test.count, random);
    for (std::uint32_t node = 0; node < 2; ++node) {
      Transfer transfer = TransferOf(test, node, 1, {});
      transfer.members[node] = memory[node];
      transfer.devices[node] = static_cast<std::int8_t>(node);
      fleet.Post(node, transfer);
      transfer.token = 2;
      transfer.group = 2;
      transfer.members[node] = of_others[node];
      transfer.devices[node] = kHost;
      fleet.Post(node, transfer);
    }
    fleet.RunToTheEnd();
    EXPECT_EQ(fleet.staging_requests_held(), 2U);
    for (std::uint32_t node = 0; node < 2; ++node) {
      ASSERT_EQ(fleet.completions(node).size(), 1U);
      EXPECT_EQ(fleet.completions(node)[0].token, 2U);
    }
    fleet.HoldStaging(false);
    fleet.RunToTheEnd();
    for (std::uint32_t node = 0; node < 2; ++node) {
      ASSERT_EQ(fleet.completions(node).size(), 2U);
      EXPECT_EQ(fleet.completions(node)[1].code, Code::kOk) << fleet.completions(node)[1].cause;
      EXPECT_EQ(Read<std::uint32_t>(memory[node], test.count), on_host.results[node]);
    }
  }
  FreeMemory();
}

// Whether it is closed before the staging is pinned or after it.
TEST_F(GpuExchange, StaysUntilItsStagingIsUnpinned) {
  for (const bool pinned : {false, true}) {
    const SumCase test{.nodes = 2, .count = 300, .has_residual = false};
    std::byte* const on_gpu = OnGpu(0, std::vector<float>(test.count, 1));
    {
      Fleet fleet(OptionsOf(test));
      fleet.HoldStaging(!pinned);
      Transfer transfer = TransferOf(test, 0, 1, {});
      transfer.members[0] = on_gpu;
      transfer.devices[0] = 0;
      fleet.Post(0, transfer);
      for (int i = 0; i < 100; ++i) fleet.Step();
      EXPECT_EQ(pins_.size(), pinned ? 1U : 0U);
      fleet.HoldStaging(true);
      fleet.node(0).CloseGroup(1, "the job is over");
      fleet.RunToTheEnd();
      ASSERT_EQ(fleet.completions(0).size(), 1U);
      EXPECT_EQ(fleet.completions(0)[0].code, Code::kCancelled);
      EXPECT_EQ(fleet.staging_requests_held(), 1U);
      const GroupOptions again{
          .group = 1, .key = KeyOf(1), .members = {{.name = "a", .address = "a"}}};
      EXPECT_EQ(fleet.node(0).OpenGroup(again).error().code(), Code::kAlreadyExists);
      fleet.HoldStaging(false);
      fleet.RunToTheEnd();
      EXPECT_EQ(fleet.staging_requests_held(), 0U);
      EXPECT_TRUE(pins_.empty());
      EXPECT_TRUE(fleet.node(0).OpenGroup(again).ok());
    }
    FreeMemory();
  }
}

// Too short, too long, of a length that may be, and such that only its codes are wrong.
TEST_F(GpuExchange, EndsTheGroupByNameWhereALosslessMessageMakesNoSense) {
  constexpr std::size_t kCount = 300;
  std::vector<float> values(kCount);
  std::mt19937_64 random(7);
  std::normal_distribution<float> normal;
  for (float& value : values) value = normal(random);
  std::vector<std::byte> honest(kCount * sizeof(float));
  LosslessWriter writer{.out = honest.data(), .size_max = honest.size() - 1};
  EncodeLossless(values.data(), kCount, writer);
  ASSERT_TRUE(writer.fits);
  honest.resize(writer.size);
  std::vector<std::vector<std::byte>> messages = {honest, honest};
  messages[1][LosslessBlock::kWordsAt] |= std::byte{7};  // one exception more
  for (const std::size_t size : {0U, 1U, 900U, 1199U, 1201U}) {
    messages.emplace_back(size, std::byte{9});
  }
  for (std::size_t i = 0; i < messages.size(); ++i) {
    auto* const on_gpu = reinterpret_cast<float*>(OnGpu(0, values));
    {
      Fleet fleet(OptionsOf(SumCase{.nodes = 2, .algorithm = Algorithm::kDirectExchange}));
      SumWithMessage(fleet, {on_gpu, kCount}, Codec::kLossless, messages[i], 0);
      ASSERT_EQ(fleet.completions(0).size(), 1U) << i;
      const Completion& ended = fleet.completions(0)[0];
      EXPECT_EQ(ended.code, i == 0 ? Code::kOk : Code::kMismatch) << i << ": " << ended.cause;
      if (i > 0) {
        EXPECT_NE(ended.cause.find("node b"), std::string::npos) << ended.cause;
      }
    }
    FreeMemory();
  }
}

TEST_F(GpuExchange, NamesTheRemedyWhereStagingCannotBePinned) {
  const SumCase test{.nodes = 2, .count = 1000};
  std::byte* const on_gpu = OnGpu(0, std::vector<float>(test.count, 1));
  Fleet fleet(OptionsOf(test));
  doubled_.fail("cuMemHostRegister_v2", 1, CuResult::kOutOfMemory);
  Transfer transfer = TransferOf(test, 0, 1, {});
  transfer.members[0] = on_gpu;
  transfer.devices[0] = 0;
  fleet.Post(0, transfer);
  while (fleet.completions(0).empty() && fleet.Step()) {
  }
  ASSERT_EQ(fleet.completions(0).size(), 1U);
  EXPECT_EQ(fleet.completions(0)[0].code, Code::kExhausted);
  EXPECT_VARYING_TEXT(fleet.completions(0)[0].cause, "encode on the host");
}

}  // namespace
}  // namespace headrace::transport
