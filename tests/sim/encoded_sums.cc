#include "tests/sim/encoded_sums.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace headrace::sim {
namespace {

std::vector<float> FloatsOf(const std::vector<std::byte>& bytes) {
  std::vector<float> floats(bytes.size() / sizeof(float));
  std::memcpy(floats.data(), bytes.data(), floats.size() * sizeof(float));
  return floats;
}

// Rounding of float32 sums in any order, as a share of the sum of absolute values.
constexpr double kRounding = 1e-6;

}  // namespace

std::optional<std::string> EncodedSums::Check(std::uint64_t iteration, const Planned& planned,
                                              const std::vector<std::vector<std::byte>>& inputs,
                                              const std::vector<std::byte>& result) {
  if (iteration != iteration_ + 1 || planned.dtype != DType::kFloat32) return std::nullopt;
  iteration_ = iteration;
  left_out_.resize(planned.count);
  for (const std::vector<std::byte>& input : inputs) {
    const std::vector<float> values = FloatsOf(input);
    for (std::size_t i = 0; i < planned.count; ++i) left_out_[i] += double{values.at(i)};
  }
  const bool is_nothing = std::ranges::all_of(left_out_, [](double each) { return each == 0; });
  const std::vector<float> sums = FloatsOf(result);
  const auto ranks = static_cast<double>(inputs.size());
  const double among = planned.contributors != 0 ? planned.contributors : ranks;
  const double divisor = planned.reduction == Reduction::kAverage ? among : 1;
  // All nodes' contributions err by their share of that together, and the sum of what those have
  // come to once more.
  const double encoded_max = ranks * planned.value_max + left_out_max_;
  const double bound = planned.error_bound;
  left_out_max_ = bound * (2 + bound) * encoded_max;
  const double most =
      left_out_max_ + kRounding * static_cast<double>(iteration) * (encoded_max + left_out_max_);
  for (std::size_t i = 0; i < planned.count; ++i) {
    left_out_[i] -= divisor * double{sums.at(i)};
    if (std::abs(left_out_[i]) <= most) continue;
    return fmt::format("element {} is {}: {} is left out of it, which may be {}", i, sums[i],
                       left_out_[i] / divisor, most / divisor);
  }
  const bool gives_nothing = std::ranges::all_of(sums, [](float each) { return each == 0; });
  if (gives_nothing && !is_nothing) return "an encoded sum is nothing, and should be something";
  return std::nullopt;
}

}  // namespace headrace::sim
