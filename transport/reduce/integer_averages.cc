// Averages of integers: rare, so plain loops rather than vectors. The sum is kept wide enough not
// to wrap for kMembersMax members, and for every divisor, so that the average of two equal numbers
// is that number.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "ipc/base/check.h"
#include "transport/reduce/call.h"

namespace headrace::transport {
namespace {

__extension__ using Int128 = __int128;

// Elements summed at a time: a block of wide sums stays in the first-level cache.
constexpr std::size_t kBlockCount = 256;

template <class T, class Wide>
void Average(const ReduceCall& call) {
  std::array<Wide, kBlockCount> sums;
  std::array<T, kBlockCount> values;
  const auto divisor = static_cast<Wide>(call.divisor);
  for (std::size_t i = 0; i < call.size; i += kBlockCount * sizeof(T)) {
    const std::size_t size = std::min(kBlockCount * sizeof(T), call.size - i);
    sums.fill(0);
    values.fill(0);
    for (std::size_t member = 0; member < call.inputs_count; ++member) {
      std::memcpy(values.data(), call.inputs[member] + call.offset + i, size);
      for (std::size_t j = 0; j < kBlockCount; ++j) sums[j] += values[j];
    }
    for (std::size_t j = 0; j < kBlockCount; ++j) values[j] = static_cast<T>(sums[j] / divisor);
    for (std::size_t member = 0; member < call.outputs_count; ++member) {
      std::memcpy(call.outputs[member] + call.offset + i, values.data(), size);
    }
  }
}

}  // namespace

void ReduceIntegerAverages(const ReduceCall& call) {
  HR_CHECK(call.reduction == Reduction::kAverage && call.divisor != 0, call.divisor);
  HR_CHECK(call.inputs_count <= kMembersMax, call.inputs_count);
  if (call.dtype == DType::kInt32) return Average<std::int32_t, std::int64_t>(call);
  if (call.dtype == DType::kInt64) return Average<std::int64_t, Int128>(call);
  Average<std::uint8_t, std::int64_t>(call);
}

}  // namespace headrace::transport
