#include "client/cli/ctl/flight_command.h"

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>

#include "client/cli/ctl/flight_reading.h"
#include "client/cli/ctl/flight_view.h"
#include "ipc/base/clock.h"

namespace headrace::ctl {
namespace {

struct FlightOptions {
  FlightQuery query;
  bool previous = false;
  Watch watch;
};

// Says on stderr what the table cannot: that the service is gone, which for the previous one is no
// news.
int ExitCodeFor(const FlightLog& log, Liveness liveness, bool previous) {
  if (previous || IsRunning(liveness)) return kExitOk;
  const std::int32_t pid = log.snapshot.service.pid;
  Complain(liveness == Liveness::kGone
               ? fmt::format("the service (pid {}) has ended; these are the records it left", pid)
               : fmt::format("the service (pid {}) is {}: this is what it wrote last", pid,
                             LivenessName(liveness)));
  return kExitProblem;
}

int Flight(const Globals& globals, const FlightOptions& options) {
  const std::string path = FlightPath(globals, options.previous);
  const std::optional<FlightLog> log = ReadFlight(globals, path);
  if (!log) return kExitProblem;
  const ipc::ServiceRow& service = log->snapshot.service;
  const Liveness liveness = LivenessOfService(path, service.pid, service.started_ns);
  FlightQuery query = options.query;
  query.with_open = options.previous || liveness == Liveness::kGone;
  if (globals.json) {
    Print(FlightJson(*log, query), options.watch);
  } else {
    Print(FlightTable(*log, query, UnixNow(), !globals.no_header));
  }
  if (!query.job.empty() && !IsRecorded(*log, query.job)) return kExitProblem;
  return ExitCodeFor(*log, liveness, options.previous);
}

}  // namespace

void AddFlightCommand(const Program& program) {
  const auto options = std::make_shared<FlightOptions>();  // shared by the parser and the command
  const Globals& globals = program.globals;
  CLI::App* const command = AddCommand(
      program, "flight",
      "the newest blocks of each job, even after the job or the service has ended",
      {"flight", "flight bert -n 100", "flight bert --failed --watch", "flight --previous --json"},
      [options, &globals] {
        return Repeat(globals, options->watch, [&] { return Flight(globals, *options); });
      });
  command->add_option("job", options->query.job, "only blocks of this job");
  AddPrevious(*command, options->previous);
  CheckRange(command
                 ->add_option("-n,--rows", options->query.rows_max,
                              "print at most so many blocks of each job, the newest")
                 ->capture_default_str(),
             std::uint64_t{1}, std::uint64_t{1'000'000});
  command->add_flag("--failed", options->query.failed, "only blocks that failed");
  AddWatch(*command, options->watch, "--count");
}

}  // namespace headrace::ctl
