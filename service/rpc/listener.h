// The listening socket and the connections it accepts.
#pragma once

#include <capnp/rpc-twoparty.h>
#include <kj/async-io.h>
#include <kj/async-unix.h>
#include <kj/async.h>
#include <kj/timer.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ipc/base/fd.h"
#include "ipc/base/result.h"
#include "ipc/board_layout.h"
#include "ipc/schema/client.capnp.h"
#include "service/accounts/arrivals.h"
#include "service/accounts/leases.h"
#include "service/cluster/allowance.h"
#include "service/loop/message_pacer.h"
#include "service/rpc/client.h"

namespace headrace::service {

// Binds `path` with the given permissions and listens. The path must be free.
Result<UniqueFd> ListenAt(const std::string& path, std::uint32_t mode);

class Listener final : private kj::TaskSet::ErrorHandler {
 public:
  // Beyond the limit, that many more are accepted, to be refused with a reason; then the socket is
  // just closed.
  static constexpr std::size_t kSurplusMax = 16;
  // What rpc handles for one uid; see message_pacer.h.
  static constexpr TimeNs kMessagesPerSecond = 5000;
  static constexpr TimeNs kMessagesBurst = 10'000;
  static constexpr TimeNs kMessagesPerConnection = 10;  // that accepting one costs
  static constexpr TimeNs kAcceptsPerSecond = 2000;     // of all
  static constexpr TimeNs kAcceptsBurst = 512;

  // The accounts outlive the event loop too, with which the last connections go.
  struct Ports {
    kj::UnixEventPort& events;
    kj::LowLevelAsyncIoProvider& provider;
    kj::Timer& timer;
    Leases& leases;
    Arrivals& arrivals;
  };
  struct Options {
    std::size_t connections_max = 1024;
    bool takes_gpu_memory = false;  // whose pieces are many descriptors
    // What the client of a new connection can ask for.
    std::function<schema::Bootstrap::Client(kj::Own<Client>)> bootstrap;
  };

  // All of the ports outlive this.
  Listener(UniqueFd socket, const Ports& ports, Options options);

  // Accepts for as long as the promise is kept; resolves only by failing.
  kj::Promise<void> Accept();

  std::size_t connections_count() const { return connections_count_; }

  // `notice` is called whenever a connection came or went. Before Accept.
  void OnUsed(std::function<void()> notice) { on_used_ = std::move(notice); }
  // The uids that have connections, and, in `row`, how many its uid has.
  std::vector<std::uint32_t> Users() const;
  void Describe(ipc::UserRow& row) const;

 private:
  // Accepts what is there. Returns what to wait for.
  kj::Promise<void> AcceptSome();
  // When accept() itself fails: a shortage is waited out, never retried at once.
  kj::Promise<void> WaitOut(int error_number);
  void Serve(UniqueFd socket);
  // What the connections of one uid share, and for a while after them.
  struct User {
    std::size_t connections = 0;
    std::shared_ptr<MessagePacer> pace =
        std::make_shared<MessagePacer>(kMessagesPerSecond, kMessagesBurst);
    std::uint64_t cuts = 0;  // connections that went beyond their bounds
    Allowance cuts_shown{4, 10 * kSecond};
  };
  User& FindUser(std::uint32_t uid);
  // One user may take three quarters of the connections, so that others always find some.
  std::size_t ConnectionsOfAUser() const;
  bool IsSurplus(const User& user) const;
  void Disconnect(int fd, const ClientProcess& process, User& user, const std::string& why);
  void taskFailed(kj::Exception&& exception) override;

  UniqueFd socket_;
  Ports ports_;
  Options options_;
  kj::UnixEventPort::FdObserver observer_;
  std::size_t connections_count_ = 0;
  std::map<std::uint32_t, User> users_;  // by uid
  std::function<void()> on_used_ = [] {};
  MessagePacer accepts_{kAcceptsPerSecond, kAcceptsBurst};
  bool short_of_descriptors_ = false;
  kj::TaskSet connections_;
};

}  // namespace headrace::service
