#include "tests/unit/service/cluster/services.h"

#include <algorithm>

namespace headrace::support {
namespace {

service::LeaderOptions LeaderOptionsOf(const std::string& name, const std::set<std::string>& peers,
                                       std::uint64_t instance, std::uint64_t& keys) {
  return {.protocol_version = 1,
          .program = "headraced 0.1.0",
          .node_name = name,
          .lanes_count = 1,
          .block_bytes = 4096,
          .peers = peers,
          .random_key = [&keys, instance] { return (instance << 32U) + ++keys; }};
}

service::FollowerOptions FollowerOptionsOf(const std::string& name,
                                           const std::set<std::string>& peers) {
  return {.node_name = name,
          .lanes = {1},
          .leader_at = [name, peers](const service::JobPlace& place) -> Result<std::string> {
            if (place.node == name) return Services::AddressOf(name);
            if (!peers.empty() && !place.node.empty() && !peers.contains(place.node)) {
              return Error(Code::kPermissionDenied, "no peer");
            }
            if (!place.address.empty()) return place.address;
            return Error(Code::kUnavailable, "its address is not known");
          }};
}

}  // namespace

WholeService::WholeService(std::string node_name, std::uint64_t instance,
                           const std::set<std::string>& peers)
    : name(std::move(node_name)),
      facts{.protocol_version = 1,
            .program = "headraced 0.1.0",
            .name = name,
            .instance = instance,
            .addresses = {name + " lane"},
            .control = "*:7733"},
      leader(LeaderOptionsOf(name, peers, instance, keys), directory),
      follower(FollowerOptionsOf(name, peers), directory) {}

Services::Services(std::vector<std::string> names, std::set<std::string> peers)
    : names_(std::move(names)), peers_(std::move(peers)), services_(names_.size()) {
  for (std::size_t place = 0; place < names_.size(); ++place) Restart(place);
}

std::size_t Services::PlaceOf(const std::string& leader) const {
  const auto found = std::ranges::find(names_, leader.substr(0, leader.find(':')));
  return static_cast<std::size_t>(found - names_.begin());
}

void Services::Kill(std::size_t place) {
  services_[place].reset();
  for (Link& link : links_) {
    link.broken = link.broken || link.from == place || link.to == place;
    link.dialer_knows = link.dialer_knows || link.from == place;
    link.listener_knows = link.listener_knows || link.to == place;
  }
  SweepLinks();
}

void Services::Restart(std::size_t place) {
  services_[place] = std::make_unique<WholeService>(names_[place], ++instances_, peers_);
}

void Services::SetReach(std::size_t from, std::size_t to, bool reaches) {
  if (reaches) {
    cut_.erase({from, to});
    return;
  }
  cut_.insert({from, to});
  Break(from, to);
}

void Services::Break(std::size_t from, std::size_t to) {
  for (Link& link : links_) link.broken = link.broken || (link.from == from && link.to == to);
}

void Services::SweepLinks() {
  std::erase_if(links_, [](const Link& link) { return link.dialer_knows && link.listener_knows; });
}

Services::Link* Services::Find(std::size_t from, const std::string& leader) {
  const std::size_t to = PlaceOf(leader);
  const auto found = std::ranges::find_if(links_, [from, to](const Link& link) {
    return link.from == from && link.to == to && !link.dialer_knows;
  });
  return found == links_.end() ? nullptr : &*found;
}

void Services::Collect() {
  for (std::size_t place = 0; place < services_.size(); ++place) {
    if (services_[place]) DoAll(place);
  }
}

void Services::DoAll(std::size_t place) {
  WholeService& own = *services_[place];
  for (service::ToNode& each : own.leader.DrainMessages()) {
    const auto link = std::ranges::find(links_, each.node, &Link::id);
    if (link != links_.end() && !link->broken) link->to_dialer.push_back(std::move(each.message));
  }
  own.leader.DrainOutgoing();
  own.leader.DrainRefused();
  for (const service::FollowerAction& action : own.follower.DrainActions()) Do(place, action);
}

void Services::Do(std::size_t place, const service::FollowerAction& action) {
  WholeService& own = *services_[place];
  if (const auto* told = std::get_if<service::ToLeader>(&action)) {
    HR_CHECK(own.wanted.contains(told->leader) || Find(place, told->leader) != nullptr, own.name,
             told->leader);
    Link* const link = Find(place, told->leader);
    if (link != nullptr && !link->broken) link->to_listener.push_back(told->message);
  } else if (const auto* reach = std::get_if<service::ReachLeader>(&action)) {
    own.wanted.insert(reach->leader);
  } else if (const auto* leave = std::get_if<service::LeaveLeader>(&action)) {
    own.wanted.erase(leave->leader);
  } else if (const auto* lane = std::get_if<service::ToLane>(&action)) {
    DoLane(own, *lane);
  } else if (const auto* quorum = std::get_if<service::QuorumAnswered>(&action)) {
    own.answers.push_back(*quorum);
  } else if (const auto* waits = std::get_if<service::MembersWait>(&action)) {
    own.members_wait.push_back(waits->job);
  } else if (const auto* placed = std::get_if<service::JobPlaced>(&action)) {
    own.placed.insert_or_assign(placed->job, placed->places);
  } else if (const auto* dispatch = std::get_if<service::ToDispatch>(&action)) {
    if (const auto* formed = std::get_if<service::JobFormed>(&dispatch->message)) {
      own.running.insert_or_assign(formed->job, formed->nodes);
    } else if (const auto* failed = std::get_if<service::JobFailed>(&dispatch->message)) {
      own.running.erase(failed->job);
      own.failed.insert_or_assign(failed->job, failed->cause);
    }
  }
}

void Services::DoLane(WholeService& service, const service::ToLane& told) {
  if (const auto* open = std::get_if<service::OpenGroup>(&told.message)) {
    service.group_keys[open->options.group] = open->options.key;
    service.follower.Handle(
        service::GroupOpened{.lane = 1, .group = open->options.group, .status = {}});
  } else if (const auto* measure = std::get_if<service::MeasureGroup>(&told.message)) {
    service.follower.Handle(
        service::GroupMeasured{.lane = 1,
                               .group = measure->group,
                               .cost = transport::CostLine{.startup_s = 1e-5, .s_per_byte = 1e-9}});
  }
}

bool Services::Deliver(std::uint32_t draw) {
  std::vector<std::pair<std::size_t, bool>> ready;
  for (std::size_t i = 0; i < links_.size(); ++i) {
    if (links_[i].broken) continue;
    if (!links_[i].to_listener.empty()) ready.emplace_back(i, true);
    if (!links_[i].to_dialer.empty()) ready.emplace_back(i, false);
  }
  if (ready.empty()) return false;
  const auto [place, to_listener] = ready[draw % ready.size()];
  Link& link = links_[place];
  auto& queue = to_listener ? link.to_listener : link.to_dialer;
  const service::PeerMessage message = std::move(queue.front());
  queue.pop_front();
  if (to_listener) {
    services_[link.to]->leader.Handle(link.id, message, now_);
  } else {
    services_[link.from]->follower.Handle(AddressOf(names_[link.to]), message, now_);
  }
  Collect();
  return true;
}

// A place that wants one, or no longer wants one that it has.
bool Services::Dial(std::uint32_t draw) {
  std::vector<std::pair<std::size_t, std::string>> open;
  for (std::size_t place = 0; place < services_.size(); ++place) {
    if (!services_[place]) continue;
    for (const std::string& leader : services_[place]->wanted) {
      if (Find(place, leader) == nullptr) open.emplace_back(place, leader);
    }
  }
  if (open.empty()) return false;
  const auto& [place, leader] = open[draw % open.size()];
  Attempt(place, leader);
  return true;
}

void Services::Attempt(std::size_t from, const std::string& leader) {
  WholeService& own = *services_[from];
  const std::size_t to = PlaceOf(leader);
  const std::string cause = "the service at " + leader + " does not answer";
  if (to >= services_.size() || !services_[to] || !Reaches(from, to)) {
    own.follower.OnLeaderUnreachable(leader, cause, now_);
    return Collect();
  }
  const std::string address = own.name + ":1234";
  if (const Status status = services_[to]->leader.CheckNode(own.facts, address); !status) {
    if (status.code() == Code::kPermissionDenied) {
      own.follower.OnLeaderRefused(leader, status.error());
    } else {
      own.follower.OnLeaderUnreachable(leader, status.error().text(), now_);
    }
    return Collect();
  }
  links_.push_back({.id = ++ids_, .from = from, .to = to});
  services_[to]->leader.OnNodeUp(ids_, own.facts, address);
  own.follower.OnLeaderUp(leader);
  Collect();
}

bool Services::NoticeEnd(std::uint32_t draw) {
  std::vector<std::pair<std::size_t, bool>> ended;
  for (std::size_t i = 0; i < links_.size(); ++i) {
    const Link& link = links_[i];
    const bool left = services_[link.from] && !link.dialer_knows && link.to_listener.empty() &&
                      !services_[link.from]->wanted.contains(AddressOf(names_[link.to]));
    if (!link.dialer_knows && (link.broken || left)) ended.emplace_back(i, true);
    if (!link.listener_knows && link.broken) ended.emplace_back(i, false);
  }
  if (ended.empty()) return false;
  const auto [place, dialer] = ended[draw % ended.size()];
  Link& link = links_[place];
  link.broken = true;
  const std::string leader = AddressOf(names_[link.to]);
  if (dialer) {
    link.dialer_knows = true;
    services_[link.from]->follower.OnLeaderDown(
        leader, Error(Code::kPeerLost, "the connection to node " + names_[link.to] + " broke"));
  } else {
    link.listener_knows = true;
    services_[link.to]->leader.OnNodeDown(link.id, Code::kPeerLost,
                                          "the connection to node " + names_[link.from] + " broke");
  }
  SweepLinks();
  Collect();
  return true;
}

void Services::Run() {
  Collect();
  for (bool more = true; more;) {
    more = false;
    while (NoticeEnd(0) || Deliver(0)) more = true;
    for (std::size_t place = 0; place < services_.size(); ++place) {
      if (!services_[place]) continue;
      const std::set<std::string> wanted = services_[place]->wanted;
      for (const std::string& leader : wanted) {
        if (!services_[place]->wanted.contains(leader) || Find(place, leader) != nullptr) continue;
        Attempt(place, leader);
        more = more || Find(place, leader) != nullptr;
      }
    }
    more = Deliver(0) || more;
  }
}

void Services::Pass(TimeNs time_ns) {
  now_ += time_ns;
  for (const auto& each : services_) {
    if (!each) continue;
    each->leader.Expire(now_);
    each->follower.Expire(now_);
  }
  Collect();
}

}  // namespace headrace::support
