#include "service/control/listener.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "ipc/base/device_handle.h"
#include "service/control/bounded_network.h"
#include "service/control/entrance.h"

namespace headrace::service {
namespace {

constexpr int kBacklog = 256;
constexpr int kAcceptedAtOnceMax = 64;
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
  Connection(kj::Own<kj::AsyncCapabilityStream> socket, int fd, kj::Own<Client> accepted)
      : client(kj::mv(accepted)),
        stream(kj::mv(socket)),
        network(*stream, kDescriptorsPerMessageMax, capnp::rpc::twoparty::Side::SERVER, Bounds()),
        bounded(network, [this, fd](const std::string& why) { Cut(fd, why); }),
        rpc(capnp::makeRpcServer(bounded, kj::heap<Entrance>(kj::addRef(*client)))) {
    rpc.setFlowLimit(kMessageWordsMax);
  }

  void Cut(int fd, const std::string& why) const {
    ::shutdown(fd, SHUT_RDWR);
    client->desk.leases.Say(Code::kExhausted, JobId{},
                            fmt::format("cut the connection of pid {} (uid {}): {}",
                                        client->peer.pid, client->peer.uid, why));
  }

  kj::Own<Client> client;
  kj::Own<kj::AsyncCapabilityStream> stream;
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

Listener::Listener(UniqueFd socket, kj::UnixEventPort& port, kj::LowLevelAsyncIoProvider& provider,
                   Desk& desk)
    : socket_(std::move(socket)),
      provider_(provider),
      desk_(desk),
      observer_(port, socket_.get(), kj::UnixEventPort::FdObserver::OBSERVE_READ),
      connections_(*this) {}

kj::Promise<void> Listener::Accept() {
  return kj::evalNow([this] { return AcceptSome(); })
      // What one connection throws is no reason to refuse the next.
      .catch_([this](kj::Exception&& exception) {
        taskFailed(kj::mv(exception));
        return desk_.timer->afterDelay(kShortageDelay);
      })
      .then([this] { return Accept(); });
}

kj::Promise<void> Listener::AcceptSome() {
  for (int accepted = 0; accepted < kAcceptedAtOnceMax; ++accepted) {
    UniqueFd socket(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return observer_.whenBecomesReadable();
    }
    if (!socket && (errno == EINTR || errno == ECONNABORTED)) continue;
    if (!socket) return WaitOut(errno);
    short_of_descriptors_ = false;
    Serve(std::move(socket));
  }
  // Others' turn; there may be more to accept.
  return kj::evalLast([] {});
}

kj::Promise<void> Listener::WaitOut(int error_number) {
  if (!short_of_descriptors_) {
    desk_.leases.Say(Code::kExhausted, JobId{},
                     SystemError("accept a connection", error_number).text() +
                         ": clients wait until there is room");
  }
  short_of_descriptors_ = true;
  return desk_.timer->afterDelay(kShortageDelay);
}

// One user may take three quarters of the connections, so that others always find some.
bool Listener::IsSurplus(std::uint32_t uid) const {
  const std::size_t limit = desk_.options.connections_max;
  const auto found = connections_by_uid_.find(uid);
  const std::size_t of_user = found == connections_by_uid_.end() ? 0 : found->second;
  return connections_count_ >= limit || of_user >= limit - limit / 4;
}

void Listener::Serve(UniqueFd socket) {
  const Result<Peer> peer = PeerOf(socket.get());
  if (!peer) {
    desk_.leases.Say(Code::kInternal, JobId{}, peer.error().text());
    return;
  }
  const bool surplus = IsSurplus(peer->uid);
  if (connections_count_ >= desk_.options.connections_max + kSurplusMax) return;
  auto client = kj::refcounted<Client>(desk_, *peer, surplus);
  const int fd = socket.get();
  auto stream = provider_.wrapUnixSocketFd(socket.release(),
                                           kj::LowLevelAsyncIoProvider::TAKE_OWNERSHIP |
                                               kj::LowLevelAsyncIoProvider::ALREADY_CLOEXEC |
                                               kj::LowLevelAsyncIoProvider::ALREADY_NONBLOCK);
  auto connection = kj::heap<Connection>(kj::mv(stream), fd, kj::addRef(*client));
  ++connections_count_;
  ++connections_by_uid_[peer->uid];
  connections_.add(connection->network.onDisconnect()
                       .then([member = kj::addRef(*client)]() mutable { member->Lose(); })
                       .attach(kj::mv(connection), kj::defer([this, uid = peer->uid] {
                                 --connections_count_;
                                 if (--connections_by_uid_[uid] == 0)
                                   connections_by_uid_.erase(uid);
                               })));
}

void Listener::taskFailed(kj::Exception&& exception) {
  desk_.leases.Say(
      Code::kInternal, JobId{},
      std::string("a connection failed: ") + Printable(exception.getDescription().cStr(), 200));
}

}  // namespace headrace::service
