// Does a job on a node get what is its share, whatever its neighbours do?
//
// The unchanged data path on one node, with a lane that takes as long as it takes. One job posts
// and waits, with some operations of random sizes under way; how far it comes in a second of
// made-up time is compared between runs that differ only in its neighbours.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <vector>

#include "tests/sim/dice.h"
#include "tests/support/hand_driven_node.h"

namespace headrace::sim {
namespace {

using support::ClientEnd;
using support::HandDrivenNode;
using support::JobSpec;

constexpr std::size_t kMega = std::size_t{1} << 20;
constexpr TimeNs kStep = 400 * kMicrosecond;

// A job of two ranks that keeps up to `open_max` operations open, of up to `bytes_max`.
struct Neighbour {
  Neighbour(HandDrivenNode& node, std::uint32_t number, std::size_t bytes_max,
            std::uint64_t open_max, std::uint64_t seed)
      : spec{.id = JobId{number}, .name = "job" + std::to_string(number), .world_size = 2},
        bytes_max_(bytes_max),
        open_max_(open_max),
        dice_(seed) {
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      // A place for each that is open; only what moves takes pages.
      ranks[rank] = &node.Attach(spec, rank, bytes_max * open_max);
    }
  }

  void Act() {
    while (ended < ranks[0]->posted() && ranks[0]->HasEnded(ended + 1)) {
      EXPECT_EQ(ranks[0]->Read(ended + 1).code, Code::kOk);
      bytes += sizes_[ended++];
    }
    while (ranks[0]->posted() < ended + open_max_) {
      const std::uint64_t count = dice_.Between(1, bytes_max_ / 4);
      const ipc::Record record = support::OnSegment(Collective::kAllReduce, DType::kFloat32, count,
                                                    ranks[0]->posted() % open_max_ * bytes_max_);
      ranks[0]->Post(record);
      if (!hangs) ranks[1]->Post(record);
      sizes_.push_back(count * 4);
    }
  }

  JobSpec spec;
  std::array<ClientEnd*, 2> ranks{};
  bool hangs = false;  // its second rank never posts
  std::uint64_t ended = 0;
  std::uint64_t bytes = 0;

 private:
  std::size_t bytes_max_;
  std::uint64_t open_max_;
  Dice dice_;
  std::vector<std::uint64_t> sizes_;
};

enum class NeighbourKind { kNone, kEqual, kHangs, kFloodsWithLarge, kFloodsWithSmall };

// The bytes of the one that is looked at, in a second.
double Progress(std::uint64_t seed, NeighbourKind kind, double* of_neighbour = nullptr) {
  HandDrivenNode node(support::Loopback({.piece_size = kMega, .ns_per_byte = 4}), 8 * kMega);
  Neighbour subject(node, 1, kMega, 16, seed);
  std::vector<Neighbour> others;
  const auto add = [&](std::size_t bytes_max, std::uint64_t open_max) -> Neighbour& {
    return others.emplace_back(node, static_cast<std::uint32_t>(others.size() + 2), bytes_max,
                               open_max, seed + 100);
  };
  others.reserve(1);
  if (kind == NeighbourKind::kEqual) add(kMega, 16);
  if (kind == NeighbourKind::kHangs) add(kMega, 1000).hangs = true;
  if (kind == NeighbourKind::kFloodsWithLarge) add(16 * kMega, 200);
  if (kind == NeighbourKind::kFloodsWithSmall) add(64 << 10, 1000);
  for (const TimeNs end = node.now + kSecond / 4; node.now < end;) {
    subject.Act();
    for (Neighbour& other : others) other.Act();
    node.Advance(kStep);
  }
  if (of_neighbour != nullptr) *of_neighbour = static_cast<double>(others.front().bytes);
  return static_cast<double>(subject.bytes);
}

class Neighbours : public testing::TestWithParam<std::uint64_t> {};

TEST_P(Neighbours, AHangingJobCostsTheOthersNothing) {
  const double alone = Progress(GetParam(), NeighbourKind::kNone);
  EXPECT_GE(Progress(GetParam(), NeighbourKind::kHangs), 0.95 * alone);
}

TEST_P(Neighbours, TwoEqualJobsGetEqualBytes) {
  double other = 0;
  const double subject = Progress(GetParam(), NeighbourKind::kEqual, &other);
  EXPECT_NEAR(subject / other, 1, 0.05);
  EXPECT_NEAR((subject + other) / Progress(GetParam(), NeighbourKind::kNone), 1, 0.05)
      << "together they have what one has alone";
}

TEST_P(Neighbours, AFloodTakesNoMoreThanItsHalf) {
  const double half = Progress(GetParam(), NeighbourKind::kNone) / 2;
  EXPECT_GE(Progress(GetParam(), NeighbourKind::kFloodsWithLarge), 0.95 * half);
  EXPECT_GE(Progress(GetParam(), NeighbourKind::kFloodsWithSmall), 0.95 * half);
}

INSTANTIATE_TEST_SUITE_P(Seeds, Neighbours, testing::Range<std::uint64_t>(1, 5));

}  // namespace
}  // namespace headrace::sim
