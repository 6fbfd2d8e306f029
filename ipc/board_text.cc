#include "ipc/board_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include "ipc/base/age.h"
#include "ipc/base/steering.h"
#include "ipc/records.h"

namespace headrace::ipc {
namespace {

template <std::size_t N>
std::string_view At(const std::array<std::string_view, N>& names, std::uint32_t number) {
  return number < N ? names[number] : "unknown";
}

// A cell names so many ranks and counts the others.
constexpr int kRanksNamedMax = 4;
// Bits of a row's mask of ranks: ranks from here on have none.
constexpr int kRankBits = 64;

// "rank 2 of job bert", "ranks 0, 2, 3, 4 of job bert and 3 more".
std::string RanksMissing(const QueueRow& row, const std::string& job) {
  const int count = std::popcount(row.ranks_missing);
  if (count <= 1) return fmt::format("rank {} of job {}", row.wait_argument, job);
  std::vector<int> named;
  for (int rank = 0; rank < kRankBits; ++rank) {
    const bool is_missing = (row.ranks_missing >> rank & 1U) != 0;
    if (is_missing && named.size() < kRanksNamedMax) named.push_back(rank);
  }
  const int others = count - static_cast<int>(named.size());
  const std::string ranks = fmt::format("ranks {} of job {}", fmt::join(named, ", "), job);
  return others == 0 ? ranks : fmt::format("{} and {} more", ranks, others);
}

// " (7 of 8 missing)", where more than one is.
std::string HowMany(const QueueRow& row, const BoardReading& reading) {
  const int count = std::popcount(row.ranks_missing);
  const JobRow* job = reading.FindJob(row.job_id);
  if (count <= 1 || job == nullptr) return "";
  const char* at_least = job->world_size > kRankBits ? "at least " : "";
  return fmt::format(" ({}{} of {} missing)", at_least, count, job->world_size);
}

std::string NotReady(const QueueRow& row, const BoardReading& reading) {
  return fmt::format("{} not ready for {}{}", RanksMissing(row, JobName(row.job_id, reading)),
                     FormatAge(reading.now_ns - row.since_ns), HowMany(row, reading));
}

std::string NotAttached(const QueueRow& row, const BoardReading& reading) {
  const JobRow* job = reading.FindJob(row.job_id);
  const std::string here =
      job != nullptr ? fmt::format(" ({} of {} are)", job->ranks_attached, job->world_size) : "";
  return fmt::format("rank {} of job {} not attached for {}{}", row.wait_argument,
                     JobName(row.job_id, reading), FormatAge(reading.now_ns - row.since_ns), here);
}

// What the board says may be anything; a year is as good as for ever.
constexpr std::uint64_t kLongestWait = 365ULL * 86400 * kSecond;

// For how long its job's phase is held back: since the stage was posted.
std::string Held(const QueueRow& row, const BoardReading& reading) {
  return fmt::format("held {} so that its phase does not collide with job {}",
                     FormatAge(reading.now_ns - row.since_ns),
                     JobName(static_cast<std::uint32_t>(row.wait_argument), reading));
}

// All have posted it, so the one that is named is who everybody waits for.
std::string GpuNotReady(const QueueRow& row, const BoardReading& reading) {
  return fmt::format("rank {} of job {} not ready for {}: its GPU has not reached it",
                     row.wait_argument, JobName(row.job_id, reading),
                     FormatAge(reading.now_ns - row.since_ns));
}

std::string_view NameOfPeer(const QueueRow& row) {
  const std::string_view name = GetText(row.peer);
  return name.empty() ? "of no name" : name;
}

// Nobody sets how many stages move: it is the plan's, or a limit of the service.
std::string InFlight(const QueueRow& row, const BoardReading& reading) {
  const std::uint64_t count = row.wait_argument;
  if (row.iteration != 0) {
    return fmt::format("the plan moves {} block{} at a time",
                       count == 1 ? "one" : fmt::to_string(count), count == 1 ? "" : "s");
  }
  return fmt::format("{} stages of its job are on {}, as many as may be", count,
                     LaneName(row.lane, reading));
}

// ", and peer b is slow": what the stages before it wait for, where that is a peer.
std::string BecauseOf(const QueueRow& row, const BoardReading& reading) {
  const auto peer = std::ranges::find_if(reading.queue, [&row](const QueueRow& other) {
    return other.job_id == row.job_id && WaitsForPeer(other);
  });
  return peer == reading.queue.end() ? "" : fmt::format(", and peer {} is slow", NameOfPeer(*peer));
}

// What the send or receive waits for: the other side.
std::string OtherSide(const QueueRow& row, const BoardReading& reading) {
  const bool receives = row.reason == static_cast<std::uint32_t>(WaitReason::kNoReceive);
  const std::string what = receives ? fmt::format("receive from rank {}", row.source)
                                    : fmt::format("send to rank {}", row.target);
  const std::string of = fmt::format("of job {}", JobName(row.job_id, reading));
  const std::string nodes =
      row.peer[0] == '\0' ? "" : fmt::format(", between this node and node {}", NameOfPeer(row));
  const std::string rest =
      fmt::format(", tag {}, for {}{}", row.tag, FormatAge(reading.now_ns - row.since_ns), nodes);
  if (!receives && row.source == kAnyRank)
    return fmt::format("no rank {} has posted a {}{}", of, what, rest);
  return fmt::format("rank {} {} has not posted its {}{}", row.wait_argument, of, what, rest);
}

// The peer's name comes from another node.
std::string PeerSlow(const QueueRow& row, const BoardReading& reading) {
  return fmt::format("peer {} slow: its bytes are missing after {} on the lane", NameOfPeer(row),
                     FormatAge(reading.now_ns - row.since_ns));
}

}  // namespace

std::string_view ServiceStateName(std::uint32_t state) {
  return At<5>({"unknown", "starting", "running", "draining", "stopped"}, state);
}

std::string_view JobStateName(std::uint32_t state) {
  return At<4>({"unknown", "gathering", "running", "failed"}, state);
}

std::string_view SendsClassName(std::uint32_t sends_class) {
  return sends_class <= kSendsClassMax ? kSendsClassNames[sends_class] : "unknown";
}

std::uint64_t RateNow(const LaneRow& row, TimeNs now_ns) {
  return now_ns - row.rate_ns <= kSecond ? row.rate_bytes_per_s : 0;
}

std::string_view StageStateName(std::uint32_t state) {
  return At<4>({"unknown", "gathering", "waiting", "moving"}, state);
}

std::string_view WaitReasonName(std::uint32_t reason) {
  return At<20>({"",           "rank_not_ready",  "rank_not_attached", "no_credit", "behind_block",
                 "behind_job", "nodes_not_ready", "no_plan",           "peer",      "paused",
                 "rate_limit", "interleaved",     "gpu_not_ready",     "in_flight", "iteration",
                 "lane_full",  "no_receive",      "no_send",           "no_room",   "plan_switch"},
                reason);
}

bool WaitsForPeer(const QueueRow& row) {
  return row.reason == static_cast<std::uint32_t>(WaitReason::kPeer);
}

std::string WhyItWaits(const QueueRow& row, const BoardReading& reading) {
  const std::uint64_t argument = row.wait_argument;
  switch (static_cast<WaitReason>(row.reason)) {
    case WaitReason::kNone:
      return "";
    case WaitReason::kRankNotReady:
      return NotReady(row, reading);
    case WaitReason::kRankNotAttached:
      return NotAttached(row, reading);
    case WaitReason::kNoCredit:
      return fmt::format("no credit on {}", LaneName(row.lane, reading));
    case WaitReason::kBehindBlock:
      return fmt::format("behind block {}", argument);
    case WaitReason::kBehindJob:
      return fmt::format("behind job {} on {}",
                         JobName(static_cast<std::uint32_t>(argument), reading),
                         LaneName(row.lane, reading));
    case WaitReason::kNodesNotReady:
      return fmt::format("the nodes of job {} have not all met", JobName(row.job_id, reading));
    case WaitReason::kNoPlan:
      return "no plan yet: not all ranks have handed in their layout";
    case WaitReason::kPeer:
      return PeerSlow(row, reading);
    case WaitReason::kPaused:
      return fmt::format("paused by uid {}", argument);
    case WaitReason::kRateLimit:
      return fmt::format("rate limit: goes on in {}",
                         FormatAge(static_cast<TimeNs>(std::min(argument, kLongestWait))));
    case WaitReason::kInterleaved:
      return Held(row, reading);
    case WaitReason::kGpuNotReady:
      return GpuNotReady(row, reading);
    case WaitReason::kInFlight:
      return InFlight(row, reading) + BecauseOf(row, reading);
    case WaitReason::kIteration:
      return fmt::format("waits for iteration {} to end", argument) + BecauseOf(row, reading);
    case WaitReason::kLaneFull:
      return fmt::format("{} has as many stages as it takes", LaneName(row.lane, reading));
    case WaitReason::kNoReceive:
    case WaitReason::kNoSend:
      return OtherSide(row, reading);
    case WaitReason::kNoRoom:
      return "the job has as many blocks under way as it may";
    case WaitReason::kPlanSwitch:
      return fmt::format("not all nodes have taken the plan that begins with iteration {}",
                         argument);
  }
  return fmt::format("reason {} of another version", row.reason);
}

std::string JobName(std::uint32_t id, const BoardReading& reading) {
  if (const JobRow* job = reading.FindJob(id); job != nullptr)
    return std::string(GetText(job->name));
  // It is over, and the flight recorder still knows it.
  const Placed<FlightJobRow>* ended = reading.FindFlight(id);
  return ended != nullptr ? std::string(GetText(ended->row.name)) : fmt::format("#{}", id);
}

std::string LaneName(std::size_t index, const BoardReading& reading) {
  const LaneRow* lane = reading.FindLane(index);
  return lane != nullptr ? std::string(GetText(lane->name)) : fmt::format("#{}", index);
}

}  // namespace headrace::ipc
