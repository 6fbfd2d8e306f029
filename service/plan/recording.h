// Iterations as they were recorded: when each gradient was released by its last rank, and how long
// the forward pass took from each gradient to the next.
//
// All times are *work*: what computing takes while no lane is busy. While one is, computing goes at
// the rate 1 - contention, which is known of lanes in the node and between nodes. Time 0 of an
// iteration is the begin of the backward pass on the rank that begins it last, so a rank that
// begins earlier has earlier gradients.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ipc/base/result.h"
#include "ipc/profile.h"

namespace headrace::plan {

inline constexpr std::size_t kRecordedMax = 32;  // iterations
// Computing comes to a stop never; a rate below this would be an error of measurement.
inline constexpr double kContentionMax = 0.9;

// Of the rate of computing, what is lost while a stage is under way there; both add up.
enum class LanePlace : std::uint8_t { kInNode, kBetweenNodes };  // all rails are one
inline constexpr std::size_t kLanePlaces = 2;
using ContentionShares = std::array<double, kLanePlaces>;

constexpr std::size_t PlaceIndex(LanePlace place) { return static_cast<std::size_t>(place); }
constexpr double SumOf(const ContentionShares& shares) { return shares[0] + shares[1]; }
// None is negative, and together they leave something of the rate.
bool AreShares(const ContentionShares& shares);

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
  ContentionShares contention{};              // by LanePlace

  friend bool operator==(const Recording&, const Recording&) = default;
};

// Whether it can belong to a profile of so many tensors.
Status CheckRecording(const Recording& recording, std::size_t tensors_count);

// A profile with the q-quantile of the recorded times (0.5: the median), as they are while the
// lanes are busy for `busy` of the time.
Profile QuantileOf(const Recording& recording, const Profile& profile, double q, double busy);

}  // namespace headrace::plan
