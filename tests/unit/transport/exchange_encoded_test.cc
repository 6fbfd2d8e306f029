// Sums between nodes that cross encoded: all get the same bits, near the sum, and what is left out
// is not lost.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "tests/unit/transport/encoded_job.h"
#include "tests/unit/transport/exchange_fleet.h"

namespace headrace::transport {
namespace {

std::vector<EncodedCase> EncodedCases() {
  std::vector<EncodedCase> cases;
  for (const Codec codec : kLossyCodecs) {
    for (const std::uint32_t nodes : {2U, 3U, 5U}) {
      for (const Algorithm algorithm : kAlgorithms) {
        for (const std::uint64_t count : {1U, 255U, 257U, 9000U}) {
          cases.push_back({codec, nodes, algorithm, count, Reduction::kSum, 0});
        }
        cases.push_back({codec, nodes, algorithm, 9000, Reduction::kAverage, 23});
      }
    }
  }
  return cases;
}

TEST(ExchangeEncoded, GivesAllNodesTheSameBitsInEachRun) {
  for (const EncodedCase& test : EncodedCases()) {
    EncodedJob first(test, 1);
    ASSERT_NO_FATAL_FAILURE(first.Iterate(1));
    EncodedJob second(test, 2);
    ASSERT_NO_FATAL_FAILURE(second.Iterate(1));
    const std::vector<float> result = first.Result(0);
    for (std::uint32_t node = 0; node < test.nodes; ++node) {
      ASSERT_EQ(first.Result(node), result) << test.Text() << " node " << node;
      ASSERT_EQ(second.Result(node), result) << test.Text() << " node " << node;
    }
  }
}

// As where gradients of a GPU cross from scratch memory, which is one piece.
TEST(ExchangeEncoded, KeepsResidualsByRunsOfTheirOwnLikeThoseOfMemoryWithRuns) {
  std::vector<EncodedCase> cases = EncodedCases();
  cases.push_back(
      {.codec = Codec::kInt4, .nodes = 3, .count = 9000, .runs_count = 9, .servers = 2});
  for (EncodedCase test : cases) {
    if (test.runs_count == 0) continue;
    EncodedJob runs(test, 1);
    test.only_residual_has_runs = true;
    EncodedJob apart(test, 1);
    for (const Codec codec : {test.codec, test.codec, Codec(Codec::kLossless)}) {
      runs.SetCodec(codec);
      apart.SetCodec(codec);
      ASSERT_NO_FATAL_FAILURE(runs.Iterate(1));
      ASSERT_NO_FATAL_FAILURE(apart.Iterate(1));
      ASSERT_EQ(apart.use().residual_squares > 0, runs.use().residual_squares > 0) << test.Text();
      for (std::uint32_t node = 0; node < test.nodes; ++node) {
        ASSERT_EQ(apart.Result(node), runs.Result(node)) << test.Text() << " node " << node;
        ASSERT_EQ(apart.Residuals(node), runs.Residuals(node)) << test.Text() << " node " << node;
      }
    }
  }
}

// Epochs grow with each job that the leader's service has opened, and with each reconnect.
TEST(ExchangeEncoded, DrawsTheSameByChanceInEveryEpoch) {
  for (const Codec codec : {Codec::kInt8Stochastic, Codec::kInt4Stochastic, Codec::kRandomK}) {
    for (const Algorithm algorithm : {Algorithm::kDirectExchange, Algorithm::kDirectScatter}) {
      const EncodedCase test{codec, 3, algorithm, 9000, Reduction::kSum, 0};
      EncodedJob first(test, 1, true, 1);
      ASSERT_NO_FATAL_FAILURE(first.Iterate(1));
      EncodedJob second(test, 1, true, 8);
      ASSERT_NO_FATAL_FAILURE(second.Iterate(1));
      ASSERT_EQ(second.Result(0), first.Result(0)) << test.Text();
    }
  }
}

// Each contribution errs by its bound, and where the owner sums, the sum once more. Normal values
// stay below 6, and what nodes of a block add up to below that times their number.
TEST(ExchangeEncoded, ErrsByNoMoreThanTheCodec) {
  for (const EncodedCase& test : EncodedCases()) {
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

// With two nodes no sum is encoded, however large: both write what they have decoded and added.
TEST(ExchangeEncoded, TwoNodesAddWhatEachOfThemHasEncoded) {
  constexpr std::uint64_t kCount = 2'000'000;
  Fleet fleet({.data_count = 2});
  std::vector<std::vector<float>> values(2, std::vector<float>(kCount));
  std::vector<float> expected(kCount);
  std::vector<std::byte> encoded(EncodedSize(Codec::kInt8, kCount));
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  for (std::uint32_t node = 0; node < 2; ++node) {
    for (float& value : values[node]) value = normal(random);
    Encode(Codec::kInt8, values[node].data(), nullptr, kCount, encoded.data());
    const std::byte* const input = encoded.data();
    DecodeSum(Codec::kInt8, {&input, 1}, kCount, node > 0, 1, expected.data());
  }
  for (std::uint32_t node = 0; node < 2; ++node) {
    Transfer transfer{.token = 1,
                      .kind = Collective::kAllReduce,
                      .dtype = DType::kFloat32,
                      .count = kCount,
                      .position = 1,
                      .members_count = 2,
                      .codec = Codec::kInt8};
    transfer.members[node] = reinterpret_cast<std::byte*>(values[node].data());
    fleet.Post(node, transfer);
  }
  fleet.RunToTheEnd();
  for (std::uint32_t node = 0; node < 2; ++node) {
    ASSERT_EQ(fleet.completions(node).at(0).code, Code::kOk);
    EXPECT_TRUE(values[node] == expected) << node;
  }
}

TEST(ExchangeEncoded, LosesNothingOverManyIterations) {
  for (const Algorithm algorithm : {Algorithm::kDirectExchange, Algorithm::kDirectScatter}) {
    for (const Codec codec : kLossyCodecs) {
      const EncodedCase test{codec, 3, algorithm, 3000, Reduction::kSum, 9};
      constexpr int kIterations = 20;
      EncodedJob job(test, 1);
      std::vector<double> applied(test.count);
      for (std::uint64_t iteration = 1; iteration <= kIterations; ++iteration) {
        ASSERT_NO_FATAL_FAILURE(job.Iterate(iteration));
        const std::vector<float> result = job.Result(1);
        for (std::uint64_t i = 0; i < test.count; ++i) applied[i] += double{result[i]};
      }
      for (std::uint64_t i = 0; i < test.count; ++i) {
        ASSERT_NEAR(applied[i] + job.SumOfResiduals(i), job.Given(i), 1e-4)
            << test.Text() << " element " << i;
      }
    }
  }
}

// What an encoding has left out comes with the next sum that leaves out nothing, by whatever way,
// and only once.
TEST(ExchangeEncoded, GivesBackWithAnExactSumWhatWasLeftOut) {
  for (const Codec codec : {Codec(Codec::kNone), Codec(Codec::kLossless)}) {
    for (const Algorithm algorithm : kAlgorithms) {
      for (const std::uint64_t count : {1U, 300U, 9000U}) {
        for (const Reduction reduction : {Reduction::kSum, Reduction::kAverage}) {
          const EncodedCase test{codec, 3, algorithm, count, reduction, count > 300 ? 23U : 0U};
          EncodedJob job(test, 1);
          job.FillResiduals(0.25F);
          for (const double residuals : {0.75, 0.0}) {
            ASSERT_NO_FATAL_FAILURE(job.Iterate(1));
            const std::vector<float> result = job.Result(2);
            for (std::uint64_t i = 0; i < count; ++i) {
              ASSERT_NEAR(result[i], (job.Sum(i) + residuals) / test.divisor(), 1e-5)
                  << test.Text() << " element " << i;
              ASSERT_EQ(job.SumOfResiduals(i), 0) << test.Text() << " element " << i;
            }
          }
        }
      }
    }
  }
}

TEST(ExchangeEncoded, KeepsNothingWhereThereIsNoResidual) {
  const EncodedCase test{Codec::kInt4, 3, Algorithm::kDirectExchange, 3000, Reduction::kSum, 0};
  EncodedJob job(test, 1, false);
  ASSERT_NO_FATAL_FAILURE(job.Iterate(1));
  const std::vector<float> result = job.Result(0);
  ASSERT_NO_FATAL_FAILURE(job.Iterate(1));
  EXPECT_EQ(job.Result(0), result);
  EXPECT_EQ(job.SumOfResiduals(7), 0);
}

TEST(ExchangeEncoded, MovesTheBytesOfItsCodec) {
  for (const Codec codec : kLossyCodecs) {
    const EncodedCase test{codec, 2, Algorithm::kDirectExchange, 256 * 100, Reduction::kSum, 0};
    EncodedJob job(test, 1);
    ASSERT_NO_FATAL_FAILURE(job.Iterate(1));
    EXPECT_EQ(job.fleet().node(0).counters().bytes_sent, EncodedSize(codec, test.count));
    const CodecUse& use = job.use();
    EXPECT_EQ(use.plain_bytes, test.count * sizeof(float));
    EXPECT_EQ(use.sent_bytes, EncodedSize(codec, test.count));
    EXPECT_GT(use.encode_ns, 0) << Name(codec);
    EXPECT_GT(use.decode_ns, 0) << Name(codec);
    EXPECT_GT(use.sum_squares, 0) << Name(codec);
    EXPECT_GT(use.residual_squares, 0) << Name(codec);
    // All errors are below twice the values, those of signs included.
    EXPECT_LT(use.residual_squares, 4 * use.sum_squares) << Name(codec);
  }
}

TEST(ExchangeEncoded, NodesOfDifferentCodecsNameBoth) {
  Fleet fleet({.data_count = 2});
  std::vector<float> values(1000, 1.0F);
  for (std::uint32_t node = 0; node < 2; ++node) {
    Transfer transfer{.token = 1,
                      .kind = Collective::kAllReduce,
                      .dtype = DType::kFloat32,
                      .count = 500,
                      .position = 1,
                      .members_count = 2,
                      .codec = node == 0 ? Codec::kInt8 : Codec::kNone};
    transfer.members[node] = reinterpret_cast<std::byte*>(values.data() + 500 * node);
    fleet.Post(node, transfer);
  }
  fleet.RunToTheEnd();
  bool named = false;
  for (std::uint32_t node = 0; node < 2; ++node) {
    ASSERT_EQ(fleet.completions(node).size(), 1U);
    EXPECT_NE(fleet.completions(node)[0].code, Code::kOk);
    named = named || fleet.completions(node)[0].cause.find("as int8") != std::string::npos;
  }
  EXPECT_TRUE(named);
}

TEST(ExchangeEncoded, AMessageOfAnotherLengthEndsTheGroupByName) {
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{259}, std::size_t{261}, std::size_t{400}}) {
    Fleet fleet({.data_count = 2, .algorithm = Algorithm::kDirectExchange});
    std::vector<float> values(100, 1.0F);
    SumWithMessage(fleet, values, Codec::kInt8, std::vector<std::byte>(size));
    ASSERT_EQ(fleet.completions(0).size(), 1U) << size;
    EXPECT_EQ(fleet.completions(0)[0].code, Code::kMismatch) << size;
    EXPECT_NE(fleet.completions(0)[0].cause.find("by another way"), std::string::npos);
  }
}

// Alone nothing crosses.
TEST(ExchangeEncoded, IsExactWhereNothingIsEncoded) {
  for (const FleetOptions& options :
       {FleetOptions{.data_count = 1}, FleetOptions{.data_count = 1, .servers_count = 1}}) {
    Fleet fleet(options);
    std::vector<std::vector<float>> values(2, std::vector<float>(300, 0.1F));
    for (std::uint32_t node = 0; node < options.data_count; ++node) {
      Transfer transfer{.token = 1,
                        .kind = Collective::kAllReduce,
                        .dtype = DType::kFloat32,
                        .count = 300,
                        .position = 1,
                        .members_count = options.data_count,
                        .codec = Codec::kInt4};
      transfer.members[node] = reinterpret_cast<std::byte*>(values[node].data());
      fleet.Post(node, transfer);
    }
    fleet.RunToTheEnd();
    EXPECT_EQ(fleet.completions(0).at(0).code, Code::kOk);
    EXPECT_EQ(values[0][17], 0.1F * static_cast<float>(options.data_count));
  }
}

}  // namespace
}  // namespace headrace::transport
