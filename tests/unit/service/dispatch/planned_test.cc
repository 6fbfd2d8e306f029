// Gradients that move by a plan, on one node: the unchanged dispatch, queue and lane.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "service/dispatch/job/gradients.h"
#include "tests/unit/service/dispatch/expect.h"
#include "tests/unit/service/dispatch/fair_transport.h"
#include "tests/unit/service/dispatch/planned.h"

namespace headrace::support {
namespace {

const Blocks kOneEach = {{{2, 0, 30}}, {{1, 0, 20}}, {{0, 0, 10}}};
// Split and fused: the last gradient in two, the others joined.
const Blocks kSplit = {{{2, 10, 20}}, {{0, 0, 10}, {1, 0, 20}, {2, 0, 10}}};

// Behind the gradients.
constexpr std::uint64_t kOwnOffset = 4096;

class Planned : public ::testing::Test {
 protected:
  Planned() {
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      ranks_.push_back(&node_.Attach(job_, rank));
      Fill(*ranks_[rank], 100.0F * static_cast<float>(rank));
      HandIn(node_, *ranks_[rank], layout_);
    }
    node_.Settle();
  }
  std::uint64_t Post(std::uint32_t rank, std::uint32_t tensor) {
    return PostGradient(*ranks_[rank], *layout_, tensor);
  }
  // Every gradient of one iteration, the first rank forwards, the second backwards.
  void PostAll() {
    for (std::uint32_t tensor = 0; tensor < 3; ++tensor) {
      Post(0, tensor);
      Post(1, 2 - tensor);
    }
  }
  service::PlanAck Taken() { return *node_.peers().Of<service::PlanAck>().back(); }
  ipc::QueueRow Head() {
    for (std::uint64_t block = 1; block < 10; ++block) {
      if (auto row = node_.QueueRow(job_.id, block); row && row->iteration != 0) return *row;
    }
    return {};
  }

  JobSpec job_{.world_size = 2};
  HandDrivenNode node_;
  std::shared_ptr<const service::Layout> layout_ = PackedLayout({10, 20, 30});
  std::vector<ClientEnd*> ranks_;
};

TEST_F(Planned, GradientsWaitForAPlanAndSaySo) {
  PostAll();
  node_.Settle();
  ExpectOpen(*ranks_[0], 1);
  EXPECT_EQ(Head().reason, static_cast<std::uint32_t>(ipc::WaitReason::kNoPlan));
  Adopt(node_, job_.id, PlanOf(kOneEach));
  node_.Settle();
  for (std::uint64_t record = 1; record <= 3; ++record) {
    ExpectOk(*ranks_[0], record);
    ExpectOk(*ranks_[1], record);
  }
}

TEST_F(Planned, GradientsOfRanksThatHaveAllLeftWaitForNoPlan) {
  PostAll();
  node_.Settle();
  node_.Close(*ranks_[0], true, "left the job");
  node_.Settle();
  EXPECT_EQ(Head().reason, static_cast<std::uint32_t>(ipc::WaitReason::kNoPlan));
  node_.Close(*ranks_[1], true, "left the job");
  node_.Settle();
  EXPECT_EQ(node_.RowsInUse(), 0U);
}

TEST_F(Planned, SumsAreRightWhereAllReducesAreTakenApart) {
  Adopt(node_, job_.id, HalvesOf(kSplit));
  PostAll();
  node_.Settle();
  for (const ClientEnd* rank : ranks_) {
    for (std::uint64_t record = 1; record <= 3; ++record) ExpectOk(*rank, record);
    for (std::size_t i = 0; i < 60; ++i) {
      ASSERT_EQ(rank->Elements<float>()[i], 100 + 2 * static_cast<float>(i)) << i;
    }
  }
  // Bytes count once, with the half that brings them.
  EXPECT_EQ(node_.Counters().bytes_moved, 60 * sizeof(float));
}

// Three ranks, of which the last gives negative zeros and does not count.
class PlannedAverages : public ::testing::Test {
 protected:
  PlannedAverages() {
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      ranks_.push_back(&node_.Attach(job_, rank));
      HandIn(node_, *ranks_[rank], layout_);
    }
    FillAll();
    node_.Settle();
  }
  void FillAll() {
    for (ClientEnd* rank : ranks_) {
      Fill(*rank, 100.0F * static_cast<float>(rank->rank()));
      if (rank->rank() == 2) std::ranges::fill(rank->Elements<float>().first(60), -0.0F);
    }
    // Nothing that is given may become another zero.
    for (std::size_t rank = 0; rank < 2; ++rank) ranks_[rank]->Elements<float>()[7] = -0.0F;
  }
  std::uint64_t Post(std::uint32_t rank, std::uint32_t tensor, std::uint32_t contributors) {
    ipc::GradientRecord record = GradientOf(*layout_, tensor);
    record.contributors = contributors;
    return PostGradient(*ranks_[rank], record);
  }
  void PostAll(std::uint32_t contributors) {
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      for (std::uint32_t tensor = 0; tensor < 3; ++tensor) Post(rank, tensor, contributors);
    }
    node_.Settle();
  }
  void ExpectAverages(float divisor) {
    for (const ClientEnd* rank : ranks_) {
      for (std::size_t i = 0; i < 60; ++i) {
        const float sum = i == 7 ? -0.0F : 100 + 2 * static_cast<float>(i);
        const float average = rank->Elements<float>()[i];
        ASSERT_EQ(average, sum / divisor) << i;
        ASSERT_EQ(std::signbit(average), std::signbit(sum)) << i;
      }
    }
  }

  JobSpec job_{.world_size = 3};
  HandDrivenNode node_;
  std::shared_ptr<const service::Layout> layout_ = PackedLayout({10, 20, 30}, Reduction::kAverage);
  std::vector<ClientEnd*> ranks_;
};

TEST_F(PlannedAverages, AreDividedByThoseThatContributeIterationByIteration) {
  Adopt(node_, job_.id, PlanOf(kSplit));
  for (const std::uint32_t contributors : {2U, 2U, 0U, 1U, 3U, 2U}) {
    FillAll();
    PostAll(contributors);
    ExpectAverages(contributors == 0 ? 3.0F : static_cast<float>(contributors));
  }
}

TEST_F(PlannedAverages, AreDividedByThoseThatContributeWhereAllReducesAreTakenApart) {
  Adopt(node_, job_.id, HalvesOf(kSplit));
  PostAll(2);
  ExpectAverages(2);
}

TEST_F(PlannedAverages, EndWhereRanksCountOthers) {
  Adopt(node_, job_.id, PlanOf(kOneEach));
  Post(0, 2, 2);
  const std::uint64_t other = Post(1, 2, 0);
  node_.Settle();
  ExpectFailed(*ranks_[1], other, Code::kMismatch, {"rank 1", "gradient 2", "0 contributors"});
}

TEST_F(PlannedAverages, AreNotDividedByMoreThanThereAre) {
  Adopt(node_, job_.id, PlanOf(kOneEach));
  const std::uint64_t number = Post(0, 2, 4);
  node_.Settle();
  ExpectFailed(*ranks_[0], number, Code::kInvalidArgument, {"contributors", "3 ranks"});
}

TEST_F(Planned, ASumIsDividedByNobody) {
  Adopt(node_, job_.id, PlanOf(kOneEach));
  ipc::GradientRecord record = GradientOf(*layout_, 2);
  record.contributors = 2;
  const std::uint64_t number = PostGradient(*ranks_[0], record);
  node_.Settle();
  ExpectFailed(*ranks_[0], number, Code::kInvalidArgument, {"contributors", "averages"});
}

TEST_F(Planned, AllGathersWaitForTheReduceScattersBeforeThem) {
  Adopt(node_, job_.id, HalvesOf({{{2, 0, 30}}, {{0, 0, 10}, {1, 0, 20}}}));
  for (std::uint32_t rank = 0; rank < 2; ++rank) Post(rank, 2);
  node_.Settle();
  ExpectOpen(*ranks_[0], 1);
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    Post(rank, 1);
    Post(rank, 0);
  }
  node_.Settle();
  for (std::uint64_t record = 1; record <= 3; ++record) ExpectOk(*ranks_[1], record);
}

TEST_F(Planned, SumsAreRightHoweverBlocksSplitAndFuse) {
  for (const Blocks& blocks : {kOneEach, kSplit}) {
    for (const ClientEnd* rank : ranks_) Fill(*rank, 100.0F * static_cast<float>(rank->rank()));
    const bool first = node_.peers().Of<service::PlanAck>().empty();
    const auto version = first ? 1U : 2U;
    Adopt(node_, job_.id, PlanOf(blocks, version), first ? 1 : 2);
    PostAll();
    node_.Settle();
    for (const ClientEnd* rank : ranks_) {
      for (std::size_t i = 0; i < 60; ++i) {
        ASSERT_EQ(rank->Elements<float>()[i], 100 + 2 * static_cast<float>(i)) << i;
      }
      EXPECT_EQ(rank->Elements<float>()[60], 100 * static_cast<float>(rank->rank()) + 60);
    }
  }
}

TEST_F(Planned, BlocksBeginInThePlansOrderWhateverComesFirst) {
  Adopt(node_, job_.id, PlanOf(kOneEach));
  const std::uint64_t first[] = {Post(0, 0), Post(1, 0)};
  const std::uint64_t second[] = {Post(0, 1), Post(1, 1)};
  node_.Settle();
  // Both are ready, and the plan begins with gradient 2.
  ExpectOpen(*ranks_[0], first[0]);
  ExpectOpen(*ranks_[1], second[1]);
  Post(0, 2);
  node_.Settle();
  EXPECT_EQ(Head().reason, static_cast<std::uint32_t>(ipc::WaitReason::kRankNotReady));
  EXPECT_EQ(Head().wait_argument, 1U);
  EXPECT_STREQ(Head().tensor, "g2");
  Post(1, 2);
  node_.Settle();
  ExpectOk(*ranks_[0], first[0]);
  ExpectOk(*ranks_[1], second[1]);
}

TEST_F(Planned, AGradientEndsWithTheLastBlockThatHoldsSomethingOfIt) {
  Adopt(node_, job_.id, PlanOf(kSplit));
  const std::uint64_t last[] = {Post(0, 2), Post(1, 2)};
  node_.Settle();
  ExpectOpen(*ranks_[0], last[0]);
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    Post(rank, 1);
    Post(rank, 0);
  }
  node_.Settle();
  ExpectOk(*ranks_[0], last[0]);
  ExpectOk(*ranks_[1], last[1]);
}

TEST_F(Planned, ABarrierHoldsEveryGradientUntilTheLastBlock) {
  Adopt(node_, job_.id, PlanOf(kOneEach, 1, true));
  const std::uint64_t record = Post(0, 2);
  Post(1, 2);
  Post(0, 1);
  Post(1, 1);
  node_.Settle();
  ExpectOpen(*ranks_[0], record);
  Post(0, 0);
  const std::uint64_t last = Post(1, 0);
  node_.Settle();
  ExpectOk(*ranks_[0], record);
  ExpectOk(*ranks_[1], last);
}

TEST_F(Planned, APlanIsInForceFromItsIterationOnAndNoIterationIsLost) {
  Adopt(node_, job_.id, PlanOf(kOneEach));
  PostAll();
  node_.Settle();
  node_.Send(service::PlanOffer{.job = job_.id, .plan = PlanOf(kSplit, 2), .hash = 2});
  node_.Settle();
  EXPECT_EQ(Taken().version, 2U);
  EXPECT_EQ(Taken().iteration, 1U);
  // It goes on under the old plan meanwhile, up to what it has promised.
  for (std::uint64_t iteration = 2; iteration < 1 + service::kSwitchSlack; ++iteration) {
    PostAll();
    node_.Settle();
    ExpectOk(*ranks_[0], 3 * iteration);
  }
  PostAll();
  node_.Settle();
  ExpectOpen(*ranks_[0], 3 * (1 + service::kSwitchSlack));
  EXPECT_EQ(Head().reason, static_cast<std::uint32_t>(ipc::WaitReason::kPlanSwitch));
  EXPECT_EQ(Head().wait_argument, 1 + service::kSwitchSlack);
  node_.Send(service::PlanSwitch{job_.id, 2, 1 + service::kSwitchSlack});
  node_.Settle();
  ExpectOk(*ranks_[0], 3 * (1 + service::kSwitchSlack));
  ExpectOk(*ranks_[1], 3 * (1 + service::kSwitchSlack));
}

TEST_F(Planned, OperationsOfTheSameJobGoOnBeside) {
  Adopt(node_, job_.id, PlanOf(kOneEach));
  Post(0, 1);
  const std::uint64_t record[] = {
      ranks_[0]->Post(OnSegment(Collective::kAllReduce, DType::kFloat32, 4, 4096)),
      ranks_[1]->Post(OnSegment(Collective::kAllReduce, DType::kFloat32, 4, 4096))};
  node_.Settle();
  ExpectOk(*ranks_[0], record[0]);
  ExpectOk(*ranks_[1], record[1]);
  ExpectOpen(*ranks_[0], 1);
}

TEST_F(Planned, AGradientPostedTwiceIsRefusedByName) {
  Adopt(node_, job_.id, PlanOf(kOneEach));
  Post(0, 1);
  const std::uint64_t again = Post(0, 1);
  node_.Settle();
  ExpectFailed(*ranks_[0], again, Code::kInvalidArgument, {"rank 0", "gradient 1", "iteration 1"});
  const std::uint64_t late = Post(1, 1);
  node_.Settle();
  ExpectFailed(*ranks_[1], late, Code::kInvalidArgument, {});
}

TEST_F(Planned, ARecordThatIsNotTheLayoutsIsRefusedWithItsField) {
  Adopt(node_, job_.id, PlanOf(kOneEach));
  ipc::GradientRecord record = GradientOf(*layout_, 1);
  record.count = 21;
  const std::uint64_t number = PostGradient(*ranks_[0], record);
  node_.Settle();
  ExpectFailed(*ranks_[0], number, Code::kInvalidArgument, {"gradient 1"});
}

TEST_F(Planned, ARecordWithFlagsThatNobodyKnowsCountsAsAnOperation) {
  for (ClientEnd* rank : ranks_) {
    ipc::Record record = OnSegment(Collective::kAllReduce, DType::kFloat32, 8, kOwnOffset);
    record.flags = rank->rank() == 0 ? ipc::kRecordIsGradient | 4U : 0U;
    rank->Post(record);
    rank->Post(OnSegment(Collective::kAllReduce, DType::kFloat32, 8, kOwnOffset));
  }
  node_.Settle();
  // The next ones still belong together.
  for (const ClientEnd* rank : ranks_) {
    ExpectFailed(*rank, 1, Code::kInvalidArgument, {"flags"});
    ExpectOk(*rank, 2);
  }
}

TEST_F(Planned, ARankThatIsLostEndsWhatIsOpenWithItsIteration) {
  Adopt(node_, job_.id, PlanOf(kOneEach));
  PostAll();
  node_.Settle();
  const std::uint64_t open = Post(0, 2);
  node_.Settle();
  node_.Close(*ranks_[1], false, "exited or was killed");
  node_.Settle();
  ExpectFailed(*ranks_[0], open, Code::kPeerLost,
               {"rank 1", "iteration 1", "gradient 2", "iteration 2"});
  const std::uint64_t later = Post(0, 1);
  node_.Settle();
  ExpectFailed(*ranks_[0], later, Code::kPeerLost, {});
  EXPECT_EQ(node_.discarded_in_use(), 0U);
}

TEST_F(Planned, ARankThatLeavesAfterTheLastIterationHurtsNobody) {
  Adopt(node_, job_.id, PlanOf(kOneEach));
  for (std::uint32_t tensor = 0; tensor < 3; ++tensor) Post(0, tensor);
  node_.Close(*ranks_[0], true, "left the job");
  node_.Settle();
  for (std::uint32_t tensor = 0; tensor < 3; ++tensor) Post(1, tensor);
  node_.Settle();
  ExpectOk(*ranks_[1], 3);
  const std::uint64_t beyond = Post(1, 0);
  node_.Settle();
  ExpectFailed(*ranks_[1], beyond, Code::kPeerLost, {"rank 0", "iteration 1"});
}

TEST_F(Planned, AGradientThatOneRankNeverPostsTimesOutWithItsName) {
  Adopt(node_, job_.id, PlanOf(kOneEach));
  const std::uint64_t open = Post(0, 2);
  Post(1, 0);
  node_.Settle();
  node_.Advance(61 * kSecond);
  node_.Settle();
  ExpectFailed(*ranks_[0], open, Code::kTimeout, {"rank 1", "gradient 2", "iteration 1"});
}

TEST_F(Planned, TimesOfIterationsAreTheSlowestRanks) {
  Adopt(node_, job_.id, PlanOf(kOneEach));
  for (std::uint64_t iteration = 1; iteration <= 3; ++iteration) {
    const std::uint64_t zero = 1000 + iteration * 1'000'000;
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      for (std::uint32_t tensor = 0; tensor < 3; ++tensor) {
        ipc::GradientRecord record = GradientOf(*layout_, tensor);
        record.backward_ns = zero;
        record.posted_ns = zero + (3 - tensor) * (rank == 1 ? 2000 : 1000);
        record.forward_ns = rank == 1 ? 50 : 500;
        PostGradient(*ranks_[rank], record);
      }
    }
    node_.Settle();
  }
  const auto seen = node_.peers().Of<service::TimesSeen>();
  ASSERT_EQ(seen.size(), 1U);
  EXPECT_EQ(seen[0]->times.iteration, 3U);
  EXPECT_NEAR(seen[0]->times.release_s[0], 6e-6, 1e-9);
  EXPECT_NEAR(seen[0]->times.release_s[2], 2e-6, 1e-9);
  EXPECT_NEAR(seen[0]->times.forward_s[1], 5e-7, 1e-10);
  EXPECT_NEAR(seen[0]->times.iteration_s, 1e-3, 1e-9);
}

// A job that posts much that is small beside it does not make its blocks quick.
TEST(PlannedBeside, BlocksCostWhatTheyTakeWhateverEndsMeanwhile) {
  constexpr double kNsPerByte = 10'000;
  HandDrivenNode node(Fair(kNsPerByte));
  const JobSpec job{.world_size = 2};
  const JobSpec other{.id = JobId{2}, .name = "other", .world_size = 1};
  const auto layout = PackedLayout({1000});
  std::vector<ClientEnd*> ranks;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    ranks.push_back(&node.Attach(job, rank));
    HandIn(node, *ranks[rank], layout);
  }
  ClientEnd& beside = node.Attach(other, 0);
  Adopt(node, job.id, PlanOf({{{0, 0, 1000}}}));
  for (int iteration = 0; iteration < 6; ++iteration) {
    for (ClientEnd* const rank : ranks) PostGradient(*rank, *layout, 0);
    for (int i = 0; i < 60; ++i) {
      beside.PostApart(OnSegment(Collective::kAllReduce, DType::kFloat32, 4));
      node.Advance(kMillisecond);
    }
  }
  const auto seen = node.peers().Of<service::TimesSeen>();
  ASSERT_FALSE(seen.empty());
  EXPECT_GT(seen.back()->costs[0].Seconds(4000), 4000 * kNsPerByte / kSecond);
}

TEST_F(Planned, RowsAndMemoryAreGivenBackWithTheJob) {
  Adopt(node_, job_.id, PlanOf(kSplit));
  PostAll();
  node_.Settle();
  for (ClientEnd* rank : ranks_) node_.Close(*rank, true, "left the job");
  node_.Settle();
  EXPECT_EQ(node_.RowsInUse(), 0U);
  EXPECT_TRUE(node_.Discarded(*ranks_[0]));
  EXPECT_TRUE(node_.Discarded(*ranks_[1]));
}

}  // namespace
}  // namespace headrace::support
