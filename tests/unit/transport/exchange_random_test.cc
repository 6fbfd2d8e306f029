// Hundreds of seeded runs: nodes, sizes, delays and faults as the dice say.
#include <gtest/gtest.h>

#include <optional>
#include <random>

#include "tests/unit/transport/exchange_fleet.h"

namespace headrace::transport {
namespace {

constexpr std::uint32_t kTransfers = 12;

class Trial {
 public:
  explicit Trial(std::uint64_t seed) : dice_(seed), fleet_(Options(seed)) {
    fleet_.OpenGroup(2);
    for (std::uint32_t node = 0; node < fleet_.nodes_count(); ++node) {
      for (const std::uint32_t group : {1U, 2U}) {
        fleet_.node(node).SetShare(group, {.weight = static_cast<std::uint32_t>(1 + Roll(4)),
                                           .priority = static_cast<std::uint32_t>(Roll(2))});
      }
    }
    constexpr Collective kKinds[] = {Collective::kAllReduce, Collective::kAllReduce,
                                     Collective::kReduce, Collective::kBroadcast,
                                     Collective::kBarrier};
    constexpr DType kIntegers[] = {DType::kInt32, DType::kUInt8, DType::kInt64};
    constexpr Reduction kExact[] = {Reduction::kSum, Reduction::kMax, Reduction::kProduct};
    for (std::uint32_t i = 0; i < kTransfers; ++i) {
      const std::uint64_t count = Roll(3) == 0 ? Roll(60000) : Roll(500);
      work_.emplace_back(kKinds[Roll(5)], kIntegers[Roll(3)], kExact[Roll(3)], count, data_count_,
                         3 * i + Roll(3));
      work_.back().transfer().group = static_cast<std::uint32_t>(1 + Roll(2));
      expected_.push_back(work_.back().Expected());
    }
    at_end_.resize(data_count_, std::vector<std::optional<std::vector<std::byte>>>(kTransfers));
  }

  // Every node posts in the same order, each at its own times.
  void Go(std::optional<std::uint64_t> fault_step) {
    std::vector<std::uint32_t> posted(data_count_);
    bool more = true;
    for (std::uint64_t step = 0; more; ++step) {
      if (step == fault_step) Fault();
      more = false;
      for (std::uint32_t node = 0; node < data_count_; ++node) {
        if (node == gone_ || posted[node] == kTransfers) continue;
        more = true;
        if (Roll(8) == 0) fleet_.Post(node, work_[posted[node]++].transfer());
      }
      more = fleet_.Step() || more;
      TakeEnded();
    }
  }

  void CloseAll() {
    for (std::uint32_t node = 0; node < fleet_.nodes_count(); ++node) {
      if (node == gone_) continue;
      fleet_.node(node).CloseGroup(1, "the test is over");
      fleet_.node(node).CloseGroup(2, "the test is over");
    }
    while (fleet_.Step()) TakeEnded();
    TakeEnded();
  }

  // Each transfer has ended once on each node; what was written well is right, and nothing was
  // written later. `all_well`: none failed.
  void Check(bool all_well) {
    for (std::uint32_t node = 0; node < data_count_; ++node) {
      if (node == gone_) continue;
      ASSERT_EQ(fleet_.completions(node).size(), kTransfers) << "node " << node;
      for (const Completion& completion : fleet_.completions(node)) {
        const std::size_t i = IndexOf(completion.token);
        ASSERT_TRUE(at_end_[node][i]);
        ASSERT_EQ(*at_end_[node][i], work_[i].members().Content(node));
        if (all_well) {
          ASSERT_EQ(completion.code, Code::kOk) << completion.cause;
        }
        if (completion.code == Code::kOk) {
          ASSERT_EQ(*at_end_[node][i], expected_[i][node]) << "node " << node << " transfer " << i;
        } else {
          ASSERT_FALSE(completion.cause.empty());
        }
      }
    }
    for (auto& work : work_) ASSERT_TRUE(work.members().GuardsAreWhole());
  }

  Fleet& fleet() { return fleet_; }
  bool a_node_is_gone() const { return gone_ != UINT32_MAX; }

 private:
  std::uint64_t Roll(std::uint64_t sides) { return dice_() % sides; }

  FleetOptions Options(std::uint64_t seed) {
    data_count_ = static_cast<std::uint32_t>(2 + Roll(5));
    const auto servers_count = static_cast<std::uint32_t>(Roll(2) == 0 ? 0 : Roll(4));
    constexpr TimeNs kJitters[] = {0, 5 * kMicrosecond, 200 * kMicrosecond, 5 * kMillisecond};
    constexpr std::size_t kEager[] = {0, 500, 1 << 20};
    constexpr std::size_t kPeerBytes[] = {1, 6000, 1 << 20};
    return {.data_count = data_count_,
            .servers_count = servers_count,
            .algorithm = static_cast<Algorithm>(Roll(5)),
            .exchange = {.piece_size = 4096,
                         .staging_size = std::size_t{32} << 20,
                         .peer_bytes_max = kPeerBytes[Roll(3)]},
            .network = {.seed = seed,
                        .jitter_ns = kJitters[Roll(4)],
                        .ns_per_byte = Roll(2) == 0 ? 0 : 1.0,
                        .eager_size = kEager[Roll(3)],
                        .duplicate_share = Roll(3) == 0 ? 0.2 : 0,
                        .closes_are_told = Roll(2) == 0}};
  }

  void Fault() {
    const auto one = static_cast<std::uint32_t>(Roll(data_count_));
    const auto other = (one + 1) % data_count_;
    const Silence silence = Roll(2) == 0 ? Silence::kTold : Silence::kSilent;
    switch (Roll(4)) {
      case 0:
        fleet_.network().Cut(Fleet::NameOf(one), Fleet::NameOf(other), silence);
        break;
      case 1:
        fleet_.network().CutOneWay(Fleet::NameOf(one), Fleet::NameOf(other), silence);
        break;
      case 2:
        fleet_.network().Vanish(Fleet::NameOf(one), silence);
        fleet_.Forget(one);
        gone_ = one;
        break;
      default:
        fleet_.node(one).Cancel(work_[Roll(kTransfers)].transfer().token);
    }
  }

  std::size_t IndexOf(std::uint64_t token) {
    for (std::size_t i = 0; i < work_.size(); ++i) {
      if (work_[i].transfer().token == token) return i;
    }
    ADD_FAILURE() << "a completion of nothing: " << token;
    return 0;
  }

  void TakeEnded() {
    for (std::uint32_t node = 0; node < data_count_; ++node) {
      for (const Completion& completion : fleet_.completions(node)) {
        const std::size_t i = IndexOf(completion.token);
        if (!at_end_[node][i]) at_end_[node][i] = work_[i].members().Content(node);
      }
    }
  }

  std::mt19937_64 dice_;
  std::uint32_t data_count_ = 0;
  std::uint32_t gone_ = UINT32_MAX;
  Fleet fleet_;
  std::vector<FleetTransfer> work_;
  std::vector<std::vector<std::vector<std::byte>>> expected_;
  std::vector<std::vector<std::optional<std::vector<std::byte>>>> at_end_;
};

TEST(ExchangeAtRandom, EndsAllTransfersRightWithoutFaults) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    Trial run(seed);
    run.Go(std::nullopt);
    ASSERT_NO_FATAL_FAILURE(run.Check(true)) << "seed " << seed;
    ASSERT_EQ(run.fleet().network().open_count(), 0U) << "seed " << seed;
  }
}

TEST(ExchangeAtRandom, EndsEachTransferOnceWithFaults) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    Trial run(seed);
    run.Go(seed * 7 % 1500);
    run.CloseAll();
    ASSERT_NO_FATAL_FAILURE(run.Check(false)) << "seed " << seed;
    if (run.a_node_is_gone()) continue;
    ASSERT_EQ(run.fleet().network().open_count(), 0U) << "seed " << seed;
    ASSERT_EQ(run.fleet().network().staging_count(), 0U) << "seed " << seed;
  }
}

TEST(ExchangeAtRandom, IsTheSameRunForTheSameSeed) {
  for (const std::uint64_t seed : {3U, 4U}) {
    Trial first(seed);
    first.Go(100);
    Trial second(seed);
    second.Go(100);
    EXPECT_EQ(first.fleet().network().now(), second.fleet().network().now());
    EXPECT_EQ(first.fleet().network().announced_count(),
              second.fleet().network().announced_count());
  }
}

}  // namespace
}  // namespace headrace::transport
