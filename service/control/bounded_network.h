// The network of one connection with bounds on what its other end can make the service hold: calls
// that are not finished (each may carry descriptors), and answers that are not read. Whoever
// goes beyond loses the connection.
#pragma once

#include <capnp/rpc-twoparty.h>
#include <kj/async.h>

#include <cstddef>
#include <functional>
#include <string>
#include <utility>

namespace headrace::service {

inline constexpr std::size_t kCallsMax = 32;                          // open, per connection
inline constexpr std::size_t kUnreadBytesMax = std::size_t{1} << 20;  // answers, per connection

class BoundedNetwork final : public capnp::TwoPartyVatNetworkBase {
 public:
  // Closes the socket both ways; the orderly way would wait until the other end has read all that
  // is queued for it. `why` is for people.
  using Cut = std::function<void(const std::string& why)>;

  // `inner` outlives this.
  BoundedNetwork(capnp::TwoPartyVatNetwork& inner, Cut cut) : inner_(inner), cut_(std::move(cut)) {}

  kj::Maybe<kj::Own<Connection>> connect(capnp::rpc::twoparty::VatId::Reader host) override;
  kj::Promise<kj::Own<Connection>> accept() override;

 private:
  class BoundedConnection;

  capnp::TwoPartyVatNetwork& inner_;
  Cut cut_;
};

}  // namespace headrace::service
