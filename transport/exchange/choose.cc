#include "transport/exchange/choose.h"

#include <array>
#include <bit>
#include <span>

namespace headrace::transport {
namespace {

// Seconds a byte of an input that is received and summed; a core of a server does 5 to 10 GB/s.
constexpr double kSumSecondsPerByte = 0.15e-9;

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
  const double n = choice.data_count;
  const double startup = choice.cost.startup_s;
  const auto line = [&choice](double steps, double sent, double summed) {
    return steps * choice.cost.startup_s + choice.cost.s_per_byte * sent +
           kSumSecondsPerByte * summed;
  };
  switch (pattern) {
    case Pattern::kExchange:
      return line(1, (n - 1) * bytes, (n - 1) * bytes);
    case Pattern::kDoubling: {
      const std::uint32_t leaders = std::bit_floor(choice.data_count);
      const double steps = std::countr_zero(leaders) + (leaders == choice.data_count ? 0 : 2);
      return line(steps, steps * bytes, steps * bytes);
    }
    case Pattern::kScatter:
      return line(2, 2 * (n - 1) / n * bytes, (n - 1) / n * bytes);
    case Pattern::kRing:
      return line(2 * (n - 1), 2 * (n - 1) / n * bytes, (n - 1) / n * bytes);
    case Pattern::kServed: {
      // A link of a data node carries all once in each direction; a server's, its share of all.
      const double share = n / choice.servers_count;
      return line(2, (share > 1 ? share : 1) * bytes, share * bytes);
    }
    case Pattern::kToRoot:
      return line(1, (n - 1) * bytes, (n - 1) * bytes);  // all come in through the root's link
    case Pattern::kFromRoot:
      return line(1, (n - 1) * bytes, 0);
    case Pattern::kFromRootByOwners:
      return line(2, bytes, 0);
    case Pattern::kBarrier:
      return startup * std::bit_width(choice.data_count - 1);
  }
  return 0;
}

}  // namespace headrace::transport
