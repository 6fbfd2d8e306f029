#include <fmt/format.h>

#include "client/cli/ctl/table.h"
#include "client/cli/ctl/units.h"
#include "client/cli/ctl/views.h"

namespace headrace::ctl {
namespace {

// "3 / 28", or "3" where there is no limit.
std::string OfLimit(std::uint64_t used, std::uint64_t limit) {
  return limit == 0 ? std::to_string(used) : fmt::format("{} / {}", used, limit);
}

std::string BytesOfLimit(std::uint64_t used, std::uint64_t limit) {
  return limit == 0 ? FormatBytes(used)
                    : fmt::format("{} / {}", FormatBytes(used), FormatBytes(limit));
}

// Sums over all jobs of the user; dispatch writes these rows, control those of users.
std::uint64_t OperationsOpen(const Snapshot& snapshot, std::uint32_t uid) {
  std::uint64_t open = 0;
  for (const ipc::JobRow& job : snapshot.jobs) {
    if (job.owner_uid == uid) open += job.operations_open;
  }
  return open;
}

Json LimitJson(std::uint64_t limit) { return limit == 0 ? Json(nullptr) : Json(limit); }

}  // namespace

std::string UserText(std::uint32_t uid, const UserNames& users) {
  const std::string name = users(uid);
  return name.empty() ? std::to_string(uid) : fmt::format("{} ({})", uid, name);
}

std::string UsersTable(const Snapshot& snapshot, const UserNames& users, bool with_header) {
  Table table({{"USER"},
               {"CONNECTIONS", Align::kRight},
               {"CUT", Align::kRight},
               {"SESSIONS", Align::kRight},
               {"JOBS", Align::kRight},
               {"MEMORY", Align::kRight},
               {"OPERATIONS", Align::kRight}});
  for (const ipc::UserRow& row : snapshot.users) {
    table.Add({UserText(row.uid, users), OfLimit(row.connections, row.connections_max),
               std::to_string(row.connections_cut), OfLimit(row.sessions, row.sessions_max),
               OfLimit(row.jobs, row.jobs_max), BytesOfLimit(row.memory_bytes, row.memory_max),
               OfLimit(OperationsOpen(snapshot, row.uid), row.operations_max)});
  }
  return table.Render(with_header);
}

Json UsersJson(const Snapshot& snapshot, const UserNames& users) {
  Json rows = Json::array();
  for (const ipc::UserRow& row : snapshot.users) {
    const std::string name = users(row.uid);
    rows.push_back({{"uid", row.uid},
                    {"name", name.empty() ? Json(nullptr) : Json(JsonText(name))},
                    {"connections", row.connections},
                    {"connections_max", LimitJson(row.connections_max)},
                    {"connections_cut", row.connections_cut},
                    {"sessions", row.sessions},
                    {"sessions_max", LimitJson(row.sessions_max)},
                    {"jobs", row.jobs},
                    {"jobs_max", LimitJson(row.jobs_max)},
                    {"memory_bytes", row.memory_bytes},
                    {"memory_max_bytes", LimitJson(row.memory_max)},
                    {"operations_open", OperationsOpen(snapshot, row.uid)},
                    {"operations_max", LimitJson(row.operations_max)}});
  }
  return {{"rows_unread", snapshot.rows_unread}, {"users", std::move(rows)}};
}

}  // namespace headrace::ctl
