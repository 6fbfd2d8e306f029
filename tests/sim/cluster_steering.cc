// What people want of a simulated cluster's jobs.
#include <fmt/format.h>

#include "tests/sim/cluster_simulation.h"

namespace headrace::sim {
namespace {

constexpr std::uint32_t kPerson = 4711;  // a uid
// All nodes have heard of a pause by then, and what had begun has ended.
constexpr TimeNs kHeard = kSecond;

}  // namespace

void ClusterSimulation::SteerSomething() {
  Job& job = jobs_[dice_.Below(jobs_.size())];
  if (job.model && dice_.Chance(20)) {
    return SteerJob(job, SteeringKind::kCompress,
                    SteeringValue(kSteeredCodecs[dice_.Below(std::size(kSteeredCodecs))]));
  }
  switch (dice_.Below(mood_ == ClusterMood::kSteering ? 8 : 3)) {
    case 0:
      return SteerJob(job, SteeringKind::kWeight, dice_.Between(1, kWeightMax));
    case 1:
      return SteerJob(job, SteeringKind::kPriority, dice_.Between(0, kPriorityMax));
    case 2:
      // Not so low that operations time out for it.
      return SteerJob(job, SteeringKind::kLimit,
                      dice_.Chance(50) ? 0 : dice_.Between(2'000'000, 1'000'000'000));
    case 3:
    case 4:
      return SteerJob(job, SteeringKind::kPause, 0);
    case 5:
      return SteerJob(job, SteeringKind::kResume, 0);
    case 6:
      if (dice_.Chance(30)) return SteerJob(job, SteeringKind::kCancel, 0);
      return SteerJob(job, SteeringKind::kSends, dice_.Below(2));
    default:
      if (dice_.Chance(50)) SteerJob(job, SteeringKind::kDrain, 0);
      return;
  }
}

void ClusterSimulation::SteerJob(Job& job, SteeringKind kind, std::uint64_t value) {
  RankSlot& slot = job.slots[dice_.Below(job.slots.size())];
  if (!slot.IsLive() || !Runs(slot.node) || checker_.IsBlamed(job.id)) return;
  const bool formed = !job.leader || HasFormed(job);
  const service::Steering steering{.kind = kind, .value = value, .uid = kPerson};
  if (!services_[slot.node]->Steer(job.name, steering)) return;
  Trace(fmt::format("somebody on node {} steers {}: kind {}, value {}", NameOf(slot.node), job.name,
                    static_cast<unsigned>(kind), value));
  if (kind == SteeringKind::kCancel) {
    Blame(job, fmt::format("cancelled by uid {}", kPerson), 0);
  }
  if (kind == SteeringKind::kDrain) {
    Blame(job, fmt::format("drained by uid {}", kPerson), kNever);
    if (formed) checker_.Drain(job.id);
  }
  if (kind == SteeringKind::kResume) {
    job.paused = false;
    job.still_from_ns = kNever;
  }
  if (kind != SteeringKind::kPause || job.paused) return;
  job.paused = true;
  job.posted_then = MostPosted(job);
  // With gradients, the iteration that is under way goes on to its end.
  if (formed && !job.model) job.still_from_ns = cluster_.now() + kHeard;
}

std::uint64_t ClusterSimulation::MostPosted(const Job& job) {
  std::uint64_t most = 0;
  for (const RankSlot& slot : job.slots) {
    if (slot.rank) most = std::max(most, slot.rank->posted());
  }
  return most;
}

std::optional<std::string> ClusterSimulation::CheckPaused(Job& job) {
  // Other nodes hear of it later, and hold back what is posted from then on.
  if (job.paused && job.leader && cluster_.now() < job.still_from_ns) {
    job.posted_then = MostPosted(job);
  }
  // What one rank had posted before goes on when the others post it, whenever that is.
  const bool behind = std::ranges::any_of(job.slots, [&job](const RankSlot& slot) {
    return slot.rank && slot.rank->posted() < job.posted_then;
  });
  if (job.paused && behind && job.still_from_ns != kNever) {
    job.still_from_ns = std::max(job.still_from_ns, cluster_.now() + kHeard);
  }
  // What ends it otherwise ends what waits.
  if (!job.paused || cluster_.now() < job.still_from_ns || checker_.IsBlamed(job.id)) {
    job.ended_then = UINT64_MAX;
    return std::nullopt;
  }
  const std::uint64_t ended = checker_.EndedOf(job.id);
  if (job.ended_then == UINT64_MAX) job.ended_then = ended;
  if (job.ended_then == ended) return std::nullopt;
  return fmt::format("job {}: {} operations ended while it was paused", job.id.value,
                     ended - job.ended_then);
}

// On every node: what one node asks for may come after what another one asks for later.
void ClusterSimulation::ResumeAll() {
  for (Job& job : jobs_) {
    job.paused = false;
    job.still_from_ns = kNever;
    for (const RankSlot& slot : job.slots) {
      if (!slot.IsLive() || !Runs(slot.node)) continue;
      services_[slot.node]->Steer(job.name, {.kind = SteeringKind::kResume, .uid = kPerson});
    }
  }
}

std::optional<std::string> ClusterSimulation::PauseForLong() {
  if (auto wrong = AdvanceAndCheck(kHeard, 100 * kMillisecond)) return wrong;
  for (Job& job : jobs_) {
    const bool idle = std::ranges::all_of(
        job.slots, [](const RankSlot& slot) { return slot.IsLive() && slot.open() == 0; });
    if (!idle || checker_.IsBlamed(job.id)) continue;
    SteerJob(job, SteeringKind::kPause, 0);
    if (auto wrong = AdvanceAndCheck(kHeard, 100 * kMillisecond)) return wrong;
    for (RankSlot& slot : job.slots) {
      PostOne(job, slot);
      while (slot.training && slot.training->has_handed_in() && PostGradient(job, slot) &&
             !slot.training->HasPostedAll()) {
      }
    }
    const std::uint64_t ended = checker_.EndedOf(job.id);
    if (auto wrong = AdvanceAndCheck(2 * Timeout() * kMillisecond, kSecond)) return wrong;
    if (checker_.EndedOf(job.id) != ended) {
      return fmt::format("job {}: something ended although it was paused", job.id.value);
    }
    ResumeAll();
    if (auto wrong = AdvanceAndCheck(Timeout() * kMillisecond / 2, 100 * kMillisecond))
      return wrong;
    for (const RankSlot& slot : job.slots) {
      if (slot.open() != 0) {
        return fmt::format("job {}: does not go on after a pause", job.id.value);
      }
    }
  }
  return std::nullopt;
}

}  // namespace headrace::sim
