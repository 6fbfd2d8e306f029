// Open posts of one rank on the same memory: refused by name, unless both only read it.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "service/dispatch/job/open_ranges.h"
#include "tests/unit/service/dispatch/expect.h"
#include "tests/unit/service/dispatch/planned.h"

namespace headrace::support {
namespace {

using service::OpenRange;
using service::OpenRanges;

ipc::Record SumAt(std::uint64_t offset) {
  return OnSegment(Collective::kAllReduce, DType::kFloat32, 16, offset);
}
ipc::Record BroadcastAt(std::uint64_t offset) {
  return OnSegment(Collective::kBroadcast, DType::kFloat32, 16, offset);
}

TEST(OpenRanges, FindWhatALookAtAllOfThemFinds) {
  std::mt19937 random(1);
  OpenRanges ranges;
  std::vector<OpenRange> known;
  std::uint64_t refused = 0;
  for (std::uint64_t number = 1; number <= 20'000; ++number) {
    if (!known.empty() && random() % 2 == 0) {
      const std::size_t victim = random() % known.size();
      ranges.Close(known[victim]);
      known.erase(known.begin() + static_cast<std::ptrdiff_t>(victim));
    }
    const std::uint64_t begin = random() % 1000;
    const OpenRange range{.begin = begin,
                          .end = begin + 1 + random() % 60,
                          .sequence = number,
                          .written = random() % 3 != 0};
    const bool expected =
        std::ranges::any_of(known, [&](const OpenRange& other) { return other.Conflicts(range); });
    const OpenRange* const found = ranges.FindConflict(range);
    ASSERT_EQ(found != nullptr, expected) << "at step " << number;
    if (found != nullptr) {
      ASSERT_TRUE(found->Conflicts(range));
      ++refused;
      continue;
    }
    ranges.Open(range);
    known.push_back(range);
    ASSERT_EQ(ranges.count(), known.size());
  }
  EXPECT_GT(refused, 1000U);
}

class Overlap : public ::testing::Test {
 protected:
  const JobSpec job_{.world_size = 2, .timeout_ms = 100};
  HandDrivenNode node_;
  ClientEnd& a_ = node_.Attach(job_, 0);
  ClientEnd& b_ = node_.Attach(job_, 1);
};

TEST_F(Overlap, IsRefusedWithBothOperationsAndTheBytes) {
  a_.Post(SumAt(64));
  a_.Post(SumAt(96));
  node_.Settle();
  ExpectOpen(a_, 1);
  ExpectFailed(a_, 2, Code::kInvalidArgument,
               {"rank 0", "pid 1000", "float32", "operation 2", "operation 1", "32 bytes overlap",
                "127", "segment 0"});
  EXPECT_EQ(node_.Counters().records_refused, 1U);
  b_.Post(SumAt(64));
  b_.Post(SumAt(4096));
  node_.Settle();
  ExpectOk(a_, 1);
  ExpectOk(b_, 1);
  EXPECT_EQ(b_.Read(2).text, a_.Read(2).text) << "the other rank learns the same";
}

TEST_F(Overlap, NamesTheTensors) {
  node_.AddTensor(a_, TensorId{7},
                  {.name = "whole",
                   .segment = {},
                   .offset = 0,
                   .count = 64,
                   .dtype = DType::kFloat32,
                   .order = 0});
  node_.AddTensor(a_, TensorId{8},
                  {.name = "part",
                   .segment = {},
                   .offset = 128,
                   .count = 8,
                   .dtype = DType::kFloat32,
                   .order = 0});
  a_.Post(OnTensor(Collective::kAllReduce, DType::kFloat32, 64, TensorId{7}));
  a_.Post(OnTensor(Collective::kAllReduce, DType::kFloat32, 8, TensorId{8}));
  node_.Settle();
  ExpectFailed(a_, 2, Code::kInvalidArgument,
               {"tensor 8", "operation 1 [", "whole]", "32 bytes overlap"});
}

TEST_F(Overlap, IsNoneOfNeighboursOrOfWhatHasEnded) {
  for (const std::uint64_t offset : {64U, 0U, 128U}) {
    a_.Post(SumAt(offset));
    b_.Post(SumAt(offset));
  }
  node_.Settle();
  a_.Post(SumAt(64));
  b_.Post(SumAt(64));
  node_.Settle();
  for (std::uint64_t number = 1; number <= 4; ++number) {
    ExpectOk(a_, number);
    ExpectOk(b_, number);
  }
}

TEST_F(Overlap, IsFreeOfThoseThatFailed) {
  a_.Post(SumAt(0));
  node_.Settle();
  node_.Advance(100 * kMillisecond);
  ExpectFailed(a_, 1, Code::kTimeout, {});
  b_.Post(SumAt(0));
  a_.Post(SumAt(0));
  b_.Post(SumAt(0));
  node_.Settle();
  ExpectOk(a_, 2);
  ExpectOk(b_, 2);
}

TEST_F(Overlap, IsAllowedWhereBothOnlyRead) {
  for (const std::uint64_t offset : {0U, 64U}) {
    a_.Post(BroadcastAt(0));  // from rank 0
    b_.Post(BroadcastAt(offset));
  }
  node_.Settle();
  for (ClientEnd* rank : {&a_, &b_}) {
    ExpectOk(*rank, 1);
    ExpectOk(*rank, 2);
  }
  b_.Post(BroadcastAt(0));
  b_.Post(BroadcastAt(32));  // there it is written
  node_.Settle();
  ExpectFailed(b_, 4, Code::kInvalidArgument, {"operation 3 [broadcast", "32 bytes overlap"});
}

TEST_F(Overlap, OfARankLeavesOtherRanksAlone) {
  a_.Post(BroadcastAt(0));
  a_.Post(SumAt(0));
  node_.Settle();
  ExpectFailed(a_, 2, Code::kInvalidArgument, {"operation 1 [broadcast"});
  b_.Post(BroadcastAt(0));
  node_.Settle();
  ExpectOk(b_, 1);
}

class PlannedOverlap : public Overlap {
 protected:
  PlannedOverlap() {
    for (ClientEnd* rank : {&a_, &b_}) HandIn(node_, *rank, layout_);
    Adopt(node_, job_.id, PlanOf({{{2, 0, 30}}, {{1, 0, 20}}, {{0, 0, 10}}}));
    node_.Settle();
  }
  std::shared_ptr<const service::Layout> layout_ = PackedLayout({10, 20, 30});
};

TEST_F(PlannedOverlap, OfAnOperationWithAnOpenGradientIsRefused) {
  PostGradient(a_, *layout_, 1);  // bytes 40 to 119
  a_.Post(SumAt(0));
  node_.Settle();
  ExpectFailed(a_, 2, Code::kInvalidArgument,
               {"as operation 1", "gradient 1", "iteration 1", "24 bytes overlap", "segment 0"});
  ExpectOpen(a_, 1);
}

TEST_F(PlannedOverlap, OfAGradientWithAnOpenOperationIsRefused) {
  a_.Post(SumAt(0));
  PostGradient(a_, *layout_, 2);  // bytes 120 to 239
  node_.Settle();
  ExpectOpen(a_, 2);
  PostGradient(a_, *layout_, 1);
  node_.Settle();
  ExpectFailed(a_, 3, Code::kInvalidArgument,
               {"gradient 1", "iteration 1", "operation 1", "24 bytes overlap"});
  b_.Post(SumAt(0));
  node_.Settle();
  ExpectOk(a_, 1);
}

TEST_F(PlannedOverlap, IsNoneOnceTheIterationHasEnded) {
  for (int iteration = 0; iteration < 3; ++iteration) {
    for (std::uint32_t tensor = 0; tensor < 3; ++tensor) {
      PostGradient(a_, *layout_, tensor);
      PostGradient(b_, *layout_, tensor);
    }
    node_.Settle();
    a_.Post(SumAt(0));
    b_.Post(SumAt(0));
    node_.Settle();
    ExpectOk(a_, a_.posted());
    ExpectOk(b_, b_.posted());
  }
}

}  // namespace
}  // namespace headrace::support
