#include "service/peers/peer_listener.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "ipc/base/check.h"
#include "service/loop/text.h"
#include "service/peers/tcp.h"

namespace headrace::service {
namespace {

constexpr auto kShortageDelay = 100 * kj::MILLISECONDS;

}  // namespace

PeerListener::PeerListener(Owner& owner, PeerSecurity& security, kj::Timer& timer,
                           TimeNs detection_ns)
    : owner_(owner),
      security_(security),
      timer_(timer),
      detection_ns_(detection_ns),
      tasks_(*this) {}

kj::Promise<void> PeerListener::Accept(kj::Own<kj::ConnectionReceiver> port) {
  auto& receiver = *port;
  return AcceptNext(receiver).attach(kj::mv(port));
}

kj::Promise<void> PeerListener::AcceptNext(kj::ConnectionReceiver& port) {
  return port.accept()
      .then([this](kj::Own<kj::AsyncIoStream> stream) -> kj::Promise<void> {
        TuneForControl(*stream);
        std::string address = FarAddressOf(*stream);
        tasks_.add(security_.Accept(kj::mv(stream))
                       .then([this, address = std::move(address)](Result<SecuredPeer> peer) {
                         if (peer) return LetIn(kj::mv(peer).value());
                         owner_.ReportError(peer.error());
                         // One that was scanned or lost is not one that was refused.
                         if (peer.error().code() != Code::kPermissionDenied) return;
                         owner_.OnNodeRefused("", address, peer.error());
                       }));
        return kj::READY_NOW;
      })
      // A shortage is waited out, never retried at once. Whatever else it is, the next is accepted.
      .catch_([this](kj::Exception&& exception) {
        owner_.ReportError(
            Error(Code::kExhausted, "accept a service's connection: " + CauseOf(exception)));
        return timer_.afterDelay(kShortageDelay);
      })
      .then([this, &port] { return AcceptNext(port); });
}

void PeerListener::LetIn(SecuredPeer peer) {
  MakeRoom();
  if (accepted_.size() >= kPeerConnectionsMax) {
    owner_.ReportError(
        Error(Code::kExhausted, fmt::format("closed the connection of {}: {} services are "
                                            "connected, more are not supported",
                                            peer.address, accepted_.size())));
    return;
  }
  const NodeId node = ++accepted_count_;
  auto link = kj::heap<PeerLink>(
      kj::mv(peer),
      PeerLink::Options{.side = capnp::rpc::twoparty::Side::SERVER, .detection_ns = detection_ns_},
      timer_, *this);
  tasks_.add(link->WhenEnded().then([this, node](const Error& error) { Ended(node, error); }));
  accepted_.emplace(node, Accepted{.name = {}, .link = kj::mv(link)});
  HR_CHECK(accepted_.size() <= kPeerConnectionsMax, accepted_.size());
}

// Closes the stranger that came first, since it had the most time to say hello.
void PeerListener::MakeRoom() {
  const auto is_stranger = [](const auto& entry) { return entry.second.name.empty(); };
  const auto strangers = std::count_if(accepted_.begin(), accepted_.end(), is_stranger);
  if (static_cast<std::size_t>(strangers) < kStrangersMax) return;
  const auto oldest = std::find_if(accepted_.begin(), accepted_.end(), is_stranger);
  HR_CHECK(oldest != accepted_.end(), strangers);
  const NodeId node = oldest->first;
  const std::string& address = oldest->second.link->peer_address();
  const Error error(
      Code::kExhausted,
      fmt::format("closed the connection of {}: it said no hello while {} others came", address,
                  kStrangersMax));
  oldest->second.link->End(error);
  Ended(node, error);
}

NodeId PeerListener::Find(const PeerLink& link) const {
  const auto found = std::find_if(accepted_.begin(), accepted_.end(), [&link](const auto& entry) {
    return entry.second.link.get() == &link;
  });
  HR_CHECK(found != accepted_.end(), accepted_.size());
  return found->first;
}

const NodeFacts& PeerListener::Self() const { return owner_.Self(); }

Status PeerListener::Greet(PeerLink& link, const NodeFacts& facts) {
  const NodeId node = Find(link);
  HR_CHECK(accepted_.at(node).name.empty(), node, accepted_.at(node).name);
  const Status status = owner_.OnNodeConnected(node, facts, link.peer_address());
  if (status) {
    accepted_.at(node).name = facts.name;
  } else {
    owner_.ReportError(status.error().Within("refused " + link.peer_address()));
  }
  return status;
}

void PeerListener::OnMessage(PeerLink& link, const PeerMessage& message) {
  const NodeId node = Find(link);
  // Whom the leader does not know sends it nothing.
  HR_CHECK(!accepted_.at(node).name.empty(), node, message.index());
  owner_.OnNodeMessage(node, message);
}

void PeerListener::Send(NodeId node, PeerMessage message) {
  const auto found = accepted_.find(node);
  if (found != accepted_.end()) found->second.link->Send(std::move(message));
}

void PeerListener::Ended(NodeId node, const Error& error) {
  const auto found = accepted_.find(node);
  if (found == accepted_.end()) return;
  const Accepted gone = std::move(found->second);
  accepted_.erase(found);
  if (gone.name.empty()) {
    // Whoever just looked whether the port is open is not worth a word.
    if (error.code() != Code::kPeerLost) owner_.ReportError(error);
  } else {
    owner_.OnNodeLost(node, error);
  }
}

kj::Promise<void> PeerListener::Finish(const std::string& cause) {
  auto all = kj::heapArrayBuilder<kj::Promise<void>>(accepted_.size());
  for (auto& [node, each] : accepted_) {
    all.add(each.name.empty() ? kj::Promise<void>(kj::READY_NOW) : each.link->Finish(cause));
  }
  return kj::joinPromises(all.finish());
}

void PeerListener::View(std::vector<PeerView>& views) const {
  for (const auto& [node, each] : accepted_) {
    if (each.name.empty()) continue;
    views.push_back({.name = each.name,
                     .address = each.link->peer_address(),
                     .leads = false,
                     .connected = true,
                     .round_trip_ns = each.link->round_trip().taken_ns,
                     .clock_offset_ns = each.link->round_trip().offset_ns});
  }
}

void PeerListener::taskFailed(kj::Exception&& exception) {
  owner_.ReportError(
      Error(Code::kInternal, "a service's connection failed: " + CauseOf(exception)));
}

}  // namespace headrace::service
