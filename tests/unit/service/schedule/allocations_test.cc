// After AddJob the queue allocates nothing, whatever is done with it.
#include <gtest/gtest.h>

#include "service/schedule/queue.h"
#include "tests/support/counted_new.h"

namespace headrace::schedule {
namespace {

using support::allocations;
using support::counting;

TEST(UnifiedQueue, AllocatesNothingOnceItKnowsItsJobs) {
  counting = true;
  UnifiedQueue queue({LaneTerms{8U << 20U, true}, LaneTerms{8U << 20U}});
  constexpr std::uint32_t kJobs = 64;
  for (std::uint32_t job = 1; job <= kJobs; ++job) queue.AddJob(JobId{job}, {});
  std::uint64_t picked = 0;
  const std::size_t before = allocations;
  for (std::uint64_t turn = 0; turn < 20'000; ++turn) {
    const auto now = static_cast<TimeNs>(turn) * kMillisecond;
    const JobId job{static_cast<std::uint32_t>(turn % kJobs + 1)};
    const auto lane = static_cast<std::uint8_t>(turn / kJobs % 2);
    const auto order = turn % 3 == 0 ? TrafficClass::kPlanned : TrafficClass::kPosted;
    queue.Push({.token = turn,
                .position = turn ^ 1U,
                .job = job,
                .traffic_class = order,
                .lane = lane,
                .bytes = 1000 * (turn % 1000)});
    if (turn % 100 == 0) queue.SetShare(job, {.weight = 2, .limit_bytes_per_s = turn}, now);
    if (turn % 10 == 0) queue.ExplainHeads(lane, now);
    while (const std::optional<QueuedStage> stage = queue.Pick(lane, now)) {
      queue.Return(*stage);
      ++picked;
    }
  }
  counting = false;
  EXPECT_EQ(allocations - before, 0U);
  EXPECT_GT(picked, 10'000U);
  EXPECT_GT(before, kJobs) << "allocations are counted";
}

}  // namespace
}  // namespace headrace::schedule
