#include <fmt/format.h>

#include <algorithm>

#include "client/cli/ctl/job_text.h"
#include "client/cli/ctl/table.h"
#include "client/cli/ctl/units.h"
#include "client/cli/ctl/views.h"
#include "ipc/base/age.h"
#include "ipc/base/error.h"

namespace headrace::ctl {
namespace {

// The policy that made its plan; empty while it has none.
std::string PolicyOf(const ipc::JobRow& job, const Snapshot& snapshot) {
  const ipc::PlanRow* plan = snapshot.FindPlan(job.id);
  return plan != nullptr && plan->version != 0 ? std::string(ipc::GetText(plan->policy)) : "";
}

// {"peer_lost": 4}: only codes that occurred.
Json FailedByCode(const ipc::JobRow& job) {
  Json counts = Json::object();
  for (std::size_t code = 0; code < std::min<std::size_t>(kCodesCount, ipc::kCodeCounts); ++code) {
    const std::uint64_t count = job.failed_by_code[code];
    if (count > 0) counts[std::string(CodeName(static_cast<Code>(code)))] = count;
  }
  return counts;
}

// How late it was, a time; of those times when others waited for it.
TimeNs MeanLate(const ipc::RankRow& rank) {
  return rank.last_posts > 0 ? rank.late_ns / static_cast<TimeNs>(rank.last_posts) : 0;
}

// "Rank 2 was the last 24000 of 24301 times, 12 ms after the first on average.\n"; empty where
// nobody stands out.
std::string WhoIsLast(const Snapshot& snapshot, std::uint32_t job_id) {
  const ipc::RankRow* last = nullptr;
  std::uint64_t times = 0;
  std::size_t ranks = 0;
  for (const ipc::RankRow& rank : snapshot.ranks) {
    if (rank.job_id != job_id) continue;
    ++ranks;
    times += rank.last_posts;
    if (last == nullptr || rank.last_posts > last->last_posts) last = &rank;
  }
  // Among equals each is the last as often as the others.
  if (last == nullptr || ranks < 2 || last->last_posts * ranks < 2 * times || times == 0) return "";
  return fmt::format("Rank {} was the last {} of {} times, {} after the first on average.\n",
                     last->rank, last->last_posts, times, FormatAge(MeanLate(*last)));
}

// "0: 2.0 GiB, 1: 2.0 GiB": what is mapped of its ranks' memory, by GPU.
std::string OnGpus(const ipc::JobRow& job) {
  std::string text;
  for (std::size_t gpu = 0; gpu < ipc::kGpuRowsMax; ++gpu) {
    if (job.device_bytes[gpu] == 0) continue;
    text +=
        fmt::format("{}{}: {}", text.empty() ? "" : ", ", gpu, FormatBytes(job.device_bytes[gpu]));
  }
  return text;
}

Json OnGpusJson(const ipc::JobRow& job) {
  Json gpus = Json::array();
  for (std::size_t gpu = 0; gpu < ipc::kGpuRowsMax; ++gpu) {
    if (job.device_bytes[gpu] == 0) continue;
    gpus.push_back({{"gpu", gpu}, {"held_bytes", job.device_bytes[gpu]}});
  }
  return gpus;
}

// The last job of that name, where none lives; null where none is known.
Json EndedJson(const Snapshot& snapshot, std::string_view name) {
  const ipc::FlightJobRow* const job = snapshot.FindEnded(name);
  if (job == nullptr) return nullptr;
  const ipc::FlightEndRow* const end = snapshot.FindEnd(job->job_id);
  const std::uint32_t code = end != nullptr ? end->code : 0;
  return {{"id", job->job_id},
          {"owner_uid", job->owner_uid},
          {"world_size", job->world_size},
          {"opened_unix_ns", job->opened_unix_ns},
          {"ended_unix_ns", snapshot.UnixTime(job->ended_ns)},
          {"code", code < kCodesCount ? CodeName(static_cast<Code>(code)) : "unknown"},
          {"cause", end != nullptr ? JsonText(ipc::GetText(end->cause)) : ""}};
}

// A job's sends and receives.
Json SendsJson(const ipc::JobRow& job) {
  return {{"class", ipc::SendsClassName(job.sends_class)},
          {"sent", job.sends_ended},
          {"received", job.receives_ended},
          {"bytes", job.sends_bytes},
          {"waiting", job.sends_waiting}};
}

// What a job's encoded gradients saved between nodes; null where none have crossed encoded.
Json CompressionJson(const ipc::JobRow& job) {
  if (job.encoded_bytes == 0) return nullptr;
  return {{"bytes", job.encoded_bytes},
          {"sent_bytes", job.encoded_sent_bytes},
          {"saved_bytes", static_cast<std::int64_t>(job.encoded_bytes - job.encoded_sent_bytes)},
          {"ratio",
           static_cast<double>(job.encoded_sent_bytes) / static_cast<double>(job.encoded_bytes)},
          {"gpu_bytes", job.encoded_gpu_bytes},
          {"encode_ns", job.encode_ns},
          {"decode_ns", job.decode_ns},
          {"residual", static_cast<double>(job.residual_millionths) / 1e6}};
}

// "26 %, 74 GiB saved, residual 1.2 %": of what would have crossed between nodes, and what is left
// out of the sums, lately; empty where nothing was encoded.
std::string CompressionText(const ipc::JobRow& job) {
  if (job.encoded_bytes == 0) return "";
  const double share =
      static_cast<double>(job.encoded_sent_bytes) / static_cast<double>(job.encoded_bytes);
  const std::uint64_t saved =
      job.encoded_bytes - std::min(job.encoded_sent_bytes, job.encoded_bytes);
  std::string text = fmt::format("{:.0f} %, {} saved", share * 100, FormatBytes(saved));
  if (job.encoded_gpu_bytes == job.encoded_bytes) {
    text += ", by GPUs";
  } else if (job.encoded_gpu_bytes > 0) {
    text += fmt::format(", {:.0f} % by GPUs", 100 * static_cast<double>(job.encoded_gpu_bytes) /
                                                  static_cast<double>(job.encoded_bytes));
  }
  if (job.residual_millionths == 0) return text;
  return text +
         fmt::format(", residual {:.1f} %", static_cast<double>(job.residual_millionths) / 1e4);
}

// "4 -> 3, 0.8 s": the world before the last recovery and now, and what it took.
std::string RecoveryText(const ipc::JobRow& job) {
  if (job.recoveries == 0) return "-";
  const std::string took = FormatAge(job.recovery_ns);
  if (job.world_before == job.world_size) return took;
  return fmt::format("{} -> {}, {}", job.world_before, job.world_size, took);
}

Json JobJson(const ipc::JobRow& job, const Snapshot& snapshot, const UserNames& users) {
  const std::string owner = users(job.owner_uid);
  const std::string policy = PolicyOf(job, snapshot);
  return {{"id", job.id},
          {"name", JsonText(ipc::GetText(job.name))},
          {"state", JobStateName(job.state)},
          {"world_size", job.world_size},
          {"ranks_attached", job.ranks_attached},
          {"owner_uid", job.owner_uid},
          {"owner_name", owner.empty() ? Json(nullptr) : Json(JsonText(owner))},
          {"epoch", job.epoch},
          {"restarts", job.restarts},
          {"world_before", job.world_before > 0 ? Json(job.world_before) : Json(nullptr)},
          {"recoveries",
           {{"count", job.recoveries},
            {"last_ns", job.recoveries > 0 ? Json(job.recovery_ns) : Json(nullptr)},
            {"total_ns", job.recovered_ns}}},
          {"applicants", {{"joiners", job.joiners_waiting}, {"spares", job.spares_waiting}}},
          {"evictions", job.evictions},
          {"age_ns", snapshot.now_ns - job.opened_ns},
          {"operations_ended", job.operations_ended},
          {"operations_failed", job.operations_failed},
          {"operations_open", job.operations_open},
          {"bytes_moved", job.bytes_moved},
          {"failure", JsonText(ipc::GetText(job.failure))},
          {"weight", job.weight},
          {"priority", job.priority},
          {"limit_bytes_per_s",
           job.limit_bytes_per_s > 0 ? Json(job.limit_bytes_per_s) : Json(nullptr)},
          {"sends", SendsJson(job)},
          {"compression", CompressionJson(job)},
          {"paused", job.paused != 0},
          {"draining", job.draining != 0},
          {"policy", policy.empty() ? Json(nullptr) : Json(JsonText(policy))},
          {"blocks_ended", job.blocks_ended},
          {"gathering_ns", job.gathering_ns},
          {"waiting_ns", job.waiting_ns},
          {"moving_ns", job.moving_ns},
          {"held_ns", job.held_ns},
          {"failed_by_code", FailedByCode(job)},
          {"iterations", IterationsJson(snapshot.FindPlan(job.id))},
          {"gpus", OnGpusJson(job)}};
}

Json RankJson(const ipc::RankRow& rank, const Snapshot& snapshot) {
  return {{"rank", rank.rank},
          {"pid", rank.pid},
          {"tensors", rank.tensors},
          {"segment_bytes", rank.segment_bytes},
          {"operations_posted", rank.operations_posted},
          {"operations_ended", rank.operations_ended},
          {"age_ns", snapshot.now_ns - rank.attached_ns},
          {"bytes_posted", rank.bytes_posted},
          {"last_posts", rank.last_posts},
          {"late_ns", rank.late_ns},
          {"waited_ns", rank.waited_ns}};
}

// Jobs of other nodes that this service sums for; empty where there are none.
std::string ServedTable(const Snapshot& snapshot, bool with_header) {
  if (snapshot.served.empty()) return "";
  Table table({{"SUMS FOR"},
               {"LED AT"},
               {"RANKS", Align::kRight},
               {"ENCODED", Align::kRight},
               {"KEPT", Align::kRight},
               {"RESIDUAL", Align::kRight}});
  for (const ipc::ServedRow& row : snapshot.served) {
    table.Add({std::string(ipc::GetText(row.job)), std::string(ipc::GetText(row.leader)),
               std::to_string(row.world_size), FormatBytes(row.encoded_bytes),
               FormatBytes(row.kept_bytes),
               fmt::format("{:.1f} %", static_cast<double>(row.residual_millionths) / 1e4)});
  }
  return table.Render(with_header);
}

Json ServedJson(const Snapshot& snapshot) {
  Json served = Json::array();
  for (const ipc::ServedRow& row : snapshot.served) {
    served.push_back({{"name", JsonText(ipc::GetText(row.job))},
                      {"leader", JsonText(ipc::GetText(row.leader))},
                      {"world_size", row.world_size},
                      {"encoded_bytes", row.encoded_bytes},
                      {"kept_bytes", row.kept_bytes},
                      {"residual", static_cast<double>(row.residual_millionths) / 1e6}});
  }
  return served;
}

}  // namespace

std::string JobsTable(const Snapshot& snapshot, const UserNames& users, bool with_header) {
  Table table({{"JOB"},
               {"STATE"},
               {"RANKS"},
               {"OWNER"},
               {"RESTARTS", Align::kRight},
               {"RECOVERY", Align::kRight},
               {"JOINING", Align::kRight},
               {"SPARES", Align::kRight},
               {"EVICTED", Align::kRight},
               {"AGE", Align::kRight},
               {"WEIGHT", Align::kRight},
               {"PRIORITY", Align::kRight},
               {"LIMIT", Align::kRight},
               {"PLAN BY"},
               {"ENDED", Align::kRight},
               {"FAILED", Align::kRight},
               {"OPEN", Align::kRight},
               {"MOVED", Align::kRight},
               {"COMPRESSED"},
               {"ON GPUS"},
               {"FAILURE"}});
  for (const ipc::JobRow& job : snapshot.jobs) {
    table.Add({std::string(ipc::GetText(job.name)),
               FormatJobState(job),
               RanksHere(job),
               UserText(job.owner_uid, users),
               std::to_string(job.restarts),
               RecoveryText(job),
               std::to_string(job.joiners_waiting),
               std::to_string(job.spares_waiting),
               std::to_string(job.evictions),
               FormatAge(snapshot.now_ns - job.opened_ns),
               std::to_string(job.weight),
               std::to_string(job.priority),
               FormatRateLimit(job.limit_bytes_per_s),
               PolicyOf(job, snapshot),
               std::to_string(job.operations_ended),
               std::to_string(job.operations_failed),
               std::to_string(job.operations_open),
               FormatBytes(job.bytes_moved),
               CompressionText(job),
               OnGpus(job),
               std::string(ipc::GetText(job.failure))});
  }
  const std::string served = ServedTable(snapshot, with_header);
  return table.Render(with_header) + (served.empty() ? "" : "\n" + served);
}

Json JobsJson(const Snapshot& snapshot, const UserNames& users) {
  Json jobs = Json::array();
  for (const ipc::JobRow& job : snapshot.jobs) jobs.push_back(JobJson(job, snapshot, users));
  return {{"rows_unread", snapshot.rows_unread},
          {"jobs", std::move(jobs)},
          {"served", ServedJson(snapshot)}};
}

std::string RanksTable(const Snapshot& snapshot, std::string_view name, bool with_header) {
  Table table({{"JOB"},
               {"RANK", Align::kRight},
               {"PID", Align::kRight},
               {"TENSORS", Align::kRight},
               {"SEGMENTS", Align::kRight},
               {"POSTED", Align::kRight},
               {"ENDED", Align::kRight},
               {"ATTACHED", Align::kRight},
               {"LAST", Align::kRight},
               {"LATE BY", Align::kRight},
               {"WAITED", Align::kRight}});
  std::string last;
  for (const ipc::RankRow& rank : snapshot.ranks) {
    const std::string job = JobName(rank.job_id, snapshot);
    if (job != name) continue;
    table.Add({job, std::to_string(rank.rank), std::to_string(rank.pid),
               std::to_string(rank.tensors), FormatBytes(rank.segment_bytes),
               std::to_string(rank.operations_posted), std::to_string(rank.operations_ended),
               FormatAge(snapshot.now_ns - rank.attached_ns), std::to_string(rank.last_posts),
               rank.last_posts > 0 ? FormatAge(MeanLate(rank)) : "",
               rank.waited_ns > 0 ? FormatAge(rank.waited_ns) : ""});
  }
  for (const ipc::JobRow& job : snapshot.jobs) {
    if (ipc::GetText(job.name) == name) last += WhoIsLast(snapshot, job.id);
  }
  const std::string text = table.Render(with_header) + (with_header ? last : "");
  const std::string ended = HowItEnded(snapshot, name);
  return ended.empty() ? text : ended + "\n";
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
  return {{"rows_unread", snapshot.rows_unread},
          {"jobs", std::move(jobs)},
          {"ended", EndedJson(snapshot, name)}};
}

}  // namespace headrace::ctl
