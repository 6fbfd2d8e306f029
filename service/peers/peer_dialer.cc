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

PeerDialer::~PeerDialer() noexcept(false) = default;

Result<std::uint64_t> PeerDialer::Greet(PeerLink& /*link*/, const NodeFacts& /*facts*/,
                                        const ChannelHello& /*channel*/) {
  return Error(Code::kInvalidArgument, "this side says hello itself");
}

void PeerDialer::OnGreeted(PeerLink& link) { HR_CHECK(false, link.DescribePeer()); }

void PeerDialer::OnMessage(PeerChannel& channel, const PeerMessage& message) {
  HR_CHECK(&channel == channel_.get(), options_.leader);
  if (!left_) owner_.OnLeaderMessage(options_.leader, message);
}

void PeerDialer::Send(const PeerMessage& message) {
  if (channel_.get() != nullptr) channel_->Send(message);
}

kj::Promise<void> PeerDialer::Leave(const std::string& cause) {
  left_ = true;
  return Finish(cause);
}

kj::Promise<void> PeerDialer::Finish(const std::string& cause) {
  if (channel_.get() == nullptr) return kj::READY_NOW;
  return channel_->Finish(cause);
}

PeerView PeerDialer::View() const {
  PeerView view{.address = options_.addresses.front(), .leads = true};
  if (channel_.get() != nullptr) {
    channel_->Show(view);
    view.why = channel_->why();
  }
  if (!view.connected && view.why.empty()) view.why = why_.empty() ? "it is being reached" : why_;
  return view;
}

kj::Promise<void> PeerDialer::Try() {
  return Connect()
      .then([this](kj::Own<kj::AsyncIoStream> stream) {
        return Bound(security_.Connect(kj::mv(stream), options_.leader));
      })
      .then([this](Result<SecuredPeer> peer) -> kj::Promise<void> {
        if (peer) return Begin(kj::mv(peer).value());
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
  channel_ = nullptr;
  if (left_) return kj::NEVER_DONE;
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
kj::Promise<Value> PeerDialer::Bound(kj::Promise<Value> answer, TimeNs within_ns) {
  const TimeNs time_ns = within_ns == 0 ? options_.detection_ns : within_ns;
  auto timeout = timer_.afterDelay(time_ns * kj::NANOSECONDS).then([time_ns]() -> Value {
    kj::throwFatalException(
        kj::Exception(kj::Exception::Type::FAILED, __FILE__, __LINE__,
                      kj::str("nothing came back for ", time_ns / kMillisecond, " ms")));
  });
  return answer.exclusiveJoin(kj::mv(timeout));
}

kj::Promise<Result<PeerLink::Answer>> PeerDialer::Introduce(SecuredPeer peer,
                                                            const ChannelHello& hello) {
  HR_CHECK(link_.get() == nullptr, options_.leader);
  const Heartbeat heartbeat(options_.detection_ns, 0);
  link_ = kj::heap<PeerLink>(kj::mv(peer),
                             PeerLink::Options{.side = capnp::rpc::twoparty::Side::CLIENT,
                                               .ping_every_ns = heartbeat.interval_ns(),
                                               .name = options_.name},
                             timer_, *this);
  // One that is resumed may have to be sent once more before the channel is lost.
  return Bound(link_->SendHello(hello), hello.resumes ? options_.detection_ns / 4 : 0);
}

kj::Promise<void> PeerDialer::Begin(SecuredPeer peer) {
  HR_CHECK(channel_.get() == nullptr, options_.leader);
  channel_ = kj::heap<PeerChannel>(DrawChannelId(), options_.detection_ns, timer_, *this);
  return Introduce(kj::mv(peer), channel_->Hello())
      .then([this](const Result<PeerLink::Answer>& answer) -> kj::Promise<void> {
        if (!answer) {
          OnRefused(answer.error().Within(
              fmt::format("the service at {} refuses this one", options_.leader)));
          return kj::READY_NOW;
        }
        Learn(answer->facts);
        channel_->Attach(kj::mv(link_));
        return Serve();
      });
}

kj::Promise<void> PeerDialer::Serve() {
  HR_CHECK(channel_.get() != nullptr && channel_->linked(), options_.leader);
  delay_ = kDelayMin;
  name_taken_since_ns_ = kNever;
  why_.clear();
  if (!left_) owner_.OnLeaderUp(options_.leader);
  return channel_->WhenLost().then([this](const Error& error) {
    // A service that was restarted answers where it did before; a network that is cut does not.
    if (channel_->silent()) UseNextAddress();
    redial_ = nullptr;
    redials_ = false;
    unanswered_.clear();
    reach_ = nullptr;
    link_ = nullptr;
    channel_ = nullptr;
    why_ = error.text();
    if (!left_) owner_.OnLeaderDown(options_.leader, error);
  });
}

void PeerDialer::OnLinkNeeded(PeerChannel& channel) {
  HR_CHECK(&channel == channel_.get(), options_.leader);
  if (std::exchange(redials_, true)) return;
  // One that breaks again and again is reached no faster than that.
  const auto delay = MonotonicNow() - resumed_ns_ < kSecond ? kDelayMin : 0 * kj::SECONDS;
  redial_ = timer_.afterDelay(delay)
                .then([this] { return Redial(); })
                .eagerlyEvaluate([this](kj::Exception&& exception) {
                  channel_->End(Error(Code::kInternal, CauseOf(exception)));
                });
}

std::vector<std::string> PeerDialer::AddressesToTry() const {
  std::vector<std::string> addresses = options_.addresses;
  if (addresses.size() > 1) std::erase(addresses, unanswered_);
  return addresses;
}

kj::Promise<void> PeerDialer::Redial() {
  if (!channel_->NeedsLink()) {
    redials_ = false;
    return kj::READY_NOW;
  }
  reach_ = kj::heap<PeerReach>(PeerReach::Options{.known_as = options_.leader,
                                                  .addresses = AddressesToTry(),
                                                  .attempt_ns = options_.detection_ns / 2},
                               security_, network_, timer_);
  kj::Promise<Result<PeerReach::Reached>> answered = reach_->Answered();
  if (!unanswered_.empty()) {
    // The others may be cut off, and then say nothing: that one is tried again.
    auto timeout = timer_.afterDelay(options_.detection_ns / 8 * kj::NANOSECONDS)
                       .then([]() -> Result<PeerReach::Reached> {
                         return Error(Code::kTimeout, "no other address answers");
                       });
    answered = answered.exclusiveJoin(kj::mv(timeout));
  }
  return answered.then([this](Result<PeerReach::Reached> reached) -> kj::Promise<void> {
    reach_ = nullptr;
    if (!channel_->NeedsLink()) return Redial();
    if (reached) return Resume(kj::mv(reached).value());
    if (unanswered_.empty()) channel_->OnRefused();
    return RedialWithout("");
  });
}

kj::Promise<void> PeerDialer::RedialWithout(const std::string& address) {
  link_ = nullptr;
  unanswered_ = address;
  return timer_.afterDelay(kDelayMin).then([this] { return Redial(); });
}

kj::Promise<void> PeerDialer::Resume(PeerReach::Reached reached) {
  // Another node may have the address by now: it must not lead, and is not sent the channel's id.
  if (!CheckPeerName(reached.peer, channel_->peer_name())) return RedialWithout(reached.address);
  channel_->OnReached();
  const std::string address = reached.address;
  return Introduce(kj::mv(reached.peer), channel_->Hello())
      .then(
          [this, address](const Result<PeerLink::Answer>& answer) -> kj::Promise<void> {
            redials_ = false;
            unanswered_.clear();
            // It does not know the channel: it is another service.
            if (!answer) {
              channel_->OnUnknown(answer.error());
              return kj::READY_NOW;
            }
            if (!channel_->Resume(answer->received)) return kj::READY_NOW;
            Learn(answer->facts);
            const auto used =
                std::find(options_.addresses.begin(), options_.addresses.end(), address);
            std::rotate(options_.addresses.begin(), used, options_.addresses.end());
            resumed_ns_ = MonotonicNow();
            const std::string happened = channel_->Attach(kj::mv(link_));
            if (!left_) owner_.OnLeaderResumed(options_.leader, happened);
            return kj::READY_NOW;
          },
          [this, address](kj::Exception&&) { return RedialWithout(address); });
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
  if (left_) return;
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
  if (left_) return;
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
