// The listening socket and the connections it accepts.
#pragma once

#include <capnp/rpc-twoparty.h>
#include <kj/async-io.h>
#include <kj/async-unix.h>
#include <kj/async.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "ipc/base/fd.h"
#include "ipc/base/result.h"
#include "service/control/desk.h"

namespace headrace::service {

// Binds `path` with the given permissions and listens. The path must be free.
Result<UniqueFd> ListenAt(const std::string& path, std::uint32_t mode);

class Listener final : private kj::TaskSet::ErrorHandler {
 public:
  // Beyond the limit, that many more are let in to be told so; then the socket is just closed.
  static constexpr std::size_t kSurplusMax = 16;

  Listener(UniqueFd socket, kj::UnixEventPort& port, kj::LowLevelAsyncIoProvider& provider,
           Desk& desk);

  // Accepts for as long as the promise is kept; resolves only by failing.
  kj::Promise<void> Accept();

  std::size_t connections_count() const { return connections_count_; }

 private:
  // Accepts what is there. Returns what to wait for.
  kj::Promise<void> AcceptSome();
  // When accept() itself fails: a shortage is waited out, never retried at once.
  kj::Promise<void> WaitOut(int error_number);
  void Serve(UniqueFd socket);
  bool IsSurplus(std::uint32_t uid) const;
  void taskFailed(kj::Exception&& exception) override;

  UniqueFd socket_;
  kj::LowLevelAsyncIoProvider& provider_;
  Desk& desk_;
  kj::UnixEventPort::FdObserver observer_;
  std::size_t connections_count_ = 0;
  std::map<std::uint32_t, std::size_t> connections_by_uid_;
  bool short_of_descriptors_ = false;
  kj::TaskSet connections_;
};

}  // namespace headrace::service
