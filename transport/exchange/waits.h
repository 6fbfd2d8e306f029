// Finds the members that a transfer waits for, from the messages that have and have not arrived.
// Pure.
//
// The member that delays a transfer is not always the sender of a missing message: the owner of a
// sum may itself wait for a third member. Schedules tell what each member needs before it can send,
// and a message that has arrived proves that all members on its path have begun its piece. The
// rules, in this order:
//  1. If a message is missing that its sender can send without input from others, it is that
//  sender.
//     Only as many first pieces as there are members are looked at, so that each owner has one.
//  2. If all members but one on the path of a missing message are known to have begun its piece, it
//     is that one.
//  3. Otherwise it is the sender of the first missing piece, which may know more.
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
