// A service that speaks the peer protocol by hand, so that it may also speak it wrongly.
#pragma once

#include <capnp/rpc-twoparty.h>
#include <kj/async-io.h>

#include <cstdint>
#include <string>
#include <vector>

#include "ipc/base/clock.h"
#include "ipc/schema/peer.capnp.h"
#include "service/cluster/peer_messages.h"
#include "tests/unit/service/rpc/caller.h"

namespace headrace::support {

struct PeerHelloCall {
  std::uint32_t protocol_version = schema::PEER_PROTOCOL_VERSION;
  std::string program = "headraced 9.9.9";
  std::string node = "x";
  std::uint64_t instance = 1;
  bool server = false;
  std::vector<std::string> addresses = {"X0"};
};

class PeerCaller {
 public:
  // Connects to the port on loopback and says the greeting that goes before RPC.
  PeerCaller(CallerLoop& loop, unsigned port);
  ~PeerCaller() noexcept(false);

  Answered Hello(const PeerHelloCall& fields);
  // After a Hello. False when the connection is gone.
  bool Tell(const std::vector<service::PeerMessage>& messages);
  bool Ping();
  // Whether the other end closes the connection within ten seconds.
  bool WaitForEnd();
  // What the other end has told, once `count` messages have come or ten seconds have passed.
  const std::vector<service::PeerMessage>& WaitForMessages(std::size_t count);
  // From now on the other end's pings are not answered.
  void StopAnswering() { answering_ = false; }
  // From now on its clock is that much ahead of ours.
  void SetClockAhead(TimeNs ahead_ns) { clock_ahead_ns_ = ahead_ns; }

 private:
  class Port;

  CallerLoop& loop_;
  bool answering_ = true;
  TimeNs clock_ahead_ns_ = 0;
  std::vector<service::PeerMessage> told_;
  kj::Own<kj::AsyncIoStream> stream_;
  capnp::TwoPartyClient client_;
  schema::PeerBootstrap::Client bootstrap_;
  schema::PeerPort::Client port_ = nullptr;
};

// A TCP connection to the port on loopback.
UniqueFd ConnectTcp(unsigned port);
// Whether the other end closes it within ten seconds; what it sends before is dropped.
bool WaitForClose(int socket);

}  // namespace headrace::support
