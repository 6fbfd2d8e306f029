// Barriers that follow gradients: what ends them says that every rank has all averages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <random>
#include <vector>

#include "tests/support/expect_text.h"
#include "tests/support/hand_driven_cluster.h"
#include "tests/unit/service/dispatch/expect.h"
#include "tests/unit/service/dispatch/planned.h"

namespace headrace::support {
namespace {

ipc::Record Following(std::uint32_t timeout_ms = 0) {
  ipc::Record record = Barrier();
  record.flags = ipc::kRecordFollowsGradients;
  record.timeout_ms = timeout_ms;
  return record;
}

// Two ranks on one node with two gradients, each a block of the plan.
struct Followed {
  Followed() {
    for (const std::uint32_t rank : {0U, 1U}) {
      ranks[rank] = &node.Attach(kPairFor1s, rank);
      HandIn(node, *ranks[rank], layout);
    }
    node.Settle();
  }
  void TakePlan() {
    Adopt(node, JobId{1}, PlanOf({{{1, 0, 100}}, {{0, 0, 100}}}));
    node.Settle();
  }
  // All gradients of an iteration on a rank.
  void PostAll(std::uint32_t rank) {
    for (const std::uint32_t tensor : {1U, 0U}) PostGradient(*ranks[rank], *layout, tensor);
  }

  HandDrivenNode node;
  std::shared_ptr<const service::Layout> layout = PackedLayout({100, 100});
  std::array<ClientEnd*, 2> ranks{};
};

TEST(FollowingBarrier, EndsWithTheLastAverageThoughPostedBefore) {
  Followed job;
  for (const std::uint32_t rank : {0U, 1U}) {
    job.PostAll(rank);
    job.ranks[rank]->Post(Following());
  }
  job.node.Settle();
  for (const ClientEnd* rank : job.ranks) ExpectOpen(*rank, 3);
  job.TakePlan();
  for (const ClientEnd* rank : job.ranks) {
    for (std::uint64_t record = 1; record <= 3; ++record) ExpectOk(*rank, record);
  }
}

TEST(FollowingBarrier, WaitsForARankThatHasNotPostedItsGradients) {
  Followed job;
  job.TakePlan();
  job.PostAll(0);
  job.ranks[0]->Post(Following());
  PostGradient(*job.ranks[1], *job.layout, 1);
  job.node.Settle();
  ExpectOk(*job.ranks[0], 1);
  ExpectOpen(*job.ranks[0], 3);
  PostGradient(*job.ranks[1], *job.layout, 0);
  job.node.Settle();
  ExpectOk(*job.ranks[0], 2);
  ExpectOpen(*job.ranks[0], 3);
  job.ranks[1]->Post(Following());
  job.node.Settle();
  for (const ClientEnd* rank : job.ranks) ExpectOk(*rank, 3);
}

TEST(FollowingBarrier, FollowsTheIterationThatItsRankHasPosted) {
  Followed job;
  job.TakePlan();
  for (int iteration = 0; iteration < 3; ++iteration) {
    for (const std::uint32_t rank : {0U, 1U}) {
      job.PostAll(rank);
      job.ranks[rank]->Post(Following());
    }
    job.node.Settle();
    for (const ClientEnd* rank : job.ranks) {
      ExpectOk(*rank, static_cast<std::uint64_t>(3 * iteration + 3));
    }
  }
  // Nothing of the next one: it has nothing to wait for.
  for (ClientEnd* rank : job.ranks) rank->Post(Following());
  job.node.Settle();
  for (const ClientEnd* rank : job.ranks) ExpectOk(*rank, 10);
}

TEST(FollowingBarrier, IsShownAsWaitingForItsIteration) {
  Followed job;
  for (const std::uint32_t rank : {0U, 1U}) {
    job.PostAll(rank);
    job.ranks[rank]->Post(Following());
  }
  job.node.Settle();
  const auto waits = [](const auto& slot) {
    const ipc::QueueRow row = *ipc::ReadRow(slot);
    return row.kind == static_cast<std::uint8_t>(Collective::kBarrier) && row.iteration == 0 &&
           row.reason == static_cast<std::uint32_t>(ipc::WaitReason::kIteration) &&
           row.wait_argument == 1;
  };
  EXPECT_EQ(std::ranges::count_if(job.node.board().queue, waits), 1);
}

TEST(FollowingBarrier, IsAnotherThanAPlainOne) {
  Followed job;
  job.PostAll(0);
  job.ranks[0]->Post(Following());
  job.ranks[1]->Post(Barrier());
  job.node.Settle();
  ExpectFailed(*job.ranks[0], 3, Code::kMismatch, {"barrier after iteration 1"});
  ExpectFailed(*job.ranks[1], 1, Code::kMismatch, {"barrier after iteration 1"});
}

TEST(FollowingBarrier, EndsWithTheFailureOfGradientsThatItFollows) {
  Followed job;
  job.TakePlan();
  job.PostAll(0);
  job.ranks[0]->Post(Following());
  job.node.Settle();
  PostGradient(*job.ranks[0], *job.layout, 0);  // a second time, while it is open
  job.node.Settle();
  ExpectFailed(*job.ranks[0], 3, Code::kInvalidArgument, {"gradient 0"});
  // Its other post gets the same, and so does a later one.
  job.PostAll(1);
  job.ranks[1]->Post(Following());
  job.node.Settle();
  ExpectFailed(*job.ranks[1], 3, Code::kInvalidArgument, {"gradient 0"});
}

TEST(FollowingBarrier, IsRefusedWithoutALayoutAndOfWhatMoves) {
  HandDrivenNode node;
  ClientEnd& alone = node.Attach({.world_size = 1}, 0);
  alone.Post(Following());
  ipc::Record sum = kSum;
  sum.flags = ipc::kRecordFollowsGradients;
  alone.Post(sum);
  node.Settle();
  ExpectFailed(alone, 1, Code::kInvalidArgument, {"flags is 8", "layout"});
  ExpectFailed(alone, 2, Code::kInvalidArgument, {"flags is 8", "all_reduce"});
}

TEST(FollowingBarrier, TimesOutWithWhatItsIterationWaitsFor) {
  Followed job;
  for (const std::uint32_t rank : {0U, 1U}) {
    job.PostAll(rank);
    job.ranks[rank]->Post(Following(50));
  }
  job.node.Settle();
  job.node.Advance(50 * kMillisecond);
  for (const ClientEnd* rank : job.ranks) {
    ExpectFailed(*rank, 3, Code::kTimeout,
                 {"barrier after iteration 1", "50 ms", "plan is being made"});
  }
}

// Ranks 0 and 1 on node a, rank 2 on node b, with two gradients, each a block of the plan.
struct FollowedBetweenNodes {
  FollowedBetweenNodes() {
    const std::vector<std::vector<std::uint32_t>> ranks = {{0, 1}, {2}};
    const JobSpec job{.world_size = 3, .rendezvous = "a:7733"};
    for (std::size_t node = 0; node < 2; ++node) {
      for (const std::uint32_t rank : ranks[node]) {
        clients[rank] = &cluster.node(node).Attach(job, rank);
        HandIn(cluster.node(node), *clients[rank], layout);
      }
    }
    cluster.Form(job, ranks);
    cluster.Advance(kMillisecond);
    for (std::size_t node = 0; node < 2; ++node) {
      Adopt(cluster.node(node), job.id, PlanOf({{{1, 0, 100}}, {{0, 0, 100}}}));
    }
  }
  void Post(std::uint32_t rank, std::uint32_t tensor) {
    PostGradient(*clients[rank], *layout, tensor);
  }
  // All but gradient 0 of rank 2, and barriers behind them.
  void PostAllButOne(std::uint32_t timeout_ms = 0) {
    for (const std::uint32_t rank : {0U, 1U, 2U}) {
      Post(rank, 1);
      if (rank == 2) continue;
      Post(rank, 0);
      clients[rank]->Post(Following(timeout_ms));
    }
  }

  HandDrivenCluster cluster{{.nodes_count = 2}};
  std::shared_ptr<const service::Layout> layout = PackedLayout({100, 100});
  std::array<ClientEnd*, 3> clients{};
};

// Whoever sees its end knows that the ranks of other nodes have all averages, too.
TEST(FollowingBarrier, WaitsForTheAveragesOfOtherNodes) {
  FollowedBetweenNodes job;
  job.PostAllButOne();
  job.cluster.Advance(kSecond);
  for (const std::uint32_t rank : {0U, 1U}) ExpectOpen(*job.clients[rank], 3);
  job.Post(2, 0);
  job.cluster.Advance(kSecond);
  for (const std::uint32_t rank : {0U, 1U}) {
    ExpectOk(*job.clients[rank], 2);
    ExpectOpen(*job.clients[rank], 3);  // node b has not said so
  }
  job.clients[2]->Post(Following());
  job.cluster.Advance(kSecond);
  for (const ClientEnd* client : job.clients) ExpectOk(*client, 3);
}

TEST(FollowingBarrier, TimesOutWithTheBlockThatAnotherNodeLacks) {
  FollowedBetweenNodes job;
  job.PostAllButOne(50);
  job.cluster.Advance(100 * kMillisecond);
  for (const std::uint32_t rank : {0U, 1U}) {
    ExpectFailed(*job.clients[rank], 3, Code::kTimeout,
                 {"barrier after iteration 1", "50 ms", "block 2", "on lane"});
  }
}

// Ranks on any nodes post in any order, over links with any delay, and one may die. At no moment
// has any rank seen the end of the barrier while another one, dead or alive, lacks an average.
class Trial {
 public:
  explicit Trial(std::uint64_t seed) : random_(seed), cluster_(SpecOf(seed)) {
    for (std::size_t node = 0; node < cluster_.nodes_count(); ++node) {
      ranks_.emplace_back();
      for (std::uint64_t left = Between(1, 2); left > 0; --left) {
        ranks_.back().push_back(job_.world_size++);
      }
    }
    members_.resize(job_.world_size);
    for (std::size_t node = 0; node < ranks_.size(); ++node) {
      for (const std::uint32_t rank : ranks_[node]) {
        members_[rank].node = node;
        members_[rank].client = &cluster_.node(node).Attach(job_, rank);
        HandIn(cluster_.node(node), *members_[rank].client, layout_);
      }
    }
    cluster_.Form(job_, ranks_);
    cluster_.Advance(kMillisecond);
    const Blocks blocks = {{{2, 0, 300}, {1, 0, 50}}, {{1, 50, 50}, {0, 0, 200}}};
    for (std::size_t node = 0; node < ranks_.size(); ++node) {
      Adopt(cluster_.node(node), job_.id, PlanOf(blocks));
    }
  }

  void Go(bool kills) {
    const std::uint64_t killed_at = kills ? Between(1, 60) : UINT64_MAX;
    for (std::uint64_t step = 0; step < 4000; ++step) {
      if (step == killed_at) Kill();
      if (!PostOne() && std::ranges::all_of(members_, &Member::over)) break;
      cluster_.Advance(static_cast<TimeNs>(Between(0, 40)) * 10 * kMicrosecond);
      Check();
      if (::testing::Test::HasFailure()) return;
      if (killed_ && step > killed_at + 100) return;
    }
    EXPECT_TRUE(kills || std::ranges::all_of(members_, &Member::over)) << "it stands still";
  }
  bool killed() const { return killed_; }

 private:
  static constexpr std::size_t kIterations = 6;
  struct Member {
    std::size_t node = 0;
    ClientEnd* client = nullptr;
    std::vector<std::uint32_t> left;                    // gradients of this iteration to be posted
    std::vector<std::vector<std::uint64_t>> gradients;  // records, by iteration
    std::vector<std::uint64_t> barriers;                // the same
    bool dead = false;

    bool over() const {
      return dead || (barriers.size() == kIterations && client->HasEnded(barriers.back()));
    }
  };

  static ClusterSpec SpecOf(std::uint64_t seed) {
    ClusterSpec spec;
    spec.nodes_count = static_cast<std::uint32_t>(2 + seed % 3);
    spec.network = {.seed = seed, .jitter_ns = 200 * kMicrosecond};
    return spec;
  }
  std::uint64_t Between(std::uint64_t low, std::uint64_t high) {
    return std::uniform_int_distribution<std::uint64_t>(low, high)(random_);
  }

  void Kill() {
    Member& member = members_[Between(0, members_.size() - 1)];
    member.dead = killed_ = true;
    cluster_.node(member.node).Close(*member.client, false, kKilled);
  }

  bool PostOne() {
    Member& member = members_[Between(0, members_.size() - 1)];
    if (member.dead || member.over()) return false;
    const bool waits = member.left.empty() && member.barriers.size() == member.gradients.size();
    if (waits && !member.barriers.empty() && !member.client->HasEnded(member.barriers.back())) {
      return false;
    }
    if (waits) {
      member.left = {0, 1, 2};
      std::ranges::shuffle(member.left, random_);
      member.gradients.emplace_back();
    }
    if (member.left.empty()) {
      member.barriers.push_back(member.client->Post(Following()));
    } else {
      member.gradients.back().push_back(PostGradient(*member.client, *layout_, member.left.back()));
      member.left.pop_back();
    }
    return true;
  }

  void Check() {
    for (const Member& seeing : members_) {
      for (std::size_t iteration = 0; iteration < seeing.barriers.size(); ++iteration) {
        const std::uint64_t barrier = seeing.barriers[iteration];
        const bool ended = seeing.client->HasEnded(barrier);
        if (!ended || seeing.client->Read(barrier).code != Code::kOk) continue;
        for (const Member& member : members_) {
          ASSERT_GT(member.gradients.size(), iteration);
          ASSERT_EQ(member.gradients[iteration].size(), 3U);
          for (const std::uint64_t record : member.gradients[iteration]) {
            ASSERT_TRUE(member.client->HasEnded(record)) << "iteration " << iteration;
            ASSERT_EQ(member.client->Read(record).code, Code::kOk);
          }
        }
      }
    }
  }

  std::mt19937_64 random_;
  HandDrivenCluster cluster_;
  JobSpec job_{.world_size = 0, .rendezvous = "a:7733"};
  std::shared_ptr<const service::Layout> layout_ = PackedLayout({200, 100, 300});
  std::vector<std::vector<std::uint32_t>> ranks_;
  std::vector<Member> members_;
  bool killed_ = false;
};

TEST(FollowingBarrier, NeverEndsWhileAnyRankLacksAnAverage) {
  int killed = 0;
  for (std::uint64_t seed = 1; seed <= 60 && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    Trial trial(seed);
    trial.Go(seed % 3 == 0);
    killed += trial.killed() ? 1 : 0;
  }
  EXPECT_GT(killed, 10);
}

}  // namespace
}  // namespace headrace::support
