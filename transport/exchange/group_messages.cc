// What comes in over the wire: each message is checked, and finds its piece or waits for it.
#include <algorithm>

#include "ipc/base/check.h"
#include "transport/exchange/group.h"

namespace headrace::transport {
namespace {

constexpr std::uint64_t kReceiveBit = 1U << 15;
constexpr std::uint64_t kIndexMask = kReceiveBit - 1;

constexpr std::uint16_t PieceOf(std::uint64_t token) {
  return static_cast<std::uint16_t>(token >> 16);
}

// Where in the schedule the message is received: the round and the place in its list.
struct Spot {
  std::size_t round = 0;
  std::size_t receive = 0;
};

std::optional<Spot> FindSpot(const CollectiveSchedule& schedule, const MessageHeader& header) {
  for (std::size_t r = 0; r < schedule.rounds_count; ++r) {
    if (schedule.rounds[r].number != header.round) continue;
    const auto senders = schedule.Receives(schedule.rounds[r]);
    const auto found = std::ranges::find(senders, header.sender);
    if (found == senders.end()) return std::nullopt;
    return Spot{.round = r, .receive = static_cast<std::size_t>(found - senders.begin())};
  }
  return std::nullopt;
}

}  // namespace

std::uint64_t Group::TokenOf(std::uint16_t piece, bool receive, std::size_t index) const {
  return std::uint64_t{slot_} << 32 | std::uint64_t{piece} << 16 | (receive ? kReceiveBit : 0) |
         index;
}

void Group::Announced(const MessageHeader& header, std::size_t size, ArrivalId arrival) {
  const Message message{.header = header, .size = size, .arrival = arrival};
  if (failure_) {
    wire_.Drop(arrival);
    return;
  }
  const bool ours = header.epoch == options_.epoch &&
                    header.plan_version == options_.plan_version &&
                    header.sender < members_count() && header.sender != options_.self;
  if (ours && PointToPoint::IsOurs(header)) {
    const auto wrong = point_to_point_.Announced(header, size, arrival);
    if (wrong) Disagree(message, *wrong);
    dirty_ = true;
    return;
  }
  if (ours && NoticeLinks::IsOurs(header)) {
    const auto wrong = notices_.Announced(header, size, arrival);
    if (wrong) Disagree(message, *wrong);
    dirty_ = true;
    return;
  }
  if (!ours || size > limits_.slot_size || !SpecOf(header, choice_.data_count)) {
    Refuse(message);
    return;
  }
  Route(message);
}

void Group::Route(const Message& message) {
  const MessageHeader& header = message.header;
  Move* move = Find(header.position);
  if (move == nullptr) {
    if (IsOver(header.position)) return Refuse(message);
    if (!is_server()) return Hold(message);
    const CollectiveSpec spec = *SpecOf(header, choice_.data_count);
    if (!Reduces(spec.kind) || IsHalf(spec.kind) || spec.encoded()) return Refuse(message);
    if (!HasRoom(header.position)) {
      starved_ = true;
      return Hold(message);
    }
    move = &Begin(spec, header.position, {});
    CheckHeld(*move);
  }
  if (!Agrees(message, *move)) {
    wire_.Drop(message.arrival);
    return;
  }
  if (const auto piece = FindPiece(*move, header.piece)) return RouteToPiece(message, *piece);
  if (header.piece < move->next_piece) return Refuse(message);  // the piece is done: came twice
  if (header.piece >= move->wanted_end) {
    move->wanted_end = header.piece + 1;
    dirty_ = true;
  }
  Hold(message);
}

// Whether the sender means the same transfer, cut alike. If not, the group fails.
bool Group::Agrees(const Message& message, const Move& move) {
  const CollectiveSpec theirs = *SpecOf(message.header, choice_.data_count);
  if (theirs != move.spec) {
    Disagree(message, "sends " + Describe(theirs) + ", this node posted " + Describe(move.spec));
    return false;
  }
  const std::uint32_t piece = message.header.piece;
  if (piece >= move.partition.pieces_count() ||
      (is_server() && move.partition.Owner(piece) != options_.self)) {
    Disagree(message, "cuts " + Describe(theirs) + " into other pieces than this node");
    return false;
  }
  return true;
}

void Group::RouteToPiece(const Message& message, std::uint16_t index) {
  Piece& piece = pieces_[index];
  const auto spot = FindSpot(piece.schedule, message.header);
  if (!spot || !MayHaveSize(piece, piece.schedule.rounds[spot->round], message.size)) {
    Disagree(message, "sends pieces of " + Describe(moves_[piece.move].spec) +
                          " by another way than this node");
    wire_.Drop(message.arrival);
    return;
  }
  if (spot->round > piece.round) return Hold(message);
  const bool due = spot->round == piece.round;
  if (!due || piece.receives[spot->receive] != Receive::kExpected) return Refuse(message);
  Accept(message, index, spot->receive);
}

// Held messages were not compared with a transfer that was not posted yet.
void Group::CheckHeld(const Move& move) {
  held_.ForEach([this, &move](const Message& message) {
    if (message.header.position == move.position) Agrees(message, move);
  });
}

void Group::CheckHeld(const Move& move, const Piece& piece) {
  held_.ForEach([this, &move, &piece](const Message& message) {
    const MessageHeader& header = message.header;
    if (header.position != move.position || header.piece != piece.number) return;
    const auto spot = FindSpot(piece.schedule, header);
    if (spot && MayHaveSize(piece, piece.schedule.rounds[spot->round], message.size)) return;
    Disagree(message, "sends pieces of " + Describe(move.spec) + " by another way than this node");
  });
}

void Group::Hold(const Message& message) {
  switch (held_.Hold(message)) {
    case HeldMessages::Outcome::kHeld:
      return;
    case HeldMessages::Outcome::kTwice:
      return Refuse(message);
    case HeldMessages::Outcome::kFull:
      wire_.Drop(message.arrival);
      Fail(Code::kExhausted,
           "node " + options_.members[message.header.sender].name +
               " is further ahead than any node may be: " + std::to_string(held_.messages_max()) +
               " messages wait for transfers that were not posted here");
      return;
  }
}

void Group::Refuse(const Message& message) {
  ++counters_.messages_dropped;
  wire_.Drop(message.arrival);
}

void Group::Disagree(const Message& message, const std::string& what) {
  Fail(Code::kMismatch, "node " + options_.members[message.header.sender].name + " " + what +
                            " (position " + std::to_string(message.header.position) + ")");
}

void Group::Accept(const Message& message, std::uint16_t index, std::size_t receive) {
  Piece& piece = pieces_[index];
  const Round& round = piece.schedule.rounds[piece.round];
  piece.receives[receive] = Receive::kAccepted;
  piece.received_sizes[receive] = static_cast<std::uint32_t>(message.size);
  std::byte* const result = piece.encoded ? staging_.At(piece.own_slot) : Target(piece);
  std::byte* const memory = round.staged ? staging_.At(piece.slots[receive]) : result;
  ++messages_moving_;
  wire_.Accept(message.arrival, memory, TokenOf(index, true, receive));
}

void Group::Sent(std::uint64_t token, Code code) {
  if (PointToPoint::IsOurs(token)) {
    const std::uint32_t member = point_to_point_.Sent(token, code);
    dirty_ = true;
    if (code != Code::kOk) EndedEarly(member, "to", code);
    return;
  }
  if (NoticeLinks::IsOurs(token)) {
    const std::uint32_t member = notices_.Sent(token);
    dirty_ = true;
    if (code != Code::kOk) EndedEarly(member, "to", code);
    return;
  }
  const std::size_t peer = token & kIndexMask;
  HR_CHECK((token & kReceiveBit) == 0 && peer < members_count(), token);
  const std::uint16_t index = PieceOf(token);
  HR_CHECK(index < pieces_.size() && (pieces_[index].is_on_wire & MemberBit(peer)) != 0, token);
  Piece& piece = pieces_[index];
  piece.is_on_wire &= ~MemberBit(peer);
  const std::size_t size = piece.sent_size;
  if (wire_.GoesAtOnce(size)) {
    pacer_.Ended(links_[peer].flow, size);
    --messages_moving_;
  }
  if (code != Code::kOk) {
    piece.spoiled = true;
    EndedEarly(static_cast<std::uint32_t>(peer), "to", code);
  }
  EndMessage(index);
}

void Group::EndedEarly(std::uint32_t peer, const char* what, Code code) {
  Fail(Code::kPeerLost,
       "node " + options_.members[peer].name + ": a message " + what + " it over " + lane_ +
           " ended early: " + std::string(CodeName(code)),
       true);
}

void Group::Received(std::uint64_t token, Code code) {
  if (PointToPoint::IsOurs(token)) {
    const std::uint32_t member = point_to_point_.Received(token, code);
    dirty_ = true;
    if (code != Code::kOk) EndedEarly(member, "from", code);
    return;
  }
  if (NoticeLinks::IsOurs(token)) {
    const std::uint32_t member = notices_.Received(token, code);
    dirty_ = true;
    if (code != Code::kOk) EndedEarly(member, "from", code);
    return;
  }
  const std::uint16_t index = PieceOf(token);
  const std::size_t receive = token & kIndexMask;
  HR_CHECK((token & kReceiveBit) != 0 && index < pieces_.size(), token);
  Piece& piece = pieces_[index];
  const Round& round = piece.schedule.rounds[piece.round];
  HR_CHECK(receive < round.receives_count, token);
  HR_CHECK(piece.receives[receive] == Receive::kAccepted, token);
  piece.receives[receive] = Receive::kEnded;
  --messages_moving_;
  if (code == Code::kOk) {
    ++counters_.messages_received;
    counters_.bytes_received += piece.received_sizes[receive];
  } else {
    piece.spoiled = true;
    const std::uint8_t peer = piece.schedule.Receives(round)[receive];
    EndedEarly(peer, "from", code);
  }
  EndMessage(index);
}

void Group::EndMessage(std::uint16_t index) {
  HR_CHECK(index < pieces_.size(), index);
  Piece& piece = pieces_[index];
  HR_CHECK(piece.active && piece.open_count > 0, index, piece.open_count);
  --piece.open_count;
  if (piece.open_count > 0) return;
  if (broken_) {
    EndPiece(index);
  } else if (!piece.spoiled) {
    ready_.push_back(index);
  }
}

bool Group::IsOver(std::uint64_t position) const {
  const Order& order = orders_[OrderOf(position)];
  return position < order.positions_end ||
         std::ranges::find(order.over, position) != order.over.end();
}

Group::Move* Group::Find(std::uint64_t position) {
  for (const std::uint16_t index : open_) {
    if (moves_[index].position == position) return &moves_[index];
  }
  return nullptr;
}

std::optional<std::uint16_t> Group::FindPiece(const Move& move, std::uint32_t number) const {
  // Those that are active are mostly the first: which is given back last is taken first.
  std::size_t left = pieces_.size() - free_pieces_.size();
  for (std::uint16_t index = 0; left > 0; ++index) {
    const Piece& piece = pieces_[index];
    if (!piece.active) continue;
    if (&moves_[piece.move] == &move && piece.number == number) return index;
    --left;
  }
  return std::nullopt;
}

std::size_t Group::MessageSize(const Piece& piece, const Round& round) const {
  if (round.empty) return 0;
  return moves_[piece.move].spec.SizeOfElements(piece.range.count);
}

bool Group::MayHaveSize(const Piece& piece, const Round& round, std::size_t size) const {
  const std::size_t most = MessageSize(piece, round);
  if (most == 0 || !moves_[piece.move].spec.lossless()) return size == most;
  return size > 0 && size <= most;
}

}  // namespace headrace::transport
