#include "tests/sim/cluster_simulation.h"

#include <fmt/format.h>

#include <algorithm>

#include "service/cluster/forming.h"

namespace headrace::sim {
namespace {

constexpr int kStepsMax = 90;
constexpr std::uint32_t kTimeoutMs = 8000;
constexpr std::uint32_t kCalmTimeoutMs = 600'000;
// Longer than the ranks of one job wait while those of others train, in blocks of 64 bytes.
constexpr std::uint32_t kSteeringTimeoutMs = 24'000;
// A node stands still for less than half of it, and twice a seed at most while operations wait.
constexpr std::uint32_t kStandstillTimeoutMs = 40'000;
constexpr std::size_t kRanksMax = 6;
constexpr std::uint64_t kMoreIterations = 24;

}  // namespace

ClusterSimulation::ClusterSimulation(std::uint64_t seed, ClusterMood mood)
    : seed_(seed),
      mood_(mood),
      dice_(seed * kClusterMoodsCount + static_cast<std::uint64_t>(mood)),
      measures_(dice_.Chance(4)),
      cluster_(AnyCluster()),
      timeline_(cluster_.now()),
      lines_(timeline_, dice_, kDetection),
      checker_(CompletionChecker::Arithmetic::kReference) {
  const std::size_t count = cluster_.nodes_count();
  services_.resize(count);
  sessions_.resize(count);
  const std::size_t servers = count > 2 && dice_.Chance(40) ? dice_.Between(1, count - 2) : 0;
  const std::size_t with_ranks = count - servers;
  const std::size_t met_at = dice_.Below(with_ranks);
  for (std::size_t node = with_ranks; node < count; ++node) servers_[node] = met_at;
  if (mood_ == ClusterMood::kStrangers && dice_.Chance(30)) salted_ = dice_.Below(with_ranks);
  for (std::size_t node = 0; node < count; ++node) {
    wires_.push_back(NameOf(node));
    algorithms_.push_back(transport::Algorithm(dice_.Below(5)));
    AddService(node);
  }
  std::vector<std::size_t> all(with_ranks);
  for (std::size_t node = 0; node < with_ranks; ++node) all[node] = node;
  for (std::uint64_t left = dice_.Between(1, 3); left > 0; --left) {
    AddJob(fmt::format("job{}", jobs_.size() + 1), all);
  }
}

support::ClusterSpec ClusterSimulation::AnyCluster() {
  transport::SimulatedNetworkOptions network{.seed = dice_.Below(UINT64_MAX)};
  network.latency_ns = static_cast<TimeNs>(dice_.Between(1'000, 200'000));
  network.jitter_ns = static_cast<TimeNs>(dice_.Chance(50) ? dice_.Below(500'000) : 0);
  network.ns_per_byte = measures_ ? 1000 : static_cast<double>(dice_.Below(1000));
  network.eager_size = dice_.Chance(50) ? 8192 : dice_.Below(512);
  network.detection_ns = static_cast<TimeNs>(dice_.Between(1, kDetection));
  if (mood_ == ClusterMood::kStrangers) network.duplicate_share = 0.05;
  const bool stand_in = mood_ == ClusterMood::kRails;
  // Rails that stand in carry no larger ones, and notices are such.
  if (stand_in) network.eager_size = transport::kNoticeBytesMax + 1;
  transport::LoopbackOptions loopback;
  loopback.transfers_max = static_cast<std::uint32_t>(dice_.Between(1, 8));
  loopback.ns_per_byte = static_cast<double>(dice_.Below(20));
  loopback.seed = dice_.Below(UINT64_MAX);
  loopback.busy_share = dice_.Chance(30) ? 0.2 : 0;
  return {.nodes_count = static_cast<std::uint32_t>(dice_.Between(2, 5)),
          .network = network,
          .make = support::Loopback(loopback),
          .credit_bytes = std::uint64_t{1} << dice_.Between(6, 20),
          // The smallest pieces, so that a seed is quick and a large operation has several.
          .exchange = {.name = "net0", .piece_size = std::size_t{4096} << dice_.Below(2)},
          .rails_count = dice_.Chance(stand_in ? 100 : 30) ? 2U + dice_.Chance(50) : 1U,
          .rails_stand_in = stand_in};
}

void ClusterSimulation::AddService(std::size_t node) {
  SimulatedService::Options options{.name = NameOf(node),
                                    .wire_addresses = cluster_.addresses(node),
                                    .instance = ++instances_,
                                    .hash_salt = salted_ == node ? 1U : 0U,
                                    .block_bytes = std::uint64_t{64} << dice_.Below(9),
                                    .algorithm = algorithms_[node],
                                    .measures = measures_};
  if (const auto leader = servers_.find(node); leader != servers_.end()) {
    options.serves = NameOf(leader->second) + ":7733";
  }
  services_[node] = std::make_unique<SimulatedService>(
      options, cluster_.node(node), SimulatedService::World{timeline_, lines_, agreements_, dice_});
  lines_.Add(*services_[node]);
  services_[node]->Start();
}

void ClusterSimulation::AddJob(const std::string& name, const std::vector<std::size_t>& nodes) {
  Job job{.id = JobId{static_cast<std::uint32_t>(jobs_.size() + 1)},
          .name = name,
          .world_size = static_cast<std::uint32_t>(dice_.Between(2, kRanksMax))};
  if (dice_.Chance(85)) job.leader = nodes[dice_.Below(nodes.size())];
  // So that one job keeps the connections which another one needs again.
  if (mood_ == ClusterMood::kReconnect && dice_.Chance(70)) job.leader = nodes.front();
  if (job.leader && HasServersFor(*job.leader)) job.served = dice_.Chance(70);
  if (dice_.Chance(50)) job.values = Values::kRough;
  const std::size_t only = nodes[dice_.Below(nodes.size())];
  for (std::uint32_t rank = 0; rank < job.world_size; ++rank) {
    job.slots.push_back({.node = job.leader ? nodes[dice_.Below(nodes.size())] : only});
  }
  if (dice_.Chance(50)) job.model = AnyModel(dice_);
  Enroll(std::move(job));
}

void ClusterSimulation::Enroll(Job job) {
  if (job.leader) {
    NodeSums sums{.ranks = {}, .algorithm = algorithms_[*job.leader], .served = job.served};
    std::map<std::size_t, std::size_t> places;  // of nodes, by their lowest rank
    for (std::uint32_t rank = 0; rank < job.world_size; ++rank) {
      const auto place = places.try_emplace(job.slots[rank].node, places.size()).first->second;
      sums.ranks.resize(places.size());
      sums.ranks[place].push_back(rank);
    }
    checker_.AddJobOfNodes(job.id, job.world_size, std::move(sums));
  } else {
    checker_.AddJob(job.id, job.world_size);
  }
  jobs_.push_back(std::move(job));
  Job& added = jobs_.back();
  for (const RankSlot& slot : added.slots) {
    if (added.leader && salted_ == slot.node) Blame(added, "node " + NameOf(slot.node), kNever);
  }
}

void ClusterSimulation::Trace(std::string what) {
  trace_.push_back(
      fmt::format("{:.6f} s: {}", static_cast<double>(cluster_.now()) / kSecond, what));
}

std::uint32_t ClusterSimulation::Timeout() const {
  if (mood_ == ClusterMood::kStandstill) return kStandstillTimeoutMs;
  if (mood_ == ClusterMood::kSteering) return kSteeringTimeoutMs;
  return IsCalm() ? kCalmTimeoutMs : kTimeoutMs;
}

void ClusterSimulation::Advance(TimeNs time_ns) {
  const TimeNs end = cluster_.now() + time_ns;
  // What has been posted and sent since then comes first.
  for (TimeNs now = cluster_.now(); now <= end;) {
    timeline_.AdvanceTo(now);
    cluster_.StepTo(now);
    for (const auto& service : services_) {
      if (service) service->NoticeMessages();
    }
    if (now == end) return;
    const TimeNs next = std::min(cluster_.NextDue(), timeline_.NextDue());
    now = std::min(std::max(next, now + 1), end);
  }
}

std::optional<std::string> ClusterSimulation::Run() {
  for (Job& job : jobs_) {
    for (std::uint32_t rank = 0; rank < job.world_size; ++rank) {
      if (!dice_.Chance(70)) continue;
      if (auto wrong = AttachRank(job, rank)) return wrong;
    }
  }
  for (Job& job : jobs_) {
    if (!job.model || !dice_.Chance(40)) continue;
    if (auto wrong = WarmUp(job)) return wrong;
  }
  for (std::uint64_t left = dice_.Between(20, kStepsMax); left > 0; --left) {
    const bool intruded = mood_ == ClusterMood::kStrangers || mood_ == ClusterMood::kReconnect;
    if (intruded && dice_.Chance(6)) {
      if (auto wrong = Intrude()) return wrong;
    }
    if (auto wrong = Act()) return wrong;
    if (auto wrong = Check()) return wrong;
  }
  return Finish();
}

std::optional<std::string> ClusterSimulation::Act() {
  if (dice_.Chance(10)) {
    Job& job = jobs_[dice_.Below(jobs_.size())];
    // Who was refused is found by those who miss it.
    if (!checker_.IsBlamed(job.id)) {
      return AttachRank(job, static_cast<std::uint32_t>(dice_.Below(job.world_size)));
    }
    return std::nullopt;
  }
  if (dice_.Chance(30)) {
    PostSome();
  } else if (dice_.Chance(25)) {
    return TrainSome();
  } else if (dice_.Chance(3)) {
    RequestPolicy();
  } else if (dice_.Chance(mood_ == ClusterMood::kSteering ? 12 : 1)) {
    SteerSomething();
  } else if (mood_ == ClusterMood::kStandstill && dice_.Chance(4)) {
    return StandStill();
  } else if (mood_ == ClusterMood::kReconnect && dice_.Chance(10)) {
    BeginReconnects(50);
  } else if (mood_ == ClusterMood::kControl && dice_.Chance(16)) {
    HarmControl();
  } else if (dice_.Chance(4)) {
    ActBadly();
  } else {
    const std::uint64_t how_long = dice_.Below(100);
    Advance(static_cast<TimeNs>(how_long < 70   ? dice_.Below(300'000)
                                : how_long < 95 ? dice_.Below(10'000'000)
                                                : dice_.Below(500'000'000)));
  }
  return std::nullopt;
}

void ClusterSimulation::ActBadly() {
  if (mood_ == ClusterMood::kLoss) LoseRank();
  if (mood_ == ClusterMood::kRails) CutOrMendRail();
  if (mood_ == ClusterMood::kRails && dice_.Chance(30)) HarmControl();
  if (mood_ == ClusterMood::kNodes || mood_ == ClusterMood::kReconnect) HarmNodes();
}

std::optional<std::string> ClusterSimulation::AttachRank(Job& job, std::uint32_t rank) {
  RankSlot& slot = job.slots[rank];
  if (slot.rank || !Runs(slot.node) || !LeavesLifeBefore(job, rank)) return std::nullopt;
  SimulatedService& service = *services_[slot.node];
  support::HandDrivenNode& node = cluster_.node(slot.node);
  const auto [number, is_new] = job.numbers.try_emplace(slot.node);
  if (is_new) number->second = service.NextJob();
  support::JobSpec spec{.id = number->second,
                        .name = job.name,
                        .world_size = job.world_size,
                        .timeout_ms = Timeout(),
                        .rendezvous = job.leader ? NameOf(*job.leader) + ":7733" : ""};
  if (const Status status = service.CheckAttach(spec, rank); !status) {
    return fmt::format("{} rank {} may not attach: {}", job.name, rank, status.error().text());
  }
  slot.rank = std::make_unique<Rank>(node, checker_, spec, rank, seed_, job.id);
  slot.rank->values = job.values;
  ++sessions_[slot.node];
  // As its service tells it.
  for (const RankSlot& other : job.slots) {
    if (other.node == slot.node && other.rank)
      slot.epoch = std::max(slot.epoch, other.after_epoch + 1);
  }
  slot.identity = {
      .id = slot.rank->client().id(),
      .job = spec.id,
      .job_name = spec.name,
      .after_epoch = slot.after_epoch,
      .rank = rank,
      .member = job.members.empty() ? rank : job.members[rank],
      .members_hash = service::HashOfMembers(job.members),
      .world_size = spec.world_size,
      .pid = static_cast<std::int32_t>(1000 + rank),
      .timeout_ms = spec.timeout_ms,
      .rendezvous = spec.rendezvous,
      .can_reconnect = mood_ == ClusterMood::kSlow,
      .architecture = job.served ? std::optional(Architecture::kParameterServer) : std::nullopt,
      .attached_ns = cluster_.now()};
  service.OnRankAttached(slot.identity);
  Trace(fmt::format("{} attaches on node {}", slot.rank->Name(), NameOf(slot.node)));
  if (!job.model) return std::nullopt;
  slot.training = std::make_unique<Training>(node, checker_, *slot.rank, dice_.Chance(10));
  return dice_.Chance(60) ? HandIn(job, slot) : std::nullopt;
}

void ClusterSimulation::PostSome() {
  Job& job = jobs_[dice_.Below(jobs_.size())];
  RankSlot& slot = job.slots[dice_.Below(job.slots.size())];
  // What has befallen a job shall end what waits, not what comes later.
  if (!slot.IsLive() || job.deadline_ns != kNever) return;
  if (dice_.Chance(35)) return PostMessages(job, slot);
  for (std::uint64_t left = dice_.Between(1, 4); left > 0; --left) PostOne(job, slot);
}

void ClusterSimulation::PostOne(Job& job, RankSlot& slot) {
  Rank& rank = *slot.rank;
  auto manner = Rank::Manner::kHonest;
  if (mood_ == ClusterMood::kQuarrel) {
    // One rank only, so that no two disagree with the others in the same way.
    if (rank.client().rank() == 0 && dice_.Chance(3)) manner = Rank::Manner::kDisagrees;
    if (dice_.Chance(1)) manner = Rank::Manner::kBadRecord;
  }
  if (!rank.Post(manner, Timeout(), dice_)) return;
  if (manner == Rank::Manner::kHonest) return;
  Trace(fmt::format("{} posts operation {} {}", rank.Name(), rank.posted(),
                    manner == Rank::Manner::kDisagrees ? "and disagrees" : "with a bad record"));
  Blame(job, fmt::format("rank {}", rank.client().rank()), kNever);
  // Between nodes the one that finds out names the other. Two that take each other for the root of
  // a broadcast both wait, and have a timeout.
  Blame(job, "lane net", kNever);
  for (const RankSlot& other : job.slots) Blame(job, "node " + NameOf(other.node), kNever);
}

bool ClusterSimulation::HasRanks(const Job& job, std::size_t node) const {
  return std::ranges::any_of(job.slots, [node](const RankSlot& slot) { return slot.node == node; });
}

bool ClusterSimulation::TakesPart(const Job& job, std::size_t node) const {
  return job.leader && (job.leader == node || HasRanks(job, node) || Serves(job, node));
}

bool ClusterSimulation::Serves(const Job& job, std::size_t node) const {
  const auto server = servers_.find(node);
  if (!job.served || server == servers_.end() || server->second != *job.leader) return false;
  // It may have come too late to be among them.
  for (const auto& [other, number] : job.numbers) {
    const auto links = services_[other] ? services_[other]->LinksOf(number) : std::nullopt;
    if (!links) continue;
    return std::ranges::any_of(links->members, [this, node](const transport::GroupMember& each) {
      return each.name == NameOf(node);
    });
  }
  return true;
}

bool ClusterSimulation::HasServersFor(std::size_t leader) const {
  std::size_t count = 0;
  for (const auto& [node, meets_at] : servers_) {
    if (meets_at != leader) return false;
    if (!services_[node] || harmed_.contains(node)) return false;
    ++count;
  }
  return count != 0;
}

bool ClusterSimulation::HasFormed(const Job& job) const {
  return std::ranges::all_of(job.slots, [this, &job](const RankSlot& slot) {
    const auto number = job.numbers.find(slot.node);
    return number != job.numbers.end() && services_[slot.node] &&
           services_[slot.node]->HasFormed(number->second);
  });
}

bool ClusterSimulation::HasBegun(const Job& job) const {
  if (job.leader) return HasFormed(job);
  return std::ranges::all_of(job.slots, [](const RankSlot& slot) { return !!slot.rank; });
}

void ClusterSimulation::OnAnswered(Job& job) {
  if (job.deadline_ns == kNever || (HasBegun(job) && !job.ends_by_timeouts)) return;
  const TimeNs timeout_ns = TimeNs{Timeout()} * kMillisecond;
  job.deadline_ns = std::max(job.deadline_ns, cluster_.now() + timeout_ns + kSecond);
}

void ClusterSimulation::Blame(Job& job, const std::string& name, TimeNs within_ns) {
  // Before it has begun, a job waits for whoever is missing, and says that.
  const bool formed = HasBegun(job);
  checker_.Blame(job.id, formed || mood_ == ClusterMood::kStrangers ? name : "");
  // A node that has heard of the failure closes its links, which another may notice before it hears
  // of the failure itself.
  checker_.Blame(job.id, "ended early: ");
  if (within_ns == kNever) return;
  // A service that stands still counts the time of what was posted from when it goes on, and gives
  // back what was lost since its last turn, which is up to a second longer.
  const TimeNs still_ns = mood_ == ClusterMood::kStandstill ? kStandstillMax + kSecond : 0;
  if (!formed) within_ns = std::max(within_ns, Timeout() * kMillisecond + kDetection + still_ns);
  job.ends_by_timeouts = job.ends_by_timeouts || !formed;
  job.deadline_ns = std::min(job.deadline_ns, cluster_.now() + within_ns + kSecond);
}

std::optional<std::string> ClusterSimulation::Check() {
  ShowPlans();
  if (agreements_.wrong()) return agreements_.wrong();
  if (auto wrong = CheckEpochs()) return wrong;
  std::optional<std::string> wrong;
  ForEachLive([&](Job& job, RankSlot& slot) {
    if (!wrong) wrong = slot.rank->CheckEnded();
    if (!wrong && slot.training) wrong = slot.training->CheckEnded();
    if (!wrong) wrong = CheckPaused(job);
    if (wrong || cluster_.now() <= job.deadline_ns || slot.open() == 0) return;
    // What befell it while it stood still, it hears when it goes on.
    if (stands_still_ == slot.node || cluster_.now() <= went_on_ns_ + kSecond) return;
    wrong = fmt::format(
        "{}: {} operations and gradients are open {:.3f} s after they should have "
        "ended",
        slot.rank->Name(), slot.open(),
        static_cast<double>(cluster_.now() - job.deadline_ns) / kSecond);
  });
  for (std::size_t node = 0; node < services_.size() && !wrong; ++node) {
    if (cluster_.node(node).discarded_in_use() != 0) {
      wrong = fmt::format("node {}: memory was discarded while a lane used it", NameOf(node));
    }
  }
  for (const Job& job : jobs_) {
    const std::string error = checker_.FirstError(job.id);
    if (wrong || checker_.IsBlamed(job.id) || error.empty()) continue;
    wrong = fmt::format("job {}: nothing was wrong with it, but: {}", job.id.value, error);
  }
  return wrong;
}

template <typename Visit>
void ClusterSimulation::ForEachLive(Visit visit) {
  for (Job& job : jobs_) {
    for (RankSlot& slot : job.slots) {
      if (slot.IsLive()) visit(job, slot);
    }
  }
}

std::optional<std::string> ClusterSimulation::Finish() {
  if (mood_ == ClusterMood::kSteering) ResumeAll();
  if (auto wrong = GoOn()) return wrong;
  if (auto wrong = AnswerMessages()) return wrong;
  if (mood_ == ClusterMood::kSteering) {
    if (auto wrong = PauseForLong()) return wrong;
  }
  // What is over by itself is over by then; what is not has a timeout.
  if (auto wrong =
          AdvanceAndCheck((IsCalm() ? 0 : Timeout()) * kMillisecond + kDetection + 2 * kSecond,
                          100 * kMillisecond)) {
    return wrong;
  }
  if (auto wrong = CheckAllEnded()) return wrong;
  if (IsCalm()) {
    if (auto wrong = messages_.Lost()) return wrong;
    if (messages_.failed() != 0) return "nothing was wrong, and a send or receive failed";
  }
  if (auto wrong = mood_ == ClusterMood::kReconnect ? ReconnectAll()
                   : mood_ == ClusterMood::kSlow    ? EvictSlow()
                                                    : BeginAgain()) {
    return wrong;
  }
  for (Job& job : jobs_) {
    for (RankSlot& slot : job.slots) {
      if (!slot.IsLive()) continue;
      Blame(job, "", kNever);
      CloseRank(slot, dice_.Chance(50), mood_ == ClusterMood::kSlow);
    }
  }
  const TimeNs told_ns = mood_ == ClusterMood::kSlow ? service::kLostMembersToldNs : 0;
  Advance(2 * kDetection + kSecond + told_ns);
  return CheckAllReturned();
}

// All who are missing attach, all who are behind catch up.
std::optional<std::string> ClusterSimulation::GoOn() {
  for (Job& job : jobs_) {
    const bool blamed = checker_.IsBlamed(job.id) && mood_ != ClusterMood::kStrangers;
    // Twice: no rank comes back before all of its node have given up their old sessions.
    for (std::uint32_t i = 0; i < 2 * job.world_size && !blamed; ++i) {
      if (auto wrong = AttachRank(job, i % job.world_size)) return wrong;
    }
    const std::uint64_t most = MostPosted(job);
    if (auto wrong = CatchUp(job, most)) return wrong;
    const std::uint64_t more = checker_.IsBlamed(job.id) ? 0 : dice_.Below(kMoreIterations);
    if (auto wrong = Train(job, IterationsBegun(job) + more)) return wrong;
  }
  return std::nullopt;
}

std::optional<std::string> ClusterSimulation::CatchUp(Job& job, std::uint64_t most) {
  // There is room again when operations end, which needs the ranks that are behind as well.
  bool behind = true;
  for (int patience = 0; behind && patience < 2000; ++patience) {
    behind = false;
    for (RankSlot& slot : job.slots) {
      if (!slot.IsLive() || job.deadline_ns != kNever) continue;
      bool room = true;
      while (room && slot.rank->posted() < most) {
        room = slot.rank->Post(Rank::Manner::kHonest, Timeout(), dice_);
      }
      behind |= !room;
    }
    if (behind) Advance(kMillisecond);
    if (auto wrong = Check()) return wrong;
  }
  // Who waits for someone that is gone has a timeout.
  if (!behind || checker_.IsBlamed(job.id)) return std::nullopt;
  return fmt::format("job {}: a rank never gets room in its ring", job.id.value);
}

std::optional<std::string> ClusterSimulation::AdvanceAndCheck(TimeNs time_ns, TimeNs step_ns) {
  for (TimeNs past = 0; past < time_ns; past += step_ns) {
    Advance(step_ns);
    if (auto wrong = Check()) return wrong;
  }
  return std::nullopt;
}

// What has failed can be begun again under the same name, on the nodes that are well.
std::optional<std::string> ClusterSimulation::BeginAgain() {
  std::vector<std::size_t> well;
  for (std::size_t node = 0; node < services_.size(); ++node) {
    if (servers_.contains(node)) continue;
    if (services_[node] && !harmed_.contains(node) && salted_ != node) well.push_back(node);
  }
  if (well.empty()) return std::nullopt;
  const std::size_t count = jobs_.size();
  for (std::size_t i = 0; i < count; ++i) {
    if (!checker_.IsBlamed(jobs_[i].id) || dice_.Chance(50)) continue;
    for (RankSlot& slot : jobs_[i].slots) {
      if (slot.IsLive()) CloseRank(slot, dice_.Chance(50));
    }
    Advance(100 * kMillisecond);
    const std::string name = jobs_[i].name;
    AddJob(name, well);
    Trace(fmt::format("{} begins again as job {}", name, jobs_.back().id.value));
    const std::uint64_t operations = dice_.Between(1, 6);
    if (const auto& old = jobs_[i].model; old && dice_.Chance(50)) jobs_.back().model = old;
    for (std::uint32_t rank = 0; rank < jobs_.back().world_size; ++rank) {
      if (auto wrong = AttachRank(jobs_.back(), rank)) return wrong;
      for (std::uint64_t k = 0; k < operations; ++k) {
        jobs_.back().slots[rank].rank->Post(Rank::Manner::kHonest, kCalmTimeoutMs, dice_);
      }
    }
  }
  if (jobs_.size() == count) return std::nullopt;
  for (std::size_t i = count; i < jobs_.size(); ++i) {
    if (auto wrong = Train(jobs_[i], dice_.Below(kMoreIterations))) return wrong;
  }
  // A rank that comes after the job was lost waits alone, for as long as a job may gather.
  const bool blamed = std::any_of(jobs_.begin() + static_cast<std::ptrdiff_t>(count), jobs_.end(),
                                  [this](const Job& job) { return checker_.IsBlamed(job.id); });
  const TimeNs gathers_ns = blamed ? service::kFormingDefault : 0;
  if (auto wrong = AdvanceAndCheck(2 * kDetection + 2 * kSecond + gathers_ns, 200 * kMillisecond)) {
    return wrong;
  }
  return CheckAllEnded();
}

std::optional<std::string> ClusterSimulation::CheckAllEnded() {
  std::optional<std::string> wrong;
  ForEachLive([&](Job&, RankSlot& slot) {
    if (wrong) return;
    if (slot.open() != 0) {
      wrong = fmt::format("{}: {} operations and gradients never ended", slot.rank->Name(),
                          slot.open());
    } else {
      wrong = slot.rank->CheckAtEnd();
      if (!wrong && slot.training) wrong = slot.training->CheckAtEnd();
    }
  });
  for (std::size_t node = 0; node < services_.size() && !wrong; ++node) {
    if (!services_[node]) continue;
    for (std::size_t lane = 0; lane <= cluster_.rails_count(); ++lane) {
      const ipc::LaneRow row = cluster_.node(node).LaneRow(lane);
      if (row.in_flight_bytes == 0 && row.in_flight_stages == 0 && row.queued_stages == 0) continue;
      wrong = fmt::format("node {} lane {} still shows {} bytes, {} stages in flight, {} queued",
                          NameOf(node), lane, row.in_flight_bytes, row.in_flight_stages,
                          row.queued_stages);
    }
  }
  return wrong;
}

std::optional<std::string> ClusterSimulation::CheckAllReturned() {
  for (std::size_t node = 0; node < services_.size(); ++node) {
    if (!services_[node]) continue;
    if (auto wrong = CheckReturned(node)) {
      return fmt::format("node {}: {}", NameOf(node), *wrong);
    }
  }
  if (cluster_.network().open_count() != 0) {
    return fmt::format("{} messages are still open on wires", cluster_.network().open_count());
  }
  if (cluster_.network().staging_count() != 0) {
    return fmt::format("{} pieces of staging never came back", cluster_.network().staging_count());
  }
  if (!killed_ && servers_.empty() && lines_.count() != 0)
    return "services stay connected without a job";
  return std::nullopt;
}

std::optional<std::string> ClusterSimulation::CheckReturned(std::size_t node) {
  support::HandDrivenNode& driven = cluster_.node(node);
  const SimulatedService& service = *services_[node];
  if (driven.RowsInUse() != 0) {
    return fmt::format("{} board rows never came back", driven.RowsInUse());
  }
  if (!driven.doorbells().watched.empty()) return "a doorbell is still listened to";
  if (driven.discarded_in_use() != 0) return "memory was discarded while a lane used it";
  if (!driven.transport().open().empty()) return "its own lane still moves something";
  if (driven.watch_tap().discarded.size() != sessions_[node]) {
    return fmt::format("{} of {} sessions were discarded", driven.watch_tap().discarded.size(),
                       sessions_[node]);
  }
  if (service.leader().jobs_count() != 0) return "it still leads a job";
  if (servers_.empty() && service.leader().nodes_count() != 0) return "it still knows nodes";
  if (service.follower().jobs_count() != 0) return "it still takes part in a job";
  return std::nullopt;
}

}  // namespace headrace::sim
