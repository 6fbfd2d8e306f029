#include "client/cli/ctl/trace_command.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <string>

#include "client/cli/ctl/flight_reading.h"
#include "client/cli/ctl/trace.h"
#include "ipc/base/check.h"

namespace headrace::ctl {
namespace {

struct TraceOptions {
  std::string job;
  std::string out;
  bool previous = false;
};

// The one that opened last, of several with that name; one at least is recorded.
const FlightJob& LastJob(const FlightLog& log, const std::string& name) {
  const FlightJob* found = nullptr;
  for (const FlightJob& job : log.jobs) {
    if (job.name() == name) found = &job;
  }
  HR_CHECK(found != nullptr, name);
  return *found;
}

int Trace(const Globals& globals, const TraceOptions& options) {
  const std::optional<FlightLog> log = ReadFlight(globals, FlightPath(globals, options.previous));
  if (!log || !IsRecorded(*log, options.job)) return kExitProblem;
  const FlightJob& job = LastJob(*log, options.job);
  const std::string text = JobTrace(*log, job);
  if (options.out == "-") {
    Print(text);
    return kExitOk;
  }
  std::ofstream file(options.out, std::ios::binary | std::ios::trunc);
  file << text << std::flush;
  if (!file) {
    Complain(fmt::format("write {}: {}", options.out, std::strerror(errno)));
    return kExitProblem;
  }
  const std::string what = fmt::format("{} blocks and {} passes of job {}", job.blocks.size(),
                                       job.passes.size(), options.job);
  if (globals.json) {
    Print(Json{{"job", JsonText(options.job)},
               {"file", JsonText(options.out)},
               {"blocks", job.blocks.size()},
               {"passes", job.passes.size()}});
  } else {
    Print(
        fmt::format("{}: {}; open it at ui.perfetto.dev or chrome://tracing\n", options.out, what));
  }
  return kExitOk;
}

}  // namespace

void AddTraceCommand(const Program& program) {
  const auto options = std::make_shared<TraceOptions>();  // shared by the parser and the command
  const Globals& globals = program.globals;
  CLI::App* const command = AddCommand(
      program, "trace", "writes a job's newest blocks and iterations as a trace for Perfetto",
      {"trace bert -o bert.json", "trace bert --previous -o -"},
      [options, &globals] { return Trace(globals, *options); });
  command->add_option("job", options->job, "name of a job")->required();
  command->add_option("-o,--output", options->out, "file to write; -: standard output")->required();
  AddPrevious(*command, options->previous);
}

}  // namespace headrace::ctl
