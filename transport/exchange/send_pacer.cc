#include "transport/exchange/send_pacer.h"

#include <algorithm>

#include "ipc/base/check.h"

namespace headrace::transport {
namespace {

// A byte at weight 1: weights beyond it still differ by messages.
constexpr std::uint64_t kByte = std::uint64_t{1} << 16;

// What a group may get back of the turns it missed while it had nothing to send, in rooms of its
// peers: the pieces of a job of many nodes all wait at times for one link that others use too. Of
// equal jobs of two and of four nodes the smaller one had 25 % more with one room in all, and 13 %
// with one a peer.
constexpr std::uint64_t kRoomsMissedMax = 4;

// Wrapping, like the sums they compare.
constexpr bool IsLess(std::uint64_t served, std::uint64_t other) {
  return static_cast<std::int64_t>(served - other) < 0;
}

}  // namespace

SendPacer::FlowId SendPacer::OpenFlow(std::uint16_t group, std::uint16_t member,
                                      const std::string& address, std::size_t items_max,
                                      Urgency urgency) {
  HR_CHECK(group < kGroupsMax && items_max > 0, group, items_max);
  const auto free = std::ranges::find_if(flows_, [](const Flow& flow) { return !flow.open; });
  const auto id = static_cast<FlowId>(free - flows_.begin());
  if (free == flows_.end()) {
    HR_CHECK(flows_.size() < UINT16_MAX);
    flows_.emplace_back();
  }
  const std::uint16_t peer = PeerAt(address);
  flows_[id] = {.open = true,
                .group = group,
                .member = member,
                .peer = peer,
                .urgency = urgency,
                .items = std::vector<Item>(items_max)};
  peers_[peer].flows.push_back(id);
  // A third flow to the peer brings the group no more of what Join gives back.
  if (urgency != Urgency::kSoon) ++accounts_[group].flows_count;
  return id;
}

std::uint16_t SendPacer::PeerAt(const std::string& address) {
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    if (!peers_[i].flows.empty() && peers_[i].address == address) {
      return static_cast<std::uint16_t>(i);
    }
  }
  auto free = std::ranges::find_if(peers_, [](const Peer& peer) { return peer.flows.empty(); });
  if (free == peers_.end()) free = peers_.emplace(peers_.end());
  *free = Peer{.address = address, .flows = {}, .moved_ns = now_};
  return static_cast<std::uint16_t>(free - peers_.begin());
}

void SendPacer::CloseFlows(std::uint16_t group) {
  for (std::size_t i = 0; i < flows_.size(); ++i) {
    const auto id = static_cast<FlowId>(i);
    if (!flows_[id].open || flows_[id].group != group) continue;
    while (Withdraw(id)) {
    }
    std::erase(peers_[flows_[id].peer].flows, id);
    flows_[id] = Flow{};
  }
  accounts_[group] = Account{};
}

void SendPacer::SetShare(std::uint16_t group, const Share& share) {
  HR_CHECK(group < kGroupsMax && share.weight > 0, group, share.weight);
  Account& account = accounts_[group];
  const bool changes_class = account.share.priority != share.priority;
  account.share = share;
  if (!changes_class) return;
  account.had_turns = false;
  account.served = 0;
  Join(account);
}

// Whoever comes begins where the others of its class are. One that had nothing to send for a moment
// only, while its messages came and went, gets back what it missed, up to a limit.
void SendPacer::Join(Account& account) const {
  const Account* latest = nullptr;
  for (const Account& other : accounts_) {
    if (&other == &account || other.share.priority != account.share.priority) continue;
    if (!other.had_turns) continue;
    if (latest == nullptr || IsLess(latest->start, other.start)) latest = &other;
  }
  if (latest == nullptr) return;
  const std::uint64_t missed =
      account.had_turns
          ? kRoomsMissedMax * account.flows_count * peer_bytes_max_ * kByte / account.share.weight
          : 0;
  const std::uint64_t floor = latest->start - missed;
  if (!account.had_turns || IsLess(account.served, floor)) account.served = floor;
}

void SendPacer::Push(FlowId id, std::uint16_t item, std::size_t size) {
  Flow& flow = flows_[id];
  HR_CHECK(flow.open && flow.count < flow.items.size(), id, flow.count);
  flow.items[(flow.first + flow.count) % flow.items.size()] = {
      .size = static_cast<std::uint32_t>(size), .number = item};
  if (flow.count++ == 0) flow.since_ns = now_;
  Account& account = accounts_[flow.group];
  if (account.waiting_count++ == 0) Join(account);
  ++peers_[flow.peer].waiting_count;
  ++waiting_count_;
}

std::optional<SendPacer::Turn> SendPacer::Next() {
  if (waiting_count_ == 0) return std::nullopt;
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    const std::size_t index = (turn_ + i) % peers_.size();
    Peer& peer = peers_[index];
    if (!HasRoom(peer)) continue;
    turn_ = index + 1;
    Flow& flow = flows_[Choose(peer)];
    const Item item = Pop(flow);
    flow.since_ns = now_;
    if (peer.bytes_out == 0) peer.moved_ns = now_;
    peer.bytes_out += item.size + kMessageCost;
    Charge(flow.group, item.size);
    return Turn{
        .group = flow.group, .member = flow.member, .item = item.number, .urgency = flow.urgency};
  }
  return std::nullopt;
}

SendPacer::FlowId SendPacer::Choose(const Peer& peer) const {
  const Flow* best = nullptr;
  for (const FlowId id : peer.flows) {
    const Flow& flow = flows_[id];
    if (flow.count > 0 && (best == nullptr || Precedes(flow, *best))) best = &flow;
  }
  HR_CHECK(best != nullptr, peer.address.size(), peer.waiting_count);
  return static_cast<FlowId>(best - flows_.data());
}

bool SendPacer::Precedes(const Flow& flow, const Flow& other) const {
  const bool is_late = now_ - flow.since_ns >= kPatience;
  const bool other_is_late = now_ - other.since_ns >= kPatience;
  if (is_late != other_is_late) return is_late;
  if (is_late) return flow.since_ns < other.since_ns;
  const Account& account = accounts_[flow.group];
  if (flow.group == other.group && flow.urgency != other.urgency) {
    return account.share.by_urgency ? flow.urgency > other.urgency : flow.since_ns < other.since_ns;
  }
  const Account& others = accounts_[other.group];
  if (account.share.priority != others.share.priority) {
    return account.share.priority > others.share.priority;
  }
  return IsLess(account.served, others.served);
}

SendPacer::Item SendPacer::Pop(Flow& flow) {
  HR_CHECK(flow.open && flow.count > 0 && waiting_count_ > 0, flow.group, flow.member);
  const Item item = flow.items[flow.first];
  flow.first = (flow.first + 1) % flow.items.size();
  --flow.count;
  --accounts_[flow.group].waiting_count;
  --peers_[flow.peer].waiting_count;
  --waiting_count_;
  return item;
}

void SendPacer::Charge(std::uint16_t group, std::size_t size) {
  Account& account = accounts_[group];
  account.had_turns = true;
  account.start = account.served;
  const std::uint64_t cost = (size + kMessageCost) * kByte / account.share.weight;
  account.served += std::max<std::uint64_t>(cost, 1);
}

void SendPacer::Ended(FlowId id, std::size_t size) {
  HR_CHECK(id < flows_.size() && flows_[id].open, id);
  Peer& peer = peers_[flows_[id].peer];
  HR_CHECK(peer.bytes_out >= size + kMessageCost, id, size, peer.bytes_out);
  peer.bytes_out -= size + kMessageCost;
  peer.moved_ns = now_;
}

std::optional<std::uint16_t> SendPacer::Withdraw(FlowId id) {
  Flow& flow = flows_[id];
  if (flow.count == 0) return std::nullopt;
  return Pop(flow).number;
}

bool SendPacer::IsStuck(FlowId id) const {
  const Peer& peer = peers_[flows_[id].peer];
  return peer.bytes_out >= peer_bytes_max_ && now_ - peer.moved_ns >= kStuckAfter;
}

}  // namespace headrace::transport
