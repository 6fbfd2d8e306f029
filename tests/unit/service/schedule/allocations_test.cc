// After AddJob the queue allocates nothing, whatever is done with it. The test's own allocations
// are counted by taking the place of operator new.
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

#include "service/schedule/queue.h"

namespace {

std::size_t allocations = 0;

}  // namespace

void* operator new(std::size_t size) {
  ++allocations;
  void* const memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace headrace::schedule {
namespace {

TEST(UnifiedQueue, AllocatesNothingOnceItKnowsItsJobs) {
  UnifiedQueue queue({LaneTerms{8U << 20U, true}, LaneTerms{8U << 20U}});
  constexpr std::uint32_t kJobs = 64;
  for (std::uint32_t job = 1; job <= kJobs; ++job) queue.AddJob(JobId{job}, {});
  std::uint64_t picked = 0;
  const std::size_t before = allocations;
  for (std::uint64_t turn = 0; turn < 20'000; ++turn) {
    const auto now = static_cast<TimeNs>(turn) * kMillisecond;
    const JobId job{static_cast<std::uint32_t>(turn % kJobs + 1)};
    const auto lane = static_cast<std::uint8_t>(turn / kJobs % 2);
    const auto order = turn % 3 == 0 ? Order::kPlanned : Order::kPosted;
    queue.Push({.token = turn,
                .position = turn ^ 1U,
                .job = job,
                .order = order,
                .lane = lane,
                .bytes = 1000 * (turn % 1000)});
    if (turn % 100 == 0) queue.SetShare(job, {.weight = 2, .limit_bytes_per_s = turn}, now);
    if (turn % 10 == 0) queue.ExplainHeads(lane, now);
    while (const std::optional<Stage> stage = queue.Pick(lane, now)) {
      queue.Return(*stage);
      ++picked;
    }
  }
  EXPECT_EQ(allocations - before, 0U);
  EXPECT_GT(picked, 10'000U);
  EXPECT_GT(before, kJobs) << "allocations are counted";
}

}  // namespace
}  // namespace headrace::schedule
