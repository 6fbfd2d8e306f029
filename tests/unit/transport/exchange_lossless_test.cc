// Sums between nodes that cross without loss: the bits of sums that cross as they are, in fewer
// bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "tests/unit/transport/exchange_fleet.h"
#include "transport/exchange/lossless_gain.h"

namespace headrace::transport {
namespace {

struct LosslessCase {
  std::uint32_t nodes = 2;
  Algorithm algorithm = Algorithm::kAuto;
  std::uint64_t count = 1000;
  Reduction reduction = Reduction::kSum;
  bool in_runs = false;
  bool noise = false;     // nothing is gained
  double s_per_byte = 1;  // on the wire: so dear that coding pays on every machine

  std::string Text() const {
    return "nodes " + std::to_string(nodes) + " algorithm " +
           std::to_string(static_cast<int>(algorithm)) + " count " + std::to_string(count);
  }
};

struct LosslessOutcome {
  std::vector<std::vector<float>> values;
  std::uint64_t bytes_sent = 0;
};

constexpr std::uint64_t kGap = 3;  // elements between runs, where there are some
constexpr std::uint64_t kRunCount = 700;

std::vector<float> ValuesOf(const LosslessCase& test, std::uint32_t node, std::uint64_t memory) {
  std::mt19937_64 random(node + 7);
  std::normal_distribution<float> normal;
  std::vector<float> values(memory);
  for (float& value : values) {
    value = normal(random);
    if (random() % 50 == 0) value = 0;
    if (!test.noise) continue;
    // No NaN: which one survives is the same, but that it is equal cannot be seen.
    const std::uint32_t bits = static_cast<std::uint32_t>(random()) & 0xBFFFFFFFU;
    std::memcpy(&value, &bits, sizeof value);
  }
  return values;
}

LosslessOutcome Sum(const LosslessCase& test, Codec codec, std::uint64_t seed) {
  Fleet fleet({.data_count = test.nodes,
               .algorithm = test.algorithm,
               .network = {.seed = seed,
                           .jitter_ns = 100 * kMicrosecond,
                           .eager_size = seed % 2 == 0 ? std::size_t{0} : 1000}});
  std::vector<Run> runs;
  std::uint64_t memory = test.count;
  if (test.in_runs) {
    memory = 0;
    for (std::uint64_t left = test.count; left > 0;) {
      const std::uint64_t count = std::min(left, kRunCount);
      runs.push_back({.offset = memory * sizeof(float), .count = count});
      memory += count + kGap;
      left -= count;
    }
  }
  LosslessOutcome outcome;
  for (std::uint32_t node = 0; node < test.nodes; ++node) {
    outcome.values.push_back(ValuesOf(test, node, memory));
  }
  for (std::uint32_t node = 0; node < test.nodes; ++node) {
    Transfer transfer{.token = 1,
                      .kind = Collective::kAllReduce,
                      .dtype = DType::kFloat32,
                      .reduction = test.reduction,
                      .count = test.count,
                      .divisor = test.reduction == Reduction::kAverage ? 2 * test.nodes : 0,
                      .position = 1,
                      .members_count = test.nodes,
                      .runs = runs,
                      .codec = codec};
    transfer.members[node] = reinterpret_cast<std::byte*>(outcome.values[node].data());
    fleet.Post(node, transfer);
  }
  for (std::uint32_t node = 0; node < test.nodes; ++node) {
    fleet.node(node).SetCost(1, {.startup_s = 1e-4, .s_per_byte = test.s_per_byte});
  }
  fleet.RunToTheEnd();
  for (std::uint32_t node = 0; node < test.nodes; ++node) {
    EXPECT_EQ(fleet.completions(node).size(), 1U) << test.Text();
    const Completion& completion = fleet.completions(node).at(0);
    EXPECT_EQ(completion.code, Code::kOk) << test.Text() << completion.cause;
    outcome.bytes_sent += fleet.node(node).counters().bytes_sent;
  }
  return outcome;
}

TEST(ExchangeLossless, GivesTheBitsThatCrossingAsTheyAreGives) {
  for (const std::uint32_t nodes : {2U, 3U, 5U}) {
    for (const Algorithm algorithm : kAlgorithms) {
      for (const std::uint64_t count : {0U, 1U, 255U, 257U, 9000U}) {
        for (const Reduction reduction : {Reduction::kSum, Reduction::kAverage}) {
          for (const bool in_runs : {false, true}) {
            const LosslessCase test{nodes, algorithm, count, reduction, in_runs && count > 0};
            const LosslessOutcome plain = Sum(test, Codec::kNone, 1);
            ASSERT_EQ(Sum(test, Codec::kLossless, 1).values, plain.values) << test.Text();
            ASSERT_EQ(Sum(test, Codec::kLossless, 2).values, plain.values) << test.Text();
          }
        }
      }
    }
  }
}

TEST(ExchangeLossless, SendsFewerBytesAndNeverMore) {
  const LosslessCase gradients{.count = 20000};
  const LosslessOutcome plain = Sum(gradients, Codec::kNone, 1);
  const LosslessOutcome lossless = Sum(gradients, Codec::kLossless, 1);
  EXPECT_LT(static_cast<double>(lossless.bytes_sent), 0.9 * static_cast<double>(plain.bytes_sent));
  const LosslessCase noise{.count = 20000, .noise = true};
  const LosslessOutcome plain_noise = Sum(noise, Codec::kNone, 1);
  const LosslessOutcome lossless_noise = Sum(noise, Codec::kLossless, 1);
  EXPECT_EQ(lossless_noise.values, plain_noise.values);
  EXPECT_LE(lossless_noise.bytes_sent, plain_noise.bytes_sent);
}

// On a wire where bytes cost nothing only the first messages, and one in many, are coded.
TEST(ExchangeLossless, SendsAsItIsWhatWouldTakeLongerCoded) {
  const LosslessCase dear{.count = 2'000'000};
  LosslessCase cheap = dear;
  cheap.s_per_byte = 0;
  const LosslessOutcome plain = Sum(dear, Codec::kNone, 1);
  const LosslessOutcome coded = Sum(dear, Codec::kLossless, 1);
  const LosslessOutcome given_up = Sum(cheap, Codec::kLossless, 1);
  EXPECT_EQ(given_up.values, plain.values);
  EXPECT_LT(static_cast<double>(coded.bytes_sent), 0.9 * static_cast<double>(plain.bytes_sent));
  EXPECT_GT(static_cast<double>(given_up.bytes_sent), 0.97 * static_cast<double>(plain.bytes_sent));
  EXPECT_LT(given_up.bytes_sent, plain.bytes_sent);
}

TEST(LosslessGain, JudgesAfterAFewMessagesAndTriesNowAndThen) {
  LosslessGain gain;
  for (std::uint32_t i = 0; i < LosslessGain::kLearned; ++i) {
    EXPECT_TRUE(gain.Tries(0)) << i;
    gain.OnEncoded(kMicrosecond, 1000);
  }
  EXPECT_TRUE(gain.Tries(2e-9)) << "1000 bytes take 2 us";
  EXPECT_FALSE(gain.Tries(0.5e-9));
  EXPECT_TRUE(gain.Tries(2e-9));
  std::uint32_t tried = 0;
  for (std::uint32_t i = 0; i < 10 * LosslessGain::kTriedEvery; ++i) tried += gain.Tries(0) ? 1 : 0;
  EXPECT_EQ(tried, 10U);
  // What others' messages cost counts, too.
  gain.OnDecoded(kSecond);
  EXPECT_FALSE(gain.Tries(2e-9));
}

// Too short, too long, and of a length that may be.
TEST(ExchangeLossless, AMessageThatCannotBeDecodedEndsTheGroupByName) {
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{1}, std::size_t{900}, std::size_t{1199}, std::size_t{1201}}) {
    Fleet fleet({.data_count = 2, .algorithm = Algorithm::kDirectExchange});
    std::vector<float> values(300, 1.5F);
    SumWithMessage(fleet, values, Codec::kLossless, std::vector<std::byte>(size, std::byte{9}));
    ASSERT_EQ(fleet.completions(0).size(), 1U) << size;
    EXPECT_EQ(fleet.completions(0)[0].code, Code::kMismatch) << size;
    EXPECT_NE(fleet.completions(0)[0].cause.find("node b"), std::string::npos) << size;
  }
}

}  // namespace
}  // namespace headrace::transport
