#include "service/peers/peer_channel.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "ipc/base/check.h"
#include "service/loop/text.h"

namespace headrace::service {
namespace {

double Seconds(TimeNs time_ns) { return static_cast<double>(time_ns) / kSecond; }

}  // namespace

PeerChannel::PeerChannel(const ChannelId& id, TimeNs detection_ns, kj::Timer& timer, Owner& owner)
    : id_(id),
      detection_ns_(detection_ns),
      timer_(timer),
      owner_(owner),
      heartbeat_(detection_ns, Now()),
      tasks_(*this) {
  auto pair = kj::newPromiseAndFulfiller<Error>();
  lost_ = kj::mv(pair.fulfiller);
  when_lost_ = kj::mv(pair.promise);
}

PeerChannel::~PeerChannel() noexcept(false) {
  End(Error(Code::kUnavailable, "the channel is not used any more"));
}

ChannelHello PeerChannel::Hello() const {
  return {.id = id_, .resumes = links_ > 0, .received = received_.last()};
}

Result<std::uint64_t> PeerChannel::Resume(std::uint64_t acknowledged) {
  if (Status status = unsent_.Acknowledge(acknowledged); !status) {
    const Error error = status.error().Within(peer_.empty() ? "the other service" : peer_);
    End(error);
    return error;
  }
  CloseLink();
  return received_.last();
}

std::string PeerChannel::Attach(kj::Own<PeerLink> link) {
  HR_CHECK(link_.get() == nullptr && link->greeted(), link->DescribePeer());
  const TimeNs now = Now();
  link_ = kj::mv(link);
  peer_ = link_->DescribePeer();
  peer_name_ = link_->peer_name();
  peer_address_ = link_->peer_address();
  const std::uint64_t number = ++links_;
  tasks_.add(link_->WhenEnded().then([this, number](const Error& error) {
    if (number == links_) OnLinkEnded(error);
  }));
  heartbeat_.Answered(now);
  std::string happened;
  if (number == 1) {
    tasks_.add(Watch());
  } else {
    ++breaks_.count;
    breaks_.last_ns = since_ns_ == kNever ? 0 : std::max<TimeNs>(0, now - since_ns_);
    breaks_.time_ns += breaks_.last_ns;
    happened = fmt::format("{}; it goes on at {} after {:.3f} s, and no message was lost",
                           outage_.empty() ? fmt::format("{} connected anew", peer_) : outage_,
                           peer_address_, Seconds(breaks_.last_ns));
  }
  quiet_ = false;
  cause_.reset();
  outage_.clear();
  since_ns_ = kNever;
  link_->Carry(*this);
  return happened;
}

// The number of links stays: the next one has the next. Whatever the old one ends with does not
// count.
void PeerChannel::CloseLink() {
  if (link_.get() == nullptr) return;
  ++links_;
  if (since_ns_ == kNever) since_ns_ = heartbeat_.heard_ns();
  link_ = nullptr;
}

void PeerChannel::OnLinkEnded(const Error& error) {
  if (!lost_->isWaiting()) return;
  // A break says nothing about who is there; all else does.
  if (error.code() != Code::kPeerLost || finishing_ || IsStuck()) return End(error);
  // Nothing was answered here for too long, so the other end has given the channel up.
  if (heartbeat_.WasStopped(Now())) return End(error);
  link_ = nullptr;
  quiet_ = false;
  reached_ = false;
  cause_ = error;
  if (outage_.empty()) outage_ = error.text();
  if (since_ns_ == kNever) since_ns_ = Now();
  const std::uint64_t number = links_;
  tasks_.add(timer_.afterDelay(LinkGrace(detection_ns_) * kj::NANOSECONDS).then([this, number] {
    if (number == links_ && link_.get() == nullptr && !reached_) End(*cause_);
  }));
  owner_.OnLinkNeeded(*this);
}

bool PeerChannel::IsStuck() {
  const std::uint64_t under_way = unsent_.empty() ? 0 : unsent_.first();
  stuck_ = under_way != 0 && under_way == stuck_at_ ? stuck_ + 1 : 1;
  stuck_at_ = under_way;
  return under_way != 0 && stuck_ >= kBreaksMax;
}

// A service that does not answer on its connection may be there still.
void PeerChannel::OnRefused() {
  if (link_.get() == nullptr && cause_) End(*cause_);
}

// Where the service was restarted people read that the former one has ended.
void PeerChannel::OnUnknown(const Error& error) {
  const bool other = error.code() == Code::kNotFound;
  End(other && cause_ ? *cause_ : error.Within(fmt::format("{} does not go on", peer_)));
}

void PeerChannel::Show(PeerView& view) const {
  view.name = peer_name_;
  view.connected = linked();
  view.resumes = breaks_.count;
  view.unlinked_ns = breaks_.time_ns;
  if (!linked()) return;
  view.round_trip_ns = link_->round_trip().taken_ns;
  view.clock_offset_ns = link_->round_trip().offset_ns;
}

void PeerChannel::End(const Error& error) {
  if (!lost_->isWaiting()) return;
  lost_->fulfill(kj::cp(error));
  // Nothing is delivered any more, and nothing answered.
  if (link_.get() != nullptr) link_->End(error);
  if (all_sent_.get() != nullptr) all_sent_->fulfill();
}

void PeerChannel::Send(PeerMessage message) {
  if (!lost_->isWaiting()) return;
  if (!unsent_.Push(std::move(message))) {
    End(Error(Code::kPeerLost, fmt::format("{} does not read what it is sent: {} messages of {} "
                                           "bytes wait",
                                           peer_, unsent_.size(), unsent_.bytes())));
    unsent_.Clear();
    return;
  }
  if (link_.get() != nullptr) link_->Flush();
}

kj::Promise<void> PeerChannel::Finish(const std::string& cause) {
  const bool finished = std::exchange(finishing_, true);
  if (finished || link_.get() == nullptr || !lost_->isWaiting()) return kj::READY_NOW;
  auto pair = kj::newPromiseAndFulfiller<void>();
  all_sent_ = kj::mv(pair.fulfiller);
  Send(Goodbye{cause});
  return kj::mv(pair.promise);
}

void PeerChannel::OnAcknowledged(std::uint64_t number) {
  const Status status = unsent_.Acknowledge(number);
  HR_CHECK(status.ok(), status.error().text());
  if (unsent_.empty() && all_sent_.get() != nullptr) all_sent_->fulfill();
}

void PeerChannel::Receive(std::uint64_t number, const Result<PeerMessage>& message) {
  if (!lost_->isWaiting()) return;
  if (!message) return End(message.error().Within(peer_));
  switch (received_.Note(number)) {
    case ReceivedNumbers::Verdict::kAgain:
      return;
    case ReceivedNumbers::Verdict::kMissing:
      return End(Error(Code::kCorrupt, fmt::format("{} sent message {} after message {}", peer_,
                                                   number, received_.last())));
    case ReceivedNumbers::Verdict::kNext:
      break;
  }
  if (const auto* goodbye = std::get_if<Goodbye>(&message.value())) {
    return End(Error(Code::kUnavailable, goodbye->cause));
  }
  owner_.OnMessage(*this, *message);
}

void PeerChannel::OnPong() {
  heartbeat_.Answered(Now());
  if (!quiet_) return;
  quiet_ = false;
  since_ns_ = kNever;
  cause_.reset();
  outage_.clear();
}

kj::Promise<void> PeerChannel::Watch() {
  const TimeNs wait_ns = std::max<TimeNs>(0, heartbeat_.NextCheck() - Now());
  return timer_.afterDelay(wait_ns * kj::NANOSECONDS).then([this]() -> kj::Promise<void> {
    const TimeNs now = Now();
    if (!lost_->isWaiting()) return kj::READY_NOW;
    if (!heartbeat_.Check(now)) {
      const bool broke = link_.get() == nullptr && cause_;
      silent_ = !broke;
      End(broke ? *cause_
                : Error(Code::kPeerLost, fmt::format("{} does not answer for {:.1f} s", peer_,
                                                     Seconds(detection_ns_))));
      return kj::READY_NOW;
    }
    if (!quiet_ && link_.get() != nullptr && heartbeat_.IsQuiet(now)) {
      quiet_ = true;
      since_ns_ = heartbeat_.heard_ns();
      cause_ = Error(Code::kPeerLost, fmt::format("{} did not answer for {:.2f} s", peer_,
                                                  Seconds(now - since_ns_)));
      outage_ = cause_->text();
      owner_.OnLinkNeeded(*this);
    }
    return Watch();
  });
}

void PeerChannel::taskFailed(kj::Exception&& exception) {
  End(Error(Code::kInternal, fmt::format("{}: {}", peer_, CauseOf(exception))));
}

}  // namespace headrace::service
