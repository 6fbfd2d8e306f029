// Simulates a draft on recorded iterations, each with its own times.
//
// A block is released when its last rank has released it, iteration by iteration. Lanes take what
// their cost lines say. While a block is under way computing goes at the rate 1 - contention, which
// delays later gradients and the forward pass; on one lane that is exact, on other routes it is
// found by repeating the timetable until the releases hold still, kSettlingMax times at most.
#pragma once

#include <vector>

#include "service/plan/draft.h"
#include "service/plan/recording.h"

namespace headrace::plan {

inline constexpr int kSettlingMax = 4;

struct Forecast {
  double mean_s = 0;
  double p90_s = 0;  // nine of ten iterations take at most that
};

// The whole iteration, from the begin of a backward pass to the next one's: of each recorded one.
std::vector<double> ForecastEach(const Workload& work, const Route& route,
                                 const Recording& recording, const Draft& draft);

Forecast ForecastOf(const Workload& work, const Route& route, const Recording& recording,
                    const Draft& draft);

}  // namespace headrace::plan
