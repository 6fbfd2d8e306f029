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

PeerListener::PeerListener(Owner& owner, PeerSecurity& security, kj::Network& network,
                           kj::Timer& timer, TimeNs detection_ns)
    : owner_(owner),
      security_(security),
      network_(network),
      timer_(timer),
      detection_ns_(detection_ns),
      tasks_(*this) {}

PeerListener::~PeerListener() noexcept(false) = default;

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
  if (strangers_.size() + nodes_.size() >= kPeerConnectionsMax) {
    owner_.ReportError(
        Error(Code::kExhausted, fmt::format("closed the connection of {}: {} services are "
                                            "connected, more are not supported",
                                            peer.address, strangers_.size() + nodes_.size())));
    return;
  }
  const Number number = ++links_count_;
  const Heartbeat heartbeat(detection_ns_, 0);
  auto link = kj::heap<PeerLink>(kj::mv(peer),
                                 PeerLink::Options{.side = capnp::rpc::twoparty::Side::SERVER,
                                                   .ping_every_ns = heartbeat.interval_ns()},
                                 timer_, *this);
  tasks_.add(link->WhenEnded().then(
      [this, number](const Error& error) { OnStrangerEnded(number, error); }));
  strangers_.emplace(number, kj::mv(link));
}

// Closes the stranger that came first, since it had the most time to say hello.
void PeerListener::MakeRoom() {
  if (strangers_.size() < kStrangersMax) return;
  const auto oldest = strangers_.begin();
  const Error error(
      Code::kExhausted,
      fmt::format("closed the connection of {}: it said no hello while {} others came",
                  oldest->second->peer_address(), kStrangersMax));
  OnStrangerEnded(oldest->first, error);
}

// Whoever said hello meanwhile is no stranger any more.
void PeerListener::OnStrangerEnded(Number number, const Error& error) {
  const auto stranger = strangers_.extract(number);
  // Whoever just looked whether the port is open is not worth a word.
  if (!stranger.empty() && error.code() != Code::kPeerLost) owner_.ReportError(error);
}

PeerListener::Nodes::iterator PeerListener::Find(const PeerChannel& channel) {
  const auto found = std::ranges::find_if(
      nodes_, [&channel](const auto& entry) { return entry.second.channel.get() == &channel; });
  HR_CHECK(found != nodes_.end(), nodes_.size());
  return found;
}

// Compares all of them, so that the time says nothing.
PeerListener::Nodes::iterator PeerListener::Find(const ChannelId& id) {
  auto found = nodes_.end();
  for (auto at = nodes_.begin(); at != nodes_.end(); ++at) {
    if (IsSame(at->second.channel->id(), id)) found = at;
  }
  return found;
}

const NodeFacts& PeerListener::Self() const { return owner_.Self(); }

Result<std::uint64_t> PeerListener::Greet(PeerLink& link, const NodeFacts& facts,
                                          const ChannelHello& channel) {
  Result<std::uint64_t> received =
      channel.resumes ? Resume(link, facts, channel) : Begin(link, facts, channel);
  // A channel that is not known is that of the service that ran here before.
  if (!received && received.error().code() != Code::kNotFound) {
    owner_.ReportError(received.error().Within("refused " + link.peer_address()));
  }
  return received;
}

Result<std::uint64_t> PeerListener::Begin(PeerLink& link, const NodeFacts& facts,
                                          const ChannelHello& hello) {
  if (Find(hello.id) != nodes_.end()) {
    return Error(Code::kPermissionDenied,
                 fmt::format("the channel with which {} begins belongs to another service",
                             link.peer_address()));
  }
  LoseFormer(facts);
  const NodeId node = ++nodes_count_;
  greeted_ =
      nodes_
          .emplace(node,
                   Node{.name = facts.name,
                        .instance = facts.instance,
                        .encrypted = link.encrypted(),
                        .addresses = owner_.AddressesOf(facts, link.peer_address()),
                        .channel = kj::heap<PeerChannel>(hello.id, detection_ns_, timer_, *this),
                        .reach = {}})
          .first;
  HR_CHECK(nodes_.size() <= kPeerConnectionsMax, nodes_.size());
  if (const Status status = owner_.OnNodeConnected(node, facts, link.peer_address()); !status) {
    nodes_.erase(greeted_);
    greeted_ = nodes_.end();
    return status.error();
  }
  tasks_.add(greeted_->second.channel->WhenLost().then(
      [this, node](const Error& error) { OnLost(node, error); }));
  return std::uint64_t{0};
}

// Whoever knows the id has it from the service that began the channel. That service also keeps its
// name, which its certificate has where there are any, and its instance.
Result<std::uint64_t> PeerListener::Resume(PeerLink& link, const NodeFacts& facts,
                                           const ChannelHello& hello) {
  const auto found = Find(hello.id);
  if (found == nodes_.end()) {
    return Error(Code::kNotFound, fmt::format("this service has no channel with node {} that goes "
                                              "on",
                                              facts.name));
  }
  Node& node = found->second;
  if (node.name != facts.name || node.instance != facts.instance ||
      node.encrypted != link.encrypted()) {
    return Error(Code::kPermissionDenied,
                 fmt::format("the channel with which node {} goes on is that of another service",
                             facts.name));
  }
  Result<std::uint64_t> received = node.channel->Resume(hello.received);
  if (received) greeted_ = found;
  return received;
}

void PeerListener::OnGreeted(PeerLink& link) {
  const auto stranger = std::ranges::find_if(
      strangers_, [&link](const auto& entry) { return entry.second.get() == &link; });
  HR_CHECK(greeted_ != nodes_.end() && stranger != strangers_.end(), link.peer_address());
  Node& node = greeted_->second;
  greeted_ = nodes_.end();
  node.reach = nullptr;
  const std::string happened = node.channel->Attach(kj::mv(stranger->second));
  strangers_.erase(stranger);
  if (!happened.empty()) owner_.OnNodeResumed(happened);
}

void PeerListener::LoseFormer(const NodeFacts& facts) {
  std::vector<NodeId> former;
  for (const auto& [node, each] : nodes_) {
    const bool lives = each.instance != facts.instance && each.channel->reached();
    if (each.name == facts.name && !each.channel->linked() && !lives) former.push_back(node);
  }
  for (const NodeId node : former) {
    const std::string why = nodes_.at(node).channel->why();
    OnLost(node, Error(Code::kPeerLost, why));
  }
}

void PeerListener::OnMessage(PeerChannel& channel, const PeerMessage& message) {
  owner_.OnNodeMessage(Find(channel)->first, message);
}

// One that does not answer on its connection comes back by itself, if it can. One whose connection
// broke is looked for, so that one that has ended is not waited for.
void PeerListener::OnLinkNeeded(PeerChannel& channel) {
  if (!channel.linked()) Reach(Find(channel)->first);
}

void PeerListener::Reach(NodeId number) {
  Node& node = nodes_.at(number);
  const auto looked_for = std::ranges::count_if(
      nodes_, [](const auto& entry) { return entry.second.reach.get() != nullptr; });
  if (node.addresses.empty() || static_cast<std::size_t>(looked_for) >= kReachesMax) return;
  node.reach = kj::heap<PeerReach>(
      PeerReach::Options{
          .known_as = node.name, .addresses = node.addresses, .attempt_ns = detection_ns_ / 2},
      security_, network_, timer_);
  node.reaching = node.reach->Answered()
                      .then([this, number, name = node.name](Result<PeerReach::Reached> reached) {
                        Node& looked = nodes_.at(number);
                        looked.reach = nullptr;
                        if (!reached) return looked.channel->OnRefused();
                        if (CheckPeerName(reached->peer, name)) looked.channel->OnReached();
                      })
                      .eagerlyEvaluate([](kj::Exception&&) {});
}

void PeerListener::Send(NodeId node, PeerMessage message) {
  const auto found = nodes_.find(node);
  if (found != nodes_.end()) found->second.channel->Send(std::move(message));
}

void PeerListener::OnLost(NodeId node, const Error& error) {
  const auto lost = nodes_.extract(node);
  if (!lost.empty()) owner_.OnNodeLost(node, error);
}

kj::Promise<void> PeerListener::Finish(const std::string& cause) {
  auto all = kj::heapArrayBuilder<kj::Promise<void>>(nodes_.size());
  for (auto& [number, each] : nodes_) all.add(each.channel->Finish(cause));
  return kj::joinPromises(all.finish());
}

void PeerListener::View(std::vector<PeerView>& views) const {
  for (const auto& [number, each] : nodes_) {
    PeerView& view = views.emplace_back(PeerView{.address = each.channel->peer_address()});
    each.channel->Show(view);
    view.why = each.channel->why();
  }
}

void PeerListener::taskFailed(kj::Exception&& exception) {
  owner_.ReportError(
      Error(Code::kInternal, "a service's connection failed: " + CauseOf(exception)));
}

}  // namespace headrace::service
