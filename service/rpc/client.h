// One connection's client: its process, and the session that it carries. The rpc thread only.
#pragma once

#include <kj/refcount.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "ipc/base/ids.h"
#include "service/accounts/leases.h"
#include "service/loop/message_pacer.h"
#include "service/rpc/client_process.h"

namespace headrace::service {

// Shared by its connection and by the capabilities it was given, which may outlive the connection
// by the calls that are still under way.
struct Client : public kj::Refcounted {
  // `its_leases` outlives this, and the event loop. All connections of the uid share `its_pace`;
  // calls that are still under way may outlive them.
  Client(Leases& its_leases, ClientProcess accepted, std::shared_ptr<MessagePacer> its_pace,
         bool is_surplus)
      : leases(its_leases), process(accepted), pace(std::move(its_pace)), surplus(is_surplus) {}

  // Books a call, on its arrival, that costs as much as so many messages more. Its user's next
  // messages wait for it.
  void Charge(TimeNs messages) { pace->Book(messages, MonotonicNow()); }

  Leases& leases;
  ClientProcess process;
  std::shared_ptr<MessagePacer> pace;
  // Beyond the limit on connections: its attach is refused.
  bool surplus;
  // The connection carries at most one open session.
  SessionId session;
  bool attaching = false;  // a call to attach is not answered yet
  int refusals_reported = 0;
  // Number of a client that asks who is left of a job; 0: none. `quorum_lost` is called once, when
  // the connection is gone.
  std::uint64_t quorum_client = 0;
  std::function<void(bool exited)> quorum_lost{};

  // Ends the session, if one is open, without its having left: the cause says whether the process
  // is gone or only its connection.
  void Lose() {
    if (session == SessionId{} && !quorum_lost) return;
    const bool exited = HasExited(process);
    if (const auto lost = std::exchange(quorum_lost, {})) lost(exited);
    if (session == SessionId{}) return;
    leases.End(session, false, Code::kPeerLost,
               exited ? "exited or was killed" : "closed its connection", exited);
  }
};

}  // namespace headrace::service
