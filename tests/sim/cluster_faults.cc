// What goes wrong in a simulated cluster.
#include <fmt/format.h>

#include <algorithm>

#include "tests/sim/cluster_simulation.h"

namespace headrace::sim {

void ClusterSimulation::CloseRank(RankSlot& slot, bool orderly, bool exited) {
  const std::string cause = orderly ? "left the job" : "exited or was killed";
  Rank& rank = *slot.rank;
  Trace(fmt::format("{} {}", rank.Name(), cause));
  cluster_.node(slot.node).Close(rank.client(), orderly, cause);
  services_[slot.node]->OnRankEnded(slot.identity, orderly, cause, exited);
  rank.closed = true;
  rank.orderly = orderly;
  slot.exited = exited;
}

// One of the networks that control may use between them, and not the next one before they have
// found each other in another. Nothing at all may come of it.
void ClusterSimulation::CutOrMendControl(std::size_t one, std::size_t other) {
  if (one == other) return;
  ControlCut& cut = cut_control_[{std::min(one, other), std::max(one, other)}];
  if (cluster_.now() - cut.since_ns < kDetection) return;
  if (lines_.IsGreeting(NameOf(one), NameOf(other))) return;
  cut.since_ns = cluster_.now();
  const bool mends = cut.network.has_value();
  const std::size_t network = mends ? *cut.network : dice_.Below(kControlNetworks);
  Trace(fmt::format("network {} of control between nodes {} and {} is {}", network, NameOf(one),
                    NameOf(other), mends ? "mended" : "cut"));
  if (mends) {
    cut.network.reset();
    return lines_.MendNetwork(NameOf(one), NameOf(other), network);
  }
  cut.network = network;
  lines_.CutNetwork(NameOf(one), NameOf(other), network);
}

// Connections are those of leaders.
void ClusterSimulation::HarmControl() {
  const std::size_t one = dice_.Below(services_.size());
  const std::optional<std::size_t> leader = jobs_[dice_.Below(jobs_.size())].leader;
  if (!leader) return;
  if (dice_.Chance(50)) return BreakLine(one, *leader);
  CutOrMendControl(one, *leader);
  // Sometimes long enough that it is noticed.
  Advance(static_cast<TimeNs>(dice_.Below(dice_.Chance(50) ? kDetection : kDetection / 100)));
}

void ClusterSimulation::LoseRank() {
  Job& job = jobs_[dice_.Below(jobs_.size())];
  RankSlot& slot = job.slots[dice_.Below(job.slots.size())];
  if (!slot.IsLive()) return;
  const bool orderly = dice_.Chance(40);
  Blame(job, fmt::format("rank {}", slot.rank->client().rank()), orderly ? kNever : 0);
  CloseRank(slot, orderly);
}

void ClusterSimulation::HarmNodes() {
  const std::size_t one = dice_.Below(services_.size());
  const std::size_t other = dice_.Below(services_.size());
  if (!services_[one]) return RestartNode(one);
  if (dice_.Chance(40)) return KillNode(one);
  if (one == other || !services_[other]) return;
  if (mood_ == ClusterMood::kReconnect) return BreakLine(one, other);
  if (dice_.Chance(20)) return CutOrMendControl(one, other);
  if (cluster_.rails_count() > 1 && dice_.Chance(30)) return CutRail(one, other);
  if (dice_.Chance(60)) return CutLink(one, other);
  BreakLine(one, other);
}

void ClusterSimulation::KillNode(std::size_t node) {
  // Ranks outlive their service, and not their machine.
  const bool machine = mood_ != ClusterMood::kReconnect && dice_.Chance(50);
  const bool told = !machine || dice_.Chance(30);
  Trace(fmt::format("node {}: the {} dies{}", NameOf(node), machine ? "machine" : "service",
                    told ? "" : ", and nobody is told"));
  for (Job& job : jobs_) {
    if (TakesPart(job, node)) Blame(job, "node " + NameOf(node), lines_.detection_ns());
    for (RankSlot& slot : job.slots) slot.dead |= slot.node == node && slot.rank != nullptr;
    // Nobody will be there.
    if (!job.leader && HasRanks(job, node)) Blame(job, "", kNever);
  }
  killed_ = true;
  lines_.Kill(NameOf(node), machine ? Death::kMachine : Death::kProcess);
  services_[node].reset();
  cluster_.Vanish(node, told ? transport::Silence::kTold : transport::Silence::kSilent);
}

void ClusterSimulation::RestartNode(std::size_t node) {
  Trace(fmt::format("node {} begins again", NameOf(node)));
  wires_[node] += "'";
  cluster_.Replace(node, wires_[node]);
  sessions_[node] = 0;
  AddService(node);
}

void ClusterSimulation::CutLink(std::size_t one, std::size_t other) {
  const bool told = dice_.Chance(50);
  const bool one_way = dice_.Chance(40);
  Trace(fmt::format("the link {} node {} {} node {} is cut{}", one_way ? "from" : "between",
                    NameOf(one), one_way ? "to" : "and", NameOf(other),
                    told ? "" : ", and nobody is told"));
  for (Job& job : jobs_) {
    if (!TakesPart(job, one) || !TakesPart(job, other)) continue;
    const bool led = job.leader == one || job.leader == other;
    Blame(job, "node " + NameOf(one), kNever);
    // What nobody uses is not found to be cut: let all that one rank has posted be under way.
    if (!led && told) PostWhatIsMissing(job);
    // Gradients may wait for more than wires: for a plan, or for the iteration before.
    if (!led && HasGradientsOpen(job)) Blame(job, "", kNever);
    // Silence between two nodes that do not talk to each other otherwise is known by its length,
    // and where servers sum, those with ranks talk little to each other.
    const bool found = led || (told && !HasGradientsOpen(job) && !job.served);
    if (job.served && !led) Blame(job, "", kNever);
    Blame(job, found ? "node " + NameOf(other) : "lane net",
          found ? lines_.detection_ns() : kNever);
    Blame(job, "node " + NameOf(other), kNever);
  }
  harmed_.insert(one);
  harmed_.insert(other);
  const auto silence = told ? transport::Silence::kTold : transport::Silence::kSilent;
  const auto cut = [this, silence](std::size_t from, std::size_t to) {
    lines_.CutOneWay(NameOf(from), NameOf(to));
    for (std::size_t rail = 0; rail < cluster_.rails_count(); ++rail) {
      cluster_.network().CutOneWay(cluster_.WireName(from, rail), cluster_.WireName(to, rail),
                                   silence);
    }
  };
  cut(one, other);
  if (!one_way) cut(other, one);
}

// One of several networks between them; the others and the connection of control go on.
void ClusterSimulation::CutRail(std::size_t one, std::size_t other) {
  const std::size_t rail = dice_.Below(cluster_.rails_count());
  const bool told = dice_.Chance(50);
  Trace(fmt::format("rail {} between nodes {} and {} is cut{}", rail, NameOf(one), NameOf(other),
                    told ? "" : ", and nobody is told"));
  for (Job& job : jobs_) {
    if (!TakesPart(job, one) || !TakesPart(job, other)) continue;
    // Who waits for it, and whether anybody does, depends on how blocks are shared out.
    if (HasGradientsOpen(job)) Blame(job, "", kNever);
    Blame(job, "node " + NameOf(one), kNever);
    Blame(job, "node " + NameOf(other), kNever);
    Blame(job, "lane net", kNever);
  }
  harmed_.insert(one);
  harmed_.insert(other);
  cluster_.network().Cut(cluster_.WireName(one, rail), cluster_.WireName(other, rail),
                         told ? transport::Silence::kTold : transport::Silence::kSilent);
}

void ClusterSimulation::CutOrMendRail() {
  const std::size_t rail = seed_ % cluster_.rails_count();
  const std::size_t one = dice_.Below(services_.size());
  const std::size_t other = dice_.Below(services_.size());
  if (one == other) return;
  const std::pair between{std::min(one, other), std::max(one, other)};
  const bool mends = cut_rails_.erase(between) > 0;
  Trace(fmt::format("rail {} between nodes {} and {} is {}", rail, NameOf(one), NameOf(other),
                    mends ? "mended" : "cut"));
  if (mends) return cluster_.MendRail(one, other, rail);
  cut_rails_.insert(between);
  cluster_.CutRail(one, other, rail,
                   dice_.Chance(50) ? transport::Silence::kTold : transport::Silence::kSilent);
}

// Its service stands still and goes on, as after SIGSTOP and SIGCONT. Within the detection time
// nobody notices; beyond it the others end its jobs, and the node itself hears of it afterwards.
std::optional<std::string> ClusterSimulation::StandStill() {
  const std::size_t node = dice_.Below(services_.size());
  const bool noticed = dice_.Chance(30);
  const TimeNs time_ns = noticed ? kStandstillMax - static_cast<TimeNs>(dice_.Below(2 * kSecond))
                                 : static_cast<TimeNs>(dice_.Below(kDetection / 2));
  Trace(fmt::format("node {} stands still for {:.3f} s", NameOf(node),
                    static_cast<double>(time_ns) / kSecond));
  stands_still_ = node;
  // Its service gives what is open as much longer, and counts from its last turn.
  for (Job& job : jobs_) {
    if (job.deadline_ns != kNever) job.deadline_ns += time_ns + kSecond;
  }
  cluster_.StandStill(node);
  lines_.StandStill(*services_[node]);
  // Nobody is there to notice it for a job that has nothing elsewhere.
  const auto reaches_others = [node](const Job& job) {
    return job.served || job.leader != node ||
           std::ranges::any_of(job.slots,
                               [node](const RankSlot& slot) { return slot.node != node; });
  };
  for (Job& job : jobs_) {
    if (!noticed || !TakesPart(job, node) || !reaches_others(job)) continue;
    Blame(job, "node " + NameOf(node), kDetection);
  }
  for (std::uint64_t left = dice_.Below(4); left > 0; --left) PostSome();
  auto wrong = AdvanceAndCheck(time_ns, std::max<TimeNs>(time_ns / 8, 1));
  went_on_ns_ = cluster_.now();
  stands_still_.reset();
  cluster_.Resume(node);
  lines_.Resume(*services_[node]);
  for (Job& job : jobs_) {
    if (!noticed || !TakesPart(job, node)) continue;
    // It finds its connections closed, and names who was at their other ends.
    for (std::size_t other = 0; other < services_.size(); ++other) {
      Blame(job, "node " + NameOf(other), kNever);
    }
  }
  return wrong;
}

void ClusterSimulation::PostWhatIsMissing(Job& job) {
  const std::uint64_t most = MostPosted(job);
  for (RankSlot& slot : job.slots) {
    bool room = slot.IsLive() && job.deadline_ns == kNever;
    while (room && slot.rank->posted() < most) {
      room = slot.rank->Post(Rank::Manner::kHonest, Timeout(), dice_);
    }
  }
}

// Another one takes its place, and nothing comes of it.
void ClusterSimulation::BreakLine(std::size_t one, std::size_t other) {
  if (!lines_.Break(NameOf(one), NameOf(other))) return;
  Trace(fmt::format("a connection between nodes {} and {} breaks", NameOf(one), NameOf(other)));
}

// A message that no honest node of the job sends now: it must be dropped, and be counted.
std::optional<std::string> ClusterSimulation::Intrude() {
  const std::size_t node = dice_.Below(services_.size());
  const Job& job = jobs_[dice_.Below(jobs_.size())];
  transport::MessageHeader header;
  header.key = dice_.Between(1, UINT64_MAX - 1);
  header.epoch = static_cast<std::uint32_t>(dice_.Below(5));
  header.position = dice_.Below(1 << 20);
  header.kind = static_cast<std::uint8_t>(dice_.Below(256));
  header.sender = static_cast<std::uint16_t>(dice_.Below(8));
  if (!services_[node]) return std::nullopt;
  const auto number = job.numbers.find(node);
  const bool steady = !checker_.IsBlamed(job.id) && number != job.numbers.end();
  if (steady && dice_.Chance(70)) {
    const auto links = services_[node]->LinksOf(number->second);
    if (!links || !services_[node]->HasFormed(number->second)) return std::nullopt;
    // As the job's own nodes send them, but for one thing.
    header = HeaderAmong(*links);
    (dice_.Chance(60) ? header.epoch : header.plan_version) -= 1;
  }
  const std::uint64_t before = cluster_.exchange(node).counters().messages_dropped;
  Trace(fmt::format("node {} gets a message of key {:x}, epoch {}", NameOf(node), header.key,
                    header.epoch));
  cluster_.network().Inject(wires_[node], header,
                            std::vector<std::byte>(dice_.Below(64), std::byte{0x5A}));
  Advance(1);
  if (cluster_.exchange(node).counters().messages_dropped > before) return std::nullopt;
  return fmt::format("node {} did not drop a message of nobody's", NameOf(node));
}

}  // namespace headrace::sim
