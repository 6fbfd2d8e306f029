// What the programs here print: one line a figure, which run reads; or why there is none.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

namespace headrace::gpu {

// Exit status for "not run", with the reason on stdout.
inline constexpr int kSkipped = 77;

inline double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  return values[values.size() / 2];
}

inline void PrintFigure(const std::string& what, double value, const std::string& unit,
                        const std::string& goal) {
  fmt::print("figure\t{}\t{:.6g}\t{}\t{}\n", what, value, unit, goal);
  std::fflush(stdout);
}

inline int Skip(const std::string& reason) {
  fmt::print("skipped\t{}\n", reason);
  return kSkipped;
}

}  // namespace headrace::gpu
