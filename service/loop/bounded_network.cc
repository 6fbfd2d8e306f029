#include "service/loop/bounded_network.h"

#include <capnp/rpc.capnp.h>
#include <fmt/format.h>
#include <kj/debug.h>

namespace headrace::service {

class BoundedNetwork::BoundedConnection final : public capnp::TwoPartyVatNetworkBase::Connection {
 public:
  BoundedConnection(kj::Own<Connection> inner, BoundedNetwork& network)
      : inner_(kj::mv(inner)), network_(network) {}

  kj::Own<capnp::RpcFlowController> newStream() override { return inner_->newStream(); }
  capnp::rpc::twoparty::VatId::Reader getPeerVatId() override { return inner_->getPeerVatId(); }
  kj::Own<capnp::OutgoingRpcMessage> newOutgoingMessage(unsigned first_segment_words) override {
    return inner_->newOutgoingMessage(first_segment_words);
  }
  kj::Promise<void> shutdown() override { return inner_->shutdown(); }

  kj::Promise<kj::Maybe<kj::Own<capnp::IncomingRpcMessage>>> receiveIncomingMessage() override {
    // Whoever waits for it may outlive this connection.
    return waiting_.wrap(WaitForTurn()
                             .then([this] { return inner_->receiveIncomingMessage(); })
                             .then([this](kj::Maybe<kj::Own<capnp::IncomingRpcMessage>> message) {
                               KJ_IF_MAYBE (found, message) {
                                 Count(**found);
                               }
                               return message;
                             }));
  }

 private:
  // A timer fires only after the loop has looked for other timers and sockets.
  kj::Promise<void> WaitForTurn() {
    if (wait_ns_ == 0 && ++in_turn_ < kMessagesPerTurn) return kj::READY_NOW;
    in_turn_ = 0;
    return network_.timer_.afterDelay(std::exchange(wait_ns_, 0) * kj::NANOSECONDS);
  }

  // Throws, which ends the connection, when a bound is passed.
  void Count(capnp::IncomingRpcMessage& message) {
    const std::uint64_t more = network_.message_bytes_() / kBytesPerMessage;
    wait_ns_ = network_.pace_.Book(1 + static_cast<TimeNs>(more), MonotonicNow());
    switch (message.getBody().getAs<capnp::rpc::Message>().which()) {
      case capnp::rpc::Message::CALL:
      case capnp::rpc::Message::BOOTSTRAP:
        ++calls_;
        strays_max_ += kStraysPerCall;
        break;
      case capnp::rpc::Message::FINISH:
        // One without its call ends the connection, as does a RETURN of a call that was not made.
        if (calls_ > 0) --calls_;
        break;
      case capnp::rpc::Message::RETURN:
        break;
      default:
        if (++strays_ > strays_max_) {
          Disconnect(
              fmt::format("{} messages that are no calls, {} are allowed", strays_, strays_max_));
        }
        break;
    }
    network_.open_calls_count_ = calls_;
    const std::size_t unread = network_.inner_.getCurrentQueueSize();
    if (calls_ <= kCallsMax && unread <= kUnreadBytesMax) return;
    Disconnect(
        fmt::format("{} calls are not finished and {} bytes of answers not read, {} and {} are "
                    "allowed",
                    calls_, unread, kCallsMax, kUnreadBytesMax));
  }

  void Disconnect(const std::string& why) {
    network_.disconnect_(why);
    KJ_FAIL_REQUIRE("a connection went beyond its bounds", why.c_str());
  }

  kj::Own<Connection> inner_;
  BoundedNetwork& network_;
  std::size_t calls_ = 0;
  std::size_t strays_ = 0;
  std::size_t strays_max_ = kStraysMax;
  std::size_t in_turn_ = 0;
  TimeNs wait_ns_ = 0;  // before the next message
  kj::Canceler waiting_;
};

kj::Own<BoundedNetwork::Connection> BoundedNetwork::Bound(kj::Own<Connection> connection) {
  return kj::heap<BoundedConnection>(kj::mv(connection), *this);
}

kj::Maybe<kj::Own<BoundedNetwork::Connection>> BoundedNetwork::connect(
    capnp::rpc::twoparty::VatId::Reader host) {
  return inner_.connect(host).map(
      [this](kj::Own<Connection> connection) { return Bound(kj::mv(connection)); });
}

kj::Promise<kj::Own<BoundedNetwork::Connection>> BoundedNetwork::accept() {
  return inner_.accept().then(
      [this](kj::Own<Connection> connection) { return Bound(kj::mv(connection)); });
}

}  // namespace headrace::service
