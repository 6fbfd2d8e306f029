#include "tests/sim/elastic_cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace headrace::sim {
namespace {

constexpr std::uint32_t kGraceMs = 3000;
// An iteration of the slowest network takes longer than a third of it: plans of some hundred blocks
// of a few bytes, each of which waits for the one before.
constexpr std::uint32_t kCutTimeoutMs = 60'000;
// After a fault every rank that has met the others has its end.
constexpr TimeNs kEndsWithin = kElasticDetection + kSecond;
// A question's answer may be lost with its connection, and be given again.
constexpr TimeNs kNoticedWithin = 2 * kElasticDetection + 3 * kSecond;
constexpr std::uint32_t kNodesMax = 4;

ElasticShape AnyShape(Dice& dice, const std::set<ElasticFault>& faults) {
  ElasticShape shape;
  shape.nodes = static_cast<std::uint32_t>(dice.Between(1, kNodesMax));
  shape.faults = {ElasticFault(dice.Below(kElasticFaultsCount))};
  const std::uint64_t more = dice.Chance(50) ? 0 : dice.Between(1, kElasticFaultsCount);
  for (std::uint64_t i = 0; i < more; ++i)
    shape.faults.insert(ElasticFault(dice.Below(kElasticFaultsCount)));
  if (!faults.empty()) shape.faults = faults;
  if (shape.faults.contains(ElasticFault::kSpare)) shape.faults.insert(ElasticFault::kKill);
  const auto parts = {ElasticFault::kService, ElasticFault::kBreak, ElasticFault::kCut};
  const bool may_part =
      std::ranges::any_of(parts, [&](ElasticFault each) { return shape.faults.contains(each); });
  const bool loses_nodes = shape.faults.contains(ElasticFault::kMachine);
  if (may_part || loses_nodes) shape.nodes = std::max(shape.nodes, 2U);
  const bool comes = shape.faults.contains(ElasticFault::kJoin) ||
                     shape.faults.contains(ElasticFault::kSpare) ||
                     shape.faults.contains(ElasticFault::kEvict);
  shape.applicants = comes ? static_cast<std::uint32_t>(dice.Between(1, 3)) : 0;
  shape.world_size = static_cast<std::uint32_t>(dice.Between(2, 6));
  if (may_part) shape.world_size += 2;  // so that a majority may be left
  shape.is_majority = may_part;
  shape.min_world = may_part ? (shape.world_size + shape.applicants) / 2 + 1
                             : static_cast<std::uint32_t>(dice.Between(1, 2));
  return shape;
}

}  // namespace

support::ClusterSpec ElasticCluster::AnyCluster() {
  transport::SimulatedNetworkOptions network{.seed = dice.Below(UINT64_MAX)};
  network.latency_ns =
      static_cast<TimeNs>(dice.Between(1'000, dice.Chance(60) ? 200'000 : 4'000'000));
  network.jitter_ns = static_cast<TimeNs>(dice.Chance(50) ? dice.Below(500'000) : 0);
  network.ns_per_byte = static_cast<double>(dice.Below(1000));
  network.eager_size = dice.Chance(50) ? 8192 : dice.Below(512);
  network.detection_ns = static_cast<TimeNs>(dice.Between(1, kElasticDetection));
  const bool stand_in = shape.faults.contains(ElasticFault::kRail);
  // Rails that stand in carry no larger ones, and notices are such.
  if (stand_in) network.eager_size = transport::kNoticeBytesMax + 1;
  transport::LoopbackOptions loopback;
  loopback.transfers_max = static_cast<std::uint32_t>(dice.Between(1, 8));
  loopback.ns_per_byte = static_cast<double>(dice.Below(20));
  loopback.seed = dice.Below(UINT64_MAX);
  return {.nodes_count = shape.nodes,
          .network = network,
          .make = support::Loopback(loopback),
          .credit_bytes = std::uint64_t{1} << dice.Between(6, 20),
          .exchange = {.name = "net0", .piece_size = std::size_t{4096} << dice.Below(2)},
          .rails_count = stand_in || dice.Chance(20) ? 2U + dice.Chance(50) : 1U,
          .rails_stand_in = stand_in};
}

ElasticBooks::Rules ElasticCluster::BookRules() {
  return {.seed = seed,
          .values = dice.Chance(50) ? Values::kRough : Values::kExact,
          .world_size = shape.world_size,
          .min_world = shape.min_world,
          .is_majority = shape.is_majority,
          .noticed_within_ns = kNoticedWithin};
}

ElasticCluster::ElasticCluster(const ElasticOptions& options)
    : seed(options.seed),
      dice(options.seed * 1'000'003 + 17),
      shape(AnyShape(dice, options.faults)),
      cluster(AnyCluster()),
      timeline(cluster.now()),
      lines(timeline, dice, kElasticDetection),
      books(BookRules(), AnyModel(dice)),
      nodes(shape.nodes),
      back_ns(shape.nodes, kNever),
      world{.dice = dice,
            .cluster = cluster,
            .nodes = nodes,
            .books = books,
            .checker = checker,
            .job = "train",
            .rules = {.min_world = shape.min_world, .grace_ms = kGraceMs},
            .slow_bound = {},
            .votes = options.votes,
            .listens = options.votes && options.seed % 2 == 0} {
  if (shape.faults.contains(ElasticFault::kStill)) {
    world.slow_bound = {.seconds = static_cast<std::uint32_t>(dice.Between(2, 4)),
                        .least_world = shape.min_world};
  }
  // What is lost on links that were made during a cut is found by its time alone.
  if (shape.faults.contains(ElasticFault::kCut)) world.timeout_ms = kCutTimeoutMs;
  world.others_have = [this](const ElasticSession& session, std::uint64_t iteration) {
    return OthersHave(session, iteration);
  };
  world.may_go_on = [this](std::uint32_t process) {
    return !processes[process]->IsOver() && !processes[process]->is_harmed();
  };
  world.may_hand_over = [this](std::uint32_t process) {
    return world.may_go_on(process) && !processes[process]->training().is_newcomer();
  };
  world.disturb = [this](const ElasticSession& session, bool orderly) {
    Disturb(session, orderly);
  };
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    wires_.push_back(NameOf(node));
    nodes[node].algorithm = transport::Algorithm(dice.Below(5));
    AddService(node);
  }
  const bool on_one_node = shape.nodes == 1 && dice.Chance(60);
  const std::string meets = on_one_node ? "" : NameOf(dice.Below(shape.nodes)) + ":7733";
  service::Membership all;
  for (std::uint32_t i = 0; i < shape.world_size; ++i) all.members.push_back(i);
  for (std::uint32_t i = 0; i < shape.world_size; ++i) {
    AddProcess({.node = dice.Below(shape.nodes), .membership = all, .rendezvous = meets});
  }
}

ElasticProcess& ElasticCluster::AddProcess(ElasticProcess::Start start) {
  start.index = static_cast<std::uint32_t>(processes.size());
  processes.push_back(std::make_unique<ElasticProcess>(world, std::move(start)));
  return *processes.back();
}

void ElasticCluster::AddService(std::size_t node) {
  ElasticNode& own = nodes[node];
  const SimulatedService::Options options{.name = NameOf(node),
                                          .wire_addresses = cluster.addresses(node),
                                          .instance = ++instances_,
                                          .block_bytes = std::uint64_t{64} << dice.Below(9),
                                          .algorithm = own.algorithm,
                                          .can_lead_next = true};
  own.service = std::make_unique<SimulatedService>(
      options, cluster.node(node), SimulatedService::World{timeline, lines, agreements, dice});
  own.ranks = service::RankTable();
  own.attached = 0;
  own.rpc_read = 0;
  lines.Add(*own.service);
  own.service->Start();
}

void ElasticCluster::RestartNode(std::size_t node) {
  back_ns[node] = kNever;
  if (nodes[node].service) return;
  Trace(fmt::format("node {} begins again", NameOf(node)));
  wires_[node] += "'";
  cluster.Replace(node, wires_[node]);
  machines_gone.erase(node);
  AddService(node);
}

void ElasticCluster::Trace(std::string what) {
  trace.push_back(fmt::format("{:.6f} s: {}", static_cast<double>(cluster.now()) / kSecond, what));
}

void ElasticCluster::Advance(TimeNs time_ns) {
  const TimeNs end = cluster.now() + time_ns;
  for (TimeNs now = cluster.now(); now <= end;) {
    timeline.AdvanceTo(now);
    cluster.StepTo(now);
    for (const ElasticNode& node : nodes) {
      if (node.service) node.service->NoticeMessages();
    }
    if (now == end) return;
    const TimeNs next = std::min(cluster.NextDue(), timeline.NextDue());
    now = std::min(std::max(next, now + 1), end);
  }
}

void ElasticCluster::ReadServices() {
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    ElasticNode& own = nodes[node];
    if (!own.service) continue;
    for (const service::JobFailed& failed : own.service->DrainFailures()) {
      own.ranks.FailJob(failed.job, failed.cause);
    }
    const std::vector<JobId> calls = own.service->DrainCalls();
    for (const auto& process : processes) {
      process->RefreshKey();
      const ElasticSession* session = process->session();
      if (session == nullptr || process->node() != node) continue;
      if (std::ranges::find(calls, session->who().identity.job) != calls.end()) {
        process->OnCalled();
      }
    }
    ReadRpc(node);
  }
}

void ElasticCluster::ReadRpc(std::size_t node) {
  const auto& messages = cluster.node(node).rpc().messages;
  for (; nodes[node].rpc_read < messages.size(); ++nodes[node].rpc_read) {
    const auto* broken = std::get_if<service::SessionBroken>(&messages[nodes[node].rpc_read]);
    if (broken == nullptr) continue;
    for (const auto& process : processes) {
      ElasticSession* const session = process->session();
      if (session == nullptr || process->node() != node || session->closed) continue;
      if (session->who().identity.id != broken->session) continue;
      Trace(fmt::format("process {} {}", process->index(), broken->error.text()));
      evicted += broken->evicted ? 1 : 0;
      const Error error = broken->error;
      process->OnSessionBroken(error, broken->evicted);
      break;
    }
  }
}

// All ranks of its epoch that have met have their ends soon. Those that attach later find it as it
// is then (EpochChecker::Add).
void ElasticCluster::Disturb(const ElasticSession& session, bool orderly) {
  const service::SessionIdentity& own = session.who().identity;
  for (ElasticSession& each : checker.sessions()) {
    const service::SessionIdentity& other = each.who().identity;
    if (other.after_epoch != own.after_epoch) continue;
    if (each.closed && &each != &session) continue;
    each.disturbed = true;
    if (orderly || each.closed || each.met_ns == kNever || session.met_ns == kNever) continue;
    each.ends_by_ns = std::min(each.ends_by_ns, cluster.now() + kEndsWithin);
  }
}

void ElasticCluster::DisturbAll() {
  for (ElasticSession& each : checker.sessions()) {
    each.disturbed = each.disturbed || !each.closed;
  }
}

std::optional<std::string> ElasticCluster::OthersHave(const ElasticSession& session,
                                                      std::uint64_t iteration) {
  for (const ElasticSession& other : checker.sessions()) {
    if (other.key != session.key) continue;
    const ElasticTraining& training = processes[other.who().process]->training();
    if (training.is_newcomer() || training.HasAll(iteration)) continue;
    if (other.HasAverages(iteration, books.tensors_count())) continue;
    return fmt::format("the barrier of iteration {} has ended, and rank {} has not all averages",
                       iteration, other.rank());
  }
  return std::nullopt;
}

std::string ElasticCluster::DescribeAll() const {
  std::string text;
  for (const auto& process : processes) text += "\n  " + process->Describe();
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    if (!nodes[node].service) text += fmt::format("\n  node {} is dead", NameOf(node));
  }
  return text;
}

}  // namespace headrace::sim
