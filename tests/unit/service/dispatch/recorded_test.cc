// Iterations as a node records them for plans: each by itself, the last of its ranks counting.
#include <gtest/gtest.h>

#include <vector>

#include "service/dispatch/job/iteration_times.h"

namespace headrace::support {
namespace {

using service::IterationTimes;
using service::NodeTimes;

constexpr std::size_t kTensors = 2;
constexpr std::size_t kRanks = 2;

// One rank's passes around one post of everything, in milliseconds.
struct Passes {
  TimeNs begin_ms = 0;                  // of the backward pass
  std::vector<TimeNs> posted_ms;        // of each tensor
  std::vector<TimeNs> forward_ms;       // of the pass before
  std::vector<TimeNs> waited_ms{0, 0};  // in it
};

class Recorded : public testing::Test {
 protected:
  // Both ranks post, and the one block is under way from `begin_ms` to `end_ms`.
  void Iterate(std::uint64_t iteration, const std::vector<Passes>& ranks, TimeNs begin_ms,
               TimeNs end_ms) {
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      for (std::uint32_t tensor = 0; tensor < kTensors; ++tensor) {
        ipc::GradientRecord record;
        record.tensor = tensor;
        record.backward_ns = static_cast<std::uint64_t>(ranks[rank].begin_ms * kMillisecond);
        record.posted_ns = static_cast<std::uint64_t>(ranks[rank].posted_ms[tensor] * kMillisecond);
        record.forward_ns =
            static_cast<std::uint64_t>(ranks[rank].forward_ms[tensor] * kMillisecond);
        record.waited_ns = static_cast<std::uint64_t>(ranks[rank].waited_ms[tensor] * kMillisecond);
        times_.Post(rank, tensor, iteration, record);
      }
    }
    times_.ResizeBlocks(iteration, 1);
    times_.block(iteration, 0) = {
        .ready_ns = begin_ms * kMillisecond,
        .begin_ns = begin_ms * kMillisecond,
        .end_ns = end_ms * kMillisecond,
        .stages = {{{}, {begin_ms * kMillisecond, end_ms * kMillisecond}}}};
    times_.EndIteration(iteration);
  }
  NodeTimes Record() {
    NodeTimes times = times_.Median(16);
    times_.Record(times);
    return times;
  }

  IterationTimes times_{kTensors, kRanks};
};

// Rank 1 begins 10 ms after rank 0 and computes slower. Forward passes of 30 and 20 ms, then 5 ms
// of something else before the next backward pass.
TEST_F(Recorded, EachGradientCountsWhenItsLastRankHasIt) {
  for (std::uint64_t i = 1; i <= 3; ++i) {
    const auto zero = static_cast<TimeNs>(i) * 1000;
    Iterate(i,
            {{zero - 10, {zero + 30, zero + 20}, {10, 20}, {900, 0}},
             {zero, {zero + 40, zero + 10}, {12, 8}, {935, 0}}},
            zero + 40, zero + 60);
  }
  const NodeTimes times = Record();
  ASSERT_EQ(times.iterations.size(), 1U);
  const service::SeenIteration& seen = times.iterations[0];
  EXPECT_EQ(seen.iteration, 2U);
  EXPECT_NEAR(seen.offset_s, 0.940, 1e-9) << "the block before ended at 1060 ms";
  EXPECT_NEAR(seen.release_s[1], 0.020, 1e-6) << "rank 0's, from rank 1's begin";
  EXPECT_NEAR(seen.release_s[0], 0.040, 1e-6);
  EXPECT_NEAR(seen.forward_s[1], 0.020, 1e-6);
  EXPECT_NEAR(seen.forward_s[0], 0.010, 1e-6);
  // Rank 0 would have been done 90 ms after its begin at -10 ms, rank 1 after 65: 1000 less waits.
  EXPECT_NEAR(seen.forward_begin_s, 0.090 - 0.030, 1e-6);
  EXPECT_EQ(times.contention, plan::ContentionShares());
}

// While the block is under way computing takes twice as long. Tensor 1's part of the backward pass
// is beside it in some iterations and not in others.
TEST_F(Recorded, WhatLanesCostIsTakenOff) {
  constexpr std::uint64_t kTrained = 32;
  for (std::uint64_t i = 1; i <= kTrained; ++i) {
    const auto zero = static_cast<TimeNs>(i) * 1000;
    const bool busy = i % 2 == 0;
    const TimeNs first = busy ? 200 : 100;
    const Passes each{zero, {zero + first + 100, zero + first}, {100, 100}, {0, 0}};
    // Else the block is under way while nobody computes.
    Iterate(i, {each, each}, zero + (busy ? 0 : 500), zero + (busy ? first : 700));
  }
  const NodeTimes times = Record();
  EXPECT_EQ(times.contention[0], 0) << "nothing was in the node";
  EXPECT_NEAR(times.contention[1], 0.5, 0.02);
  ASSERT_EQ(times.iterations.size(), kTrained - 2);
  for (const service::SeenIteration& seen : times.iterations) {
    EXPECT_NEAR(seen.release_s[1], 0.1, 0.005) << seen.iteration;
    EXPECT_NEAR(seen.release_s[0], 0.2, 0.005) << seen.iteration;
  }
}

// A block that waits between two stages, for a late node say, slows nobody down.
TEST_F(Recorded, BlocksThatWaitBetweenStagesAreNotBusy) {
  constexpr std::uint64_t kTrained = 32;
  for (std::uint64_t i = 1; i <= kTrained; ++i) {
    const auto zero = static_cast<TimeNs>(i) * 1000;
    const Passes each{zero, {zero + 200, zero + 100}, {100, 100}, {0, 0}};
    Iterate(i, {each, each}, zero, zero + 100);
    times_.block(i, 0).stages = {{{zero * kMillisecond, (zero + 1) * kMillisecond},
                                  {(zero + 99) * kMillisecond, (zero + 100) * kMillisecond}}};
  }
  for (const service::SeenIteration& seen : Record().iterations) {
    EXPECT_NEAR(seen.release_s[1], 0.1, 1e-3) << seen.iteration;
  }
}

TEST_F(Recorded, OnlyTheLastOnesAreKept) {
  for (std::uint64_t i = 1; i <= 100; ++i) {
    const auto zero = static_cast<TimeNs>(i * 1000 + i * i);
    const Passes each{zero, {zero + 20, zero + 10}, {10, 10}};
    Iterate(i, {each, each}, zero + 20, zero + 30);
  }
  const NodeTimes times = Record();
  ASSERT_EQ(times.iterations.size(), plan::kRecordedMax);
  EXPECT_EQ(times.iterations.front().iteration, 68U);
  EXPECT_EQ(times.iterations.back().iteration, 99U);
  // Iteration i lasted 1000 + 2 i - 1 ms; the last 32 are those up to 100.
  const IterationTimes::Spread spread = times_.MeasuredSpread();
  EXPECT_EQ(spread.mean_ns, (999 + 69 + 100) * kMillisecond);
  EXPECT_EQ(spread.p90_ns, (999 + 2 * 97) * kMillisecond) << "the 29th of 32";
}

TEST_F(Recorded, NothingBeforeTheIterationsBesideItAreThere) {
  const Passes each{1000, {1020, 1010}, {10, 10}};
  Iterate(1, {each, each}, 1020, 1030);
  EXPECT_TRUE(Record().iterations.empty());
  EXPECT_EQ(times_.MeasuredSpread().mean_ns, 0);
}

// A client's clock may say anything; what it says must not make the node's report one that the
// leader refuses.
TEST_F(Recorded, WhatAClientsClockCannotHaveSaidIsLeftOut) {
  for (std::uint64_t i = 1; i <= 6; ++i) {
    const auto zero = static_cast<TimeNs>(i) * 1000;
    const Passes honest{zero, {zero + 20, zero + 10}, {10, 10}};
    Passes liar = honest;
    if (i == 3) liar.begin_ms = INT64_MAX / kMillisecond;
    Iterate(i, {honest, liar}, zero + 20, zero + 30);
  }
  const NodeTimes times = Record();
  // Iterations 2 and 3 have a part between honest clocks and the lie.
  ASSERT_EQ(times.iterations.size(), 2U);
  EXPECT_EQ(times.iterations[0].iteration, 4U);
  for (const service::SeenIteration& seen : times.iterations) {
    EXPECT_LT(seen.forward_begin_s, 2);
    EXPECT_GE(seen.offset_s, 0);
  }
  EXPECT_EQ(times.contention, plan::ContentionShares());
}

TEST_F(Recorded, PassesThatCannotHaveTakenSoLongCountAsNothing) {
  for (std::uint64_t i = 1; i <= 20; ++i) {
    const auto zero = static_cast<TimeNs>(i) * (INT64_MAX / 50 / kMillisecond);
    const Passes liar{zero, {zero + 20, zero + 10}, {-1, -1}, {-1, INT64_MAX / kMillisecond}};
    const Passes honest{zero, {zero + 20, zero + 10}, {10, 10}, {0, 0}};
    Iterate(i, {honest, liar}, zero + 20, zero + 30);
  }
  const NodeTimes times = Record();
  EXPECT_NEAR(times.forward_s[0], 0.010, 1e-6);
  EXPECT_NEAR(times.forward_s[1], 0.010, 1e-6);
  EXPECT_EQ(times.running_s, 0);
  EXPECT_EQ(times_.sums().waited_ns, 0);
  EXPECT_NEAR(static_cast<double>(times_.MeasuredSpread().mean_ns),
              static_cast<double>(INT64_MAX / 50), 1e9);
}

}  // namespace
}  // namespace headrace::support
