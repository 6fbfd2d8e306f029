#include "service/control/control.h"

#include <fmt/format.h>
#include <kj/async-io.h>
#include <kj/async-unix.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "ipc/board.h"
#include "service/control/desk.h"
#include "service/control/helm.h"
#include "service/control/http/http_listener.h"
#include "service/control/listener.h"
#include "service/control/outbox.h"
#include "service/control/peers/peers.h"
#include "service/control/plans.h"
#include "service/control/probe.h"
#include "service/control/supervision.h"

namespace headrace::service {
namespace {

// How long dispatch may outlive its own drain deadline before control stops waiting for it.
constexpr TimeNs kDrainGrace = kSecond;
constexpr auto kRetryDelay = 10 * kj::MILLISECONDS;
// A connection costs its socket and the doorbell, and for the time of a call what it carries.
constexpr std::uint64_t kDescriptorsPerConnection = 4;
constexpr std::uint64_t kDescriptorsOfOurs = 64;
// Other services take none away from clients, nor clients from them.
constexpr std::uint64_t kDescriptorsOfPeers = kPeerConnectionsMax + kHandshakesMax;

std::uint32_t ConnectionsThatFit(std::uint32_t wanted, bool has_peers) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return wanted;
  const std::uint64_t reserved = kDescriptorsOfOurs + (has_peers ? kDescriptorsOfPeers : 0);
  const std::uint64_t usable =
      std::max<std::uint64_t>(limit.rlim_cur, reserved + kDescriptorsPerConnection) - reserved;
  return static_cast<std::uint32_t>(
      std::min<std::uint64_t>(wanted, usable / kDescriptorsPerConnection));
}

}  // namespace

class Control::Loop final : private kj::TaskSet::ErrorHandler {
 public:
  Loop(ControlOptions options, ControlPorts ports);
  ~Loop();
  // Meets other services; before Run.
  Status Meet();
  // Clients may come: everything else is there.
  void Listen(UniqueFd socket) {
    listener_.emplace(std::move(socket), io_.unixEventPort, *io_.lowLevelProvider, desk_);
  }
  unsigned peer_port() const { return peers_->port(); }
  // Opens the door to metrics, health and status page, where there is one; before Run.
  Status Publish();
  int Run(Supervisor supervisor);

 private:
  kj::Promise<void> ReadInbox();
  kj::Promise<void> WatchSignals();
  kj::Promise<void> RetryUntold();

  void Handle(SegmentMapped message);
  void Handle(SegmentRemoved message);
  void Handle(const Pong& message);
  void Handle(const SessionBroken& message);
  void Handle(Drained message);
  void Handle(const LaneAnswered& message) { probe_.Take(message); }
  void Handle(const PlanTaken& message) { plans_->Take(message); }
  void Handle(const TimesSeen& message) { plans_->Take(message); }
  void Handle(const PlanMade& message) { plans_->Take(message); }
  // What is left is for the peers.
  template <typename Message>
  void Handle(const Message& message) {
    peers_->Take(message);
  }

  void BeginDrain(int signal);
  kj::Promise<void> SendDrain(Drain message);
  void Finish(int code);
  void Show(ipc::ServiceState state);
  // One of control's own loops has ended: without it the service is deaf.
  void taskFailed(kj::Exception&& exception) override;

  ControlOptions options_;
  ControlPorts ports_;
  ipc::ServiceRow row_{};
  Desk desk_;
  kj::AsyncIoContext io_;
  Outbox outbox_;
  Probe probe_;
  kj::Own<Peers> peers_;
  kj::Own<Plans> plans_;
  kj::Own<Helm> helm_;
  std::optional<Listener> listener_;
  std::optional<Supervision> supervision_;  // while it runs
  // Null without an address. A door for looking only: it may close with the event loop.
  kj::Own<HttpListener> http_;
  kj::UnixEventPort::FdObserver inbox_observer_;
  std::vector<ControlMessage> messages_;
  bool retrying_ = false;
  kj::Own<kj::PromiseFulfiller<int>> finished_;
  kj::Promise<int> exit_code_ = nullptr;
  kj::TaskSet tasks_;
};

Control::Loop::Loop(ControlOptions options, ControlPorts ports)
    : options_(std::move(options)),
      ports_(std::move(ports)),
      desk_{.options = options_,
            .dispatch = ports_.dispatch,
            .watch = ports_.watch,
            .leases = Leases(ports_.dispatch, ports_.watch, options_.quotas),
            .answers = {}},
      io_(kj::setupAsyncIo()),
      outbox_(ports_, io_.provider->getTimer()),
      probe_(ports_.dispatch, ports_.lane_names, io_.provider->getTimer(), desk_.answers),
      inbox_observer_(io_.unixEventPort, ports_.inbox.event_fd(),
                      kj::UnixEventPort::FdObserver::OBSERVE_READ),
      tasks_(*this) {
  desk_.leases.OnUntold([this] {
    if (!std::exchange(retrying_, true)) tasks_.add(RetryUntold());
  });
  desk_.timer = &io_.provider->getTimer();
  desk_.probe = &probe_;
  auto pair = kj::newPromiseAndFulfiller<int>();
  finished_ = kj::mv(pair.fulfiller);
  exit_code_ = kj::mv(pair.promise);
  row_.pid = ::getpid();
  row_.uid = ::getuid();
  row_.protocol_version = schema::PROTOCOL_VERSION;
  row_.started_ns = MonotonicNow();
  row_.started_unix_ns = UnixNow();
  ipc::SetText(row_.version, options_.version);
  ipc::SetText(row_.socket_path, options_.socket_path);
  ipc::SetText(row_.reduce_target, options_.reduce_target);
  Show(ipc::ServiceState::kStarting);
}

Control::Loop::~Loop() {
  // There is nobody left to try again, or to tell.
  desk_.leases.OnUntold([] {});
  desk_.leases.OnOpened([](const SessionIdentity&) {});
  desk_.leases.OnLost([](const SessionIdentity&, const std::string&) {});
  desk_.leases.OnEnded([](const SessionIdentity&) {});
  desk_.peers = nullptr;
  desk_.plans = nullptr;
  desk_.helm = nullptr;
  desk_.probe = nullptr;
  Show(ipc::ServiceState::kStopped);
}

void Control::Loop::Show(ipc::ServiceState state) {
  row_.state = static_cast<std::uint32_t>(state);
  ipc::WriteRow(ports_.board, row_);
}

Status Control::Loop::Meet() {
  Result<kj::Own<Peers>> peers = Peers::Create(desk_, ports_, io_, outbox_);
  if (!peers) return peers.error();
  peers_ = kj::mv(peers).value();
  desk_.peers = peers_.get();
  plans_ = kj::heap<Plans>(desk_, *peers_, outbox_);
  desk_.plans = plans_.get();
  helm_ = kj::heap<Helm>(desk_, *peers_, *plans_);
  desk_.helm = helm_.get();
  desk_.leases.OnOpened([this](const SessionIdentity& identity) {
    plans_->RankAttached(identity);
    peers_->RankAttached(identity);
  });
  desk_.leases.OnEnded([this](const SessionIdentity& identity) { plans_->RankEnded(identity); });
  desk_.leases.OnLost([this](const SessionIdentity& identity, const std::string& cause) {
    peers_->RankLost(identity, cause);
  });
  return {};
}

Status Control::Loop::Publish() {
  if (options_.http_address.empty()) return {};
  HR_CHECK(ports_.whole_board != nullptr, options_.http_address);
  Result<kj::Own<HttpListener>> http = HttpListener::Create(
      options_.http_address, *ports_.whole_board, [this] { return probe_.Ask(); }, io_);
  if (!http) return http.error();
  http_ = kj::mv(http).value();
  ports_.log.info(
      "metrics, health and status page on http_address {} (port {}), for everyone "
      "who reaches it",
      options_.http_address, http_->port());
  return {};
}

int Control::Loop::Run(Supervisor supervisor) {
  supervision_.emplace(std::move(supervisor), probe_, io_.provider->getTimer());
  tasks_.add(supervision_->Feed());
  tasks_.add(listener_->Accept());
  tasks_.add(ReadInbox());
  tasks_.add(WatchSignals());
  Show(ipc::ServiceState::kRunning);
  ports_.log.info("listening on {}, for up to {} connections", options_.socket_path,
                  options_.connections_max);
  const int code = exit_code_.wait(io_.waitScope);
  peers_->Stop().wait(io_.waitScope);
  desk_.leases.EndAll(Code::kUnavailable, "ended: the service is stopping");
  Show(ipc::ServiceState::kStopped);
  return code;
}

kj::Promise<void> Control::Loop::ReadInbox() {
  ports_.inbox.TakeAll(messages_);
  for (ControlMessage& message : messages_) {
    std::visit([this](auto& each) { Handle(std::move(each)); }, message);
  }
  messages_.clear();
  return inbox_observer_.whenBecomesReadable().then([this] { return ReadInbox(); });
}

void Control::Loop::Handle(SegmentMapped message) {
  if (desk_.answers.mapped.Expects(message.token)) {
    desk_.answers.mapped.Give(message.token, std::move(message.memory));
    return;
  }
  // Its connection ended while watch mapped it.
  desk_.answers.mapped.Drop(message.token);
  if (!message.memory) return;
  [[maybe_unused]] const bool taken =
      ports_.watch.Send(DiscardMemory{std::move(message.memory).value()});
}

void Control::Loop::Handle(SegmentRemoved message) {
  desk_.answers.removed.Give(message.token, std::move(message.status));
}

void Control::Loop::Handle(const Pong& message) {
  desk_.answers.pong.Give(message.token, message);
  probe_.Take(message);
}

void Control::Loop::Handle(const SessionBroken& message) {
  desk_.leases.End(message.session, false, message.error.code(), message.error.text());
}

void Control::Loop::Handle(Drained /*message*/) {
  if (desk_.draining) Finish(0);
}

kj::Promise<void> Control::Loop::WatchSignals() {
  auto terminate = io_.unixEventPort.onSignal(SIGTERM);
  auto interrupt = io_.unixEventPort.onSignal(SIGINT);
  return terminate.exclusiveJoin(kj::mv(interrupt)).then([this](siginfo_t signal) {
    if (desk_.draining) {
      ports_.log.warn("a second signal: stopping at once");
      Finish(1);
    } else {
      BeginDrain(signal.si_signo);
    }
    return WatchSignals();
  });
}

void Control::Loop::BeginDrain(int signal) {
  desk_.draining = true;
  Show(ipc::ServiceState::kDraining);
  supervision_->TellStopping();
  ports_.log.info("{}: draining {} sessions within {} ms", signal == SIGTERM ? "SIGTERM" : "SIGINT",
                  desk_.leases.open_count(), options_.drain_timeout_ns / kMillisecond);
  tasks_.add(SendDrain({.deadline_ns = MonotonicNow() + options_.drain_timeout_ns}));
  const TimeNs bound = options_.drain_timeout_ns + kDrainGrace;
  tasks_.add(desk_.timer->afterDelay(bound * kj::NANOSECONDS).then([this, bound] {
    ports_.log.error("not drained after {} ms: stopping anyway", bound / kMillisecond);
    Finish(1);
  }));
}

kj::Promise<void> Control::Loop::SendDrain(Drain message) {
  if (ports_.dispatch.Send(message)) return kj::READY_NOW;
  return desk_.timer->afterDelay(kRetryDelay).then([this, message] { return SendDrain(message); });
}

// Dispatch is hardly ever so far behind that it cannot hear of a lease's end. Then control tries
// again and again; while all are told it sleeps.
kj::Promise<void> Control::Loop::RetryUntold() {
  return desk_.timer->afterDelay(kRetryDelay).then([this]() -> kj::Promise<void> {
    if (!desk_.leases.Flush()) return RetryUntold();
    retrying_ = false;
    return kj::READY_NOW;
  });
}

void Control::Loop::Finish(int code) { finished_->fulfill(kj::cp(code)); }

void Control::Loop::taskFailed(kj::Exception&& exception) {
  ports_.log.error("control: {}", kj::str(exception).cStr());
  Finish(1);
}

Control::Control(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}
Control::~Control() = default;

Result<std::unique_ptr<Control>> Control::Create(ControlOptions options, ControlPorts ports) {
  // Blocked here so that the event loop can read them; SIGPIPE so that a closed socket is an error
  // code.
  kj::UnixEventPort::captureSignal(SIGTERM);
  kj::UnixEventPort::captureSignal(SIGINT);
  sigset_t pipe;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  ::pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
  options.connections_max =
      ConnectionsThatFit(options.connections_max, !options.peers.address.empty());
  const std::string path = options.socket_path;
  const std::uint32_t mode = options.socket_mode;
  auto loop = std::make_unique<Loop>(std::move(options), std::move(ports));
  if (Status status = loop->Meet(); !status) return status.error();
  if (Status status = loop->Publish(); !status) return status.error();
  // Last, because whoever can connect takes the service for one that has started.
  Result<UniqueFd> socket = ListenAt(path, mode);
  if (!socket) return socket.error();
  loop->Listen(std::move(socket).value());
  return std::unique_ptr<Control>(new Control(std::move(loop)));
}

int Control::Run(Supervisor supervisor) { return loop_->Run(std::move(supervisor)); }
unsigned Control::peer_port() const { return loop_->peer_port(); }

}  // namespace headrace::service
