// headracectl: what the service is doing, for people and programs.
//
// Everything but doctor's round trip is read from the board, so it works while the service is
// stopped or stuck; certs has nothing to do with a service that runs. Exit codes: 0 ok, 1 found a
// problem, 2 usage.
#include <pwd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "client/cli/ctl/certs_command.h"
#include "client/cli/ctl/control.h"
#include "client/cli/ctl/doctor.h"
#include "client/cli/ctl/views.h"
#include "client/cli/ctl/words.h"
#include "client/cli/replay/command.h"

namespace headrace::ctl {
namespace {

constexpr int kOk = 0;
constexpr int kFoundProblem = 1;
constexpr int kUsage = 2;

struct Options {
  std::string board_path = "/run/headrace/board";
  std::string socket_path = "/run/headrace/headrace.sock";
  bool json = false;
  bool no_header = false;
  double watch_seconds = 0;
  std::uint64_t screens_max = 0;  // 0: no limit
  std::string job;
  std::string policy;
  double timeout_seconds = 1;
};

void Print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }
void Print(const Json& json) { Print(json.dump(2) + "\n"); }
void Complain(const std::string& text) { std::fprintf(stderr, "headracectl: %s\n", text.c_str()); }

std::string NameOfUser(std::uint32_t uid) {
  const passwd* entry = ::getpwuid(uid);
  return entry != nullptr ? entry->pw_name : "";
}

bool HasFailedJob(const Snapshot& snapshot, std::string_view name) {
  for (const ipc::JobRow& job : snapshot.jobs) {
    const bool is_asked_for = name.empty() || ipc::GetText(job.name) == name;
    const bool failed = job.state == static_cast<std::uint32_t>(ipc::JobState::kFailed);
    if (is_asked_for && failed) return true;
  }
  return false;
}

// Says on stderr what the table cannot: that nobody keeps it up to date.
int JudgeService(const Snapshot& snapshot, Liveness liveness) {
  if (snapshot.rows_unread > 0) {
    Complain(std::to_string(snapshot.rows_unread) +
             " rows of the board are left out: the service stands in the middle of writing them");
  }
  if (liveness == Liveness::kRunning) return kOk;
  Complain("the service (pid " + std::to_string(snapshot.service.pid) + ") is " +
           std::string(LivenessName(liveness)) + ": this is what it wrote last");
  return kFoundProblem;
}

Result<Snapshot> Read(const Options& options, Liveness& liveness) {
  Result<Snapshot> snapshot = ReadBoard(options.board_path);
  if (snapshot) {
    liveness = LookAtProcess(snapshot->service.pid, snapshot->service.started_ns);
  }
  return snapshot;
}

int Status(const Options& options) {
  std::optional<Snapshot> before;
  for (std::uint64_t screen = 1;; ++screen) {
    Liveness liveness{};
    Result<Snapshot> snapshot = Read(options, liveness);
    if (!snapshot) {
      Complain(snapshot.error().text());
      return kFoundProblem;
    }
    const Snapshot* earlier = before ? &*before : nullptr;
    if (options.watch_seconds > 0 && !options.json && ::isatty(STDOUT_FILENO) == 1) {
      Print(std::string("\x1b[H\x1b[2J"));  // to the top left, and clear
    }
    if (options.json) {
      // One line a screen, so that a program can read them as they come.
      const Json json = StatusJson(*snapshot, liveness, earlier);
      Print(json.dump(options.watch_seconds > 0 ? -1 : 2) + "\n");
    } else {
      Print(StatusTable(*snapshot, liveness, earlier, !options.no_header));
    }
    std::fflush(stdout);
    const bool last = options.watch_seconds <= 0 || screen == options.screens_max;
    if (last) {
      const int judged = JudgeService(*snapshot, liveness);
      return HasFailedJob(*snapshot, "") ? kFoundProblem : judged;
    }
    before = *snapshot;
    std::this_thread::sleep_for(std::chrono::duration<double>(options.watch_seconds));
  }
}

// Prints one table or its JSON and judges the service; `problem` says what else is wrong.
template <typename MakeTable, typename MakeJson>
int Show(const Options& options, MakeTable table, MakeJson json,
         bool (*problem)(const Snapshot&, std::string_view)) {
  Liveness liveness{};
  Result<Snapshot> snapshot = Read(options, liveness);
  if (!snapshot) {
    Complain(snapshot.error().text());
    return kFoundProblem;
  }
  if (options.json) {
    Print(json(*snapshot));
  } else {
    Print(table(*snapshot, !options.no_header));
  }
  std::fflush(stdout);
  const int judged = JudgeService(*snapshot, liveness);
  return problem(*snapshot, options.job) ? kFoundProblem : judged;
}

bool NoOtherProblem(const Snapshot&, std::string_view) { return false; }

bool IsUnknownOrFailed(const Snapshot& snapshot, std::string_view name) {
  for (const ipc::JobRow& job : snapshot.jobs) {
    if (ipc::GetText(job.name) == name) return HasFailedJob(snapshot, name);
  }
  Complain("no job is called " + std::string(name));
  return true;
}

int Jobs(const Options& options) {
  if (options.job.empty()) {
    return Show(
        options,
        [](const Snapshot& snapshot, bool header) {
          return JobsTable(snapshot, NameOfUser, header);
        },
        [](const Snapshot& snapshot) { return JobsJson(snapshot, NameOfUser); }, HasFailedJob);
  }
  return Show(
      options,
      [&options](const Snapshot& snapshot, bool header) {
        return RanksTable(snapshot, options.job, header);
      },
      [&options](const Snapshot& snapshot) { return RanksJson(snapshot, options.job, NameOfUser); },
      IsUnknownOrFailed);
}

int Queue(const Options& options) {
  return Show(
      options,
      [&options](const Snapshot& snapshot, bool header) {
        return QueueTable(snapshot, options.job, header);
      },
      [&options](const Snapshot& snapshot) { return QueueJson(snapshot, options.job); },
      NoOtherProblem);
}

int Plan(const Options& options) {
  return Show(
      options,
      [&options](const Snapshot& snapshot, bool header) {
        return PlanTable(snapshot, options.job, header);
      },
      [&options](const Snapshot& snapshot) { return PlanJson(snapshot, options.job); },
      IsUnknownOrFailed);
}

int Policy(const Options& options) {
  const auto timeout_ns = static_cast<TimeNs>(options.timeout_seconds * kSecond);
  const headrace::Status asked =
      SetPolicy(options.socket_path, options.job, options.policy, timeout_ns);
  if (!asked) {
    Complain(asked.error().text());
    return kFoundProblem;
  }
  if (options.json) {
    Print(Json{{"job", JsonText(options.job)}, {"policy", options.policy}});
  } else {
    Print("The job's leader was asked for plans by " + options.policy + "; headracectl plan " +
          options.job + " shows when one is in force.\n");
  }
  return kOk;
}

int Doctor(const Options& options) {
  Liveness liveness = Liveness::kGone;
  Result<Snapshot> board = Read(options, liveness);
  const std::int32_t pid = board && liveness != Liveness::kGone ? board->service.pid : 0;
  const auto timeout_ns = static_cast<TimeNs>(options.timeout_seconds * kSecond);
  const Findings findings =
      Examine({.board_path = options.board_path,
               .socket_path = options.socket_path,
               .board = std::move(board),
               .liveness = liveness,
               .ping = Ping(options.socket_path, timeout_ns),
               .protocol_version = ProtocolVersion(),
               .machine = LookAtMachine(options.board_path, options.socket_path, pid)});
  if (options.json) {
    Print(FindingsJson(findings));
  } else {
    Print(FindingsTable(findings, !options.no_header));
  }
  return HasProblem(findings) ? kFoundProblem : kOk;
}

void AddTimeout(CLI::App& command, Options& options) {
  command
      .add_option("--timeout", options.timeout_seconds, "seconds to wait for the service's answer")
      ->check(CLI::Range(0.01, 600.0))
      ->capture_default_str();
}

// Builds the commands, runs the one that was asked for.
int Run(int argc, char** argv) {
  Options options;
  int exit_code = kOk;
  CLI::App app("Headrace: what the service on this node is doing", "headracectl");
  app.set_help_flag("--help", "print this help and exit");
  app.require_subcommand(1);
  app.fallthrough();
  app.footer("Exit codes: 0 ok, 1 found a problem, 2 usage.");
  CLI::Option* board =
      app.add_option("--board", options.board_path, "the file the service shows its state in")
          ->envname("HEADRACE_BOARD")
          ->capture_default_str();
  app.add_option("--socket", options.socket_path, "the socket the service listens on")
      ->envname("HEADRACE_SOCKET")
      ->capture_default_str();
  app.add_flag("--json", options.json, "for programs; the keys are documented and stable");
  app.add_flag("-h,--no-header", options.no_header, "tables without their first line");

  const auto add = [&](const char* name, const char* help, auto command) {
    CLI::App* added = app.add_subcommand(name, help);
    added->set_help_flag("--help", "print this help and exit");
    added->callback([&exit_code, &options, command] { exit_code = command(options); });
    return added;
  };
  CLI::App* status = add("status", "the service, its state and counters", Status);
  status->add_option("-w,--watch", options.watch_seconds, "again every so many seconds, with rates")
      ->check(CLI::Range(0.01, 86400.0));
  status->add_option("-n,--count", options.screens_max, "with --watch: end after so many screens");
  add("jobs", "the jobs on this node; with a name, the ranks of that job", Jobs)
      ->add_option("job", options.job, "name of a job");
  add("queue", "every block stage, and why it waits", Queue)
      ->add_option("--job", options.job, "only that job's");
  add("plan", "the plan a job's gradients move by: predicted beside measured", Plan)
      ->add_option("job", options.job, "name of a job")
      ->required();
  CLI::App* policy = add("policy", "asks for plans of a job by another policy from now on", Policy);
  policy->add_option("job", options.job, "name of a job")->required();
  policy->add_option("policy", options.policy, "the policy that makes its plans")
      ->required()
      ->check(CLI::IsMember(std::vector<std::string>(std::begin(kPolicies), std::end(kPolicies))));
  AddTimeout(*policy, options);
  add("lanes", "the lanes: credit, load, measured rate",
      [](const Options& given) { return Show(given, LanesTable, LanesJson, NoOtherProblem); });
  add("events", "the last things that happened",
      [](const Options& given) { return Show(given, EventsTable, EventsJson, NoOtherProblem); });
  AddTimeout(*add("doctor", "checks service and machine, and says what to do", Doctor), options);
  replay::AddReplayCommand(app, {options.socket_path, options.board_path, board, options.json},
                           exit_code);
  AddCertsCommand(app, options.json, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kOk : kUsage;
  }
  return exit_code;
}

}  // namespace
}  // namespace headrace::ctl

int main(int argc, char** argv) { return headrace::ctl::Run(argc, argv); }
