// The values of ranks' gradients, and their expected averages: small integers, whose averages are
// exact in every order of summation, so that a single wrong element is found.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ipc/base/collective.h"

namespace headrace::replay {

class Values {
 public:
  // Nothing where not every sum of so many ranks is exact in that element type.
  static std::optional<Values> For(DType dtype, std::uint32_t world_size);

  // Rank `rank`'s gradient of one iteration.
  void Fill(std::span<std::byte> gradient, std::size_t tensor, std::uint64_t iteration,
            std::uint32_t rank) const;

  // The first element that is not the average over the ranks' gradients of that iteration. Also
  // right after averages were averaged again, since they are equal on all ranks.
  std::optional<std::size_t> FindWrong(std::span<const std::byte> gradient, std::size_t tensor,
                                       std::uint64_t iteration) const;

 private:
  Values(DType dtype, std::uint32_t world_size, std::uint32_t period)
      : dtype_(dtype), world_size_(world_size), period_(period) {}

  // Elements that repeat through a gradient, each `more` above what all ranks have in common.
  std::vector<std::byte> Pattern(std::size_t tensor, std::uint64_t iteration, double more) const;

  DType dtype_;
  std::uint32_t world_size_;
  std::uint32_t period_;  // values 0 .. period - 1 in turn
};

}  // namespace headrace::replay
