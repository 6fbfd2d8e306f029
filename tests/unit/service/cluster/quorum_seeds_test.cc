// Seeded runs of the question who is left of a job: processes die, connections break, nodes are cut
// off and come back, ranks notice late, decisions are missed, others join and wait as spares. A
// failure prints its seed.
//
// What is checked: one membership for each decision, whoever is told it; nobody is seated who had
// not asked, or who was left out before; a number is given to one process only, and by the decision
// that takes it in; nobody goes on with fewer than the job allows; whoever asks and lives has an
// answer in the end, a spare as soon as there is a place; and the leader and all nodes are left
// with nothing.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/service/cluster/meeting.h"
#include "tests/unit/service/cluster/seeds.h"

namespace headrace::support {
namespace {

using service::AskQuorum;
using service::MemberRole;
using service::Membership;
using service::QuorumAnswered;

constexpr TimeNs kGrace = 300 * kMillisecond;
constexpr std::uint64_t kSeeds = 1000;
constexpr int kActs = 120;
constexpr int kSettleRoundsMax = 400;

class QuorumRun {
 public:
  explicit QuorumRun(std::uint64_t seed) : random_(seed) {
    const std::uint32_t nodes = 1 + Below(4);
    for (std::uint32_t i = 0; i < nodes; ++i) {
      meeting_.AddNode(std::string(1, static_cast<char>('a' + i)));
    }
    world_ = 2 + Below(7);
    min_world_ = 1 + Below(world_);
    Membership all;
    for (std::uint32_t i = 0; i < world_; ++i) all.members.push_back(i);
    for (std::uint32_t i = 0; i < world_; ++i) {
      members_.push_back({.number = i, .node = Below(nodes), .membership = all});
    }
    applicants_left_ = Below(4);
    for (std::uint32_t i = 0; i < world_; ++i) Attach(i, 0);
  }

  std::string Run() {
    for (int i = 0; i < kActs && wrong_.empty(); ++i) Act();
    Settle();
    return wrong_;
  }

 private:
  struct Process {
    std::uint32_t number = 0;  // as a member
    MemberRole role = MemberRole::kMember;
    std::uint32_t node = 0;
    Membership membership;  // that it has adopted
    std::uint32_t epoch = 1;
    bool dead = false;
    bool over = false;          // it was refused
    std::uint64_t session = 0;  // 0: it is not attached
    std::uint64_t client = 0;   // of the connection by which it asks; 0: none
    std::uint64_t token = 0;    // of the question that is open
    std::uint32_t decided = 0;  // the last generation that it was told
  };

  std::uint32_t Below(std::uint32_t end) {
    return std::uniform_int_distribution<std::uint32_t>(0, end - 1)(random_);
  }
  MeetingNode& NodeOf(const Process& process) { return *meeting_.nodes()[process.node]; }
  void Break(std::string what) {
    if (wrong_.empty()) wrong_ = std::move(what);
  }

  service::SessionIdentity IdentityOf(std::uint32_t member) const {
    const Process& process = members_[member];
    auto identity = Meeting::Rank(1, process.number % world_, world_);
    identity.member = process.number;
    identity.id = SessionId{process.session};
    identity.epoch = process.epoch;
    return identity;
  }

  void Attach(std::uint32_t member, std::uint32_t after_epoch) {
    Process& process = members_[member];
    process.session = ++numbers_;
    auto identity = IdentityOf(member);
    identity.after_epoch = after_epoch;
    identity.epoch = process.epoch = after_epoch + 1;
    // Only the question is looked at here: how a job forms is no business of the leader's.
    identity.rendezvous.clear();
    NodeOf(process).follower.OnRankAttached(identity);
    meeting_.Collect();
  }

  void EndLease(std::uint32_t member, bool exited) {
    Process& process = members_[member];
    if (process.session == 0) return;
    NodeOf(process).follower.OnLeaseEnded(IdentityOf(member), false,
                                          exited ? "exited" : "closed its connection", exited);
    process.session = 0;
    meeting_.Collect();
  }

  void LeaveQuestion(Process& process, bool exited) {
    if (process.client == 0) return;
    NodeOf(process).follower.Handle(
        service::QuorumClientLost{.client = process.client, .exited = exited});
    process.client = process.token = 0;
    meeting_.Collect();
  }

  void Ask(std::uint32_t member) {
    Process& process = members_[member];
    if (process.dead || process.over || process.token != 0) return;
    EndLease(member, false);
    if (process.client == 0) process.client = ++numbers_;
    process.token = ++numbers_;
    if (process.role == MemberRole::kMember) asked_.insert(process.number);
    NodeOf(process).follower.Handle(
        AskQuorum{.token = process.token,
                  .client = process.client,
                  .job = "train",
                  .uid = 1000,
                  .pid = 1,
                  .leader = kMeetingPlace,
                  .role = process.role,
                  .member = process.number,
                  .membership = process.membership,
                  .epoch = process.epoch,
                  .rules = {.min_world = min_world_, .grace_ms = kGrace / kMillisecond},
                  .until_ns = meeting_.now() + 2 * kSecond},
        meeting_.now());
    meeting_.Collect();
    Hear();
  }

  void Kill(std::uint32_t member) {
    Process& process = members_[member];
    if (process.dead) return;
    EndLease(member, true);
    LeaveQuestion(process, true);
    process.dead = true;
  }

  // One more process comes to the job.
  void Apply() {
    if (applicants_left_ == 0 || settling_) return;
    --applicants_left_;
    const bool spare = Below(2) == 0;
    members_.push_back({.role = spare ? MemberRole::kSpare : MemberRole::kJoins,
                        .node = Below(static_cast<std::uint32_t>(meeting_.nodes().size())),
                        .membership = {}});
    ++applied_;
    Ask(static_cast<std::uint32_t>(members_.size() - 1));
  }

  // It was taken in by the decision.
  void Enter(Process& process, const service::Quorum& quorum) {
    const std::uint32_t generation = quorum.membership.generation;
    if (quorum.own < service::Quorum::FirstNew(generation) ||
        quorum.own >= service::Quorum::FirstNew(generation + 1)) {
      Break(fmt::format("member {} is new in generation {}", quorum.own, generation));
    }
    if (!entered_.insert(quorum.own).second) Break("two processes have one number");
    process.number = quorum.own;
    process.role = MemberRole::kMember;
    asked_.insert(quorum.own);
  }

  void CheckSeated(const Membership& told) {
    std::uint32_t taken_in = 0;
    for (const std::uint32_t each : told.members) {
      const bool is_new = each >= service::Quorum::FirstNew(1);
      taken_in += is_new ? 1 : 0;
      if (!is_new && !asked_.contains(each)) {
        Break(fmt::format("member {} was seated unasked", each));
      }
      if (each >= service::Quorum::FirstNew(told.generation + 1)) Break("a number of tomorrow");
      // Whoever is told late may hear of an earlier decision after a later one.
      const auto left_out = left_out_.find(each);
      if (left_out != left_out_.end() && left_out->second < told.generation) {
        Break(fmt::format("member {} of generation {} was left out in {}", each, told.generation,
                          left_out->second));
      }
    }
    if (taken_in > applied_) Break("more were taken in than had come");
  }

  // Attaches as it was told, or is told so and loses the connection before it has.
  void Adopt(std::uint32_t member, const service::Quorum& quorum) {
    Process& process = members_[member];
    const Membership& told = quorum.membership;
    const auto [known, is_new] = decided_.try_emplace(told.generation, told);
    if (!is_new && known->second != told) {
      Break(fmt::format("generation {} has two memberships", told.generation));
    }
    const MemberRole was = process.role;
    if (was != MemberRole::kMember) Enter(process, quorum);
    if (!told.RankOf(process.number)) {
      Break(fmt::format("member {} is told of others' membership", process.number));
    }
    if (told.members.size() < min_world_) Break("a job goes on with fewer than it may");
    CheckSeated(told);
    for (const std::uint32_t each : told.members) ever_.insert(each);
    for (std::uint32_t each = 0; each < world_; ++each) ever_.insert(each);
    for (const std::uint32_t each : ever_) {
      if (!is_new || told.RankOf(each) || each >= service::Quorum::FirstNew(told.generation + 1)) {
        continue;
      }
      const auto since = left_out_.try_emplace(each, told.generation).first;
      since->second = std::min(since->second, told.generation);
    }
    if (told.generation <= process.decided) {
      Break(fmt::format("member {} is told of generation {} after {}", member, told.generation,
                        process.decided));
    }
    process.decided = told.generation;
    process.token = 0;
    if (!settling_ && Below(4) == 0) {
      // It has not met the others. One that was taken in has nothing to show for it, and comes as
      // another.
      if (was != MemberRole::kMember) {
        process.role = was;
        ++applied_;
      }
      return LeaveQuestion(process, false);
    }
    process.client = 0;
    process.membership = told;
    Attach(member, quorum.epoch);
  }

  void Hear() {
    for (const auto& node : meeting_.nodes()) {
      for (const QuorumAnswered& answer : std::exchange(node->quorums, {})) {
        const auto process = std::ranges::find(members_, answer.token, &Process::token);
        if (process == members_.end()) continue;  // it died meanwhile
        const auto member = static_cast<std::uint32_t>(process - members_.begin());
        process->token = 0;
        if (!answer.waits.empty()) continue;
        if (answer.quorum) {
          Adopt(member, *answer.quorum);
        } else if (answer.quorum.error().code() == Code::kMismatch) {
          process->over = true;
          LeaveQuestion(*process, false);
        } else {
          LeaveQuestion(*process, false);  // and asks again
        }
      }
    }
  }

  void Deliver() {
    MeetingNode& node =
        *meeting_.nodes()[Below(static_cast<std::uint32_t>(meeting_.nodes().size()))];
    if (node.wants_leader && node.id == 0 && Below(3) == 0) {
      if (!meeting_.Connect(node)) Break("a node is not let in");
    }
    if (Below(2) == 0) {
      meeting_.DeliverToLeader(node);
    } else {
      meeting_.DeliverToNode(node);
    }
    Hear();
  }

  void Pass(TimeNs time_ns) {
    meeting_.Pass(time_ns);
    meeting_.leader().Expire(meeting_.now());
    meeting_.Collect();
    for (const auto& node : meeting_.nodes()) node->follower.Expire(meeting_.now());
    meeting_.Collect();
    Hear();
  }

  void Act() {
    const std::uint32_t member = Below(static_cast<std::uint32_t>(members_.size()));
    MeetingNode& node =
        *meeting_.nodes()[Below(static_cast<std::uint32_t>(meeting_.nodes().size()))];
    switch (Below(20)) {
      case 0:
        if (Below(3) == 0) Kill(member);
        return;
      case 1:
        if (node.id != 0 && Below(3) == 0) meeting_.Cut(node, "broke");
        return;
      case 2:
        if (Below(4) == 0) EndLease(member, false);  // nobody knows why
        return;
      case 3:
        LeaveQuestion(members_[member], false);  // and it comes over another connection
        return;
      case 4:
      case 5:
      case 6:
        Ask(member);
        return;
      case 9:
        return Apply();
      case 7:
      case 8:
        Pass(static_cast<TimeNs>(Below(200)) * kMillisecond);
        return;
      default:
        Deliver();
    }
  }

  // All that live ask, links are there, time passes: everybody has an answer.
  void Settle() {
    settling_ = true;
    for (int round = 0; round < kSettleRoundsMax && wrong_.empty(); ++round) {
      const bool goes_on = std::ranges::any_of(members_, [](const Process& each) {
        return !each.dead && !each.over && each.role == MemberRole::kMember;
      });
      const bool all = std::ranges::all_of(members_, [goes_on](const Process& each) {
        const bool may_wait =
            each.role == MemberRole::kSpare || (each.role == MemberRole::kJoins && !goes_on);
        return each.dead || each.over || may_wait || (each.session != 0 && each.token == 0);
      });
      if (all && round > 0) break;
      if (round + 1 == kSettleRoundsMax) Break("somebody has no answer");
      // Who was attached before the others notices that they do not come, too.
      for (std::uint32_t member = 0; member < members_.size(); ++member) Ask(member);
      meeting_.Run();
      Hear();
      Pass(kGrace / 2);
    }
    for (std::uint32_t member = 0; member < members_.size(); ++member) Kill(member);
    meeting_.Run();
    if (meeting_.leader().quorums_count() != 0) Break("the leader keeps a question");
    for (const auto& node : meeting_.nodes()) {
      if (node->follower.quorums_count() != 0) Break("a node keeps a question");
    }
  }

  std::mt19937_64 random_;
  Meeting meeting_;
  std::uint32_t world_ = 0;
  std::uint32_t min_world_ = 1;
  std::uint64_t numbers_ = 0;
  std::vector<Process> members_;
  std::map<std::uint32_t, Membership> decided_;  // by generation
  std::set<std::uint32_t> asked_;
  std::set<std::uint32_t> entered_;  // members that were applicants
  std::set<std::uint32_t> ever_;     // members of any decision
  std::uint32_t applicants_left_ = 0;
  std::uint32_t applied_ = 0;
  std::map<std::uint32_t, std::uint32_t> left_out_;  // the first generation without the member
  bool settling_ = false;
  std::string wrong_;
};

void RunSeeds(std::uint64_t first, std::uint64_t count) {
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    ASSERT_EQ(QuorumRun(seed).Run(), "") << "replay with HEADRACE_SIM_SEED=" << seed;
  }
}

TEST(QuorumSeeds, KeepEveryPromise) {
  const Seeds seeds = ReadSeeds(kSeeds, kSeeds);
  PrintSeeds("quorums", seeds);
  RunSeeds(seeds.first, seeds.count);
  if (!HasFatalFailure()) RunSeeds(seeds.first_new, seeds.count_new);
}

}  // namespace
}  // namespace headrace::support
