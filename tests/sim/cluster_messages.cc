// Sends and receives of a simulated cluster's ranks.
#include <fmt/format.h>

#include "tests/sim/cluster_simulation.h"

namespace headrace::sim {

void ClusterSimulation::PostMessages(Job& job, RankSlot& slot) {
  // A send of a job that never forms ends it, as its operations do: it needs the ranks all the
  // same.
  for (std::uint64_t left = dice_.Between(1, 4); left > 0; --left) {
    const bool spoiled = mood_ == ClusterMood::kQuarrel && dice_.Chance(4);
    if (spoiled) Blame(job, fmt::format("rank {}", slot.rank->client().rank()), kNever);
    slot.rank->PostMessage(messages_, spoiled, Timeout(), dice_);
  }
}

std::optional<std::string> ClusterSimulation::AnswerMessages() {
  // An answer may be taken by another that waits, so they are posted one after the other.
  for (int patience = 0; patience < 200; ++patience) {
    bool any = false;
    for (Job& job : jobs_) {
      for (RankSlot& slot : job.slots) {
        if (!slot.IsLive()) continue;
        const std::optional<Rank::OtherSide> side = slot.rank->FirstOtherSide();
        if (!side || !job.slots[side->rank].IsLive()) continue;
        any = true;
        // A send may have been received, and its node has yet to hear of it.
        for (int i = 0; i < 10 && slot.rank->IsOpen(side->record); ++i) {
          Advance(kMillisecond);
          if (auto wrong = Check()) return wrong;
        }
        if (!slot.rank->IsOpen(side->record)) continue;
        job.slots[side->rank].rank->Answer(messages_, *side, Timeout(), dice_);
        OnAnswered(job);
        for (int i = 0; i < 50 && slot.rank->IsOpen(side->record); ++i) {
          Advance(kMillisecond);
          if (auto wrong = Check()) return wrong;
        }
      }
    }
    if (!any) break;
  }
  return ReceiveWhatWasSent();
}

// The sends of short messages to other nodes end before anybody receives them.
std::optional<std::string> ClusterSimulation::ReceiveWhatWasSent() {
  for (const Messages::Triple& triple : messages_.Unreceived()) {
    const auto job =
        std::ranges::find_if(jobs_, [&](const Job& each) { return each.id == triple.job; });
    if (job == jobs_.end() || !job->slots[triple.target].IsLive()) continue;
    const Rank::OtherSide receive{
        .sends = false, .rank = triple.target, .other = triple.source, .tag = triple.tag};
    job->slots[triple.target].rank->Answer(messages_, receive, Timeout(), dice_);
    OnAnswered(*job);
    Advance(50 * kMillisecond);
    if (auto wrong = Check()) return wrong;
  }
  return std::nullopt;
}

}  // namespace headrace::sim
