#include "transport/exchange/waits.h"

#include <algorithm>
#include <bit>

namespace headrace::transport {
namespace {

// Follows the messages of one piece back to where they begin.
class Trail {
 public:
  explicit Trail(const Place& place) : place_(place) {}

  // Each member is looked at once for each of its rounds, at most.
  void Follow(std::uint32_t member, std::uint32_t round) {
    if (member == place_.self) return;
    needed_ |= MemberBit(member);
    if (round <= seen_[member]) return;
    const std::uint8_t begin = seen_[member];
    seen_[member] = static_cast<std::uint8_t>(round);
    Place place = place_;
    place.self = member;
    const Script script = MakeScript(place);
    for (const Round& earlier : script.Rounds()) {
      if (earlier.number < begin || earlier.number >= round) continue;
      for (const std::uint8_t sender : script.Receives(earlier)) Follow(sender, earlier.number);
    }
  }
  std::uint64_t needed() const { return needed_; }

 private:
  const Place& place_;
  std::uint64_t needed_ = 0;
  std::array<std::uint8_t, kNodesMax> seen_{};  // by member: rounds below were followed
};

}  // namespace

std::uint64_t NeededFor(const Place& place, std::uint32_t member, std::uint32_t round) {
  Trail trail(place);
  trail.Follow(member, round);
  return trail.needed();
}

void Inquiry::Came(const Place& place, std::uint32_t piece, std::uint32_t sender,
                   std::uint32_t round) {
  for (std::uint64_t left = NeededFor(place, sender, round); left != 0; left &= left - 1) {
    std::uint32_t& begun = begun_[static_cast<std::size_t>(std::countr_zero(left))];
    begun = std::max(begun, piece + 1);
  }
}

void Inquiry::Expects(const Place& place, std::uint32_t piece, std::uint32_t sender,
                      std::uint32_t round) {
  Asked& asked = Question(piece);
  const std::uint64_t needed = NeededFor(place, sender, round);
  asked.direct |= MemberBit(sender);
  asked.needed |= needed;
  if (needed == MemberBit(sender)) asked.certain |= needed;
}

Inquiry::Asked& Inquiry::Question(std::uint32_t piece) {
  if (asked_count_ > 0 && asked_[asked_count_ - 1].piece == piece) return asked_[asked_count_ - 1];
  if (asked_count_ == kPiecesMax) return asked_[kPiecesMax];
  asked_[asked_count_] = {.piece = piece};
  return asked_[asked_count_++];
}

std::uint64_t Inquiry::Answer() const {
  const auto all = std::span(asked_).first(asked_count_);
  for (const Asked& asked : all) {
    if (asked.certain != 0) return asked.certain;
  }
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
