// What a replay measured, for people and for programs. Pure.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client/cli/replay/run.h"

namespace headrace::replay {

using Json = nlohmann::ordered_json;

// How it was asked for.
struct Heading {
  std::string model;
  std::size_t tensors = 0;
  std::uint64_t bytes = 0;
  DType dtype = DType::kFloat32;
  std::uint32_t world_size = 0;
  double scale = 1;
  double jitter = 0;
};

// Seconds. An iteration lasts as long as on the slowest rank that was played here.
struct Summary {
  std::vector<double> iterations_s;
  double median_s = 0;
  double least_s = 0;
  double p90_s = 0;       // nine of ten are not longer
  double backward_s = 0;  // medians, as are the next two
  double forward_s = 0;   // without waits
  double waited_s = 0;
};

// `ranks` has at least one rank, and each rank the same number of iterations, at least one.
Summary Summarize(const std::vector<RankResult>& ranks);

// The plan's predictions and the lanes are those of the first rank's node.
std::string ReportText(const Heading& heading, const std::vector<RankResult>& ranks);
// `rank` is null where all ranks were played here.
Json ReportJson(const Heading& heading, const std::vector<RankResult>& ranks);

}  // namespace headrace::replay
