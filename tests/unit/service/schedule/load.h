// A lane under load: jobs that keep stages waiting, and a lane that moves so many bytes a second,
// one stage after the other.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <random>
#include <vector>

#include "service/schedule/queue.h"

namespace headrace::schedule {

class Load {
 public:
  Load(UnifiedQueue& queue, std::uint64_t bytes_per_s, std::uint64_t seed)
      : queue_(queue), bytes_per_s_(bytes_per_s), random_(seed) {}

  struct Source {
    std::uint64_t bytes_min = 4096;
    std::uint64_t bytes_max = std::uint64_t{1} << 20;
    bool both_classes = false;
    std::size_t waiting = 8;  // stages that it keeps in the queue; 0: it has nothing to do
  };
  // Changes what the job does from now on.
  Source& operator[](JobId job) { return sources_[job]; }

  // Lets `duration_ns` pass. Every time the lane has room it picks all it may have.
  void Run(TimeNs duration_ns);

  TimeNs now = kSecond;
  std::map<JobId, std::uint64_t> moved;  // bytes that have left the lane
  std::map<JobId, TimeNs> last_end;
  TimeNs idle_ns = 0;  // the lane had nothing

 private:
  void Fill();
  void PickAll();

  UnifiedQueue& queue_;
  std::uint64_t bytes_per_s_;
  std::mt19937_64 random_;
  std::map<JobId, Source> sources_;
  std::map<JobId, std::size_t> waiting_;
  std::uint64_t positions_ = 0;
  std::deque<QueuedStage> lane_;
};

}  // namespace headrace::schedule
