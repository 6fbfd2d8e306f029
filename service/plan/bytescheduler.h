// ByteScheduler: equal partitions, the smallest tensor index first, preemptive at partition
// borders, a window of credits. Peng et al., "A Generic Communication Scheduler for Distributed DNN
// Training Acceleration", ACM SOSP 2019.
#pragma once

#include <cstdint>

#include "service/plan/draft.h"
#include "service/plan/policies.h"
#include "service/plan/route.h"
#include "service/plan/workload.h"

namespace headrace::plan {

// The smallest and the largest that a search tries.
struct PartitionBounds {
  std::uint64_t smallest = 0;
  std::uint64_t largest = 0;
};
PartitionBounds BoundsOf(const Workload& work);
// At least `bytes`, and at least one element.
std::uint64_t WholeElements(double bytes, std::uint64_t element_bytes);

struct ByteSchedulerTuning {
  std::uint64_t partition_bytes = 0;  // S_p; the last partition of a tensor may be smaller
  std::uint32_t credits = 1;          // partitions begun and not ended
};

// One schedule with given tuning: a credit is taken when a partition enters the route and returned
// when it has passed it.
Draft ByteScheduler(const Workload& work, const Route& route, const ByteSchedulerTuning& tuning);

// Finds partition size and credits by search: a geometric grid, then halved steps around the best.
// The original does this with Bayesian optimisation on the running job. What the
// settings have is kept.
ByteSchedulerTuning TuneByteScheduler(const Workload& work, const Route& route,
                                      const PolicySettings& settings = {});

}  // namespace headrace::plan
