#include "transport/exchange/open_collectives.h"

#include <algorithm>

#include "ipc/base/check.h"

namespace headrace::transport {

void OpenCollective::UseFactors(const Transfer& transfer, DeviceCodec* device_codec) {
  const Stretch stretch = walk.stretch();
  const Stretch left_out = residual_walk.stretch();
  HR_CHECK(transfer.factors != nullptr && stretch.end == transfer.count, stretch.end);
  HR_CHECK(residual == nullptr || left_out.end == transfer.count, left_out.end);
  factors = FactorSum(transfer, spec, memory + stretch.offset,
                      residual == nullptr ? nullptr : residual + left_out.offset);
  if (on_gpu()) {
    factors.UseGpu(*device_codec, device, transfer,
                   residual == nullptr ? nullptr : residual_on_gpus + left_out.offset);
    device = kHost;
  }
  memory = factors.factors();
  walk = RunWalk(DType::kFloat32, spec.SentCount(), {}, 0);
}

OpenCollectives::OpenCollectives(std::uint32_t transfers_max, const GroupLimits& limits,
                                 std::uint32_t slots_max, bool copies)
    : transfers_max_(transfers_max),
      window_(limits.window),
      shared_window_(limits.shared_window),
      collectives_(kOrdersCount * transfers_max),
      pieces_(limits.shared_window + limits.window) {
  open_.reserve(collectives_.size());
  for (OrderState& order : orders_) {
    order.over.reserve(2 * limits.window + transfers_max);
    order.slots_max = slots_max;
  }
  const std::size_t slots_of_copies = copies ? 1 : 0;
  orders_[IndexOf(PositionOrder::kCopies)].slots_max = slots_of_copies;
  orders_[IndexOf(PositionOrder::kSums)].slots_max -= slots_of_copies;
  for (std::size_t i = collectives_.size(); i > 0; --i) {
    free_collectives_.push_back(static_cast<std::uint16_t>(i - 1));
  }
  for (std::size_t i = pieces_.size(); i > 0; --i) {
    free_pieces_.push_back(static_cast<std::uint16_t>(i - 1));
  }
}

OpenCollective& OpenCollectives::Open(std::uint64_t position, const CollectiveSpec& spec) {
  HR_CHECK(!free_collectives_.empty(), position);
  const std::uint16_t index = free_collectives_.back();
  free_collectives_.pop_back();
  ++orders_[IndexOf(OrderOf(position, spec.kind))].open_count;
  const auto later = std::ranges::find_if(open_, [this, position](std::uint16_t other) {
    return collectives_[other].position > position;
  });
  open_.insert(later, index);
  collectives_[index] = OpenCollective();
  collectives_[index].position = position;
  collectives_[index].spec = spec;
  return collectives_[index];
}

void OpenCollectives::CloseAt(std::size_t i) {
  const std::uint16_t index = open_[i];
  --StateOf(collectives_[index]).open_count;
  free_collectives_.push_back(index);
  open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(i));
}

OpenCollective* OpenCollectives::FindPosition(std::uint64_t position) {
  for (const std::uint16_t index : open_) {
    if (collectives_[index].position == position) return &collectives_[index];
  }
  return nullptr;
}

const OpenCollective* OpenCollectives::FindToken(std::uint64_t token) const {
  for (const std::uint16_t index : open_) {
    if (collectives_[index].token == token) return &collectives_[index];
  }
  return nullptr;
}

bool OpenCollectives::IsOver(std::uint64_t position, Collective kind) const {
  const OrderState& order = orders_[IndexOf(OrderOf(position, kind))];
  return position < order.positions_end ||
         std::ranges::find(order.over, position) != order.over.end();
}

// A node that has sent something of this transfer has at most a window of pieces unfinished before
// it.
void OpenCollectives::SetOver(const OpenCollective& collective) {
  OrderState& order = StateOf(collective);
  if (order.over.size() == order.over.capacity()) {
    const auto lowest = std::ranges::min_element(order.over);
    order.positions_end = *lowest + 1;
    order.over.erase(lowest);
  }
  order.over.push_back(collective.position);
}

bool OpenCollectives::HasWindow(const OpenCollective& collective) const {
  if (StateOf(collective).pieces_active >= window_) return false;
  if (OrderOf(collective) == PositionOrder::kPlanned) return true;
  return orders_[IndexOf(PositionOrder::kSums)].pieces_active +
             orders_[IndexOf(PositionOrder::kCopies)].pieces_active <
         shared_window_;
}

std::uint16_t OpenCollectives::OpenPieceOf(std::uint16_t collective, std::size_t slots_count) {
  OpenCollective& of = collectives_[collective];
  OrderState& order = StateOf(of);
  order.slots_taken += slots_count;
  ++order.pieces_active;
  ++of.active_count;
  HR_CHECK(!free_pieces_.empty() && order.pieces_active <= window_, order.pieces_active);
  const std::uint16_t index = free_pieces_.back();
  free_pieces_.pop_back();
  OpenPiece& piece = pieces_[index];
  piece.active = true;
  piece.spoiled = false;
  piece.awaits_codec = false;
  piece.gpu_encoding = OpenPiece::GpuEncoding::kNone;
  piece.collective = collective;
  piece.round = 0;
  piece.open_count = 0;
  piece.waits_turn = 0;
  piece.is_on_wire = 0;
  piece.receives.fill(ReceiveState::kEnded);
  return index;
}

void OpenCollectives::ClosePiece(std::uint16_t index) {
  OpenPiece& piece = pieces_[index];
  OpenCollective& of = collectives_[piece.collective];
  OrderState& order = StateOf(of);
  HR_CHECK(
      order.pieces_active > 0 && order.slots_taken >= piece.SlotsCount() && of.active_count > 0,
      order.pieces_active, order.slots_taken, of.active_count);
  order.slots_taken -= piece.SlotsCount();
  --order.pieces_active;
  --of.active_count;
  piece.active = false;
  free_pieces_.push_back(index);
}

std::optional<std::uint16_t> OpenCollectives::FindPiece(const OpenCollective& collective,
                                                        std::uint32_t number) const {
  // Those that are active are mostly the first: which is given back last is taken first.
  std::size_t left = pieces_.size() - free_pieces_.size();
  for (std::uint16_t index = 0; left > 0; ++index) {
    const OpenPiece& piece = pieces_[index];
    if (!piece.active) continue;
    if (&collectives_[piece.collective] == &collective && piece.number == number) return index;
    --left;
  }
  return std::nullopt;
}

MessageHeader HeaderOf(const GroupOptions& options, const OpenCollective& collective,
                       const OpenPiece& piece) {
  MessageHeader header{.key = options.key,
                       .epoch = options.epoch,
                       .plan_version = options.plan_version,
                       .position = collective.position,
                       .round = piece.schedule.rounds[piece.round].number,
                       .piece = piece.number,
                       .sender = static_cast<std::uint16_t>(options.self)};
  WriteSpec(collective.spec, header);
  return header;
}

}  // namespace headrace::transport
