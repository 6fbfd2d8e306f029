// Layouts, times and plans that the tests of planning share.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "service/cluster/planning.h"
#include "service/plan/planner.h"

namespace headrace::support {

// Tensors of so many elements one behind the other.
inline service::Layout LayoutOf(const std::vector<std::uint64_t>& counts) {
  service::Layout layout;
  std::uint64_t offset = 0;
  for (const std::uint64_t count : counts) {
    layout.tensors.push_back({.name = "layer" + std::to_string(layout.tensors.size()),
                              .offset = offset,
                              .count = count});
    offset = layout.tensors.back().End();
  }
  return layout;
}

inline std::shared_ptr<const service::Layout> Shared(service::Layout layout) {
  return std::make_shared<const service::Layout>(std::move(layout));
}

inline std::vector<std::uint64_t> Elements(std::size_t tensors) {
  return std::vector<std::uint64_t>(tensors, 1U << 18U);
}

// Each tensor takes `backward_s` and `forward_s`; a block on the lane between nodes costs `cost`.
inline service::NodeSeen SeenAt(std::uint64_t iteration, std::size_t tensors, double backward_s,
                                double forward_s, transport::CostLine cost) {
  service::NodeSeen seen;
  seen.times.iteration = iteration;
  for (std::size_t l = 0; l < tensors; ++l) {
    seen.times.release_s.push_back(backward_s * static_cast<double>(tensors - l));
    seen.times.forward_s.push_back(forward_s);
  }
  seen.times.iteration_s = 1;
  seen.costs = {{}, cost};
  return seen;
}

// What watch answers.
inline Result<std::shared_ptr<const plan::Plan>> Made(const service::MakePlan& request) {
  Result<plan::Plan> made = plan::MakePlan(request.policy, request.profile, request.route,
                                           request.version, {}, {}, request.codecs);
  if (!made) return made.error();
  return std::make_shared<const plan::Plan>(std::move(made).value());
}

}  // namespace headrace::support
