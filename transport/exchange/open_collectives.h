// The collectives of a group that are open on this node and their pieces in flight: which exist,
// which have room, and which positions have ended. Collectives moves them.
//
// Part of Collectives, on the lane's thread. Allocates nothing after its construction.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "transport/exchange/choose.h"
#include "transport/exchange/collective_schedule.h"
#include "transport/exchange/collective_spec.h"
#include "transport/exchange/factor_sum.h"
#include "transport/exchange/limits.h"
#include "transport/exchange/partition.h"
#include "transport/network.h"
#include "transport/runs.h"

namespace headrace::transport {

// A transfer that is open here.
struct OpenCollective {
  std::uint64_t token = 0;
  std::uint64_t position = 0;
  std::byte* memory = nullptr;
  std::byte* output = nullptr;
  std::byte* residual = nullptr;
  std::byte* residual_on_gpus = nullptr;
  std::int8_t device = kHost;  // whose memory `memory` is
  std::uint64_t seed = 0;
  CollectiveSpec spec;
  Pattern pattern = Pattern::kBarrier;
  Partition partition;
  RunWalk walk;                    // over this node's memory, at the next piece
  RunWalk residual_walk;           // over the residual, from its begin on
  std::uint32_t next_piece = 0;    // the first that was not begun
  std::uint32_t wanted_end = 0;    // pieces below may begin; a server learns it from messages
  std::uint32_t active_count = 0;  // pieces under way
  TimeNs begin_ns = kNever;
  CodecUse codec{};   // so far
  FactorSum factors;  // of a matrix that is factored: then `memory` is theirs

  bool all_begun() const { return next_piece >= partition.pieces_count(); }
  // From now on what crosses, and is summed, is the factors of its matrix.
  // Then a GPU has the matrix, and what is summed is memory of the host.
  void UseFactors(const Transfer& transfer, DeviceCodec* device_codec);
  // Whether the next piece is of a factor that is not there yet.
  bool lacks_factor() const {
    return factors.lacks_left_factor() ||
           (factors.lacks_right_factor() && next_piece == partition.left_pieces_count());
  }
  // Whether something has to be made of factors yet.
  bool has_factors_left() const { return factors.exists() && !factors.done(); }
  // Whether somebody uses its memory yet.
  bool is_at_work() const { return active_count > 0 || factors.awaits_gpu(); }
  // Whether what a server gets of it says of what gradients it is (message_tail.h): always where
  // the server encodes the sum once more, else where something may have been left out before.
  bool may_have_tails() const {
    return pattern == Pattern::kServed && !spec.factored() && MayHaveResidual(spec);
  }
  bool sends_tails() const { return may_have_tails() && (spec.encoded() || residual != nullptr); }
  // Where results belong on a node with data.
  bool on_gpu() const { return device != kHost; }
  std::byte* Result() const { return spec.kind == Collective::kReduce ? output : memory; }
};

inline PositionOrder OrderOf(const OpenCollective& collective) {
  return OrderOf(collective.position, collective.spec.kind);
}

enum class ReceiveState : std::uint8_t { kExpected, kAccepted, kEnded };

// A piece under way.
struct OpenPiece {
  bool active = false;
  bool spoiled = false;  // a message ended early: waits for the group's end
  std::uint16_t collective = 0;
  std::uint32_t number = 0;
  std::uint8_t round = 0;
  std::uint32_t open_count = 0;  // messages of this round that have not ended
  std::uint64_t waits_turn = 0;  // of its sends, by member: those at the pacer
  std::uint64_t is_on_wire = 0;  // and those that the wire has
  Partition::Range range;
  RunWalk walk;           // at the piece's first element
  bool gathered = false;  // of several runs: moves through a slot of its own
  bool encoded = false;   // likewise, as the codec has it
  bool has_own_slot = false;
  // Waits for a GPU that encodes or decodes it, which is one of its open_count: then its next round
  // has not begun.
  bool awaits_codec = false;
  // A GPU encodes losslessly what this round is to send, or copies it, or has done so.
  enum class GpuEncoding : std::uint8_t { kNone, kTried, kCopied, kDone };
  GpuEncoding gpu_encoding = GpuEncoding::kNone;
  std::uint64_t codec_ticket = 0;
  TimeNs codec_begin_ns = 0;
  std::uint16_t own_slot = 0;
  std::uint32_t sent_size = 0;    // of this round's messages
  std::uint32_t served_size = 0;  // of a server's encoded sum
  CollectiveSchedule schedule;
  std::array<ReceiveState, kNodesMax> receives{};
  std::array<std::uint16_t, kNodesMax> slots{};
  std::array<std::uint32_t, kNodesMax> received_sizes{};

  std::size_t SlotsCount() const { return schedule.staged_max + std::size_t{has_own_slot}; }
  // The bytes of one message of the round without its tail; at most, where the codec is lossless.
  std::size_t MessageSize(const CollectiveSpec& spec, const Round& of) const {
    return of.empty ? 0 : spec.SizeOfElements(range.count);
  }
};

// The members that have data; the others are servers.
inline std::uint32_t DataCount(const GroupOptions& options) {
  return static_cast<std::uint32_t>(options.members.size()) - options.servers_count;
}

inline PieceSpec PieceSpecOf(const OpenCollective& collective, std::uint32_t piece,
                             std::uint32_t data_count, std::uint32_t self) {
  return {.pattern = collective.pattern,
          .kind = collective.spec.kind,
          .data_count = data_count,
          .self = self,
          .root = collective.spec.root,
          .owner = collective.partition.Owner(piece)};
}

// The header of what the piece sends in its present round.
MessageHeader HeaderOf(const GroupOptions& options, const OpenCollective& collective,
                       const OpenPiece& piece);

class OpenCollectives {
 public:
  // `transfers_max` is of each order, `slots_max` of each budget. Where there are copies, one of
  // its slots is for them: they sum nothing, and need it only where memory is in several runs.
  OpenCollectives(std::uint32_t transfers_max, const GroupLimits& limits, std::uint32_t slots_max,
                  bool copies);

  bool HasRoom(std::uint64_t position, Collective kind) const {
    return orders_[IndexOf(OrderOf(position, kind))].open_count < transfers_max_;
  }
  OpenCollective& Open(std::uint64_t position, const CollectiveSpec& spec);
  // The open collectives by position: how many, and the i-th.
  std::size_t open_count() const { return open_.size(); }
  std::uint16_t OpenAt(std::size_t i) const { return open_[i]; }
  void CloseAt(std::size_t i);
  OpenCollective& at(std::uint16_t index) { return collectives_[index]; }
  const OpenCollective& at(std::uint16_t index) const { return collectives_[index]; }
  OpenCollective* FindPosition(std::uint64_t position);
  const OpenCollective* FindToken(std::uint64_t token) const;

  // Positions below were posted here; on servers: are over.
  std::uint64_t PostedEnd(std::uint64_t position, Collective kind) const {
    return orders_[IndexOf(OrderOf(position, kind))].positions_end;
  }
  void SetPosted(const OpenCollective& collective) {
    StateOf(collective).positions_end = collective.position + 1;
  }
  bool IsOver(std::uint64_t position, Collective kind) const;
  // For servers: a position that is over, for as long as messages of lower ones may still be new.
  void SetOver(const OpenCollective& collective);

  // False when the order's window is full.
  bool HasWindow(const OpenCollective& collective) const;
  // False when the order may not take that much more staging.
  bool HasSlots(const OpenCollective& collective, std::size_t slots_count) const {
    const OrderState& order = StateOf(collective);
    return order.slots_taken + slots_count <= order.slots_max;
  }
  // Opens a piece of the collective at that index, with `slots_count` of its order's slots.
  std::uint16_t OpenPieceOf(std::uint16_t collective, std::size_t slots_count);
  void ClosePiece(std::uint16_t index);
  std::span<OpenPiece> pieces() { return pieces_; }
  std::span<const OpenPiece> pieces() const { return pieces_; }
  std::optional<std::uint16_t> FindPiece(const OpenCollective& collective,
                                         std::uint32_t number) const;

 private:
  struct OrderState {
    std::uint32_t open_count = 0;
    std::uint32_t pieces_active = 0;
    std::size_t slots_taken = 0;
    std::size_t slots_max = 0;
    std::uint64_t positions_end = 0;
    std::vector<std::uint64_t> over;  // on servers: those that are over and not below
  };

  static std::size_t IndexOf(PositionOrder order) { return static_cast<std::size_t>(order); }
  OrderState& StateOf(const OpenCollective& collective) {
    return orders_[IndexOf(OrderOf(collective))];
  }
  const OrderState& StateOf(const OpenCollective& collective) const {
    return orders_[IndexOf(OrderOf(collective))];
  }

  const std::uint32_t transfers_max_;
  const std::uint32_t window_;
  const std::uint32_t shared_window_;
  std::vector<OpenCollective> collectives_;
  std::vector<std::uint16_t> free_collectives_;
  std::vector<std::uint16_t> open_;  // by position
  std::vector<OpenPiece> pieces_;
  std::vector<std::uint16_t> free_pieces_;
  std::array<OrderState, kOrdersCount> orders_;
};

}  // namespace headrace::transport
