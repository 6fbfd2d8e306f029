// What goes on inside a group: transfers begin, their pieces move round by round, and end.
#include <algorithm>
#include <cstring>

#include "ipc/base/check.h"
#include "transport/exchange/group.h"
#include "transport/reduce/reduce.h"

namespace headrace::transport {
namespace {

std::uint32_t DivisorOf(const CollectiveSpec& spec) {
  return spec.reduction == Reduction::kAverage ? spec.divisor : 1;
}

// An average is a sum until the last addition.
Reduction ReductionOf(const CollectiveSpec& spec, const Round& round) {
  return spec.reduction == Reduction::kAverage && !round.last ? Reduction::kSum : spec.reduction;
}

}  // namespace

Group::Move& Group::Begin(const CollectiveSpec& spec, std::uint64_t position, const RunWalk& walk) {
  HR_CHECK(!free_moves_.empty(), position);
  const std::uint16_t index = free_moves_.back();
  free_moves_.pop_back();
  ++orders_[OrderOf(position)].moves_open;
  const auto later = std::ranges::find_if(
      open_, [this, position](std::uint16_t other) { return moves_[other].position > position; });
  open_.insert(later, index);
  Move& move = moves_[index];
  const Pattern pattern = ChoosePattern(spec, choice_);
  move = {.position = position,
          .spec = spec,
          .pattern = pattern,
          .partition = Partition(spec, pattern, position, choice_.data_count, choice_.servers_count,
                                 limits_.slot_size),
          .walk = walk};
  if (is_server()) {
    move.next_piece = move.partition.NextOwned(0, options_.self);
  } else {
    move.wanted_end = move.partition.pieces_count();
  }
  dirty_ = true;
  return move;
}

// A server that had no room for a transfer begins it from one of its messages; the others stay
// where they are until their piece begins.
void Group::BeginHeld() {
  if (!starved_) return;
  starved_ = false;
  for (auto position = held_.LowestPosition(0); position;) {
    if (Find(*position) == nullptr && HasRoom(*position)) {
      std::optional<Message> first;
      held_.ForEach([&first, &position](const Message& message) {
        if (message.header.position == *position) first = message;
      });
      held_.Pop(NameOf(first->header));
      Route(*first);
    } else if (Find(*position) == nullptr) {
      starved_ = true;
    }
    if (*position == UINT64_MAX) return;
    position = held_.LowestPosition(*position + 1);
  }
}

// In the order of positions and pieces, on every node: see GroupLimits::window.
void Group::BeginPieces(TimeNs now) {
  std::array<bool, kOrdersCount> full{};
  for (const std::uint16_t index : open_) {
    const Move& move = moves_[index];
    bool& order_full = full[OrderOf(move.position)];
    while (!order_full && move.next_piece < move.wanted_end) {
      if (failure_) return;
      order_full = !BeginPiece(index, now);
      if (order_full || !move.spec.encoded()) continue;
      // What was encoded can leave while the next is encoded.
      dirty_ = true;
      return;
    }
  }
}

// False when the order's window is full, or its staging.
bool Group::BeginPiece(std::uint16_t move_index, TimeNs now) {
  Move& move = moves_[move_index];
  Order& order = orders_[OrderOf(move.position)];
  if (order.pieces_active == limits_.window) return false;
  const std::uint32_t number = move.next_piece;
  const CollectiveSchedule schedule = MakeSchedule(PieceSpecOf(move, number));
  const Partition::Range range = move.partition.PieceRange(number);
  move.walk.Seek(range.begin);
  const bool encoded = move.spec.encoded();
  const bool gathered =
      !encoded && !move.walk.over() && move.walk.stretch().end < range.begin + range.count;
  const std::size_t slots = schedule.staged_max + std::size_t{gathered || encoded};
  if (order.slots_taken + slots > slots_max_) return false;
  order.slots_taken += slots;
  ++order.pieces_active;
  HR_CHECK(!free_pieces_.empty() && order.pieces_active <= limits_.window, order.pieces_active);
  const std::uint16_t index = free_pieces_.back();
  free_pieces_.pop_back();
  Piece& piece = pieces_[index];
  piece.active = true;
  piece.spoiled = false;
  piece.move = move_index;
  piece.number = number;
  piece.round = 0;
  piece.open_count = 0;
  piece.waits_turn = 0;
  piece.is_on_wire = 0;
  piece.range = range;
  piece.walk = move.walk;
  piece.gathered = gathered;
  piece.encoded = encoded;
  piece.schedule = schedule;
  piece.receives.fill(Receive::kEnded);
  for (std::size_t i = 0; i < schedule.staged_max; ++i) piece.slots[i] = staging_.Acquire();
  if (gathered || encoded) piece.own_slot = staging_.Acquire();
  if (gathered) Gather(piece);
  // An owner keeps its own part as it is until the sum is there.
  if (Loses(move.spec.codec) && schedule.rounds[0].sends_count > 0) {
    Encode(piece);
  }

  move.next_piece = is_server() ? move.partition.NextOwned(number + 1, options_.self) : number + 1;
  ++move.active_count;
  if (move.begin_ns == kNever) move.begin_ns = now;
  CheckHeld(move, piece);
  piece.spoiled = failure_.has_value();
  if (!piece.spoiled) BeginRound(index);
  return true;
}

void Group::BeginRound(std::uint16_t index) {
  Piece& piece = pieces_[index];
  if (piece.round == piece.schedule.rounds_count) {
    if (piece.gathered) Scatter(piece);
    return EndPiece(index);
  }
  const Round& round = piece.schedule.rounds[piece.round];
  const Move& move = moves_[piece.move];
  piece.open_count = std::uint32_t{round.sends_count} + round.receives_count;
  if (piece.open_count == 0) ready_.push_back(index);

  piece.sent_size = static_cast<std::uint32_t>(MessageSize(piece, round));
  if (move.spec.lossless() && round.sends_count > 0 && !round.empty) {
    const TimeNs begin = MonotonicNow();
    piece.sent_size = static_cast<std::uint32_t>(
        EncodeLosslessRange(EncodedRangeOf(piece), staging_.At(piece.own_slot)));
    moves_[piece.move].codec.encode_ns += MonotonicNow() - begin;
  }
  if (piece.encoded) CountEncoded(piece, round);
  const std::size_t size = piece.sent_size;
  for (const std::uint8_t peer : piece.schedule.Sends(round)) {
    if (wire_.GoesAtOnce(size)) {
      piece.waits_turn |= MemberBit(peer);
      pacer_.Push(links_[peer].flow, index, size);
      continue;
    }
    // It costs the wire nothing until its receiver takes it, and that may be late: others must not
    // wait for that.
    pacer_.Charge(slot_, size);
    Send(index, peer);
  }
  const auto senders = piece.schedule.Receives(round);
  std::fill_n(piece.receives.begin(), senders.size(), Receive::kExpected);
  for (std::size_t i = 0; i < senders.size(); ++i) {
    const auto message = held_.Pop({move.position, piece.number, round.number, senders[i]});
    if (message) Accept(*message, index, i);
  }
}

void Group::OnTurn(std::uint16_t index, std::uint16_t member, bool first) {
  if (first) {
    point_to_point_.OnTurn(index);
    dirty_ = true;
    return;
  }
  HR_CHECK((pieces_[index].waits_turn & MemberBit(member)) != 0, index, member);
  pieces_[index].waits_turn &= ~MemberBit(member);
  Send(index, member);
}

void Group::Send(std::uint16_t index, std::uint16_t member) {
  Piece& piece = pieces_[index];
  const Round& round = piece.schedule.rounds[piece.round];
  const Move& move = moves_[piece.move];
  MessageHeader header{.key = options_.key,
                       .epoch = options_.epoch,
                       .plan_version = options_.plan_version,
                       .position = move.position,
                       .round = round.number,
                       .piece = piece.number,
                       .sender = static_cast<std::uint16_t>(options_.self)};
  WriteSpec(move.spec, header);
  const std::size_t size = piece.sent_size;
  ++counters_.messages_sent;
  counters_.bytes_sent += size;
  piece.is_on_wire |= MemberBit(member);
  if (wire_.GoesAtOnce(size)) ++messages_moving_;
  wire_.Send(links_[member].id, header, Source(piece), size, TokenOf(index, false, member));
}

// After a round has ended; returns whether that took a sum.
bool Group::Advance(std::uint16_t index) {
  Piece& piece = pieces_[index];
  const Round& round = piece.schedule.rounds[piece.round];
  if (moves_[piece.move].spec.lossless()) {
    // Then it waits for the group's end.
    if (round.receives_count > 0 && !round.empty && !ReduceLossless(piece, round)) return true;
  } else if (round.staged) {
    piece.encoded ? SumEncoded(piece, round) : Sum(piece, round);
  } else if (piece.encoded && round.receives_count > 0) {
    DecodeResult(piece);
  }
  ++piece.round;
  BeginRound(index);
  return round.staged;
}

// In the order of members, whatever came first. `own` is what this node has for the sum; null:
// nothing.
std::size_t Group::InputsOf(const Piece& piece, const Round& round, const std::byte* own,
                            std::array<const std::byte*, kNodesMax>& inputs) const {
  std::size_t inputs_count = 0;
  bool own_is_in = own == nullptr;
  const auto senders = piece.schedule.Receives(round);
  for (std::size_t i = 0; i < senders.size(); ++i) {
    if (!own_is_in && senders[i] > options_.self) {
      inputs[inputs_count++] = own;
      own_is_in = true;
    }
    inputs[inputs_count++] = staging_.At(piece.slots[i]);
  }
  if (!own_is_in) inputs[inputs_count++] = own;
  return inputs_count;
}

void Group::Sum(const Piece& piece, const Round& round) {
  const CollectiveSpec& spec = moves_[piece.move].spec;
  std::array<const std::byte*, kNodesMax> inputs{};
  const std::byte* const own = is_server() ? nullptr : Own(piece);
  const std::size_t inputs_count = InputsOf(piece, round, own, inputs);
  std::byte* const output = is_server() ? Source(piece) : Target(piece);
  ReduceInto(spec.dtype, ReductionOf(spec, round), {inputs.data(), inputs_count}, {&output, 1}, 0,
             static_cast<std::size_t>(piece.range.count), spec.divisor);
}

// Everybody writes what was encoded and not what it had: so all have the same. Where the owner
// alone sums, what it adds to is its own part, and the sum is encoded once more for all.
void Group::SumEncoded(const Piece& piece, const Round& round) {
  const Move& move = moves_[piece.move];
  const bool owner_sums = move.pattern == Pattern::kScatter;
  std::array<const std::byte*, kNodesMax> inputs{};
  const std::byte* const own = owner_sums ? nullptr : staging_.At(piece.own_slot);
  const std::size_t inputs_count = InputsOf(piece, round, own, inputs);
  const EncodedRange range = EncodedRangeOf(piece);
  const std::uint32_t divisor = owner_sums ? 1 : DivisorOf(move.spec);
  const TimeNs begin = MonotonicNow();
  DecodeSumRange({inputs.data(), inputs_count}, owner_sums, divisor, range);
  moves_[piece.move].codec.decode_ns += MonotonicNow() - begin;
  if (!owner_sums) return;
  Encode(piece);
  DecodeResult(piece);
}

// Into the piece's own slot.
void Group::Encode(const Piece& piece) {
  CodecUse& use = moves_[piece.move].codec;
  const EncodedRange range = EncodedRangeOf(piece);
  const TimeNs begin = MonotonicNow();
  EncodeRange(range, staging_.At(piece.own_slot));
  use.encode_ns += MonotonicNow() - begin;
  SampleResidual(range, use);
}

void Group::CountEncoded(const Piece& piece, const Round& round) {
  CodecUse& use = moves_[piece.move].codec;
  if (round.empty) return;
  use.plain_bytes += round.sends_count * piece.range.count * sizeof(float);
  use.sent_bytes += std::uint64_t{round.sends_count} * piece.sent_size;
}

// In the order of members, as Sum does. A message that makes no sense fails the group; false then.
bool Group::ReduceLossless(const Piece& piece, const Round& round) {
  const CollectiveSpec& spec = moves_[piece.move].spec;
  const auto senders = piece.schedule.Receives(round);
  std::array<std::span<const std::byte>, kNodesMax> messages{};
  for (std::size_t i = 0; i < senders.size(); ++i) {
    const std::uint16_t slot = round.staged ? piece.slots[i] : piece.own_slot;
    messages[i] = {staging_.At(slot), piece.received_sizes[i]};
  }
  const auto own = static_cast<std::size_t>(std::ranges::count_if(
      senders, [this](std::uint8_t sender) { return sender < options_.self; }));
  const TimeNs begin = MonotonicNow();
  const auto wrong =
      ReduceLosslessRange({messages.data(), senders.size()}, round.staged ? own : kNowhere,
                          round.staged ? ReductionOf(spec, round) : Reduction::kSum, spec.divisor,
                          EncodedRangeOf(piece));
  moves_[piece.move].codec.decode_ns += MonotonicNow() - begin;
  if (!wrong) return true;
  Fail(Code::kMismatch, "node " + options_.members[senders[*wrong]].name + " sends of " +
                            Describe(spec) + " what cannot be decoded (position " +
                            std::to_string(moves_[piece.move].position) + ")");
  return false;
}

void Group::DecodeResult(const Piece& piece) {
  const std::byte* const result = staging_.At(piece.own_slot);
  const TimeNs begin = MonotonicNow();
  DecodeSumRange({&result, 1}, false, DivisorOf(moves_[piece.move].spec), EncodedRangeOf(piece));
  moves_[piece.move].codec.decode_ns += MonotonicNow() - begin;
}

EncodedRange Group::EncodedRangeOf(const Piece& piece) const {
  const Move& move = moves_[piece.move];
  return {.codec = move.spec.codec,
          .walk = piece.walk,
          .range = piece.range,
          .memory = move.memory,
          .residual = move.residual,
          .seed = SeedOf(move)};
}

// The same in a second run. Places are the same on all nodes; what is rounded by chance is not,
// lest errors of nodes that have equal values add up.
std::uint64_t Group::SeedOf(const Move& move) const {
  const std::uint64_t node = move.spec.codec.kind == Codec::kRandomK ? 0 : options_.self + 1;
  return move.position + (std::uint64_t{options_.epoch} << 32) + (node << 56);
}

// A piece of several runs is one message all the same: a copy of all of them moves in its place.
void Group::Gather(const Piece& piece) {
  const Move& move = moves_[piece.move];
  const std::size_t size = SizeOf(move.spec.dtype);
  const std::uint64_t begin = piece.range.begin;
  ForEachStretch(piece.walk, begin, begin + piece.range.count,
                 [&](std::uint64_t element, std::uint64_t offset, std::uint64_t count) {
                   std::memcpy(staging_.At(piece.own_slot) + (element - begin) * size,
                               move.memory + offset, static_cast<std::size_t>(count) * size);
                 });
}

// Where this node gets a result, it is in the copy now.
void Group::Scatter(const Piece& piece) {
  const Move& move = moves_[piece.move];
  const bool is_root = options_.self == move.spec.root;
  if (move.spec.kind == Collective::kReduce && !is_root) return;
  if (move.spec.kind == Collective::kBroadcast && is_root) return;
  const bool owns = options_.self == move.partition.Owner(piece.number);
  if (move.spec.kind == Collective::kReduceScatter && !owns) return;
  if (move.spec.kind == Collective::kAllGather && owns) return;
  const std::size_t size = SizeOf(move.spec.dtype);
  const std::uint64_t begin = piece.range.begin;
  std::byte* const memory = move.Result();
  ForEachStretch(piece.walk, begin, begin + piece.range.count,
                 [&](std::uint64_t element, std::uint64_t offset, std::uint64_t count) {
                   std::memcpy(memory + offset,
                               staging_.At(piece.own_slot) + (element - begin) * size,
                               static_cast<std::size_t>(count) * size);
                 });
}

void Group::EndPiece(std::uint16_t index) {
  Piece& piece = pieces_[index];
  HR_CHECK(piece.active && piece.open_count == 0, index, piece.open_count);
  for (std::size_t i = 0; i < piece.schedule.staged_max; ++i) staging_.Release(piece.slots[i]);
  if (piece.gathered || piece.encoded) staging_.Release(piece.own_slot);
  Move& move = moves_[piece.move];
  Order& order = orders_[OrderOf(move.position)];
  HR_CHECK(order.pieces_active > 0 && order.slots_taken >= SlotsOf(piece) && move.active_count > 0,
           order.pieces_active, order.slots_taken, move.active_count);
  order.slots_taken -= SlotsOf(piece);
  --order.pieces_active;
  --move.active_count;
  piece.active = false;
  free_pieces_.push_back(index);
  dirty_ = true;
}

void Group::EndMoves(TimeNs now, std::vector<Completion>& completions) {
  point_to_point_.End(now, failure_ ? &*failure_ : nullptr, completions);
  for (std::size_t i = 0; i < open_.size();) {
    const std::uint16_t index = open_[i];
    const Move& move = moves_[index];
    const bool all_begun = move.next_piece >= move.partition.pieces_count();
    if (move.active_count > 0 || (!broken_ && !all_begun)) {
      ++i;
      continue;
    }
    if (is_server()) {
      Remember(move.position);
      dirty_ = dirty_ || starved_;
    } else {
      completions.push_back({.token = move.token,
                             .code = all_begun && !broken_ ? Code::kOk : failure_->code(),
                             .cause = all_begun && !broken_ ? std::string() : failure_->text(),
                             .begin_ns = std::min(move.begin_ns, now),
                             .end_ns = now,
                             .codec = move.codec});
    }
    --orders_[OrderOf(move.position)].moves_open;
    free_moves_.push_back(index);
    open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

// A position that is over, for as long as messages of lower ones may still be new: a node that has
// sent something of this transfer has at most a window of pieces unfinished before it.
void Group::Remember(std::uint64_t position) {
  Order& order = orders_[OrderOf(position)];
  if (order.over.size() == order.over.capacity()) {
    const auto lowest = std::ranges::min_element(order.over);
    order.positions_end = *lowest + 1;
    order.over.erase(lowest);
  }
  order.over.push_back(position);
}

std::byte* Group::Own(const Piece& piece) const {
  if (piece.gathered) return staging_.At(piece.own_slot);
  return moves_[piece.move].memory + piece.walk.OffsetOf(piece.range.begin);
}

// Where the result belongs on a node with data.
std::byte* Group::Target(const Piece& piece) const {
  if (piece.gathered) return staging_.At(piece.own_slot);
  return moves_[piece.move].Result() + piece.walk.OffsetOf(piece.range.begin);
}

// What is sent. A server's sum takes the place of the first of its inputs.
std::byte* Group::Source(const Piece& piece) const {
  if (piece.encoded) return staging_.At(piece.own_slot);
  return is_server() ? staging_.At(piece.slots[0]) : Own(piece);
}

}  // namespace headrace::transport
