#include "transport/exchange/limits.h"

#include <algorithm>

#include "ipc/base/check.h"
#include "transport/exchange/message_tail.h"

namespace headrace::transport {
namespace {

constexpr std::size_t kSlotAlignment = 4096;
// Enough to keep a link busy while a thread waits its turn: of 256 KiB between two nodes at 1
// Gbit/s on a machine with four times as many threads as cores, 8 pieces reached 101 MB/s, 32
// reached 114.
constexpr std::uint32_t kWindowMin = 32;
// One piece of each owner arrives, one is summed, one leaves, one waits.
constexpr std::uint32_t kPiecesUnderWay = 4;
// Pieces that each of sums and copies has for itself.
constexpr std::uint32_t kWindowOwn = 8;

}  // namespace

GroupLimits LimitsOf(const ExchangeOptions& options, std::uint32_t data_count,
                     std::uint32_t servers_count) {
  const std::uint32_t owners = servers_count > 0 ? servers_count : data_count;
  const std::uint32_t window = std::max(kWindowMin, kPiecesUnderWay * owners);
  // A node that sums owns its share of a window, and receives each piece from all others.
  // Besides, each piece may be one of several runs of memory, which are gathered in a slot.
  const std::uint32_t slots_count =
      servers_count > 0 ? window * data_count : 2 * window + data_count;
  const std::size_t slot_size_max = options.staging_size / (kBudgetsCount * slots_count);
  static_assert(kTailSizeMax % kSlotAlignment == 0);
  const std::size_t tail_size = servers_count > 0 ? kTailSizeMax : 0;
  const bool has_room = slot_size_max >= kSlotAlignment + tail_size;
  const std::size_t most = slot_size_max - (has_room ? tail_size : 0);
  const std::size_t slot_size =
      std::min(options.piece_size, most) / kSlotAlignment * kSlotAlignment;
  HR_CHECK(slot_size > 0, options.piece_size, options.staging_size, slots_count);
  // Each node that is ahead has at most a window of pieces under way, the first of which is at most
  // a window ahead of ours; of each piece it sends us one message before we answer. This node,
  // which is counted and sends itself nothing, makes up for what sums and copies have beyond a
  // window.
  const std::uint32_t nodes = data_count + servers_count;
  static_assert(kWindowOwn <= 2 * kPiecesUnderWay);
  return {.window = window,
          .shared_window = window + kWindowOwn,
          .slots_count = slots_count,
          .slot_size = slot_size,
          .message_size_max = slot_size + tail_size,
          .held_max = std::size_t{kBudgetsCount} * 2 * window * nodes};
}

}  // namespace headrace::transport
