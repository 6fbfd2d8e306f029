#include "service/rpc/control.h"

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

#include "ipc/base/device_handle.h"
#include "ipc/board.h"
#include "service/loop/inbox_reader.h"
#include "service/loop/loop_thread.h"
#include "service/loop/outbox.h"
#include "service/loop/text.h"
#include "service/rpc/ask_peers.h"
#include "service/rpc/desk.h"
#include "service/rpc/listener.h"
#include "service/rpc/probe.h"
#include "service/rpc/supervision.h"
#include "service/rpc/user_rows.h"

namespace headrace::service {
namespace {

// How long dispatch may outlive its own drain deadline before control stops waiting for it.
constexpr TimeNs kDrainGrace = kSecond;
constexpr auto kRetryDelay = 10 * kj::MILLISECONDS;
// What uids have is shown that much later, so that it costs little however fast it changes.
constexpr auto kShowDelay = 100 * kj::MILLISECONDS;
constexpr auto kEmptyLook = 20 * kj::MILLISECONDS;
// A connection costs its socket and the doorbell, and for the time of a call what it carries.
constexpr std::uint64_t kDescriptorsPerConnection = 4;
constexpr std::uint64_t kDescriptorsOfOurs = 64;
// Other services say goodbye within that time.
constexpr TimeNs kGoodbyeMax = 400 * kMillisecond;

// Of one uid, of pieces of GPUs' memory: two messages' worth at least.
std::uint64_t ArrivingDescriptorsMax() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) limit.rlim_cur = 0;
  return std::clamp<std::uint64_t>(limit.rlim_cur / 16, 2 * kDevicePiecesMax, 16384);
}

// Others of this process take none away from clients, nor clients from them.
std::uint32_t ConnectionsThatFit(std::uint32_t wanted, const ControlOptions& options) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return wanted;
  // Of GPUs' memory, of some uids at a time.
  const std::uint64_t pieces =
      options.gpus_missing.empty() ? std::min<std::uint64_t>(limit.rlim_cur / 4, 65536) : 0;
  const std::uint64_t reserved = kDescriptorsOfOurs + pieces + options.descriptors_of_others;
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
  // Clients may come: everything else is there.
  void Listen(UniqueFd socket) {
    listener_.emplace(std::move(socket), io_.unixEventPort, *io_.lowLevelProvider, desk_);
    listener_->OnUsed([this] { ShowUsersSoon(); });
  }
  int Run(Supervisor supervisor);

 private:
  void TellPeersOfRanks();
  kj::Promise<void> WatchSignals();
  kj::Promise<void> RetryUntold();

  void Handle(SegmentMapped message);
  void Handle(const SegmentProgress& message);
  void Handle(SegmentRemoved message);
  void Handle(const Pong& message);
  void Handle(const SessionBroken& message);
  void Handle(Drained message);
  void Handle(const LaneAnswered& message) { probe_.Take(message); }
  void Handle(const PartAnswered& message) { probe_.Take(message); }
  void Handle(const JobFailed& message) {
    desk_.leases.FailJob(message.job, message.code, message.cause);
  }
  void Handle(Answered message) {
    desk_.answers.answered.Give(message.token, std::move(message.status));
  }
  void Handle(PeersListed message) {
    desk_.answers.listed.Give(message.token, std::move(message.peers));
  }
  void Handle(PeerTried message) {
    desk_.answers.tried.Give(message.token, std::move(message.steps));
  }
  void Handle(const AskProbe& message);
  void Handle(const LoopFailed& message);
  void Handle(const GpuBroken& message);

  void Reload();
  Result<DrainBegun> BeginMove(std::uint32_t uid, TimeNs patience_ns);
  kj::Promise<void> AwaitEmpty(TimeNs deadline_ns);
  void TellStopping();
  void BeginDrain(const char* asked);
  kj::Promise<void> SendDrain(Drain message);
  void Finish(int code);
  void Show(ipc::ServiceState state);
  void ShowUsersSoon();
  void ShowUsers();
  // One of control's own loops has ended: without it the service is deaf.
  void taskFailed(kj::Exception&& exception) override;

  ControlOptions options_;
  ControlPorts ports_;
  ipc::ServiceRow row_{};
  Desk desk_;
  kj::AsyncIoContext io_;
  Outbox outbox_;
  Probe probe_;
  UserRows users_;
  bool showing_users_ = false;  // soon
  std::optional<Listener> listener_;
  std::optional<Supervision> supervision_;  // while it runs
  InboxReader<RpcMessage> reader_;
  bool retrying_ = false;
  int drained_code_ = 0;
  bool ending_ = false;  // nothing is waited for any more, but for what is under way
  std::function<void()> reload_;
  kj::Own<kj::PromiseFulfiller<void>> stops_;
  kj::ForkedPromise<void> stopping_ = nullptr;
  kj::Own<kj::PromiseFulfiller<int>> finished_;
  kj::Promise<int> exit_code_ = nullptr;
  kj::TaskSet tasks_;
};

Control::Loop::Loop(ControlOptions options, ControlPorts ports)
    : options_(std::move(options)),
      ports_(std::move(ports)),
      desk_{.options = options_,
            .dispatch = ports_.dispatch,
            .peers = ports_.peers,
            .watch = ports_.watch,
            .mapping = ports_.mapping,
            .leases = Leases(ports_.dispatch, ports_.watch, options_.quotas),
            .answers = {},
            .arrivals = Arrivals({.descriptors = ArrivingDescriptorsMax()})},
      io_(kj::setupAsyncIo()),
      outbox_(ports_.log, io_.provider->getTimer()),
      probe_({.dispatch = ports_.dispatch,
              .peers = ports_.peers,
              .watch = ports_.watch,
              .mapping = ports_.mapping},
             ports_.lane_names, io_.provider->getTimer(), desk_.answers),
      users_(ports_.users),
      reader_(ports_.inbox, io_,
              [this](RpcMessage& message) {
                std::visit([this](auto& each) { Handle(std::move(each)); }, message);
              }),
      tasks_(*this) {
  desk_.leases.OnUntold([this] {
    if (!std::exchange(retrying_, true)) tasks_.add(RetryUntold());
  });
  desk_.leases.OnUsed([this] { ShowUsersSoon(); });
  io_.waitScope.setBusyPollInterval(kEventsPerPoll);
  desk_.timer = &io_.provider->getTimer();
  desk_.outbox = &outbox_;
  desk_.probe = &probe_;
  TellPeersOfRanks();
  auto pair = kj::newPromiseAndFulfiller<int>();
  finished_ = kj::mv(pair.fulfiller);
  exit_code_ = kj::mv(pair.promise);
  auto stop = kj::newPromiseAndFulfiller<void>();
  stops_ = kj::mv(stop.fulfiller);
  stopping_ = stop.promise.fork();
  desk_.stopping = &stopping_;
  desk_.drain = [this](std::uint32_t uid, TimeNs patience_ns) {
    return BeginMove(uid, patience_ns);
  };
  row_.pid = ::getpid();
  row_.uid = ::getuid();
  row_.protocol_version = schema::PROTOCOL_VERSION;
  row_.started_ns = MonotonicNow();
  row_.started_unix_ns = UnixNow();
  ipc::SetText(row_.version, options_.version);
  ipc::SetText(row_.socket_path, options_.socket_path);
  ipc::SetText(row_.reduce_target, options_.reduce_target);
  row_.memory_per_uid =
      options_.quotas.memory != 0 ? options_.quotas.memory : options_.quotas.memory_of_others;
  row_.memory_found = options_.memory_found;
  ipc::SetText(row_.memory_limited_by, options_.memory_limited_by);
  Show(ipc::ServiceState::kStarting);
}

Control::Loop::~Loop() {
  // There is nobody left to try again, or to tell.
  desk_.leases.OnUntold([] {});
  desk_.leases.OnUsed([] {});
  showing_users_ = true;  // connections that end from here on are shown no more
  desk_.leases.OnOpened([](const SessionIdentity&) {});
  desk_.leases.OnEnded([](const SessionIdentity&, const CloseSession&) {});
  desk_.outbox = nullptr;
  desk_.drain = nullptr;
  desk_.probe = nullptr;
  Show(ipc::ServiceState::kStopped);
}

void Control::Loop::Show(ipc::ServiceState state) {
  row_.state = static_cast<std::uint32_t>(state);
  ipc::WriteRow(ports_.board, row_);
}

void Control::Loop::ShowUsersSoon() {
  if (ports_.users.empty() || std::exchange(showing_users_, true)) return;
  tasks_.add(desk_.timer->afterDelay(kShowDelay).then([this] {
    showing_users_ = false;
    ShowUsers();
  }));
}

void Control::Loop::ShowUsers() {
  std::vector<std::uint32_t> uids = desk_.leases.Users();
  const std::vector<std::uint32_t> connected = listener_->Users();
  uids.insert(uids.end(), connected.begin(), connected.end());
  users_.Show(std::move(uids), [this](ipc::UserRow& row) {
    desk_.leases.Describe(row);
    listener_->Describe(row);
    row.operations_max = options_.operations_per_uid;
  });
}

void Control::Loop::TellPeersOfRanks() {
  desk_.leases.OnOpened([this](const SessionIdentity& identity) {
    outbox_.Send(ports_.peers, RankAttached{identity});
  });
  desk_.leases.OnEnded([this](const SessionIdentity& identity, const CloseSession& close) {
    // A mapper that is too far behind for it maps in vain.
    [[maybe_unused]] const bool sent = ports_.mapping.Send(CancelMapping{identity.id});
    outbox_.Send(ports_.peers, RankEnded{.identity = identity,
                                         .orderly = close.orderly,
                                         .cause = close.cause,
                                         .exited = close.exited});
  });
}

int Control::Loop::Run(Supervisor supervisor) {
  reload_ = std::move(supervisor.reload);
  supervision_.emplace(std::move(supervisor), probe_, io_.provider->getTimer());
  tasks_.add(supervision_->Feed());
  tasks_.add(listener_->Accept());
  tasks_.add(reader_.Read());
  tasks_.add(WatchSignals());
  Show(ipc::ServiceState::kRunning);
  ports_.log.info("listening on {}, for up to {} connections", options_.socket_path,
                  options_.connections_max);
  const int code = exit_code_.wait(io_.waitScope);
  AskPeers(desk_, StopPeers{}, kGoodbyeMax).ignoreResult().wait(io_.waitScope);
  desk_.leases.EndAll(Code::kUnavailable, "ended: the service is stopping");
  Show(ipc::ServiceState::kStopped);
  return code;
}

void Control::Loop::Handle(SegmentMapped message) {
  if (desk_.answers.mapped.Expects(message.token)) {
    desk_.answers.mapped.Give(message.token, std::move(message.memory));
    return;
  }
  // Its connection ended while it was mapped.
  desk_.answers.mapped.Drop(message.token);
  if (!message.memory) return;
  [[maybe_unused]] const bool taken =
      ports_.mapping.Send(DiscardMemory{std::move(message.memory).value(), message.uid});
}

void Control::Loop::Handle(const SegmentProgress& message) {
  desk_.answers.mapped.Advance(message.token, message.bytes);
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
  if (ending_) Finish(drained_code_);
}

void Control::Loop::Handle(const AskProbe& message) {
  if (ports_.http == nullptr) return;
  tasks_.add(probe_.Ask().then(
      [this, token = message.token](ProbeAnswer answer) {
        // Whoever waits there does not wait for ever.
        [[maybe_unused]] const bool sent =
            ports_.http->Send(ProbeEnded{.token = token, .answer = std::move(answer)});
      },
      [](kj::Exception&& /*overloaded*/) {}));
}

void Control::Loop::Handle(const LoopFailed& message) {
  ports_.log.error("{}", message.cause);
  Finish(1);
}

// A service that went on would fail every later transfer of that GPU. Jobs that can reconnect go on
// with the one that is started in its place.
void Control::Loop::Handle(const GpuBroken& message) {
  if (std::exchange(drained_code_, kExitGpuBroken) == kExitGpuBroken) return;
  ports_.log.error(
      "{}; the context of that GPU is broken for good, so this service drains and ends with exit "
      "code {}: whoever supervises it starts it anew",
      message.cause, kExitGpuBroken);
  if (!ending_) BeginDrain("a broken GPU");
}

kj::Promise<void> Control::Loop::WatchSignals() {
  auto terminate = io_.unixEventPort.onSignal(SIGTERM);
  auto interrupt = io_.unixEventPort.onSignal(SIGINT);
  auto hangup = io_.unixEventPort.onSignal(SIGHUP);
  return terminate.exclusiveJoin(kj::mv(interrupt))
      .exclusiveJoin(kj::mv(hangup))
      .then([this](siginfo_t signal) {
        if (signal.si_signo == SIGHUP) {
          Reload();
        } else if (ending_) {
          ports_.log.warn("a second signal: stopping at once");
          Finish(1);
        } else {
          BeginDrain(signal.si_signo == SIGTERM ? "SIGTERM" : "SIGINT");
        }
        return WatchSignals();
      });
}

void Control::Loop::Reload() {
  if (reload_) reload_();
  // A look that finds no change says nothing; peers looks again by itself soon.
  outbox_.Send(ports_.peers, LookAtCertificate{});
}

// First half of a drain that a person asks for: jobs leave. What remains then is ended as by a
// signal.
Result<DrainBegun> Control::Loop::BeginMove(std::uint32_t uid, TimeNs patience_ns) {
  if (desk_.draining) {
    return Error(Code::kAlreadyExists, "the service is stopping already");
  }
  DrainBegun begun{.sessions = static_cast<std::uint32_t>(desk_.leases.open_count())};
  desk_.drain_patience_ns = patience_ns;
  TellStopping();
  ports_.log.info("drain asked by uid {}: {} sessions are open", uid, begun.sessions);
  outbox_.Send(ports_.peers, DrainPeers{});
  for (const Leases::OpenJob& job : desk_.leases.OpenJobs()) {
    if (job.can_reconnect) {
      outbox_.Send(ports_.peers, ChangeSetting{.token = desk_.answers.NextToken(),
                                               .job = job.name,
                                               .uid = ::geteuid(),
                                               .setting = Steering{.kind = SteeringKind::kDrain,
                                                                   .value = kDrainToMoveOver,
                                                                   .uid = uid}});
      continue;
    }
    begun.waits.push_back(job.name);
    desk_.leases.Say(Code::kUnavailable, job.job,
                     fmt::format("job {} cannot reconnect (HEADRACE_RECONNECT): it ends with this "
                                 "service, in {} s at most",
                                 job.name, patience_ns / kSecond));
  }
  tasks_.add(AwaitEmpty(MonotonicNow() + patience_ns));
  return begun;
}

kj::Promise<void> Control::Loop::AwaitEmpty(TimeNs deadline_ns) {
  return desk_.timer->afterDelay(kEmptyLook).then([this, deadline_ns]() -> kj::Promise<void> {
    if (ending_) return kj::READY_NOW;
    if (desk_.leases.open_count() > 0 && MonotonicNow() < deadline_ns) {
      return AwaitEmpty(deadline_ns);
    }
    BeginDrain("drain");
    return kj::READY_NOW;
  });
}

void Control::Loop::TellStopping() {
  if (std::exchange(desk_.draining, true)) return;
  stops_->fulfill();
  Show(ipc::ServiceState::kDraining);
  supervision_->TellStopping();
}

void Control::Loop::BeginDrain(const char* asked) {
  ending_ = true;
  TellStopping();
  ports_.log.info("{}: draining {} sessions within {} ms", asked, desk_.leases.open_count(),
                  options_.drain_timeout_ns / kMillisecond);
  outbox_.Send(ports_.peers, DrainPeers{});
  tasks_.add(SendDrain({.deadline_ns = MonotonicNow() + options_.drain_timeout_ns}));
  const TimeNs bound = options_.drain_timeout_ns + kDrainGrace;
  tasks_.add(desk_.timer->afterDelay(bound * kj::NANOSECONDS).then([this, bound] {
    ports_.log.error("not drained after {} ms: stopping anyway", bound / kMillisecond);
    Finish(drained_code_ != 0 ? drained_code_ : 1);
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
  ports_.log.error("control: {}", CauseOf(exception));
  Finish(1);
}

Control::Control(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}
Control::~Control() = default;

Result<std::unique_ptr<Control>> Control::Create(ControlOptions options, ControlPorts ports) {
  // Blocked here so that the event loop can read them; SIGPIPE so that a closed socket is an error
  // code.
  kj::UnixEventPort::captureSignal(SIGTERM);
  kj::UnixEventPort::captureSignal(SIGINT);
  kj::UnixEventPort::captureSignal(SIGHUP);
  sigset_t pipe;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  ::pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
  options.connections_max = ConnectionsThatFit(options.connections_max, options);
  const std::string path = options.socket_path;
  const std::uint32_t mode = options.socket_mode;
  auto loop = std::make_unique<Loop>(std::move(options), std::move(ports));
  // Last, because whoever can connect takes the service for one that has started.
  Result<UniqueFd> socket = ListenAt(path, mode);
  if (!socket) return socket.error();
  loop->Listen(std::move(socket).value());
  return std::unique_ptr<Control>(new Control(std::move(loop)));
}

int Control::Run(Supervisor supervisor) { return loop_->Run(std::move(supervisor)); }

}  // namespace headrace::service
