// The times of a job's iterations on this node: those of the passes, from its ranks' posts, and
// when each block was ready, began and ended. It keeps every rank's times of the last iterations:
// of kWindow for medians, of kKept for plans that are simulated on them.
//
// Times of an iteration count from the start of the backward pass on the last local rank that began
// it. Plain data; all calls come from dispatch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ipc/base/clock.h"
#include "ipc/records.h"
#include "service/dispatch/job/contention.h"
#include "service/plan/recording.h"
#include "service/session/layout.h"

namespace headrace::service {

// A client says how long its passes took, and as often as it likes: a sum stays what it can hold.
inline void AddTime(TimeNs& sum, std::uint64_t more_ns) {
  const auto room = static_cast<std::uint64_t>(kNever - sum);
  sum += static_cast<TimeNs>(more_ns < room ? more_ns : room);
}

class IterationTimes {
 public:
  static constexpr std::uint64_t kWindow = 16;
  static constexpr std::uint64_t kKept = plan::kRecordedMax;

  IterationTimes(std::size_t tensors_count, std::size_t ranks_count);

  // `rank` counts the local ranks.
  void Post(std::size_t rank, std::uint32_t tensor, std::uint64_t iteration,
            const ipc::GradientRecord& record);

  struct BlockTimes {
    TimeNs ready_ns = 0;
    TimeNs begin_ns = 0;
    TimeNs end_ns = 0;
  };
  // The times of the plan's blocks in one iteration; may be written while they move.
  void ResizeBlocks(std::uint64_t iteration, std::size_t blocks_count);
  BlockTimes& block(std::uint64_t iteration, std::uint32_t index);
  std::span<const BlockTimes> blocks(std::uint64_t iteration) const;

  // A block of the plan has come onto a lane, or has left the last one.
  void OnBlockStarted(TimeNs now);
  void OnBlockIdle(TimeNs now);

  void EndIteration(std::uint64_t iteration);
  TimeNs BackwardBegin(std::uint64_t iteration) const;

  // Medians over the last iterations that have ended, `count` of them or as many as are kept.
  NodeTimes Median(std::uint64_t iterations_count) const;
  // The same into what has been filled before, which then has the memory it takes.
  void Median(std::uint64_t iterations_count, NodeTimes& times) const;
  // Adds the last kKept iterations, each by itself, as far as they and those beside them are kept;
  // and the contention, which takes what was seen since the last call into account.
  void Record(NodeTimes& times);
  // From one backward pass to the next: mean and 90th percentile over the last kKept, but those in
  // which the loop did something else and ran twice as long as in most; 0: not known.
  struct Spread {
    TimeNs mean_ns = 0;
    TimeNs p90_ns = 0;
  };
  Spread MeasuredSpread() const;
  struct Totals {
    std::uint64_t iteration = 0;  // the last that has ended
    TimeNs backward_ns = 0;
    TimeNs forward_ns = 0;
    TimeNs waited_ns = 0;
    TimeNs iteration_ns = 0;
    TimeNs moving_ns = 0;
    // What is left of an iteration besides both passes and what the forward pass stood still: of
    // the rank that has the least.
    TimeNs elsewhere_ns = 0;
  };
  // The same, in sum, of the slowest rank.
  Totals MedianTotals(std::uint64_t iterations_count = kWindow);
  // The same, and Median into `times`.
  Totals MedianTotals(std::uint64_t iterations_count, NodeTimes& times) const;
  // The last iteration of which every block has ended; 0: none.
  std::uint64_t last_ended() const { return last_ended_; }
  // Over all iterations that have ended with every post seen, and whose begin before is known.
  struct Sums {
    std::uint64_t count = 0;
    TimeNs iterations_ns = 0;
    TimeNs waited_ns = 0;  // of the slowest rank
    TimeNs moving_ns = 0;
  };
  const Sums& sums() const { return sums_; }

 private:
  struct Sample {
    float release_s = 0;
    float forward_s = 0;
    float waited_s = 0;  // before that
  };
  struct Column {  // one iteration
    std::uint64_t iteration = 0;
    bool ended = false;
    std::size_t posts = 0;
    TimeNs begin_ns = 0;     // of the backward pass, on the rank that begins it last
    TimeNs previous_ns = 0;  // the begin of the iteration before
    TimeNs moving_ns = 0;
    TimeNs elsewhere_ns = 0;
    std::vector<Sample> samples;           // by rank, then by tensor
    std::vector<std::uint64_t> waited_ns;  // by rank
    std::vector<TimeNs> begins_ns;         // of the backward pass, by rank
    std::vector<BlockTimes> blocks;
  };

  // The iteration of `column`'s backward pass and the forward pass after it, which `next` has.
  // `seen` null: only shows its parts to contention_.
  void RecordOne(const Column& before, const Column& column, const Column& next,
                 SeenIteration* seen);
  // The same of one rank; what it adds to the iteration is in `rank_`.
  void RecordRank(const Column& column, const Column& next, std::size_t rank, bool compares);
  // What of this time would have been needed with idle lanes.
  double Worked(std::size_t part, double begin_s, double end_s, bool compares);
  // The time spent elsewhere, from the begin of the iteration before to the one that has ended.
  TimeNs ElsewhereOf(const Column& column, const Column& before) const;
  Column& ColumnOf(std::uint64_t iteration);
  const Column& ColumnOf(std::uint64_t iteration) const {
    return columns_[iteration % columns_.size()];
  }
  std::size_t samples_count() const { return tensors_count_ * ranks_count_; }
  // The last `count` iterations, as far as they are kept and have ended; and one number of each, of
  // which the middle is sought. Neither takes memory of its own.
  struct Columns;
  class SampleMedians;
  struct Values;
  Columns Ended(std::uint64_t count) const;

  std::size_t tensors_count_;
  std::size_t ranks_count_;
  std::vector<Column> columns_;
  std::uint64_t last_ended_ = 0;
  std::uint32_t moving_count_ = 0;
  TimeNs moving_since_ns_ = 0;
  TimeNs moving_ns_ = 0;  // since the last iteration's end
  Sums sums_;
  NodeTimes totals_of_;  // MedianTotals' own
  Contention contention_;
  // For the iteration that is being recorded, and for one rank in it.
  BusyTimes busy_;
  struct RankWork {
    std::vector<double> release_s;
    std::vector<double> tail_s;  // the forward pass from each tensor to its end
    double whole_s = 0;          // until the next backward pass, had there been nothing to wait for
  };
  RankWork rank_;
};

}  // namespace headrace::service
