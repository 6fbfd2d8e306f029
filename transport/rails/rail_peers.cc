#include "transport/rails/rail_peers.h"

#include <fmt/format.h>

#include <algorithm>

#include "ipc/base/check.h"

namespace headrace::transport {

std::uint32_t RailPeers::Find(const RailAddress& address) const {
  std::uint32_t found = 0;
  peers_.ForEach([&found, &address](std::uint32_t id, const RailPeer& peer) {
    if (peer.wire_id == address.wire_id && peer.addresses == address.rails) found = id;
  });
  return found;
}

std::uint32_t RailPeers::Add(const RailAddress& address) {
  const std::uint32_t id = peers_.Acquire();
  RailPeer& peer = at(id);
  peer = RailPeer();
  peer.wire_id = address.wire_id;
  peer.addresses = address.rails;
  HR_CHECK(peer.addresses.size() <= kWireRailsMax, id, peer.addresses.size());
  peer.health = RailHealth(rails_.size());
  return id;
}

void RailPeers::Release(std::uint32_t id) {
  for (std::size_t rail = 0; rail < rails_.size(); ++rail) CloseLink(rail, at(id).links);
  peers_.Release(id);
}

std::optional<LinkId> RailPeers::Link(std::uint32_t peer, RailLinks& links, std::size_t rail,
                                      std::uint64_t key, std::uint16_t member) {
  HR_CHECK(rail < rails_.size(), peer, rail);
  if (links[rail]) return links[rail];
  const Result<LinkId> made = rails_[rail]->Connect(at(peer).addresses[rail], key, member);
  if (made) {
    links[rail] = *made;
  } else {
    NoteFailure(peer, rail, made.error().text());
  }
  return links[rail];
}

void RailPeers::CloseLink(std::size_t rail, RailLinks& links) const {
  if (!links[rail]) return;
  rails_[rail]->Close(*links[rail]);
  links[rail].reset();
}

bool RailPeers::Send(std::uint32_t peer, std::size_t rail, const MessageHeader& header,
                     const RailToken& token) {
  const auto link = Link(peer, at(peer).links, rail, 0, 0);
  if (link) rails_[rail]->Send(*link, header, nullptr, 0, token.Pack());
  return link.has_value();
}

bool RailPeers::SendAcknowledgement(std::uint32_t peer, std::size_t rail, std::uint64_t key,
                                    std::uint64_t end, std::uint32_t id) {
  return Send(
      peer, rail,
      {.position = key, .operation_count = id_, .kind = kRailAcknowledgement, .acknowledged = end},
      {RailSend::kAcknowledgement, static_cast<std::uint8_t>(rail), id});
}

void RailPeers::AnswerPings() {
  std::erase_if(pinged_by_, [this](std::uint32_t id) {
    if (!Has(id)) return true;
    RailPeer& peer = at(id);
    bool waits = false;
    for (std::size_t rail = 0; rail < rails_.size(); ++rail) {
      if (peer.pong_due[rail] == 0) continue;
      if (peer.pong_open[rail]) {
        waits = true;
        continue;
      }
      const std::uint64_t number = std::exchange(peer.pong_due[rail], 0);
      peer.pong_open[rail] =
          Send(id, rail, {.position = number, .operation_count = id_, .kind = kRailPong},
               {RailSend::kPong, static_cast<std::uint8_t>(rail), id});
    }
    return !waits;
  });
}

void RailPeers::Ping(std::uint32_t id, std::size_t rail, TimeNs now) {
  RailPeer& peer = at(id);
  peer.health.OnPinged(rail, now);
  if (peer.ping_open[rail]) return;
  peer.pinged[rail] = ++pings_count_;
  peer.ping_open[rail] =
      Send(id, rail, {.position = pings_count_, .operation_count = id_, .kind = kRailPing},
           {RailSend::kPing, static_cast<std::uint8_t>(rail), id});
}

void RailPeers::Check(TimeNs now, std::vector<Failure>& silent) {
  if (now < check_ns_) return;
  check_ns_ = kNever;
  peers_.ForEach([&, this](std::uint32_t id, RailPeer& peer) {
    const std::optional<TimeNs> silent_ns = peer.health.IsSilent(now);
    if (silent_ns) {
      HR_CHECK(peer.health.active().has_value(), id, *silent_ns);
      silent.push_back({id, *peer.health.active(),
                        fmt::format("the node acknowledged nothing for {} ms, and answers over "
                                    "another rail",
                                    *silent_ns / kMillisecond)});
      return;
    }
    for (std::size_t rail = 0; rail < rails_.size(); ++rail) {
      if (peer.health.MustPing(rail, now)) Ping(id, rail, now);
    }
    CheckLater(peer);
  });
}

void RailPeers::OnControlSent(const RailToken& token) {
  if (!Has(token.id)) return;
  RailPeer& peer = at(token.id);
  (token.what == RailSend::kPing ? peer.ping_open : peer.pong_open)[token.rail] = false;
}

// One pong is due for each rail, however many pings came.
bool RailPeers::OnPing(std::uint32_t id, std::size_t rail, const MessageHeader& header) {
  RailPeer& peer = at(id);
  if (header.position == 0) return false;
  if (header.kind == kRailPing) {
    peer.pong_due[rail] = header.position;
    if (std::ranges::find(pinged_by_, id) == pinged_by_.end()) pinged_by_.push_back(id);
    return true;
  }
  // One of an earlier ping is late, and says nothing of now.
  if (header.kind != kRailPong || header.position > pings_count_) return false;
  if (header.position != peer.pinged[rail]) return true;
  peer.pinged[rail] = 0;
  answers_.push_back({id, rail});
  return true;
}

void RailPeers::OnLinkFailed(std::size_t rail, LinkId link, const std::string& cause) {
  peers_.ForEach([&, this](std::uint32_t id, const RailPeer& peer) {
    if (peer.links[rail] == link) NoteFailure(id, rail, cause);
  });
}

std::vector<RailPeers::Failure> RailPeers::DrainFailures() {
  std::vector<Failure> failures;
  for (Failure& failure : std::exchange(failures_, {})) {
    const bool twice = std::ranges::any_of(failures, [&failure](const Failure& earlier) {
      return earlier.peer == failure.peer && earlier.rail == failure.rail;
    });
    if (!twice && Has(failure.peer)) failures.push_back(std::move(failure));
  }
  return failures;
}

}  // namespace headrace::transport
