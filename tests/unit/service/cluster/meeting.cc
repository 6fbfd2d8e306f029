#include "tests/unit/service/cluster/meeting.h"

#include <algorithm>
#include <utility>

namespace headrace::support {
namespace {

using service::NodeFacts;

service::FollowerOptions OptionsOf(const std::string& name, std::size_t lanes_count, bool server,
                                   std::uint64_t salt) {
  service::FollowerOptions options{
      .node_name = name, .lanes = {}, .server = server, .hash_salt = salt};
  for (std::size_t lane = 0; lane < lanes_count; ++lane) {
    options.lanes.push_back(static_cast<std::uint8_t>(lane + 1));
  }
  return options;
}

service::LeaderOptions OptionsOf(const MeetingOptions& options, std::uint64_t& keys) {
  return {.protocol_version = 1,
          .program = "headraced 0.1.0",
          .node_name = "a",
          .lanes_count = options.lanes_count,
          .block_bytes = 4096,
          .verify = options.verify,
          .architecture = options.architecture,
          .peers = options.peers,
          .random_key = [&keys] { return ++keys; }};
}

}  // namespace

MeetingNode::MeetingNode(std::string node_name, std::size_t lanes_count, bool server,
                         std::uint64_t salt)
    : name(std::move(node_name)), follower(OptionsOf(name, lanes_count, server, salt), directory) {
  facts = {.protocol_version = 1,
           .program = "headraced 0.1.0",
           .name = name,
           .instance = std::hash<std::string>{}(name),
           .server = server,
           .addresses = {}};
  for (std::size_t lane = 0; lane < lanes_count; ++lane) {
    facts.addresses.push_back(name + " lane " + std::to_string(lane));
  }
  wants_leader = server;
}

std::string MeetingNode::failure() const {
  const auto failures = Told<service::JobFailed>();
  return failures.empty() ? "" : failures.back().cause;
}

std::string MeetingNode::waits() const {
  const auto forming = Told<service::JobForming>();
  return forming.empty() ? "" : forming.back().waits_for;
}

Meeting::Meeting(MeetingOptions options)
    : options_(std::move(options)), leader_(OptionsOf(options_, keys_), directory_) {}

MeetingNode& Meeting::AddNode(const std::string& name, std::uint64_t salt) {
  nodes_.push_back(std::make_unique<MeetingNode>(name, options_.lanes_count, false, salt));
  return *nodes_.back();
}

MeetingNode& Meeting::AddServer(const std::string& name) {
  nodes_.push_back(std::make_unique<MeetingNode>(name, options_.lanes_count, true));
  return *nodes_.back();
}

service::SessionIdentity Meeting::Rank(std::uint32_t job, std::uint32_t rank,
                                       std::uint32_t world_size, std::string name) {
  service::SessionIdentity identity;
  identity.job = JobId{job};
  identity.job_name = std::move(name);
  identity.rank = rank;
  identity.world_size = world_size;
  identity.uid = 1000;
  identity.pid = static_cast<std::int32_t>(100 + rank);
  identity.timeout_ms = 60'000;
  identity.rendezvous = kMeetingPlace;
  return identity;
}

void Meeting::Attach(MeetingNode& node, const service::SessionIdentity& identity) {
  node.follower.OnRankAttached(identity);
  Collect();
}

Status Meeting::Connect(MeetingNode& node) {
  if (Status status = leader_.CheckNode(node.facts, node.name + ":1"); !status) return status;
  node.id = ++ids_;
  leader_.OnNodeUp(node.id, node.facts, node.name + ":1");
  node.follower.OnLeaderUp(kMeetingPlace);
  Collect();
  return {};
}

void Meeting::Cut(MeetingNode& node, const std::string& cause) {
  node.to_leader.clear();
  node.to_node.clear();
  const service::NodeId id = std::exchange(node.id, 0);
  leader_.OnNodeDown(id, Code::kPeerLost, "node " + node.name + " " + cause);
  node.follower.OnLeaderDown(kMeetingPlace, Error(Code::kPeerLost, "node a " + cause));
  Collect();
}

bool Meeting::Leave(MeetingNode& node) {
  if (node.wants_leader || node.id == 0) return false;
  Cut(node, "left");
  return true;
}

void Meeting::Collect() {
  for (service::ToNode& each : leader_.DrainMessages()) {
    const auto node = std::find_if(nodes_.begin(), nodes_.end(),
                                   [&each](const auto& one) { return one->id == each.node; });
    HR_CHECK(node != nodes_.end(), each.node);
    (*node)->to_node.push_back(std::move(each.message));
  }
  for (const service::ToWatch& each : leader_.DrainOutgoing()) {
    if (const auto* wanted = std::get_if<service::MakePlan>(&each.message)) {
      plans_wanted_.push_back(*wanted);
    } else {
      leader_events_.push_back(std::get<service::Event>(each.message).text);
    }
  }
  for (const auto& node : nodes_) {
    for (const service::FollowerAction& action : node->follower.DrainActions()) Do(*node, action);
  }
}

void Meeting::Do(MeetingNode& node, const service::FollowerAction& action) {
  if (const auto* told = std::get_if<service::ToLeader>(&action)) {
    if (node.id != 0) node.to_leader.push_back(told->message);
  } else if (const auto* dispatch = std::get_if<service::ToDispatch>(&action)) {
    node.dispatch.push_back(*dispatch);
  } else if (const auto* lane = std::get_if<service::ToLane>(&action)) {
    node.lanes.push_back(*lane);
    AnswerLane(node, *lane);
  } else if (const auto* watch = std::get_if<service::ToWatch>(&action)) {
    node.events.push_back(std::get<service::Event>(watch->message).text);
  } else if (const auto* refusal = std::get_if<service::NoteRefusal>(&action)) {
    node.refusals.push_back(refusal->why);
  } else if (const auto* answer = std::get_if<service::Answered>(&action)) {
    node.answers.push_back(*answer);
  } else if (const auto* quorum = std::get_if<service::QuorumAnswered>(&action)) {
    node.quorums.push_back(*quorum);
  } else if (const auto* waits = std::get_if<service::MembersWait>(&action)) {
    node.members_wait.push_back(waits->job);
  } else if (const auto* placed = std::get_if<service::JobPlaced>(&action)) {
    node.placed.push_back(*placed);
  } else if (const auto* broken = std::get_if<service::SessionBroken>(&action)) {
    node.evicted.push_back(*broken);
  } else {
    node.wants_leader = std::holds_alternative<service::ReachLeader>(action);
  }
}

void Meeting::AnswerLane(MeetingNode& node, const service::ToLane& told) {
  const auto number = static_cast<std::uint8_t>(told.lane + 1);
  if (const auto* open = std::get_if<service::OpenGroup>(&told.message)) {
    if (node.open_answer) {
      node.follower.Handle(service::GroupOpened{
          .lane = number, .group = open->options.group, .status = *node.open_answer});
    }
  } else if (const auto* measure = std::get_if<service::MeasureGroup>(&told.message)) {
    if (node.cost) {
      node.follower.Handle(
          service::GroupMeasured{.lane = number, .group = measure->group, .cost = *node.cost});
    }
  }
}

bool Meeting::DeliverToLeader(MeetingNode& node) {
  if (node.to_leader.empty()) return false;
  const service::PeerMessage message = std::move(node.to_leader.front());
  node.to_leader.pop_front();
  leader_.Handle(node.id, message, now_);
  Collect();
  return true;
}

bool Meeting::DeliverToNode(MeetingNode& node) {
  if (node.to_node.empty()) return false;
  const service::PeerMessage message = std::move(node.to_node.front());
  node.to_node.pop_front();
  node.follower.Handle(kMeetingPlace, message, now_);
  Collect();
  return true;
}

std::size_t Meeting::Run() {
  Collect();
  std::size_t delivered = 0;
  for (bool more = true; more;) {
    more = false;
    for (const auto& node : nodes_) {
      if (node->wants_leader && node->id == 0) more = Connect(*node).ok() || more;
      while (DeliverToLeader(*node) || DeliverToNode(*node)) {
        ++delivered;
        more = true;
      }
      Collect();
      more = Leave(*node) || more;
    }
  }
  return delivered;
}

}  // namespace headrace::support
