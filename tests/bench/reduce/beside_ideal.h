// Measures a thing and its ideal by turns, so that whatever else the machine does falls on both.
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ipc/base/clock.h"

namespace headrace::transport {

inline double Quantile(std::vector<TimeNs>& times, double share) {
  const auto index = static_cast<std::ptrdiff_t>(share * static_cast<double>(times.size() - 1));
  std::nth_element(times.begin(), times.begin() + index, times.end());
  return static_cast<double>(times[static_cast<std::size_t>(index)]);
}

// Reports, in microseconds, the fastest and the median of both, and the ratios of these. `bytes` is
// what one run reads and writes.
template <typename Measured, typename Ideal>
void RunBesideIdeal(benchmark::State& state, std::size_t bytes, Measured measured, Ideal ideal) {
  std::vector<TimeNs> times;
  std::vector<TimeNs> ideal_times;
  for (auto _ : state) {
    const TimeNs begin = MonotonicNow();
    measured();
    benchmark::ClobberMemory();
    const TimeNs middle = MonotonicNow();
    ideal();
    benchmark::ClobberMemory();
    times.push_back(middle - begin);
    ideal_times.push_back(MonotonicNow() - middle);
    state.SetIterationTime(static_cast<double>(middle - begin) * 1e-9);
  }
  const double best = Quantile(times, 0);
  const double best_ideal = Quantile(ideal_times, 0);
  const double median = Quantile(times, 0.5);
  const double median_ideal = Quantile(ideal_times, 0.5);
  state.counters["best_us"] = best / 1e3;
  state.counters["best_ideal_us"] = best_ideal / 1e3;
  state.counters["p50_us"] = median / 1e3;
  state.counters["p50_ideal_us"] = median_ideal / 1e3;
  state.counters["best_ratio"] = best / best_ideal;
  state.counters["p50_ratio"] = median / median_ideal;
  state.counters["best_GB_per_s"] = static_cast<double>(bytes) / best;
}

}  // namespace headrace::transport
