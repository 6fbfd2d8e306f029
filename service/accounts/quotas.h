// The limits and the present use of each uid: sessions, segments, bytes of segments, and memory
// that the service holds for it. Pure; the rpc thread only.
//
// A limit that the operator sets applies to everybody, root included. Without one, root and the
// service's own user have no limit, and other users have the default.
//
// Everything is booked on a session, and stays booked until the session has ended and the service
// has released its memory, which operations of ranks that have left may delay for long.
#pragma once

#include <cstdint>
#include <map>
#include <string_view>

#include "ipc/base/ids.h"
#include "ipc/base/result.h"

namespace headrace::service {

// 0: no limit.
struct QuotaLimits {
  std::uint64_t sessions = 0;
  std::uint64_t memory = 0;  // bytes
  // By default, and so not of root and `service_uid`:
  std::uint64_t memory_of_others = 0;        // where `memory` is 0
  std::uint64_t segments_of_others = 0;      // of one uid: each is a mapping of the service
  std::uint64_t segments_of_all_others = 0;  // of all of them together
  bool share_ranks = false;                  // see RankShares in rank_table.h
  std::uint32_t service_uid = 0;
};

class Quotas {
 public:
  explicit Quotas(QuotaLimits limits) : limits_(limits) {}

  // Whether the uid may open one more session. The errors name what it has, its quota and the key
  // that sets it.
  Status CheckSession(std::uint32_t uid) const;
  void Open(SessionId session, std::uint32_t uid);
  // The session has ended; what is not open is ignored.
  void Close(SessionId session);
  // The service has let go of its memory, before or after the end.
  void Discard(SessionId session);

  // Books `bytes`, of `what`, or says why not. Of a session that nothing is known of nothing is
  // booked.
  Status ReserveMemory(SessionId session, std::uint64_t bytes, std::string_view what);
  void ReleaseMemory(SessionId session, std::uint64_t bytes);
  // The same for one segment of `bytes`.
  Status ReserveSegment(SessionId session, std::uint64_t bytes);
  void ReleaseSegment(SessionId session, std::uint64_t bytes);

  std::size_t uids_count() const { return uids_.size(); }

  // What a uid has, of those that have something, and may have; 0 as a limit: there is none.
  struct Usage {
    std::uint64_t sessions = 0;
    std::uint64_t memory = 0;
    std::uint64_t segments = 0;
    std::uint64_t accounts = 0;  // sessions, and ended ones whose memory is still there
  };
  const std::map<std::uint32_t, Usage>& usages() const { return uids_; }
  std::uint64_t SessionLimit() const { return limits_.sessions; }
  std::uint64_t MemoryLimit(std::uint32_t uid) const;

 private:
  struct Account {
    std::uint32_t uid = 0;
    std::uint64_t memory = 0;
    std::uint64_t segments = 0;
    bool open = true;
    bool holds = true;
  };

  void EraseIfOver(std::map<SessionId, Account>::iterator account);
  bool IsExempt(std::uint32_t uid) const { return uid == 0 || uid == limits_.service_uid; }
  Status CheckSegments(std::uint32_t uid, const Usage& usage) const;
  void SubtractSegments(std::uint32_t uid, Usage& usage, std::uint64_t count);

  QuotaLimits limits_;
  std::map<std::uint32_t, Usage> uids_;  // those that have an account
  std::uint64_t segments_of_others_ = 0;
  std::map<SessionId, Account> sessions_;
};

}  // namespace headrace::service
