// The leases: which sessions are open, and the messages to dispatch and the events when one begins
// or ends. The rpc thread only; knows no socket.
//
// A lease ends once, with the first cause. Its rank is free again only after dispatch was sent it,
// so that dispatch never sees a rank join before it saw it go.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ipc/base/fd.h"
#include "ipc/board_layout.h"
#include "ipc/channel.h"
#include "service/accounts/quotas.h"
#include "service/accounts/rank_table.h"
#include "service/actor/inbox.h"
#include "service/dispatch/messages.h"
#include "service/watch/messages.h"

namespace headrace::service {

// Whoever attaches, as rpc established it; id, job id and epoch are given by Leases.
using LeaseRequest = SessionIdentity;

class Leases {
 public:
  Leases(InboxWriter<DispatchMessage>& dispatch, InboxWriter<WatchMessage>& watch,
         QuotaLimits quotas = {})
      : dispatch_(dispatch),
        watch_(watch),
        ranks_({.bounded = quotas.share_ranks, .service_uid = quotas.service_uid}),
        quotas_(quotas) {}

  // Seats the rank and opens its session in dispatch. The answer has all numbers filled in.
  Result<SessionIdentity> Open(LeaseRequest request, ipc::Channel channel, UniqueFd doorbell);

  // Ends the lease; later calls for the same session do nothing. `code` and `cause` are what calls
  // on the session are answered from then on.
  void End(SessionId session, bool orderly, Code code, const std::string& cause,
           bool exited = false);
  void EndAll(Code code, const std::string& cause);
  // Whether the lease is open, or the error it ended with.
  Status Check(SessionId session) const;
  // Who that is; null when the lease has ended.
  const SessionIdentity* Find(SessionId session) const;
  // Those that are open.
  std::vector<SessionId> SessionsOf(JobId job) const;
  // Open sessions of its process in other jobs, as far as the kernel knows the process.
  std::vector<SessionId> OtherJobsOf(const SessionIdentity& identity) const;
  // The jobs of all open sessions, for a service that wants to end.
  struct OpenJob {
    JobId job;
    std::string name;
    std::uint32_t uid = 0;      // of its owner
    bool can_reconnect = true;  // all of its ranks here
  };
  std::vector<OpenJob> OpenJobs() const;
  // Nobody will ask for this session again.
  void Forget(SessionId session);

  // Sends dispatch the ends of leases that it had no room for. True when nothing is left.
  bool Flush();
  // `notice` is called whenever something is left to Flush.
  void OnUnsent(std::function<void()> notice) { on_unsent_ = std::move(notice); }

  // `notice` is called when a rank has its slot.
  void OnOpened(std::function<void(const SessionIdentity&)> notice) {
    on_opened_ = std::move(notice);
  }
  // `notice` is called when a lease has ended, in order or not, and before dispatch is sent it:
  // what dispatch then says of the rank comes after it.
  using Ended = std::function<void(const SessionIdentity&, const CloseSession&)>;
  void OnEnded(Ended notice) { on_ended_ = std::move(notice); }
  // The job has failed for a cause on another node: it takes no new rank until all are gone.
  void FailJob(JobId job, Code code, const std::string& cause);

  // Says something to people; `uid` whose doing it is, which bounds how often it is shown.
  void ReportEvent(Code code, JobId job, std::string text, std::optional<std::uint32_t> uid = {});

  // Books `bytes`, of `what` ("tensors"), on the session's uid until the lease has ended and the
  // session's memory is gone, unless they are given back before; or says why that uid may not have
  // them.
  Status ReserveMemory(SessionId session, std::uint64_t bytes, std::string_view what);
  void ReleaseMemory(SessionId session, std::uint64_t bytes);
  // The same for a segment, of which a uid may have so many only.
  Status ReserveSegment(SessionId session, std::uint64_t bytes);
  void ReleaseSegment(SessionId session, std::uint64_t bytes);
  // The service has let go of the session's memory. What was booked on it goes, once it has ended.
  void OnDiscarded(SessionId session);

  // `notice` is called whenever what a uid has has changed.
  void OnUsed(std::function<void()> notice) { on_used_ = std::move(notice); }
  // The uids that have sessions, and, in `row`, what its uid has of them and may have.
  std::vector<std::uint32_t> Users() const;
  void Describe(ipc::UserRow& row) const;

  std::size_t open_count() const { return ranks_.ranks_count(); }

 private:
  struct Lease {
    SessionIdentity identity;
    Status ended;  // ok while open
  };

  bool SendClose(const CloseSession& close);
  // Dispatch counts what is refused for a quota, for the board.
  void CountRefusal();

  InboxWriter<DispatchMessage>& dispatch_;
  InboxWriter<WatchMessage>& watch_;
  RankTable ranks_;
  Quotas quotas_;
  std::uint64_t refusals_uncounted_ = 0;
  std::map<SessionId, Lease> leases_;
  std::vector<CloseSession> unsent_;
  std::function<void()> on_unsent_ = [] {};
  std::function<void()> on_used_ = [] {};
  std::function<void(const SessionIdentity&)> on_opened_ = [](const SessionIdentity&) {};
  Ended on_ended_ = [](const SessionIdentity&, const CloseSession&) {};
  std::uint64_t sessions_opened_ = 0;
};

}  // namespace headrace::service
