#include "client/cli/ctl/flight_view.h"

#include <fmt/format.h>

#include <algorithm>

#include "client/cli/ctl/job_text.h"
#include "client/cli/ctl/queue_view.h"
#include "client/cli/ctl/table.h"
#include "client/cli/ctl/units.h"
#include "ipc/base/age.h"
#include "ipc/base/collective.h"
#include "ipc/base/error.h"
#include "ipc/base/foreign_text.h"

namespace headrace::ctl {
namespace {

constexpr std::uint32_t kNever32 = UINT32_MAX;
// As much as a row can say: 71 minutes, or more.
constexpr std::uint32_t kMost32 = UINT32_MAX - 1;

std::string_view NameOfCode(std::uint32_t code) {
  return code < kCodesCount ? CodeName(static_cast<Code>(code)) : "unknown";
}
std::string_view NameOfCode(const ipc::FlightRow& row) { return NameOfCode(row.code); }

std::size_t RanksKept(const FlightJob& job) {
  return std::min<std::size_t>(job.row.ranks_count, ipc::kFlightRanksMax);
}

// "1.31", or ">4294967" of what took longer than a row can say.
std::string Milliseconds(std::uint32_t from_us, std::uint32_t until_us) {
  if (until_us == kMost32) return fmt::format(">{}", (until_us - from_us) / 1000);
  return fmt::format("{:.2f}", static_cast<double>(until_us - from_us) / 1000);
}

// Whether a time of it is longer than a row can say.
bool IsCut(const FlightJob& job, const ipc::FlightRow& row) {
  bool cut = row.ready_us == kMost32;
  for (std::size_t i = 0; i < RanksKept(job); ++i) cut |= row.posted_us[i] == kMost32;
  for (std::size_t i = 0; i < std::min<std::size_t>(row.stages_count, ipc::kFlightStagesMax); ++i) {
    const ipc::FlightStage& stage = row.stages[i];
    cut |= stage.queued_us == kMost32 || stage.begin_us == kMost32 || stage.end_us == kMost32;
  }
  return cut;
}

// Who was last, and by how much; or who had not posted it when it ended.
std::string Last(const FlightJob& job, const ipc::FlightRow& row) {
  if (row.last_rank != kNever32) {
    if (job.row.ranks_count < 2) return "";
    return fmt::format("rank {} +{} ms", row.last_rank, Milliseconds(0, row.ready_us));
  }
  std::vector<std::uint32_t> missing;
  for (std::size_t i = 0; i < RanksKept(job); ++i) {
    if (row.posted_us[i] == kNever32) missing.push_back(job.row.ranks[i]);
  }
  if (missing.empty()) return "not all posted";
  return fmt::format("not posted by {}", fmt::join(missing, ", "));
}

// "shm0 0.02+1.31 ms": so long in the queue and so long on the lane.
std::string Stages(const FlightLog& log, const ipc::FlightRow& row) {
  std::vector<std::string> texts;
  const std::size_t kept = std::min<std::size_t>(row.stages_count, ipc::kFlightStagesMax);
  for (std::size_t i = 0; i < kept; ++i) {
    const ipc::FlightStage& stage = row.stages[i];
    const std::string lane = LaneName(stage.lane, log.snapshot);
    if (stage.begin_us == kNever32) {
      texts.push_back(lane + " never");
      continue;
    }
    const std::string moved =
        stage.end_us == kNever32 ? "0.00" : Milliseconds(stage.begin_us, stage.end_us);
    texts.push_back(
        fmt::format("{} {}+{} ms", lane, Milliseconds(stage.queued_us, stage.begin_us), moved));
  }
  if (row.stages_count > kept) texts.push_back(fmt::format("{} more", row.stages_count - kept));
  return fmt::format("{}", fmt::join(texts, ", "));
}

std::string Ended(const FlightJob& job, const ipc::FlightRow& row) {
  if (row.code == 0) return "ok";
  return fmt::format("{}: {}", NameOfCode(row), job.CauseOf(row));
}

std::string Tensor(const ipc::FlightRow& row) {
  std::string name(ipc::GetText(row.tensor));
  if (row.tensors > 1) name += fmt::format(" +{}", row.tensors - 1);
  return name;
}

std::string Head(const FlightLog& log, const FlightJob& job, std::int64_t now_unix_ns) {
  const std::uint64_t recorded = job.blocks.empty() ? 0 : job.blocks.back().number;
  std::string text =
      fmt::format("Job {}: {} of {} ranks here, opened {}; {} blocks recorded, {} overwritten",
                  Printable(job.name()), job.row.ranks_count, job.row.world_size,
                  FormatUtc(job.row.opened_unix_ns), recorded, job.blocks_overwritten());
  if (job.row.ended_ns != 0) {
    text += fmt::format("; over for {}", FormatAge(now_unix_ns - log.UnixTime(job.row.ended_ns)));
  }
  if (!job.cause.empty()) {
    text += fmt::format("\nIt ended: {}: {}", NameOfCode(job.code), Printable(job.cause));
  }
  return text + "\n";
}

Json StageJson(const FlightLog& log, const ipc::FlightStage& stage) {
  const auto time = [](std::uint32_t us) {
    return us == kNever32 ? Json() : Json(TimeNs{us} * kMicrosecond);
  };
  return {{"lane", JsonText(LaneName(stage.lane, log.snapshot))},
          {"stage", stage.stage},
          {"queued_ns", time(stage.queued_us)},
          {"begin_ns", time(stage.begin_us)},
          {"end_ns", time(stage.end_us)}};
}

Json BlockJson(const FlightLog& log, const FlightJob& job, const ipc::FlightRow& row) {
  Json posts = Json::array();
  for (std::size_t i = 0; i < RanksKept(job); ++i) {
    const bool posted = row.posted_us[i] != kNever32;
    posts.push_back(
        {{"rank", job.row.ranks[i]},
         {"after_ns", posted ? Json(TimeNs{row.posted_us[i]} * kMicrosecond) : Json()}});
  }
  Json stages = Json::array();
  for (std::size_t i = 0; i < std::min<std::size_t>(row.stages_count, ipc::kFlightStagesMax); ++i) {
    stages.push_back(StageJson(log, row.stages[i]));
  }
  return {
      {"number", row.number},
      {"iteration", row.iteration},
      {"operation", row.operation},
      {"block", row.block},
      {"blocks", row.blocks},
      {"kind", Name(static_cast<Collective>(row.kind))},
      {"dtype", Name(static_cast<DType>(row.dtype))},
      {"bytes", row.bytes},
      {"tensor", JsonText(ipc::GetText(row.tensor))},
      {"tensors", row.tensors},
      {"first_post_unix_ns", log.UnixTime(row.first_post_ns)},
      {"ended_after_ns", row.ended_ns - row.first_post_ns},
      {"ready_ns", row.ready_us == kNever32 ? Json() : Json(TimeNs{row.ready_us} * kMicrosecond)},
      {"last_rank", row.last_rank == kNever32 ? Json() : Json(row.last_rank)},
      {"posts", std::move(posts)},
      {"stages_count", row.stages_count},
      {"stages", std::move(stages)},
      {"code", NameOfCode(row)},
      {"cause", JsonText(job.CauseOf(row))},
      {"cut", IsCut(job, row)}};
}

}  // namespace

std::string FlightName(const ipc::FlightRow& row) {
  if (row.iteration != 0) return fmt::format("{}/{}", row.iteration, row.operation);
  if (row.blocks > 1) return fmt::format("op {}.{}", row.operation, row.block);
  return fmt::format("op {}", row.operation);
}

std::vector<ipc::FlightRow> SelectBlocks(const FlightJob& job, const FlightQuery& query) {
  std::vector<ipc::FlightRow> rows;
  for (const ipc::FlightRow& row : job.blocks) {
    if (!query.failed || row.code != 0) rows.push_back(row);
  }
  if (rows.size() > query.rows_max) {
    rows.erase(rows.begin(), rows.end() - static_cast<std::ptrdiff_t>(query.rows_max));
  }
  return rows;
}

std::string FlightTable(const FlightLog& log, const FlightQuery& query, std::int64_t now_unix_ns,
                        bool with_header) {
  std::string text;
  for (const FlightJob& job : log.jobs) {
    if (!query.job.empty() && job.name() != query.job) continue;
    if (!text.empty()) text += "\n";
    if (with_header) text += Head(log, job, now_unix_ns);
    Table table({{"AGE", Align::kRight},
                 {"BLOCK"},
                 {"TENSOR"},
                 {"BYTES", Align::kRight},
                 {"LAST"},
                 {"QUEUED+MOVED"},
                 {"END"}});
    const std::vector<ipc::FlightRow> rows = SelectBlocks(job, query);
    for (const ipc::FlightRow& row : rows) {
      table.Add({FormatAge(now_unix_ns - log.UnixTime(row.ended_ns)), FlightName(row), Tensor(row),
                 FormatBytes(row.bytes), Last(job, row), Stages(log, row), Ended(job, row)});
    }
    if (!rows.empty()) text += table.Render(with_header);
  }
  if (!query.with_open) return text;
  const QueueQuery open{.job = query.job};
  if (SelectQueue(log.snapshot, open).empty()) return text;
  if (with_header) text += "\nOpen when the service ended:\n";
  return text + QueueTable(log.snapshot, open, with_header);
}

Json FlightJson(const FlightLog& log, const FlightQuery& query) {
  Json jobs = Json::array();
  for (const FlightJob& job : log.jobs) {
    if (!query.job.empty() && job.name() != query.job) continue;
    Json blocks = Json::array();
    for (const ipc::FlightRow& row : SelectBlocks(job, query)) {
      blocks.push_back(BlockJson(log, job, row));
    }
    jobs.push_back(
        {{"id", job.row.job_id},
         {"name", JsonText(job.name())},
         {"owner_uid", job.row.owner_uid},
         {"world_size", job.row.world_size},
         {"ranks_here", job.row.ranks_count},
         {"opened_unix_ns", job.row.opened_unix_ns},
         {"ended_unix_ns", job.row.ended_ns == 0 ? Json() : Json(log.UnixTime(job.row.ended_ns))},
         {"code", NameOfCode(job.code)},
         {"cause", JsonText(job.cause)},
         {"recorded", job.blocks.empty() ? 0 : job.blocks.back().number},
         {"overwritten", job.blocks_overwritten()},
         {"blocks", std::move(blocks)}});
  }
  Json json = {{"rows_unread", log.snapshot.rows_unread},
               {"jobs_unrecorded", log.snapshot.counters.jobs_unrecorded},
               {"jobs", std::move(jobs)}};
  if (query.with_open) json["open"] = QueueJson(log.snapshot, {.job = query.job})["queue"];
  return json;
}

}  // namespace headrace::ctl
