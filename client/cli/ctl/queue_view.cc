#include "client/cli/ctl/queue_view.h"

#include <fmt/format.h>

#include <algorithm>

#include "client/cli/ctl/job_text.h"
#include "client/cli/ctl/table.h"
#include "client/cli/ctl/units.h"
#include "ipc/base/age.h"
#include "ipc/base/collective.h"
#include "ipc/records.h"

namespace headrace::ctl {
namespace {

std::string Kind(const ipc::QueueRow& row) {
  return std::string(Name(static_cast<Collective>(row.kind)));
}

bool IsPair(const ipc::QueueRow& row) {
  return ipc::IsSendOrReceive(static_cast<Collective>(row.kind));
}

// One side of a send or receive; null where any rank may be the source.
Json Side(const ipc::QueueRow& row, std::uint32_t rank) {
  return IsPair(row) && rank != ipc::kAnyRank ? Json(rank) : Json(nullptr);
}

// A barrier moves no elements.
std::string Element(const ipc::QueueRow& row) {
  const bool is_barrier = static_cast<Collective>(row.kind) == Collective::kBarrier;
  return is_barrier ? "" : std::string(Name(static_cast<DType>(row.dtype)));
}

// A stage has its lane when it enters the unified queue.
bool HasLane(const ipc::QueueRow& row) {
  return row.state != static_cast<std::uint32_t>(ipc::StageState::kGathering);
}

std::vector<int> RanksMissing(const ipc::QueueRow& row) {
  std::vector<int> ranks;
  for (int rank = 0; rank < 64; ++rank) {
    if ((row.ranks_missing >> rank & 1U) != 0) ranks.push_back(rank);
  }
  return ranks;
}

bool IsWanted(const ipc::QueueRow& row, const Snapshot& snapshot, const QueueQuery& query) {
  if (!query.job.empty() && JobName(row.job_id, snapshot) != query.job) return false;
  if (!query.state.empty() && StageStateName(row.state) != query.state) return false;
  return query.lane.empty() || (HasLane(row) && LaneName(row.lane, snapshot) == query.lane);
}

}  // namespace

std::string BlockName(const ipc::QueueRow& row) {
  return row.iteration == 0 ? std::to_string(row.block)
                            : fmt::format("{}/{}", row.iteration, row.block);
}

std::string TensorNames(const ipc::QueueRow& row) {
  const std::string first(ipc::GetText(row.tensor));
  if (IsPair(row)) {
    const std::string source = row.source == ipc::kAnyRank ? "any" : std::to_string(row.source);
    const std::string sides = fmt::format("{} to {}, tag {}", source, row.target, row.tag);
    return first.empty() ? sides : fmt::format("{} ({})", first, sides);
  }
  if (row.tensors <= 1) return first;
  return first.empty() ? fmt::format("{} tensors", row.tensors)
                       : fmt::format("{} +{}", first, row.tensors - 1);
}

std::vector<ipc::QueueRow> SelectQueue(const Snapshot& snapshot, const QueueQuery& query) {
  std::vector<ipc::QueueRow> rows;
  for (const ipc::QueueRow& row : snapshot.queue) {
    if (IsWanted(row, snapshot, query)) rows.push_back(row);
  }
  const auto sort_by = [&rows](auto key) {
    std::stable_sort(rows.begin(), rows.end(),
                     [key](const auto& left, const auto& right) { return key(left) < key(right); });
  };
  if (query.sort == "age") {
    sort_by([](const ipc::QueueRow& row) { return row.posted_ns; });
  } else if (query.sort == "bytes") {
    sort_by([](const ipc::QueueRow& row) { return ~row.bytes; });
  } else if (query.sort == "lane") {
    // Those without a lane come last.
    sort_by([](const ipc::QueueRow& row) { return HasLane(row) ? int{row.lane} : 256; });
  } else if (query.sort == "state") {
    sort_by([](const ipc::QueueRow& row) { return row.state; });
  }
  if (query.sort == "job" || query.sort == "age") {
    // Others wait for these as well: who is slow stands first.
    sort_by([](const ipc::QueueRow& row) { return ipc::WaitsForPeer(row) ? 0 : 1; });
  }
  return rows;
}

std::string QueueTable(const Snapshot& snapshot, const QueueQuery& query, bool with_header) {
  Table table({{"JOB"},
               {"BLOCK", Align::kRight},
               {"KIND"},
               {"DTYPE"},
               {"BYTES", Align::kRight},
               {"STAGE", Align::kRight},
               {"LANE"},
               {"STATE"},
               {"AGE", Align::kRight},
               {"IN STATE", Align::kRight},
               {"TENSOR"},
               {"WHY IT WAITS"}});
  for (const ipc::QueueRow& row : SelectQueue(snapshot, query)) {
    table.Add({JobName(row.job_id, snapshot), BlockName(row), Kind(row), Element(row),
               FormatBytes(row.bytes), std::to_string(row.stage),
               HasLane(row) ? LaneName(row.lane, snapshot) : "",
               std::string(StageStateName(row.state)), FormatAge(snapshot.now_ns - row.posted_ns),
               FormatAge(snapshot.now_ns - row.since_ns), TensorNames(row),
               WhyItWaits(row, snapshot)});
  }
  std::string text = table.Render(with_header);
  if (snapshot.counters.queue_rows_left_out > 0 && with_header) {
    text += fmt::format(
        "The board holds {} block stages at a time; since the start {} found no free row.\n",
        ipc::kQueueRowsMax, snapshot.counters.queue_rows_left_out);
  }
  return text;
}

Json QueueJson(const Snapshot& snapshot, const QueueQuery& query) {
  Json stages = Json::array();
  for (const ipc::QueueRow& row : SelectQueue(snapshot, query)) {
    stages.push_back(
        {{"job", JsonText(JobName(row.job_id, snapshot))},
         {"job_id", row.job_id},
         {"iteration", row.iteration},
         {"block", row.block},
         {"kind", Kind(row)},
         {"dtype", Element(row)},
         {"bytes", row.bytes},
         {"stage", row.stage},
         {"lane", HasLane(row) ? Json(JsonText(LaneName(row.lane, snapshot))) : Json(nullptr)},
         {"state", StageStateName(row.state)},
         {"age_ns", snapshot.now_ns - row.posted_ns},
         {"state_age_ns", snapshot.now_ns - row.since_ns},
         {"tensor", JsonText(ipc::GetText(row.tensor))},
         {"tensors", row.tensors},
         {"wait_reason", WaitReasonName(row.reason)},
         {"wait_argument", row.wait_argument},
         {"ranks_missing", RanksMissing(row)},
         {"peer", JsonText(ipc::GetText(row.peer))},
         {"source", Side(row, row.source)},
         {"target", Side(row, row.target)},
         {"tag", IsPair(row) ? Json(row.tag) : Json(nullptr)},
         {"why", JsonText(WhyItWaits(row, snapshot))}});
  }
  return {{"rows_unread", snapshot.rows_unread},
          {"queue_rows_left_out", snapshot.counters.queue_rows_left_out},
          {"queue", std::move(stages)}};
}

}  // namespace headrace::ctl
