// Ends a job in order, or the whole service with jobs that move over to the next one.
#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "client/cli/ctl/commands.h"
#include "client/cli/ctl/control.h"
#include "client/cli/ctl/job_text.h"
#include "client/cli/ctl/process.h"
#include "client/cli/ctl/table.h"
#include "ipc/base/lock_file.h"

namespace headrace::ctl {
namespace {

constexpr double kDeadlineMaxSeconds = 24.0 * 3600;
constexpr auto kPollInterval = std::chrono::milliseconds(100);
// How long after the deadline the command waits for the service's end. What is under way then has
// the service's drain_timeout_ms, which may be longer.
constexpr TimeNs kEndMax = 30 * kSecond;

struct DrainOptions {
  std::string job;  // empty: the service
  double deadline_seconds = 60;
  double timeout_seconds = 1;
  bool background = false;
};

int DrainJob(const Globals& globals, const DrainOptions& options, TimeNs timeout_ns) {
  const Status asked =
      Steer(globals.socket_path, {options.job, globals.uid}, SteeringKind::kDrain, 0, timeout_ns);
  if (!asked) {
    Complain(asked.error().text());
    return kExitProblem;
  }
  if (globals.json) {
    Print(Json{{"job", JsonText(options.job)}, {"asked", "drain"}, {"value", 0}});
  } else {
    Print(fmt::format(
        "Job {} takes nothing new from its next iteration on, and ends once what is posted has "
        "ended.\n",
        options.job));
  }
  return kExitOk;
}

void PrintDrainBegun(const Globals& globals, const DrainOptions& options, const DrainBegun& begun) {
  if (globals.json) {
    Json waits = Json::array();
    for (const std::string& job : begun.waits) waits.push_back(JsonText(job));
    Print(Json{{"pid", begun.pid}, {"sessions", begun.sessions}, {"cannot_reconnect", waits}});
    return;
  }
  Print(
      fmt::format("The service (pid {}) takes no new session; {} are open. Those of jobs that can "
                  "reconnect leave once what is posted has ended, and wait for the next service.\n",
                  begun.pid, begun.sessions));
  for (const std::string& job : begun.waits) {
    Complain(
        fmt::format("job {} cannot reconnect (its ranks run without HEADRACE_RECONNECT): it is "
                    "ended in {} s, unless it has ended before",
                    job, options.deadline_seconds));
  }
}

// Where the service's pid is another process's, in another pid namespace, only the board's lock
// tells.
bool HasEnded(const Globals& globals, std::int32_t pid, TimeNs began_ns, bool had_lock) {
  if (had_lock) return LockStateOf(globals.board_path) != LockState::kHeld;
  return LivenessOfProcess(pid, began_ns) == Liveness::kGone;
}

int AwaitEnd(const Globals& globals, const DrainBegun& begun, bool had_lock, TimeNs limit_ns) {
  const TimeNs began_ns = MonotonicNow();
  while (!HasEnded(globals, begun.pid, began_ns, had_lock)) {
    if (MonotonicNow() - began_ns > limit_ns) {
      Complain(
          fmt::format("the service (pid {}) has not ended {} s after it was asked to: "
                      "headracectl queue shows what is open",
                      begun.pid, limit_ns / kSecond));
      return kExitProblem;
    }
    std::this_thread::sleep_for(kPollInterval);
  }
  if (!globals.json) Print(fmt::format("The service (pid {}) has ended.\n", begun.pid));
  return kExitOk;
}

int Drain(const Globals& globals, const DrainOptions& options) {
  const auto timeout_ns = static_cast<TimeNs>(options.timeout_seconds * kSecond);
  if (!options.job.empty()) return DrainJob(globals, options, timeout_ns);
  const auto deadline_ns = static_cast<TimeNs>(options.deadline_seconds * kSecond);
  const bool has_lock = LockStateOf(globals.board_path) == LockState::kHeld;
  const Result<DrainBegun> begun = DrainService(globals.socket_path, deadline_ns, timeout_ns);
  if (!begun) {
    Complain(begun.error().text());
    return kExitProblem;
  }
  PrintDrainBegun(globals, options, *begun);
  return options.background ? kExitOk : AwaitEnd(globals, *begun, has_lock, deadline_ns + kEndMax);
}

}  // namespace

void AddDrainCommand(const Program& program) {
  const auto options = std::make_shared<DrainOptions>();
  CLI::App* command =
      AddCommand(program, "drain",
                 "stops the service after its jobs have moved to the next one, or ends one job",
                 {"drain", "drain --deadline 300", "drain vision"},
                 [&globals = program.globals, options] { return Drain(globals, *options); });
  command->add_option(
      "job", options->job,
      "end this job when its posted operations have ended; without it, drain the whole "
      "service: jobs that can reconnect go on with the next one");
  CheckRange(command
                 ->add_option("--deadline", options->deadline_seconds,
                              "seconds after which jobs that cannot reconnect are ended")
                 ->capture_default_str(),
             0.0, kDeadlineMaxSeconds);
  command->add_flag("--background", options->background,
                    "return at once instead of waiting until the service has stopped");
  AddTimeout(*command, options->timeout_seconds);
}

}  // namespace headrace::ctl
