#include "transport/exchange/choose.h"

#include <array>
#include <span>

#include "ipc/base/collective_work.h"

namespace headrace::transport {
namespace {

// The cheapest; of equals the first.
Pattern Cheapest(std::span<const Pattern> patterns, double bytes, const Choice& choice) {
  Pattern best = patterns.front();
  for (const Pattern pattern : patterns.subspan(1)) {
    if (PredictSeconds(pattern, bytes, choice) < PredictSeconds(best, bytes, choice)) {
      best = pattern;
    }
  }
  return best;
}

Pattern ChooseAllReduce(double bytes, const Choice& choice) {
  switch (choice.algorithm) {
    case Algorithm::kDirectExchange:
      return Pattern::kExchange;
    case Algorithm::kRecursiveDoubling:
      return Pattern::kDoubling;
    case Algorithm::kDirectScatter:
      return Pattern::kScatter;
    case Algorithm::kRing:
      return Pattern::kRing;
    case Algorithm::kAuto:
      break;
  }
  constexpr std::array kAll{Pattern::kExchange, Pattern::kDoubling, Pattern::kScatter,
                            Pattern::kRing};
  return Cheapest(kAll, bytes, choice);
}

// Each contribution is encoded once, and a sum at most once more: never at each step of a ring. Two
// nodes send as many bytes either way, and sums that they exchange are encoded only once.
Pattern ChooseEncoded(double bytes, const Choice& choice) {
  constexpr std::array kAll{Pattern::kExchange, Pattern::kScatter};
  if (choice.algorithm == Algorithm::kDirectExchange) return Pattern::kExchange;
  if (choice.algorithm == Algorithm::kDirectScatter) return Pattern::kScatter;
  if (choice.data_count == 2) return Pattern::kExchange;
  return Cheapest(kAll, bytes, choice);
}

Pattern ChooseBroadcast(double bytes, const Choice& choice) {
  if (choice.data_count <= 2) return Pattern::kFromRoot;  // there is no third to forward to
  switch (choice.algorithm) {
    case Algorithm::kDirectExchange:
      return Pattern::kFromRoot;
    case Algorithm::kDirectScatter:
    case Algorithm::kRing:
      return Pattern::kFromRootByOwners;
    case Algorithm::kRecursiveDoubling:
    case Algorithm::kAuto:
      break;
  }
  constexpr std::array kAll{Pattern::kFromRoot, Pattern::kFromRootByOwners};
  return Cheapest(kAll, bytes, choice);
}

}  // namespace

Pattern ChoosePattern(const CollectiveSpec& spec, const Choice& choice) {
  // Encoded ones, where a transfer has a codec that loses.
  const auto bytes = static_cast<double>(spec.Bytes());
  switch (spec.kind) {
    case Collective::kAllReduce:
      if (choice.servers_count > 0) return Pattern::kServed;
      return Loses(spec.codec) ? ChooseEncoded(bytes, choice) : ChooseAllReduce(bytes, choice);
    case Collective::kReduce:
      return choice.servers_count > 0 ? Pattern::kServed : Pattern::kToRoot;
    case Collective::kBroadcast:
      return ChooseBroadcast(bytes, choice);
    case Collective::kReduceScatter:
    case Collective::kAllGather:
      return Pattern::kScatter;
    case Collective::kBarrier:
      break;
  }
  return Pattern::kBarrier;
}

double PredictSeconds(Pattern pattern, double bytes, const Choice& choice) {
  const auto line = [&choice, bytes](const CollectiveWork& work) {
    return work.steps * choice.cost.startup_s + choice.cost.s_per_byte * (work.sent * bytes) +
           kSumSecondsPerByte * (work.summed * bytes);
  };
  const auto by = [&line, &choice](Collective kind, WireAlgorithm algorithm) {
    return line(WorkOf(kind, algorithm, choice.data_count).value());
  };
  switch (pattern) {
    case Pattern::kExchange:
      return by(Collective::kAllReduce, WireAlgorithm::kDirect);
    case Pattern::kDoubling:
      return by(Collective::kAllReduce, WireAlgorithm::kDoubling);
    case Pattern::kScatter:
      return by(Collective::kAllReduce, WireAlgorithm::kByOwners);
    case Pattern::kRing:
      return by(Collective::kAllReduce, WireAlgorithm::kRing);
    case Pattern::kServed: {
      // A link of a data node carries all once in each direction; a server's, its share of all.
      const double share = static_cast<double>(choice.data_count) / choice.servers_count;
      return line({2, share > 1 ? share : 1, share});
    }
    case Pattern::kToRoot:
      return by(Collective::kReduce, WireAlgorithm::kDirect);
    case Pattern::kFromRoot:
      return by(Collective::kBroadcast, WireAlgorithm::kDirect);
    case Pattern::kFromRootByOwners:
      return by(Collective::kBroadcast, WireAlgorithm::kByOwners);
    case Pattern::kBarrier:
      return by(Collective::kBarrier, WireAlgorithm::kDirect);
  }
  return 0;
}

}  // namespace headrace::transport
