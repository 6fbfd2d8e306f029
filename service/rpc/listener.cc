#include "service/rpc/listener.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "ipc/base/check.h"
#include "ipc/base/device_handle.h"
#include "service/loop/bounded_network.h"
#include "service/loop/text.h"
#include "service/rpc/bounded_stream.h"

namespace headrace::service {
namespace {

constexpr int kBacklog = 256;
constexpr int kAcceptedAtOnceMax = 16;
constexpr std::size_t kUsersKeptMax = 1024;
constexpr unsigned kDescriptorsPerMessageMax = kDevicePiecesMax;
static_assert(kDescriptorsPerMessageMax == 253);  // what the kernel passes in one (SCM_MAX_FD)
// One message: room for 2^18 tensors with names of 64 bytes.
constexpr std::uint64_t kMessageWordsMax = std::uint64_t{4} << 20;
constexpr int kNestingMax = 16;
constexpr auto kShortageDelay = 100 * kj::MILLISECONDS;

capnp::ReaderOptions Bounds() {
  capnp::ReaderOptions options;
  options.traversalLimitInWords = kMessageWordsMax;
  options.nestingLimit = kNestingMax;
  return options;
}

// One client's connection; members stand in build order.
struct Connection {
  Connection(kj::Own<kj::AsyncCapabilityStream> socket, kj::Own<Client> accepted,
             const Listener::Ports& ports, const Listener::Options& options, MessagePacer& pace,
             const BoundedNetwork::Disconnect& disconnect)
      : client(kj::mv(accepted)),
        descriptors_max(options.takes_gpu_memory ? kDescriptorsPerMessageMax
                                                 : unsigned{kDescriptorsOfACall}),
        stream(kj::mv(socket)),
        bounded_stream(
            *stream, ports.timer, ports.arrivals, client->process.uid, [this] { return Allowed(); },
            disconnect),
        network(bounded_stream, descriptors_max, capnp::rpc::twoparty::Side::SERVER, Bounds()),
        bounded(
            network, ports.timer, pace, [this] { return bounded_stream.message_bytes(); },
            disconnect),
        rpc(capnp::makeRpcServer(bounded, options.bootstrap(kj::addRef(*client)))) {
    rpc.setFlowLimit(kMessageWordsMax);
  }

  BoundedStream::Allowance Allowed() const {
    const bool has_session = client->session != SessionId{};
    if (bounded.open_calls_count() >= kCallsWithDescriptorsMax) {
      return {.has_session = has_session, .descriptors = 0};
    }
    return {.has_session = has_session,
            .descriptors = has_session ? descriptors_max : kDescriptorsOfACall};
  }

  kj::Own<Client> client;
  const unsigned descriptors_max;  // with one message, ever
  kj::Own<kj::AsyncCapabilityStream> stream;
  BoundedStream bounded_stream;
  capnp::TwoPartyVatNetwork network;
  BoundedNetwork bounded;
  capnp::RpcSystem<capnp::rpc::twoparty::VatId> rpc;
};

}  // namespace

Result<UniqueFd> ListenAt(const std::string& path, std::uint32_t mode) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return Error(Code::kInvalidArgument,
                 fmt::format("socket path of {} bytes, at most {} fit: {}", path.size(),
                             sizeof address.sun_path - 1, path));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return SystemError("socket", errno);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return SystemError("bind " + path, errno);
  }
  // Nobody can connect before listen(), so nobody gets through under the umask's mode.
  if (::chmod(path.c_str(), mode) != 0) return SystemError("chmod " + path, errno);
  if (::listen(fd.get(), kBacklog) != 0) return SystemError("listen " + path, errno);
  return fd;
}

Listener::Listener(UniqueFd socket, const Ports& ports, Options options)
    : socket_(std::move(socket)),
      ports_(ports),
      options_(std::move(options)),
      observer_(ports.events, socket_.get(), kj::UnixEventPort::FdObserver::OBSERVE_READ),
      connections_(*this) {
  HR_CHECK(options_.connections_max > 0);
}

kj::Promise<void> Listener::Accept() {
  return kj::evalNow([this] { return AcceptSome(); })
      // What one connection throws is no reason to refuse the next.
      .catch_([this](kj::Exception&& exception) {
        taskFailed(kj::mv(exception));
        return ports_.timer.afterDelay(kShortageDelay);
      })
      .then([this] { return Accept(); });
}

kj::Promise<void> Listener::AcceptSome() {
  TimeNs wait_ns = 0;
  for (int accepted = 0; accepted < kAcceptedAtOnceMax && wait_ns == 0; ++accepted) {
    UniqueFd socket(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      // Only now is there room for sure: a full table is EMFILE even where nobody waits.
      short_of_descriptors_ = false;
      return observer_.whenBecomesReadable();
    }
    if (!socket && (errno == EINTR || errno == ECONNABORTED)) continue;
    if (!socket) return WaitOut(errno);
    wait_ns = accepts_.Book(1, MonotonicNow());
    Serve(std::move(socket));
  }
  // Others' turn; there may be more to accept.
  return ports_.timer.afterDelay(wait_ns * kj::NANOSECONDS);
}

kj::Promise<void> Listener::WaitOut(int error_number) {
  if (!short_of_descriptors_) {
    ports_.leases.ReportEvent(Code::kExhausted, JobId{},
                              SystemError("accept a connection", error_number).text() +
                                  ": clients wait until there is room");
  }
  short_of_descriptors_ = true;
  return ports_.timer.afterDelay(kShortageDelay);
}

// Whoever was fast is remembered until that is over, so that coming again does not help.
Listener::User& Listener::FindUser(std::uint32_t uid) {
  if (users_.size() >= kUsersKeptMax) {
    std::erase_if(users_, [now = MonotonicNow()](const auto& each) {
      return each.second.connections == 0 && each.second.pace->IsIdle(now);
    });
  }
  return users_[uid];
}

std::size_t Listener::ConnectionsOfAUser() const {
  const std::size_t limit = options_.connections_max;
  return limit - limit / 4;
}

bool Listener::IsSurplus(const User& user) const {
  return connections_count_ >= options_.connections_max || user.connections >= ConnectionsOfAUser();
}

std::vector<std::uint32_t> Listener::Users() const {
  std::vector<std::uint32_t> users;
  for (const auto& [uid, user] : users_) {
    if (user.connections > 0) users.push_back(uid);
  }
  return users;
}

void Listener::Describe(ipc::UserRow& row) const {
  row.connections_max = ConnectionsOfAUser();
  const auto user = users_.find(row.uid);
  if (user == users_.end()) return;
  row.connections = user->second.connections;
  row.connections_cut = user->second.cuts;
}

void Listener::Disconnect(int fd, const ClientProcess& process, User& user,
                          const std::string& why) {
  HR_CHECK(user.connections > 0, fd, process.uid);
  ::shutdown(fd, SHUT_RDWR);
  ++user.cuts;
  if (!user.cuts_shown.TryAcquire(MonotonicNow())) return;
  ports_.leases.ReportEvent(
      Code::kExhausted, JobId{},
      fmt::format("cut the connection of pid {} (uid {}): {}; {} of this uid were cut "
                  "so far",
                  process.pid, process.uid, why, user.cuts),
      process.uid);
}

void Listener::Serve(UniqueFd socket) {
  const Result<ClientProcess> process = ClientProcessOf(socket.get());
  if (!process) {
    ports_.leases.ReportEvent(Code::kInternal, JobId{}, process.error().text());
    return;
  }
  User& user = FindUser(process->uid);
  const bool surplus = IsSurplus(user);
  if (connections_count_ >= options_.connections_max + kSurplusMax) return;
  auto client = kj::refcounted<Client>(ports_.leases, *process, user.pace, surplus);
  const int fd = socket.get();
  auto stream = ports_.provider.wrapUnixSocketFd(socket.release(),
                                                 kj::LowLevelAsyncIoProvider::TAKE_OWNERSHIP |
                                                     kj::LowLevelAsyncIoProvider::ALREADY_CLOEXEC |
                                                     kj::LowLevelAsyncIoProvider::ALREADY_NONBLOCK);
  auto connection =
      kj::heap<Connection>(kj::mv(stream), kj::addRef(*client), ports_, options_, *user.pace,
                           [this, fd, whose = *process, &user](const std::string& why) {
                             Disconnect(fd, whose, user, why);
                           });
  user.pace->Book(kMessagesPerConnection, MonotonicNow());
  ++connections_count_;
  ++user.connections;
  HR_CHECK(connections_count_ <= options_.connections_max + kSurplusMax &&
               user.connections <= connections_count_,
           connections_count_, user.connections);
  on_used_();
  connections_.add(connection->network.onDisconnect()
                       .then([member = kj::addRef(*client)]() mutable { member->Lose(); })
                       .attach(kj::mv(connection), kj::defer([this, &user] {
                                 HR_CHECK(connections_count_ > 0 && user.connections > 0,
                                          connections_count_, user.connections);
                                 --connections_count_;
                                 --user.connections;
                                 on_used_();
                               })));
}

void Listener::taskFailed(kj::Exception&& exception) {
  ports_.leases.ReportEvent(Code::kInternal, JobId{}, "a connection failed: " + CauseOf(exception));
}

}  // namespace headrace::service
