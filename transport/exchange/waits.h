// For whom a transfer waits, by what has come and what has not. Pure.
//
// Which member holds a transfer up cannot always be seen: that a sum has not come from its owner
// may be because the owner waits for a third. But schedules say what each member needs before it
// can send, and every message that has come proves that all on its way had begun its piece. So, in
// this order:
//  1. Where messages have not come that their senders needed nothing from others for, it is those
//     senders; in the first pieces, as many as there are members, so that each owner has one.
//  2. Where all on the way of a message but one are known to have begun its piece, it is that one.
//  3. Else the sender, of the first piece: it can say more.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "transport/exchange/collective_schedule.h"

namespace headrace::transport {

// A piece, and how it moves.
struct PieceView {
  PieceSpec spec;  // of the node that asks
  std::uint32_t number = 0;
  bool announced = false;  // its messages end only when their receivers take them
};

// Who must have begun the piece before the `member`'s message of that round can be sent, the member
// itself included and `spec.self`, which asks, left out.
std::uint64_t NeededFor(const PieceView& piece, std::uint32_t member, std::uint32_t round);

class WaitQuery {
 public:
  static constexpr std::size_t kPiecesMax = 64;  // of those that are asked about

  // Evidence: a message has come. All of it before the first question.
  void AddArrival(const PieceView& piece, std::uint32_t sender, std::uint32_t round);
  // The member is beyond all pieces.
  void AddArrivalBeyond(std::uint32_t member) { begun_[member] = UINT32_MAX; }

  // Questions, in the order of the pieces: a message has not come, or the peer has not taken one.
  // At most kPiecesMax pieces count.
  void AddExpected(const PieceView& piece, std::uint32_t sender, std::uint32_t round);
  // One that goes at once: nobody but the peer, or the way to it, holds it up.
  void AddNotTaken(const PieceView& piece, std::uint32_t peer) {
    Question(piece.number).certain |= MemberBit(peer);
  }

  std::uint64_t Answer(std::uint32_t members_count) const;

 private:
  struct Asked {
    std::uint32_t piece = 0;
    std::uint64_t certain = 0;  // needed nothing from others
    std::uint64_t direct = 0;   // who was to send or take
    std::uint64_t needed = 0;   // all on the way
  };
  Asked& Question(std::uint32_t piece);

  std::array<std::uint32_t, kNodesMax> begun_{};  // by member: pieces below were begun
  std::array<Asked, kPiecesMax + 1> asked_{};     // the last is for those that do not count
  std::size_t asked_count_ = 0;
};

}  // namespace headrace::transport
