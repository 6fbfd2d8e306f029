// Seeded runs of jobs whose leader may go: whole services that die with or without their machines
// and come back, connections that break, links that are cut one way, ranks that die, notice late
// and give up waiting, others that join by whatever rendezvous they know. Jobs really form, at
// whoever leads them. A failure prints its seed.
//
// What is checked: one mapping of ranks for each job that forms, on all of its nodes; no process in
// two; nobody seated who was left out before; nobody goes on with fewer than the job allows; where
// the least world is more than half, one line of memberships only, whatever is cut off from what;
// whoever lives is answered in the end, and whoever joins where a service lives is let in.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/service/cluster/seeds.h"
#include "tests/unit/service/cluster/services.h"

namespace headrace::support::leader_loss {
namespace {

using service::MemberRole;
using service::Membership;
using service::QuorumAnswered;

constexpr TimeNs kGrace = 300 * kMillisecond;
constexpr TimeNs kSettle = 2 * kSecond;  // of those who wait for the others after a decision
constexpr std::uint64_t kSeeds = 250;    // fixed ones
constexpr std::uint64_t kNewSeeds = 1000;
constexpr int kActs = 250;
constexpr int kSettleRoundsMax = 600;
constexpr const char* kJob = "train";
constexpr std::uint32_t kUid = 1000;

std::vector<std::string> Names(std::uint32_t count) {
  std::vector<std::string> names;
  for (std::uint32_t i = 0; i < count; ++i) names.emplace_back(1, static_cast<char>('a' + i));
  return names;
}

class LeaderLossRun {
 public:
  explicit LeaderLossRun(std::uint64_t seed)
      : random_(seed), nodes_(2 + Below(4)), services_(Names(nodes_)), lives_(nodes_) {
    world_ = std::max(nodes_, 3 + Below(6));
    applicants_left_ = Below(3);
    majority_ = Below(3) != 0;
    min_world_ = majority_ ? (world_ + applicants_left_) / 2 + 1 : 1 + Below(2);
    Membership all;
    for (std::uint32_t i = 0; i < world_; ++i) all.members.push_back(i);
    for (std::uint32_t i = 0; i < world_; ++i) {
      Process process{.number = i, .node = std::min(i, Below(nodes_)), .membership = all};
      if (i < nodes_) process.node = i;
      process.rendezvous = Services::AddressOf("a");
      process.rank = i;
      process.world = world_;
      processes_.push_back(std::move(process));
    }
    for (std::uint32_t i = 0; i < world_; ++i) Attach(processes_[i]);
    services_.Run();
    Look();
  }

  std::string Run() {
    if (formed_.empty()) Break("the job did not begin");
    for (int i = 0; i < kActs && wrong_.empty(); ++i) Act();
    Settle();
    if (wrong_.empty()) EndAll();
    return wrong_;
  }
  std::size_t formed_count() const { return formed_.size(); }
  bool moved() const { return moved_; }

 private:
  struct Process {
    std::uint32_t number = 0;  // as a member
    MemberRole role = MemberRole::kMember;
    std::uint32_t node = 0;
    Membership membership{};  // in which it has met the others
    std::string rendezvous{};
    std::string places{};  // of its job's services; empty until it has met the others
    std::uint32_t rank = 0;
    std::uint32_t world = 1;
    std::uint32_t after_epoch = 0;
    std::uint32_t epoch = 1;
    bool dead = false;
    bool over = false;                         // it was refused
    bool admitted = false;                     // and has not met the others yet
    std::optional<service::Quorum> verdict{};  // that it attaches by, until it has met the others
    service::SessionIdentity identity{};       // id 0: it is not attached
    TimeNs attached_ns = 0;
    TimeNs decided_ns = 0;
    bool met = false;          // its job runs
    std::uint64_t client = 0;  // of the connection by which it asks; 0: none
    std::uint64_t token = 0;   // of the question that is open
    std::string waits{};       // what it was told last
    bool IsAttached() const { return identity.id != SessionId{}; }
  };
  // A job on one node, from its first rank to its last.
  struct Life {
    JobId id{};
    std::uint32_t attached = 0;
    bool ended = false;  // a rank of it has gone
    std::string rendezvous{};
    std::uint32_t after_epoch = 0;
    std::uint64_t members_hash = 0;
    std::uint32_t world = 0;
  };
  struct Formed {
    service::JobNodes nodes;
    Membership membership;  // as the first was told; two decisions may be of the same members
    std::map<std::uint32_t, std::uint32_t> processes;  // by rank
  };

  std::uint32_t Below(std::uint32_t end) {
    return std::uniform_int_distribution<std::uint32_t>(0, end - 1)(random_);
  }
  void Break(std::string what) {
    if (wrong_.empty()) wrong_ = std::move(what);
  }
  std::uint32_t IndexOf(const Process& process) const {
    return static_cast<std::uint32_t>(&process - processes_.data());
  }
  bool Lives(const Process& process) const { return services_.IsAlive(process.node); }

  // As the rank table and the client do: false while ranks of another life are there.
  bool Attach(Process& process) {
    Life& life = lives_[process.node];
    const Membership& told = process.verdict ? process.verdict->membership : process.membership;
    const std::uint64_t hash = told.generation == 0 ? 0 : service::HashOfMembers(told.members);
    const bool other = life.ended || life.members_hash != hash ||
                       life.rendezvous != process.rendezvous ||
                       life.after_epoch != process.after_epoch || life.world != process.world;
    if (life.attached != 0 && other) return false;
    if (life.attached == 0) {
      life = {.id = JobId{++jobs_numbered_},
              .rendezvous = process.rendezvous,
              .after_epoch = process.after_epoch,
              .members_hash = hash,
              .world = process.world};
    }
    ++life.attached;
    service::SessionIdentity& identity = process.identity;
    identity.id = SessionId{++numbers_};
    identity.job = life.id;
    identity.job_name = kJob;
    identity.rank = process.rank;
    identity.world_size = process.world;
    identity.member = process.number;
    identity.uid = kUid;
    identity.pid = static_cast<std::int32_t>(100 + IndexOf(process));
    identity.timeout_ms = 60'000;
    identity.rendezvous = process.rendezvous;
    identity.can_reconnect = true;
    identity.after_epoch = process.after_epoch;
    identity.members_hash = hash;
    identity.epoch = process.after_epoch + 1;
    identity.attached_ns = process.attached_ns = services_.now();
    process.epoch = std::max(process.epoch, identity.epoch);
    process.met = false;
    services_.at(process.node).follower.OnRankAttached(identity);
    services_.Collect();
    return true;
  }

  void EndLease(Process& process, bool exited) {
    if (!process.IsAttached()) return;
    const service::SessionIdentity identity = std::exchange(process.identity, {});
    process.met = false;
    if (!Lives(process)) return;
    const std::string cause = exited ? "exited or was killed" : "closed its connection";
    auto& follower = services_.at(process.node).follower;
    follower.OnLeaseEnded(identity, false, cause, exited);
    follower.OnRankLost(identity.job, identity.rank, cause, exited);
    Life& life = lives_[process.node];
    life.ended = true;
    if (--life.attached == 0) follower.Handle(service::JobEnded{.job = life.id});
    services_.Collect();
  }

  void LeaveQuestion(Process& process, bool exited) {
    process.token = 0;
    if (process.client == 0) return;
    const std::uint64_t client = std::exchange(process.client, 0);
    if (!Lives(process)) return;
    services_.at(process.node)
        .follower.Handle(service::QuorumClientLost{.client = client, .exited = exited});
    services_.Collect();
  }

  void Ask(Process& process) {
    EndLease(process, false);
    process.verdict.reset();
    if (process.client == 0) process.client = ++numbers_;
    process.token = ++numbers_;
    services_.at(process.node)
        .follower.Handle(
            service::AskQuorum{
                .token = process.token,
                .client = process.client,
                .job = kJob,
                .uid = kUid,
                .pid = static_cast<std::int32_t>(100 + IndexOf(process)),
                .leader = process.rendezvous,
                .role = process.role,
                .member = process.number,
                .membership = process.membership,
                .epoch = process.epoch,
                .places = service::ParsePlaces(process.places).value(),
                .rules = {.min_world = min_world_, .grace_ms = kGrace / kMillisecond},
                .until_ns = services_.now() + 2 * kSecond},
            services_.now());
    services_.Collect();
    Hear();
  }

  void Kill(Process& process) {
    if (process.dead) return;
    EndLease(process, true);
    LeaveQuestion(process, true);
    process.dead = true;
  }

  void KillService(std::uint32_t node, bool machine) {
    if (!services_.IsAlive(node)) return;
    services_.Kill(node);
    lives_[node] = {};
    machines_gone_.erase(node);
    if (machine) machines_gone_.insert(node);
    for (Process& process : processes_) {
      if (process.node != node) continue;
      process.identity = {};
      process.met = false;
      process.client = process.token = 0;
      process.verdict.reset();
      process.dead = process.dead || machine;
    }
    services_.Collect();
  }

  // What a process does when it has its turn.
  void Step(Process& process) {
    if (process.dead || process.over || !Lives(process)) return;
    if (process.IsAttached()) {
      const bool failed = services_.at(process.node).failed.contains(process.identity.job);
      const bool given_up =
          !process.met && process.verdict && services_.now() - process.attached_ns > kSettle;
      const bool called = process.met && calling_;
      // One that was taken in by a decision of which nothing came has a number that a leader
      // without memory may give away again: such a process ends here.
      const bool is_new = process.verdict && process.admitted;
      if (is_new && (failed || given_up)) return Kill(process);
      if (failed || given_up || called) Ask(process);
      return;
    }
    if (process.verdict) {
      const service::Quorum& verdict = *process.verdict;
      process.rendezvous = verdict.rendezvous;
      process.rank = *verdict.membership.RankOf(process.number);
      process.world = static_cast<std::uint32_t>(verdict.membership.members.size());
      process.after_epoch = verdict.epoch;
      if (Attach(process)) {
        process.client = 0;
      } else if (services_.now() - process.decided_ns > kSettle) {
        process.verdict.reset();  // those of another life stay
      }
      return;
    }
    if (process.token == 0) Ask(process);
  }

  void Hear() {
    for (std::uint32_t node = 0; node < nodes_; ++node) {
      if (!services_.IsAlive(node)) continue;
      for (const QuorumAnswered& answer : std::exchange(services_.at(node).answers, {})) {
        const auto process = std::ranges::find(processes_, answer.token, &Process::token);
        if (process == processes_.end()) continue;
        process->token = 0;
        process->waits = answer.waits;
        if (!answer.waits.empty()) continue;
        if (!answer.quorum) {
          process->waits = answer.quorum.error().text();
          process->over = answer.quorum.error().code() == Code::kMismatch;
          LeaveQuestion(*process, false);
        } else {
          Take(*process, *answer.quorum);
        }
      }
    }
  }

  void Take(Process& process, const service::Quorum& quorum) {
    if (process.role != MemberRole::kMember) {
      process.number = quorum.own;
      process.role = MemberRole::kMember;
      process.admitted = true;
      process.membership = quorum.membership;
    }
    if (!quorum.membership.RankOf(process.number)) Break("somebody is told of others' membership");
    if (quorum.membership.members.size() < min_world_) Break("fewer go on than may");
    if (quorum.membership.generation <= process.membership.generation &&
        quorum.membership != process.membership) {
      Break("somebody is told of the past");
    }
    process.verdict = quorum;
    process.decided_ns = services_.now();
    process.epoch = std::max(process.epoch, quorum.epoch);
  }

  // Jobs that have begun, as each node was told.
  void Look() {
    for (Process& process : processes_) {
      if (!process.IsAttached() || process.met || !Lives(process)) continue;
      WholeService& own = services_.at(process.node);
      const auto running = own.running.find(process.identity.job);
      if (running == own.running.end()) continue;
      process.met = true;
      process.admitted = false;
      Note(process, own.group_keys.at(process.identity.job.value), running->second);
      if (process.verdict) {
        process.membership = process.verdict->membership;
        process.verdict.reset();
      }
      process.epoch = std::max(process.epoch, running->second.epoch);
      const auto placed = own.placed.find(process.identity.job);
      if (placed != own.placed.end()) process.places = placed->second;
    }
  }

  void Note(const Process& process, std::uint64_t key, const service::JobNodes& nodes) {
    const Membership& told = process.verdict ? process.verdict->membership : process.membership;
    const auto [found, is_new] =
        formed_.try_emplace(key, Formed{.nodes = nodes, .membership = told, .processes = {}});
    Formed& formed = found->second;
    const auto same = [](const service::JobNode& one, const service::JobNode& other) {
      return one.name == other.name && one.ranks == other.ranks;
    };
    if (nodes.epoch != formed.nodes.epoch ||
        !std::ranges::equal(nodes.nodes, formed.nodes.nodes, same) ||
        told.members != formed.membership.members) {
      Break(fmt::format("epoch {} has two mappings: {} and {}", nodes.epoch,
                        fmt::join(told.members, " "), fmt::join(formed.membership.members, " ")));
    }
    if (told.RankOf(process.number) != process.rank) Break("a rank is not its member's place");
    const auto seat = formed.processes.try_emplace(process.rank, IndexOf(process)).first;
    if (seat->second != IndexOf(process)) Break("two processes are one rank");
    if (!is_new || told.generation == 0) return;
    moved_ = moved_ || process.rendezvous != Services::AddressOf("a");
    if (told.members.size() < min_world_) Break("a job goes on with fewer than it may");
    if (!majority_) return;
    const auto line = line_.try_emplace(told.generation, told).first;
    if (line->second != told) {
      Break(fmt::format("generation {} came about twice", told.generation));
    }
    for (const auto& [generation, earlier] : line_) {
      if (generation >= told.generation) break;
      for (const std::uint32_t member : told.members) {
        const bool is_new_there = member >= service::Quorum::FirstNew(generation + 1);
        if (!is_new_there && !earlier.RankOf(member)) Break("one that was left out is back");
      }
    }
  }

  void Apply() {
    if (applicants_left_ == 0) return;
    const std::uint32_t node = Below(nodes_);
    if (!services_.IsAlive(node)) return;
    --applicants_left_;
    const bool spare = Below(3) == 0;
    processes_.push_back({.role = spare ? MemberRole::kSpare : MemberRole::kJoins,
                          .node = node,
                          .rendezvous = Services::AddressOf(Names(nodes_)[Below(nodes_)])});
    Ask(processes_.back());
  }

  void Act() {
    Process& process = processes_[Below(static_cast<std::uint32_t>(processes_.size()))];
    switch (Below(24)) {
      case 0:
        if (Below(5) == 0) Kill(process);
        break;
      case 1:
        if (Below(2) == 0) services_.Break(Below(nodes_), Below(nodes_));
        break;
      case 2:
        // The leader's more often than others'.
        if (kills_ < nodes_ - 1 && Below(3) == 0) {
          ++kills_;
          KillService(Below(2) == 0 ? 0 : Below(nodes_), Below(2) == 0);
        }
        break;
      case 3:
        if (const std::uint32_t node = Below(nodes_); !services_.IsAlive(node) && Below(3) == 0)
          services_.Restart(node);
        break;
      case 4:
        if (Below(4) == 0 && Lives(process)) EndLease(process, false);
        break;
      case 5:
        if (Below(2) == 0 && Lives(process) && !process.IsAttached()) {
          process.verdict.reset();
          LeaveQuestion(process, false);
        }
        break;
      case 6:
        if (Below(3) == 0) Apply();
        break;
      case 7:
        if (const std::uint32_t from = Below(nodes_), to = Below(nodes_); from != to) {
          services_.SetReach(from, to, Below(3) != 0);
        }
        break;
      case 8:
      case 9:
        Pass(static_cast<TimeNs>(Below(150)) * kMillisecond);
        break;
      case 10:
      case 11:
      case 12:
      case 13:
        Step(process);
        break;
      default:
        if (Below(6) == 0) {
          services_.Dial(Below(1000));
        } else if (Below(4) == 0) {
          services_.NoticeEnd(Below(1000));
        } else {
          services_.Deliver(Below(1000));
        }
    }
    Hear();
    Look();
  }

  void Pass(TimeNs time_ns) {
    services_.Pass(time_ns);
    Hear();
  }

  // Whether the service there knows where the job is.
  bool Knows(std::uint32_t node) {
    return services_.at(node).directory.Find({kJob, kUid}) != nullptr ||
           std::ranges::any_of(processes_, [node](const Process& each) {
             return each.node == node && !each.dead && !each.places.empty();
           });
  }

  bool HasAnswer(const Process& process) {
    if (process.dead || process.over || (process.IsAttached() && process.met)) return true;
    if (process.role == MemberRole::kSpare) return true;
    // Nobody can tell it where the job is who has never met the others, when its own service does
    // not know, and that at the only address that it was given is gone, or has no rank and has lost
    // its memory.
    const auto names = Names(nodes_);
    const auto asked = static_cast<std::uint32_t>(
        std::ranges::find(names, process.rendezvous.substr(0, process.rendezvous.find(':'))) -
        names.begin());
    const bool knows_nobody = process.places.empty() && !Knows(process.node) &&
                              (!services_.IsAlive(asked) || !Knows(asked));
    const bool goes_on =
        std::ranges::any_of(processes_, [](const Process& each) { return !each.dead && each.met; });
    // Halves that have parted, as they may without a majority, can come to meet at a service that
    // leads one of them: the other has no place there, whose ranks end when their time is over.
    const bool parted = !majority_ && goes_on;
    return knows_nobody || parted || (process.role != MemberRole::kMember && !goes_on);
  }

  std::string DescribeAll() {
    std::string text;
    for (const Process& each : processes_) {
      text += fmt::format(
          "\n{} member {} role {} on {}{}{}{}{}{}{} rendezvous {} of {} at epoch {}: {}",
          IndexOf(each), each.number, static_cast<int>(each.role), Names(nodes_)[each.node],
          Lives(each) ? "" : " (no service)", each.dead ? " dead" : "", each.over ? " over" : "",
          each.IsAttached() ? " attached" : "", each.met ? " met" : "",
          each.verdict ? " decided" : "", each.rendezvous, each.membership.generation, each.epoch,
          each.waits);
    }
    for (std::uint32_t node = 0; node < nodes_; ++node) {
      if (!services_.IsAlive(node)) continue;
      WholeService& own = services_.at(node);
      const auto* known = own.directory.Find({kJob, kUid});
      text += fmt::format("\n{}: leads {} questions, has {}, wants {}; generation {} epoch {}",
                          own.name, own.leader.quorums_count(), own.follower.quorums_count(),
                          fmt::join(own.wanted, " "), known ? known->membership.generation : 0,
                          known ? known->epoch : 0);
      if (known == nullptr) continue;
      for (const auto& place : known->places)
        text += fmt::format(" {}={}", place.node, place.address);
    }
    return text;
  }

  // Links are there, services that died without their machines are back, time passes.
  void Settle() {
    for (std::uint32_t from = 0; from < nodes_; ++from) {
      for (std::uint32_t to = 0; to < nodes_; ++to) services_.SetReach(from, to, true);
    }
    for (std::uint32_t node = 0; node < nodes_; ++node) {
      const bool stays_away = machines_gone_.contains(node) && Below(2) == 0;
      if (!services_.IsAlive(node) && !stays_away) services_.Restart(node);
    }
    for (int round = 0; wrong_.empty(); ++round) {
      services_.Run();
      Hear();
      Look();
      const bool all =
          std::ranges::all_of(processes_, [this](const Process& each) { return HasAnswer(each); });
      if (all && round > 0) return;
      if (round == kSettleRoundsMax) return Break("somebody has no answer: " + DescribeAll());
      calling_ = false;
      for (std::uint32_t node = 0; node < nodes_; ++node) {
        if (!services_.IsAlive(node)) continue;
        calling_ = !std::exchange(services_.at(node).members_wait, {}).empty() || calling_;
      }
      for (Process& process : processes_) Step(process);
      services_.Run();
      Hear();
      Look();
      Pass(kGrace / 2);
    }
  }

  void EndAll() {
    for (Process& process : processes_) Kill(process);
    services_.Run();
    // What they have said is kept for a while where nobody is left.
    for (int i = 0; i < 3; ++i) {
      Pass(service::kLostMembersToldNs);
      services_.Run();
    }
    for (std::uint32_t node = 0; node < nodes_; ++node) {
      if (!services_.IsAlive(node)) continue;
      WholeService& each = services_.at(node);
      if (each.leader.quorums_count() + each.follower.quorums_count() != 0) {
        Break("a service keeps a question");
      }
      if (each.leader.jobs_count() + each.follower.jobs_count() != 0) Break("a job is kept");
      if (!each.wanted.empty()) Break("a connection is kept to " + *each.wanted.begin());
    }
    if (services_.connections() != 0) Break("connections are left");
  }

  std::mt19937_64 random_;
  std::uint32_t nodes_;
  Services services_;
  std::vector<Life> lives_;
  std::uint32_t world_ = 0;
  std::uint32_t min_world_ = 1;
  bool majority_ = false;
  std::uint32_t applicants_left_ = 0;
  std::uint32_t kills_ = 0;
  std::set<std::uint32_t> machines_gone_;
  std::uint64_t numbers_ = 0;
  std::uint32_t jobs_numbered_ = 0;
  std::vector<Process> processes_;
  std::map<std::uint64_t, Formed> formed_;    // by key
  std::map<std::uint32_t, Membership> line_;  // that came about, by generation
  bool moved_ = false;
  bool calling_ = false;  // others wait to join
  std::string wrong_;
};

// Returns in how many runs the job has moved to another leader.
std::uint64_t RunSeeds(std::uint64_t first, std::uint64_t count) {
  std::uint64_t moved = 0;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    LeaderLossRun run(seed);
    const std::string wrong = run.Run();
    EXPECT_EQ(wrong, "") << "replay with HEADRACE_SIM_SEED=" << seed;
    if (!wrong.empty()) break;
    moved += run.moved() ? 1 : 0;
  }
  return moved;
}

TEST(LeaderLossSeeds, KeepEveryPromise) {
  const Seeds seeds = ReadSeeds(kSeeds, kNewSeeds);
  PrintSeeds("leader loss", seeds);
  const std::uint64_t moved = RunSeeds(seeds.first, seeds.count);
  if (HasFailure()) return;
  if (!seeds.is_one) {
    EXPECT_GT(moved, seeds.count / 20) << "or nothing is tried here";
  }
  RunSeeds(seeds.first_new, seeds.count_new);
}

}  // namespace
}  // namespace headrace::support::leader_loss
