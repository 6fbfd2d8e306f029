#include "service/accounts/quotas.h"

#include <fmt/format.h>

#include <algorithm>

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
  ++uids_[uid].sessions;
}

void Quotas::Close(SessionId session) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return;
  const auto usage = uids_.find(found->second.uid);
  HR_CHECK(usage != uids_.end() && usage->second.sessions > 0, found->second.uid);
  HR_CHECK(usage->second.memory >= found->second.memory, found->second.uid, usage->second.memory);
  usage->second.memory -= found->second.memory;
  if (--usage->second.sessions == 0) uids_.erase(usage);
  sessions_.erase(found);
}

std::uint64_t Quotas::MemoryLimit(std::uint32_t uid) const {
  if (limits_.memory != 0) return limits_.memory;
  return uid == 0 || uid == limits_.service_uid ? 0 : limits_.memory_of_others;
}

Status Quotas::ReserveMemory(SessionId session, std::uint64_t bytes) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return {};
  const Usage& usage = uids_.at(found->second.uid);
  const std::uint64_t limit = MemoryLimit(found->second.uid);
  // Without a sum that could overflow.
  if (limit != 0 && (usage.memory > limit || bytes > limit - usage.memory)) {
    return Error(
        Code::kExhausted,
        fmt::format("a segment of {} bytes beside the {} that uid {} has on this node; it may have "
                    "{} (memory_per_uid): release segments, or ask the operator for more",
                    bytes, usage.memory, found->second.uid, limit));
  }
  BookMemory(session, bytes);
  return {};
}

void Quotas::BookMemory(SessionId session, std::uint64_t bytes) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return;
  uids_.at(found->second.uid).memory += bytes;
  found->second.memory += bytes;
}

void Quotas::ReleaseMemory(SessionId session, std::uint64_t bytes) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return;
  const std::uint64_t booked = std::min(bytes, found->second.memory);
  HR_CHECK(uids_.at(found->second.uid).memory >= booked, found->second.uid, booked);
  found->second.memory -= booked;
  uids_.at(found->second.uid).memory -= booked;
}

}  // namespace headrace::service
