// What all connections of clients share, and what rpc knows of each client. The rpc thread only.
#pragma once

#include <capnp/capability.h>
#include <kj/refcount.h>
#include <kj/timer.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/base/fd.h"
#include "ipc/schema/client.capnp.h"
#include "service/accounts/arrivals.h"
#include "service/accounts/leases.h"
#include "service/loop/text.h"
#include "service/rpc/answers.h"
#include "service/rpc/control.h"
#include "service/rpc/peer.h"

namespace headrace::service {

class Outbox;
class Probe;

// A service that moves its jobs over and ends.
struct DrainBegun {
  std::uint32_t sessions = 0;        // that are open
  std::vector<std::string> waits{};  // names of the jobs that cannot reconnect
};

// Outlives the event loop: calls that are under way when the service stops are dropped with the
// loop, and give back what they hold here.
struct Desk {
  const ControlOptions& options;
  Door<DispatchMessage>& dispatch;
  Door<PeersMessage>& peers;
  Door<WatchMessage>& watch;
  Door<MappingMessage>& mapping;
  Leases leases;
  Answers answers;
  Arrivals arrivals{};
  Outbox* outbox = nullptr;                     // set while the event loop is there
  Probe* probe = nullptr;                       // likewise
  kj::Timer* timer = nullptr;                   // the event loop's; set once there is one
  kj::ForkedPromise<void>* stopping = nullptr;  // likewise; resolves when the service begins to
  // Likewise; begins a drain of the whole service for `uid`, whose jobs that cannot reconnect have
  // so long.
  std::function<Result<DrainBegun>(std::uint32_t uid, TimeNs patience_ns)> drain{};
  TimeNs drain_patience_ns = 0;  // once it has begun
  bool draining = false;
  bool stop_refusal_said = false;  // of a session, because of that
};

// One connection's client. Shared by its connection and by the capabilities it was given, which
// may outlive the connection by the calls that are still under way.
struct Client : public kj::Refcounted {
  Client(Desk& shared_desk, Peer accepted_peer, bool is_surplus)
      : desk(shared_desk), peer(accepted_peer), surplus(is_surplus) {}

  Desk& desk;
  Peer peer;
  // Beyond the limit on connections: it is told so when it attaches.
  bool surplus;
  // The connection carries at most one open session.
  SessionId session;
  int refusals_said = 0;

  // Ends the session, if one is open, without its having left: the cause says whether the process
  // is gone or only its connection.
  void Lose();
};

// Names both versions and both programs when they differ.
Status CheckHello(schema::Hello::Reader hello, std::string_view service_version);

// A copy of the descriptor a client passed as a capability; `what` names it in errors.
kj::Promise<Result<UniqueFd>> TakeDescriptor(schema::Descriptor::Client descriptor,
                                             std::string what);

}  // namespace headrace::service
