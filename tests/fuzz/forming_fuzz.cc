// Whole conversations between services, not single messages: a leader that says what it likes to a
// node with a rank, on whose lanes and dispatch it acts; and nodes that say what they like to a
// leader. The bytes are a script of steps, honest or spoiled in one field, in any order and number.
// Values go straight to the rules, without the wire (peer_fuzz has that), so they may be any.
//
// Whatever is said, nothing ends but jobs: what a node has formed it can also end, and what a
// leader sends out a node would believe.
#include <bit>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ipc/base/check.h"
#include "service/cluster/follower.h"
#include "service/cluster/leader.h"
#include "service/plan/canonical.h"
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

void Spoil(service::OpenJob& open, Script& script) {
  service::Agreement& agreement = open.agreement;
  const auto field = script.Read<std::uint8_t>();
  const auto value = script.Read<std::uint64_t>();
  const auto small = static_cast<std::uint32_t>(value);
  service::AgreedNode& node = agreement.nodes[(field >> 4U) % agreement.nodes.size()];
  switch (field % 16) {
    case 0:
      open.self = small;
      break;
    case 1:
      agreement.world_size = small;
      break;
    case 2:
      agreement.epoch = small;
      break;
    case 3:
      agreement.key = value;
      break;
    case 4:
      agreement.plan_version = small;
      break;
    case 5:
      agreement.block_bytes = value;
      break;
    case 6:
      agreement.algorithm = static_cast<transport::Algorithm>(small % 256);
      break;
    case 7:
      agreement.servers_count = small;
      break;
    case 8:
      node.name = std::string(small % 3, 'a');
      break;
    case 9:
      node.ranks.push_back(small);
      break;
    case 10:
      node.ranks = {small % 4};
      break;
    case 11:
      node.ranks.clear();
      break;
    case 12:
      node.addresses.resize(small % 3);
      break;
    case 13:
      agreement.nodes.insert(agreement.nodes.end(), small % 70, node);
      break;
    case 14:
      agreement.nodes.pop_back();
      break;
    default:
      std::swap(agreement.nodes.front(), agreement.nodes.back());
  }
}

// A node with rank 0 and a leader that lies to it; the node with rank 1 does as the first is told.
class FollowerTrial {
 public:
  static constexpr std::size_t kStepsMax = 400;

  FollowerTrial() {
    service::SessionIdentity identity;
    identity.job = kJob.id;
    identity.job_name = kJob.name;
    identity.world_size = kJob.world_size;
    identity.rendezvous = kLeader;
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      clients_[rank] = &cluster_.node(rank).Attach(kJob, rank);
      support::HandIn(cluster_.node(rank), *clients_[rank], layout_);
    }
    follower_.OnRankAttached(identity);
    follower_.OnLayoutSet(kJob.id, 0, layout_, {});
    follower_.OnLeaderUp(kLeader);
    Route();
  }

  void Step(Script& script) {
    const auto action = script.Read<std::uint8_t>();
    const bool spoiled = action >= 0x80;
    switch (action % 12) {
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
    for (int turn = 0; turn < 3; ++turn) {
      Route();
      cluster_.Advance(kSecond);
    }
    HR_CHECK(follower_.jobs_count() <= 1, follower_.jobs_count());
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
    if (spoiled) Spoil(open, script);
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
    service::Steering steering{
        .kind = static_cast<SteeringKind>(1 + script.Read<std::uint8_t>() % 9),
        .value = script.Read<std::uint64_t>(),
        .uid = 0,
        .node = "b"};
    // The wire lets nothing else through.
    if (service::CheckNodeSteering(static_cast<std::uint8_t>(steering.kind), steering.value)) {
      Deliver(service::AnnounceSteering{.job = 1, .steering = steering});
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
  void Deliver(const service::PeerMessage& message) {
    follower_.Handle(kLeader, message, cluster_.now());
  }

  void Route() {
    for (int turn = 0; turn < 8; ++turn) {
      for (const service::FollowerAction& action : follower_.DrainActions()) {
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

  support::HandDrivenCluster cluster_{{.nodes_count = 2}};
  std::shared_ptr<const service::Layout> layout_ = support::PackedLayout({10, 20, 30});
  support::ClientEnd* clients_[2] = {};
  service::JobDirectory directory_;
  service::Follower follower_{{.node_name = "a", .lanes = {1}}, directory_};
  service::Agreement agreement_;
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
    switch (action % 16) {
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
        OnNodeUp(node);
    }
    Route();
  }
  void Finish() {
    for (const service::NodeId node : std::initializer_list<service::NodeId>{1, 2})
      leader_.OnNodeDown(node, Code::kPeerLost, "gone");
    HR_CHECK(leader_.jobs_count() == 0, leader_.jobs_count());
    HR_CHECK(leader_.nodes_count() == 0, leader_.nodes_count());
  }

 private:
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
