#include "service/watch/board_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

namespace headrace::service {
namespace {

template <std::size_t N>
std::string_view At(const std::array<std::string_view, N>& names, std::uint32_t number) {
  return number < N ? names[number] : "unknown";
}

// Names of this many ranks stand in a sentence; of the others only the count.
constexpr std::size_t kRanksNamedMax = 4;
constexpr int kRankBits = 64;

std::string Duration(TimeNs ns) {
  const double seconds = static_cast<double>(std::max<TimeNs>(ns, 0)) / 1e9;
  if (seconds < 0.001) return fmt::format("{:.0f} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.1f} ms", seconds * 1e3);
  if (seconds < 600) return fmt::format("{:.1f} s", seconds);
  return fmt::format("{:.0f} min", seconds / 60);
}

std::string RanksMissing(const ipc::QueueRow& row) {
  const int count = std::popcount(row.ranks_missing);
  if (count <= 1) return fmt::format("rank {}", row.wait_argument);
  std::vector<int> named;
  for (int rank = 0; rank < kRankBits && named.size() < kRanksNamedMax; ++rank) {
    if ((row.ranks_missing >> rank & 1U) != 0) named.push_back(rank);
  }
  const int others = count - static_cast<int>(named.size());
  const std::string ranks = fmt::format("ranks {}", fmt::join(named, ", "));
  return others == 0 ? ranks : fmt::format("{} and {} more", ranks, others);
}

}  // namespace

std::string_view ServiceStateName(std::uint32_t state) {
  return At<5>({"unknown", "starting", "running", "draining", "stopped"}, state);
}

std::string_view JobStateName(std::uint32_t state) {
  return At<4>({"unknown", "gathering", "running", "failed"}, state);
}

std::string_view StageStateName(std::uint32_t state) {
  return At<4>({"unknown", "gathering", "waiting", "moving"}, state);
}

std::string_view WaitReasonName(std::uint32_t reason) {
  return At<13>({"", "rank_not_ready", "rank_not_attached", "no_credit", "behind_block",
                 "behind_job", "nodes_not_ready", "no_plan", "peer", "paused", "rate_limit",
                 "interleaved", "gpu_not_ready"},
                reason);
}

std::string WhyItWaits(const ipc::QueueRow& row, const BoardReading& reading) {
  using ipc::WaitReason;
  const std::uint64_t argument = row.wait_argument;
  const std::string job = JobName(row.job_id, reading);
  const std::string since = Duration(reading.now_ns - row.since_ns);
  const auto other = [&] { return JobName(static_cast<std::uint32_t>(argument), reading); };
  switch (static_cast<WaitReason>(row.reason)) {
    case WaitReason::kNone:
      return "";
    case WaitReason::kRankNotReady:
      return fmt::format("{} of job {} not ready for {}", RanksMissing(row), job, since);
    case WaitReason::kRankNotAttached:
      return fmt::format("rank {} of job {} not attached for {}", argument, job, since);
    case WaitReason::kNoCredit:
      return fmt::format("no credit on {}", LaneName(row.lane, reading));
    case WaitReason::kBehindBlock:
      return fmt::format("behind block {}", argument);
    case WaitReason::kBehindJob:
      return fmt::format("behind job {} on {}", other(), LaneName(row.lane, reading));
    case WaitReason::kNodesNotReady:
      return fmt::format("the nodes of job {} have not all met", job);
    case WaitReason::kNoPlan:
      return "no plan yet: not all ranks have handed in their layout";
    case WaitReason::kPeer:
      return fmt::format("peer {} slow: its bytes are missing after {} on the lane",
                         ipc::GetText(row.peer), since);
    case WaitReason::kPaused:
      return fmt::format("paused by uid {}", argument);
    case WaitReason::kRateLimit:
      return fmt::format("rate limit: goes on in {}",
                         Duration(static_cast<TimeNs>(std::min<std::uint64_t>(argument, kNever))));
    case WaitReason::kInterleaved:
      return fmt::format("held {} so that its phase does not collide with job {}", since, other());
    case WaitReason::kGpuNotReady:
      return fmt::format("rank {} of job {} not ready for {}: its GPU has not come so far",
                         argument, job, since);
  }
  return fmt::format("reason {} of another version", row.reason);
}

std::string JobName(std::uint32_t id, const BoardReading& reading) {
  const ipc::JobRow* const job = reading.FindJob(id);
  return job != nullptr ? std::string(ipc::GetText(job->name)) : fmt::format("#{}", id);
}

std::string LaneName(std::size_t index, const BoardReading& reading) {
  const ipc::LaneRow* const lane = reading.FindLane(index);
  return lane != nullptr ? std::string(ipc::GetText(lane->name)) : fmt::format("#{}", index);
}

}  // namespace headrace::service
