// Sums of matrices between nodes that cross as two factors: all get the same bits, and what is left
// out is not lost.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>

#include "ipc/base/matrix.h"
#include "tests/unit/transport/exchange_fleet.h"

namespace headrace::transport {
namespace {

constexpr float kNoNumber = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinite = std::numeric_limits<float>::infinity();

struct FactorCase {
  std::uint64_t rows = 100;
  std::uint64_t columns = 60;
  std::uint8_t rank = 4;
  std::uint32_t nodes = 2;
  Algorithm algorithm = Algorithm::kAuto;
  Reduction reduction = Reduction::kSum;
  bool in_a_run = false;  // the matrix lies behind something else
  std::uint32_t servers = 0;

  std::uint64_t count() const { return rows * columns; }
  Codec codec() const { return {Codec::kPowerSgd, rank}; }
  std::uint32_t divisor() const { return reduction == Reduction::kAverage ? 2 * nodes : 1; }
  std::string Text() const {
    return std::to_string(rows) + " x " + std::to_string(columns) + " rank " +
           std::to_string(rank) + " nodes " + std::to_string(nodes) + " algorithm " +
           std::to_string(static_cast<int>(algorithm)) + " servers " + std::to_string(servers);
  }
};

using Floats = std::vector<float>;
std::byte* BytesOf(Floats& floats) { return reinterpret_cast<std::byte*>(floats.data()); }

struct NodeMatrix {
  Floats values;
  Floats residual;
  Floats factors;
  Floats right_factor;  // kept outside; empty: it is not
  std::vector<Run> runs;
};

class FactorJob {
 public:
  static constexpr std::uint64_t kBefore = 5;  // elements before one in a run

  FactorJob(const FactorCase& test, std::uint64_t network_seed)
      : test_(test),
        fleet_({.data_count = test.nodes,
                .servers_count = test.servers,
                .algorithm = test.algorithm,
                .network = {.seed = network_seed,
                            .jitter_ns = 100 * kMicrosecond,
                            .eager_size = network_seed % 2 == 0 ? std::size_t{0} : 1000}}),
        nodes_(test.nodes),
        given_(test.count()),
        applied_(test.count()) {
    for (NodeMatrix& node : nodes_) {
      node.values.resize(test.count() + 2 * kBefore);
      node.residual.resize(node.values.size());
      node.factors.resize(FactorMemoryCount(test.codec(), test.rows, test.count()));
      if (test.in_a_run) {
        node.runs = {{.offset = kBefore * sizeof(float), .count = test.count()}};
      }
    }
  }

  Transfer TransferOf(std::uint32_t node) {
    Transfer transfer{.token = position_,
                      .kind = Collective::kAllReduce,
                      .dtype = DType::kFloat32,
                      .reduction = test_.reduction,
                      .count = test_.count(),
                      .divisor = test_.divisor(),
                      .position = position_,
                      .members_count = test_.nodes,
                      .runs = nodes_[node].runs,
                      .codec = test_.codec(),
                      .residual = BytesOf(nodes_[node].residual),
                      .rows = test_.rows,
                      .factors = BytesOf(nodes_[node].factors),
                      .seed = position_};
    transfer.members[node] = BytesOf(nodes_[node].values);
    if (!nodes_[node].right_factor.empty())
      transfer.right_factor = BytesOf(nodes_[node].right_factor);
    return transfer;
  }

  // Sums what `value(node, element)` gives.
  void Iterate(const std::function<float(std::uint32_t, std::uint64_t)>& value) {
    ++position_;
    for (std::uint32_t node = 0; node < test_.nodes; ++node) {
      for (std::uint64_t i = 0; i < test_.count(); ++i) {
        at(node, i) = value(node, i);
        given_[i] += double{at(node, i)};
      }
    }
    for (std::uint32_t node = 0; node < test_.nodes; ++node) fleet_.Post(node, TransferOf(node));
    fleet_.RunToTheEnd();
    for (std::uint32_t node = 0; node < test_.nodes; ++node) {
      ASSERT_EQ(fleet_.completions(node).size(), 1U) << test_.Text();
      ASSERT_EQ(fleet_.completions(node)[0].code, Code::kOk) << fleet_.completions(node)[0].cause;
    }
    use_ = fleet_.completions(0)[0].codec;
    fleet_.ClearCompletions();
    for (std::uint64_t i = 0; i < test_.count(); ++i) {
      applied_[i] += double{at(0, i)} * test_.divisor();
    }
  }
  void IterateByChance(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    Iterate([&](std::uint32_t, std::uint64_t) { return normal(random); });
  }

  float& at(std::uint32_t node, std::uint64_t element) {
    return nodes_[node].values[element + (test_.in_a_run ? kBefore : 0)];
  }
  float residual(std::uint32_t node, std::uint64_t element) const {
    return nodes_[node].residual[element + (test_.in_a_run ? kBefore : 0)];
  }
  Floats Result(std::uint32_t node) {
    Floats result;
    for (std::uint64_t i = 0; i < test_.count(); ++i) result.push_back(at(node, i));
    return result;
  }
  double SumOfResiduals(std::uint64_t element) const {
    double sum = 0;
    for (std::uint32_t node = 0; node < test_.nodes; ++node) sum += double{residual(node, element)};
    return sum;
  }
  double SumGiven(std::uint64_t element) const { return given_[element]; }
  double Applied(std::uint64_t element) const { return applied_[element]; }
  const NodeMatrix& node(std::uint32_t index) const { return nodes_[index]; }
  NodeMatrix& node(std::uint32_t index) { return nodes_[index]; }
  const CodecUse& use() const { return use_; }
  Fleet& fleet() { return fleet_; }

 private:
  FactorCase test_;
  CodecUse use_;
  std::uint64_t position_ = 0;
  Fleet fleet_;
  std::vector<NodeMatrix> nodes_;
  std::vector<double> given_;
  std::vector<double> applied_;
};

std::vector<FactorCase> FactorCases() {
  std::vector<FactorCase> cases;
  for (const std::uint32_t nodes : {2U, 3U, 5U}) {
    for (const Algorithm algorithm : kAlgorithms) {
      cases.push_back({100, 60, 4, nodes, algorithm, Reduction::kSum, false});
      cases.push_back({77, 131, 1, nodes, algorithm, Reduction::kAverage, true});
      cases.push_back({300, 301, 7, nodes, algorithm, Reduction::kSum, true});
      cases.push_back({9, 3001, 2, nodes, algorithm, Reduction::kAverage, false});
    }
  }
  for (const std::uint32_t nodes : {2U, 3U}) {
    for (const std::uint32_t servers : {1U, 2U}) {
      cases.push_back({100, 60, 4, nodes, Algorithm::kAuto, Reduction::kSum, false, servers});
      cases.push_back({77, 131, 1, nodes, Algorithm::kAuto, Reduction::kAverage, true, servers});
      cases.push_back({300, 200, 9, nodes, Algorithm::kAuto, Reduction::kSum, false, servers});
    }
  }
  // Many pieces of either factor.
  cases.push_back({4001, 200, 32, 2, Algorithm::kAuto, Reduction::kSum, false});
  cases.push_back({200, 4001, 32, 3, Algorithm::kAuto, Reduction::kSum, false});
  return cases;
}

TEST(ExchangeFactors, GivesAllNodesTheSameBitsInEachRun) {
  for (const FactorCase& test : FactorCases()) {
    ASSERT_TRUE(HasFactors(test.codec(), test.rows, test.count())) << test.Text();
    FactorJob first(test, 1);
    FactorJob second(test, 2);
    for (std::uint64_t iteration = 1; iteration <= 2; ++iteration) {
      ASSERT_NO_FATAL_FAILURE(first.IterateByChance(iteration));
      ASSERT_NO_FATAL_FAILURE(second.IterateByChance(iteration));
      const Floats result = first.Result(0);
      for (std::uint32_t node = 0; node < test.nodes; ++node) {
        ASSERT_EQ(first.Result(node), result) << test.Text() << " node " << node;
        ASSERT_EQ(second.Result(node), result) << test.Text() << " node " << node;
        ASSERT_EQ(first.node(node).residual, second.node(node).residual) << test.Text();
      }
    }
    if (!test.in_a_run) continue;
    for (std::uint64_t i = 0; i < FactorJob::kBefore; ++i) {
      EXPECT_EQ(first.node(0).values[i], 0);
      EXPECT_EQ(first.node(0).residual[i], 0);
      EXPECT_EQ(first.node(0).values[test.count() + FactorJob::kBefore + i], 0);
    }
  }
}

TEST(ExchangeFactors, LosesNothingOverManyIterations) {
  for (const FactorCase& test : FactorCases()) {
    FactorJob job(test, 1);
    for (std::uint64_t iteration = 1; iteration <= 8; ++iteration) {
      ASSERT_NO_FATAL_FAILURE(job.IterateByChance(iteration));
    }
    for (std::uint64_t i = 0; i < test.count(); ++i) {
      ASSERT_NEAR(job.Applied(i) + job.SumOfResiduals(i), job.SumGiven(i), 2e-4)
          << test.Text() << " element " << i;
    }
  }
}

// Element (i, j) of a matrix of so low a rank that nothing has to be left out of it.
float OfLowRank(std::uint64_t element, std::uint64_t columns, std::uint32_t node) {
  const auto i = static_cast<float>(element / columns);
  const auto j = static_cast<float>(element % columns);
  const auto n = static_cast<float>(node);
  return std::sin(i) * std::cos(2 * j) + (1 + n) * std::cos(3 * i) * std::sin(j + 1);
}

TEST(ExchangeFactors, LeavesNothingOutOfAMatrixOfThatRank) {
  for (const Algorithm algorithm : {Algorithm::kDirectExchange, Algorithm::kDirectScatter}) {
    const FactorCase test{100, 60, 4, 3, algorithm, Reduction::kAverage, false};
    FactorJob job(test, 1);
    ASSERT_NO_FATAL_FAILURE(job.Iterate([&](std::uint32_t node, std::uint64_t element) {
      return OfLowRank(element, test.columns, node);
    }));
    for (std::uint64_t i = 0; i < test.count(); ++i) {
      ASSERT_NEAR(job.at(1, i), job.SumGiven(i) / test.divisor(), 1e-5);
      ASSERT_NEAR(job.residual(2, i), 0, 1e-4);
    }
  }
}

// What it sends is what the matrix has most of, the better the longer it has been at it.
TEST(ExchangeFactors, GoesOnFromTheFactorOfTheLastSum) {
  const FactorCase test{200, 150, 2, 2, Algorithm::kAuto, Reduction::kSum, false};
  FactorJob job(test, 1);
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  Floats noise(test.count());
  for (float& each : noise) each = normal(random);
  const auto error_of = [&](bool forgets) {
    std::fill(job.node(0).residual.begin(), job.node(0).residual.end(), 0.0F);
    std::fill(job.node(1).residual.begin(), job.node(1).residual.end(), 0.0F);
    if (forgets) {
      for (std::uint32_t node = 0; node < 2; ++node) {
        std::fill(job.node(node).factors.begin(), job.node(node).factors.end(), 0.0F);
      }
    }
    const auto value = [&](std::uint32_t node, std::uint64_t element) {
      return OfLowRank(element, test.columns, node) + noise[element];
    };
    job.Iterate(value);
    double squares = 0;
    for (std::uint64_t i = 0; i < test.count(); ++i) {
      const double error = double{job.at(0, i)} - double{value(0, i)} - double{value(1, i)};
      squares += error * error;
    }
    return std::sqrt(squares);
  };
  const double first = error_of(true);
  double warm = 0;
  for (int i = 0; i < 8; ++i) warm = error_of(false);
  EXPECT_LT(warm, 0.97 * first);
  EXPECT_GT(error_of(true), 1.02 * warm);
}

// As after the loss of a service, whose memory for factors is gone.
TEST(ExchangeFactors, GoesOnFromARightFactorThatIsKeptOutside) {
  const FactorCase test{100, 60, 4, 2, Algorithm::kAuto, Reduction::kAverage, true};
  FactorJob undisturbed(test, 1);
  FactorJob forgets(test, 1);
  FactorJob keeps(test, 1);
  for (std::uint32_t node = 0; node < 2; ++node) {
    keeps.node(node).right_factor.resize(test.rank * test.columns);
  }
  for (std::uint64_t iteration = 1; iteration <= 4; ++iteration) {
    ASSERT_NO_FATAL_FAILURE(undisturbed.IterateByChance(iteration));
    ASSERT_NO_FATAL_FAILURE(forgets.IterateByChance(iteration));
    ASSERT_NO_FATAL_FAILURE(keeps.IterateByChance(iteration));
    EXPECT_EQ(keeps.Result(0), undisturbed.Result(0)) << iteration;
    EXPECT_EQ(keeps.Result(1), undisturbed.Result(0)) << iteration;
    EXPECT_EQ(keeps.node(1).residual, undisturbed.node(1).residual) << iteration;
    EXPECT_EQ(forgets.Result(0) == undisturbed.Result(0), iteration == 1);
    EXPECT_EQ(keeps.node(0).right_factor, keeps.node(1).right_factor);
    for (std::uint32_t node = 0; node < 2; ++node) {
      std::fill(forgets.node(node).factors.begin(), forgets.node(node).factors.end(), 0.0F);
      std::fill(keeps.node(node).factors.begin(), keeps.node(node).factors.end(), 0.0F);
    }
  }
}

TEST(ExchangeFactors, KeepsNoRightFactorOfWhatIsNotFinite) {
  const FactorCase test{100, 60, 4, 2, Algorithm::kAuto, Reduction::kSum, false};
  FactorJob job(test, 1);
  job.node(1).right_factor.assign(test.rank * test.columns, kNoNumber);  // as a rank may leave it
  ASSERT_NO_FATAL_FAILURE(job.IterateByChance(1));
  EXPECT_TRUE(std::isfinite(job.at(0, 0)));
  EXPECT_NE(job.node(1).right_factor[0], 0);
  ASSERT_NO_FATAL_FAILURE(job.Iterate([](std::uint32_t, std::uint64_t) { return kInfinite; }));
  EXPECT_EQ(job.node(1).right_factor, Floats(test.rank * test.columns));
}

TEST(ExchangeFactors, NodesThatBeganElsewhereAgreeAllTheSame) {
  const FactorCase test{100, 60, 4, 3, Algorithm::kAuto, Reduction::kSum, false};
  FactorJob job(test, 1);
  ASSERT_NO_FATAL_FAILURE(job.IterateByChance(1));
  std::fill(job.node(1).factors.begin(), job.node(1).factors.end(), 0.0F);  // as after its loss
  std::fill(job.node(1).residual.begin(), job.node(1).residual.end(), 0.0F);
  for (std::uint64_t iteration = 2; iteration < 5; ++iteration) {
    ASSERT_NO_FATAL_FAILURE(job.IterateByChance(iteration));
    EXPECT_EQ(job.Result(1), job.Result(0));
    EXPECT_EQ(job.Result(2), job.Result(0));
  }
}

TEST(ExchangeFactors, WhatIsNotFiniteIsSoOnAllNodesAndLeavesNothing) {
  for (const float wrong : {kNoNumber, kInfinite, -kInfinite, std::numeric_limits<float>::max()}) {
    const FactorCase test{100, 60, 4, 3, Algorithm::kAuto, Reduction::kAverage, true};
    FactorJob job(test, 1);
    ASSERT_NO_FATAL_FAILURE(job.IterateByChance(1));
    ASSERT_NO_FATAL_FAILURE(job.Iterate([&](std::uint32_t node, std::uint64_t element) {
      // The largest number twice, in one row, so that its products overflow.
      return node == 1 && element / 2 == 617 ? wrong : 1.0F;
    }));
    EXPECT_EQ(job.use().not_finite_blocks, (test.count() + 255) / 256);
    for (std::uint32_t node = 0; node < test.nodes; ++node) {
      for (std::uint64_t i = 0; i < test.count(); ++i) {
        ASSERT_TRUE(std::isnan(job.at(node, i))) << wrong << " " << i;
        ASSERT_EQ(job.residual(node, i), 0) << wrong << " " << i;
      }
    }
    // The next one is as if it were the first.
    ASSERT_NO_FATAL_FAILURE(job.IterateByChance(3));
    EXPECT_TRUE(std::isfinite(job.at(0, 617)));
    EXPECT_EQ(job.use().not_finite_blocks, 0U);
    EXPECT_EQ(job.Result(2), job.Result(0));
  }
}

TEST(ExchangeFactors, TakesNumbersOfAnySize) {
  for (const float size : {0.0F, 1e-42F, 1e-30F, 1e30F}) {
    const FactorCase test{100, 60, 4, 2, Algorithm::kAuto, Reduction::kSum, false};
    FactorJob job(test, 1);
    for (int iteration = 0; iteration < 3; ++iteration) {
      ASSERT_NO_FATAL_FAILURE(job.Iterate([&](std::uint32_t node, std::uint64_t element) {
        return size * OfLowRank(element, test.columns, node);
      }));
    }
    EXPECT_EQ(job.Result(1), job.Result(0));
    for (std::uint64_t i = 0; i < test.count(); ++i) {
      // Below the least normal number few bits are left.
      ASSERT_NEAR(job.Applied(i), job.SumGiven(i), 1e-4 * double{size} + 1e-42) << size << " " << i;
    }
  }
}

TEST(ExchangeFactors, MovesTheBytesOfItsFactors) {
  const FactorCase test{400, 300, 3, 2, Algorithm::kDirectExchange, Reduction::kSum, false};
  FactorJob job(test, 1);
  ASSERT_NO_FATAL_FAILURE(job.IterateByChance(1));
  const std::uint64_t sent = std::uint64_t{3} * (400 + 300) * sizeof(float);
  EXPECT_EQ(job.fleet().node(0).counters().bytes_sent, sent);
  const CodecUse& use = job.use();
  EXPECT_EQ(use.sent_bytes, sent);
  EXPECT_EQ(use.plain_bytes, test.count() * sizeof(float));
  EXPECT_GT(use.encode_ns, 0);
  EXPECT_GT(use.decode_ns, 0);
  EXPECT_GT(use.sum_squares, 0);
  EXPECT_GT(use.residual_squares, 0);
  EXPECT_EQ(use.not_finite_blocks, 0U);
}

// Other sums of the same order wait for it, and find their bytes as they were.
TEST(ExchangeFactors, MovesBesideOtherSums) {
  const FactorCase test{300, 301, 7, 3, Algorithm::kAuto, Reduction::kSum, false};
  FactorJob job(test, 1);
  std::vector<Floats> others(6, Floats(5000));
  for (Floats& other : others) std::iota(other.begin(), other.end(), 1.0F);
  for (std::uint32_t node = 0; node < 3; ++node) {
    for (std::uint64_t position : {1U, 3U}) {
      Transfer transfer{.token = position,
                        .kind = Collective::kAllReduce,
                        .dtype = DType::kFloat32,
                        .count = 5000,
                        .position = position,
                        .members_count = 3};
      transfer.members[node] = BytesOf(others[2 * node + position / 2]);
      if (position == 3) {
        Transfer matrix = job.TransferOf(node);
        matrix.token = matrix.position = 2;
        for (float& each : job.node(node).values) each = 1;
        job.fleet().Post(node, matrix);
      }
      job.fleet().Post(node, transfer);
    }
  }
  job.fleet().RunToTheEnd();
  for (std::uint32_t node = 0; node < 3; ++node) {
    ASSERT_EQ(job.fleet().completions(node).size(), 3U);
    for (const Completion& each : job.fleet().completions(node)) EXPECT_EQ(each.code, Code::kOk);
    EXPECT_NEAR(job.at(node, 17), 3, 1e-4);
    for (const Floats& other : others) EXPECT_EQ(other[4999], 15000);
  }
}

// What node 0 says of another node's first message for the matrix.
std::string CauseOf(const std::function<void(MessageHeader&, std::vector<std::byte>&)>& lie) {
  const FactorCase test{100, 60, 4, 2, Algorithm::kDirectExchange, Reduction::kSum, false};
  FactorJob job(test, 1);
  Transfer transfer = job.TransferOf(0);
  transfer.token = transfer.position = 1;
  job.fleet().Post(0, transfer);
  MessageHeader header{.key = KeyOf(1),
                       .epoch = 3,
                       .plan_version = 5,
                       .position = 1,
                       .count = test.count(),
                       .kind = static_cast<std::uint8_t>(Collective::kAllReduce),
                       .dtype = static_cast<std::uint8_t>(DType::kFloat32),
                       .reduction = static_cast<std::uint8_t>(Reduction::kSum),
                       .sender = 1,
                       .codec = Codec::kPowerSgd,
                       .codec_parameter = 4,
                       .rows = test.rows};
  std::vector<std::byte> bytes(test.rows * 4 * sizeof(float));
  lie(header, bytes);
  job.fleet().network().Inject("a", header, std::move(bytes));
  job.fleet().RunToTheEnd();
  const auto& completions = job.fleet().completions(0);
  if (completions.empty()) return "nothing";
  return completions[0].code == Code::kMismatch ? completions[0].cause : "another code";
}

TEST(ExchangeFactors, AMessageThatCannotBeEndsTheGroupByName) {
  const auto sizes = [](std::ptrdiff_t more) {
    return [more](MessageHeader&, std::vector<std::byte>& bytes) {
      bytes.resize(bytes.size() + static_cast<std::size_t>(more));
    };
  };
  EXPECT_NE(CauseOf(sizes(-4)).find("by another way"), std::string::npos);
  EXPECT_NE(CauseOf(sizes(4)).find("by another way"), std::string::npos);
  EXPECT_NE(CauseOf(sizes(-1600)).find("by another way"), std::string::npos);
  const std::string codec = CauseOf([](MessageHeader& header, std::vector<std::byte>&) {
    header.codec = Codec::kInt8;
    header.codec_parameter = 0;
    header.rows = 0;
  });
  EXPECT_NE(codec.find("as int8"), std::string::npos) << codec;
  EXPECT_NE(codec.find("as powersgd:4 of 100 rows"), std::string::npos) << codec;
  const std::string rank =
      CauseOf([](MessageHeader& header, std::vector<std::byte>&) { header.codec_parameter = 5; });
  EXPECT_NE(rank.find("as powersgd:5"), std::string::npos) << rank;
  const std::string rows =
      CauseOf([](MessageHeader& header, std::vector<std::byte>&) { header.rows = 60; });
  EXPECT_NE(rows.find("of 60 rows"), std::string::npos) << rows;
  const std::string piece =
      CauseOf([](MessageHeader& header, std::vector<std::byte>&) { header.piece = 2; });
  EXPECT_NE(piece.find("into other pieces"), std::string::npos) << piece;
}

// Those are dropped as whatever makes no sense: the transfer goes on without them.
TEST(ExchangeFactors, AHeaderOfNoMatrixIsDropped) {
  for (const std::uint64_t rows : {0U, 7U, 6000U, 6001U}) {
    EXPECT_EQ(CauseOf([&](MessageHeader& header, std::vector<std::byte>&) { header.rows = rows; }),
              "nothing");
  }
  EXPECT_EQ(CauseOf([](MessageHeader& header, std::vector<std::byte>&) {
              header.codec_parameter = kRankMax + 1;
            }),
            "nothing");
}

TEST(ExchangeFactors, IsExactWhereNothingIsEncoded) {
  for (const FleetOptions& options :
       {FleetOptions{.data_count = 1}, FleetOptions{.data_count = 1, .servers_count = 1}}) {
    Fleet fleet(options);
    std::vector<Floats> values(2, Floats(6000, 0.1F));
    for (std::uint32_t node = 0; node < options.data_count; ++node) {
      Transfer transfer{.token = 1,
                        .kind = Collective::kAllReduce,
                        .dtype = DType::kFloat32,
                        .count = 6000,
                        .position = 1,
                        .members_count = options.data_count,
                        .codec = Codec::kPowerSgd,
                        .rows = 100};
      transfer.members[node] = BytesOf(values[node]);
      fleet.Post(node, transfer);
    }
    fleet.RunToTheEnd();
    EXPECT_EQ(fleet.completions(0).at(0).code, Code::kOk);
    EXPECT_EQ(values[0][17], 0.1F * static_cast<float>(options.data_count));
  }
}

}  // namespace
}  // namespace headrace::transport
