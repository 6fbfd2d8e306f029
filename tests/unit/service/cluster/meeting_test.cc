// Leader and followers together, with every message a step at which something may go wrong, and
// with many seeds of messages delivered in any order that the connections allow.
#include "tests/unit/service/cluster/meeting.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "tests/support/expect_text.h"

namespace headrace::support {
namespace {

using service::CloseGroup;
using service::JobFailed;
using service::JobFormed;
using service::OpenGroup;

constexpr std::uint32_t kWorld = 3;

// Three nodes with a rank each, of which nothing has been delivered.
struct Three {
  Three() {
    for (std::uint32_t rank = 0; rank < kWorld; ++rank) {
      MeetingNode& node = meeting.AddNode(std::string(1, static_cast<char>('a' + rank)));
      meeting.Attach(node, Meeting::Rank(1, rank, kWorld));
      const Status status = meeting.Connect(node);
      HR_CHECK(status.ok());
    }
  }
  MeetingNode& node(std::size_t i) { return *meeting.nodes()[i]; }
  // Delivers the next message of whoever has one; false when nobody has.
  bool Step() {
    for (const auto& each : meeting.nodes()) {
      if (meeting.DeliverToLeader(*each) || meeting.DeliverToNode(*each)) return true;
    }
    return false;
  }

  Meeting meeting;
};

void ExpectClean(Three& three) {
  EXPECT_EQ(three.meeting.leader().jobs_count(), 0U);
  for (const auto& node : three.meeting.nodes()) {
    EXPECT_EQ(node->Told<OpenGroup>().size(), node->Told<CloseGroup>().size()) << node->name;
    node->follower.Handle(service::JobEnded{JobId{1}});
    EXPECT_EQ(node->follower.jobs_count(), 0U) << node->name;
  }
}

std::size_t StepsToForm() {
  Three three;
  std::size_t steps = 0;
  while (three.Step()) ++steps;
  for (const auto& node : three.meeting.nodes()) HR_CHECK(node->Told<JobFormed>().size() == 1);
  return steps;
}

TEST(Meeting, ANodeLostAtAnyStepIsNamedOnTheOthersOrReplaced) {
  const std::size_t steps = StepsToForm();
  ASSERT_GT(steps, 20U);
  for (std::size_t lost = 0; lost < kWorld; ++lost) {
    for (std::size_t at = 0; at <= steps; ++at) {
      Three three;
      for (std::size_t step = 0; step < at; ++step) ASSERT_TRUE(three.Step());
      const bool agreed = !three.node(lost).Told<OpenGroup>().empty();
      three.meeting.Cut(three.node(lost), "is lost");
      three.node(lost).wants_leader = false;
      three.meeting.Run();
      const std::string name = three.node(lost).name;
      for (std::size_t other = 0; other < kWorld; ++other) {
        if (other == lost) continue;
        const MeetingNode& node = three.node(other);
        if (node.failure().empty()) {
          EXPECT_FALSE(agreed) << "step " << at;
          EXPECT_THAT(node.waits(), testing::HasSubstr(fmt::format("rank {}", lost)));
        } else {
          EXPECT_THAT(node.failure(), testing::HasSubstr("node " + name)) << "step " << at;
        }
      }
      if (!three.node((lost + 1) % kWorld).failure().empty()) {
        if (three.node(lost).failure().empty()) {
          // It waits for a leader again; its ranks end.
          three.node(lost).follower.Handle(service::JobEnded{JobId{1}});
        }
        ExpectClean(three);
      }
    }
  }
}

TEST(Meeting, ARankLostAtAnyStepEndsTheJobEverywhereWithOneCause) {
  const std::size_t steps = StepsToForm();
  for (std::size_t at = 0; at <= steps; ++at) {
    Three three;
    for (std::size_t step = 0; step < at; ++step) ASSERT_TRUE(three.Step());
    // Whoever has not even heard from the leader waits for the next epoch instead.
    std::set<std::string> newcomers;
    for (const auto& node : three.meeting.nodes()) {
      if (node->waits().find("have attached") == std::string::npos) newcomers.insert(node->name);
    }
    three.node(1).follower.OnRankLost(JobId{1}, 1, "exited or was killed");
    three.meeting.Run();
    std::size_t failed = 0;
    for (const auto& node : three.meeting.nodes()) {
      if (node->failure().empty()) {
        EXPECT_TRUE(newcomers.contains(node->name)) << node->name << " at step " << at;
        EXPECT_NE(node->waits().find("rank"), std::string::npos) << node->waits();
        EXPECT_TRUE(node->Told<OpenGroup>().empty());
        continue;
      }
      ++failed;
      EXPECT_EQ(node->Told<JobFailed>().size(), 1U) << node->name << " at step " << at;
      EXPECT_TEXT(node->failure(), "rank 1", "pid 101", "node b");
    }
    EXPECT_FALSE(three.node(1).failure().empty()) << "at step " << at;
    if (failed == kWorld) ExpectClean(three);
  }
}

TEST(Meeting, TheLeaderLostAtAnyStepEndsWhatWasAgreedAndNothingElse) {
  const std::size_t steps = StepsToForm();
  for (std::size_t at = 0; at <= steps; ++at) {
    Three three;
    for (std::size_t step = 0; step < at; ++step) ASSERT_TRUE(three.Step());
    for (const auto& node : three.meeting.nodes()) {
      const bool opened = !node->Told<OpenGroup>().empty();
      const std::size_t failed_before = node->Told<JobFailed>().size();
      node->follower.OnLeaderDown(kMeetingPlace, Error(Code::kPeerLost, "node a is lost"));
      for (const auto& action : node->follower.DrainActions()) {
        if (const auto* told = std::get_if<service::ToDispatch>(&action)) {
          node->dispatch.push_back(*told);
        } else if (const auto* lane = std::get_if<service::ToLane>(&action)) {
          node->lanes.push_back(*lane);
        }
      }
      EXPECT_EQ(node->Told<JobFailed>().size() - failed_before, opened ? 1U : 0U) << at;
      EXPECT_EQ(node->Told<OpenGroup>().size(), node->Told<CloseGroup>().size()) << at;
    }
  }
}

// ---- any order ----

// What happens to several jobs on several nodes, drawn from a seed.
class Turmoil {
 public:
  explicit Turmoil(std::uint32_t seed) : dice_(seed) {
    for (const char* name : {"a", "b", "c", "d"}) meeting_.AddNode(name);
    meeting_.AddServer("s");
    jobs_given_.assign(4, 0);
  }

  void Run() {
    for (int round = 0; round < 3000; ++round) {
      Turn();
      if (round % 50 == 0) CheckFormed();
    }
    EndAll();
  }

  // How often a node was told that a job may begin, and that one has failed.
  template <typename Kind>
  std::size_t Count() {
    std::size_t count = 0;
    for (const auto& node : meeting_.nodes()) count += node->Told<Kind>().size();
    return count;
  }

 private:
  struct LocalJob {
    std::string name;
    std::vector<std::uint32_t> ranks;
    bool broken = false;
  };

  std::uint32_t Draw(std::uint32_t sides) {
    return std::uniform_int_distribution<std::uint32_t>(0, sides - 1)(dice_);
  }
  MeetingNode& DrawNode() { return *meeting_.nodes()[Draw(4)]; }

  void Turn() {
    const std::uint32_t what = Draw(1000);
    if (what < 900) return Deliver();
    if (what < 930) return Connect();
    if (what < 940) return Leave();
    if (what < 985) return Attach();
    if (what < 987) return Lose();
    if (what < 989) return EndOrderly();
    if (what < 990) return Cut();
    Forget();
  }

  void Deliver() {
    MeetingNode& node = *meeting_.nodes()[Draw(5)];
    if (Draw(2) == 0 ? !meeting_.DeliverToLeader(node) : !meeting_.DeliverToNode(node)) return;
  }
  void Connect() {
    MeetingNode& node = *meeting_.nodes()[Draw(5)];
    if (!node.wants_leader || node.id != 0) return;
    const Status status = meeting_.Connect(node);
    ASSERT_TRUE(status.ok()) << status.error().text();
  }
  void Leave() { meeting_.Leave(*meeting_.nodes()[Draw(5)]); }
  // Rank r of each job belongs to node r.
  void Attach() {
    const std::uint32_t at = Draw(4);
    const std::string name = Draw(2) == 0 ? "one" : "two";
    for (const auto& [number, job] : local_[at]) {
      if (job.name == name) return;
    }
    const std::uint32_t number = ++jobs_given_[at];
    local_[at][number] = {.name = name, .ranks = {at}};
    auto rank = Meeting::Rank(number, at, 4, name);
    if (name == "two") rank.architecture = Architecture::kParameterServer;
    meeting_.Attach(*meeting_.nodes()[at], rank);
  }
  void Lose() {
    const std::uint32_t at = Draw(4);
    for (auto& [number, job] : local_[at]) {
      if (job.broken) continue;
      job.broken = true;
      meeting_.nodes()[at]->follower.OnRankLost(JobId{number}, at, "was killed");
      return meeting_.Collect();
    }
  }
  void EndOrderly() {
    const std::uint32_t at = Draw(4);
    for (auto& [number, job] : local_[at]) {
      if (job.broken) continue;
      job.broken = true;
      meeting_.nodes()[at]->follower.Handle(
          service::RankLeft{.job = JobId{number}, .rank = at, .posted = 5});
      return meeting_.Collect();
    }
  }
  void Cut() {
    MeetingNode& node = *meeting_.nodes()[Draw(5)];
    if (node.id != 0) meeting_.Cut(node, "is lost");
  }
  // Dispatch forgets a job whose ranks are gone or that has failed.
  void Forget() {
    const std::uint32_t at = Draw(4);
    const auto failures = meeting_.nodes()[at]->Told<JobFailed>();
    for (auto& [number, job] : local_[at]) {
      const bool failed =
          std::any_of(failures.begin(), failures.end(),
                      [id = JobId{number}](const JobFailed& each) { return each.job == id; });
      if (!job.broken && !failed) continue;
      meeting_.nodes()[at]->follower.Handle(service::JobEnded{JobId{number}});
      local_[at].erase(number);
      return meeting_.Collect();
    }
  }

  // Whoever formed a job in one epoch did so with one key, one agreement and one cost.
  void CheckFormed() {
    std::map<std::uint32_t, std::vector<transport::CostLine>> costs;
    std::map<std::uint32_t, std::uint64_t> keys;
    for (const auto& node : meeting_.nodes()) {
      for (const OpenGroup& open : node->Told<OpenGroup>()) {
        const auto [known, is_new] = keys.emplace(open.options.epoch, open.options.key);
        ASSERT_EQ(known->second, open.options.key);
      }
      std::set<JobId> seen;
      for (const JobFormed& formed : node->Told<JobFormed>()) {
        ASSERT_TRUE(seen.insert(formed.job).second) << "formed once";
        ASSERT_EQ(formed.nodes.data_nodes_count(), 4U);
        const auto [known, is_new] = costs.emplace(formed.nodes.epoch, formed.nodes.costs);
        ASSERT_EQ(known->second, formed.nodes.costs);
      }
      std::set<JobId> failed;
      for (const JobFailed& each : node->Told<JobFailed>()) {
        ASSERT_TRUE(failed.insert(each.job).second) << "failed once: " << each.cause;
        ASSERT_FALSE(each.cause.empty());
      }
    }
  }

  // All ranks go; then nothing is left anywhere.
  void EndAll() {
    for (std::uint32_t at = 0; at < 4; ++at) {
      for (auto& [number, job] : local_[at]) {
        if (!job.broken) {
          meeting_.nodes()[at]->follower.Handle(
              service::RankLeft{.job = JobId{number}, .rank = at, .posted = 5});
        }
      }
    }
    meeting_.Run();
    for (std::uint32_t at = 0; at < 4; ++at) {
      for (auto& [number, job] : local_[at]) {
        meeting_.nodes()[at]->follower.Handle(service::JobEnded{JobId{number}});
      }
    }
    meeting_.Run();
    CheckFormed();
    EXPECT_EQ(meeting_.leader().jobs_count(), 0U);
    for (const auto& node : meeting_.nodes()) {
      EXPECT_EQ(node->follower.jobs_count(), 0U) << node->name;
      EXPECT_EQ(node->Told<OpenGroup>().size(), node->Told<CloseGroup>().size()) << node->name;
      EXPECT_TRUE(node->facts.server || !node->wants_leader) << node->name;
    }
  }

  std::mt19937 dice_;
  Meeting meeting_;
  std::vector<std::uint32_t> jobs_given_;
  std::map<std::uint32_t, std::map<std::uint32_t, LocalJob>> local_;
};

TEST(Meeting, KeepsItsPromisesInAnyOrderOfMessagesAndFaults) {
  constexpr std::uint32_t kSeeds = 500;
  std::size_t formed = 0;
  std::size_t failed = 0;
  for (std::uint32_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Turmoil turmoil(seed);
    turmoil.Run();
    formed += turmoil.Count<JobFormed>();
    failed += turmoil.Count<JobFailed>();
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(formed, kSeeds) << "else the faults come before anything";
  EXPECT_GT(failed, kSeeds);
}

}  // namespace
}  // namespace headrace::support
