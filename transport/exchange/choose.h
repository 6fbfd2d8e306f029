// Chooses the algorithm of a transfer. Pure: all nodes make the same choice from what they agree
// on.
#pragma once

#include <cstdint>

#include "transport/exchange/collective_schedule.h"
#include "transport/exchange/collective_spec.h"
#include "transport/network.h"

namespace headrace::transport {

// Until SetCost: the startup and rate of TCP over a link of 1 Gbit/s.
inline constexpr CostLine kCostUnmeasured{.startup_s = 100e-6, .s_per_byte = 8.5e-9};

struct Choice {
  std::uint32_t data_count = 1;
  std::uint32_t servers_count = 0;
  Algorithm algorithm = Algorithm::kAuto;  // forces all_reduce, and by its nature broadcast
  CostLine cost = kCostUnmeasured;
};

Pattern ChoosePattern(const CollectiveSpec& spec, const Choice& choice);

// What a transfer of `bytes` should take with that pattern: each step costs the line's startup, the
// most that a node sends goes at the line's rate, and what one node has to sum at that of memory.
double PredictSeconds(Pattern pattern, double bytes, const Choice& choice);

}  // namespace headrace::transport
