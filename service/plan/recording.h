// Iterations as they were recorded: when each gradient was released by its last rank, and how long
// the forward pass took from each gradient to the next.
//
// All times are *work*: what computing takes while no lane is busy. While one is, computing goes at
// the rate 1 - contention. Time 0 of an iteration is the begin of the backward pass on the rank
// that begins it last, so a rank that begins earlier has earlier gradients.
#pragma once

#include <cstddef>
#include <vector>

#include "ipc/base/result.h"
#include "ipc/profile.h"

namespace headrace::plan {

inline constexpr std::size_t kRecordedMax = 32;  // iterations
// Computing comes to a stop never; a rate below this would be an error of measurement.
inline constexpr double kContentionMax = 0.9;

struct RecordedIteration {
  std::vector<float> release_s;  // by tensor; falls with the index
  std::vector<float> forward_s;  // by tensor, what follows its wait: its update, its layer
  // When the forward pass would ask for the first gradient; updates, data and whatever else the
  // loop does before it are over then.
  double forward_begin_s = 0;

  friend bool operator==(const RecordedIteration&, const RecordedIteration&) = default;
};

struct Recording {
  std::vector<RecordedIteration> iterations;  // at most kRecordedMax; none: nothing was recorded
  double contention = 0;                      // of the rate of computing, lost while a lane is busy

  friend bool operator==(const Recording&, const Recording&) = default;
};

// Whether it can belong to a profile of so many tensors.
Status CheckRecording(const Recording& recording, std::size_t tensors_count);

// A profile with the q-quantile of the recorded times (0.5: the median), as they are while a lane
// is busy for `busy` of the time.
Profile QuantileOf(const Recording& recording, const Profile& profile, double q, double busy);

}  // namespace headrace::plan
