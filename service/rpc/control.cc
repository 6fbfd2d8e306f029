#include "service/rpc/control.h"
#include "service/rpc/bounded_stream.h"

#include <fmt/format.h>
#include <kj/async-unix.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <utility>
#include <variant>

#include "ipc/base/check.h"
#include "ipc/base/device_handle.h"
#include "ipc/board.h"
#include "service/loop/loop_thread.h"
#include "service/loop/text.h"

namespace headrace::service {
namespace {

constexpr auto kRetryDelay = 10 * kj::MILLISECONDS;
// What uids have is shown that much later, so that it costs little however fast it changes.
constexpr auto kShowDelay = 100 * kj::MILLISECONDS;
// A connection costs its socket and the doorbell, and for the time of its calls what they carry and
// a copy of that for the one that attaches.
constexpr std::uint64_t kDescriptorsPerConnection =
    2 + kDescriptorsOfACall * (kCallsWithDescriptorsMax + 1);
constexpr std::uint64_t kDescriptorsOfOurs = 64;
// Other services say goodbye within that time.
constexpr TimeNs kGoodbyeMax = 400 * kMillisecond;

// Descriptors that may be arriving from one uid for GPUs' memory: two messages' worth at least.
std::uint64_t ArrivingDescriptorsMax() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) limit.rlim_cur = 0;
  return std::clamp<std::uint64_t>(limit.rlim_cur / 16, 2 * kDevicePiecesMax, 16384);
}

// Others of this process take none away from clients, nor clients from them.
std::uint32_t ConnectionsThatFit(std::uint32_t wanted, const ControlOptions& options) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return wanted;
  // Pieces of GPUs' memory, from some uids at a time.
  const std::uint64_t pieces =
      options.gpus_missing.empty() ? std::min<std::uint64_t>(limit.rlim_cur / 4, 65536) : 0;
  const std::uint64_t reserved = kDescriptorsOfOurs + pieces + options.descriptors_of_others;
  const std::uint64_t usable =
      std::max<std::uint64_t>(limit.rlim_cur, reserved + kDescriptorsPerConnection) - reserved;
  return static_cast<std::uint32_t>(
      std::min<std::uint64_t>(wanted, usable / kDescriptorsPerConnection));
}

}  // namespace

Control::Control(ControlOptions options, ControlPorts ports)
    : options_(std::move(options)),
      ports_(std::move(ports)),
      leases_(ports_.dispatch, ports_.watch, options_.quotas),
      arrivals_({.descriptors = ArrivingDescriptorsMax()}),
      io_(kj::setupAsyncIo()),
      timer_(io_.provider->getTimer()),
      outbox_(ports_.log, timer_),
      dispatch_(ports_.dispatch, tokens_, outbox_),
      mapping_(ports_.mapping, tokens_),
      peers_(ports_.peers, tokens_, outbox_, timer_),
      probe_({.dispatch = ports_.dispatch,
              .peers = ports_.peers,
              .watch = ports_.watch,
              .mapping = ports_.mapping},
             ports_.lane_names, timer_, tokens_),
      shutdown_({.leases = leases_,
                 .dispatch = dispatch_,
                 .peers = peers_,
                 .timer = timer_,
                 .log = ports_.log},
                options_.drain_timeout_ns,
                [this] {
                  HR_CHECK(supervision_.has_value());  // nobody stops what does not run
                  Show(ipc::ServiceState::kDraining);
                  supervision_->NotifyStopping();
                }),
      users_(ports_.users),
      session_ports_{.leases = leases_,
                     .arrivals = arrivals_,
                     .releases = releases_,
                     .dispatch = dispatch_,
                     .mapping = mapping_,
                     .peers = peers_,
                     .shutdown = shutdown_,
                     .notices = notices_,
                     .timer = timer_,
                     .gpus_missing = options_.gpus_missing,
                     .nccl_between_nodes = options_.nccl_between_nodes,
                     .late_ns = options_.late_ns},
      admin_ports_{.dispatch = dispatch_,
                   .peers = peers_,
                   .probe = probe_,
                   .shutdown = shutdown_,
                   .timer = timer_,
                   .version = options_.version,
                   .config_text = options_.config_text},
      bootstrap_ports_{.leases = leases_,
                       .peers = peers_,
                       .shutdown = shutdown_,
                       .version = options_.version,
                       .rendezvous = options_.rendezvous,
                       .connections_max = options_.connections_max,
                       .operation_timeout_ms = options_.operation_timeout_ms,
                       .session = session_ports_,
                       .admin = admin_ports_},
      reader_(ports_.inbox, io_,
              [this](RpcMessage& message) {
                std::visit([this](auto& each) { Handle(std::move(each)); }, message);
              }),
      tasks_(*this) {
  io_.waitScope.setBusyPollInterval(kEventsPerPoll);
  releases_.SetTimer(&timer_);
  leases_.OnUnsent([this] {
    if (!std::exchange(retrying_, true)) tasks_.add(RetryUnsent());
  });
  leases_.OnUsed([this] { ShowUsersSoon(); });
  ReportRanks();
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

Control::~Control() noexcept(false) {
  // There is nobody left to try again, or to notify.
  leases_.OnUnsent([] {});
  leases_.OnUsed([] {});
  showing_users_ = true;  // connections that end from here on are shown no more
  leases_.OnOpened([](const SessionIdentity&) {});
  leases_.OnEnded([](const SessionIdentity&, const CloseSession&) {});
  releases_.SetTimer(nullptr);
  Show(ipc::ServiceState::kStopped);
}

void Control::Listen(UniqueFd socket) {
  HR_CHECK(!listener_.has_value() && socket, socket.get());
  listener_.emplace(
      std::move(socket),
      Listener::Ports{.events = io_.unixEventPort,
                      .provider = *io_.lowLevelProvider,
                      .timer = timer_,
                      .leases = leases_,
                      .arrivals = arrivals_},
      Listener::Options{.connections_max = options_.connections_max,
                        .takes_gpu_memory = options_.gpus_missing.empty(),
                        .bootstrap = [this](kj::Own<Client> client) -> schema::Bootstrap::Client {
                          return kj::heap<Bootstrap>(kj::mv(client), bootstrap_ports_);
                        }});
  listener_->OnUsed([this] { ShowUsersSoon(); });
}

void Control::Show(ipc::ServiceState state) {
  row_.state = static_cast<std::uint32_t>(state);
  ipc::WriteRow(ports_.board, row_);
}

void Control::ShowUsersSoon() {
  if (ports_.users.empty() || std::exchange(showing_users_, true)) return;
  tasks_.add(timer_.afterDelay(kShowDelay).then([this] {
    showing_users_ = false;
    ShowUsers();
  }));
}

void Control::ShowUsers() {
  HR_CHECK(listener_.has_value());
  std::vector<std::uint32_t> uids = leases_.Users();
  const std::vector<std::uint32_t> connected = listener_->Users();
  uids.insert(uids.end(), connected.begin(), connected.end());
  users_.Show(std::move(uids), [this](ipc::UserRow& row) {
    leases_.Describe(row);
    listener_->Describe(row);
    row.operations_max = options_.operations_per_uid;
  });
}

void Control::ReportRanks() {
  leases_.OnOpened(
      [this](const SessionIdentity& identity) { peers_.SendReliably(RankAttached{identity}); });
  leases_.OnEnded([this](const SessionIdentity& identity, const CloseSession& close) {
    mapping_.Cancel(identity.id);
    peers_.SendReliably(RankEnded{.identity = identity,
                                  .orderly = close.orderly,
                                  .cause = close.cause,
                                  .exited = close.exited});
  });
}

int Control::Run(Supervisor supervisor) {
  HR_CHECK(listener_.has_value() && !supervision_.has_value());
  supervisor_ = std::move(supervisor);
  supervision_.emplace(supervisor_, probe_, timer_);
  tasks_.add(supervision_->Feed());
  tasks_.add(listener_->Accept());
  tasks_.add(reader_.Read());
  tasks_.add(WatchSignals());
  Show(ipc::ServiceState::kRunning);
  ports_.log.info("listening on {}, for up to {} connections", options_.socket_path,
                  options_.connections_max);
  const int code = shutdown_.WhenFinished().wait(io_.waitScope);
  peers_.Ask(StopPeers{}, kGoodbyeMax).ignoreResult().wait(io_.waitScope);
  leases_.EndAll(Code::kUnavailable, "ended: the service is stopping");
  Show(ipc::ServiceState::kStopped);
  return code;
}

void Control::Handle(const Pong& message) {
  dispatch_.Handle(message);
  probe_.Handle(message);
}

void Control::Handle(const ResidualsAllocated& message) {
  if (const Status booked = leases_.ReserveMemory(message.session, message.bytes, "residuals");
      !booked) {
    dispatch_.SendReliably(
        ResidualsRefused{message.session, booked.error().code(), booked.error().text()});
  }
}

void Control::Handle(const BookScratch& message) {
  const bool of_host = std::holds_alternative<UseHostScratch>(message.request);
  const std::string_view what = of_host ? "scratch memory" : "scratch memory for GPUs";
  dispatch_.SendReliably(
      ScratchBooked{.request = message.request,
                    .status = leases_.ReserveMemory(message.session, message.bytes, what)});
}

void Control::Handle(const ResidualsFreed& message) {
  leases_.ReleaseMemory(message.session, message.bytes);
}

void Control::Handle(const SessionBroken& message) {
  const SessionIdentity* identity = leases_.Find(message.session);
  if (identity == nullptr) return;
  std::vector<SessionId> ended{message.session};
  // As if its process were gone: in groups, which are jobs of their own, it is waited for, too.
  if (message.evicted) {
    const std::vector<SessionId> others = leases_.OtherJobsOf(*identity);
    ended.insert(ended.end(), others.begin(), others.end());
  }
  const std::string who =
      fmt::format("rank {} of job {} {}", identity->rank, identity->job_name, message.error.text());
  for (const SessionId session : ended) {
    leases_.End(session, false, message.error.code(), message.error.text(), message.evicted);
    notices_.Send(session, {.kind = SessionNotice::Kind::kEnded, .text = who});
  }
}

void Control::Handle(const JobFailed& message) {
  leases_.FailJob(message.job, message.code, message.cause);
}

void Control::Handle(const MembersWait& message) {
  for (const SessionId session : leases_.SessionsOf(message.job)) {
    notices_.Send(session, {.kind = SessionNotice::Kind::kMembersWait, .text = {}});
  }
}

void Control::Handle(const JobPlaced& message) {
  for (const SessionId session : leases_.SessionsOf(message.job)) {
    notices_.Send(session, {.kind = SessionNotice::Kind::kPlaces, .text = message.places});
  }
}

void Control::Handle(const AskProbe& message) {
  HR_CHECK(ports_.http != nullptr, message.token);
  tasks_.add(probe_.Ask().then(
      [this, token = message.token](ProbeAnswer answer) {
        // Whoever waits there does not wait for ever.
        [[maybe_unused]] const bool sent =
            ports_.http->Send(ProbeEnded{.token = token, .answer = std::move(answer)});
      },
      [](kj::Exception&& /*overloaded*/) {}));
}

kj::Promise<void> Control::WatchSignals() {
  auto terminate = io_.unixEventPort.onSignal(SIGTERM);
  auto interrupt = io_.unixEventPort.onSignal(SIGINT);
  auto hangup = io_.unixEventPort.onSignal(SIGHUP);
  return terminate.exclusiveJoin(kj::mv(interrupt))
      .exclusiveJoin(kj::mv(hangup))
      .then([this](siginfo_t signal) {
        if (signal.si_signo == SIGHUP) {
          Reload();
        } else {
          shutdown_.OnSignal(signal.si_signo == SIGTERM ? "SIGTERM" : "SIGINT");
        }
        return WatchSignals();
      });
}

void Control::Reload() {
  if (supervisor_.reload) supervisor_.reload();
  // A look that finds no change says nothing; peers looks again by itself soon.
  peers_.SendReliably(CheckCertificate{});
}

// Dispatch is hardly ever so far behind that it has no room for a lease's end. Then control tries
// again and again; while all are sent it sleeps.
kj::Promise<void> Control::RetryUnsent() {
  return timer_.afterDelay(kRetryDelay).then([this]() -> kj::Promise<void> {
    HR_CHECK(retrying_);
    if (!leases_.Flush()) return RetryUnsent();
    retrying_ = false;
    return kj::READY_NOW;
  });
}

void Control::taskFailed(kj::Exception&& exception) {
  shutdown_.Fail("control: " + CauseOf(exception));
}

Result<std::unique_ptr<Control>> Control::Create(ControlOptions options, ControlPorts ports) {
  // Blocked here so that the event loop can read them; SIGPIPE so that a closed socket is an error
  // code.
  kj::UnixEventPort::captureSignal(SIGTERM);
  kj::UnixEventPort::captureSignal(SIGINT);
  kj::UnixEventPort::captureSignal(SIGHUP);
  sigset_t pipe;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  HR_CHECK(::pthread_sigmask(SIG_BLOCK, &pipe, nullptr) == 0);
  options.connections_max = ConnectionsThatFit(options.connections_max, options);
  const std::string path = options.socket_path;
  const std::uint32_t mode = options.socket_mode;
  std::unique_ptr<Control> control(new Control(std::move(options), std::move(ports)));
  // Last, because whoever can connect takes the service for one that has started.
  Result<UniqueFd> socket = ListenAt(path, mode);
  if (!socket) return socket.error();
  control->Listen(std::move(socket).value());
  return control;
}

}  // namespace headrace::service
