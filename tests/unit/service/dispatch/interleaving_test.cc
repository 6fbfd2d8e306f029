// Two jobs that train on one lane, in virtual time: the unchanged dispatch, queue and lane, with
// and without interleaving.
#include "service/dispatch/interleaving.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/expect_text.h"
#include "tests/unit/service/dispatch/fair_transport.h"
#include "tests/unit/service/dispatch/planned.h"

namespace headrace::support {
namespace {

constexpr TimeNs kTick = 500 * kMicrosecond;
constexpr std::uint32_t kLayers = 6;
constexpr std::uint64_t kElements = 2048;
constexpr TimeNs kBlock = 12 * kMillisecond;  // on the lane
constexpr TimeNs kBackward = 60 * kMillisecond;
constexpr TimeNs kForward = 120 * kMillisecond;
// The first gradient is ready after a sixth of the backward pass; from then on blocks move one
// behind the other, and the forward pass waits for the last of them.
constexpr TimeNs kAlone = kBackward / kLayers + kLayers * kBlock + kForward;

MakeTransport Lane() { return Fair(static_cast<double>(kBlock) / (kElements * sizeof(float))); }

// The only rank of a job: posts gradients while it goes backward, waits for them while it goes
// forward.
class Trainer {
 public:
  Trainer(HandDrivenNode& node, JobSpec job, TimeNs begin_ns)
      : node_(node), job_(std::move(job)), rank_(node.Attach(job_, 0)) {
    HandIn(node, rank_, layout_);
    Blocks blocks;
    for (std::uint32_t layer = kLayers; layer > 0; --layer) {
      blocks.push_back({{layer - 1, 0, kElements}});
    }
    Adopt(node, job_.id, PlanOf(blocks));
    Begin(begin_ns);
  }

  const JobSpec& job() const { return job_; }
  std::uint64_t iterations() const { return begins_.size(); }
  TimeNs begin_ns() const { return begins_.back(); }
  // Over the last `count` iterations.
  TimeNs Mean(std::size_t count) const {
    return (begins_.back() - begins_[begins_.size() - 1 - count]) / static_cast<TimeNs>(count);
  }
  // Whether the next backward pass may begin.
  std::function<bool()> may_begin = [] { return true; };
  double jitter = 0;

  // Does what is due.
  void Turn() {
    while (posts_ < kLayers && node_.now >= ReadyOf(posts_)) Post(kLayers - 1 - posts_++);
    while (posts_ == kLayers && layer_ < kLayers && node_.now >= computed_ns_ &&
           rank_.HasEnded(records_[layer_])) {
      // Clocks tick, so what ends between two ticks is seen at the next.
      waited_ns_[layer_] = std::max<TimeNs>(0, node_.now - computed_ns_);
      computed_ns_ = node_.now + forward_ns_ / kLayers;
      ++layer_;
    }
    if (IsReady() && may_begin()) Begin(node_.now);
  }
  // For the next backward pass.
  bool IsReady() const { return layer_ == kLayers && node_.now >= computed_ns_; }

 private:
  void Begin(TimeNs begin_ns) {
    begins_.push_back(begin_ns);
    forward_spent_ns_ = forward_ns_;
    std::uniform_real_distribution<> factor(1 - jitter, 1 + jitter);
    backward_ns_ = static_cast<TimeNs>(kBackward * factor(random_));
    forward_ns_ = static_cast<TimeNs>(kForward * factor(random_));
    posts_ = layer_ = 0;
    computed_ns_ = begin_ns + backward_ns_;
  }
  TimeNs ReadyOf(std::uint32_t post) const {
    return begins_.back() + backward_ns_ * (post + 1) / kLayers;
  }
  void Post(std::uint32_t layer) {
    ipc::GradientRecord record = GradientOf(*layout_, layer);
    record.backward_ns = static_cast<std::uint64_t>(begins_.back());
    record.posted_ns = static_cast<std::uint64_t>(node_.now);
    record.forward_ns = static_cast<std::uint32_t>(forward_spent_ns_ / kLayers);
    record.waited_ns = static_cast<std::uint32_t>(waited_ns_[layer]);
    records_[layer] = PostGradient(rank_, record);
  }

  HandDrivenNode& node_;
  JobSpec job_;
  ClientEnd& rank_;
  std::shared_ptr<const service::Layout> layout_ =
      PackedLayout(std::vector<std::uint64_t>(kLayers, kElements));
  std::mt19937 random_{7};
  std::vector<TimeNs> begins_;
  TimeNs backward_ns_ = kBackward;
  TimeNs forward_ns_ = kForward;
  TimeNs forward_spent_ns_ = kForward;
  std::uint32_t posts_ = 0;
  std::uint32_t layer_ = 0;
  TimeNs computed_ns_ = 0;
  std::array<std::uint64_t, kLayers> records_{};
  std::array<TimeNs, kLayers> waited_ns_{};
};

class Interleaved : public ::testing::Test {
 protected:
  // Two jobs whose backward passes begin so far apart.
  void Start(TimeNs apart_ns, bool interleave) {
    if (interleave) node_.dispatch().Interleave();
    for (std::uint32_t i = 0; i < 2; ++i) {
      const JobSpec spec{.id = JobId{i + 1}, .name = i == 0 ? "bert" : "gpt", .world_size = 1};
      trainers_.push_back(std::make_unique<Trainer>(node_, spec, node_.now + i * apart_ns));
    }
  }
  void Run(std::uint64_t iterations) {
    const std::uint64_t until = trainers_[0]->iterations() + iterations;
    while (trainers_[0]->iterations() < until) {
      node_.Settle();
      for (const auto& trainer : trainers_) trainer->Turn();
      node_.Settle();
      NoteWhy();
      node_.now += kTick;
    }
  }
  TimeNs Held() {
    TimeNs held_ns = 0;
    for (const auto& trainer : trainers_) {
      // A job that has had no turn yet has no row.
      if (const auto row = node_.JobRow(trainer->job().id)) held_ns += row->held_ns;
    }
    return held_ns;
  }
  const std::vector<std::string>& Events() { return node_.watch_tap().events; }

  HandDrivenNode node_{Lane(), std::uint64_t{1} << 20};
  std::vector<std::unique_ptr<Trainer>> trainers_;
  bool shown_ = false;  // that a block waits for the other job's turn
  std::uint64_t shown_for_ = 0;

 private:
  // What the board says of the block that comes next.
  void NoteWhy() {
    if (shown_) return;
    for (const auto& trainer : trainers_) {
      for (std::uint64_t block = 1; block <= kLayers; ++block) {
        const auto row = node_.QueueRow(trainer->job().id, block);
        if (!row || row->reason != static_cast<std::uint32_t>(ipc::WaitReason::kInterleaved)) {
          continue;
        }
        shown_ = true;
        shown_for_ = row->wait_argument;
      }
    }
  }
};

TEST_F(Interleaved, JobsCollideForEverWhenNobodyShiftsThem) {
  Start(10 * kMillisecond, false);
  Run(100);
  for (const auto& trainer : trainers_) EXPECT_GT(trainer->Mean(20), kAlone * 5 / 4);
  EXPECT_EQ(Held(), 0);
}

TEST_F(Interleaved, OneHoldLetsThemTakeTurnsAndBothGetShorter) {
  Start(10 * kMillisecond, true);
  Run(100);
  for (const auto& trainer : trainers_) {
    EXPECT_NEAR(static_cast<double>(trainer->Mean(20)), kAlone, 0.03 * kAlone)
        << trainer->job().name;
  }
  EXPECT_GT(Held(), 20 * kMillisecond);
  EXPECT_LT(Held(), kAlone);
  EXPECT_TRUE(shown_);
  EXPECT_TRUE(shown_for_ == 1 || shown_for_ == 2) << shown_for_;
  EXPECT_FALSE(Events().empty());
  EXPECT_TEXTS(Events());
}

TEST_F(Interleaved, JobsThatMissEachOtherAreLeftAlone) {
  Start(100 * kMillisecond, true);
  Run(60);
  EXPECT_EQ(Held(), 0);
  EXPECT_EQ(Events().size(), 0U);
}

TEST_F(Interleaved, StaysWorthItWherePassesVary) {
  Start(10 * kMillisecond, true);
  for (const auto& trainer : trainers_) trainer->jitter = 0.05;
  Run(300);
  for (const auto& trainer : trainers_) EXPECT_LT(trainer->Mean(200), kAlone * 115 / 100);
  EXPECT_TEXTS(Events());
}

TEST_F(Interleaved, GivesUpOnJobsThatDoNotGetShorterByIt) {
  Start(0, true);
  // However one is held, the other waits for it: what a shift brings is gone at once.
  trainers_[0]->may_begin = [this] { return trainers_[1]->IsReady(); };
  trainers_[1]->may_begin = [this] {
    return trainers_[0]->iterations() > trainers_[1]->iterations();
  };
  Run(400);
  EXPECT_FALSE(Events().empty());
  EXPECT_TEXT(Events().back());
  const TimeNs held_ns = Held();
  Run(200);
  EXPECT_EQ(Held(), held_ns);
}

TEST_F(Interleaved, HoldsNoJobForMoreThanTwoPerCentOfHundredIterations) {
  Start(0, true);
  trainers_[0]->jitter = 0.3;
  trainers_[1]->jitter = 0.3;
  for (int hundred = 0; hundred < 4; ++hundred) {
    const TimeNs before_ns = Held();
    const TimeNs begin_ns = node_.now;
    Run(100);
    // Each of the two jobs may be held back for a fiftieth of the time.
    EXPECT_LE(Held() - before_ns, 2 * (node_.now - begin_ns) / 50) << hundred;
  }
}

TEST_F(Interleaved, ForgetsJobsThatHaveLeft) {
  Start(10 * kMillisecond, true);
  Run(40);
  trainers_.pop_back();
  const JobSpec spec{.id = JobId{3}, .name = "late", .world_size = 1};
  trainers_.push_back(std::make_unique<Trainer>(node_, spec, node_.now));
  Run(100);
  for (const auto& trainer : trainers_) EXPECT_LT(trainer->Mean(20), kAlone * 105 / 100);
}

}  // namespace
}  // namespace headrace::support
