// What dispatch and its lane allocate once jobs are set up: nothing, with recorder, shares, late
// reports and interleaving on. A program of its own, because it counts every operator new.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/support/counted_new.h"
#include "tests/unit/service/dispatch/expect.h"
#include "tests/unit/service/dispatch/planned.h"

namespace headrace::support {
namespace {

constexpr std::uint64_t kReports = 16;  // iterations between two reports to the planner

class Allocation : public ::testing::Test {
 protected:
  Allocation() {
    node_.dispatch().Interleave();
    node_.dispatch().ReportLate(5 * kSecond);
    // What the harness notes of each transfer is none of the service's.
    node_.transport().accepted.reserve(100'000);
    node_.transport().positions.reserve(100'000);
    node_.transport().copying.reserve(100'000);
  }

  void AttachJobs(bool planned) {
    for (std::uint32_t job = 1; job <= 2; ++job) {
      const JobSpec spec{.id = JobId{job}, .name = "job" + std::to_string(job)};
      for (std::uint32_t rank = 0; rank < 2; ++rank) {
        ranks_.push_back(&node_.Attach(spec, rank));
        if (planned) HandIn(node_, *ranks_.back(), layout_);
      }
      if (planned) Adopt(node_, spec.id, PlanOf({{{2, 0, 300}}, {{0, 0, 100}, {1, 0, 200}}}));
    }
    node_.Settle();
  }

  // The turns of dispatch and lane that carry out what was posted; how often they allocated.
  std::uint64_t Work() {
    const std::uint64_t before = allocations;
    bool worked = true;
    while (worked) {
      counting = true;
      worked = node_.TurnDispatch();
      worked |= node_.TurnLane();
      counting = false;
    }
    node_.now += kMillisecond;
    return allocations - before;
  }

  std::uint64_t PostOperations(std::uint64_t each) {
    for (std::uint64_t i = 0; i < each; ++i) {
      for (ClientEnd* rank : ranks_) {
        rank->Post(OnSegment(Collective::kAllReduce, DType::kFloat32, 64 + i, 4096 + i * 512));
      }
    }
    return Work();
  }

  std::uint64_t Iterate() {
    std::uint64_t count = 0;
    for (std::uint32_t tensor = 3; tensor > 0; --tensor) {
      for (ClientEnd* rank : ranks_) {
        ipc::GradientRecord record = GradientOf(*layout_, tensor - 1);
        record.backward_ns = static_cast<std::uint64_t>(begin_ns_);
        record.posted_ns = static_cast<std::uint64_t>(node_.now);
        record.forward_ns = 1'000'000;
        PostGradient(*rank, record);
      }
      count += Work();
    }
    begin_ns_ = node_.now;
    return count;
  }

  HandDrivenNode node_{SharedMemory(1)};
  std::shared_ptr<const service::Layout> layout_ = PackedLayout({100, 200, 300});
  std::vector<ClientEnd*> ranks_;
  TimeNs begin_ns_ = kSecond;
};

TEST_F(Allocation, CountsWhatIsAllocated) {
  const std::uint64_t before = allocations;
  counting = true;
  const auto here = std::make_unique<std::uint64_t>(7);
  const std::vector<std::uint64_t> there(3, *here);
  counting = false;
  EXPECT_EQ(allocations, before + 2);
  EXPECT_EQ(there[2], 7U);
}

TEST_F(Allocation, HappensNowhereOnTheWayOfThousandsOfOperations) {
  AttachJobs(false);
  for (int i = 0; i < 20; ++i) PostOperations(50);
  std::uint64_t count = 0;
  for (int i = 0; i < 200; ++i) count += PostOperations(25);
  EXPECT_EQ(count, 0U);
  EXPECT_EQ(node_.JobRow(JobId{1})->operations_ended, 20U * 50 + 200 * 25);
  for (const ClientEnd* rank : ranks_) ExpectOk(*rank, rank->posted());
}

TEST_F(Allocation, HappensInNoIterationOfAPlanButWhereOneIsReported) {
  AttachJobs(true);
  for (std::uint64_t i = 1; i <= 3 * kReports; ++i) Iterate();
  for (std::uint64_t iteration = 3 * kReports + 1; iteration <= 2000; ++iteration) {
    const std::uint64_t count = Iterate();
    // Once in so many iterations their medians go to whoever plans, as a message of its own.
    if (iteration % kReports == 0) continue;
    ASSERT_EQ(count, 0U) << iteration;
  }
  EXPECT_EQ(node_.PlanRow(JobId{1})->iterations_count + 1, 2000U);
  for (const ClientEnd* rank : ranks_) ExpectOk(*rank, rank->posted());
}

}  // namespace
}  // namespace headrace::support
