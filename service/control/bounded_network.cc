#include "service/control/bounded_network.h"

#include <capnp/rpc.capnp.h>
#include <fmt/format.h>
#include <kj/debug.h>

namespace headrace::service {

class BoundedNetwork::BoundedConnection final : public capnp::TwoPartyVatNetworkBase::Connection {
 public:
  BoundedConnection(kj::Own<Connection> inner, capnp::TwoPartyVatNetwork& network, const Cut& cut)
      : inner_(kj::mv(inner)), network_(network), cut_(cut) {}

  kj::Own<capnp::RpcFlowController> newStream() override { return inner_->newStream(); }
  capnp::rpc::twoparty::VatId::Reader getPeerVatId() override { return inner_->getPeerVatId(); }
  kj::Own<capnp::OutgoingRpcMessage> newOutgoingMessage(unsigned first_segment_words) override {
    return inner_->newOutgoingMessage(first_segment_words);
  }
  kj::Promise<void> shutdown() override { return inner_->shutdown(); }

  kj::Promise<kj::Maybe<kj::Own<capnp::IncomingRpcMessage>>> receiveIncomingMessage() override {
    return inner_->receiveIncomingMessage().then(
        [this](kj::Maybe<kj::Own<capnp::IncomingRpcMessage>> message) {
          KJ_IF_MAYBE (found, message) {
            Count(**found);
          }
          return message;
        });
  }

 private:
  // Throws, which ends the connection, when a bound is passed.
  void Count(capnp::IncomingRpcMessage& message) {
    switch (message.getBody().getAs<capnp::rpc::Message>().which()) {
      case capnp::rpc::Message::CALL:
      case capnp::rpc::Message::BOOTSTRAP:
        ++calls_;
        break;
      case capnp::rpc::Message::FINISH:
        if (calls_ > 0) --calls_;
        break;
      default:
        break;
    }
    const std::size_t unread = network_.getCurrentQueueSize();
    if (calls_ <= kCallsMax && unread <= kUnreadBytesMax) return;
    const std::string why = fmt::format(
        "{} calls are not finished and {} bytes of answers not read, {} and {} are allowed", calls_,
        unread, kCallsMax, kUnreadBytesMax);
    cut_(why);
    KJ_FAIL_REQUIRE("a connection went beyond its bounds", why.c_str());
  }

  kj::Own<Connection> inner_;
  capnp::TwoPartyVatNetwork& network_;
  const Cut& cut_;  // the network's
  std::size_t calls_ = 0;
};

kj::Maybe<kj::Own<BoundedNetwork::Connection>> BoundedNetwork::connect(
    capnp::rpc::twoparty::VatId::Reader host) {
  return inner_.connect(host).map([this](kj::Own<Connection> connection) -> kj::Own<Connection> {
    return kj::heap<BoundedConnection>(kj::mv(connection), inner_, cut_);
  });
}

kj::Promise<kj::Own<BoundedNetwork::Connection>> BoundedNetwork::accept() {
  return inner_.accept().then([this](kj::Own<Connection> connection) -> kj::Own<Connection> {
    return kj::heap<BoundedConnection>(kj::mv(connection), inner_, cut_);
  });
}

}  // namespace headrace::service
