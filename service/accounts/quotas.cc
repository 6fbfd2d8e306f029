#include "service/accounts/quotas.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "ipc/base/check.h"

namespace headrace::service {

Status Quotas::CheckSession(std::uint32_t uid) const {
  const auto found = uids_.find(uid);
  const std::uint64_t present = found == uids_.end() ? 0 : found->second.sessions;
  if (limits_.sessions == 0 || present < limits_.sessions) return {};
  return Error(
      Code::kExhausted,
      fmt::format("uid {} has {} sessions on this node and may have {} (sessions_per_uid): "
                  "end one, or ask the operator for more",
                  uid, present, limits_.sessions));
}

void Quotas::Open(SessionId session, std::uint32_t uid) {
  HR_CHECK(!sessions_.contains(session), session.value);
  sessions_.emplace(session, Account{.uid = uid});
  Usage& usage = uids_[uid];
  ++usage.sessions;
  ++usage.accounts;
}

void Quotas::Close(SessionId session) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end() || !std::exchange(found->second.open, false)) return;
  Usage& usage = uids_.at(found->second.uid);
  HR_CHECK(usage.sessions > 0 && usage.sessions <= usage.accounts, found->second.uid);
  --usage.sessions;
  EraseIfOver(found);
}

void Quotas::Discard(SessionId session) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return;
  found->second.holds = false;
  EraseIfOver(found);
}

void Quotas::EraseIfOver(std::map<SessionId, Account>::iterator account) {
  const Account& over = account->second;
  if (over.open || over.holds) return;
  const auto usage = uids_.find(over.uid);
  HR_CHECK(usage != uids_.end() && usage->second.accounts > 0, over.uid);
  HR_CHECK(usage->second.memory >= over.memory, over.uid, usage->second.memory);
  usage->second.memory -= over.memory;
  SubtractSegments(over.uid, usage->second, over.segments);
  if (--usage->second.accounts == 0) uids_.erase(usage);
  sessions_.erase(account);
}

std::uint64_t Quotas::MemoryLimit(std::uint32_t uid) const {
  if (limits_.memory != 0) return limits_.memory;
  return IsExempt(uid) ? 0 : limits_.memory_of_others;
}

Status Quotas::ReserveMemory(SessionId session, std::uint64_t bytes, std::string_view what) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return {};
  Usage& usage = uids_.at(found->second.uid);
  const std::uint64_t limit = MemoryLimit(found->second.uid);
  // Without a sum that could overflow.
  if (limit != 0 && (usage.memory > limit || bytes > limit - usage.memory)) {
    return Error(
        Code::kExhausted,
        fmt::format("{} of {} bytes beside the {} that uid {} has on this node; it may have {} "
                    "(memory_per_uid): release segments, or ask the operator for more",
                    what, bytes, usage.memory, found->second.uid, limit));
  }
  usage.memory += bytes;
  found->second.memory += bytes;
  return {};
}

void Quotas::ReleaseMemory(SessionId session, std::uint64_t bytes) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return;
  const std::uint64_t booked = std::min(bytes, found->second.memory);
  HR_CHECK(uids_.at(found->second.uid).memory >= booked, found->second.uid, booked);
  found->second.memory -= booked;
  uids_.at(found->second.uid).memory -= booked;
}

Status Quotas::CheckSegments(std::uint32_t uid, const Usage& usage) const {
  if (IsExempt(uid)) return {};
  if (limits_.segments_of_others != 0 && usage.segments >= limits_.segments_of_others) {
    return Error(Code::kExhausted,
                 fmt::format("uid {} has {} segments on this node and may have no more, an eighth "
                             "of the service's mappings (vm.max_map_count): register fewer and "
                             "larger ones, or ask the operator for more",
                             uid, usage.segments));
  }
  if (limits_.segments_of_all_others != 0 &&
      segments_of_others_ >= limits_.segments_of_all_others) {
    return Error(Code::kExhausted,
                 fmt::format("all users together have {} segments on this node and may have no "
                             "more, half of the service's mappings (vm.max_map_count): wait, or "
                             "ask the operator for more",
                             segments_of_others_));
  }
  return {};
}

void Quotas::SubtractSegments(std::uint32_t uid, Usage& usage, std::uint64_t count) {
  HR_CHECK(usage.segments >= count, uid, usage.segments, count);
  usage.segments -= count;
  if (IsExempt(uid)) return;
  HR_CHECK(segments_of_others_ >= count, segments_of_others_, count);
  segments_of_others_ -= count;
}

Status Quotas::ReserveSegment(SessionId session, std::uint64_t bytes) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return {};
  Usage& usage = uids_.at(found->second.uid);
  if (Status status = CheckSegments(found->second.uid, usage); !status) return status;
  if (Status status = ReserveMemory(session, bytes, "a segment"); !status) return status;
  ++usage.segments;
  ++found->second.segments;
  if (!IsExempt(found->second.uid)) ++segments_of_others_;
  return {};
}

void Quotas::ReleaseSegment(SessionId session, std::uint64_t bytes) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end() || found->second.segments == 0) return;
  ReleaseMemory(session, bytes);
  --found->second.segments;
  SubtractSegments(found->second.uid, uids_.at(found->second.uid), 1);
}

}  // namespace headrace::service
