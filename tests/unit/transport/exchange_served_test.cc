// Encoded sums that servers make: all nodes get the same bits, what servers leave out is kept there
// for the next sum of the same gradients, and what makes no sense ends the group by name.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/expect_text.h"
#include "tests/unit/transport/encoded_job.h"
#include "transport/exchange/message_tail.h"

namespace headrace::transport {
namespace {

std::vector<EncodedCase> ServedCases() {
  std::vector<EncodedCase> cases;
  for (const Codec codec : kLossyCodecs) {
    for (const std::uint32_t nodes : {2U, 3U}) {
      for (const std::uint32_t servers : {1U, 2U}) {
        for (const std::uint64_t count : {1U, 255U, 257U, 9000U}) {
          cases.push_back({.codec = codec, .nodes = nodes, .count = count, .servers = servers});
        }
        cases.push_back({.codec = codec,
                         .nodes = nodes,
                         .count = 9000,
                         .reduction = Reduction::kAverage,
                         .runs_count = 23,
                         .servers = servers});
      }
    }
  }
  return cases;
}

TEST(ExchangeServed, GivesAllNodesTheSameBitsInEachRun) {
  for (const EncodedCase& test : ServedCases()) {
    EncodedJob first(test, 1);
    EncodedJob second(test, 2, true, 8);
    for (const std::uint64_t seed : {1U, 2U}) {
      ASSERT_NO_FATAL_FAILURE(first.Iterate(seed));
      ASSERT_NO_FATAL_FAILURE(second.Iterate(seed));
      const std::vector<float> result = first.Result(0);
      for (std::uint32_t node = 0; node < test.nodes; ++node) {
        ASSERT_EQ(first.Result(node), result) << test.Text() << " node " << node;
        ASSERT_EQ(second.Result(node), result) << test.Text() << " node " << node;
      }
    }
  }
}

// Each contribution errs by its bound, and the sum once more.
TEST(ExchangeServed, ErrsByNoMoreThanTheCodec) {
  for (const EncodedCase& test : ServedCases()) {
    EncodedJob job(test, 1);
    ASSERT_NO_FATAL_FAILURE(job.Iterate(1));
    const std::vector<float> result = job.Result(0);
    const double bound = 2 * test.nodes * ErrorBound(test.codec) * 6 / test.divisor();
    double worst = 0;
    for (std::uint64_t i = 0; i < test.count; ++i) {
      const double error = std::abs(double{result[i]} - job.Sum(i) / test.divisor());
      worst = std::max(worst, error);
      ASSERT_LE(error, bound) << test.Text() << " element " << i;
    }
    if (test.count > 256) {
      EXPECT_GT(worst, 0) << test.Text();
    }
  }
}

// What was applied and what is left, with nodes and servers, is what was given.
void ExpectNothingLost(EncodedJob& job, const EncodedCase& test,
                       const std::vector<double>& applied) {
  for (std::uint64_t i = 0; i < test.count; ++i) {
    ASSERT_NEAR(applied[i] + job.SumOfResiduals(i), job.Given(i), 2e-4)
        << test.Text() << " element " << i;
  }
}

void IterateOnce(EncodedJob& job, std::uint64_t seed, std::vector<double>& applied) {
  ASSERT_NO_FATAL_FAILURE(job.Iterate(seed));
  const std::vector<float> result = job.Result(1);
  for (std::size_t i = 0; i < result.size(); ++i) applied[i] += double{result[i]};
}

// Transfers are cut elsewhere in the middle, as after a new plan, and sums go on in another codec.
TEST(ExchangeServed, LosesNothingOverManyIterationsHoweverBlocksAreCut) {
  for (const std::uint32_t servers : {1U, 2U}) {
    for (const Codec codec : kLossyCodecs) {
      const EncodedCase test{
          .codec = codec, .nodes = 3, .count = 9000, .runs_count = 9, .servers = servers};
      EncodedJob job(test, 1);
      std::vector<double> applied(test.count);
      double kept = 0;
      for (std::uint64_t iteration = 1; iteration <= 18; ++iteration) {
        if (iteration == 7) job.SetBorder(3333);
        if (iteration == 12) job.SetBorder(6001);
        if (iteration == 16) job.SetCodec(Codec::kRandomK);
        ASSERT_NO_FATAL_FAILURE(IterateOnce(job, iteration, applied));
        if (iteration != 15) continue;
        for (std::uint64_t i = 0; i < test.count; ++i) kept += std::abs(job.ResidualOfServers(i));
      }
      ASSERT_NO_FATAL_FAILURE(ExpectNothingLost(job, test, applied));
      // Of what all nodes chose alike, a server leaves out nothing.
      EXPECT_EQ(kept > 0, codec != Codec::kRandomK) << test.Text();
    }
  }
}

// Also averages, which are divided last.
TEST(ExchangeServed, GivesBackWithAnExactSumWhatWasLeftOut) {
  for (const Codec exact : {Codec(Codec::kNone), Codec(Codec::kLossless)}) {
    for (const Reduction reduction : {Reduction::kSum, Reduction::kAverage}) {
      for (const std::uint64_t count : {1U, 300U, 9000U}) {
        const EncodedCase test{.codec = Codec::kInt4,
                               .nodes = 3,
                               .count = count,
                               .reduction = reduction,
                               .runs_count = count > 300 ? 23U : 0U,
                               .servers = 2};
        EncodedJob job(test, 1);
        std::vector<double> applied(test.count);
        for (std::uint64_t iteration = 1; iteration <= 3; ++iteration) {
          ASSERT_NO_FATAL_FAILURE(IterateOnce(job, iteration, applied));
        }
        job.SetCodec(exact);
        for (std::uint64_t iteration = 4; iteration <= 5; ++iteration) {
          ASSERT_NO_FATAL_FAILURE(IterateOnce(job, iteration, applied));
          for (std::uint64_t i = 0; i < count; ++i) {
            ASSERT_NEAR(applied[i] * test.divisor(), job.Given(i), 1e-4) << i;
            ASSERT_EQ(job.SumOfResiduals(i), 0) << i;
          }
        }
      }
    }
  }
}

TEST(ExchangeServed, CountsWhatItHasLeftOutOfTheSumsOfAGroup) {
  constexpr std::uint32_t kGroup = 1;
  const EncodedCase test{.codec = Codec::kInt4, .nodes = 2, .count = 3000, .servers = 1};
  for (const bool keeps : {true, false}) {
    EncodedJob job(test, 1, keeps);
    ASSERT_NO_FATAL_FAILURE(job.Iterate(1));
    const ServedResiduals& residuals = job.fleet().residuals(2);
    const ServedResiduals::Use use = residuals.UseOf(kGroup);
    EXPECT_EQ(use.encoded_bytes, test.count * sizeof(float));
    EXPECT_EQ(use.kept_bytes, keeps ? residuals.bytes() : 0U);
    EXPECT_EQ(use.residual_squares > 0, keeps);
    EXPECT_GE(use.sum_squares, use.residual_squares);
    ASSERT_NO_FATAL_FAILURE(job.Iterate(2));
    EXPECT_EQ(residuals.UseOf(kGroup).encoded_bytes, 2 * use.encoded_bytes);
    EXPECT_EQ(residuals.UseOf(kGroup + 1).encoded_bytes, 0U) << "which is not open";
  }
}

TEST(ExchangeServed, KeepsNothingWhereNodesKeepNothing) {
  const EncodedCase test{.codec = Codec::kInt4, .nodes = 3, .count = 3000, .servers = 1};
  EncodedJob job(test, 1, false);
  ASSERT_NO_FATAL_FAILURE(job.Iterate(1));
  const std::vector<float> result = job.Result(0);
  ASSERT_NO_FATAL_FAILURE(job.Iterate(1));
  EXPECT_EQ(job.Result(0), result);
  EXPECT_EQ(job.fleet().residuals(3).bytes(), 0U);
}

TEST(ExchangeServed, IsRidOfWhatIsNotFinite) {
  for (const Codec codec : kLossyCodecs) {
    const EncodedCase test{.codec = codec, .nodes = 2, .count = 1000, .servers = 1};
    EncodedJob job(test, 1);
    job.Spoil(300, std::numeric_limits<float>::quiet_NaN());
    ASSERT_NO_FATAL_FAILURE(job.Iterate(1));
    const std::vector<float> result = job.Result(0);
    const std::vector<float> other = job.Result(1);
    EXPECT_EQ(std::memcmp(result.data(), other.data(), result.size() * sizeof(float)), 0);
    EXPECT_TRUE(std::any_of(result.begin() + 256, result.begin() + 512, [](float value) {
      return std::isnan(value);
    })) << Name(codec);
    EXPECT_TRUE(std::none_of(result.begin(), result.begin() + 256, [](float value) {
      return std::isnan(value);
    })) << Name(codec);
    ASSERT_NO_FATAL_FAILURE(job.Iterate(2));
    for (const float value : job.Result(0)) ASSERT_TRUE(std::isfinite(value)) << Name(codec);
  }
}

TEST(ExchangeServed, MovesTheBytesOfItsCodecAndATail) {
  for (const Codec codec : kLossyCodecs) {
    const EncodedCase test{.codec = codec, .nodes = 2, .count = 4096, .servers = 1};
    EncodedJob job(test, 1);
    ASSERT_NO_FATAL_FAILURE(job.Iterate(1));
    const NetworkCounters node = job.fleet().node(0).counters();
    EXPECT_EQ(node.bytes_received, EncodedSize(codec, test.count)) << Name(codec);
    EXPECT_EQ(node.bytes_sent,
              EncodedSize(codec, test.count) + node.messages_sent * (kTailSizeMin + kTailRunSize))
        << Name(codec);
    EXPECT_EQ(job.use().sent_bytes, node.bytes_sent);
  }
}

TEST(ExchangeServed, LosslessSumsHaveTheBitsOfThoseThatAreNotEncoded) {
  for (const Reduction reduction : {Reduction::kSum, Reduction::kAverage}) {
    for (const std::uint64_t count : {1U, 257U, 9000U}) {
      EncodedCase test{.codec = Codec::kLossless,
                       .nodes = 3,
                       .count = count,
                       .reduction = reduction,
                       .servers = 2};
      EncodedJob lossless(test, 1);
      ASSERT_NO_FATAL_FAILURE(lossless.Iterate(1));
      test.codec = Codec::kNone;
      EncodedJob plain(test, 1, false);
      ASSERT_NO_FATAL_FAILURE(plain.Iterate(1));
      for (std::uint32_t node = 0; node < 3; ++node) {
        EXPECT_EQ(lossless.Result(node), plain.Result(node)) << count;
      }
    }
  }
}

// Why the server's group failed, as its notices have it.
std::string CauseAtServer(Fleet& fleet, std::uint32_t server) {
  std::vector<Notice> notices;
  fleet.node(server).DrainNotices(notices);
  for (const Notice& notice : notices) {
    if (notice.failure) return notice.failure->text();
  }
  return {};
}

TEST(ExchangeServed, EndsTheGroupWhereMoreIsLeftOutThanAServerMayKeep) {
  Fleet fleet(
      {.data_count = 2, .servers_count = 1, .residuals_max = ServedResiduals::kSegmentBytes});
  constexpr std::uint64_t kCount = 2 * ServedResiduals::kSegmentCount;
  std::vector<std::vector<float>> values(4, std::vector<float>(kCount, 0.3F));
  for (std::uint32_t node = 0; node < 2; ++node) {
    Transfer transfer{.token = 1,
                      .kind = Collective::kAllReduce,
                      .dtype = DType::kFloat32,
                      .count = kCount,
                      .position = 1,
                      .members_count = 2,
                      .codec = Codec::kInt8,
                      .residual = reinterpret_cast<std::byte*>(values[2 + node].data()),
                      .place = 1};
    transfer.members[node] = reinterpret_cast<std::byte*>(values[node].data());
    fleet.Post(node, transfer);
  }
  fleet.RunToTheEnd();
  EXPECT_TEXT(CauseAtServer(fleet, 2), "node c", "memory_per_uid");
  EXPECT_EQ(fleet.residuals(2).bytes(), ServedResiduals::kSegmentBytes);
  fleet.node(2).CloseGroup(1, "over");
  fleet.RunToTheEnd();
  EXPECT_EQ(fleet.residuals(2).bytes(), 0U);
}

using ServedLie = std::function<void(MessageHeader&, std::vector<std::byte>&)>;

// What the server says where node 0 posts a sum as int8 and node 1 sends that.
std::string CauseAtServerOf(const ServedLie& lie) {
  constexpr std::uint64_t kCount = 100;
  Fleet fleet({.data_count = 2, .servers_count = 1});
  std::vector<float> values(2 * kCount, 1.0F);
  Transfer transfer{.token = 1,
                    .kind = Collective::kAllReduce,
                    .dtype = DType::kFloat32,
                    .count = kCount,
                    .position = 1,
                    .members_count = 2,
                    .codec = Codec::kInt8,
                    .residual = reinterpret_cast<std::byte*>(values.data() + kCount),
                    .place = 1};
  transfer.members[0] = reinterpret_cast<std::byte*>(values.data());
  MessageHeader header{.key = KeyOf(1),
                       .epoch = 3,
                       .plan_version = 5,
                       .position = 1,
                       .count = kCount,
                       .kind = static_cast<std::uint8_t>(Collective::kAllReduce),
                       .dtype = static_cast<std::uint8_t>(DType::kFloat32),
                       .reduction = static_cast<std::uint8_t>(Reduction::kSum),
                       .sender = 1,
                       .codec = Codec::kInt8,
                       .place = 1};
  std::vector<std::byte> bytes(EncodedSize(Codec::kInt8, kCount) + kTailSizeMax);
  const Transfer like = transfer;
  const std::size_t size = EncodedSize(Codec::kInt8, kCount);
  bytes.resize(
      size + WriteTail(0, RunWalk(like), {.begin = 0, .count = kCount}, true, bytes.data() + size));
  lie(header, bytes);
  fleet.network().Inject("c", header, std::move(bytes));
  fleet.Post(0, transfer);
  fleet.RunToTheEnd();
  return CauseAtServer(fleet, 2);
}

template <typename Number>
void PutAt(std::vector<std::byte>& bytes, std::size_t from_end, Number number) {
  std::memcpy(bytes.data() + bytes.size() - from_end, &number, sizeof number);
}

TEST(ExchangeServed, AMessageThatMakesNoSenseEndsTheGroupByName) {
  EXPECT_EQ(CauseAtServerOf([](MessageHeader&, std::vector<std::byte>&) {}), "") << "an honest one";
  const auto cut = [](std::size_t bytes) {
    return [bytes](MessageHeader&, std::vector<std::byte>& message) {
      message.resize(message.size() - bytes);
    };
  };
  // Too short, too long, without a tail, with half of one.
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{16}, std::size_t{32}}) {
    EXPECT_TEXT(CauseAtServerOf(cut(bytes)), "node b",
                bytes == 16 ? "cannot be decoded" : "another way");
  }
  EXPECT_TEXT(CauseAtServerOf([](MessageHeader&, auto& bytes) { bytes.resize(bytes.size() + 8); }),
              "node b", "another way");
  EXPECT_TEXT(CauseAtServerOf([](MessageHeader&, auto& bytes) { bytes.resize(bytes.size() + 16); }),
              "node b", "cannot be decoded");
  EXPECT_TEXT(CauseAtServerOf([](MessageHeader& header, auto&) { header.codec = Codec::kInt4; }),
              "as int8", "as int4");
  // Runs that are too many, of other elements than the piece has, and not of whole elements.
  EXPECT_TEXT(CauseAtServerOf([](MessageHeader&, auto& bytes) { PutAt(bytes, 8, 2U); }), "node b",
              "cannot be decoded");
  EXPECT_TEXT(
      CauseAtServerOf([](MessageHeader&, auto& bytes) { PutAt(bytes, 24, std::uint64_t{99}); }),
      "node b", "cannot be decoded");
  EXPECT_TEXT(
      CauseAtServerOf([](MessageHeader&, auto& bytes) { PutAt(bytes, 32, std::uint64_t{2}); }),
      "node b", "cannot be decoded");
  EXPECT_TEXT(CauseAtServerOf([](MessageHeader&, auto& bytes) {
                PutAt(bytes, 32, std::uint64_t{UINT64_MAX - 3});
              }),
              "node b", "cannot be decoded");
  // Honest, but of other gradients, or by another chance.
  EXPECT_TEXT(
      CauseAtServerOf([](MessageHeader&, auto& bytes) { PutAt(bytes, 32, std::uint64_t{400}); }),
      "elsewhere in its gradients");
  EXPECT_TEXT(
      CauseAtServerOf([](MessageHeader&, auto& bytes) { PutAt(bytes, 16, std::uint64_t{7}); }),
      "elsewhere in its gradients");
}

TEST(ServedResiduals, KeepsElementsWhereTheyBelongUntilTheLastLaneCloses) {
  ServedResiduals residuals(0);
  residuals.Open(5);
  residuals.Open(5);
  constexpr std::uint64_t kBorder = ServedResiduals::kSegmentCount * sizeof(float);
  // The first crosses from one segment into the next.
  const std::vector<transport::Run> runs = {{.offset = kBorder - 8, .count = 4},
                                            {.offset = 0, .count = 2}};
  EXPECT_FALSE(residuals.KeepsAny(5, runs));
  std::vector<float> values = {1, 2, 3, 4, 5, 6};
  ASSERT_TRUE(residuals.Store(5, runs, values.data()).ok());
  EXPECT_EQ(residuals.bytes(), 2 * ServedResiduals::kSegmentBytes);
  std::vector<float> loaded(6);
  residuals.Load(5, runs, loaded.data());
  EXPECT_EQ(loaded, values);
  const std::vector<transport::Run> other = {{.offset = kBorder - 4, .count = 3}};
  residuals.Load(5, other, loaded.data());
  EXPECT_EQ((std::vector<float>(loaded.begin(), loaded.begin() + 3)),
            (std::vector<float>{2, 3, 4}));
  residuals.Forget(5, other);
  residuals.Load(5, runs, loaded.data());
  EXPECT_EQ(loaded, (std::vector<float>{1, 0, 0, 0, 5, 6}));
  residuals.Close(5);
  residuals.Load(5, runs, loaded.data());
  EXPECT_EQ(loaded[0], 1);
  residuals.Close(5);
  EXPECT_EQ(residuals.bytes(), 0U);
  residuals.Open(5);
  EXPECT_FALSE(residuals.KeepsAny(5, runs));
  residuals.Close(5);
}

TEST(ServedResiduals, ChangesNothingWhereThereIsNoRoomForAll) {
  ServedResiduals residuals(ServedResiduals::kSegmentBytes);
  residuals.Open(1);
  residuals.Open(2);
  const std::vector<transport::Run> first = {{.offset = 0, .count = 2}};
  const std::vector<transport::Run> both = {{.offset = 0, .count = 1},
                                            {.offset = ServedResiduals::kSegmentBytes, .count = 1}};
  std::vector<float> values = {1, 2};
  EXPECT_EQ(residuals.Store(1, both, values.data()).code(), Code::kExhausted);
  EXPECT_EQ(residuals.bytes(), 0U);
  EXPECT_TRUE(residuals.Store(1, first, values.data()).ok());
  EXPECT_EQ(residuals.Store(2, first, values.data()).code(), Code::kExhausted);
  residuals.Close(1);
  EXPECT_TRUE(residuals.Store(2, first, values.data()).ok());
  residuals.Close(2);
}

}  // namespace
}  // namespace headrace::transport
