#include "client/cli/ctl/console.h"

#include <fmt/format.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>
#include <thread>
#include <vector>

#include "client/cli/ctl/job_text.h"
#include "client/cli/ctl/table.h"
#include "ipc/base/foreign_text.h"

namespace headrace::ctl {
namespace {

// To the top left, and clear.
constexpr const char* kClear = "\x1b[H\x1b[2J";

int JudgeService(const Snapshot& snapshot, Liveness liveness) {
  if (snapshot.rows_unread > 0) {
    Complain(fmt::format("{} rows of the board are left out: the service is writing them",
                         snapshot.rows_unread));
  }
  if (IsRunning(liveness)) return kExitOk;
  Complain(fmt::format("the service (pid {}) is {}: this is what it wrote last",
                       snapshot.service.pid, LivenessName(liveness)));
  return kExitProblem;
}

void PrintScreen(const Globals& globals, const View& view, const Watch& watch,
                 const Reading& reading) {
  const bool again = watch.seconds > 0;
  if (globals.json) {
    Print(view.json(reading), watch);
  } else {
    const bool clear = again && ::isatty(STDOUT_FILENO) == 1;
    Print(std::string(clear ? kClear : "") + view.table(reading, !globals.no_header));
  }
  std::fflush(stdout);
}

// "no job is called x; there are a and b".
void ComplainOfName(const char* what, std::string_view name, std::vector<std::string> known) {
  std::sort(known.begin(), known.end());
  known.erase(std::unique(known.begin(), known.end()), known.end());
  const std::string others =
      known.empty()
          ? "there is none"
          : fmt::format("there {} {}", known.size() == 1 ? "is" : "are", fmt::join(known, ", "));
  Complain(fmt::format("no {} is called {}; {}", what, Printable(name), others));
}

}  // namespace

void Print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }
void Print(const Json& json) { Print(json.dump(2) + "\n"); }
void Complain(const std::string& text) { std::fprintf(stderr, "headracectl: %s\n", text.c_str()); }

std::string NameOfUser(std::uint32_t uid) {
  const passwd* entry = ::getpwuid(uid);
  return entry != nullptr ? entry->pw_name : "";
}

Result<Snapshot> ReadNow(const Globals& globals, Liveness& liveness) {
  Result<Snapshot> snapshot = ReadBoard(globals.board_path);
  if (snapshot) {
    liveness =
        LivenessOfService(globals.board_path, snapshot->service.pid, snapshot->service.started_ns);
    if (globals.uid) KeepJobsOf(*snapshot, *globals.uid);
  }
  return snapshot;
}

int Show(const Globals& globals, const View& view, const Watch& watch) {
  std::optional<Snapshot> before;
  for (std::uint64_t screen = 1;; ++screen) {
    Liveness liveness{};
    Result<Snapshot> snapshot = ReadNow(globals, liveness);
    if (!snapshot) {
      Complain(snapshot.error().text());
      return kExitProblem;
    }
    const Reading reading{*snapshot, liveness, before ? &*before : nullptr};
    PrintScreen(globals, view, watch, reading);
    if (watch.seconds <= 0 || screen == watch.screens_max) {
      const int judged = JudgeService(*snapshot, liveness);
      return view.is_problem && view.is_problem(*snapshot) ? kExitProblem : judged;
    }
    before = *snapshot;
    std::this_thread::sleep_for(std::chrono::duration<double>(watch.seconds));
  }
}

int Repeat(const Globals& globals, const Watch& watch, const std::function<int()>& once) {
  const bool again = watch.seconds > 0;
  const bool clear = again && !globals.json && ::isatty(STDOUT_FILENO) == 1;
  for (std::uint64_t screen = 1;; ++screen) {
    if (clear) Print(std::string(kClear));
    const int code = once();
    std::fflush(stdout);
    if (!again || screen == watch.screens_max) return code;
    std::this_thread::sleep_for(std::chrono::duration<double>(watch.seconds));
  }
}

void Print(const Json& json, const Watch& watch) {
  Print(json.dump(watch.seconds > 0 ? -1 : 2) + "\n");
}

bool HasFailedJob(const Snapshot& snapshot, std::string_view name) {
  const ipc::FlightJobRow* const ended = name.empty() ? nullptr : snapshot.FindEnded(name);
  if (ended != nullptr && snapshot.FindEnd(ended->job_id) != nullptr) return true;
  return std::any_of(snapshot.jobs.begin(), snapshot.jobs.end(), [name](const ipc::JobRow& job) {
    const bool is_asked_for = name.empty() || ipc::GetText(job.name) == name;
    return is_asked_for && job.state == static_cast<std::uint32_t>(ipc::JobState::kFailed);
  });
}

bool IsUnambiguous(std::string_view job, const std::set<std::uint32_t>& owners) {
  if (owners.size() <= 1) return true;
  std::vector<std::string> users;
  for (const std::uint32_t uid : owners) users.push_back(UserText(uid, NameOfUser));
  Complain(fmt::format("{} users have a job called {}: {}; say whose is meant, with --uid",
                       owners.size(), Printable(job), fmt::join(users, ", ")));
  return false;
}

bool KnowsJob(const Snapshot& snapshot, std::string_view name) {
  if (!IsUnambiguous(name, OwnersOf(snapshot, name))) return false;
  std::vector<std::string> known;
  for (const ipc::JobRow& job : snapshot.jobs) known.push_back(Printable(ipc::GetText(job.name)));
  if (std::find(known.begin(), known.end(), Printable(name)) != known.end()) return true;
  if (const std::string ended = HowItEnded(snapshot, name); !ended.empty()) {
    Complain(ended);
    return false;
  }
  ComplainOfName("job", name, std::move(known));
  return false;
}

bool KnowsLane(const Snapshot& snapshot, std::string_view name) {
  std::vector<std::string> known;
  for (const Lane& lane : snapshot.lanes) known.push_back(Printable(ipc::GetText(lane.row.name)));
  if (std::find(known.begin(), known.end(), Printable(name)) != known.end()) return true;
  ComplainOfName("lane", name, std::move(known));
  return false;
}

}  // namespace headrace::ctl
