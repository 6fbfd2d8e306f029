// The network of one connection with bounds on what its other end can make the service hold: calls
// that are not finished (each may carry descriptors), and answers that are not read. Whoever
// goes beyond loses the connection.
#pragma once

#include <capnp/rpc-twoparty.h>
#include <kj/async.h>

#include <cstddef>

namespace headrace::service {

inline constexpr std::size_t kCallsMax = 32;                          // open, per connection
inline constexpr std::size_t kUnreadBytesMax = std::size_t{1} << 20;  // answers, per connection

class BoundedNetwork final : public capnp::TwoPartyVatNetworkBase {
 public:
  // `inner` outlives this.
  explicit BoundedNetwork(capnp::TwoPartyVatNetwork& inner) : inner_(inner) {}

  kj::Maybe<kj::Own<Connection>> connect(capnp::rpc::twoparty::VatId::Reader host) override;
  kj::Promise<kj::Own<Connection>> accept() override;

 private:
  class BoundedConnection;

  capnp::TwoPartyVatNetwork& inner_;
};

}  // namespace headrace::service
