#include "service/dispatch/job/left_out.h"

#include <algorithm>

namespace headrace::service {

void LeftOut::Reset(std::size_t gradients_count, bool kept) {
  gradients_.assign(gradients_count, {.returned_in = kept ? 0 : UINT64_MAX});
}

void LeftOut::OnEncoded(std::span<const std::uint32_t> gradients, std::uint64_t iteration) {
  for (const std::uint32_t number : gradients) {
    Gradient& gradient = gradients_.at(number);
    gradient.encoded_in = iteration;
    gradient.returned_in = std::min(gradient.returned_in, iteration);
  }
}

bool LeftOut::OnExact(std::span<const std::uint32_t> gradients, std::uint64_t iteration) {
  bool returns = false;
  for (const std::uint32_t number : gradients) {
    Gradient& gradient = gradients_.at(number);
    if (gradient.returned_in <= gradient.encoded_in) gradient.returned_in = iteration;
    returns = returns || gradient.returned_in == iteration;
  }
  return returns;
}

}  // namespace headrace::service
