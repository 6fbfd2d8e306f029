#include "client/cli/ctl/job_text.h"

#include <fmt/format.h>

#include "client/cli/ctl/table.h"
#include "client/cli/ctl/units.h"
#include "ipc/base/age.h"
#include "ipc/base/error.h"
#include "ipc/base/foreign_text.h"

namespace headrace::ctl {

std::string RanksHere(const ipc::JobRow& job) {
  return fmt::format("{} here of {}", job.ranks_attached, job.world_size);
}

std::string HowItEnded(const Snapshot& snapshot, std::string_view name) {
  const ipc::FlightJobRow* const job = snapshot.FindEnded(name);
  if (job == nullptr) return "";
  const ipc::FlightEndRow* const end = snapshot.FindEnd(job->job_id);
  const std::string when = fmt::format("{} ago, at {}", FormatAge(snapshot.now_ns - job->ended_ns),
                                       FormatUtc(snapshot.UnixTime(job->ended_ns)));
  const std::string shown = Printable(name);
  if (end == nullptr) {
    return fmt::format("job {} ended {}; headracectl flight {} shows its last blocks", shown, when,
                       shown);
  }
  const std::string_view code =
      end->code < kCodesCount ? CodeName(static_cast<Code>(end->code)) : "unknown";
  return fmt::format(
      "job {} ended {}: {}: {}; headracectl flight {} --failed shows its last blocks", shown, when,
      code, Printable(ipc::GetText(end->cause)), shown);
}

std::string FormatJobState(const ipc::JobRow& job) {
  std::string words(JobStateName(job.state));
  if (job.paused != 0) words += ", paused";
  if (job.draining != 0) words += ", draining";
  return words;
}

}  // namespace headrace::ctl
