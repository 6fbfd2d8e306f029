#include "ipc/base/collective_work.h"

#include <bit>

namespace headrace {
namespace {

// What those do who are more than a power of two, and with how many the others go on.
struct Folded {
  explicit Folded(std::uint32_t count)
      : power(std::bit_floor(count)),
        steps(std::bit_width(count) - 1.0),
        folds(std::has_single_bit(count) ? 0 : 2) {}

  double power;
  double steps;
  double folds;
};

std::optional<CollectiveWork> AllReduce(WireAlgorithm algorithm, std::uint32_t count) {
  const double n = count;
  const Folded folded(count);
  switch (algorithm) {
    case WireAlgorithm::kDirect:
      return CollectiveWork{1, n - 1, n - 1};
    case WireAlgorithm::kByOwners:
      return CollectiveWork{2, 2 * (n - 1) / n, (n - 1) / n};
    case WireAlgorithm::kRing:
      return CollectiveWork{2 * (n - 1), 2 * (n - 1) / n, (n - 1) / n};
    case WireAlgorithm::kDoubling: {
      const double steps = folded.steps + folded.folds;
      return CollectiveWork{steps, steps, steps};
    }
    case WireAlgorithm::kHalvingDoubling:
      break;
  }
  const double power = folded.power;
  const double folds = folded.folds;
  return CollectiveWork{2 * folded.steps + folds, 2 * (power - 1) / power + folds,
                        (power - 1) / power + folds / 2};
}

// A reduce-scatter; an all-gather is the same backwards, and sums nothing.
std::optional<CollectiveWork> Half(WireAlgorithm algorithm, std::uint32_t count, bool reduces) {
  const double n = count;
  CollectiveWork work{1, (n - 1) / n, (n - 1) / n};
  if (algorithm == WireAlgorithm::kRing) {
    work.steps = n - 1;
  } else if (algorithm == WireAlgorithm::kHalvingDoubling) {
    const Folded folded(count);
    const bool folds = folded.folds > 0;
    work.steps = folded.steps + folded.folds;
    work.sent = (folded.power - 1) / folded.power + (folds ? 1 + 1 / n : 0);
    work.summed = (folded.power - 1) / folded.power + (folds ? 1 : 0);
  } else if (algorithm != WireAlgorithm::kDirect) {
    return std::nullopt;
  }
  if (!reduces) work.summed = 0;
  return work;
}

// All come in through the root's link, or leave by it. By another algorithm a reduce is a
// reduce-scatter whose parts the root gathers, and a broadcast a scatter and an all-gather.
std::optional<CollectiveWork> WithRoot(WireAlgorithm algorithm, std::uint32_t count, bool reduces) {
  const double n = count;
  if (algorithm == WireAlgorithm::kDirect) {
    return CollectiveWork{1, n - 1, reduces ? n - 1 : 0};
  }
  if (algorithm == WireAlgorithm::kByOwners) {
    if (!reduces) return CollectiveWork{2, 1, 0};
    return CollectiveWork{2, 2 * (n - 1) / n, (n - 1) / n};
  }
  auto work = Half(algorithm, count, reduces);
  if (!work) return std::nullopt;
  work->steps += algorithm == WireAlgorithm::kRing ? 1 : Folded(count).steps;
  work->sent += (n - 1) / n;
  return work;
}

// A gather or scatter: what passes the root's link is the same whatever the algorithm.
std::optional<CollectiveWork> OfParts(WireAlgorithm algorithm, std::uint32_t count) {
  const double n = count;
  switch (algorithm) {
    case WireAlgorithm::kDirect:
      return CollectiveWork{1, n - 1, 0};
    case WireAlgorithm::kRing:
      return CollectiveWork{n - 1, n - 1, 0};
    case WireAlgorithm::kHalvingDoubling:
      return CollectiveWork{static_cast<double>(std::bit_width(count - 1)), n - 1, 0};
    case WireAlgorithm::kByOwners:
    case WireAlgorithm::kDoubling:
      break;
  }
  return std::nullopt;
}

std::optional<CollectiveWork> AllToAll(WireAlgorithm algorithm, std::uint32_t count) {
  const double n = count;
  switch (algorithm) {
    case WireAlgorithm::kDirect:
      return CollectiveWork{1, (n - 1) / n, 0};
    case WireAlgorithm::kRing:  // a partner a step, one after another
      return CollectiveWork{n - 1, (n - 1) / n, 0};
    case WireAlgorithm::kHalvingDoubling: {
      // In each step the parts whose distance has that bit go on.
      CollectiveWork work;
      for (std::uint32_t bit = 1; bit < count; bit *= 2) {
        std::uint32_t parts = 0;
        for (std::uint32_t distance = 0; distance < count; ++distance) {
          if ((distance & bit) != 0) ++parts;
        }
        work.steps += 1;
        work.sent += parts / n;
      }
      return work;
    }
    case WireAlgorithm::kByOwners:
    case WireAlgorithm::kDoubling:
      break;
  }
  return std::nullopt;
}

}  // namespace

std::string_view Name(WireAlgorithm algorithm) {
  switch (algorithm) {
    case WireAlgorithm::kDirect:
      return "direct";
    case WireAlgorithm::kByOwners:
      return "by-owners";
    case WireAlgorithm::kRing:
      return "ring";
    case WireAlgorithm::kDoubling:
      return "doubling";
    case WireAlgorithm::kHalvingDoubling:
      return "halving-doubling";
  }
  return "unknown";
}

std::optional<CollectiveWork> WorkOf(Collective kind, WireAlgorithm algorithm,
                                     std::uint32_t members_count) {
  if (members_count <= 1) return CollectiveWork{};
  switch (kind) {
    case Collective::kAllReduce:
      return AllReduce(algorithm, members_count);
    case Collective::kReduceScatter:
    case Collective::kAllGather:
      return Half(algorithm, members_count, Reduces(kind));
    case Collective::kReduce:
    case Collective::kBroadcast:
      return WithRoot(algorithm, members_count, Reduces(kind));
    case Collective::kBarrier:
      return CollectiveWork{static_cast<double>(std::bit_width(members_count - 1)), 0, 0};
  }
  if (kind == kAllToAll) return AllToAll(algorithm, members_count);
  if (kind == kGather || kind == kScatter) return OfParts(algorithm, members_count);
  if (algorithm != WireAlgorithm::kDirect) return std::nullopt;
  return CollectiveWork{1, 1, 0};  // a send
}

bool IsCarriedOut(Collective kind, WireAlgorithm algorithm) {
  switch (algorithm) {
    case WireAlgorithm::kDirect:
      return true;
    case WireAlgorithm::kByOwners:
      return kind == Collective::kAllReduce || kind == Collective::kBroadcast;
    case WireAlgorithm::kRing:
    case WireAlgorithm::kDoubling:
      return kind == Collective::kAllReduce;
    case WireAlgorithm::kHalvingDoubling:
      break;
  }
  return false;
}

}  // namespace headrace
