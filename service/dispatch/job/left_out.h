// Which of a job's gradients may have residuals that no later iteration has added. If such a
// gradient crosses unencoded again, the residual is added in the first such iteration, and not long
// after, when it is encoded again. Plain data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace headrace::service {

class LeftOut {
 public:
  // For so many gradients. `kept`: memory that has what was left out before this service knew the
  // job.
  void Reset(std::size_t gradients_count, bool kept);

  // A block that holds something of these gradients is encoded in that iteration. Iterations of a
  // gradient never go back.
  void OnEncoded(std::span<const std::uint32_t> gradients, std::uint64_t iteration);
  // Such a block crosses as it is: whether its sums get back what was left out. Says the same of
  // each block and each part of the iteration.
  bool OnExact(std::span<const std::uint32_t> gradients, std::uint64_t iteration);

 private:
  struct Gradient {
    std::uint64_t encoded_in = 0;  // the last iteration
    // The last one that got back what was left out before; at or before `encoded_in`: some may be
    // left. The largest number: nothing was ever left out.
    std::uint64_t returned_in = UINT64_MAX;
  };

  std::vector<Gradient> gradients_;
};

}  // namespace headrace::service
