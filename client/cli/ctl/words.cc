#include "client/cli/ctl/words.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <vector>

namespace headrace::ctl {
namespace {

template <std::size_t N>
std::string_view At(const std::array<std::string_view, N>& names, std::uint32_t number) {
  return number < N ? names[number] : "unknown";
}

// Names of this many ranks stand in a cell; of the others only the count.
constexpr int kRanksNamedMax = 4;

std::string RanksNotReady(std::uint64_t missing, std::uint64_t lowest) {
  const int count = std::popcount(missing);
  if (count <= 1) return fmt::format("rank {} not ready", lowest);
  std::vector<int> named;
  for (int rank = 0; rank < 64; ++rank) {
    const bool is_missing = (missing >> rank & 1U) != 0;
    if (is_missing && named.size() < kRanksNamedMax) named.push_back(rank);
  }
  const int others = count - static_cast<int>(named.size());
  return others == 0
             ? fmt::format("ranks {} not ready", fmt::join(named, ", "))
             : fmt::format("ranks {} and {} more not ready", fmt::join(named, ", "), others);
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
  return At<8>({"", "rank_not_ready", "rank_not_attached", "no_credit", "behind_block",
                "behind_job", "nodes_not_ready", "no_plan"},
               reason);
}

std::string WhyItWaits(const ipc::QueueRow& row, const Snapshot& snapshot) {
  const std::uint64_t argument = row.wait_argument;
  switch (static_cast<ipc::WaitReason>(row.reason)) {
    case ipc::WaitReason::kNone:
      return "";
    case ipc::WaitReason::kRankNotReady:
      return RanksNotReady(row.ranks_missing, argument);
    case ipc::WaitReason::kRankNotAttached:
      return fmt::format("rank {} not attached", argument);
    case ipc::WaitReason::kNoCredit:
      return fmt::format("no credit on lane {}", LaneName(row.lane, snapshot));
    case ipc::WaitReason::kBehindBlock:
      return fmt::format("behind block {}", argument);
    case ipc::WaitReason::kBehindJob:
      return fmt::format("behind job {}", JobName(static_cast<std::uint32_t>(argument), snapshot));
    case ipc::WaitReason::kNodesNotReady:
      return "the job's nodes have not all met";
    case ipc::WaitReason::kNoPlan:
      return "no plan yet: not all ranks have handed in their layout";
  }
  return fmt::format("reason {} of another version", row.reason);
}

std::string JobName(std::uint32_t id, const Snapshot& snapshot) {
  const ipc::JobRow* job = snapshot.FindJob(id);
  return job != nullptr ? std::string(ipc::GetText(job->name)) : fmt::format("#{}", id);
}

std::string LaneName(std::size_t index, const Snapshot& snapshot) {
  const ipc::LaneRow* lane = snapshot.FindLane(index);
  return lane != nullptr ? std::string(ipc::GetText(lane->name)) : fmt::format("#{}", index);
}

}  // namespace headrace::ctl
