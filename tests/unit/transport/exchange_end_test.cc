// An exchange ends while transfers are open whose memory their owner has unmapped.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/unit/transport/exchange_fleet.h"
#include "tests/unit/transport/guarded_memory.h"

namespace headrace::transport {
namespace {

constexpr std::uint32_t kNodes = 3;
constexpr std::uint64_t kWhole = 100'000;
constexpr std::uint64_t kHalf = kWhole / 2;

struct Ending {
  Collective kind = Collective::kAllReduce;
  Algorithm algorithm = Algorithm::kAuto;
  std::size_t eager_size = 0;
  std::span<const Run> runs{};
};

// The second run lies behind a hole, and many pieces reach over the border.
constexpr Run kRuns[] = {{.offset = 0, .count = 1000},
                         {.offset = 8192, .count = kHalf},
                         {.offset = 4 * (kHalf + 10'000), .count = kHalf - 1000}};

// Ends all nodes after `steps` steps; false when all transfers had ended by then.
bool EndAfter(const Ending& ending, int steps) {
  const std::size_t size = 4 * (kWhole + 20'000);
  std::vector<std::unique_ptr<GuardedMemory>> memory;
  Transfer transfer{.token = 1,
                    .kind = ending.kind,
                    .dtype = DType::kInt32,
                    .count = kWhole,
                    .position = 1,
                    .members_count = kNodes,
                    .runs = ending.runs};
  for (std::uint32_t node = 0; node < kNodes; ++node) {
    memory.push_back(std::make_unique<GuardedMemory>(size));
    transfer.members[node] = memory.back()->data();
  }
  transfer.output = transfer.members[0];
  Fleet fleet({.data_count = kNodes,
               .algorithm = ending.algorithm,
               .exchange = {.piece_size = 16384, .staging_size = std::size_t{1} << 20},
               .network = {.eager_size = ending.eager_size}});
  fleet.PostEverywhere(transfer);
  for (int i = 0; i < steps; ++i) fleet.Step();
  std::size_t ended = 0;
  for (std::uint32_t node = 0; node < kNodes; ++node) ended += fleet.completions(node).size();
  for (const auto& each : memory) each->Protect();
  for (std::uint32_t node = 0; node < kNodes; ++node) fleet.Destroy(node);
  fleet.network().AdvanceTo(kSecond);
  EXPECT_EQ(fleet.network().open_count(), 0U);
  EXPECT_EQ(fleet.network().staging_count(), 0U);
  return ended < kNodes;
}

void EndAtEveryStep(const Ending& ending) {
  int steps = 0;
  while (EndAfter(ending, steps)) ++steps;
  EXPECT_GT(steps, 20);
}

TEST(ExchangeEnd, TouchesNoMemoryOfAllReduces) {
  for (const Algorithm algorithm : {Algorithm::kDirectExchange, Algorithm::kRecursiveDoubling,
                                    Algorithm::kDirectScatter, Algorithm::kRing}) {
    EndAtEveryStep({.algorithm = algorithm});
    EndAtEveryStep({.algorithm = algorithm, .eager_size = std::size_t{1} << 20});
  }
}

TEST(ExchangeEnd, TouchesNoMemoryOfReducesAndBroadcasts) {
  EndAtEveryStep({.kind = Collective::kReduce});
  EndAtEveryStep({.kind = Collective::kBroadcast});
}

TEST(ExchangeEnd, TouchesNoRuns) {
  EndAtEveryStep({.runs = kRuns});
  EndAtEveryStep({.kind = Collective::kReduce, .runs = kRuns});
  EndAtEveryStep({.kind = Collective::kBroadcast, .runs = kRuns});
}

}  // namespace
}  // namespace headrace::transport
