// The rpc actor: the socket, the leases and the signals, on the thread that builds and runs it.
//
// It accepts clients, answers their calls (attach, segments, tensors, leave, admin), keeps the
// rank table of jobs and sends dispatch and peers what follows. It is never on the data path. A
// client costs at most its own connection: what it sends is bounded, paced, checked and refused,
// never trusted.
#pragma once

#include <kj/async-io.h>
#include <kj/async.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ipc/base/fd.h"
#include "ipc/base/result.h"
#include "ipc/board_layout.h"
#include "service/accounts/arrivals.h"
#include "service/accounts/leases.h"
#include "service/dispatch/messages.h"
#include "service/http/messages.h"
#include "service/loop/inbox_reader.h"
#include "service/loop/loop_inbox.h"
#include "service/loop/outbox.h"
#include "service/mapping/messages.h"
#include "service/peers/messages.h"
#include "service/rpc/bootstrap.h"
#include "service/rpc/control_options.h"
#include "service/rpc/dispatch_requests.h"
#include "service/rpc/listener.h"
#include "service/rpc/mapping_requests.h"
#include "service/rpc/messages.h"
#include "service/rpc/peers_requests.h"
#include "service/rpc/probe.h"
#include "service/rpc/session_notices.h"
#include "service/rpc/shutdown.h"
#include "service/rpc/supervision.h"
#include "service/rpc/user_rows.h"
#include "service/watch/messages.h"

namespace spdlog {
class logger;
}

namespace headrace::service {

// What control speaks to; all outlive it.
struct ControlPorts {
  LoopInbox<RpcMessage>& inbox;
  InboxWriter<DispatchMessage>& dispatch;
  InboxWriter<PeersMessage>& peers;
  InboxWriter<WatchMessage>& watch;
  InboxWriter<MappingMessage>& mapping;
  ipc::BoardSlot<ipc::ServiceRow>& board;
  spdlog::logger& log;
  std::vector<std::string> lane_names{};            // of all lanes, by their numbers
  InboxWriter<HttpMessage>* http = nullptr;         // null: nobody asks over HTTP
  std::span<ipc::BoardSlot<ipc::UserRow>> users{};  // empty: nobody looks at them
};

class Control final : private kj::TaskSet::ErrorHandler {
 public:
  // Binds the socket and listens; whoever calls this holds the socket path (see instance.h) and
  // runs on the thread that will call Run. Blocks SIGTERM, SIGINT, SIGHUP and SIGPIPE in this
  // thread and in the threads it starts later, so call it, or block them, before starting any.
  static Result<std::unique_ptr<Control>> Create(ControlOptions options, ControlPorts ports);
  ~Control() noexcept(false);
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  // Serves until SIGTERM, SIGINT or a person's drain, which waits for jobs first; then ends: no new
  // attach, open operations end within the drain timeout, all leases end. Returns the exit code: 0
  // drained, 1 when a second signal or the drain timeout plus one second cut it short,
  // kExitGpuBroken when a GPU's context broke, which ends it like a signal.
  int Run(Supervisor supervisor = {});

 private:
  Control(ControlOptions options, ControlPorts ports);
  // Clients may come: everything else is there.
  void Listen(UniqueFd socket);

  // Messages of other actors.
  void Handle(SegmentMapped message) { mapping_.Handle(std::move(message)); }
  void Handle(const SegmentProgress& message) { mapping_.Handle(message); }
  void Handle(SegmentRemoved message) { dispatch_.Handle(std::move(message)); }
  void Handle(const Pong& message);
  void Handle(const SessionBroken& message);
  void Handle(const ResidualsAllocated& message);
  void Handle(const BookScratch& message);
  void Handle(const ResidualsFreed& message);
  void Handle(const SessionDiscarded& message) { leases_.OnDiscarded(message.session); }
  void Handle(Drained /*message*/) { shutdown_.OnDrained(); }
  void Handle(const LaneAnswered& message) { probe_.Handle(message); }
  void Handle(const PartAnswered& message) { probe_.Handle(message); }
  void Handle(const JobFailed& message);
  void Handle(Answered message) { peers_.Handle(std::move(message)); }
  void Handle(PeersListed message) { peers_.Handle(std::move(message)); }
  void Handle(PeerTried message) { peers_.Handle(std::move(message)); }
  void Handle(QuorumAnswered message) { peers_.Handle(std::move(message)); }
  void Handle(const MembersWait& message);
  void Handle(const JobPlaced& message);
  void Handle(const AskProbe& message);
  void Handle(const LoopFailed& message) { shutdown_.Fail(message.cause); }
  void Handle(const GpuBroken& message) { shutdown_.OnGpuBroken(message.cause); }

  void ReportRanks();
  kj::Promise<void> WatchSignals();
  void Reload();
  kj::Promise<void> RetryUnsent();
  void Show(ipc::ServiceState state);
  void ShowUsersSoon();
  void ShowUsers();
  // One of control's own loops has ended: without it the service is deaf.
  void taskFailed(kj::Exception&& exception) override;

  ControlOptions options_;
  ControlPorts ports_;
  ipc::ServiceRow row_{};
  // What calls hold something of outlives the event loop: those that are under way when the service
  // stops go with the loop, and give it back.
  Leases leases_;
  Arrivals arrivals_;
  SlowRelease releases_;
  SessionNotices notices_;
  RequestTokens tokens_;
  kj::AsyncIoContext io_;
  kj::Timer& timer_;
  Outbox outbox_;
  DispatchRequests dispatch_;
  MappingRequests mapping_;
  PeersRequests peers_;
  Probe probe_;
  Shutdown shutdown_;
  UserRows users_;
  bool showing_users_ = false;  // soon
  SessionPorts session_ports_;
  AdminPorts admin_ports_;
  BootstrapPorts bootstrap_ports_;
  std::optional<Listener> listener_;
  Supervisor supervisor_;                   // while it runs
  std::optional<Supervision> supervision_;  // likewise
  InboxReader<RpcMessage> reader_;
  bool retrying_ = false;
  kj::TaskSet tasks_;
};

}  // namespace headrace::service
