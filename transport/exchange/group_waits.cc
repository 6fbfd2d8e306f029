// Whom a transfer waits for. Only asked about those that are late: it may take as long as a sum.
#include <algorithm>

#include "transport/exchange/group.h"

namespace headrace::transport {

PieceSpec Group::PieceSpecOf(const Move& move, std::uint32_t piece) const {
  return {.pattern = move.pattern,
          .kind = move.spec.kind,
          .data_count = choice_.data_count,
          .self = options_.self,
          .root = move.spec.root,
          .owner = move.partition.Owner(piece)};
}

PieceView Group::ViewOf(const Move& move, std::uint32_t piece) const {
  const auto bytes = static_cast<std::size_t>(move.partition.PieceRange(piece).count);
  return {.spec = PieceSpecOf(move, piece),
          .number = piece,
          .announced = !wire_.GoesAtOnce(bytes * SizeOf(move.spec.dtype))};
}

std::uint64_t Group::Missing(std::uint64_t token) const {
  if (point_to_point_.Has(token)) return failure_ ? 0 : point_to_point_.Missing(token);
  const auto found = std::ranges::find_if(
      open_, [this, token](std::uint16_t index) { return moves_[index].token == token; });
  if (found == open_.end() || failure_) return 0;
  const Move& move = moves_[*found];
  // The first of its pieces, in their order.
  std::array<const Piece*, WaitQuery::kPiecesMax> first{};
  std::size_t count = 0;
  for (const Piece& piece : pieces_) {
    if (!piece.active || &moves_[piece.move] != &move) continue;
    const auto later =
        std::find_if(first.begin(), first.begin() + count,
                     [&piece](const Piece* other) { return other->number > piece.number; });
    if (later == first.end()) continue;
    if (count < first.size()) ++count;
    std::move_backward(later, first.begin() + count - 1, first.begin() + count);
    *later = &piece;
  }
  WaitQuery query;
  for (std::size_t i = 0; i < count; ++i) AddEvidence(move, *first[i], query);
  held_.ForEach([this, &move, &query](const Message& message) {
    const MessageHeader& header = message.header;
    if (OrderOf(header.position) != OrderOf(move.position)) return;
    if (header.position > move.position && header.sender < choice_.data_count) {
      query.AddArrivalBeyond(header.sender);
    } else if (header.position == move.position) {
      const PieceView piece = ViewOf(move, header.piece);
      // Which of the servers may speak of a piece is only looked at when it begins.
      if (header.sender >= choice_.data_count && header.sender != piece.spec.owner) return;
      query.AddArrival(piece, header.sender, header.round);
    }
  });
  for (std::size_t i = 0; i < count; ++i) Ask(move, *first[i], query);
  return query.Answer(members_count());
}

void Group::AddEvidence(const Move& move, const Piece& piece, WaitQuery& query) const {
  const PieceView view = ViewOf(move, piece.number);
  for (std::size_t r = 0; r <= piece.round && r < piece.schedule.rounds_count; ++r) {
    const Round& round = piece.schedule.rounds[r];
    const auto senders = piece.schedule.Receives(round);
    for (std::size_t i = 0; i < senders.size(); ++i) {
      const bool came = r < piece.round || piece.receives[i] != Receive::kExpected;
      if (came) query.AddArrival(view, senders[i], round.number);
    }
  }
}

void Group::Ask(const Move& move, const Piece& piece, WaitQuery& query) const {
  if (piece.open_count == 0) return;  // waits for its own sum
  const PieceView view = ViewOf(move, piece.number);
  const Round& round = piece.schedule.rounds[piece.round];
  const bool at_once = wire_.GoesAtOnce(MessageSize(piece, round));
  for (const std::uint8_t peer : piece.schedule.Sends(round)) {
    if ((piece.is_on_wire & MemberBit(peer)) != 0) {
      if (at_once) {
        query.AddNotTaken(view, peer);
      } else {
        // Taken when the peer is there, for which it needs what comes before.
        query.AddExpected(view, peer, round.number);
      }
    } else if ((piece.waits_turn & MemberBit(peer)) != 0 && pacer_.IsStuck(links_[peer].flow)) {
      query.AddNotTaken(view, peer);
    }
  }
  const auto senders = piece.schedule.Receives(round);
  for (std::size_t i = 0; i < senders.size(); ++i) {
    if (piece.receives[i] == Receive::kExpected) {
      query.AddExpected(view, senders[i], round.number);
    }
  }
}

}  // namespace headrace::transport
