#include <fmt/format.h>

#include "client/cli/ctl/table.h"
#include "client/cli/ctl/units.h"
#include "client/cli/ctl/views.h"
#include "client/cli/ctl/words.h"

namespace headrace::ctl {
namespace {

std::string Owner(std::uint32_t uid, const UserNames& users) {
  const std::string name = users(uid);
  return name.empty() ? std::to_string(uid) : fmt::format("{} ({})", uid, name);
}

Json JobJson(const ipc::JobRow& job, const Snapshot& snapshot, const UserNames& users) {
  const std::string owner = users(job.owner_uid);
  return {{"id", job.id},
          {"name", JsonText(ipc::GetText(job.name))},
          {"state", JobStateName(job.state)},
          {"world_size", job.world_size},
          {"ranks_attached", job.ranks_attached},
          {"owner_uid", job.owner_uid},
          {"owner_name", owner.empty() ? Json(nullptr) : Json(JsonText(owner))},
          {"epoch", job.epoch},
          {"age_ns", snapshot.now_ns - job.opened_ns},
          {"operations_ended", job.operations_ended},
          {"operations_failed", job.operations_failed},
          {"operations_open", job.operations_open},
          {"bytes_moved", job.bytes_moved},
          {"failure", JsonText(ipc::GetText(job.failure))}};
}

Json RankJson(const ipc::RankRow& rank, const Snapshot& snapshot) {
  return {{"rank", rank.rank},
          {"pid", rank.pid},
          {"tensors", rank.tensors},
          {"segment_bytes", rank.segment_bytes},
          {"operations_posted", rank.operations_posted},
          {"operations_ended", rank.operations_ended},
          {"age_ns", snapshot.now_ns - rank.attached_ns}};
}

}  // namespace

std::string JobsTable(const Snapshot& snapshot, const UserNames& users, bool with_header) {
  Table table({{"JOB"},
               {"STATE"},
               {"RANKS", Align::kRight},
               {"OWNER"},
               {"EPOCH", Align::kRight},
               {"AGE", Align::kRight},
               {"ENDED", Align::kRight},
               {"FAILED", Align::kRight},
               {"OPEN", Align::kRight},
               {"MOVED", Align::kRight},
               {"FAILURE"}});
  for (const ipc::JobRow& job : snapshot.jobs) {
    table.Add({std::string(ipc::GetText(job.name)), std::string(JobStateName(job.state)),
               fmt::format("{}/{}", job.ranks_attached, job.world_size),
               Owner(job.owner_uid, users), std::to_string(job.epoch),
               FormatAge(snapshot.now_ns - job.opened_ns), std::to_string(job.operations_ended),
               std::to_string(job.operations_failed), std::to_string(job.operations_open),
               FormatBytes(job.bytes_moved), std::string(ipc::GetText(job.failure))});
  }
  return table.Render(with_header);
}

Json JobsJson(const Snapshot& snapshot, const UserNames& users) {
  Json jobs = Json::array();
  for (const ipc::JobRow& job : snapshot.jobs) jobs.push_back(JobJson(job, snapshot, users));
  return {{"rows_unread", snapshot.rows_unread}, {"jobs", std::move(jobs)}};
}

std::string RanksTable(const Snapshot& snapshot, std::string_view name, bool with_header) {
  Table table({{"JOB"},
               {"RANK", Align::kRight},
               {"PID", Align::kRight},
               {"TENSORS", Align::kRight},
               {"SEGMENTS", Align::kRight},
               {"POSTED", Align::kRight},
               {"ENDED", Align::kRight},
               {"ATTACHED", Align::kRight}});
  for (const ipc::RankRow& rank : snapshot.ranks) {
    const std::string job = JobName(rank.job_id, snapshot);
    if (job != name) continue;
    table.Add({job, std::to_string(rank.rank), std::to_string(rank.pid),
               std::to_string(rank.tensors), FormatBytes(rank.segment_bytes),
               std::to_string(rank.operations_posted), std::to_string(rank.operations_ended),
               FormatAge(snapshot.now_ns - rank.attached_ns)});
  }
  return table.Render(with_header);
}

Json RanksJson(const Snapshot& snapshot, std::string_view name, const UserNames& users) {
  Json jobs = Json::array();
  for (const ipc::JobRow& job : snapshot.jobs) {
    if (ipc::GetText(job.name) != name) continue;
    Json entry = JobJson(job, snapshot, users);
    entry["ranks"] = Json::array();
    for (const ipc::RankRow& rank : snapshot.ranks) {
      if (rank.job_id == job.id) entry["ranks"].push_back(RankJson(rank, snapshot));
    }
    jobs.push_back(std::move(entry));
  }
  return {{"rows_unread", snapshot.rows_unread}, {"jobs", std::move(jobs)}};
}

}  // namespace headrace::ctl
