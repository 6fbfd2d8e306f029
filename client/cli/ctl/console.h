// What the commands share: the program's own options, a reading of the board, messages to the user.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "client/cli/ctl/process.h"
#include "client/cli/ctl/snapshot.h"
#include "client/cli/ctl/views.h"

namespace headrace::ctl {

inline constexpr int kExitOk = 0;
inline constexpr int kExitProblem = 1;
inline constexpr int kExitUsage = 2;

// The options of the program itself, before or after the command.
struct Globals {
  std::string board_path = "/run/headrace/board";
  std::string socket_path = "/run/headrace/headrace.sock";
  std::optional<std::uint32_t> uid;  // only jobs of that user
  bool json = false;
  bool no_header = false;
  bool utf8 = false;  // what the terminal shows, by the locale
};

void Print(const std::string& text);
void Print(const Json& json);
// "headracectl: `text`" on stderr.
void Complain(const std::string& text);

std::string NameOfUser(std::uint32_t uid);

Result<Snapshot> ReadNow(const Globals& globals, Liveness& liveness);

// How often a view is shown.
struct Watch {
  double seconds = 0;             // 0: once
  std::uint64_t screens_max = 0;  // 0: no limit
};

struct Reading {
  const Snapshot& snapshot;
  Liveness liveness{};
  const Snapshot* before = nullptr;  // the screen before this one, with --watch
};

// One thing to look at, as a table and as JSON.
struct View {
  std::function<std::string(const Reading&, bool with_header)> table;
  std::function<Json(const Reading&)> json;
  // Whether the request itself is wrong, as a job that does not exist; prints why. May be empty.
  std::function<bool(const Snapshot&)> is_problem{};
};

// Prints the view, again and again if `watch` says so; with --json then one object a line, so that
// a program can read them as they come. Returns the exit code, and says on stderr what a table
// cannot: that nobody keeps it up to date.
int Show(const Globals& globals, const View& view, const Watch& watch = {});

// The same for what is no reading of the board alone: runs `once`, which prints one screen and
// returns the exit code, again and again if `watch` says so. Returns the last code.
int Repeat(const Globals& globals, const Watch& watch, const std::function<int()>& once);
// With --watch on one line, so that a program can read each as it comes.
void Print(const Json& json, const Watch& watch);

// Whether any job that lives has failed, or the one of that name, which may have ended since.
bool HasFailedJob(const Snapshot& snapshot, std::string_view name = {});
// True where no more than one user has a job of that name; else stderr names `owners`, and how to
// say whose is meant.
bool IsUnambiguous(std::string_view job, const std::set<std::uint32_t>& owners);
// False, with the names there are on stderr, where there is no such job, or no such lane; of a job
// that has ended stderr says when and why. False, too, where several users have a job of that name.
bool KnowsJob(const Snapshot& snapshot, std::string_view name);
bool KnowsLane(const Snapshot& snapshot, std::string_view name);

}  // namespace headrace::ctl
