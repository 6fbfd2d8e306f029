// The network of one connection with bounds on what its other end can make the service hold and do:
// calls that are not finished (each may carry descriptors), answers that are not read, messages
// that are no calls, messages at all in one turn of the loop, and messages and their bytes in a
// second. A client that exceeds one of the first three bounds loses the connection; one that is too
// fast waits.
#pragma once

#include <capnp/rpc-twoparty.h>
#include <kj/async.h>
#include <kj/timer.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "service/loop/message_pacer.h"

namespace headrace::service {

inline constexpr std::size_t kCallsMax = 32;                          // open, per connection
inline constexpr std::size_t kUnreadBytesMax = std::size_t{1} << 20;  // answers, per connection
// Messages that neither call nor answer nor finish: a capability is resolved or released, a loop of
// calls is cut short. An honest end sends a few for each of its calls.
inline constexpr std::size_t kStraysMax = 64;
inline constexpr std::size_t kStraysPerCall = 16;
inline constexpr std::size_t kMessagesPerTurn = 16;  // of one connection
// What reading a message and doing what it asks costs grows with its size: a message counts as one,
// and as one more for each so many bytes.
inline constexpr std::size_t kBytesPerMessage = 4096;

class BoundedNetwork final : public capnp::TwoPartyVatNetworkBase {
 public:
  // Closes the socket both ways; the orderly way would wait until the other end has read all that
  // is queued for it. `why` is for people.
  using Disconnect = std::function<void(const std::string& why)>;

  // How many bytes the message had that was read last. Asked of whoever read it, because a message
  // of several segments locks itself out when it is asked (Cap'n Proto 0.9.2, sizeInWords).
  using MessageBytes = std::function<std::uint64_t()>;

  // All outlive this. `pace` may be shared by several connections.
  BoundedNetwork(capnp::TwoPartyVatNetwork& inner, kj::Timer& timer, MessagePacer& pace,
                 MessageBytes message_bytes, Disconnect disconnect)
      : inner_(inner),
        timer_(timer),
        pace_(pace),
        message_bytes_(std::move(message_bytes)),
        disconnect_(std::move(disconnect)) {}

  kj::Maybe<kj::Own<Connection>> connect(capnp::rpc::twoparty::VatId::Reader host) override;
  kj::Promise<kj::Own<Connection>> accept() override;

  // Calls of the other end that are not finished, on the connection that was counted last.
  std::size_t open_calls_count() const { return open_calls_count_; }

 private:
  class BoundedConnection;

  kj::Own<Connection> Bound(kj::Own<Connection> connection);

  capnp::TwoPartyVatNetwork& inner_;
  kj::Timer& timer_;
  MessagePacer& pace_;
  MessageBytes message_bytes_;
  Disconnect disconnect_;
  std::size_t open_calls_count_ = 0;
};

}  // namespace headrace::service
