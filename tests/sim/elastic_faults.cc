#include "tests/sim/elastic_faults.h"

#include <fmt/format.h>

#include <algorithm>

namespace headrace::sim {
namespace {

// A service that begins again within the grace time costs no rank; one that does so later does.
constexpr std::uint64_t kAwayMaxMs = 5000;
// Longer than any bound on those who stand still.
constexpr std::uint64_t kStillMaxMs = 30'000;
constexpr std::uint64_t kCutMinMs = 2 * kElasticDetection / kMillisecond;
constexpr std::uint64_t kCutMaxMs = 8000;

}  // namespace

ElasticFaults::ElasticFaults(ElasticCluster& run)
    : run_(run), applicants_left_(run.shape.applicants) {
  run_.world.on_refused = [this](const ElasticProcess& process, const std::string& why) {
    return OnRefused(process, why);
  };
}

void ElasticFaults::Harm(ElasticFault fault) {
  switch (fault) {
    case ElasticFault::kKill:
      return KillSome();
    case ElasticFault::kLeave:
      return LeaveOne();
    case ElasticFault::kJoin:
      return Apply(service::MemberRole::kJoins);
    case ElasticFault::kSpare:
      return Apply(service::MemberRole::kSpare);
    case ElasticFault::kEvict:
      return EvictOne();
    case ElasticFault::kStill:
      return StandStill();
    case ElasticFault::kMachine:
    case ElasticFault::kService:
      return KillNode(AnyNode(), fault == ElasticFault::kMachine);
    case ElasticFault::kBreak:
      return BreakLine();
    case ElasticFault::kRail:
      return CutOrMendRail();
    case ElasticFault::kCut:
      return CutLink();
  }
}

ElasticProcess* ElasticFaults::AnyProcess(bool attached) {
  const std::size_t first = run_.dice.Below(run_.processes.size());
  for (std::size_t i = 0; i < run_.processes.size(); ++i) {
    ElasticProcess& process = *run_.processes[(first + i) % run_.processes.size()];
    if (!process.IsOver() && (process.IsAttached() || !attached)) return &process;
  }
  return nullptr;
}

ElasticProcess* ElasticFaults::Victim() {
  ElasticProcess* most = nullptr;
  for (const auto& each : run_.processes) {
    if (!each->IsIterating()) continue;
    const bool further =
        most == nullptr || each->training().Progress() > most->training().Progress();
    if (further) most = each.get();
  }
  return most == nullptr || run_.dice.Chance(40) ? AnyProcess(false) : most;
}

// Mostly so many are left that the job goes on.
bool ElasticFaults::MayLose(std::size_t count) {
  const auto left = static_cast<std::size_t>(std::ranges::count_if(
      run_.processes, [](const auto& each) { return !each->IsOver() && each->IsAttached(); }));
  return left >= run_.shape.min_world + count || run_.dice.Chance(20);
}

// One, several at once, or all of a node.
void ElasticFaults::KillSome() {
  ElasticProcess* const one = Victim();
  if (one == nullptr || !MayLose(1)) return;
  const bool whole_node = run_.dice.Chance(15);
  const std::uint64_t percent = run_.dice.Chance(30) ? 40 : 0;
  for (const auto& process : run_.processes) {
    const bool dies = process.get() == one || (whole_node && process->node() == one->node()) ||
                      run_.dice.Chance(static_cast<double>(percent));
    if (!dies || process->IsDead() || (process.get() != one && !MayLose(1))) continue;
    run_.Trace(fmt::format("process {} is killed", process->index()));
    process->End(false);
    run_.books.OnGone(process->index(), run_.cluster.now());
  }
}

void ElasticFaults::LeaveOne() {
  ElasticProcess* const process = AnyProcess(true);
  if (process == nullptr || !MayLose(1)) return;
  run_.Trace(fmt::format("process {} leaves", process->index()));
  process->End(true);
  run_.books.OnGone(process->index(), run_.cluster.now());
}

void ElasticFaults::Apply(service::MemberRole role) {
  if (applicants_left_ == 0) return;
  // Where the job has ranks, whoever leads it.
  ElasticProcess* const known = AnyProcess(true);
  if (known == nullptr) return;
  const std::string meets = known->session()->who().identity.rendezvous;
  const std::size_t node = meets.empty() ? known->node() : run_.dice.Below(run_.nodes.size());
  if (!run_.nodes[node].service) return;
  --applicants_left_;
  const ElasticProcess& process =
      run_.AddProcess({.node = node, .role = role, .rendezvous = meets});
  run_.Trace(fmt::format("process {} comes to node {} as a {}", process.index(), run_.NameOf(node),
                         role == service::MemberRole::kSpare ? "spare" : "new rank"));
}

void ElasticFaults::EvictOne() {
  ElasticProcess* const asked = AnyProcess(true);
  // A process may still be attached to a service that has just died.
  if (asked == nullptr || !run_.nodes[asked->node()].service) return;
  const std::uint64_t rank = run_.dice.Below(asked->session()->world_size());
  run_.Trace(fmt::format("somebody evicts rank {}", rank));
  run_.DisturbAll();
  run_.nodes[asked->node()].service->Steer(
      run_.world.job, {.kind = SteeringKind::kEvict, .value = rank, .uid = kElasticUid});
}

void ElasticFaults::StandStill() {
  ElasticProcess* const process = AnyProcess(true);
  if (process == nullptr || goes_on_ns_ != kNever) return;
  run_.Trace(fmt::format("process {} stands still", process->index()));
  process->SetStill(true);
  process->Harm();
  goes_on_ns_ =
      run_.cluster.now() + static_cast<TimeNs>(run_.dice.Below(kStillMaxMs)) * kMillisecond;
}

void ElasticFaults::GoOn() {
  goes_on_ns_ = kNever;
  for (const auto& process : run_.processes) {
    if (process->stands_still()) run_.Trace(fmt::format("process {} goes on", process->index()));
    process->SetStill(false);
  }
}

// The leader's more often than others.
std::size_t ElasticFaults::AnyNode() {
  ElasticProcess* const process = run_.dice.Chance(50) ? AnyProcess(true) : nullptr;
  const std::size_t any = run_.dice.Below(run_.nodes.size());
  if (process == nullptr) {
    const ElasticProcess* const victim = run_.dice.Chance(60) ? Victim() : nullptr;
    return victim == nullptr ? any : victim->node();
  }
  const std::string& meets = process->session()->who().identity.rendezvous;
  return meets.empty() ? any : static_cast<std::size_t>(meets.front() - 'a');
}

void ElasticFaults::EndWhatIsOver() {
  for (std::size_t node = 0; node < run_.nodes.size(); ++node) {
    if (run_.cluster.now() >= run_.back_ns[node]) run_.RestartNode(node);
  }
  if (run_.cluster.now() >= goes_on_ns_) GoOn();
  if (cut_ || somebody_stands_still()) run_.DisturbAll();
  // Those who met the others since are cut off all the same.
  for (const auto& process : run_.processes) {
    if (cut_ && (process->node() == cut_->one || process->node() == cut_->other)) process->Harm();
  }
  if (cut_ && run_.cluster.now() >= cut_->until_ns) MendLink();
}

void ElasticFaults::Mend() {
  while (!run_.cut_rails.empty()) {
    const auto [one, other] = *run_.cut_rails.begin();
    run_.cut_rails.erase(run_.cut_rails.begin());
    run_.cluster.MendRail(one, other, run_.seed % run_.cluster.rails_count());
  }
  GoOn();
  if (cut_) {
    // Both ends have missed each other by then.
    run_.Advance(2 * kElasticDetection);
    run_.ReadServices();
    MendLink();
  }
  for (std::size_t node = 0; node < run_.nodes.size(); ++node) {
    const bool stays_away = run_.machines_gone.contains(node) && run_.dice.Chance(50);
    if (!stays_away) run_.RestartNode(node);
  }
}

void ElasticFaults::KillNode(std::size_t node, bool machine) {
  if (!run_.nodes[node].service) return;
  const auto on_it =
      static_cast<std::size_t>(std::ranges::count_if(run_.processes, [node](const auto& each) {
        return each->node() == node && each->IsAttached();
      }));
  if (!MayLose(on_it)) return;
  run_.Trace(
      fmt::format("node {}: the {} dies", run_.NameOf(node), machine ? "machine" : "service"));
  run_.DisturbAll();
  killed_ = true;
  run_.ReadServices();
  const bool told = !machine || run_.dice.Chance(30);
  run_.lines.Kill(run_.NameOf(node), machine ? Death::kMachine : Death::kProcess);
  run_.nodes[node].service.reset();
  run_.cluster.Vanish(node, told ? transport::Silence::kTold : transport::Silence::kSilent);
  for (const auto& process : run_.processes) {
    if (process->node() != node || process->IsDead()) continue;
    process->Harm();
    if (!machine) continue;
    process->End(false);
    run_.books.OnGone(process->index(), run_.cluster.now());
  }
  std::erase_if(run_.cut_rails, [node](const auto& between) {
    return between.first == node || between.second == node;
  });
  if (machine) run_.machines_gone.insert(node);
  run_.back_ns[node] =
      machine && run_.dice.Chance(50)
          ? kNever
          : run_.cluster.now() + static_cast<TimeNs>(run_.dice.Below(kAwayMaxMs)) * kMillisecond;
}

// Or one of the networks that control may use between them is cut or mended. The services go on
// over another connection, and nothing comes of it.
void ElasticFaults::BreakLine() {
  const std::size_t one = run_.dice.Below(run_.nodes.size());
  const std::size_t other = run_.dice.Below(run_.nodes.size());
  if (run_.dice.Chance(40)) return CutOrMendControl(one, other);
  if (!run_.lines.Break(run_.NameOf(one), run_.NameOf(other))) return;
  run_.Trace(fmt::format("a connection between nodes {} and {} breaks", run_.NameOf(one),
                         run_.NameOf(other)));
}

// Not the next one before they have found each other in another.
void ElasticFaults::CutOrMendControl(std::size_t one, std::size_t other) {
  if (one == other) return;
  ControlCut& cut = control_cuts_[{std::min(one, other), std::max(one, other)}];
  if (run_.cluster.now() - cut.since_ns < kElasticDetection) return;
  if (run_.lines.IsGreeting(run_.NameOf(one), run_.NameOf(other))) return;
  cut.since_ns = run_.cluster.now();
  const bool mends = cut.network.has_value();
  const std::size_t network = mends ? *cut.network : run_.dice.Below(kControlNetworks);
  run_.Trace(fmt::format("network {} of control between nodes {} and {} is {}", network,
                         run_.NameOf(one), run_.NameOf(other), mends ? "mended" : "cut"));
  if (mends) {
    cut.network.reset();
    return run_.lines.MendNetwork(run_.NameOf(one), run_.NameOf(other), network);
  }
  cut.network = network;
  run_.lines.CutNetwork(run_.NameOf(one), run_.NameOf(other), network);
}

void ElasticFaults::CutOrMendRail() {
  const std::size_t rail = run_.seed % run_.cluster.rails_count();
  const std::size_t one = run_.dice.Below(run_.nodes.size());
  const std::size_t other = run_.dice.Below(run_.nodes.size());
  if (one == other || !run_.nodes[one].service || !run_.nodes[other].service) return;
  const std::pair between{std::min(one, other), std::max(one, other)};
  const bool mends = run_.cut_rails.erase(between) > 0;
  run_.Trace(fmt::format("rail {} between nodes {} and {} is {}", rail, run_.NameOf(one),
                         run_.NameOf(other), mends ? "mended" : "cut"));
  if (mends) return run_.cluster.MendRail(one, other, rail);
  run_.cut_rails.insert(between);
  run_.cluster.CutRail(
      one, other, rail,
      run_.dice.Chance(50) ? transport::Silence::kTold : transport::Silence::kSilent);
}

void ElasticFaults::CutLink() {
  const std::size_t one = run_.dice.Below(run_.nodes.size());
  const std::size_t other = run_.dice.Below(run_.nodes.size());
  // Where rails stand in they are cut one by one.
  if (one == other || cut_ || run_.shape.faults.contains(ElasticFault::kRail)) return;
  if (!run_.nodes[one].service || !run_.nodes[other].service) return;
  const bool one_way = run_.dice.Chance(30);
  run_.Trace(fmt::format("the link {} nodes {} and {} is cut",
                         one_way ? "one way between" : "between", run_.NameOf(one),
                         run_.NameOf(other)));
  run_.DisturbAll();
  // The simulated network does not send again what was lost, as a connection does that outlives a
  // cut; so its ends hear of it.
  const auto silence = transport::Silence::kTold;
  const auto lasts_ms = static_cast<TimeNs>(run_.dice.Between(kCutMinMs, kCutMaxMs));
  cut_ = Cut{.one = one, .other = other, .until_ns = run_.cluster.now() + lasts_ms * kMillisecond};
  run_.lines.CutOneWay(run_.NameOf(one), run_.NameOf(other));
  if (!one_way) run_.lines.CutOneWay(run_.NameOf(other), run_.NameOf(one));
  for (std::size_t rail = 0; rail < run_.cluster.rails_count(); ++rail) {
    const std::string from = run_.cluster.WireName(one, rail);
    const std::string to = run_.cluster.WireName(other, rail);
    run_.cluster.network().CutOneWay(from, to, silence);
    if (!one_way) run_.cluster.network().CutOneWay(to, from, silence);
    cut_->wires.emplace_back(from, to);
  }
  for (const auto& process : run_.processes) {
    if (process->node() == one || process->node() == other) process->Harm();
  }
}

void ElasticFaults::MendLink() {
  const Cut cut = *std::exchange(cut_, std::nullopt);
  run_.Trace(fmt::format("the link between nodes {} and {} is mended", run_.NameOf(cut.one),
                         run_.NameOf(cut.other)));
  run_.lines.Mend(run_.NameOf(cut.one), run_.NameOf(cut.other));
  for (const auto& [one, other] : cut.wires) run_.cluster.network().Mend(one, other);
}

// A message that belongs to an epoch that is over, or is what the running one's nodes send but for
// its epoch: nobody takes it.
std::optional<std::string> ElasticFaults::Intrude() {
  ElasticProcess* const process = AnyProcess(true);
  if (process == nullptr || !run_.nodes[process->node()].service) return std::nullopt;
  const std::size_t node = process->node();
  const JobId job = process->session()->who().identity.job;
  const auto links = run_.nodes[node].service->LinksOf(job);
  if (!links || run_.nodes[node].service->NodesOf(job) == nullptr) return std::nullopt;
  transport::MessageHeader header = HeaderAmong(*links);
  const auto& sessions = run_.checker.sessions();
  const ElasticSession& former = sessions[run_.dice.Below(sessions.size())];
  if (run_.dice.Chance(50) && former.key != 0 && former.key != links->key) {
    header.key = former.key;
    header.epoch = former.who().identity.epoch;
  } else if (process->session()->disturbed) {
    return std::nullopt;  // of a job that ends nothing is counted
  } else {
    header.epoch -= 1;
  }
  const std::uint64_t before = run_.cluster.exchange(node).counters().messages_dropped;
  const std::string wire = run_.cluster.WireName(node, 0);
  run_.cluster.network().Inject(wire, header, std::vector<std::byte>(32, std::byte{0x5A}));
  run_.Advance(1);
  ++strangers_;
  if (run_.cluster.exchange(node).counters().messages_dropped > before) return std::nullopt;
  return fmt::format("node {} did not drop a message of epoch {}", run_.NameOf(node), header.epoch);
}

// It may be refused where it was lost to the others, or where fewer are left than may go on.
std::optional<std::string> ElasticFaults::OnRefused(const ElasticProcess& process,
                                                    const std::string& why) {
  run_.Trace(fmt::format("process {} is refused: {}", process.index(), why));
  // It may join again, with another number.
  if (process.was_evicted() && run_.dice.Chance(60)) Apply(service::MemberRole::kJoins);
  std::uint32_t left = 0;
  for (const std::uint32_t each : run_.books.last_met()) {
    left += run_.world.may_go_on(each) || each == process.index() ? 1 : 0;
  }
  if (process.is_harmed() || process.training().is_newcomer()) return std::nullopt;
  if (left < run_.shape.min_world) {
    gave_up_ = true;
    return std::nullopt;
  }
  return "nothing has befallen it, and it is refused: " + why;
}

}  // namespace headrace::sim
