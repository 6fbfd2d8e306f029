// A rank that is slow, what becomes of it, and how a job goes on with fewer ranks and more.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "service/session/slow_rank.h"
#include "tests/sim/cluster_simulation.h"

namespace headrace::sim {
namespace {

constexpr TimeNs kOwn = 200 * kMillisecond;  // of an iteration, of ranks that are not slow
constexpr std::uint32_t kBoundMaxS = 3;
// Windows and rounds are not aligned: so much later than it could be somebody is named.
constexpr TimeNs kNamedWithin = 20 * kSecond;
// Nodes look at their ranks once a second, and say it to each other.
constexpr TimeNs kStalledWithin = 4 * kSecond;
constexpr std::uint32_t kGraceMs = 500;
constexpr int kPollsMax = 400;
constexpr int kPostsMax = 8;
constexpr std::uint32_t kUid = 0;  // of all ranks here

}  // namespace

std::optional<std::string> ClusterSimulation::EvictSlow() {
  std::vector<std::size_t> fit;
  for (std::size_t i = 0; i < jobs_.size(); ++i) {
    const bool all =
        std::ranges::all_of(jobs_[i].slots, [](const RankSlot& s) { return s.IsLive(); });
    if (all && !checker_.IsBlamed(jobs_[i].id)) fit.push_back(i);
  }
  // Minutes pass in such a run, so not in each.
  if (fit.empty() || dice_.Chance(60)) return BeginAgain();
  const std::size_t index = fit[dice_.Below(fit.size())];
  Job* job = &jobs_[index];
  const auto slow = static_cast<std::uint32_t>(dice_.Below(job->world_size));
  const std::uint64_t factor = dice_.Chance(15) ? 1 : dice_.Between(2, 5);
  const service::SlowBound bound{
      .seconds = static_cast<std::uint32_t>(dice_.Between(1, kBoundMaxS)),
      .least_world = static_cast<std::uint32_t>(dice_.Below(job->world_size + 1))};
  const bool stalls = factor > 1 && dice_.Chance(15);
  const bool evicts = factor > 1 && bound.least_world != 0 && bound.least_world < job->world_size;
  Trace(fmt::format("rank {} of {} {}; bound {} s, least world {}", slow, job->name,
                    stalls ? "stands still" : fmt::format("takes {} times as long", factor),
                    bound.seconds, bound.least_world));
  services_[job->slots[0].node]->Steer(
      job->name, {.kind = SteeringKind::kSlowBound, .value = bound.Value(), .uid = kUid});
  const TimeNs until_ns = cluster_.now() + 2 * bound.seconds * kSecond + kNamedWithin;
  bool evicted = false;
  const TimeNs counts_from_ns = cluster_.now() + 2 * bound.seconds * kSecond;
  bool stalled = false;
  while (!evicted && cluster_.now() < until_ns) {
    if (stalls && !stalled && cluster_.now() >= counts_from_ns) {
      stalled = true;
      if (auto wrong = AwaitStalled(*job, slow, bound.seconds, evicted)) return wrong;
      continue;
    }
    if (auto wrong = IterateSlowly(*job, slow, stalls ? 1 : factor)) return wrong;
    if (auto wrong = CheckEvicted(*job, slow, evicted)) return wrong;
  }
  if (evicted != evicts) {
    return fmt::format("{} rank {} is {}evicted", job->name, slow, evicted ? "" : "not ");
  }
  const std::uint64_t named = cluster_.node(job->slots[slow].node).Counters().slow_reports;
  if (named != (factor > 1 ? 1U : 0U)) return fmt::format("{} ranks were named", named);
  if (!evicted) return std::nullopt;
  Blame(*job, fmt::format("rank {}", slow), 0);
  CloseRank(job->slots[slow], false, true);
  if (auto wrong = AdvanceAndCheck(kDetection + kSecond, 100 * kMillisecond)) return wrong;
  if (auto wrong = CheckAllEnded()) return wrong;
  const std::size_t from = job->slots[slow].node;
  const bool at_once = dice_.Chance(50);
  if (auto wrong = GoOnAsDecided(index, at_once ? std::optional(from) : std::nullopt)) return wrong;
  if (at_once) return std::nullopt;
  return GoOnAsDecided(jobs_.size() - 1, from);
}

std::optional<std::string> ClusterSimulation::IterateSlowly(Job& job, std::uint32_t slow,
                                                            std::uint64_t factor) {
  std::vector<TimeNs> posted_ns(job.world_size);
  const auto post = [&](std::uint32_t rank) {
    PostOne(job, job.slots[rank]);
    posted_ns[rank] = cluster_.now();
  };
  Advance(kOwn);
  for (std::uint32_t rank = 0; rank < job.world_size; ++rank) {
    if (rank != slow) post(rank);
  }
  Advance(static_cast<TimeNs>(factor - 1) * kOwn);
  post(slow);
  const auto is_open = [](const RankSlot& slot) { return slot.open() != 0; };
  for (int i = 0; i < kPollsMax && std::ranges::any_of(job.slots, is_open); ++i) {
    if (auto wrong = AdvanceAndCheck(10 * kMillisecond, 10 * kMillisecond)) return wrong;
  }
  const auto say_waits = [&] {
    for (std::uint32_t rank = 0; rank < job.world_size; ++rank) {
      job.slots[rank].rank->client().layout().header.client_waited_ns.fetch_add(
          static_cast<std::uint64_t>(cluster_.now() -
                                     std::exchange(posted_ns[rank], cluster_.now())));
    }
  };
  say_waits();
  // Plans change with iterations only, and nobody is evicted meanwhile.
  if (auto wrong = Train(job, IterationsBegun(job) + 1)) return wrong;
  say_waits();
  return std::nullopt;
}

std::optional<std::string> ClusterSimulation::AwaitStalled(Job& job, std::uint32_t stalled,
                                                           std::uint32_t bound_s, bool& evicted) {
  // Some operations end on a rank before all have posted them, and then it does not wait.
  bool wait = false;
  for (int posts = 0; posts < kPostsMax && !wait; ++posts) {
    wait = true;
    for (std::uint32_t rank = 0; rank < job.world_size; ++rank) {
      if (rank == stalled || job.slots[rank].open() != 0) continue;
      wait = false;
      PostOne(job, job.slots[rank]);
    }
    if (auto wrong = AdvanceAndCheck(100 * kMillisecond, 100 * kMillisecond)) return wrong;
  }
  const TimeNs until_ns = cluster_.now() + bound_s * kSecond + kStalledWithin;
  while (!evicted && cluster_.now() < until_ns) {
    if (auto wrong = AdvanceAndCheck(100 * kMillisecond, 100 * kMillisecond)) return wrong;
    if (auto wrong = CheckEvicted(job, stalled, evicted)) return wrong;
  }
  if (!evicted) PostWhatIsMissing(job);
  return std::nullopt;
}

std::optional<std::string> ClusterSimulation::CheckEvicted(Job& job, std::uint32_t slow,
                                                           bool& evicted) {
  for (std::size_t node = 0; node < services_.size(); ++node) {
    for (const auto* broken : cluster_.node(node).rpc().Of<service::SessionBroken>()) {
      const RankSlot& slot = job.slots[slow];
      if (node != slot.node || broken->session != slot.rank->client().id() || evicted) {
        return fmt::format("node {} evicts another: {}", NameOf(node), broken->error.text());
      }
      evicted = true;
    }
  }
  return std::nullopt;
}

std::optional<std::string> ClusterSimulation::GoOnAsDecided(std::size_t before,
                                                            std::optional<std::size_t> joiner) {
  for (RankSlot& slot : jobs_[before].slots) {
    if (!slot.IsLive()) continue;
    Blame(jobs_[before], "", kNever);
    CloseRank(slot, false);
    if (dice_.Chance(30)) Advance(static_cast<TimeNs>(dice_.Below(50 * kMillisecond)));
  }
  std::vector<Asker> askers = AskersOf(jobs_[before], joiner);
  if (auto wrong = Decide(askers)) return wrong;
  if (auto wrong = CheckDecision(jobs_[before], askers, joiner.has_value())) return wrong;
  if (auto wrong = EnrollDecided(before, askers)) return wrong;
  Job& job = jobs_.back();
  for (std::uint32_t attached = 0; attached < job.world_size;) {
    const auto rank = static_cast<std::uint32_t>(dice_.Below(job.world_size));
    if (job.slots[rank].rank) continue;
    if (auto wrong = AttachRank(job, rank)) return wrong;
    ++attached;
    if (dice_.Chance(50)) Advance(static_cast<TimeNs>(dice_.Below(20 * kMillisecond)));
    if (auto wrong = Check()) return wrong;
  }
  if (auto wrong = CatchUp(job, dice_.Between(1, 6))) return wrong;
  if (auto wrong = Train(job, dice_.Below(8))) return wrong;
  if (auto wrong = AdvanceAndCheck(2 * kSecond, 200 * kMillisecond)) return wrong;
  return CheckAllEnded();
}

// Whose process is gone does not ask as what it was.
std::vector<ClusterSimulation::Asker> ClusterSimulation::AskersOf(
    const Job& job, std::optional<std::size_t> joiner) {
  service::Membership membership{.generation = job.generation, .members = job.members};
  for (std::uint32_t rank = 0; job.members.empty() && rank < job.world_size; ++rank) {
    membership.members.push_back(rank);
  }
  const std::string rendezvous = job.leader ? NameOf(*job.leader) + ":7733" : "";
  std::vector<Asker> askers;
  const auto add = [&](std::size_t node) -> service::AskQuorum& {
    Asker& asker = askers.emplace_back();
    asker.node = node;
    asker.ask.client = ++questions_;
    asker.ask.job = job.name;
    asker.ask.uid = kUid;
    asker.ask.leader = rendezvous;
    asker.ask.rules = {.min_world = 1, .grace_ms = kGraceMs};
    return asker.ask;
  };
  for (std::uint32_t rank = 0; rank < job.world_size; ++rank) {
    const RankSlot& slot = job.slots[rank];
    if (slot.exited) continue;
    service::AskQuorum& ask = add(slot.node);
    ask.member = membership.members[rank];
    ask.membership = membership;
    ask.epoch = slot.epoch;
  }
  if (joiner) add(*joiner).role = service::MemberRole::kJoins;
  return askers;
}

std::optional<std::string> ClusterSimulation::Decide(std::vector<Asker>& askers) {
  // One that joins is there before the last of the others asks: else it is decided without it.
  std::ranges::reverse(askers);
  std::string waits_for;
  for (int polls = 0; polls < kPollsMax; ++polls) {
    bool waits = false;
    for (Asker& each : askers) {
      if (each.answer) continue;
      waits = true;
      if (!each.asked) {
        each.asked = true;
        each.ask.token = ++questions_;
        each.ask.until_ns = cluster_.now() + kSecond;
        services_[each.node]->Ask(each.ask);
        // Its node may have to reach the others first.
        const bool joins = polls == 0 && each.ask.role == service::MemberRole::kJoins;
        if (joins) Advance(2 * kSecond);
        if (dice_.Chance(30)) Advance(static_cast<TimeNs>(dice_.Below(100 * kMillisecond)));
      }
      const auto answer = services_[each.node]->PopAnswer(each.ask.token);
      if (!answer) continue;
      each.asked = false;
      waits_for = answer->waits;
      if (!waits_for.empty()) continue;
      if (!answer->quorum) return "a question is refused: " + answer->quorum.error().text();
      each.answer = *answer->quorum;
    }
    if (!waits) return std::nullopt;
    if (auto wrong = AdvanceAndCheck(50 * kMillisecond, 50 * kMillisecond)) return wrong;
  }
  return "it is never decided who is left: " + waits_for;
}

// One membership for all: those that asked, in their order, and nobody else.
std::optional<std::string> ClusterSimulation::CheckDecision(const Job& before,
                                                            const std::vector<Asker>& askers,
                                                            bool joins) const {
  const service::Quorum& first = *askers.front().answer;
  std::vector<std::uint32_t> wanted;
  for (const Asker& each : askers) {
    if (each.answer->membership != first.membership || each.answer->epoch != first.epoch) {
      return fmt::format("{}: two decisions about its ranks", before.name);
    }
    const bool member = each.ask.role == service::MemberRole::kMember;
    wanted.push_back(member ? each.ask.member : each.answer->own);
  }
  std::ranges::sort(wanted);
  if (wanted != first.membership.members) {
    return fmt::format("{}: members {}, who asked are {}", before.name,
                       fmt::join(first.membership.members, " "), fmt::join(wanted, " "));
  }
  const std::size_t lost =
      static_cast<std::size_t>(std::ranges::count_if(before.slots, &RankSlot::exited));
  if (first.lost.size() != lost) {
    return fmt::format("{}: {} ranks are said to be lost, and {} were evicted", before.name,
                       first.lost.size(), lost);
  }
  if (joins && wanted.back() < service::Quorum::FirstNew(first.membership.generation)) {
    return before.name + ": who joins has the number of one that was a member";
  }
  return std::nullopt;
}

std::optional<std::string> ClusterSimulation::EnrollDecided(std::size_t before,
                                                            const std::vector<Asker>& askers) {
  const service::Quorum& decided = *askers.front().answer;
  const Job& old = jobs_[before];
  Job job{.id = JobId{static_cast<std::uint32_t>(jobs_.size() + 1)},
          .name = old.name,
          .world_size = static_cast<std::uint32_t>(decided.membership.members.size()),
          .leader = old.leader,
          .model = old.model,
          .served = old.served,
          .values = old.values,
          .members = decided.membership.members,
          .generation = decided.membership.generation};
  for (const Asker& each : askers) {
    const std::string& at = each.answer->rendezvous;
    if (job.leader && !at.empty() && at != NameOf(*job.leader) + ":7733") {
      return fmt::format("{}: goes on at {} although its leader lives", old.name, at);
    }
  }
  for (const std::uint32_t member : job.members) {
    const auto asker = std::ranges::find_if(askers, [member](const Asker& each) {
      return (each.ask.role == service::MemberRole::kMember ? each.ask.member : each.answer->own) ==
             member;
    });
    job.slots.push_back({.node = asker->node, .after_epoch = decided.epoch});
  }
  Trace(fmt::format("{} goes on as job {} with {} ranks", job.name, job.id.value, job.world_size));
  ++decisions_;
  Enroll(std::move(job));
  return std::nullopt;
}

}  // namespace headrace::sim
