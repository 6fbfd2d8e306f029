#include "tests/sim/elastic_simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "service/cluster/followed_quorums.h"

namespace headrace::sim {
namespace {

constexpr int kUnevenRoundsMax = 60;
constexpr std::uint64_t kRoundsMax = 20'000;
constexpr TimeNs kGoesOnWithin = 300 * kSecond;

}  // namespace

std::optional<std::string> ElasticSimulation::Round() {
  const std::uint64_t before = run_.books.applied();
  faults_.EndWhatIsOver();
  const std::size_t first = run_.dice.Below(run_.processes.size());
  for (std::size_t i = 0; i < run_.processes.size(); ++i) {
    ElasticProcess& process = *run_.processes[(first + i) % run_.processes.size()];
    if (!run_.dice.Chance(80)) continue;
    if (auto wrong = process.Step()) return fmt::format("process {}: {}", process.index(), *wrong);
    run_.ReadServices();
  }
  idle_ = run_.books.applied() == before ? idle_ + 1 : 0;
  const std::uint64_t how_long = run_.dice.Below(100);
  TimeNs most = how_long < 50 ? 300'000 : how_long < 90 ? 5 * kMillisecond : 20 * kMillisecond;
  // Everybody waits for time to pass.
  if (idle_ > 50) most = 50 * kMillisecond;
  run_.Advance(static_cast<TimeNs>(run_.dice.Below(static_cast<std::uint64_t>(most))) + 1);
  run_.ReadServices();
  return Check();
}

std::optional<std::string> ElasticSimulation::RunFor(std::uint64_t rounds) {
  for (; rounds > 0; --rounds) {
    if (auto wrong = Round()) return wrong;
  }
  return std::nullopt;
}

std::optional<std::string> ElasticSimulation::Check() {
  if (run_.agreements.wrong()) return run_.agreements.wrong();
  for (ElasticSession& session : run_.checker.sessions()) {
    if (session.closed || run_.cluster.now() <= session.ends_by_ns) continue;
    // Of a service that is dead its process learns by its connection.
    const auto& service = run_.nodes[session.who().node].service;
    if (!service || service->instance() != session.who().instance) continue;
    if (session.client().posted() == 0 || !session.HasUnended()) continue;
    return fmt::format("{}: operations are open {:.3f} s after they should have ended",
                       session.Name(),
                       static_cast<double>(run_.cluster.now() - session.ends_by_ns) / kSecond);
  }
  for (std::size_t node = 0; node < run_.nodes.size(); ++node) {
    if (run_.cluster.node(node).discarded_in_use() != 0) {
      return fmt::format("node {}: memory was discarded while a lane used it", run_.NameOf(node));
    }
  }
  return std::nullopt;
}

std::optional<std::string> ElasticSimulation::RunUntilUneven() {
  for (int rounds = 0; rounds < kUnevenRoundsMax; ++rounds) {
    std::set<std::uint64_t> progress;
    for (const auto& process : run_.processes) {
      if (process->IsIterating()) progress.insert(process->training().Progress());
    }
    if (progress.size() > 1) return std::nullopt;
    if (auto wrong = Round()) return wrong;
  }
  return std::nullopt;
}

bool ElasticSimulation::AsksTheDead(const ElasticProcess& process) const {
  const std::string& asks = process.rendezvous();
  const std::size_t node = asks.empty() ? process.node() : static_cast<std::size_t>(asks[0] - 'a');
  return !run_.nodes[node].service;
}

// For ever wait: a spare without a place; who joins where nobody is left, or where all that it was
// told is the address of a machine that died.
bool ElasticSimulation::MayWait(const ElasticProcess& process) const {
  if (process.IsOver()) return true;
  if (!process.training().is_newcomer()) return false;
  if (process.role() == service::MemberRole::kSpare) return true;
  if (!process.IsAttached() && AsksTheDead(process)) return true;
  return std::ranges::all_of(run_.processes, [](const auto& each) {
    return each->IsOver() || each->training().is_newcomer();
  });
}

// The last of a job ask for ever where they are fewer than may go on. The client library ends them
// after its time to reconnect.
bool ElasticSimulation::AreLost() const {
  std::size_t left = 0;
  for (const auto& process : run_.processes) {
    if (process->IsAttached()) return false;
    if (!MayWait(*process)) ++left;
  }
  return left < run_.shape.min_world;
}

std::optional<std::string> ElasticSimulation::RunUntilAllGoOn(std::uint64_t iterations) {
  const std::uint64_t target = run_.books.applied() + iterations;
  const TimeNs until_ns = run_.cluster.now() + kGoesOnWithin;
  for (std::uint64_t rounds = 0; rounds < kRoundsMax && run_.cluster.now() < until_ns; ++rounds) {
    const bool all = std::ranges::all_of(run_.processes, [&](const auto& process) {
      return MayWait(*process) || (process->training().applied() >= target &&
                                   !process->training().is_newcomer() && process->IsIterating());
    });
    if (all) return std::nullopt;
    if (auto wrong = Round()) return wrong;
  }
  if (AreLost()) return std::nullopt;
  return "somebody does not go on:" + run_.DescribeAll();
}

ElasticTraining::Counts ElasticSimulation::counts() const {
  ElasticTraining::Counts all;
  for (const auto& process : run_.processes) {
    const ElasticTraining::Counts& each = process->training().counts();
    all.summed_again += each.summed_again;
    all.handed_on += each.handed_on;
    all.beside += each.beside;
    all.caught_up += each.caught_up;
    all.received += each.received;
    all.listened += each.listened;
  }
  return all;
}

std::optional<std::string> ElasticSimulation::Run() {
  run_.Trace(fmt::format("{} nodes, {} ranks, at least {}", run_.shape.nodes, run_.shape.world_size,
                         run_.shape.min_world));
  if (auto wrong = RunUntilAllGoOn(run_.dice.Below(6))) return wrong;
  for (std::uint64_t left = run_.dice.Between(1, 5); left > 0; --left) {
    auto fault = run_.shape.faults.begin();
    std::advance(fault, static_cast<std::ptrdiff_t>(run_.dice.Below(run_.shape.faults.size())));
    if (run_.dice.Chance(60)) {
      if (auto wrong = RunUntilUneven()) return wrong;
    }
    faults_.Harm(*fault);
    if (auto wrong = RunFor(run_.dice.Below(run_.dice.Chance(50) ? 40 : 400))) return wrong;
    if (run_.dice.Chance(30)) {
      if (auto wrong = faults_.Intrude()) return wrong;
    }
    // Else the next one meets a recovery.
    if (run_.dice.Chance(40) && !faults_.somebody_stands_still()) {
      if (auto wrong = RunUntilAllGoOn(run_.dice.Below(3))) return wrong;
    }
  }
  return Finish();
}

std::optional<std::string> ElasticSimulation::Finish() {
  faults_.Mend();
  if (auto wrong = RunUntilAllGoOn(1 + run_.dice.Below(3))) return wrong;
  const std::uint64_t applied = run_.books.applied();
  for (const auto& process : run_.processes) {
    if (process->IsOver() || process->training().is_newcomer()) continue;
    if (process->training().applied() + 1 < applied) {
      return fmt::format("process {} has applied {} iterations, others {}", process->index(),
                         process->training().applied(), applied);
    }
  }
  for (const auto& process : run_.processes) {
    if (!process->IsDead()) process->End(run_.dice.Chance(30));
  }
  for (const ElasticSession& session : run_.checker.sessions()) {
    if (auto wrong = session.CheckAtEnd()) return wrong;
  }
  // What services know of lost members is kept for a while.
  run_.Advance(3 * service::kLostMembersToldNs + 2 * kElasticDetection + kSecond);
  run_.ReadServices();
  return CheckAllReturned();
}

std::optional<std::string> ElasticSimulation::CheckAllReturned() {
  for (std::size_t node = 0; node < run_.nodes.size(); ++node) {
    if (!run_.nodes[node].service) continue;
    if (auto wrong = CheckReturned(node))
      return fmt::format("node {}: {}", run_.NameOf(node), *wrong);
  }
  if (run_.cluster.network().open_count() != 0) {
    return fmt::format("{} messages are still open on wires", run_.cluster.network().open_count());
  }
  if (run_.cluster.network().staging_count() != 0) {
    return fmt::format("{} pieces of staging never came back",
                       run_.cluster.network().staging_count());
  }
  if (!faults_.has_killed() && run_.lines.count() != 0)
    return "services stay connected without a job";
  return std::nullopt;
}

std::optional<std::string> ElasticSimulation::CheckReturned(std::size_t node) {
  support::HandDrivenNode& driven = run_.cluster.node(node);
  const ElasticNode& own = run_.nodes[node];
  if (driven.RowsInUse() != 0) {
    return fmt::format("{} board rows never came back", driven.RowsInUse());
  }
  if (!driven.doorbells().watched.empty()) return "a doorbell is still listened to";
  if (!driven.transport().open().empty()) return "its own lane still moves something";
  for (std::size_t lane = 0; lane <= run_.cluster.rails_count(); ++lane) {
    const ipc::LaneRow row = driven.LaneRow(lane);
    if (row.in_flight_bytes != 0 || row.in_flight_stages != 0 || row.queued_stages != 0) {
      return fmt::format("lane {} still has {} stages in flight and {} queued", lane,
                         row.in_flight_stages, row.queued_stages);
    }
  }
  if (driven.watch_tap().discarded.size() != own.attached) {
    return fmt::format("{} of {} sessions were discarded", driven.watch_tap().discarded.size(),
                       own.attached);
  }
  if (own.ranks.ranks_count() != 0 || own.ranks.jobs_count() != 0) return "a rank keeps its slot";
  if (own.service->leader().jobs_count() != 0) return "it still leads a job";
  if (own.service->leader().nodes_count() != 0) return "it still knows nodes";
  if (own.service->leader().quorums_count() != 0) return "it still has a question";
  if (own.service->follower().jobs_count() != 0) return "it still takes part in a job";
  if (own.service->follower().quorums_count() != 0) return "it still asks who is left";
  return std::nullopt;
}

}  // namespace headrace::sim
