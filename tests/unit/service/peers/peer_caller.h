// A service that speaks the peer protocol by hand, so that it may also speak it wrongly.
#pragma once

#include <capnp/rpc-twoparty.h>
#include <kj/async-io.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ipc/base/clock.h"
#include "ipc/schema/peer.capnp.h"
#include "service/cluster/peer_messages.h"
#include "service/peers/channel_hello.h"
#include "tests/unit/service/rpc/caller.h"

namespace headrace::support {

struct PeerHelloCall {
  std::uint32_t protocol_version = schema::PEER_PROTOCOL_VERSION;
  std::string program = "headraced 9.9.9";
  std::string node = "x";
  std::uint64_t instance = 1;
  bool server = false;
  std::vector<std::string> addresses = {"X0"};
  std::string control;                           // where it says that it listens
  std::optional<service::ChannelHello> channel;  // none: a new one
};

class PeerCaller {
 public:
  // Connects to the port on loopback and says the greeting that goes before RPC.
  PeerCaller(CallerLoop& loop, unsigned port);
  ~PeerCaller() noexcept(false);

  Answered Hello(const PeerHelloCall& fields);
  // A hello whose channel has that id.
  Answered HelloWithId(const std::string& id);
  // After a Hello. False when the connection is gone. Numbered behind what it told before, unless
  // `first` says otherwise.
  bool SendMessages(const std::vector<service::PeerMessage>& messages, std::uint64_t first = 0);
  // To resume the channel by, as one that has received all that was told here.
  service::ChannelHello Resuming() const {
    return {.id = channel_, .resumes = true, .received = told_.size()};
  }
  // Of the last Hello: how many of our messages have come there.
  std::uint64_t received() const { return received_; }
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
  service::ChannelId channel_ = service::DrawChannelId();
  std::uint64_t sent_ = 0;
  std::uint64_t received_ = 0;
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
