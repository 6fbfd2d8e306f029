#include "service/session/quorum.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "service/session/session.h"
#include "transport/transport.h"

namespace headrace::service {

std::optional<std::uint32_t> Membership::RankOf(std::uint32_t member) const {
  const auto found = std::ranges::lower_bound(members, member);
  if (found == members.end() || *found != member) return std::nullopt;
  return static_cast<std::uint32_t>(found - members.begin());
}

Status CheckMembership(const Membership& membership) {
  const std::size_t count = membership.members.size();
  if (count == 0 || count > transport::kMembersMax) {
    return Error(Code::kInvalidArgument, fmt::format("a job of {} members, 1 to {} are supported",
                                                     count, transport::kMembersMax));
  }
  if (membership.generation >= kEpochMax || membership.members.back() >= kEpochMax) {
    return Error(Code::kInvalidArgument,
                 fmt::format("member {} of generation {}: no job has come to {}",
                             membership.members.back(), membership.generation, kEpochMax));
  }
  const auto wrong = std::ranges::adjacent_find(membership.members, std::ranges::greater_equal{});
  if (wrong == membership.members.end()) return {};
  return Error(Code::kInvalidArgument,
               fmt::format("members {}, {}: they come in growing order", *wrong, *(wrong + 1)));
}

std::uint32_t Quorum::FirstNew(std::uint32_t generation) {
  static_assert(kApplicantsFrom == kEpochMax);
  static_assert(std::uint64_t{kEpochMax} * transport::kMembersMax <= UINT64_MAX / 2);
  const std::uint64_t first = std::uint64_t{generation} * transport::kMembersMax;
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(first, kEpochMax));
}

std::uint64_t HashOfMembers(const std::vector<std::uint32_t>& members) {
  if (members.empty()) return 0;
  std::uint64_t hash = 14695981039346656037U;  // FNV-1a
  for (const std::uint32_t member : members) {
    for (int shift = 0; shift < 32; shift += 8)
      hash = (hash ^ ((member >> shift) & 0xFFU)) * 1099511628211U;
  }
  return hash == 0 ? 1 : hash;
}

bool IsNewer(const Membership& one, const Membership& other) {
  return std::make_tuple(one.generation, one.members.size(), other.members) >
         std::make_tuple(other.generation, other.members.size(), one.members);
}

}  // namespace headrace::service
