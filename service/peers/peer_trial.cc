#include "service/peers/peer_trial.h"

#include <capnp/rpc-twoparty.h>
#include <fmt/format.h>
#include <kj/debug.h>

#include <memory>
#include <utility>

#include "ipc/base/check.h"
#include "ipc/base/foreign_text.h"
#include "ipc/schema/peer.capnp.h"
#include "service/config/config_address.h"
#include "service/loop/text.h"
#include "service/peers/tcp.h"

namespace headrace::service {
namespace {

constexpr auto kStepTimeout = 5 * kj::SECONDS;  // of each step but the handshake, which has its own
constexpr std::size_t kTextShownMax = 128;

// Owned by the chain of its own promises.
class Trial {
 public:
  Trial(const std::string& address, PeerSecurity& security, kj::Network& network, kj::Timer& timer)
      : address_(address), security_(security), network_(network), timer_(timer) {}

  kj::Promise<std::vector<PeerStep>> Run() {
    Begin("name");
    return Resolve()
        .then([this] { return Connect(); })
        .then([this](kj::Own<kj::AsyncIoStream> stream) { return Greet(kj::mv(stream)); })
        .then([this](Result<SecuredPeer> peer) -> kj::Promise<void> {
          if (peer) return AskVersion(kj::mv(peer).value());
          steps_.back().status = peer.error();
          return kj::READY_NOW;
        })
        .catch_([this](kj::Exception&& exception) {
          steps_.back().status = Error(Code::kUnavailable, Cause(exception));
        })
        .then([this] { return std::move(steps_); });
  }

 private:
  void Begin(const char* name) {
    // One step ends well and says what it found before the next begins.
    HR_CHECK(steps_.empty() || (steps_.back().status && !steps_.back().found.empty()), name);
    steps_.push_back({.name = name, .status = {}, .found = {}});
  }

  template <typename T>
  kj::Promise<T> InTime(kj::Promise<T> promise) {
    return timer_.timeoutAfter(kStepTimeout, kj::mv(promise));
  }

  std::string Cause(const kj::Exception& exception) const {
    if (exception.getType() == kj::Exception::Type::OVERLOADED) {
      return fmt::format("nothing came back for {} s", kStepTimeout / kj::SECONDS);
    }
    return CauseOf(exception);
  }

  kj::Promise<void> Resolve() {
    return InTime(network_.parseAddress(address_, kNodePort))
        .then([this](kj::Own<kj::NetworkAddress> resolved) {
          steps_.back().found =
              fmt::format("is {}", Printable(resolved->toString().cStr(), kTextShownMax));
          resolved_ = kj::mv(resolved);
        });
  }

  kj::Promise<kj::Own<kj::AsyncIoStream>> Connect() {
    Begin("port");
    return InTime(resolved_->connect()).then([this](kj::Own<kj::AsyncIoStream> stream) {
      steps_.back().found = "takes connections";
      return stream;
    });
  }

  kj::Promise<Result<SecuredPeer>> Greet(kj::Own<kj::AsyncIoStream> stream) {
    Begin("handshake");
    return security_.Connect(kj::mv(stream), address_);
  }

  kj::Promise<void> AskVersion(SecuredPeer peer) {
    const bool encrypted = peer.encrypted;
    steps_.back().found =
        encrypted ? fmt::format("both certificates are believed; there it is node {}",
                                fmt::join(peer.node_names, ", "))
                  : std::string("both speak plain text: nobody vouches for the other side");
    Begin("version");
    stream_ = kj::mv(peer.stream);
    client_ = kj::heap<capnp::TwoPartyClient>(*stream_);
    auto call = client_->bootstrap().castAs<schema::PeerBootstrap>().describeRequest();
    return InTime(kj::Promise<capnp::Response<schema::PeerBootstrap::DescribeResults>>(call.send()))
        .then([this](auto&& answer) { Judge(answer); },
              [this](kj::Exception&& exception) {
                const bool older = exception.getType() == kj::Exception::Type::UNIMPLEMENTED;
                steps_.back().status =
                    older ? Error(Code::kVersionMismatch,
                                  "the service there is an older release, which does not say its "
                                  "version before a job needs it")
                          : Error(Code::kUnavailable, Cause(exception));
              });
  }

  void Judge(schema::PeerBootstrap::DescribeResults::Reader answer) {
    PeerStep& step = steps_.back();
    const std::string there =
        fmt::format("node {} runs {}", Printable(answer.getNode().cStr(), kTextShownMax),
                    Printable(answer.getProgram().cStr(), kTextShownMax));
    const std::uint32_t theirs = answer.getProtocolVersion();
    if (theirs == schema::PEER_PROTOCOL_VERSION) {
      step.found = fmt::format("{}; both speak peer protocol {}", there, theirs);
    } else {
      step.status = Error(Code::kVersionMismatch,
                          fmt::format("{}, which speaks peer protocol {}, and this one speaks {}",
                                      there, theirs, schema::PEER_PROTOCOL_VERSION));
    }
  }

  std::string address_;
  PeerSecurity& security_;
  kj::Network& network_;
  kj::Timer& timer_;
  std::vector<PeerStep> steps_;
  kj::Own<kj::NetworkAddress> resolved_;
  kj::Own<kj::AsyncIoStream> stream_;
  kj::Own<capnp::TwoPartyClient> client_;
};

}  // namespace

kj::Promise<std::vector<PeerStep>> TryToReach(const std::string& address, PeerSecurity& security,
                                              kj::Network& network, kj::Timer& timer) {
  auto trial = kj::heap<Trial>(address, security, network, timer);
  auto steps = trial->Run();
  return steps.attach(kj::mv(trial));
}

}  // namespace headrace::service
