#include "transport/exchange/limits.h"

#include <algorithm>

#include "ipc/base/check.h"

namespace headrace::transport {
namespace {

constexpr std::size_t kSlotAlignment = 4096;
constexpr std::uint32_t kWindowMin = 8;
// One piece of each owner arrives, one is summed, one leaves.
constexpr std::uint32_t kPiecesUnderWay = 3;

}  // namespace

GroupLimits LimitsOf(const ExchangeOptions& options, std::uint32_t data_count,
                     std::uint32_t servers_count) {
  const std::uint32_t owners = servers_count > 0 ? servers_count : data_count;
  const std::uint32_t window = std::max(kWindowMin, kPiecesUnderWay * owners);
  const std::uint32_t slots_count =
      servers_count > 0 ? window * data_count
                        : std::max(window, (kPiecesUnderWay + 1) * (data_count - 1));
  const std::size_t slot_size = std::min(options.piece_size, options.staging_size / slots_count) /
                                kSlotAlignment * kSlotAlignment;
  HR_CHECK(slot_size > 0, options.piece_size, options.staging_size, slots_count);
  // Each node that is ahead has at most a window of pieces under way, the first of which is at most
  // a window ahead of ours; of each piece it sends at most two messages before we answer.
  return {.window = window,
          .slots_count = slots_count,
          .slot_size = slot_size,
          .held_max = std::size_t{4} * window * (data_count + servers_count)};
}

}  // namespace headrace::transport
