// How long GPUs were at work for one group's codecs. What was started on a GPU waits there for what
// was started before, and must not be charged for that time: pieces and matrices share this clock.
//
// Part of PieceMemory, on the lane's thread. A value; allocates nothing.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "ipc/base/check.h"
#include "ipc/base/clock.h"

namespace headrace::transport {

class GpuTimes {
 public:
  // What was started on the GPU at `begin_ns` was seen to have ended at `now`: how long the GPU was
  // at work for it, since what ended before it there.
  TimeNs OnEnded(std::int8_t device, TimeNs begin_ns, TimeNs now) {
    HR_CHECK(device >= 0, device);
    TimeNs& end_ns = ends_ns_[static_cast<std::uint8_t>(device)];
    const TimeNs took_ns = now - std::max(begin_ns, end_ns);
    end_ns = now;
    return took_ns;
  }

 private:
  std::array<TimeNs, std::size_t{std::numeric_limits<std::int8_t>::max()} + 1> ends_ns_{};
};

}  // namespace headrace::transport
