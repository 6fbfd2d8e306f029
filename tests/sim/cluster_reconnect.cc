// Ranks that have lost their job with a service or a connection, and come back under its name.
#include <fmt/format.h>

#include <algorithm>

#include "tests/sim/cluster_simulation.h"

namespace headrace::sim {

// Each of its ranks was in the job and knows that it is lost, and all services are there again.
bool ClusterSimulation::CanReconnect(const Job& job) const {
  if (!checker_.IsBlamed(job.id) || job.came_back) return false;
  if (job.leader && !Runs(*job.leader)) return false;
  const bool has_server = std::ranges::any_of(servers_, [&](const auto& server) {
    return server.second == job.leader && Runs(server.first);
  });
  if (job.served && !has_server) return false;
  return std::ranges::all_of(job.slots, [&](const RankSlot& slot) {
    if (!slot.rank || !Runs(slot.node)) return false;
    return slot.dead ||
           (!slot.rank->closed && services_[slot.node]->HasFailed(job.numbers.at(slot.node)));
  });
}

void ClusterSimulation::BeginReconnects(double percent) {
  const std::size_t count = jobs_.size();
  for (std::size_t i = 0; i < count; ++i) {
    if (!CanReconnect(jobs_[i]) || !dice_.Chance(percent)) continue;
    jobs_[i].came_back = true;
    const Job& before = jobs_[i];
    Job job{.id = JobId{static_cast<std::uint32_t>(jobs_.size() + 1)},
            .name = before.name,
            .world_size = before.world_size,
            .leader = before.leader,
            .model = before.model,
            .served = before.served,
            .values = before.values,
            .life_before = i};
    for (const RankSlot& slot : before.slots) {
      job.slots.push_back({.node = slot.node, .after_epoch = slot.epoch});
    }
    Trace(fmt::format("{} goes on as job {}", job.name, job.id.value));
    Enroll(std::move(job));
  }
}

bool ClusterSimulation::LeavesLifeBefore(Job& job, std::uint32_t rank) {
  if (!job.life_before) return true;
  Job& before = jobs_[*job.life_before];
  if (RankSlot& slot = before.slots[rank]; slot.IsLive()) CloseRank(slot, false);
  return std::ranges::none_of(before.slots, [&](const RankSlot& slot) {
    return slot.node == job.slots[rank].node && slot.IsLive();
  });
}

std::optional<std::string> ClusterSimulation::ReconnectAll() {
  for (std::size_t node = 0; node < services_.size(); ++node) {
    if (!services_[node]) RestartNode(node);
  }
  if (auto wrong = AdvanceAndCheck(kDetection + kSecond, 200 * kMillisecond)) return wrong;
  const std::size_t count = jobs_.size();
  BeginReconnects(100);
  std::vector<std::pair<std::size_t, std::uint32_t>> ranks;
  for (std::size_t i = count; i < jobs_.size(); ++i) {
    for (std::uint32_t rank = 0; rank < jobs_[i].world_size; ++rank) ranks.emplace_back(i, rank);
  }
  const auto attached = [this](const auto& who) {
    return jobs_[who.first].slots[who.second].rank != nullptr;
  };
  while (!std::ranges::all_of(ranks, attached)) {
    const auto [i, rank] = ranks[dice_.Below(ranks.size())];
    if (auto wrong = AttachRank(jobs_[i], rank)) return wrong;
    if (dice_.Chance(50)) Advance(static_cast<TimeNs>(dice_.Below(20 * kMillisecond)));
    if (auto wrong = Check()) return wrong;
  }
  for (std::size_t i = count; i < jobs_.size(); ++i) {
    if (auto wrong = CatchUp(jobs_[i], dice_.Between(1, 6))) return wrong;
    if (auto wrong = Train(jobs_[i], dice_.Below(8))) return wrong;
  }
  if (auto wrong = AdvanceAndCheck(Timeout() * kMillisecond, 200 * kMillisecond)) return wrong;
  return CheckAllEnded();
}

// Nobody goes on in an epoch in which, or after which, one of the ranks has been before.
std::optional<std::string> ClusterSimulation::CheckEpochs() const {
  for (const Job& job : jobs_) {
    for (const auto& [node, number] : job.numbers) {
      if (!services_[node] || !services_[node]->HasFormed(number)) continue;
      const auto links = services_[node]->LinksOf(number);
      if (!links) continue;
      for (const RankSlot& slot : job.slots) {
        if (links->epoch > slot.after_epoch) continue;
        return fmt::format("job {}: goes on in epoch {} after epoch {}", job.id.value, links->epoch,
                           slot.after_epoch);
      }
    }
  }
  return std::nullopt;
}

}  // namespace headrace::sim
