// A job whose sums cross between nodes encoded, among them or over servers: iterates, and knows
// what was given and what was left out.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/transport/exchange_fleet.h"

namespace headrace::transport {

inline constexpr Codec kLossyCodecs[] = {
    Codec::kBFloat16,       Codec::kFloat16,    Codec::kInt8,       Codec::kInt4,
    Codec::kInt8Stochastic, Codec::kFloat8E4M3, Codec::kFloat8E5M2, Codec::kInt4Stochastic,
    Codec::kSign,           Codec::kTopK,       Codec::kRandomK};

struct EncodedCase {
  Codec codec = Codec::kInt8;
  std::uint32_t nodes = 2;
  Algorithm algorithm = Algorithm::kAuto;
  std::uint64_t count = 1000;
  Reduction reduction = Reduction::kSum;
  std::size_t runs_count = 0;  // 0: the memory is one piece
  std::uint32_t servers = 0;
  bool only_residual_has_runs = false;

  std::string Text() const {
    return std::string(Name(codec)) + " nodes " + std::to_string(nodes) + " algorithm " +
           std::to_string(static_cast<int>(algorithm)) + " count " + std::to_string(count) +
           " runs " + std::to_string(runs_count) + " servers " + std::to_string(servers);
  }
  std::uint32_t divisor() const { return reduction == Reduction::kAverage ? 2 * nodes : 1; }
};

// One node's gradients and residuals, in runs that lie elsewhere on every node, unless servers sum.
class NodeMemory {
 public:
  NodeMemory(const EncodedCase& test, std::uint32_t node) {
    std::uint64_t left = test.count;
    if (test.servers > 0) node = 0;
    std::uint64_t offset = node;
    for (std::size_t run = 0; run < test.runs_count && left > 0; ++run) {
      const bool last = run + 1 == test.runs_count;
      const std::uint64_t count = last ? left : std::min<std::uint64_t>(left, 1 + run * 97 % 700);
      runs_.push_back({.offset = offset * sizeof(float), .count = count});
      offset += count + 1 + node;
      left -= count;
    }
    residual_.resize(runs_.empty() ? test.count : offset);
    values_.resize(test.only_residual_has_runs ? test.count : residual_.size());
    for (std::uint64_t i = 0; i < test.count; ++i) {
      residual_places_.push_back(PlaceOf(i));
      places_.push_back(test.only_residual_has_runs ? i : residual_places_.back());
    }
  }

  const std::vector<Run>& runs() const { return runs_; }
  std::byte* memory() { return reinterpret_cast<std::byte*>(values_.data()); }
  std::byte* residual_memory() { return reinterpret_cast<std::byte*>(residual_.data()); }
  float& value(std::uint64_t element) { return values_[places_[element]]; }
  float& residual(std::uint64_t element) { return residual_[residual_places_[element]]; }
  std::size_t PlaceOf(std::uint64_t element) const {
    if (runs_.empty()) return element;
    for (const Run& run : runs_) {
      if (element < run.count) return run.offset / sizeof(float) + element;
      element -= run.count;
    }
    ADD_FAILURE() << "no element " << element;
    return 0;
  }
  // Whether nothing was written between runs.
  bool GapsAreZero() const {
    return GapsAreZero(values_, places_) && GapsAreZero(residual_, residual_places_);
  }

 private:
  static bool GapsAreZero(const std::vector<float>& memory,
                          const std::vector<std::size_t>& places) {
    std::vector<bool> used(memory.size());
    for (const std::size_t place : places) used[place] = true;
    for (std::size_t i = 0; i < memory.size(); ++i) {
      if (!used[i] && memory[i] != 0) return false;
    }
    return true;
  }
  std::vector<Run> runs_;
  std::vector<float> values_;
  std::vector<float> residual_;
  std::vector<std::size_t> places_;
  std::vector<std::size_t> residual_places_;
};

class EncodedJob {
 public:
  EncodedJob(const EncodedCase& test, std::uint64_t network_seed, bool feedback = true,
             std::uint32_t epoch = 3)
      : test_(test),
        feedback_(feedback),
        codec_(test.codec),
        fleet_({.data_count = test.nodes,
                .servers_count = test.servers,
                .algorithm = test.algorithm,
                .network = {.seed = network_seed,
                            .jitter_ns = 100 * kMicrosecond,
                            .eager_size = network_seed % 2 == 0 ? std::size_t{0} : 1000},
                .epoch = epoch}),
        given_(test.count) {
    for (std::uint32_t node = 0; node < test.nodes; ++node) nodes_.emplace_back(test, node);
  }

  // What node 0's codec did in the last iteration.
  const CodecUse& use() const { return use_; }
  // Of what follows.
  void SetCodec(Codec codec) { codec_ = codec; }
  // Of what follows: sums travel in two transfers, of the elements before that one and the rest.
  void SetBorder(std::uint64_t element) { border_ = element; }
  void Spoil(std::uint64_t element, float value) { spoiled_ = {element, value}; }
  // Fills all memory, and sums it.
  void Iterate(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    sum_.assign(test_.count, 0);
    for (std::uint32_t node = 0; node < test_.nodes; ++node) {
      for (std::uint64_t i = 0; i < test_.count; ++i) {
        const float value = normal(random);
        nodes_[node].value(i) = value;
        sum_[i] += value;
        given_[i] += value;
      }
    }
    if (spoiled_) nodes_[0].value(spoiled_->first) = spoiled_->second;
    spoiled_.reset();
    if (border_ > 0) PostAll(0, border_);
    PostAll(border_, test_.count);
    fleet_.RunToTheEnd();
    use_ = fleet_.completions(0).empty() ? CodecUse() : fleet_.completions(0)[0].codec;
    for (std::uint32_t node = 0; node < test_.nodes; ++node) {
      ASSERT_EQ(fleet_.completions(node).size(), border_ > 0 ? 2U : 1U) << test_.Text();
      for (const Completion& completion : fleet_.completions(node)) {
        ASSERT_EQ(completion.code, Code::kOk) << completion.cause;
      }
      ASSERT_TRUE(nodes_[node].GapsAreZero()) << test_.Text();
    }
    fleet_.ClearCompletions();
  }

  std::vector<float> Result(std::uint32_t node) {
    std::vector<float> result(test_.count);
    for (std::uint64_t i = 0; i < test_.count; ++i) result[i] = nodes_[node].value(i);
    return result;
  }
  // Of all nodes, and of all servers.
  std::vector<float> Residuals(std::uint32_t node) {
    std::vector<float> residuals(test_.count);
    for (std::uint64_t i = 0; i < test_.count; ++i) residuals[i] = nodes_[node].residual(i);
    return residuals;
  }
  double SumOfResiduals(std::uint64_t element) {
    double sum = ResidualOfServers(element);
    for (NodeMemory& node : nodes_) sum += double{node.residual(element)};
    return sum;
  }
  double ResidualOfServers(std::uint64_t element) {
    double sum = 0;
    const std::uint64_t place = nodes_[0].PlaceOf(element);
    const Run run{.offset = place * sizeof(float), .count = 1};
    for (std::uint32_t server = test_.nodes; server < test_.nodes + test_.servers; ++server) {
      float residual = 0;
      fleet_.residuals(server).Load(1, {&run, 1}, &residual);
      sum += double{residual};
    }
    return sum;
  }
  void FillResiduals(float value) {
    for (NodeMemory& node : nodes_) {
      for (std::uint64_t i = 0; i < test_.count; ++i) node.residual(i) = value;
    }
  }
  double Sum(std::uint64_t element) const { return sum_[element]; }
  double Given(std::uint64_t element) const { return given_[element]; }
  Fleet& fleet() { return fleet_; }

 private:
  void PostAll(std::uint64_t begin, std::uint64_t end) {
    ++position_;
    for (std::uint32_t node = 0; node < test_.nodes; ++node) {
      Transfer transfer{.token = position_,
                        .kind = Collective::kAllReduce,
                        .dtype = DType::kFloat32,
                        .reduction = test_.reduction,
                        .count = end - begin,
                        .divisor = test_.divisor(),
                        .position = position_,
                        .members_count = test_.nodes,
                        .codec = codec_};
      const bool apart = test_.only_residual_has_runs;
      (apart ? transfer.residual_runs : transfer.runs) = nodes_[node].runs();
      (apart ? transfer.residual_skip : transfer.skip) = nodes_[node].runs().empty() ? 0 : begin;
      transfer.seed = position_;
      if (test_.servers > 0 && feedback_) transfer.place = nodes_[0].PlaceOf(begin) + 1;
      transfer.members[node] = nodes_[node].memory() + (apart ? begin * sizeof(float) : 0);
      if (feedback_) transfer.residual = nodes_[node].residual_memory();
      fleet_.Post(node, transfer);
    }
  }

  EncodedCase test_;
  bool feedback_;
  Codec codec_;
  CodecUse use_;
  std::uint64_t border_ = 0;
  std::optional<std::pair<std::uint64_t, float>> spoiled_;
  std::uint64_t position_ = 0;
  Fleet fleet_;
  std::vector<NodeMemory> nodes_;
  std::vector<double> sum_;
  std::vector<double> given_;
};

}  // namespace headrace::transport
