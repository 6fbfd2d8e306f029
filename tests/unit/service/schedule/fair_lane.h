// Jobs that train beside each other on one fair lane, in virtual time: who has something to move
// gets an equal part of the lane, and a job moves one block at a time.
//
// A small model of its own: it shares no code with what decides about shifts.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

namespace headrace::schedule {

// A job whose gradients appear evenly over its backward pass, last layer first, in a block a layer,
// and are moved in that order; its forward pass waits for each layer's.
struct TrainingJob {
  double backward_s = 0;
  double forward_s = 0;
  int layers = 8;
  double work_s = 0;   // of a block, with the lane alone
  double begin_s = 0;  // of the first iteration
  double jitter = 0;   // each pass takes 1 - jitter to 1 + jitter of its time, evenly distributed
};

class FairLane {
 public:
  FairLane(std::vector<TrainingJob> jobs, std::uint32_t seed);

  // Until some job's iteration has ended (its last block has moved): which job's.
  std::size_t RunToNextEnd();

  struct Past {
    std::uint64_t iteration = 0;  // that has ended, from 1
    double begin_s = 0;           // of its backward pass
    double ready_s = 0;           // of its first block
  };
  const Past& last(std::size_t job) const { return running_[job].last; }
  // Begins of all backward passes so far.
  const std::vector<double>& begins(std::size_t job) const { return running_[job].begins; }
  // The iteration whose first block has not begun.
  std::uint64_t NextBorder(std::size_t job) const;
  // That block does not begin before.
  void Hold(std::size_t job, double until_s) { running_[job].hold_until_s = until_s; }
  double now_s() const { return now_s_; }

 private:
  struct Running {
    TrainingJob spec;
    std::uint64_t iteration = 0;
    double begin_s = 0;
    double backward_s = 0;  // as drawn
    double forward_s = 0;
    int block = 0;         // that moves, or will next
    double left_s = 0;     // of its work
    double compute_s = 0;  // forward pass: when the layer that is computed ends
    int layer = 0;         // whose gradient the forward pass needs next
    double hold_until_s = 0;
    double first_s = 0;  // when its first block was ready
    Past last;
    std::vector<double> begins;

    double ReadyOf(int index) const;
    double MayBegin() const;
    bool Moves(double now_s) const;
    // When the job does something by itself next, and what then happens.
    double NextOwn(double now_s) const;
  };

  void Begin(Running& job, double at_s);
  void StepOwn(Running& job);
  double Draw(double jitter);

  std::vector<Running> running_;
  std::mt19937 random_;
  std::vector<std::size_t> ended_;  // jobs, at the same moment; not yet told
  double now_s_ = 0;
};

}  // namespace headrace::schedule
