// What transfers between nodes leave in memory, for every way they can go.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tests/contract/members.h"
#include "tests/support/loopback/reference.h"
#include "tests/unit/transport/exchange_fleet.h"

namespace headrace::transport {
namespace {

bool IsInMemberOrder(Algorithm algorithm) {
  return algorithm == Algorithm::kDirectExchange || algorithm == Algorithm::kDirectScatter;
}

struct Case {
  FleetOptions fleet;
  Collective kind = Collective::kAllReduce;
  DType dtype = DType::kFloat32;
  Reduction reduction = Reduction::kSum;
  std::uint64_t count = 0;
  std::uint32_t divisor = 0;

  std::string Text() const {
    return std::string(Name(kind)) + " " + std::string(Name(dtype)) + " " +
           std::string(Name(reduction)) + " count " + std::to_string(count) + " nodes " +
           std::to_string(fleet.data_count) + " servers " + std::to_string(fleet.servers_count) +
           " algorithm " + std::to_string(static_cast<int>(fleet.algorithm));
  }
};

// Runs the case with a network of the given seed; every node must end well.
void RunCase(const Case& test, std::uint64_t seed, FleetTransfer& work) {
  FleetOptions options = test.fleet;
  options.network.seed = seed;
  options.network.jitter_ns = 100 * kMicrosecond;
  Fleet fleet(options);
  fleet.PostEverywhere(work.transfer());
  fleet.RunToTheEnd();
  for (std::uint32_t node = 0; node < test.fleet.data_count; ++node) {
    ASSERT_EQ(fleet.completions(node).size(), 1U) << test.Text();
    const Completion& completion = fleet.completions(node)[0];
    ASSERT_EQ(completion.code, Code::kOk) << test.Text() << ": " << completion.cause;
    ASSERT_EQ(completion.token, work.transfer().token);
    ASSERT_LE(completion.begin_ns, completion.end_ns);
  }
  ASSERT_EQ(fleet.network().open_count(), 0U);
  ASSERT_TRUE(work.members().GuardsAreWhole()) << test.Text();
}

FleetTransfer Work(const Case& test) {
  FleetTransfer work(test.kind, test.dtype, test.reduction, test.count, test.fleet.data_count, 5);
  work.transfer().divisor = test.divisor;
  return work;
}

// The result, or nothing when the test has failed already. Twice, with other delays.
Contents RunTwice(const Case& test) {
  FleetTransfer first = Work(test);
  RunCase(test, 1, first);
  FleetTransfer second = Work(test);
  RunCase(test, 2, second);
  EXPECT_EQ(first.members().Contents(), second.members().Contents()) << test.Text();
  return first.members().Contents();
}

void ExpectReferenceBits(const Case& test) {
  const Contents expected = Work(test).Expected();
  ASSERT_EQ(RunTwice(test), expected) << test.Text();
}

void ExpectEqualOnAllNodes(const Case& test) {
  const Contents got = RunTwice(test);
  for (std::uint32_t node = 1; node < test.fleet.data_count; ++node) {
    ASSERT_EQ(got[node], got[0]) << test.Text() << " node " << node;
  }
}

void ForEachCase(Algorithm algorithm, std::uint32_t data_count, const auto& check) {
  for (const DType dtype : kDTypes) {
    for (const Reduction reduction : kReductions) {
      if (reduction == Reduction::kAverage && !IsFloating(dtype)) continue;
      for (const std::uint64_t count : {1U, 5003U}) {
        check(Case{.fleet = {.data_count = data_count, .algorithm = algorithm},
                   .dtype = dtype,
                   .reduction = reduction,
                   .count = count,
                   .divisor = reduction == Reduction::kAverage ? 2 * data_count + 1 : 0});
      }
    }
  }
}

class ExchangeResult : public ::testing::TestWithParam<std::uint32_t> {};

TEST_P(ExchangeResult, OfAllReduceIsTheReferencesInMemberOrder) {
  for (const Algorithm algorithm : {Algorithm::kDirectExchange, Algorithm::kDirectScatter}) {
    ForEachCase(algorithm, GetParam(), [](const Case& test) { ExpectReferenceBits(test); });
  }
}

// Zeros of both signs are the one thing in which the order of minima shows.
TEST_P(ExchangeResult, OfAllReduceIsEqualOnAllNodesInAnyOrder) {
  for (const Algorithm algorithm : kAlgorithms) {
    if (IsInMemberOrder(algorithm)) continue;
    ForEachCase(algorithm, GetParam(), [](const Case& test) {
      ExpectEqualOnAllNodes(test);
      if (!IsFloating(test.dtype)) ExpectReferenceBits(test);
    });
  }
}

// Small whole numbers have exact sums in every type and order.
TEST_P(ExchangeResult, OfAllReduceIsExactWhereNoOrderRounds) {
  const std::uint32_t nodes = GetParam();
  constexpr std::uint64_t kCount = 3001;
  for (const Algorithm algorithm : kAlgorithms) {
    Case test{.fleet = {.data_count = nodes, .algorithm = algorithm},
              .reduction = Reduction::kAverage,
              .count = kCount,
              .divisor = 4};
    FleetTransfer work = Work(test);
    for (std::uint32_t node = 0; node < nodes; ++node) {
      for (std::uint64_t i = 0; i < kCount; ++i) {
        const auto value = static_cast<float>(4 * (i % 1000) + 8 * node);
        std::memcpy(work.members().Member(node) + i * sizeof(float), &value, sizeof(value));
      }
    }
    RunCase(test, 3, work);
    for (std::uint32_t node = 0; node < nodes; ++node) {
      for (std::uint64_t i = 0; i < kCount; ++i) {
        float value = 0;
        std::memcpy(&value, work.members().Member(node) + i * sizeof(float), sizeof(value));
        ASSERT_EQ(value, static_cast<float>(nodes * (i % 1000) + nodes * (nodes - 1)))
            << test.Text() << " element " << i;
      }
    }
  }
}

TEST_P(ExchangeResult, OfBroadcastReduceAndBarrierIsTheReferences) {
  for (const Algorithm algorithm :
       {Algorithm::kAuto, Algorithm::kDirectExchange, Algorithm::kDirectScatter}) {
    for (const Collective kind :
         {Collective::kBroadcast, Collective::kReduce, Collective::kBarrier}) {
      for (const DType dtype : kDTypes) {
        for (const std::uint64_t count : {0U, 1U, 5003U, 60001U}) {
          ASSERT_NO_FATAL_FAILURE(
              ExpectReferenceBits({.fleet = {.data_count = GetParam(), .algorithm = algorithm},
                                   .kind = kind,
                                   .dtype = dtype,
                                   .count = count}));
        }
      }
    }
  }
}

TEST_P(ExchangeResult, OverServersIsTheReferences) {
  for (const std::uint32_t servers : {1U, 2U, 5U}) {
    for (const Collective kind : {Collective::kAllReduce, Collective::kReduce,
                                  Collective::kBroadcast, Collective::kBarrier}) {
      for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kInt64}) {
        for (const std::uint64_t count : {0U, 1U, 40001U}) {
          const bool averages = IsFloating(dtype) && Reduces(kind);
          ASSERT_NO_FATAL_FAILURE(
              ExpectReferenceBits({.fleet = {.data_count = GetParam(), .servers_count = servers},
                                   .kind = kind,
                                   .dtype = dtype,
                                   .reduction = averages ? Reduction::kAverage : Reduction::kSum,
                                   .count = count,
                                   .divisor = 3}));
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Among, ExchangeResult, ::testing::Range(1U, 10U),
                         [](const auto& test) { return std::to_string(test.param) + "Nodes"; });

// The whole of a group of the most nodes.
TEST(ExchangeResultAmongMany, IsTheReferences) {
  for (const Algorithm algorithm : {Algorithm::kDirectExchange, Algorithm::kDirectScatter}) {
    ASSERT_NO_FATAL_FAILURE(ExpectReferenceBits(
        {.fleet = {.data_count = kNodesMax, .algorithm = algorithm}, .count = 1500}));
  }
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kRecursiveDoubling}) {
    ASSERT_NO_FATAL_FAILURE(
        ExpectEqualOnAllNodes({.fleet = {.data_count = kNodesMax - 1, .algorithm = algorithm},
                               .dtype = DType::kFloat16,
                               .count = 1500}));
  }
  ASSERT_NO_FATAL_FAILURE(
      ExpectReferenceBits({.fleet = {.data_count = 40, .servers_count = 24}, .count = 5000}));
}

TEST(ExchangeResultByHand, OfAllReduceIsTheSumOnBothNodes) {
  int a[] = {1, 2, 3};
  int b[] = {10, 20, 30};
  Transfer transfer{.token = 1, .kind = Collective::kAllReduce, .dtype = DType::kInt32};
  transfer.count = 3;
  transfer.members_count = 2;
  transfer.members[0] = reinterpret_cast<std::byte*>(a);
  transfer.members[1] = reinterpret_cast<std::byte*>(b);
  Fleet fleet({});
  fleet.PostEverywhere(transfer);
  fleet.RunToTheEnd();
  for (const int* node : {a, b}) {
    EXPECT_EQ(node[0], 11);
    EXPECT_EQ(node[1], 22);
    EXPECT_EQ(node[2], 33);
  }
}

}  // namespace
}  // namespace headrace::transport
