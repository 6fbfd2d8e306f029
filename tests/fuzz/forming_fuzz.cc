// Whole conversations between services, not single messages: a leader that says what it likes to a
// node with a rank, on whose lanes and dispatch it acts; and nodes that say what they like to a
// leader. The bytes are a script of steps, honest or spoiled in one field, in any order and number.
// Values go straight to the rules, without the wire (peer_fuzz has that), so they may be any.
//
// Whatever is said, nothing ends but jobs: what a node has formed it can also end, and what a
// leader sends out a node would believe. Deadlines come to an end, and no question about who is
// left of a job outlives those who ask.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ipc/base/check.h"
#include "service/cluster/follower.h"
#include "service/cluster/leader.h"
#include "service/plan/canonical.h"
#include "tests/fuzz/said.h"
#include "tests/fuzz/script.h"
#include "tests/support/hand_driven_cluster.h"
#include "tests/unit/service/cluster/plans.h"
#include "tests/unit/service/dispatch/planned.h"

namespace {

using namespace headrace;  // NOLINT: this program has no names of its own
using fuzz::Script;

const std::string kLeader = "b:7733";
const support::JobSpec kJob{
    .id = JobId{1}, .name = "train", .world_size = 2, .rendezvous = kLeader};

// How often something may be due after all have gone.
constexpr int kDeadlinesMax = 64;

// Lets the time come of all that is due, until nothing is.
template <typename Side, typename Route>
void AwaitDeadlines(Side& side, TimeNs now, const Route& route) {
  for (int i = 0; side.NextDeadline() != kNever; ++i) {
    HR_CHECK(i < kDeadlinesMax, side.NextDeadline());
    now = std::max(now, side.NextDeadline());
    side.Expire(now);
    route();
  }
}

// A node with rank 0 and a leader that lies to it; the node with rank 1 does as the first is told.
class FollowerTrial {
 public:
  static constexpr std::size_t kStepsMax = 400;

  FollowerTrial() {
    identity_.job = kJob.id;
    identity_.job_name = kJob.name;
    identity_.world_size = kJob.world_size;
    identity_.rendezvous = kLeader;
    identity_.can_reconnect = true;
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      clients_[rank] = &cluster_.node(rank).Attach(kJob, rank);
      support::HandIn(cluster_.node(rank), *clients_[rank], layout_);
    }
    follower_.OnRankAttached(identity_);
    follower_.OnLayoutSet(kJob.id, 0, layout_, {});
    Route();
    leaders_.at(kLeader).is_up = true;
    follower_.OnLeaderUp(kLeader);
    Route();
  }

  void Step(Script& script) {
    const auto action = script.Read<std::uint8_t>();
    const bool spoiled = action >= 0x80;
    const int kind = action % 0x80 % 22;
    if (kind >= 12) {
      StepOfQuorums(kind, spoiled, script);
      return Route();
    }
    switch (kind) {
      case 0:
        Deliver(Open(script, spoiled));
        break;
      case 1:
        Deliver(service::MeasureJob{1});
        break;
      case 2:
        Deliver(Start(script, spoiled));
        break;
      case 3:
        Deliver(Piece(script, spoiled));
        break;
      case 4:
        Deliver(service::AnnouncePlanSwitch{
            .job = 1,
            .version = spoiled ? script.Read<std::uint32_t>() : 1,
            .from_iteration = spoiled ? script.Read<std::uint64_t>() : 1});
        break;
      case 5:
        Deliver(service::AnnounceRankLeft{.job = 1,
                                          .rank = spoiled ? script.Read<std::uint32_t>() : 1,
                                          .posted = script.Read<std::uint64_t>(),
                                          .iterations = script.Read<std::uint64_t>(),
                                          .cause = "left"});
        break;
      case 6:
        Post(script.Read<std::uint8_t>());
        break;
      case 7:
        cluster_.Advance(script.Read<std::uint8_t>() * kMillisecond);
        break;
      case 8:
        Deliver(service::AnnounceJobFailed{.job = 1, .cause = "says so"});
        break;
      case 9:
        Deliver(service::CloseJob{1});
        break;
      case 10:
        follower_.Expire(script.Read<std::uint8_t>() * kSecond);
        break;
      default:
        Steer(script);
    }
    Route();
  }

  void Finish() {
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      cluster_.node(rank).Close(*clients_[rank], false, "was closed by the script");
    }
    Deliver(service::AnnounceJobFailed{.job = 1, .cause = "the end"});
    for (std::uint64_t client = 0; client < kAskersCount; ++client) {
      follower_.Handle(service::QuorumClientLost{.client = client, .exited = client % 2 == 0});
    }
    follower_.OnLeaseEnded(identity_, false, "was killed", true);
    for (int turn = 0; turn < 3; ++turn) {
      Route();
      cluster_.Advance(kSecond);
    }
    AwaitDeadlines(follower_, cluster_.now(), [this] { Route(); });
    HR_CHECK(follower_.jobs_count() <= 1, follower_.jobs_count());
    HR_CHECK(follower_.quorums_count() == 0, follower_.quorums_count());
    support::HandDrivenNode& node = cluster_.node(0);
    HR_CHECK(node.discarded_in_use() == 0, node.discarded_in_use());
    HR_CHECK(node.RowsInUse() == 0, node.RowsInUse());
    HR_CHECK(node.Discarded(*clients_[0]));
  }

 private:
  service::OpenJob Open(Script& script, bool spoiled) {
    service::OpenJob open{.job = 1, .self = 0, .agreement = {}};
    open.agreement = {.job = kJob.name,
                      .world_size = 2,
                      .key = 5,
                      .block_bytes = 1024,
                      .nodes = {{.name = "a", .ranks = {0}, .addresses = cluster_.addresses(0)},
                                {.name = "b", .ranks = {1}, .addresses = cluster_.addresses(1)}}};
    if (spoiled) fuzz::Spoil(open, script);
    agreement_ = open.agreement;
    return open;
  }
  service::StartJob Start(Script& script, bool spoiled) {
    service::StartJob start{.job = 1, .costs = {{20e-6, 1e-9}}, .hash = 0};
    if (spoiled) start.costs[0] = {script.Seconds(), script.Seconds()};
    if (spoiled) start.costs.resize(script.Read<std::uint8_t>() % 3, {20e-6, 1e-9});
    service::Agreement agreed = agreement_;
    agreed.costs = start.costs;
    start.hash = HashOf(agreed);
    return start;
  }
  service::PlanPiece Piece(Script& script, bool spoiled) {
    std::string text =
        plan::Canonical(*support::PlanOf({{{2, 0, 30}}, {{0, 0, 10}, {1, 0, 20}}}, 1));
    service::PlanPiece piece{.job = 1, .version = 1, .index = 0, .last = true, .text = nullptr};
    if (spoiled) {
      piece.version = script.Read<std::uint32_t>() % 3;
      piece.index = script.Read<std::uint8_t>() % 3;
      piece.last = script.Read<std::uint8_t>() % 4 != 0;
      text[script.Read<std::uint16_t>() % text.size()] = script.Read<char>();
    }
    piece.text = std::make_shared<const std::string>(std::move(text));
    return piece;
  }
  void Steer(Script& script) {
    if (const std::optional<service::Steering> steering = fuzz::SteeringOf(script); steering) {
      Deliver(service::AnnounceSteering{.job = 1, .steering = *steering});
    }
  }
  void Post(std::uint8_t choice) {
    support::ClientEnd& client = *clients_[choice % 2];
    if (choice % 4 < 2) {
      support::PostGradient(client, *layout_, choice / 4U % 3U);
    } else {
      client.Post(support::OnSegment(Collective::kAllReduce, DType::kFloat32, choice), true);
    }
  }
  void Deliver(const service::PeerMessage& message) { DeliverFrom(kLeader, message); }
  // Who is not connected says nothing.
  void DeliverFrom(const std::string& leader, const service::PeerMessage& message) {
    const auto found = leaders_.find(leader);
    if (found == leaders_.end() || !found->second.is_up) return;
    follower_.Handle(leader, message, cluster_.now());
  }

  // What the node's clients ask, what its leaders say of it, and what becomes of both.
  void StepOfQuorums(int kind, bool spoiled, Script& script) {
    const std::uint32_t question = spoiled ? script.Read<std::uint8_t>() % 4U : question_;
    const std::string leader = leaders_.empty() ? kLeader : AnyLeader(script)->first;
    switch (kind) {
      case 12:
        follower_.Handle(Ask(script), cluster_.now());
        break;
      case 13:
        follower_.Handle(service::QuorumClientLost{
            .client = script.Read<std::uint8_t>() % kAskersCount, .exited = spoiled});
        break;
      case 14:
        follower_.OnRankLost(kJob.id, 0, "was killed", spoiled);
        follower_.OnLeaseEnded(identity_, false, "was killed", spoiled);
        break;
      case 15:
        DeliverFrom(leader, service::AnnounceQuorumWaits{.job = question, .text = "waits"});
        break;
      case 16:
        DeliverFrom(leader,
                    service::AnnounceQuorum{.job = question, .quorum = fuzz::QuorumOf(script)});
        break;
      case 17: {
        const auto choice = script.Read<std::uint8_t>();
        DeliverFrom(leader,
                    service::AnnounceQuorumRefused{
                        .job = question,
                        .code = choice % 2 == 0 ? Code::kBusy : Code::kMismatch,
                        .cause = "is refused",
                        .members = std::vector<std::uint32_t>(choice / 2U % 3, choice / 8U)});
        break;
      }
      case 18:
        DeliverFrom(leader,
                    service::AnnounceJobPlaces{.job = question, .places = fuzz::PlacesOf(script)});
        break;
      case 19:
        Deliver(service::AnnounceMembersWait{1});
        Deliver(service::AnnounceRankLate{.job = 1, .text = "rank 1 is late"});
        break;
      case 20:
        follower_.Handle(service::BlockHashed{.job = kJob.id, .hash = {{spoiled, 1, 0}, 7}});
        follower_.Handle(service::RankLate{.job = kJob.id, .text = "rank 0 is late"});
        break;
      default:
        ChangeConnection(script);
    }
  }
  service::AskQuorum Ask(Script& script) {
    const auto choice = script.Read<std::uint8_t>();
    service::AskQuorum ask{
        .token = ++tokens_,
        .client = choice % kAskersCount,
        .job = kJob.name,
        .leader = choice < 0xC0 ? kLeader : "c:7733",
        .role = static_cast<service::MemberRole>(choice / 4U % service::kMemberRolesCount),
        .membership = fuzz::MembershipOf(script),
        .epoch = fuzz::NumberBelow(script, service::kEpochMax),
        .rules = {.min_world = choice / 16U % 4, .grace_ms = 100},
        .until_ns = cluster_.now() + 2 * kSecond};
    ask.member = ask.membership.members[choice / 16U % ask.membership.members.size()];
    return ask;
  }
  struct Connection {
    bool is_up = false;
    bool is_needed = true;
  };
  std::map<std::string, Connection>::iterator AnyLeader(Script& script) {
    return std::next(leaders_.begin(), script.Read<std::uint8_t>() % std::ssize(leaders_));
  }
  // As service/peers has it: who is not needed any more is left after a while.
  void ChangeConnection(Script& script) {
    if (leaders_.empty()) return;
    const auto found = AnyLeader(script);
    const std::string leader = found->first;
    Connection& connection = found->second;
    if (!connection.is_needed) {
      leaders_.erase(found);
      return follower_.OnLeaderDown(leader, Error(Code::kUnavailable, "left"));
    }
    if (std::exchange(connection.is_up, false)) {
      return follower_.OnLeaderDown(leader, Error(Code::kPeerLost, "is gone"));
    }
    switch (script.Read<std::uint8_t>() % 3) {
      case 0:
        return follower_.OnLeaderUnreachable(leader, "does not answer", cluster_.now());
      case 1:
        return follower_.OnLeaderRefused(leader, Error(Code::kMismatch, "refuses this node"));
      default:
        connection.is_up = true;
        follower_.OnLeaderUp(leader);
    }
  }
  void Execute(const service::FollowerAction& action) {
    if (const auto* reach = std::get_if<service::ReachLeader>(&action)) {
      leaders_[reach->leader].is_needed = true;
    } else if (const auto* leave = std::get_if<service::LeaveLeader>(&action)) {
      const auto found = leaders_.find(leave->leader);
      if (found != leaders_.end()) found->second.is_needed = false;
    } else if (const auto* sent = std::get_if<service::ToLeader>(&action)) {
      const auto* report = std::get_if<service::ReportQuorum>(&sent->message);
      if (report != nullptr) question_ = report->job;
    }
  }

  void Route() {
    for (int turn = 0; turn < 8; ++turn) {
      for (const service::FollowerAction& action : follower_.DrainActions()) {
        Execute(action);
        if (const auto* lane = std::get_if<service::ToLane>(&action)) ToLanes(lane->message);
        const auto* dispatch = std::get_if<service::ToDispatch>(&action);
        if (dispatch == nullptr) continue;
        std::visit([this](const auto& each) { ToDispatches(each); }, dispatch->message);
      }
      cluster_.Advance(5 * kMillisecond);
      for (auto& message : std::exchange(cluster_.node(0).peers().messages, {})) {
        std::visit(
            [this](const auto& each) {
              if constexpr (requires { follower_.Handle(each); }) follower_.Handle(each);
            },
            message);
      }
    }
    cluster_.node(1).peers().messages.clear();
  }
  void ToLanes(const service::LaneMessage& message) {
    cluster_.node(0).SendToNetworkLanes(message);
    service::LaneMessage other = message;
    if (auto* open = std::get_if<service::OpenGroup>(&other)) {
      if (open->options.members.size() != 2 || open->options.servers_count != 0) return;
      open->options.self = 1 - open->options.self;
    }
    cluster_.node(1).SendToNetworkLanes(other);
  }
  template <typename Message>
  void ToDispatches(const Message& message) {
    cluster_.node(0).Send(message);
    Message other = message;
    if constexpr (std::is_same_v<Message, service::JobFormed>) {
      if (other.nodes.nodes.size() == 2) other.nodes.self = 1 - other.nodes.self;
    }
    cluster_.node(1).Send(std::move(other));
  }

  static constexpr std::uint64_t kAskersCount = 4;

  support::HandDrivenCluster cluster_{{.nodes_count = 2}};
  std::shared_ptr<const service::Layout> layout_ = support::PackedLayout({10, 20, 30});
  support::ClientEnd* clients_[2] = {};
  service::JobDirectory directory_;
  service::Follower follower_{{.node_name = "a", .lanes = {1}}, directory_};
  service::Agreement agreement_;
  service::SessionIdentity identity_;  // of rank 0
  std::map<std::string, Connection> leaders_;
  std::uint32_t question_ = 1;  // the last one that was reported
  service::RequestToken tokens_ = 0;
};

// Two nodes that say what they like to a leader.
class LeaderTrial {
 public:
  static constexpr std::size_t kStepsMax = 400;

  LeaderTrial() {
    for (const service::NodeId node : std::initializer_list<service::NodeId>{1, 2}) OnNodeUp(node);
  }

  void Step(Script& script) {
    const auto action = script.Read<std::uint8_t>();
    const service::NodeId node = 1 + action / 64U % 2;
    const std::uint32_t job = action >= 0x80 ? script.Read<std::uint8_t>() % 4U : 1;
    const auto say = [&](const service::PeerMessage& message) {
      leader_.Handle(node, message, ++now_);
    };
    const int kind = action % 64 % 24;
    switch (kind) {
      case 0:
        say(service::JoinJob{.job = job,
                             .name = job < 2 ? "train" : "other",
                             .world_size = 2 + job / 3,
                             .uid = 1000});
        break;
      case 1:
        say(service::ReportRankAttached{
            .job = job,
            .rank = action < 0x80 ? static_cast<std::uint32_t>(node - 1)
                                  : script.Read<std::uint8_t>() % 4U,
            .after_epoch = action < 0x80 ? 0 : script.Read<std::uint8_t>() % 3U});
        break;
      case 2:
        say(service::JobOpened{.job = job});
        break;
      case 3:
        say(service::JobMeasured{.job = job,
                                 .costs = {{action < 0x80 ? 1e-5 : script.Seconds(), 1e-9}}});
        break;
      case 4:
        say(service::JobStarted{.job = job, .hash = hash_});
        break;
      case 5:
        say(service::ReportLayout{.job = job, .layout = layout_});
        break;
      case 6:
        say(service::ReportTimesSeen{
            .job = job,
            .seen = support::SeenAt(script.Read<std::uint8_t>(), 3, 1e-3, 1e-3, {1e-5, 1e-9})});
        break;
      case 7:
        say(service::RequestPolicy{.job = job, .policy = plan::Policy::kBsp});
        break;
      case 8:
        say(service::ReportPlanAck{
            .job = job, .version = version_, .hash = plan_hash_, .iteration = 1});
        break;
      case 9:
        say(service::ReportRankLeft{.job = job, .rank = static_cast<std::uint32_t>(node - 1)});
        break;
      case 10:
        say(service::ForgetJob{job});
        break;
      case 11:
        say(service::ReportJobFailed{.job = job, .code = Code::kCancelled, .cause = "broke"});
        break;
      case 12:
        say(service::ReportRankLost{.job = job, .rank = script.Read<std::uint8_t>()});
        break;
      case 13:
        say(service::RequestSteering{.job = job, .steering = {.kind = SteeringKind::kDrain}});
        break;
      case 14:
        leader_.OnNodeDown(node, Code::kPeerLost, "gone");
        break;
      default:
        StepOfQuorums(kind, node, job, script);
    }
    Route();
  }
  void Finish() {
    AwaitDeadlines(leader_, now_, [this] { Route(); });
    for (const service::NodeId node : std::initializer_list<service::NodeId>{1, 2})
      leader_.OnNodeDown(node, Code::kPeerLost, "gone");
    HR_CHECK(leader_.quorums_count() == 0, leader_.quorums_count());
    HR_CHECK(leader_.NextDeadline() == kNever, leader_.NextDeadline());
    HR_CHECK(leader_.jobs_count() == 0, leader_.jobs_count());
    HR_CHECK(leader_.nodes_count() == 0, leader_.nodes_count());
  }

 private:
  // What else nodes say: of members that are left, of slow ranks, of sums and of settings.
  void StepOfQuorums(int kind, service::NodeId node, std::uint32_t job, Script& script) {
    const auto say = [&](const service::PeerMessage& message) {
      leader_.Handle(node, message, ++now_);
    };
    switch (kind) {
      case 15:
        OnNodeUp(node);
        break;
      case 16:
        say(fuzz::ReportOf(script, job));
        break;
      case 17:
        say(service::LeaveQuorum{job});
        break;
      case 18:
        say(service::ReportJobPlaces{
            .name = "train", .uid = 1000, .places = fuzz::PlacesOf(script)});
        break;
      case 19:
        now_ += script.Read<std::uint16_t>() * kMillisecond;
        leader_.Expire(now_);
        break;
      case 20:
        say(service::ReportRankLate{.job = job, .text = "is late"});
        break;
      case 21: {
        const auto choice = script.Read<std::uint8_t>();
        say(service::ReportBlockHashed{
            .job = job,
            .hash = {{choice % 2 == 0, choice / 2U % 4, choice / 8U % 4}, choice / 128U}});
        break;
      }
      case 22:
        if (const auto steering = fuzz::SteeringOf(script); steering) {
          say(service::RequestSteering{.job = job, .steering = *steering});
        }
        break;
      default:
        leader_.OnNodeRefused(script.Read<std::uint8_t>() % 2 == 0 ? "" : "node c was refused");
    }
  }
  void OnNodeUp(service::NodeId node) {
    leader_.OnNodeDown(node, Code::kPeerLost, "came again");
    leader_.OnNodeUp(node, {.name = node == 1 ? "a" : "b", .addresses = {node == 1 ? "A0" : "B0"}},
                     "10.0.0.1:1");
  }
  void Route() {
    for (const service::ToNode& sent : leader_.DrainMessages()) {
      if (const auto* open = std::get_if<service::OpenJob>(&sent.message)) {
        const service::Agreement& agreed = open->agreement;
        const Status status = CheckNodes(service::NodesOf(agreed, open->self), agreed.world_size,
                                         agreed.nodes.at(open->self).ranks);
        HR_CHECK(status.ok(), status.error().text());
      } else if (const auto* start = std::get_if<service::StartJob>(&sent.message)) {
        hash_ = start->hash;
      } else if (const auto* piece = std::get_if<service::PlanPiece>(&sent.message)) {
        version_ = piece->version;
        plan_hash_ = plan::HashOf(*piece->text);
      }
    }
    for (const service::ToWatch& errand : leader_.DrainOutgoing()) {
      const auto* request = std::get_if<service::MakePlan>(&errand.message);
      if (request != nullptr) {
        leader_.Handle(service::PlanMade{.token = request->token, .plan = support::Made(*request)});
      }
    }
  }

  service::JobDirectory directory_;
  service::Leader leader_{{.program = "headraced 0.1.0",
                           .node_name = "a",
                           .lanes_count = 1,
                           .block_bytes = 4096,
                           .random_key = [this] { return ++keys_; }},
                          directory_};
  std::shared_ptr<const service::Layout> layout_ = support::PackedLayout({10, 20, 30});
  std::uint64_t keys_ = 0;
  TimeNs now_ = 0;
  std::uint64_t hash_ = 0;
  std::uint32_t version_ = 0;
  std::uint64_t plan_hash_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  Script script(bytes, size);
  if (script.Read<std::uint8_t>() % 2 == 0) {
    fuzz::Play<FollowerTrial>(script);
  } else {
    fuzz::Play<LeaderTrial>(script);
  }
  return 0;
}
