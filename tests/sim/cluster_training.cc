// The iterations of a simulated cluster's jobs: gradients that move by plans.
#include <fmt/format.h>

#include <algorithm>

#include "tests/sim/cluster_simulation.h"

namespace headrace::sim {
namespace {

constexpr std::uint64_t kWarmUpMax = 24;
constexpr int kPatienceMax = 20'000;
// How long a job is awaited to which something has happened: it may end, and may not.
constexpr int kPatienceWithBlamed = 50;
constexpr int kPatienceWithDrained = 1000;

}  // namespace

std::optional<std::string> ClusterSimulation::HandIn(Job& job, RankSlot& slot) {
  if (!Runs(slot.node)) return std::nullopt;
  SimulatedService& service = *services_[slot.node];
  const std::uint32_t rank = slot.rank->client().rank();
  // One rank only, so that there is one to blame.
  const bool differs = mood_ == ClusterMood::kQuarrel && rank == 0 && dice_.Chance(8);
  const Model model = differs ? Another(*job.model) : *job.model;
  if (differs) {
    Trace(fmt::format("{} hands in another layout", slot.rank->Name()));
    Blame(job, "rank 0", kNever);
    for (const RankSlot& other : job.slots) Blame(job, "node " + NameOf(other.node), kNever);
  }
  if (Status status = service.CheckLayout(slot.identity, *model.layout, model.policy); !status) {
    if (!checker_.IsBlamed(job.id) || status.error().text().find("rank 0") == std::string::npos) {
      return fmt::format("{}: its layout is refused: {}", slot.rank->Name(), status.error().text());
    }
    // Its program ends with this error.
    Blame(job, fmt::format("rank {}", rank), kNever);
    CloseRank(slot, false);
    return std::nullopt;
  }
  slot.training->HandIn(model);
  service.OnLayoutSet(slot.identity, model.layout, model.policy);
  return std::nullopt;
}

bool ClusterSimulation::PostGradient(Job& job, RankSlot& slot) {
  auto manner = Training::Manner::kHonest;
  if (mood_ == ClusterMood::kQuarrel && dice_.Chance(0.5)) manner = Training::Manner::kBadRecord;
  if (!slot.training->Post(manner, Timeout(), cluster_.now(), dice_)) return false;
  if (manner == Training::Manner::kHonest) return true;
  Trace(fmt::format("{} posts a bad gradient in iteration {}", slot.rank->Name(),
                    slot.training->begun()));
  Blame(job, fmt::format("rank {}", slot.rank->client().rank()), kNever);
  Blame(job, "lane net", kNever);
  for (const RankSlot& other : job.slots) Blame(job, "node " + NameOf(other.node), kNever);
  return true;
}

std::optional<std::string> ClusterSimulation::TrainSome() {
  Job& job = jobs_[dice_.Below(jobs_.size())];
  if (!job.model) return std::nullopt;
  for (RankSlot& slot : job.slots) {
    if (!slot.IsLive() || job.deadline_ns != kNever || dice_.Chance(15)) continue;
    if (!slot.training->has_handed_in()) {
      if (auto wrong = HandIn(job, slot)) return wrong;
      if (!slot.IsLive() || !slot.training->has_handed_in()) continue;
    }
    for (std::uint64_t left = dice_.Between(1, job.model->layout->tensors.size()); left > 0;
         --left) {
      PostGradient(job, slot);
    }
  }
  return std::nullopt;
}

void ClusterSimulation::RequestPolicy() {
  const Job& job = jobs_[dice_.Below(jobs_.size())];
  const RankSlot& slot = job.slots[dice_.Below(job.slots.size())];
  if (!slot.IsLive()) return;
  const plan::Policy policy = plan::kPolicies[dice_.Below(std::size(plan::kPolicies))];
  if (Runs(slot.node) && services_[slot.node]->SetPolicy(job.name, policy)) {
    Trace(fmt::format("somebody on node {} wants {} for {}", NameOf(slot.node), plan::Name(policy),
                      job.name));
  }
}

std::optional<std::string> ClusterSimulation::WarmUp(Job& job) {
  for (std::uint32_t rank = 0; rank < job.world_size; ++rank) {
    if (auto wrong = AttachRank(job, rank)) return wrong;
  }
  return Train(job, dice_.Below(kWarmUpMax));
}

std::optional<std::string> ClusterSimulation::Train(Job& job, std::uint64_t iterations) {
  if (!job.model) return std::nullopt;
  for (int patience = 0; patience < kPatienceMax; ++patience) {
    bool behind = false;
    for (RankSlot& slot : job.slots) {
      if (!slot.IsLive() || job.deadline_ns != kNever) continue;
      Training& training = *slot.training;
      if (!training.has_handed_in()) {
        if (auto wrong = HandIn(job, slot)) return wrong;
        if (!slot.IsLive()) continue;
      }
      const auto wants = [&] { return training.begun() < iterations || !training.HasPostedAll(); };
      while (wants() && PostGradient(job, slot)) {
      }
      behind |= !training.HasDone(iterations);
    }
    if (!behind) return Check();
    if (dice_.Chance(0.5)) RequestPolicy();
    Advance(static_cast<TimeNs>(dice_.Between(1, 2'000'000)));
    if (auto wrong = Check()) return wrong;
    const int most = checker_.IsDrained(job.id) ? kPatienceWithDrained : kPatienceWithBlamed;
    if (checker_.IsBlamed(job.id) && patience >= most) return std::nullopt;
  }
  return fmt::format("job {}: nothing has befallen it, but its iterations stand still at {}",
                     job.id.value, IterationsBegun(job));
}

std::uint64_t ClusterSimulation::IterationsBegun(const Job& job) const {
  std::uint64_t most = 0;
  for (const RankSlot& slot : job.slots) {
    if (slot.training) most = std::max(most, slot.training->begun());
  }
  return most;
}

bool ClusterSimulation::HasGradientsOpen(const Job& job) const {
  return std::ranges::any_of(
      job.slots, [](const RankSlot& slot) { return slot.training && slot.training->open() != 0; });
}

void ClusterSimulation::ShowPlans() {
  for (const Job& job : jobs_) {
    if (!job.model || !job.leader) continue;
    for (const auto& [node, number] : job.numbers) {
      if (!services_[node]) continue;
      const auto links = services_[node]->LinksOf(number);
      const auto row = cluster_.node(node).PlanRow(number);
      if (links && row) agreements_.Shown(links->key, NameOf(node), *row);
    }
  }
}

}  // namespace headrace::sim
