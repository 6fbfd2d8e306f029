// What the flight recorder keeps of jobs, ranks and blocks until it writes it down: plain data
// inside Job, Member and Block, changed by the recorder (recorder.h) only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ipc/base/clock.h"
#include "ipc/board_layout.h"

namespace headrace::service {

// A client says how long its passes took, and as often as it likes: a sum stays what it can hold.
inline void AddTime(TimeNs& sum, std::uint64_t more_ns) {
  const auto room = static_cast<std::uint64_t>(kNever - sum);
  sum += static_cast<TimeNs>(more_ns < room ? more_ns : room);
}

// Sums since the job opened, as its row on the board shows them.
struct JobSums {
  std::uint64_t blocks_ended = 0;
  TimeNs gathering_ns = 0;
  TimeNs waiting_ns = 0;
  TimeNs moving_ns = 0;
  TimeNs held_ns = 0;
  std::array<std::uint64_t, ipc::kCodeCounts> failed_by_code{};
};

// Of one rank, since it attached.
struct RankSums {
  std::uint64_t bytes_posted = 0;
  std::uint64_t last_posts = 0;
  TimeNs late_ns = 0;
  TimeNs waited_ns = 0;
};

// What a job has of one lane, and where the board shows it.
struct LaneShare {
  ipc::ShareRow row{};
  std::uint16_t board_row = UINT16_MAX;
  bool dirty = false;
};

// The stages that a block has behind it; those beyond the row's room are only counted.
struct BlockNotes {
  struct Stage {
    std::uint8_t lane = 0;
    std::uint8_t step = 0;
    TimeNs queued_ns = 0;
    TimeNs begin_ns = 0;  // 0: no lane ever had it
    TimeNs end_ns = 0;
  };
  std::uint32_t count = 0;
  std::array<Stage, ipc::kFlightStagesMax> stages;
};

// One iteration of one rank while its gradients come in.
struct PassNotes {
  std::uint64_t iteration = 0;
  std::uint32_t posts = 0;
  TimeNs begin_ns = 0;
  TimeNs last_ns = 0;
  TimeNs forward_ns = 0;
  TimeNs waited_ns = 0;
};

struct JobNotes {
  static constexpr std::uint16_t kNoPlace = UINT16_MAX;
  std::uint16_t place = kNoPlace;  // in the board's tables; none: the job goes unrecorded
  ipc::FlightJobRow row{};
  bool dirty = false;              // the row on the board is older
  std::vector<TimeNs> operations;  // by slot, then by rank: when the rank posted it
  std::vector<TimeNs> gradients;   // by tensor, then by rank: likewise
  // By rank: two iterations of a rank can be under way, one beginning while the other ends.
  std::vector<std::array<PassNotes, 2>> passes;
  std::vector<LaneShare> shares;  // by lane
};

}  // namespace headrace::service
