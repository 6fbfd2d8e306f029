#include "service/peers/peer_dialer.h"

#include <fmt/format.h>

#include <algorithm>

#include "ipc/base/check.h"
#include "service/config/config_address.h"
#include "service/loop/text.h"
#include "service/peers/tcp.h"

namespace headrace::service {
namespace {

constexpr auto kDelayMin = 50 * kj::MILLISECONDS;
constexpr auto kDelayMax = 1 * kj::SECONDS;

// Worth another attempt: the other end may change its mind by itself.
bool MayPass(Code code) {
  return code == Code::kUnavailable || code == Code::kBusy || code == Code::kExhausted ||
         code == Code::kTimeout || code == Code::kPeerLost;
}

}  // namespace

PeerDialer::PeerDialer(Options options, Owner& owner, PeerSecurity& security, kj::Network& network,
                       kj::Timer& timer)
    : options_(std::move(options)),
      owner_(owner),
      security_(security),
      network_(network),
      timer_(timer),
      delay_(kDelayMin),
      tasks_(*this) {
  tasks_.add(kj::evalLater([this] { return Try(); }));
}

const NodeFacts& PeerDialer::Self() const { return owner_.Self(); }

Status PeerDialer::Greet(PeerLink& /*link*/, const NodeFacts& /*facts*/) {
  return Error(Code::kInvalidArgument, "this side says hello itself");
}

void PeerDialer::OnMessage(PeerLink& link, const PeerMessage& message) {
  HR_CHECK(&link == link_.get(), options_.leader);
  owner_.OnLeaderMessage(options_.leader, message);
}

void PeerDialer::Send(const PeerMessage& message) {
  if (link_.get() != nullptr) link_->Send(message);
}

kj::Promise<void> PeerDialer::Finish(const std::string& cause) {
  if (link_.get() == nullptr || !link_->greeted()) return kj::READY_NOW;
  return link_->Finish(cause);
}

PeerView PeerDialer::View() const {
  PeerView view{.address = options_.addresses.front(), .leads = true};
  view.connected = link_.get() != nullptr && link_->greeted();
  if (view.connected) {
    view.name = link_->peer_name();
    view.round_trip_ns = link_->round_trip().taken_ns;
    view.clock_offset_ns = link_->round_trip().offset_ns;
  } else {
    view.why = why_.empty() ? "it is being reached" : why_;
  }
  return view;
}

kj::Promise<void> PeerDialer::Try() {
  return Connect()
      .then([this](kj::Own<kj::AsyncIoStream> stream) {
        return Bound(security_.Connect(kj::mv(stream), options_.leader));
      })
      .then([this](Result<SecuredPeer> peer) -> kj::Promise<void> {
        if (peer) return Introduce(kj::mv(peer).value());
        OnRefused(peer.error());  // which says who refuses whom
        return kj::READY_NOW;
      })
      .catch_([this](kj::Exception&& exception) {
        OnUnreachable(CauseOf(exception));
        UseNextAddress();
      })
      .then([this] { return TryAgainLater(); });
}

kj::Promise<void> PeerDialer::TryAgainLater() {
  link_ = nullptr;
  const auto delay = delay_;
  delay_ = std::min(delay_ * 2, kDelayMax);
  return timer_.afterDelay(delay).then([this] { return Try(); });
}

kj::Promise<kj::Own<kj::AsyncIoStream>> PeerDialer::Connect() {
  auto connected = network_.parseAddress(options_.addresses.front(), kNodePort)
                       .then([](kj::Own<kj::NetworkAddress> address) {
                         auto stream = address->connect();
                         return stream.attach(kj::mv(address));
                       });
  return Bound(kj::mv(connected)).then([](kj::Own<kj::AsyncIoStream> stream) {
    TuneForControl(*stream);
    return stream;
  });
}

template <typename Value>
kj::Promise<Value> PeerDialer::Bound(kj::Promise<Value> answer) {
  auto timeout = timer_.afterDelay(options_.detection_ns * kj::NANOSECONDS).then([this]() -> Value {
    kj::throwFatalException(kj::Exception(
        kj::Exception::Type::FAILED, __FILE__, __LINE__,
        kj::str("nothing came back for ", options_.detection_ns / kMillisecond, " ms")));
  });
  return answer.exclusiveJoin(kj::mv(timeout));
}

kj::Promise<void> PeerDialer::Introduce(SecuredPeer peer) {
  HR_CHECK(link_.get() == nullptr, options_.leader);
  link_ = kj::heap<PeerLink>(kj::mv(peer),
                             PeerLink::Options{.side = capnp::rpc::twoparty::Side::CLIENT,
                                               .detection_ns = options_.detection_ns,
                                               .name = options_.name},
                             timer_, *this);
  return Bound(link_->SendHello()).then([this](Result<NodeFacts> facts) -> kj::Promise<void> {
    if (facts) {
      Learn(*facts);
      return Serve();
    }
    OnRefused(
        facts.error().Within(fmt::format("the service at {} refuses this one", options_.leader)));
    return kj::READY_NOW;
  });
}

kj::Promise<void> PeerDialer::Serve() {
  HR_CHECK(link_.get() != nullptr && link_->greeted(), options_.leader);
  delay_ = kDelayMin;
  name_taken_since_ns_ = kNever;
  why_.clear();
  owner_.OnLeaderUp(options_.leader);
  return link_->WhenEnded().then([this](const Error& error) {
    // A service that was restarted answers where it did before; a network that is cut does not.
    if (link_->silent()) UseNextAddress();
    link_ = nullptr;
    why_ = error.text();
    owner_.OnLeaderDown(options_.leader, error);
  });
}

void PeerDialer::Learn(const NodeFacts& facts) {
  if (!options_.uses_rails) return;
  for (const std::string& address : facts.rail_addresses) {
    if (options_.addresses.size() > kRailsConfiguredMax) return;
    if (std::ranges::find(options_.addresses, address) == options_.addresses.end()) {
      options_.addresses.push_back(address);
    }
  }
}

void PeerDialer::UseNextAddress() {
  std::rotate(options_.addresses.begin(), options_.addresses.begin() + 1, options_.addresses.end());
}

void PeerDialer::OnUnreachable(const std::string& why) {
  const std::string& tried = options_.addresses.front();
  why_ = fmt::format("the service at {} does not answer{}: {}", options_.leader,
                     tried == options_.leader || options_.addresses.size() == 1
                         ? ""
                         : fmt::format(" at {}", tried),
                     why);
  owner_.OnLeaderUnreachable(options_.leader, why_);
}

// A name that is taken may be that of this node's own service before its restart, whose end the
// leader has not noticed yet.
void PeerDialer::OnRefused(const Error& error) {
  const std::string text = error.text();
  why_ = text;
  bool passes = MayPass(error.code());
  if (error.code() == Code::kAlreadyExists) {
    name_taken_since_ns_ = std::min(name_taken_since_ns_, MonotonicNow());
    passes = MonotonicNow() - name_taken_since_ns_ < 2 * options_.detection_ns;
  }
  if (passes) {
    owner_.OnLeaderUnreachable(options_.leader, text);
  } else {
    owner_.OnLeaderRefused(options_.leader, Error(error.code(), text));
  }
}

void PeerDialer::taskFailed(kj::Exception&& exception) { OnUnreachable(CauseOf(exception)); }

}  // namespace headrace::service
