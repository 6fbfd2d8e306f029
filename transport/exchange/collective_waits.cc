#include "transport/exchange/collective_waits.h"

#include <algorithm>
#include <array>

namespace headrace::transport {

PieceView CollectiveWaits::ViewOf(const OpenCollective& collective, std::uint32_t piece) const {
  const auto bytes = static_cast<std::size_t>(collective.partition.PieceRange(piece).count);
  return {.spec = PieceSpecOf(collective, piece, DataCount(options_), options_.self),
          .number = piece,
          .announced = !wire_.IsEager(bytes * SizeOf(collective.spec.dtype))};
}

std::uint64_t CollectiveWaits::Missing(const OpenCollective& collective,
                                       std::uint64_t stuck) const {
  // The first of its pieces, in their order.
  std::array<const OpenPiece*, WaitQuery::kPiecesMax> first{};
  std::size_t count = 0;
  for (const OpenPiece& piece : open_.pieces()) {
    if (!piece.active || &open_.at(piece.collective) != &collective) continue;
    const auto later =
        std::find_if(first.begin(), first.begin() + count,
                     [&piece](const OpenPiece* other) { return other->number > piece.number; });
    if (later == first.end()) continue;
    if (count < first.size()) ++count;
    std::move_backward(later, first.begin() + count - 1, first.begin() + count);
    *later = &piece;
  }
  WaitQuery query;
  for (std::size_t i = 0; i < count; ++i) AddEvidence(collective, *first[i], query);
  AddHeld(collective, query);
  for (std::size_t i = 0; i < count; ++i) Ask(collective, *first[i], stuck, query);
  return query.Answer(static_cast<std::uint32_t>(options_.members.size()));
}

void CollectiveWaits::AddHeld(const OpenCollective& collective, WaitQuery& query) const {
  const std::uint32_t data_count = DataCount(options_);
  held_.ForEach([&](const Message& message) {
    const MessageHeader& header = message.header;
    const auto kind = static_cast<Collective>(header.kind);
    if (OrderOf(header.position, kind) != OrderOf(collective)) return;
    if (header.position > collective.position && header.sender < data_count) {
      query.AddArrivalBeyond(header.sender);
    } else if (header.position == collective.position) {
      const PieceView piece = ViewOf(collective, header.piece);
      // Which of the servers may speak of a piece is only looked at when it begins.
      if (header.sender >= data_count && header.sender != piece.spec.owner) return;
      query.AddArrival(piece, header.sender, header.round);
    }
  });
}

void CollectiveWaits::AddEvidence(const OpenCollective& collective, const OpenPiece& piece,
                                  WaitQuery& query) const {
  const PieceView view = ViewOf(collective, piece.number);
  for (std::size_t r = 0; r <= piece.round && r < piece.schedule.rounds_count; ++r) {
    const Round& round = piece.schedule.rounds[r];
    const auto senders = piece.schedule.Receives(round);
    for (std::size_t i = 0; i < senders.size(); ++i) {
      const bool came = r < piece.round || piece.receives[i] != ReceiveState::kExpected;
      if (came) query.AddArrival(view, senders[i], round.number);
    }
  }
}

void CollectiveWaits::Ask(const OpenCollective& collective, const OpenPiece& piece,
                          std::uint64_t stuck, WaitQuery& query) const {
  if (piece.open_count == 0) return;  // waits for its own sum
  const PieceView view = ViewOf(collective, piece.number);
  const Round& round = piece.schedule.rounds[piece.round];
  const bool at_once = wire_.IsEager(piece.MessageSize(collective.spec, round));
  for (const std::uint8_t peer : piece.schedule.Sends(round)) {
    if ((piece.is_on_wire & MemberBit(peer)) != 0) {
      if (at_once) {
        query.AddNotTaken(view, peer);
      } else {
        // Taken when the peer is there, for which it needs what comes before.
        query.AddExpected(view, peer, round.number);
      }
    } else if ((piece.waits_turn & MemberBit(peer)) != 0 && (stuck & MemberBit(peer)) != 0) {
      query.AddNotTaken(view, peer);
    }
  }
  const auto senders = piece.schedule.Receives(round);
  for (std::size_t i = 0; i < senders.size(); ++i) {
    if (piece.receives[i] == ReceiveState::kExpected) {
      query.AddExpected(view, senders[i], round.number);
    }
  }
}

}  // namespace headrace::transport
