// Transfers between nodes whose memory consists of several runs, at other places on every node.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/contract/scattered.h"
#include "tests/unit/transport/exchange_fleet.h"
#include "transport/runs.h"

namespace headrace::transport {
namespace {

using Counts = std::vector<std::uint64_t>;

// Elements of float32 of a piece in these fleets.
constexpr std::uint64_t kPiece = 1024;

std::vector<Counts> AllCounts() {
  return {{1000},
          {13, 1, 701, 333, 64, 5},
          {3 * kPiece + 1, 5, kPiece - 1, kPiece / 3, 7 * kPiece + 11, 1, kPiece},
          RunCounts(600, 9, 1)};
}

struct RunsCase {
  FleetOptions fleet;
  Collective kind = Collective::kAllReduce;
  DType dtype = DType::kFloat32;
  Reduction reduction = Reduction::kSum;
  Counts counts{};
  std::uint64_t skip = 0;

  std::string Text() const {
    return std::string(Name(kind)) + " " + std::string(Name(dtype)) + " nodes " +
           std::to_string(fleet.data_count) + " servers " + std::to_string(fleet.servers_count) +
           " algorithm " + std::to_string(static_cast<int>(fleet.algorithm)) + " runs " +
           std::to_string(counts.size()) + " skip " + std::to_string(skip);
  }
};

// One transfer over the nodes' memory, in which each node has its runs elsewhere.
class RunsWork {
 public:
  RunsWork(const RunsCase& test, std::uint64_t position)
      : members_(test.dtype, Scattered(test.dtype, test.counts, 0).extent(), test.fleet.data_count),
        transfer_{.token = 100 + position,
                  .kind = test.kind,
                  .reduction = test.reduction,
                  .root = test.fleet.data_count - 1,
                  .position = position,
                  .skip = test.skip} {
    for (std::uint32_t node = 0; node < test.fleet.data_count; ++node) {
      places_.emplace_back(test.dtype, test.counts, node);
    }
    members_.Fill(position);
    members_.Describe(transfer_);
    transfer_.output = transfer_.members[transfer_.root];
    transfer_.count = places_[0].count() - test.skip - places_[0].count() / 9;
  }

  // As this node posts it.
  Transfer On(std::uint32_t node) const {
    Transfer transfer = transfer_;
    transfer.runs = places_[node].runs();
    return transfer;
  }
  const Members& members() const { return members_; }
  std::vector<std::vector<std::byte>> Expected() const {
    return ExpectedOverRuns(members_, transfer_, places_);
  }

 private:
  std::vector<Scattered> places_;
  Members members_;
  Transfer transfer_;
};

// With even seeds every message with bytes is announced, with odd ones those over 1000 bytes.
FleetOptions ShakenFleet(const RunsCase& test, std::uint64_t seed) {
  FleetOptions options = test.fleet;
  options.network = {.seed = seed,
                     .jitter_ns = 100 * kMicrosecond,
                     .eager_size = seed % 2 == 0 ? std::size_t{0} : std::size_t{1000}};
  return options;
}

// Everything outside the runs must be as before, too.
void ExpectReferenceResult(const RunsCase& test, std::uint64_t seed) {
  Fleet fleet(ShakenFleet(test, seed));
  RunsWork work(test, seed);
  const auto expected = work.Expected();
  for (std::uint32_t node = 0; node < test.fleet.data_count; ++node) {
    fleet.Post(node, work.On(node));
  }
  fleet.RunToTheEnd();
  for (std::uint32_t node = 0; node < test.fleet.data_count; ++node) {
    ASSERT_EQ(fleet.completions(node).size(), 1U) << test.Text();
    ASSERT_EQ(fleet.completions(node)[0].code, Code::kOk)
        << test.Text() << ": " << fleet.completions(node)[0].cause;
  }
  ASSERT_TRUE(work.members().Contents() == expected) << test.Text();
  ASSERT_TRUE(work.members().GuardsAreWhole()) << test.Text();
  ASSERT_EQ(fleet.network().open_count(), 0U);
}

// Each node posts its all_gather as soon as its own reduce_scatter has ended.
void ExpectHalvesMakeTheAllReduce(const RunsCase& test, std::uint64_t seed) {
  Fleet fleet(ShakenFleet(test, seed));
  RunsWork work(test, seed);
  const auto expected = work.Expected();
  const auto half = [&work, seed](std::uint32_t node, Collective kind) {
    Transfer transfer = work.On(node);
    transfer.kind = kind;
    transfer.root = 0;
    transfer.output = nullptr;
    const bool gathers = kind == Collective::kAllGather;
    transfer.position = seed + (gathers ? 7 : 0);
    transfer.token = gathers ? 2 : 1;
    return transfer;
  };
  for (std::uint32_t node = 0; node < test.fleet.data_count; ++node) {
    fleet.Post(node, half(node, Collective::kReduceScatter));
  }
  std::vector<bool> gathers(test.fleet.data_count);
  bool moves = true;
  while (moves) {
    moves = fleet.Step();
    for (std::uint32_t node = 0; node < test.fleet.data_count; ++node) {
      if (gathers[node] || fleet.completions(node).empty()) continue;
      fleet.Post(node, half(node, Collective::kAllGather));
      gathers[node] = true;
      moves = true;
    }
  }
  for (std::uint32_t node = 0; node < test.fleet.data_count; ++node) {
    ASSERT_EQ(fleet.completions(node).size(), 2U) << test.Text();
    for (const Completion& completion : fleet.completions(node)) {
      ASSERT_EQ(completion.code, Code::kOk) << test.Text() << ": " << completion.cause;
    }
  }
  ASSERT_TRUE(work.members().Contents() == expected) << test.Text();
  ASSERT_TRUE(work.members().GuardsAreWhole()) << test.Text();
  ASSERT_EQ(fleet.network().open_count(), 0U);
}

class ExchangeRuns : public ::testing::TestWithParam<std::uint32_t> {};

// Whole numbers have one sum, whatever the order.
TEST_P(ExchangeRuns, AreSummedLikeOnePieceByEveryAlgorithm) {
  for (const Algorithm algorithm : kAlgorithms) {
    for (const Counts& counts : AllCounts()) {
      for (const std::uint64_t skip : {0U, 14U, 700U}) {
        ASSERT_NO_FATAL_FAILURE(
            ExpectReferenceResult({.fleet = {.data_count = GetParam(), .algorithm = algorithm},
                                   .dtype = DType::kInt32,
                                   .counts = counts,
                                   .skip = skip},
                                  skip + 1));
      }
    }
  }
}

TEST_P(ExchangeRuns, AreReducedByHalvesAsByAnAllReduce) {
  std::vector<Counts> all = AllCounts();
  all.push_back({1});
  all.push_back({2, 3});
  for (const Counts& counts : all) {
    for (const std::uint64_t skip : {0U, 1U}) {
      for (const DType dtype : {DType::kFloat32, DType::kFloat16}) {
        if (skip >= counts[0] && counts.size() == 1) continue;
        ASSERT_NO_FATAL_FAILURE(ExpectHalvesMakeTheAllReduce({.fleet = {.data_count = GetParam()},
                                                              .dtype = dtype,
                                                              .reduction = Reduction::kAverage,
                                                              .counts = counts,
                                                              .skip = skip},
                                                             skip + counts.size()));
      }
    }
  }
}

TEST_P(ExchangeRuns, AreAveragedForEveryTypeThatHasFractions) {
  for (const Algorithm algorithm : {Algorithm::kDirectExchange, Algorithm::kDirectScatter}) {
    for (const DType dtype :
         {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
      for (const Counts& counts : AllCounts()) {
        ASSERT_NO_FATAL_FAILURE(
            ExpectReferenceResult({.fleet = {.data_count = GetParam(), .algorithm = algorithm},
                                   .dtype = dtype,
                                   .reduction = Reduction::kAverage,
                                   .counts = counts,
                                   .skip = 3},
                                  2));
      }
    }
  }
}

TEST_P(ExchangeRuns, AreBroadcastAndReducedToTheRoot) {
  for (const Collective kind : {Collective::kBroadcast, Collective::kReduce}) {
    for (const Algorithm algorithm : {Algorithm::kAuto, Algorithm::kDirectScatter}) {
      for (const Counts& counts : AllCounts()) {
        ASSERT_NO_FATAL_FAILURE(
            ExpectReferenceResult({.fleet = {.data_count = GetParam(), .algorithm = algorithm},
                                   .kind = kind,
                                   .counts = counts,
                                   .skip = 20},
                                  3));
      }
    }
  }
}

TEST_P(ExchangeRuns, WorkWithServersToo) {
  for (const Collective kind :
       {Collective::kAllReduce, Collective::kReduce, Collective::kBroadcast}) {
    for (const std::uint32_t servers : {1U, 3U}) {
      for (const Counts& counts : AllCounts()) {
        ASSERT_NO_FATAL_FAILURE(
            ExpectReferenceResult({.fleet = {.data_count = GetParam(), .servers_count = servers},
                                   .kind = kind,
                                   .counts = counts,
                                   .skip = 7},
                                  4));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Among, ExchangeRuns, ::testing::Values(1U, 2U, 3U, 5U, 8U),
                         [](const auto& test) { return std::to_string(test.param) + "Nodes"; });

// What nodes must agree on is what the runs hold, not how they are cut.
TEST(ExchangeRunsThatDiffer, AreMovedLikeOnePiece) {
  const std::vector<Counts> cuts = {{4350}, {100, 200, 4000, 50}, {50, 4000, 200, 100}};
  for (const Algorithm algorithm : kAlgorithms) {
    const FleetOptions options{.data_count = 3, .algorithm = algorithm};
    Fleet fleet(options);
    std::vector<Scattered> places;
    for (std::uint32_t node = 0; node < 3; ++node) {
      places.emplace_back(DType::kInt32, cuts[node], node);
    }
    Members members(DType::kInt32, places[1].extent(), 3);
    members.Fill(9);
    Transfer transfer{.kind = Collective::kAllReduce, .position = 1, .skip = 11};
    members.Describe(transfer);
    transfer.count = 4300;
    const auto expected = ExpectedOverRuns(members, transfer, places);
    for (std::uint32_t node = 0; node < 3; ++node) {
      transfer.runs = places[node].runs();
      fleet.Post(node, transfer);
    }
    fleet.RunToTheEnd();
    ASSERT_TRUE(members.Contents() == expected);
  }
}

// Runs are memory of this node: also where a group ends early, nothing outside is written.
TEST(ExchangeRunsThatFail, LeaveWhatIsOutsideAlone) {
  const RunsCase test{.fleet = {.data_count = 3, .network = {.closes_are_told = true}},
                      .counts = AllCounts()[2],
                      .skip = 5};
  for (std::uint64_t steps = 0; steps < 200; steps += 7) {
    Fleet fleet(test.fleet);
    const RunsWork work(test, 1);
    const auto before = work.members().Contents();
    for (std::uint32_t node = 0; node < 3; ++node) fleet.Post(node, work.On(node));
    for (std::uint64_t i = 0; i < steps; ++i) fleet.Step();
    fleet.node(1).Cancel(work.On(1).token);
    fleet.RunToTheEnd();
    for (std::uint32_t node = 0; node < 3; ++node) {
      ASSERT_EQ(fleet.completions(node).size(), 1U) << "after " << steps << " steps";
      auto after = work.members().Content(node);
      const Transfer posted = work.On(node);
      ForEachStretch(RunWalk(posted), 0, posted.count, [&](auto, auto offset, auto count) {
        std::copy_n(before[node].data() + offset, count * sizeof(float), after.data() + offset);
      });
      ASSERT_TRUE(after == before[node]) << "node " << node << " after " << steps << " steps";
    }
    ASSERT_TRUE(work.members().GuardsAreWhole());
  }
}

}  // namespace
}  // namespace headrace::transport
