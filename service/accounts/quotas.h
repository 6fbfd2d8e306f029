// What each uid may have of this service at a time, and has: sessions and bytes of segments. Pure;
// the rpc thread only.
//
// A limit that the operator sets holds for everybody, root included. Without one, root and the
// service's own user have none, and the others what is left to them by default.
//
// Everything is booked on a session, and all of it goes with the session, however that ends.
#pragma once

#include <cstdint>
#include <map>

#include "ipc/base/ids.h"
#include "ipc/base/result.h"

namespace headrace::service {

// 0: no limit.
struct QuotaLimits {
  std::uint64_t sessions = 0;
  std::uint64_t memory = 0;  // bytes
  // By default, and so not of root and `service_uid`:
  std::uint64_t memory_of_others = 0;  // where `memory` is 0
  bool share_ranks = false;            // see RankShares in rank_table.h
  std::uint32_t service_uid = 0;
};

class Quotas {
 public:
  explicit Quotas(QuotaLimits limits) : limits_(limits) {}

  // Whether the uid may open one more session. The errors name what it has, its quota and the key
  // that sets it.
  Status CheckSession(std::uint32_t uid) const;
  void Open(SessionId session, std::uint32_t uid);
  // With all that is booked on it; what is not open is ignored.
  void Close(SessionId session);

  // Books `bytes` of a segment, or says why not. Of a session that is not open nothing is booked.
  Status ReserveMemory(SessionId session, std::uint64_t bytes);
  // Books memory that the service has allocated for the session already, beyond the quota if it
  // must be: the uid then gets no more until it is below it again.
  void BookMemory(SessionId session, std::uint64_t bytes);
  void ReleaseMemory(SessionId session, std::uint64_t bytes);

  std::size_t uids_count() const { return uids_.size(); }

  // What a uid has, of those with open sessions, and may have; 0 as a limit: there is none.
  struct Usage {
    std::uint64_t sessions = 0;
    std::uint64_t memory = 0;
  };
  const std::map<std::uint32_t, Usage>& usages() const { return uids_; }
  std::uint64_t SessionLimit() const { return limits_.sessions; }
  std::uint64_t MemoryLimit(std::uint32_t uid) const;

 private:
  struct Account {
    std::uint32_t uid = 0;
    std::uint64_t memory = 0;
  };

  QuotaLimits limits_;
  std::map<std::uint32_t, Usage> uids_;  // those with open sessions
  std::map<SessionId, Account> sessions_;
};

}  // namespace headrace::service
