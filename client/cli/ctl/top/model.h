// What top shows: the rows of two snapshots brought together, sorted and filtered. Pure, so that
// what a screen says can be tested without one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/cli/ctl/process.h"
#include "client/cli/ctl/snapshot.h"

namespace headrace::ctl {

enum class JobSort { kName, kRate, kTime, kHidden, kOpen, kAge };
inline constexpr int kJobSortsCount = 6;
// "name", "rate", "iteration time", "share hidden", "open operations", "age".
const char* JobSortName(JobSort sort);

// How the person at the screen wants it.
struct ViewOptions {
  JobSort sort = JobSort::kRate;
  bool reversed = false;
  std::string filter{};            // part of a job's name, of a tensor or of a reason; any case
  std::uint32_t selected_job = 0;  // id; 0: none yet
};

struct JobLine {
  std::uint32_t id = 0;
  std::uint32_t owner = 0;  // uid
  std::string name;
  std::string state;  // "running", "paused", "draining", ...
  bool is_paused = false;
  bool is_failed = false;
  std::uint32_t ranks_attached = 0;
  std::uint32_t world_size = 0;
  std::uint64_t iteration = 0;  // 0: it has no plan
  std::optional<TimeNs> iteration_ns;
  std::optional<double> hidden;
  std::optional<double> bytes_per_s;  // since the screen before
  std::uint64_t operations_open = 0;
  TimeNs age_ns = 0;
  std::uint32_t weight = 0;
  std::uint32_t priority = 0;
  std::uint64_t limit_bytes_per_s = 0;
  std::string policy;
  std::string failure;
};

struct LaneUser {
  std::string job;
  double share = 0;  // of what the lane moved since the screen before
};

struct LaneLine {
  std::string name;
  std::string transport;
  std::optional<double> busy;  // share of the time since the screen before
  double bytes_per_s = 0;
  std::uint64_t queued_stages = 0;
  std::uint64_t in_flight_stages = 0;
  std::vector<LaneUser> users;  // the largest first
};

// A rank that others waited for since the screen before.
struct RankLine {
  std::string job;
  std::uint32_t rank = 0;
  std::int32_t pid = 0;
  std::uint64_t last_posts = 0;
  TimeNs late_ns = 0;    // sum over these
  TimeNs waited_ns = 0;  // its own forward passes stood still; -1: none ever said so
};

struct WaitLine {
  std::string job;
  std::string block;
  std::string tensor;
  TimeNs age_ns = 0;
  std::string why;
};

struct Picture {
  Liveness liveness = Liveness::kRunning;
  std::string version;
  std::int32_t pid = 0;
  TimeNs uptime_ns = 0;
  std::optional<TimeNs> interval_ns;  // since the screen before
  std::size_t jobs_count = 0;         // before the filter
  std::uint64_t sessions = 0;
  double bytes_per_s = 0;  // of all lanes
  std::vector<JobLine> jobs;
  std::vector<LaneLine> lanes;
  std::vector<RankLine> ranks;  // the latest first
  std::vector<WaitLine> waits;  // the oldest first
};

// `before`: the screen before, or null. A service that started anew in between counts from nothing.
Picture MakePicture(const Snapshot& now, const Snapshot* before, Liveness liveness,
                    const ViewOptions& view_options);

}  // namespace headrace::ctl
