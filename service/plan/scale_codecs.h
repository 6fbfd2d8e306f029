// Lets policies, which assume one cost for all bytes, plan for codecs.
//
// The *scaled bytes* of a tensor in a codec are the unencoded bytes that would take as long. Blocks
// are made of those and then converted back; all predictions are of real bytes, by BlockSeconds.
#pragma once

#include <cstdint>

#include "service/plan/draft.h"
#include "service/plan/route.h"
#include "service/plan/workload.h"

namespace headrace::plan {

// In which bytes of in-node stages are counted, which all bytes cost alike: as most, or so that
// nothing costs more than it does.
enum class InNodeScale : std::uint8_t { kMean, kLeast };

struct ScaledProblem {
  Workload work;
  Route route;
};
ScaledProblem ScaleByCodecs(const Workload& work, const Route& route, InNodeScale in_node);
// The draft of a scaled problem in bytes of `work`.
Draft Unscaled(const Draft& draft, const Workload& scaled, const Workload& work);

}  // namespace headrace::plan
