// Medians of a job's last iterations, beside the same numbers sorted one by one.
#include "service/dispatch/job/iteration_times.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "ipc/records.h"

namespace headrace::service {
namespace {

constexpr std::uint64_t kBackward = 1'000'000'000;  // the begin of the first backward pass

struct Posted {
  std::size_t ranks;
  std::size_t tensors;
  std::uint64_t iterations;
};

// What was posted in each iteration: by rank, then by tensor.
struct PostedSample {
  double release_s;
  double forward_s;
};
using Iteration = std::vector<PostedSample>;

// Kept as a float.
double Rounded(std::uint64_t ns) {
  return static_cast<double>(static_cast<float>(static_cast<double>(ns) / 1e9));
}

std::vector<Iteration> PostAll(IterationTimes& times, const Posted& posted) {
  std::mt19937_64 random(posted.ranks * 1000 + posted.tensors * 10 + posted.iterations);
  std::vector<Iteration> all;
  for (std::uint64_t number = 1; number <= posted.iterations; ++number) {
    Iteration& iteration = all.emplace_back();
    const std::uint64_t backward_ns = kBackward + number * 1'000'000;
    for (std::size_t rank = 0; rank < posted.ranks; ++rank) {
      for (std::size_t tensor = 0; tensor < posted.tensors; ++tensor) {
        const std::uint64_t release_ns = random() % 500'000;
        const std::uint64_t forward_ns = random() % 100'000;
        times.Post(rank, static_cast<std::uint32_t>(tensor), number,
                   {.forward_ns = forward_ns,
                    .backward_ns = backward_ns,
                    .posted_ns = backward_ns + release_ns,
                    .waited_ns = random() % 1000});
        iteration.push_back({.release_s = Rounded(release_ns), .forward_s = Rounded(forward_ns)});
      }
    }
    times.EndIteration(number);
  }
  return all;
}

// The median of one rank's and tensor's sample over the last `count` iterations.
double MedianOf(const std::vector<Iteration>& all, std::size_t count, std::size_t sample,
                double PostedSample::*field) {
  std::vector<double> values;
  for (std::size_t i = all.size() - std::min(count, all.size()); i < all.size(); ++i) {
    values.push_back(all[i][sample].*field);
  }
  std::ranges::sort(values);
  return values[values.size() / 2];
}

TEST(IterationTimes, MediansAreThoseOfEachSampleByItself) {
  const std::vector<Posted> cases = {{1, 1, 1},   {1, 15, 3}, {2, 16, 7}, {3, 17, 16},
                                     {2, 33, 40}, {5, 7, 9},  {1, 50, 2}, {4, 31, 13}};
  for (const Posted& posted : cases) {
    IterationTimes times(posted.tensors, posted.ranks);
    const std::vector<Iteration> all = PostAll(times, posted);
    for (const std::uint64_t count : {1U, 4U, 5U, 8U, 15U, 16U, 32U}) {
      const std::size_t counted = std::min<std::size_t>(count, IterationTimes::kWindow);
      const NodeTimes found = times.Median(count);
      std::vector<double> tails(posted.tensors + 1);
      for (std::size_t tensor = posted.tensors; tensor-- > 0;) {
        double release_s = 0;
        for (std::size_t rank = 0; rank < posted.ranks; ++rank) {
          double tail_s = 0;
          for (std::size_t after = posted.tensors; after-- > tensor;) {
            tail_s +=
                MedianOf(all, counted, rank * posted.tensors + after, &PostedSample::forward_s);
          }
          tails[tensor] = std::max(tails[tensor], tail_s);
          release_s = std::max(release_s, MedianOf(all, counted, rank * posted.tensors + tensor,
                                                   &PostedSample::release_s));
        }
        ASSERT_DOUBLE_EQ(found.release_s[tensor], release_s)
            << posted.tensors << " tensors, " << posted.iterations << " iterations, last " << count;
        ASSERT_NEAR(found.forward_s[tensor], std::max(0.0, tails[tensor] - tails[tensor + 1]),
                    1e-12);
      }
    }
  }
}

TEST(IterationTimes, HaveNoMediansBeforeAnIterationHasEnded) {
  IterationTimes times(3, 2);
  const NodeTimes found = times.Median(16);
  EXPECT_EQ(found.release_s, std::vector<double>(3));
  EXPECT_EQ(found.forward_s, std::vector<double>(3));
  EXPECT_EQ(found.iteration_s, 0);
  EXPECT_EQ(times.MedianTotals().iteration_ns, 0);
}

TEST(IterationTimes, TotalsComeWithTheMediansTheyAreMadeOf) {
  IterationTimes times(5, 2);
  PostAll(times, {.ranks = 2, .tensors = 5, .iterations = 20});
  NodeTimes medians;
  const IterationTimes::Totals totals = times.MedianTotals(8, medians);
  const NodeTimes alone = times.Median(8);
  EXPECT_EQ(medians.release_s, alone.release_s);
  EXPECT_EQ(medians.forward_s, alone.forward_s);
  EXPECT_EQ(totals.iteration_ns, 1'000'000);
  EXPECT_EQ(totals.iteration, 20U);
}

}  // namespace
}  // namespace headrace::service
