#include "transport/exchange/waits.h"

#include <algorithm>
#include <bit>

namespace headrace::transport {
namespace {

// Follows the messages of one piece back to where they begin.
class Trail {
 public:
  explicit Trail(const PieceView& piece) : piece_(piece) {}

  // Each member is looked at once for each of its rounds, at most.
  void Follow(std::uint32_t member, std::uint32_t round) {
    if (member == piece_.spec.self) return;
    needed_ |= MemberBit(member);
    if (round <= seen_[member]) return;
    const std::uint8_t begin = seen_[member];
    seen_[member] = static_cast<std::uint8_t>(round);
    PieceSpec spec = piece_.spec;
    spec.self = member;
    const CollectiveSchedule schedule = MakeSchedule(spec);
    for (const Round& earlier : schedule.Rounds()) {
      if (earlier.number < begin || earlier.number >= round) continue;
      for (const std::uint8_t sender : schedule.Receives(earlier)) Follow(sender, earlier.number);
      if (!piece_.announced || earlier.empty) continue;
      for (const std::uint8_t taker : schedule.Sends(earlier)) Follow(taker, earlier.number);
    }
  }
  std::uint64_t needed() const { return needed_; }

 private:
  const PieceView& piece_;
  std::uint64_t needed_ = 0;
  std::array<std::uint8_t, kNodesMax> seen_{};  // by member: rounds below were followed
};

}  // namespace

std::uint64_t NeededFor(const PieceView& piece, std::uint32_t member, std::uint32_t round) {
  Trail trail(piece);
  trail.Follow(member, round);
  return trail.needed();
}

void WaitQuery::AddArrival(const PieceView& piece, std::uint32_t sender, std::uint32_t round) {
  for (std::uint64_t left = NeededFor(piece, sender, round); left != 0; left &= left - 1) {
    std::uint32_t& begun = begun_[static_cast<std::size_t>(std::countr_zero(left))];
    begun = std::max(begun, piece.number + 1);
  }
}

void WaitQuery::AddExpected(const PieceView& piece, std::uint32_t sender, std::uint32_t round) {
  Asked& asked = Question(piece.number);
  const std::uint64_t needed = NeededFor(piece, sender, round);
  asked.direct |= MemberBit(sender);
  asked.needed |= needed;
  if (needed == MemberBit(sender)) asked.certain |= needed;
}

WaitQuery::Asked& WaitQuery::Question(std::uint32_t piece) {
  if (asked_count_ > 0 && asked_[asked_count_ - 1].piece == piece) return asked_[asked_count_ - 1];
  if (asked_count_ == kPiecesMax) return asked_[kPiecesMax];
  asked_[asked_count_] = {.piece = piece};
  return asked_[asked_count_++];
}

std::uint64_t WaitQuery::Answer(std::uint32_t members_count) const {
  const auto all = std::span(asked_).first(asked_count_);
  std::uint64_t certain = 0;
  for (const Asked& asked : all) {
    const bool is_first = asked.piece - all.front().piece < members_count;
    if (is_first || certain == 0) certain |= asked.certain;
  }
  if (certain != 0) return certain;
  for (const Asked& asked : all) {
    std::uint64_t left = 0;
    for (std::uint64_t each = asked.needed; each != 0; each &= each - 1) {
      const auto member = static_cast<std::size_t>(std::countr_zero(each));
      if (begun_[member] <= asked.piece) left |= MemberBit(member);
    }
    if (std::has_single_bit(left)) return left;
  }
  return all.empty() ? 0 : all.front().direct;
}

}  // namespace headrace::transport
