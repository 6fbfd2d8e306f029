// What the planner's tests share: random instances and slow, obvious references.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "service/plan/planner.h"
#include "service/plan/random.h"
#include "service/plan/workload.h"
#include "tests/support/below.h"

namespace headrace::plan {

// Two ways to compute one time may differ by rounding.
inline constexpr double kRounding = 1e-11;

// A profile of given elements, backward and forward times; tensors are named t0, t1, ...
struct Row {
  std::uint64_t elements;
  double backward_s;
  double forward_s;
};
Profile ProfileOf(const std::vector<Row>& rows, DType dtype = DType::kFloat32);
inline const Profile kTwo = ProfileOf({{2, 4, 1}, {5, 4, 1}}, DType::kUInt8);

// 1 to tensors_max tensors of 1 to elements_max elements, sizes and times over several magnitudes,
// some times zero.
Profile RandomProfile(Random& random, std::size_t tensors_max, std::uint64_t elements_max,
                      DType dtype = DType::kFloat32);
// A profile of `tensors` tensors shaped like a convolutional network: few large, many small.
Profile NetworkProfile(std::size_t tensors, std::uint64_t seed);
// Startup and slope such that communication takes about 0.05 to 20 times the computation.
CostPiece RandomLine(Random& random, const Profile& profile);
// Every kind of route, with random lines: bent, split over rails, in a pipeline, on servers.
Route RandomRoute(Random& random, const Profile& profile);

// A 604-tensor profile for speed and growth: the size of a large convolutional network.
inline constexpr std::size_t kLargeTensors = 604;

}  // namespace headrace::plan
