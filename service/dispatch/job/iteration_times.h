// How a job's iterations went on this node: what its ranks' posts say of the passes, and when each
// block was ready, began and ended. Of a window of iterations it keeps what medians need.
//
// Times of an iteration count from the begin of the backward pass on the last local rank that began
// it. Plain data; all calls come from dispatch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ipc/base/clock.h"
#include "ipc/records.h"
#include "service/session/layout.h"

namespace headrace::service {

class IterationTimes {
 public:
  static constexpr std::uint64_t kWindow = 16;

  IterationTimes(std::size_t tensors_count, std::size_t ranks_count);

  // `rank` counts the local ranks.
  void Post(std::size_t rank, std::uint32_t tensor, std::uint64_t iteration,
            const ipc::GradientRecord& record);

  struct Span {
    TimeNs ready_ns = 0;
    TimeNs begin_ns = 0;
    TimeNs end_ns = 0;
  };
  // Of the plan's blocks in one iteration; may be written as they go.
  void ResizeBlocks(std::uint64_t iteration, std::size_t blocks_count);
  Span& block(std::uint64_t iteration, std::uint32_t index);
  std::span<const Span> blocks(std::uint64_t iteration) const;

  // A block of the plan has come onto a lane, or has left the last one.
  void BlockMoves(TimeNs now);
  void BlockRests(TimeNs now);

  void EndIteration(std::uint64_t iteration);
  TimeNs BackwardBegin(std::uint64_t iteration) const;

  // Medians over the last iterations that have ended, `count` of them or as many as are kept.
  NodeTimes Median(std::uint64_t iterations_count) const;
  // The same into what has been filled before, which then has the memory it takes.
  void Median(std::uint64_t iterations_count, NodeTimes& times) const;
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
  };
  struct Column {  // one iteration
    std::uint64_t iteration = 0;
    bool ended = false;
    std::size_t posts = 0;
    TimeNs begin_ns = 0;     // of the backward pass
    TimeNs previous_ns = 0;  // the begin of the iteration before
    TimeNs moving_ns = 0;
    TimeNs elsewhere_ns = 0;
    std::vector<Sample> samples;           // by rank, then by tensor
    std::vector<std::uint64_t> waited_ns;  // by rank
    std::vector<Span> blocks;
  };

  // Of the iteration that has ended, from the begin of the one before.
  TimeNs ElsewhereOf(const Column& column, const Column& before) const;
  Column& ColumnOf(std::uint64_t iteration);
  const Column& ColumnOf(std::uint64_t iteration) const {
    return columns_[iteration % columns_.size()];
  }
  std::size_t samples_count() const { return tensors_count_ * ranks_count_; }
  // The last `count` iterations, as far as they are kept and have ended; and one number of each, of
  // which the middle is sought. Neither takes memory of its own.
  struct Columns;
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
};

}  // namespace headrace::service
