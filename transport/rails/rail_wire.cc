#include "transport/rails/rail_wire.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "ipc/base/check.h"

namespace headrace::transport {

class RailWire::Ear final : public WireEvents {
 public:
  Ear(RailWire& wire, std::size_t rail) : wire_(wire), rail_(rail) {}
  void Announced(const MessageHeader& header, std::size_t size, ArrivalId arrival) override {
    wire_.OnAnnounced(rail_, header, size, arrival);
  }
  void Sent(std::uint64_t token, Code code) override { wire_.OnSent(token, code); }
  void Received(std::uint64_t token, Code code) override { wire_.events_->Received(token, code); }
  void LinkFailed(LinkId link, const std::string& cause) override {
    wire_.OnLinkFailed(rail_, link, cause);
  }

 private:
  RailWire& wire_;
  const std::size_t rail_;
};

RailWire::RailWire(std::vector<Wire*> rails, std::uint64_t id)
    : rails_(std::move(rails)), peers_(rails_, id) {
  RailAddress address{.wire_id = id, .rails = {}};
  for (std::size_t rail = 0; rail < rails_.size(); ++rail) {
    ears_.push_back(std::make_unique<Ear>(*this, rail));
    address.rails.push_back(rails_[rail]->address());
  }
  address_ = EncodeRails(address);
}

// Rails that outlive this let go of the copies.
RailWire::~RailWire() {
  links_.ForEach([this](std::uint32_t, Link& link) {
    for (std::size_t rail = 0; rail < rails_.size(); ++rail) peers_.CloseLink(rail, link.links);
  });
}

std::uint64_t RailWire::dropped_count() const {
  std::uint64_t count = dropped_count_;
  for (const Wire* rail : rails_) count += rail->dropped_count();
  return count;
}

std::string RailWire::Names() const {
  std::set<std::size_t> in_use;
  peers_.ForEach([&in_use](std::uint32_t, const RailPeer& peer) {
    if (peer.health.active()) in_use.insert(*peer.health.active());
  });
  std::string own = rails_[0]->Names();
  std::vector<std::string> others;
  for (const std::size_t rail : in_use) {
    if (rail != 0) others.push_back(rails_[rail]->Names());
  }
  if (others.empty()) return own;
  // To some peers it may be in use all the same.
  const char* const beside = in_use.contains(0) ? "beside" : "for";
  return fmt::format("{} {} {}", fmt::join(others, ","), beside, own);
}

bool RailWire::IsEager(std::size_t size) const {
  return std::ranges::all_of(rails_, [size](const Wire* rail) { return rail->IsEager(size); });
}

Result<std::span<std::byte>> RailWire::AllocateStaging(std::size_t size) {
  return rails_[0]->AllocateStaging(size);
}

void RailWire::FreeStaging(std::span<std::byte> memory) { rails_[0]->FreeStaging(memory); }

Result<LinkId> RailWire::Connect(const std::string& address, std::uint64_t key,
                                 std::uint16_t member) {
  const Result<RailAddress> decoded = DecodeRails(address);
  if (!decoded) return decoded.error();
  if (decoded->rails.size() != rails_.size()) {
    return Error(Code::kUnavailable,
                 fmt::format("this node's lane has {} rails, the other's {}: give both nodes as "
                             "many `rails`",
                             rails_.size(), decoded->rails.size()));
  }
  HR_CHECK(key != 0, member);
  if (const auto before = links_by_name_.find({key, member}); before != links_by_name_.end()) {
    Link& old = links_.At(before->second);
    HR_CHECK(old.state == LinkState::kAnswers, key, member);
    Forget(old);
  }
  std::uint32_t peer_id = peers_.Find(*decoded);
  if (peer_id == 0) peer_id = peers_.Add(*decoded);
  RailPeer& peer = peers_.at(peer_id);
  if (!peer.health.active()) peer.health = RailHealth(rails_.size());
  // A rail that cannot be used now is as one that fails later, while there is another.
  RailLinks made;
  std::optional<Error> refused;
  while (const std::optional<std::size_t> rail = peer.health.active()) {
    const Result<LinkId> link = rails_[*rail]->Connect(peer.addresses[*rail], key, member);
    if (link) {
      made[*rail] = *link;
      break;
    }
    if (!refused) refused = link.error();
    FailRail(peer_id, *rail, link.error().text());
  }
  if (!peer.health.active()) {
    if (peer.links_count == 0) peers_.Release(peer_id);
    return *refused;
  }
  const std::uint32_t id = links_.Acquire();
  Link& link = links_.At(id);
  link = Link();
  link.peer = peer_id;
  link.key = key;
  link.member = member;
  link.links = made;
  ++peer.links_count;
  links_by_name_[{key, member}] = id;
  return id;
}

void RailWire::Close(LinkId id) {
  Link* const link = links_.Find(id);
  HR_CHECK(link != nullptr, id);
  HR_CHECK(link->state == LinkState::kOpen || link->state == LinkState::kFailed, id);
  closed_.push_back(id);
  if (link->state == LinkState::kFailed || link->unreported_count > 0) return Forget(*link);
  link->state = LinkState::kAnswers;
  link->answers_until_ns = now_ + kLingerNs;
}

// Nothing comes by it any more, and what it has sent is given up.
void RailWire::Forget(Link& link) {
  GiveUp(link, Code::kCancelled);
  link.state = LinkState::kReleased;
  links_by_name_.erase({link.key, link.member});
}

// What the link has sent ends with that code, as soon as the rails have let go of it.
void RailWire::GiveUp(Link& link, Code code) {
  for (std::size_t rail = 0; rail < rails_.size(); ++rail) peers_.CloseLink(rail, link.links);
  RailPeer& peer = peers_.at(link.peer);
  HR_CHECK(peer.waiting_count >= link.sent_count, peer.waiting_count, link.sent_count);
  peer.waiting_count -= link.sent_count;
  if (link.sent_count > 0 && peer.waiting_count == 0) peer.health.OnAcknowledged(now_, 0, false);
  link.sent_count = 0;
  for (const std::uint32_t id : std::exchange(link.unacknowledged, {})) {
    sends_.At(id).given_up = code;
    Settle(id);
  }
}

// Reports a send's end when it is due, and forgets a send that is over.
void RailWire::Settle(std::uint32_t id) {
  OpenSend& send = sends_.At(id);
  Link& link = links_.At(send.link);
  const bool given_up = send.given_up != Code::kOk;
  const bool over = (send.acknowledged || given_up) && send.on_rails_count == 0;
  const bool is_elsewhere = send.copied && send.left && !given_up;
  if (!send.reported && (over || is_elsewhere)) {
    send.reported = true;
    --link.unreported_count;
    ended_.push_back({send.token, send.acknowledged || !given_up ? Code::kOk : send.given_up});
  }
  if (!over) return;
  --link.open_count;
  sends_.Release(id);
}

// Returns whether a closed link is gone.
bool RailWire::Release(std::uint32_t id) {
  Link& link = links_.At(id);
  if (link.state == LinkState::kAnswers) {
    if (now_ < link.answers_until_ns) return false;
    Forget(link);
  }
  if (link.open_count > 0 || link.acknowledgement_open || link.is_listed) return false;
  if (--peers_.at(link.peer).links_count == 0) peers_.Release(link.peer);
  links_.Release(id);
  return true;
}

void RailWire::Send(LinkId link_id, const MessageHeader& header, const std::byte* bytes,
                    std::size_t size, std::uint64_t token) {
  Link* const link = links_.Find(link_id);
  HR_CHECK(link != nullptr && header.key == link->key, link_id, header.key);
  HR_CHECK(IsEager(size), size);
  if (link->state == LinkState::kFailed) return ended_.push_back({token, Code::kPeerLost});
  HR_CHECK(link->state == LinkState::kOpen, link_id);
  const std::uint32_t id = sends_.Acquire();
  OpenSend& send = sends_.At(id);
  std::vector<std::byte> copy = std::move(send.copy);
  send = OpenSend();
  send.link = link_id;
  send.token = token;
  send.header = header;
  send.header.sequence = link->first_sequence + link->unacknowledged.size();
  send.copied = size <= kCopiedBytesMax && link->copies_count < kCopiesMax;
  if (send.copied) {
    copy.assign(bytes, bytes + size);
    ++link->copies_count;
  }
  send.copy = std::move(copy);
  send.bytes = send.copied ? send.copy.data() : bytes;
  send.size = size;
  link->unacknowledged.push_back(id);
  ++link->open_count;
  ++link->unreported_count;
  Transmit(*link);
}

// Gives the rail in use what the window has room for.
void RailWire::Transmit(Link& link) {
  RailPeer& peer = peers_.at(link.peer);
  const std::optional<std::size_t> rail = peer.health.active();
  if (!rail) return;
  while (link.sent_count < link.unacknowledged.size() && link.sent_count < ReceivedWindow::kSize) {
    const std::uint32_t id = link.unacknowledged[link.sent_count++];
    sends_.At(id).sent_ns = now_;
    if (peer.waiting_count++ == 0) {
      peer.health.OnWaiting(now_);
      peers_.CheckLater(peer);
    }
    TransmitOne(link, id, *rail);
  }
}

void RailWire::TransmitOne(Link& link, std::uint32_t id, std::size_t rail) {
  OpenSend& send = sends_.At(id);
  send.rail = static_cast<std::uint8_t>(rail);
  // Without one the rail has failed, and then this goes over the next.
  const auto rail_link = peers_.Link(link.peer, link.links, rail, link.key, link.member);
  if (!rail_link) return;
  send.header.acknowledged = link.received.end();
  SetAcknowledged(link);
  ++send.on_rails_count;
  rails_[rail]->Send(*rail_link, send.header, send.bytes, send.size,
                     RailToken{RailSend::kMessage, send.rail, id}.Pack());
}

void RailWire::SetAcknowledged(Link& link) {
  link.waited_count = 0;
  link.unwaited_count = 0;
  link.unwaited_since_ns = kNever;
}

bool RailWire::MustAcknowledge(const Link& link, bool idle) const {
  if (link.acknowledgement_open) return false;
  return link.waited_count >= kWaitedMax || (link.waited_count > 0 && idle) ||
         link.unwaited_count >= kUnwaitedMax ||
         (link.unwaited_since_ns != kNever && now_ >= link.unwaited_since_ns + kAcknowledgeAfter);
}

// `idle`: nothing else is to be done now.
void RailWire::Acknowledge(bool idle) {
  std::erase_if(to_acknowledge_, [this, idle](std::uint32_t id) {
    Link& link = links_.At(id);
    const RailPeer& peer = peers_.at(link.peer);
    const bool answers = link.state == LinkState::kOpen || link.state == LinkState::kAnswers;
    if (!answers || !peer.health.active()) {
      SetAcknowledged(link);
    } else if (MustAcknowledge(link, idle)) {
      // The way that the message came, which is known to work that far.
      const bool is_down = peer.health.IsDown(link.heard_rail);
      const std::size_t rail = is_down ? *peer.health.active() : link.heard_rail;
      SetAcknowledged(link);
      link.acknowledgement_open =
          peers_.SendAcknowledgement(link.peer, rail, link.key, link.received.end(), id);
    }
    link.is_listed = link.waited_count > 0 || link.unwaited_count > 0;
    return !link.is_listed;
  });
}

// A group has one link to a wire.
std::uint32_t RailWire::FindLink(std::uint64_t key, std::uint64_t wire_id) const {
  for (auto each = links_by_name_.lower_bound({key, 0});
       each != links_by_name_.end() && each->first.first == key; ++each) {
    if (peers_.at(links_.At(each->second).peer).wire_id == wire_id) return each->second;
  }
  return 0;
}

void RailWire::OnAnnounced(std::size_t rail, const MessageHeader& header, std::size_t size,
                           ArrivalId arrival) {
  if (header.key == 0 || !IsEager(size)) {
    rails_[rail]->Drop(arrival);
    if (size == 0) {
      OnControl(rail, header);
    } else {
      ++dropped_count_;
    }
    return;
  }
  const ArrivalId ours = arrival * kWireRailsMax + rail;
  const auto found = links_by_name_.find({header.key, header.sender});
  // Whoever knows the groups counts and drops it.
  if (found == links_by_name_.end()) return events_->Announced(header, size, ours);
  const std::uint32_t id = found->second;
  Link& link = links_.At(id);
  OnAcknowledged(id, link, header.acknowledged);
  switch (link.received.Add(header.sequence)) {
    case ReceivedWindow::Outcome::kNew:
      MarkReceived(id, link, rail, size > kCopiedBytesMax);
      if (link.state == LinkState::kOpen) return events_->Announced(header, size, ours);
      break;
    case ReceivedWindow::Outcome::kTwice:
      ++dropped_count_;
      MarkReceived(id, link, rail, true);
      break;
    case ReceivedWindow::Outcome::kBeyond:
      ++dropped_count_;
      break;
  }
  rails_[rail]->Drop(arrival);
}

void RailWire::MarkReceived(std::uint32_t id, Link& link, std::size_t rail, bool is_waited) {
  link.heard_rail = static_cast<std::uint8_t>(rail);
  if (is_waited) {
    ++link.waited_count;
  } else {
    ++link.unwaited_count;
    if (link.unwaited_since_ns == kNever) link.unwaited_since_ns = now_;
  }
  if (!std::exchange(link.is_listed, true)) to_acknowledge_.push_back(id);
}

void RailWire::OnControl(std::size_t rail, const MessageHeader& header) {
  if (header.kind == kRailAcknowledgement) {
    // None where there is no more link, or none yet.
    const std::uint32_t id = FindLink(header.position, header.operation_count);
    if (id != 0 && !OnAcknowledged(id, links_.At(id), header.acknowledged)) ++dropped_count_;
    return;
  }
  bool makes_sense = true;
  peers_.ForEach([&, this](std::uint32_t id, const RailPeer& peer) {
    if (peer.wire_id != header.operation_count) return;
    makes_sense = peers_.OnPing(id, rail, header) && makes_sense;
  });
  if (!makes_sense) ++dropped_count_;
}

bool RailWire::OnAcknowledged(std::uint32_t id, Link& link, std::uint64_t end) {
  if (end <= link.first_sequence) return true;
  if (end - link.first_sequence > link.sent_count) return false;
  RailPeer& peer = peers_.at(link.peer);
  TimeNs round_trip_ns = 0;
  while (link.first_sequence < end) {
    const std::uint32_t send_id = link.unacknowledged.front();
    link.unacknowledged.pop_front();
    ++link.first_sequence;
    --link.sent_count;
    --peer.waiting_count;
    OpenSend& send = sends_.At(send_id);
    send.acknowledged = true;
    if (send.copied) {
      --link.copies_count;
    } else {
      round_trip_ns = std::max(round_trip_ns, now_ - send.sent_ns);
    }
    Settle(send_id);
  }
  peer.health.OnAcknowledged(now_, round_trip_ns, peer.waiting_count > 0);
  if (link.unacknowledged.size() > link.sent_count) stalled_.push_back(id);
  return true;
}

void RailWire::OnSent(std::uint64_t token, Code code) {
  const RailToken sent = RailToken::Unpack(token);
  if (sent.what == RailSend::kMessage) return OnMessageSent(sent.id, sent.rail, code);
  if (sent.what != RailSend::kAcknowledgement) return peers_.OnControlSent(sent);
  if (Link* const link = links_.Find(sent.id)) link->acknowledgement_open = false;
}

void RailWire::OnMessageSent(std::uint32_t id, std::size_t rail, Code code) {
  OpenSend* const send = sends_.Find(id);
  HR_CHECK(send != nullptr && send->on_rails_count > 0, id, rail);
  --send->on_rails_count;
  if (code == Code::kOk) send->left = true;
  // One that this wire has taken back ends as cancelled. Any other error is the rail's.
  const bool is_over = send->acknowledged || send->given_up != Code::kOk;
  if (code != Code::kOk && code != Code::kCancelled && send->rail == rail && !is_over) {
    peers_.NoteFailure(links_.At(send->link).peer, rail,
                       fmt::format("a message ended early: {}", CodeName(code)));
  }
  Settle(id);
}

void RailWire::OnLinkFailed(std::size_t rail, LinkId failed, const std::string& cause) {
  peers_.OnLinkFailed(rail, failed, cause);
  links_.ForEach([&, this](std::uint32_t, const Link& link) {
    if (link.links[rail] == failed) peers_.NoteFailure(link.peer, rail, cause);
  });
}

void RailWire::Accept(ArrivalId arrival, std::byte* memory, std::uint64_t token,
                      std::size_t whole) {
  rails_[arrival % kWireRailsMax]->Accept(arrival / kWireRailsMax, memory, token, whole);
}

void RailWire::Drop(ArrivalId arrival) {
  rails_[arrival % kWireRailsMax]->Drop(arrival / kWireRailsMax);
}

void RailWire::HandleAnswers() {
  for (const RailPeers::Answer& answer : peers_.DrainAnswers()) {
    if (!peers_.Has(answer.peer)) continue;
    RailPeer& peer = peers_.at(answer.peer);
    const std::optional<std::size_t> before = peer.health.active();
    const bool suspected = peer.health.IsSuspected(now_);
    peer.health.OnAnswered(answer.rail, now_);
    peers_.CheckLater(peer);
    if (peer.health.HasLost(now_)) {
      links_.ForEach([&, this](std::uint32_t, Link& link) {
        if (link.peer == answer.peer) SendAgain(link);
      });
      peer.health.OnSentAgain(now_);
      continue;
    }
    if (!before || peer.health.active() == before) continue;
    // What is under way over the other rail goes on there, if that is not silent.
    const LinkMove move{.from = rails_[*before]->Names(),
                        .to = rails_[*peer.health.active()]->Names(),
                        .cause = {}};
    links_.ForEach([&, this](std::uint32_t id, Link& link) {
      if (link.peer != answer.peer) return;
      moved_links_.push_back({id, move});
      if (suspected) SendAgain(link, *before);
    });
  }
}

void RailWire::HandleFailures() {
  std::vector<RailPeers::Failure> failures = peers_.DrainFailures();
  peers_.Check(now_, failures);
  for (const RailPeers::Failure& failure : failures) {
    FailRail(failure.peer, failure.rail, failure.cause);
  }
}

void RailWire::FailRail(std::uint32_t peer_id, std::size_t rail, const std::string& cause) {
  RailPeer& peer = peers_.at(peer_id);
  const bool was_active = peer.health.active() == rail;
  if (!peer.health.IsDown(rail)) peer.causes[rail] = cause;
  peer.health.OnFailed(rail, now_);
  peer.pinged[rail] = 0;
  peers_.CheckLater(peer);
  peers_.CloseLink(rail, peer.links);
  links_.ForEach([&, this](std::uint32_t, Link& link) {
    if (link.peer == peer_id) peers_.CloseLink(rail, link.links);
  });
  if (!peer.health.active()) {
    if (was_active) FailLinks(peer_id);
    return;
  }
  links_.ForEach([&, this](std::uint32_t id, Link& link) {
    const bool goes_on = link.state == LinkState::kOpen || link.state == LinkState::kAnswers;
    if (link.peer != peer_id || !goes_on) return;
    // One that is in use no more may have had messages under way.
    was_active ? MoveLink(id, link, rail, cause) : SendAgain(link, rail);
  });
}

// What was last given to that rail, or to any, and was not acknowledged, goes over the rail in use,
// unless that still has it.
void RailWire::SendAgain(Link& link, std::optional<std::size_t> from) {
  const std::optional<std::size_t> active = peers_.at(link.peer).health.active();
  HR_CHECK(active.has_value() && active != from, link.peer);
  for (std::size_t i = 0; i < link.sent_count; ++i) {
    const std::uint32_t send_id = link.unacknowledged[i];
    const OpenSend& send = sends_.At(send_id);
    if (from && send.rail != *from) continue;
    if (send.rail == *active && send.on_rails_count > 0) continue;
    TransmitOne(link, send_id, *active);
  }
}

// Everything that was not acknowledged goes again over the rail in use.
void RailWire::MoveLink(std::uint32_t id, Link& link, std::size_t from, const std::string& cause) {
  const std::optional<std::size_t> active = peers_.at(link.peer).health.active();
  HR_CHECK(active && *active != from, link.peer, from);
  const std::size_t rail = *active;
  LinkMove move{.from = rails_[from]->Names(), .to = rails_[rail]->Names(), .cause = cause};
  for (std::size_t i = 0; i < link.sent_count; ++i) {
    const std::uint32_t send_id = link.unacknowledged[i];
    ++move.messages;
    move.bytes += sends_.At(send_id).size;
    TransmitOne(link, send_id, rail);
  }
  moved_links_.push_back({id, std::move(move)});
}

void RailWire::FailLinks(std::uint32_t peer_id) {
  const RailPeer& peer = peers_.at(peer_id);
  std::string cause;
  for (std::size_t rail = 0; rail < rails_.size(); ++rail) {
    cause += fmt::format("{}over {}: {}", rail == 0 ? "" : "; ", rails_[rail]->Names(),
                         peer.causes[rail]);
  }
  links_.ForEach([&, this](std::uint32_t id, Link& link) {
    if (link.peer != peer_id) return;
    if (link.state == LinkState::kAnswers) Forget(link);
    if (link.state != LinkState::kOpen) return;
    GiveUp(link, Code::kPeerLost);
    link.state = LinkState::kFailed;
    failed_links_.emplace_back(id, cause);
  });
}

bool RailWire::Progress(WireEvents& events) {
  HR_CHECK(events_ == nullptr);
  events_ = &events;
  bool moved = false;
  for (std::size_t rail = 0; rail < rails_.size(); ++rail) {
    rails_[rail]->AdvanceTo(now_);
    moved = rails_[rail]->Progress(*ears_[rail]) || moved;
  }
  HandleAnswers();
  HandleFailures();
  for (const std::uint32_t id : std::exchange(stalled_, {})) {
    if (Link* const link = links_.Find(id)) Transmit(*link);
  }
  // Before pongs, which would make a rail look silent whose acknowledgement is still to be sent.
  Acknowledge(!moved || peers_.HasPingsToAnswer());
  peers_.AnswerPings();
  const bool delivered = Deliver(events);
  events_ = nullptr;
  std::erase_if(closed_, [this](std::uint32_t id) { return Release(id); });
  return moved || delivered;
}

// What the calls below add is reported next time: one call of Progress is bounded.
bool RailWire::Deliver(WireEvents& events) {
  std::swap(ended_, reporting_);
  const bool any = !reporting_.empty() || !failed_links_.empty() || !moved_links_.empty();
  for (const Ended& end : reporting_) events.Sent(end.token, end.code);
  reporting_.clear();
  for (const auto& [id, cause] : std::exchange(failed_links_, {})) {
    const Link* const link = links_.Find(id);
    if (link != nullptr && link->state == LinkState::kFailed) events.LinkFailed(id, cause);
  }
  for (const Moved& moved : std::exchange(moved_links_, {})) {
    const Link* const link = links_.Find(moved.link);
    if (link != nullptr && link->state == LinkState::kOpen)
      events.LinkMoved(moved.link, moved.move);
  }
  return any;
}

TimeNs RailWire::NextDeadline() const {
  TimeNs next = peers_.NextCheck();
  for (const std::uint32_t id : to_acknowledge_) {
    const Link& link = links_.At(id);
    if (link.unwaited_since_ns == kNever || link.acknowledgement_open) continue;
    next = std::min(next, link.unwaited_since_ns + kAcknowledgeAfter);
  }
  for (const std::uint32_t id : closed_) {
    const Link& link = links_.At(id);
    if (link.state == LinkState::kAnswers) next = std::min(next, link.answers_until_ns);
  }
  for (const Wire* const rail : rails_) next = std::min(next, rail->NextDeadline());
  return next;
}

bool RailWire::PrepareToSleep() {
  if (!ended_.empty() || !failed_links_.empty() || !moved_links_.empty() || peers_.has_failures()) {
    return false;
  }
  const bool is_waited = std::ranges::any_of(to_acknowledge_, [this](std::uint32_t id) {
    const Link& link = links_.At(id);
    return link.waited_count > 0 && !link.acknowledgement_open;
  });
  if (is_waited) return false;
  return std::ranges::all_of(rails_, [](Wire* rail) { return rail->PrepareToSleep(); });
}

}  // namespace headrace::transport
